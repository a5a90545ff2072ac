"""The package as a whole: which modules an import loads, and which processors and folders the package needs."""

import ast
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import processes
import pytest
from marks import needs_extensions
from paths import MODELS, ROOT, TESTS

import quark_numba
from quark_numba import errors

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PUBLIC_NAMES = TESTS / "processes" / "public_names.txt"
REQUIREMENTS = [re.match(r"[\w-]+", each)[0] for each in _PROJECT["dependencies"]]


def test_import_loads_neither_numba_nor_onnxruntime():
    code = "import quark_numba; from quark_numba import quantize, dequantize, register, get_library_path"
    assert processes.loaded(code, "numba", "onnxruntime", "onnxruntime_extensions", "onnx") == []


def test_what_modules_define_has_its_value_there():
    """No name at the top of a module is None until another module sets it, so that a reader finds its value."""
    for path in Path(quark_numba.__file__).parent.rglob("*.py"):
        for line in ast.parse(path.read_text(encoding="utf-8")).body:
            value = getattr(line, "value", None) if isinstance(line, ast.Assign | ast.AnnAssign) else line
            assert not (isinstance(value, ast.Constant) and value.value is None), f"{path}:{line.lineno}"


WITHOUT = "import sys; sys.modules['onnxruntime'] = sys.modules['onnxruntime_extensions'] = None\n"


@pytest.mark.compiled
def test_arrays_need_no_onnx_runtime():
    code = f"""{WITHOUT}
import numpy as np, onnx, quark_numba
x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
codes = quark_numba.quantize(x, 0.01, np.int8(0))
assert np.abs(quark_numba.dequantize(codes, 0.01, np.int8(0)) - x).max() < 0.01
quark_numba.bfp_quantize_dequantize(x), quark_numba.mx_quantize_dequantize(x)
quark_numba.pack(quark_numba.quantize(x, 0.5, dtype="int4"))
quark_numba.to_tensor_proto(codes), quark_numba.register_schemas(), quark_numba.reference_ops(), quark_numba.get_library_path()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.compiled
def test_without_onnx_runtime_the_error_names_the_packages_that_provide_it():
    code = f"""{WITHOUT}import quark_numba
for name in ("InferenceSession", "evaluate", "analyze", "optimize", "register"):
    try:
        quark_numba.register(None) if name == "register" else getattr(quark_numba, name)
    except Exception as error:
        print(error)
"""
    done = processes.python("-c", code)
    assert done.stdout.count("ONNX Runtime is not installed. One of these packages provides it: onnxruntime (pip install") == 5
    assert done.stdout.count("'quark_numba[onnxruntime]'), onnxruntime-vitisai, onnxruntime-gpu, onnxruntime-directml") == 5


@pytest.mark.slow
@pytest.mark.compiled
def test_the_command_without_onnx_runtime():
    def command(*words):
        return processes.python("-c", f"{WITHOUT}from quark_numba import cli; sys.exit(cli.main({words!r}))")

    assert json.loads(command("info", "--json").stdout)["onnxruntime"] == "not installed"
    assert command("types", "--json").returncode == 0
    done = command("run", str(MODELS / "textline_cls_bf16.onnx"))
    assert done.returncode == 1
    assert "error: ONNX Runtime is not installed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.compiled
def test_without_either_backend_both_reasons_are_named():
    code = """
import sys
sys.modules["onnxruntime_extensions"] = None
import onnxruntime, quark_numba
quark_numba.register(onnxruntime.SessionOptions())
"""
    done = processes.python("-c", code, NUMBA_DISABLE_JIT="1")
    assert "the native backend is not available (NUMBA_DISABLE_JIT is set), and onnxruntime-extensions is not" in done.stderr
    assert "pip install 'quark_numba[extensions]'" in done.stderr


@pytest.mark.compiled
@pytest.mark.skipif(os.name == "nt", reason="it makes symbolic links")
@pytest.mark.slow
def test_another_package_provides_onnx_runtime(tmp_path):
    """In an environment in which ONNX Runtime has another package name, no requirement is missing, and sessions work."""
    import onnxruntime

    site = tmp_path / "site"
    site.mkdir()
    for path in Path(onnxruntime.__file__).parents[1].iterdir():
        if not path.name.startswith(("onnxruntime-", "quark_numba", "__editable__")) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    metadata = site / "onnxruntime_device-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-device\nVersion: 1.0\n")
    (metadata / "top_level.txt").write_text("onnxruntime\n")
    code = f"""
import importlib.metadata, json, sys
sys.path[:0] = [{str(site)!r}, {str(ROOT)!r}]
names = {{each.name for each in importlib.metadata.distributions()}}
assert "onnxruntime" not in names and "onnxruntime-device" in names, names
for requirement in {REQUIREMENTS!r}:
    importlib.metadata.version(requirement)
import numpy as np, onnxruntime, quark_numba
x = np.load({str(MODELS / "textline_cls_expected.npz")!r})["x"]
quark_numba.InferenceSession({str(MODELS / "textline_cls_bf16.onnx")!r}).run(None, {{"x": x}})
from quark_numba import cli
cli.main(["info", "--json"])
"""
    done = processes.python("-I", "-S", "-c", code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["onnxruntime"] == f"{onnxruntime.__version__}, from onnxruntime-device"


def test_public_names():
    """A changed line here is a change for users: it needs a line in CHANGELOG.md, too."""
    assert _public_names() == PUBLIC_NAMES.read_text().splitlines()


def test_dir():
    """Completion in a notebook offers the public names, and not what the package's own code imports."""
    assert dir(quark_numba) == sorted(quark_numba.__all__)


def test_exceptions_are_public():
    """Exceptions that a caller may want to catch have public names, which load no other library."""
    raised = [value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__]
    names = {error.__name__ for error in raised}
    assert names - {*quark_numba.__all__} == {"MissingFolderError"}  # a WriteError and a FileNotFoundError
    assert all(getattr(quark_numba, name) is getattr(errors, name) for name in names & {*quark_numba.__all__})
    assert (
        processes.loaded("from quark_numba import NotAvailableError, MissingPackageError", "numba", "onnxruntime", "onnx") == []
    )


def _public_names():
    """Return the public names with their parameters and defaults, and of classes the members that no other package defines."""
    lines = []
    for name in sorted(quark_numba.__all__):
        value = getattr(quark_numba, name)
        lines.append(name + _parameters(value))
        if inspect.isclass(value):
            others = next(base for base in value.__mro__ if not base.__module__.startswith("quark_numba"))
            members = {member for member in dir(value) if not member.startswith("_")} - set(dir(others))
            lines += [f"    .{member}{_parameters(getattr(value, member))}" for member in sorted(members)]
    return lines


def _parameters(value):
    if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
        return ""
    signature = inspect.signature(value)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


# This code takes away functions and files that Linux has and other systems lack.
TAKEN_AWAY = """
import builtins, io, os, sys
sys.modules["torch"] = None
del os.fork, os.register_at_fork, os.memfd_create, os.sched_getaffinity

def away(function):
    def checked(path, *arguments, **named):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(path)
        return function(path, *arguments, **named)
    return checked

for module, names in ((os, "stat lstat open listdir scandir readlink access"), (io, "open"), (builtins, "open")):
    for name in names.split():
        setattr(module, name, away(getattr(module, name)))
"""


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.skipif(sys.platform != "linux", reason="it takes away what Linux has")
@needs_extensions
def test_a_system_without_what_linux_has():
    """Every module can be imported, except the one for clusters, because psutil, which dask needs, reads /proc, and the one of
    the PyTorch operators. Calls, and sessions of both backends, give the right results."""
    code = f"""{TAKEN_AWAY}
import importlib, pkgutil, quark_numba
for module in pkgutil.walk_packages(quark_numba.__path__, "quark_numba."):
    if not module.name.endswith(("__main__", "running.cluster", "torch_operators")):
        importlib.import_module(module.name)
assert not os.path.exists("/proc/self/task")
{processes.PREPARE}
check("int8")
assert not get_library_path().startswith("/proc")
one = dict(x=np.ones(3, np.float32), scale=np.float32(1), zero_point=np.int8(0))
assert run(session(one_node("quantize", "int8"), backend="extensions"), **one).tolist() == [1, 1, 1]
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=300)


# Names and features of processors for LLVM. The first has no vector instructions: LLVM would convert float16 by a call of a
# run-time library, which is missing, and the process would end. The second one packs codes, and streams large arrays.
PROCESSORS = {"generic": "", "haswell": "+avx,+avx2,+fma,+f16c"}


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.skipif(not re.fullmatch("x86_64|AMD64", platform.machine()), reason="they are x86-64 processors")
@pytest.mark.parametrize(
    ("processor", "file", "chosen"),
    [
        ("generic", "arrays/test_calls.py", "test_small_shapes and float16"),
        ("generic", "arrays/test_calls.py", "float16 or int8"),
        ("haswell", "arrays/test_calls.py", "float16 or int8"),
        ("haswell", "sessions/test_native.py", "test_past_the_cache"),
    ],
)
def test_other_processors(processor, file, chosen):
    words = ["-m", "pytest", "-q", "-m", "not exhaustive", "-k", chosen, TESTS / file]
    done = processes.python(*words, NUMBA_CPU_NAME=processor, NUMBA_CPU_FEATURES=PROCESSORS[processor])
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_tests_do_not_import_each_other():
    """Tests share code in separate modules. Strings with code for other processes count, too."""
    paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/*.py")]
    pattern = re.compile(r"\b(?:from|import) +(?:[\w.]+, *)*(?:[\w.]+\.)?test_\w+")
    found = {str(path.relative_to(ROOT)): pattern.findall(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: imports for path, imports in found.items() if imports} == {}
