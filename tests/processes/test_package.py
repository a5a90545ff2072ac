"""The package as a whole: which modules an import loads, and which processors and folders the package needs."""

import os
import platform
import re
import subprocess
import sys

import processes
import pytest
from paths import ROOT, TESTS

import quark_numba


def test_import_loads_neither_numba_nor_onnxruntime():
    code = "import quark_numba; from quark_numba import quantize, dequantize, register, get_library_path"
    assert processes.loaded(code, "numba", "onnxruntime", "onnxruntime_extensions", "onnx") == []


def test_public_names():
    assert all(hasattr(quark_numba, name) for name in quark_numba.__all__)


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


@pytest.mark.compiled
@pytest.mark.skipif(sys.platform != "linux", reason="it takes away what Linux has")
def test_a_system_without_what_linux_has():
    """Every module can be imported, except the one for clusters, because dask's psutil reads /proc. Calls, and sessions of both
    backends, give the right results."""
    code = f"""{TAKEN_AWAY}
import importlib, pkgutil, quark_numba
for module in pkgutil.walk_packages(quark_numba.__path__, "quark_numba."):
    if not module.name.endswith(("__main__", "running.cluster")):
        importlib.import_module(module.name)
assert not os.path.exists("/proc/self/task")
{processes.PREPARE}
check("int8")
assert not get_library_path().startswith("/proc")
one = dict(x=np.ones(3, np.float32), scale=np.float32(1), zero_point=np.int8(0))
assert run(session(one_node("quantize", "int8"), backend="extensions"), **one).tolist() == [1, 1, 1]
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=300)


@pytest.mark.compiled
@pytest.mark.skipif(not re.fullmatch("x86_64|AMD64", platform.machine()), reason="every AArch64 processor has them")
def test_a_processor_without_vector_instructions():
    """LLVM would convert float16 by a call of a run-time library, which is missing, and the process would end. int8 codes are
    narrowed without the instructions for packing."""
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-k", "float16 or int8", str(TESTS / "arrays" / "test_calls.py")]
    assert " passed" in subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.compiled
def test_no_folder_can_be_written():
    """A locator that never finds a place stands for a read-only package folder and home."""
    environment = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}
    code = "import numpy, quark_numba; quark_numba.get_library_path(); print(quark_numba.quantize([1.0], 0.5))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[2]\n"


def test_tests_do_not_import_each_other():
    """Tests share code in separate modules. Strings with code for other processes count, too."""
    root = ROOT
    paths = [*root.glob("tests/**/*.py"), *root.glob("bench/*.py")]
    pattern = re.compile(r"\b(?:from|import) +(?:[\w.]+, *)*(?:[\w.]+\.)?test_\w+")
    found = {str(path.relative_to(root)): pattern.findall(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: imports for path, imports in found.items() if imports} == {}
