"""Libraries for programs outside of Python, run in a process without this package, beside our own sessions."""

import importlib.util
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

import quark_numba

HAS_ZIG = importlib.util.find_spec("ziglang") is not None
HAS_LINKER = sys.platform == "linux" and bool(HAS_ZIG or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"))

linked = [
    pytest.mark.compiled,
    pytest.mark.skipif(not HAS_LINKER, reason="Linux with a C compiler or ziglang only: this is where libraries run here"),
]
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

# Runs models with the library, in a process without this package. Arguments: the library, the file of results, threads, models.
RUN = """
import sys
import numpy as np
import onnxruntime

library, results, threads, *models = sys.argv[1:]
found = {}
for path in models:
    name = path.rpartition("/")[2]
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


def feeds_of(session):
    """Return random inputs; unknown dimensions are 2."""
    rng = np.random.default_rng(0)
    shapes = {each.name: [size if isinstance(size, int) else 2 for size in each.shape] for each in session.get_inputs()}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def own_session(path, threads, standard_ops=False):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    quark_numba.register(options, backend="native", standard_ops=standard_ops)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check_bits(library, models, threads, folder, *, least=1.0, standard_ops=False):
    """The outputs of models with a library are those of our own sessions, to the last bit. At `least` this part of them is not
    constant."""
    results, expected = folder / "results.npz", {}
    for path in models:
        session = own_session(path, threads, standard_ops)
        feeds = feeds_of(session)
        np.savez(f"{results}.{path.name}.npz", **feeds)
        expected |= {f"{path.name}:{i}": y for i, y in enumerate(session.run(None, feeds))}
    child(RUN, library, results, threads, *models)
    found = np.load(results)
    assert set(found) == set(expected)
    for name, y in expected.items():
        assert found[name].dtype == y.dtype, name
        assert found[name].tobytes() == y.tobytes(), name
    assert np.mean([y.min() < y.max() for y in expected.values()]) >= least
