"""The private parts of Numba and llvmlite that the package uses. A release that moves one fails here, by its name."""

import importlib
import inspect

import pytest
from numba.core import cgutils
from numba.core.registry import cpu_target

from quark_numba.compiling import jit, other_machines
from quark_numba.linear import granularity

# A module, a name in it, and the parameters that are passed, if it is called.
PARTS = [
    ("numba.core.ccallback", "CFunc", None),
    ("numba.core.ccallback", "CFunc.compile", ["self"]),
    ("numba.core.config", "LOOP_VECTORIZE", None),
    ("numba.core.config", "CPU_NAME", None),
    ("numba.core.config", "CPU_FEATURES", None),
    *(
        ("numba.core.codegen", f"JitEngine.{name}", None)
        for name in vars(other_machines._Engine)
        if not name.startswith("__") and name != "_nothing"
    ),
    ("numba.core.codegen", "CPUCodeLibrary._finalize_final_module", ["self"]),
    ("numba.core.codegen", "CPUCodeLibrary._optimize_final_module", ["self"]),
    ("numba.core.codegen", "JITCodeLibrary.get_defined_functions", ["self"]),
    ("numba.core.codegen", "JITCodeLibrary.get_pointer_to_function", ["self", "name"]),
    ("numba.core.codegen", "JITCodeLibrary.has_dynamic_globals", None),
    ("numba.core.codegen", "JITCodeLibrary.serialize_using_bitcode", ["self"]),
    ("numba.core.codegen", "JITCodeLibrary.serialize_using_object_code", ["self"]),
    ("numba.core.codegen", "JITCPUCodegen._customize_tm_options", ["self", "options"]),
    ("numba.core.codegen", "JITCPUCodegen._library_class", None),
    ("numba.core.codegen", "JITCPUCodegen.magic_tuple", ["self"]),
    ("numba.core.codegen", "JITCPUCodegen.set_env", ["self", "env_name", "env"]),
    ("numba.core.codegen", "get_host_cpu_features", []),
    ("numba.core.compiler", "CompileResult._rebuild", ["target_context"]),
    ("numba.core.compiler", "CompileResult._reduce", ["self"]),
    ("numba.core.compiler_lock", "global_compiler_lock", None),
    # Of the class: a context keeps what its property `nrt` returned first, and its copies that compile share it.
    ("numba.core.runtime.context", "NRTContext.allocate_unchecked", ["self", "builder", "size"]),
    ("numba.core.runtime.context", "NRTContext.free", ["self", "builder", "ptr"]),
    ("numba.core.serialize", "dumps", ["obj"]),
    ("numba.core.sigutils", "normalize_signature", ["sig"]),
    ("numba.core.typing.npydecl", "parse_dtype", ["dtype"]),
    ("llvmlite.binding", "create_mcjit_compiler", ["module", "target_machine"]),
    ("llvmlite.binding", "get_process_triple", []),
    ("numba.np.ufunc.parallel", "_check_tbb_version_compatible", []),
]


@pytest.mark.parametrize(("module", "name", "parameters"), PARTS, ids=[f"{module}.{name}" for module, name, _ in PARTS])
def test_a_private_part_is_where_it_was(module, name, parameters):
    found = importlib.import_module(module)
    for each in name.split("."):
        found = getattr(found, each)
    if parameters is not None:
        assert [*inspect.signature(found).parameters][: len(parameters)] == parameters


def test_the_code_generator_gives_libraries():
    library = cpu_target.target_context.codegen().create_library("library_of_a_test")
    for name in ("add_ir_module", "finalize", "get_pointer_to_function", "_get_module_for_linking", "_ensure_finalized"):
        assert callable(getattr(library, name)), name
    assert len(cpu_target.target_context.codegen().magic_tuple()) == 3
    assert cpu_target.target_context.codegen()._tm
    assert cpu_target.target_context.codegen()._engine
    assert callable(cgutils.alloca_once)


@pytest.mark.parametrize(("name", "error"), [("NO_FAULT", AssertionError), ("no_such_name", KeyError)])
def test_a_compiled_function_takes_the_place_of_a_function_alone(name, error):
    with pytest.raises(error):
        jit.function(granularity.loop_shape, **{name: jit.inline(granularity.size_of)})
