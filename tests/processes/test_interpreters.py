"""Calls and sessions in interpreters with unusual options, and without standard streams."""

import os
import subprocess
import sys

import pytest
from paths import MODELS

pytestmark = pytest.mark.compiled

# Compares what calls on small and on large arrays give with numpy, and runs a model in two sessions. It takes the path of its
# report, as there may be no streams, and no `assert`, which -O leaves out.
PROGRAM = """
import sys

try:
    import numpy as np
    import onnxruntime
    import quark_numba

    for size in (10, 300_000):
        x = np.random.default_rng(0).normal(0, 50, size).astype(np.float32)
        codes = np.clip(np.rint(x / np.float32(0.5)) + 1, -128, 127).astype(np.int8)
        for _ in range(2):
            np.testing.assert_array_equal(quark_numba.quantize(x, np.float32(0.5), np.int8(1)), codes)
            values = (codes.astype(np.float32) - 1) * np.float32(0.5)
            np.testing.assert_array_equal(quark_numba.dequantize(codes, 0.5, np.int8(1)), values)
    with np.load(sys.argv[2][:-5] + "_expected.npz") as expected:
        x, y = expected["x"], expected["y"]
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(quark_numba.get_library_path())
    for session in (onnxruntime.InferenceSession(sys.argv[2], options), quark_numba.InferenceSession(sys.argv[2])):
        np.testing.assert_allclose(session.run(None, {"input": x})[0].ravel(), y.ravel(), rtol=1e-3, atol=1e-3)
except BaseException:
    import traceback
    with open(sys.argv[1], "w") as file:
        traceback.print_exc(file=file)
else:
    with open(sys.argv[1], "w") as file:
        file.write("fine")
"""


def report_of(folder, *options, closed=(), **environment):
    """Return what the program reports. `closed` are the standard streams that it begins without."""

    def close():
        for descriptor in closed:
            os.close(descriptor)

    path = folder / "report"
    command = [sys.executable, *options, "-c", PROGRAM, str(path), str(MODELS / "mct" / "mct_mlp_tflite.onnx")]
    done = subprocess.run(command, env={**os.environ, **environment}, preexec_fn=close if closed else None, timeout=300)
    assert done.returncode == 0
    return path.read_text()


@pytest.mark.parametrize(
    "options", [["-OO"], ["-I"], ["-X", "dev", "-W", "error::ResourceWarning"], ["-W", "error"]], ids=lambda words: words[0]
)
@pytest.mark.slow
def test_options(options, tmp_path):
    assert report_of(tmp_path, *options) == "fine"


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors")
@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=["stdout", "all"])
@pytest.mark.parametrize("cache", ["warm", "cold"])
@pytest.mark.slow
def test_closed_streams(closed, cache, tmp_path):
    """What is printed or logged goes to no file that took the number of a stream."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")} if cache == "cold" else {}
    assert report_of(tmp_path, closed=closed, **environment) == "fine"
    if cache == "cold":  # whatever the process has kept is whole
        assert report_of(tmp_path, **environment) == "fine"
