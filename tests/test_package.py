"""The package as a whole: what an import loads, and what the on-disk cache is keyed by."""

import subprocess
import sys

import quark_numba


def test_import_loads_neither_numba_nor_onnxruntime():
    code = (
        "import sys, quark_numba; from quark_numba import quantize, dequantize, register, get_library_path;"
        "print([name for name in ('numba', 'onnxruntime', 'onnxruntime_extensions', 'onnx') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_public_names():
    assert all(hasattr(quark_numba, name) for name in quark_numba.__all__)
