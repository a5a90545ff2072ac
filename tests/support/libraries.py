"""Libraries for programs outside of Python, run in a process without this package, and compared with the package's sessions."""

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from onnx_models import RELEASE, feeds_of, session
from paths import MODELS

import quark_numba
from quark_numba.ort import c_api

HAS_ZIG = importlib.util.find_spec("ziglang") is not None
HAS_LINKER = sys.platform == "linux" and bool(HAS_ZIG or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"))

linked = [
    pytest.mark.compiled,
    pytest.mark.skipif(not HAS_LINKER, reason="Linux with a C compiler or ziglang only: this is where libraries run here"),
]
HAS_FLOAT_QDQ = RELEASE >= c_api.FLOAT_QDQ_RELEASE
TOO_OLD = 'qdq="float" needs a newer ONNX Runtime'

# bfloat16, 16 and 32 bits with an LSTM, block formats, normalizations, QONNX's and MCT's operators, and float8 in uint8.
NAMES = (
    "textline_cls_bf16",
    "textline_cls_i32",
    "textline_cls_mx9",
    "textline_cls_bfp16",
    "tagger_u16",
    "style_xint8",
    "qonnx/cnn_w4a4",
    "mct/mct_lut",
    "nvidia/fp8_m",
)

EVERY_MODEL = [path.relative_to(MODELS).with_suffix("").as_posix() for path in sorted(MODELS.rglob("*.onnx"))]

# How models come out of `build_library`: its options for that.
FORMS = {
    "optimized": {},
    "as written": {"optimize": False},
    "with ONNX's own operators": {"optimize": False, "qdq": "float"},
}

# The models that ONNX Runtime's CPU provider refuses as written, with its message, unless the library has ONNX's own operators.
REFUSED_AS_WRITTEN = {"nvidia/nvfp4_m": "Could not find an implementation for DequantizeLinear(23)"}

# What models get for dimensions that they leave open; the second one on emulated processors and systems, which are slow.
SIZE, SMALL_SIZE = 16, 2

# Runs models with the library, in a process without this package. Arguments: the library, the file of results, threads, models.
RUN = """
import os
import sys
import numpy as np
import onnxruntime

library, results, threads, *models = sys.argv[1:]
found = {}
for path in models:
    name = os.path.basename(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for i, y in enumerate(session.run(None, dict(np.load(f"{results}.{name}.npz")))):
        found[f"{name}:{i}"] = y
np.savez(results, **found)
assert not {"numba", "llvmlite", "quark_numba"} & set(sys.modules)
"""

# Creates a session, and prints why it fails.
REFUSED = """
import sys
import onnxruntime

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
try:
    options.register_custom_ops_library(sys.argv[1])
    onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
except Exception as error:
    print(error)
"""


def child(code, *arguments):
    process = subprocess.run([sys.executable, "-I", "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout


def own_session(path, threads, qdq="auto"):
    return session(path, threads=threads, qdq=qdq, disable_quant_qdq="1")


def names_of(form):
    """Return the names of all models that run in a form. QONNX's nodes with channels last run nowhere as written."""
    names = [each for each in EVERY_MODEL if form == "optimized" or not each.startswith("channels_last/")]
    return tuple(each for each in names if form != "as written" or each not in REFUSED_AS_WRITTEN)


def built(names, form, folder, **options):
    """Build a library of models in a form. Skip the test if ONNX Runtime is too old for it."""
    if "qdq" in FORMS[form] and not HAS_FLOAT_QDQ:
        pytest.skip(TOO_OLD)
    paths = [MODELS / f"{name}.onnx" for name in names]
    library = quark_numba.build_library(paths, folder, **FORMS[form], **options)
    assert {each.name for each in models_beside(library)} == {each.name for each in paths}
    return library


def models_beside(library):
    return tuple(sorted(library.parent.glob("*.onnx")))


class Case(NamedTuple):
    """A model, its inputs, and the outputs that a session of the package computes."""

    path: Path
    feeds: dict[str, np.ndarray]
    outputs: list[np.ndarray]


@functools.cache
def cases(models, threads, *, least=1.0, qdq="auto", size=SIZE):
    """Return a case for each path of a tuple. Of all outputs, at `least` this part is not constant."""
    found = []
    for path in models:
        made = own_session(path, threads, qdq)
        feeds = feeds_of(made, size)
        found.append(Case(path, feeds, made.run(None, feeds)))
    assert np.mean([np.ptp(y) > 0 for each in found for y in each.outputs]) >= least
    return found


def check_bits(library, models, threads, folder, *, run=child, **options):
    """The outputs of models with a library are those of the package's sessions, to the last bit. `run` runs Python code, as
    `child` does."""
    results, expected = folder / "results.npz", {}
    for each in cases(tuple(models), threads, **options):
        np.savez(f"{results}.{each.path.name}.npz", **each.feeds)
        expected |= {f"{each.path.name}:{i}": y for i, y in enumerate(each.outputs)}
    run(RUN, library, results, threads, *models)
    with np.load(results) as arrays:
        found = dict(arrays)
    assert set(found) == set(expected)
    for name, y in expected.items():
        assert found[name].dtype == y.dtype, name
        assert found[name].tobytes() == y.tobytes(), name
