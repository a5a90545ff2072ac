"""Compilation for another machine: object files for other processors, without Python's error handling, and PTX for GPUs, with
the oldest GPU.

For another processor: after `begin`, the functions that Numba compiles become object files, and do not run here. This is for a
process that does nothing else. It has to call `begin` before it imports any module that imports the intrinsics, which depend on
the processor.

For a GPU: `ptx` takes a function that this process has compiled for itself."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import llvmlite.binding as ll
from llvmlite import ir
from numba.core import codegen, config

from . import cache


class Machine(NamedTuple):
    """A system and a processor, by LLVM's names."""

    triple: str
    cpu: str
    features: str  # such as "+avx,+avx2", or "" for all that the processor has


# The library and the name of each compiled function, by the address that it seems to have. No number of a state is so large.
_functions: dict[int, tuple[Any, str]] = {}
_FIRST_ADDRESS = 0x4000_0000_0000_0000

# The function that the wrapper of a function calls if the function raises. LLVM's passes remove the call if it never does.
_RAISES = "quark_numba_raises"


class _Engine:
    """A stand-in for LLVM's execution engine, which takes modules and does not compile them."""

    def __init__(self, target_machine: Any) -> None: ...

    def is_symbol_defined(self, name: str) -> bool:
        return True

    def _nothing(self, *_: Any) -> None: ...

    add_module = add_global_mapping = finalize_object = set_object_cache = _load_defined_symbols = _nothing


class _Library(codegen.JITCodeLibrary):  # type: ignore[misc]  # which has no types
    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        address = _FIRST_ADDRESS + len(_functions)
        _functions[address] = self, name
        return address

    def serialize_using_object_code(self) -> Any:
        return self.serialize_using_bitcode()  # there is no object code


def begin(machine: Machine) -> None:
    """Compile for another machine from now on.

    Numba's just-in-time compiler has no setting for another machine, so private parts of Numba and llvmlite are replaced here.
    ``tests/processes/test_numba.py`` fails if a release lacks one of them, and ``tests/sessions/test_stand_alone_library.py``,
    which runs the compiled functions, if a release uses them in another way."""

    class Codegen(codegen.JITCPUCodegen):  # type: ignore[misc]
        _library_class = _Library  # compiled functions get stand-ins for addresses
        cpu = machine.cpu

        def _customize_tm_options(self, options: dict[str, Any]) -> None:
            options |= {"cpu": machine.cpu, "features": machine.features, "reloc": "pic", "codemodel": "default"}

        def magic_tuple(self) -> tuple[str, str, str]:
            # Cached functions of this kind differ from those of sessions, as the code generator has changed them.
            return machine.triple, f"{machine.cpu} elsewhere", machine.features

        def set_env(self, *_: Any) -> None: ...  # it writes to memory of the function, which is not loaded

    ll.initialize_all_targets()
    ll.initialize_all_asmprinters()
    # Numba asks LLVM for the system of this process.
    ll.get_process_triple = lambda: machine.triple
    # LLVM's engine would load the code into this process. Of what this returns Numba takes only `target_data`, the layout of
    # data, which the target machine has as well. All else it asks the `JitEngine` around it.
    ll.create_mcjit_compiler = lambda module, target_machine, **_: target_machine
    # The processor, for any part of Numba that reads the configuration.
    config.CPU_NAME, config.CPU_FEATURES = machine.cpu, machine.features
    codegen.JitEngine, codegen.JITCPUCodegen = _Engine, Codegen
    cache.process.is_for_another_machine = True


def symbol_of(address: int) -> str:
    """Return the symbol of a function in its object file: the function's name, the digest of its sources, and the processor."""
    library, _ = _functions[address]
    return re.sub(r"\W", "_", f"{library.name}_{library.codegen.cpu}")


def count_arguments(address: int) -> int:
    library, name = _functions[address]
    return len([*library.get_function(_native(name)).arguments]) - 2


def _native(name: str) -> str:
    """Return the name of the function that Numba's C wrapper calls. It takes the addresses of the result and of an exception
    before its arguments, and returns whether it raised."""
    return name.removeprefix("cfunc.")


def object_file(address: int) -> bytes:
    """Return the object file of a function from words to a word. The error handling of Python and of Numba is gone from it: it
    needs only malloc, free, memcpy, memset, and the functions that the function itself calls.

    Raises
    ------
    RuntimeError
        If the function may raise an exception.
    """
    library, name = _functions[address]
    symbol = symbol_of(address)
    module = library._get_module_for_linking().clone()
    module.link_in(ll.parse_assembly(str(_wrapper(symbol, _native(name), count_arguments(address), module.triple))))
    for old, new in (("NRT_Allocate", "malloc"), ("NRT_Free", "free")):
        if any(each.name == old for each in module.functions):
            module.get_function(old).name = new
    _reduce(module, symbol, library.codegen._tm)
    module.get_function(symbol).visibility = "hidden"
    return bytes(library.codegen._tm.emit_object(module))


# Cards from Pascal (2016) on, which drivers of CUDA 12 support; drivers compile PTX for the card at hand, which may be newer.
CUDA = Machine("nvptx64-nvidia-cuda", "sm_60", "")

# The function of a thread, and the function that the driver starts: its one parameter is a record, which is passed by value.
_THREAD = "thread"
_ENTRY = """
target triple = "{triple}"
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i64 @{thread}(i64, i64, i64)
define ptx_kernel void @{entry}({pointer} byval([{words} x i64]) align 8 %record) {{
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %address = ptrtoint {pointer} %record to i64
  %wide_block = zext i32 %block to i64
  %wide_thread = zext i32 %thread to i64
  call i64 @{thread}(i64 %address, i64 %wide_block, i64 %wide_thread)
  ret void
}}
"""


def ptx(compiled: Any, entry: str, words: int) -> str:
    """Return the PTX text of a kernel for NVIDIA GPUs.

    Parameters
    ----------
    compiled : numba CFunc
        The work of a thread: int64_t (int64_t record, int64_t thread_block, int64_t thread). It was compiled for this machine,
        with no loop turned into vector instructions. Its result is ignored.
    entry : str
        The kernel's name. It has one parameter, the record.
    words : int
        The number of 64-bit words of the record.

    Raises
    ------
    RuntimeError
        If the function may raise an exception, or calls functions that a GPU lacks.
    """
    ll.initialize_all_targets()
    ll.initialize_all_asmprinters()
    machine = ll.Target.from_triple(CUDA.triple).create_target_machine(cpu=CUDA.cpu, features=CUDA.features, opt=3)
    module = compiled._library._get_module_for_linking().clone()
    module.triple, module.data_layout = CUDA.triple, str(machine.target_data)
    module.link_in(ll.parse_assembly(str(_wrapper(_THREAD, _native(compiled._wrapper_name), 3, CUDA.triple))))
    pointer = "ptr" if ll.llvm_version_info >= (17,) else f"[{words} x i64]*"
    text = _ENTRY.format(triple=CUDA.triple, thread=_THREAD, entry=entry, words=words, pointer=pointer)
    module.link_in(ll.parse_assembly(text))
    for each in module.functions:
        if not each.is_declaration and each.name != entry:
            each.add_function_attribute("alwaysinline")  # a call takes memory for a stack
    _reduce(module, entry, machine)
    missing = [each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")]
    if missing:
        raise RuntimeError(f"{entry} calls {', '.join(missing)}, which a GPU lacks")
    return str(machine.emit_assembly(module))


def _reduce(module: Any, symbol: str, machine: Any) -> None:
    """Remove from a module all but what one function needs, and run LLVM's passes for a machine. Raise RuntimeError if the
    function may raise an exception."""
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != symbol:
            each.linkage = "internal"
    # Functions of Numba raise for cases that the callers never use. LLVM sees this once they are inlined.
    for each in module.functions:
        if not each.is_declaration and each.name.startswith("_ZN5numba"):
            each.add_function_attribute("alwaysinline")
    passes = ll.create_pass_builder(machine, ll.create_pipeline_tuning_options(speed_level=3))
    for _ in range(2):  # the result of a function may be known only after all passes
        passes.getModulePassManager().run(module, passes)
        if not any(each.name == _RAISES for each in module.functions):
            return
    raise RuntimeError(f"{symbol} may raise an exception, which cannot be handled elsewhere")


def _wrapper(symbol: str, native: str, count: int, triple: str) -> ir.Module:
    module, word, pointer = ir.Module(), ir.IntType(64), ir.IntType(8).as_pointer()
    module.triple = triple
    native_type = ir.FunctionType(ir.IntType(32), [word.as_pointer(), pointer.as_pointer(), *[word] * count])
    called = ir.Function(module, native_type, native)
    raises = ir.Function(module, ir.FunctionType(ir.VoidType(), []), _RAISES)
    # Records on the stack count no references, but Numba writes code for the case that they do.
    destructor = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), "NRT_MemInfo_call_dtor")
    builder = ir.IRBuilder(destructor.append_basic_block())
    builder.call(module.declare_intrinsic("llvm.trap", (), ir.FunctionType(ir.VoidType(), [])), [])
    builder.ret_void()
    function = ir.Function(module, ir.FunctionType(word, [word] * count), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    result, exception = builder.alloca(word), builder.alloca(pointer)
    status = builder.call(called, [result, exception, *function.args])
    with builder.if_then(builder.icmp_signed("!=", status, status.type(0))):
        builder.call(raises, [])
    builder.ret(builder.load(result))
    return module
