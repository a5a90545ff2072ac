"""The start-up times of a new process, by its own clock."""

import os
import subprocess
import sys
from itertools import count

import pytest
from measuring import MODELS

TIMED = """
import numpy, time
{before}
start = time.perf_counter()
{timed}
print(time.perf_counter() - start)
"""
CALL = "from quark_numba import quantize; quantize(numpy.ones({}, 'f'), 0.5)"
SESSION = "{}; onnxruntime.InferenceSession({!r}, options)"
OPTIONS = "import onnxruntime; options = onnxruntime.SessionOptions()"
REGISTER = "import quark_numba; quark_numba.register(options)"
OPTIMIZED = "import quark_numba; quark_numba.InferenceSession({!r})"
KEPT = "import quark_numba; quark_numba.InferenceSession({!r}, cache=True)"
BF16, MX9, FLOAT = (str(MODELS / f"textline_cls_{name}.onnx") for name in ("bf16", "mx9", "float"))

# What comes before, and what is timed.
STEPS = {
    "import": ("", "import quark_numba"),
    "first call": ("", CALL.format(1)),
    "first call, 1 M elements": ("", CALL.format(1 << 20)),
    "drop-in session, bf16 model": (OPTIONS, SESSION.format(REGISTER, BF16)),
    "InferenceSession, bf16 model": ("", OPTIMIZED.format(BF16)),
    "InferenceSession, MX9 model": ("", OPTIMIZED.format(MX9)),
    "InferenceSession with cache=True, bf16 model": ("", KEPT.format(BF16)),
    "InferenceSession with cache=True, MX9 model": ("", KEPT.format(MX9)),
    "ONNX Runtime's session, float model": (OPTIONS, SESSION.format("pass", FLOAT)),
}


@pytest.mark.parametrize("cache", ["empty", "filled"])
@pytest.mark.parametrize("step", STEPS)
def test_start_up(benchmark, tmp_path, step, cache):
    before, timed = STEPS[step]
    numbers, seconds = count(), []

    def process() -> None:
        folder = tmp_path / (str(next(numbers)) if cache == "empty" else "cache")
        command = [sys.executable, "-c", TIMED.format(before=before, timed=timed)]
        done = subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": str(folder)}, check=True, stdout=subprocess.PIPE)
        seconds.append(float(done.stdout))

    if cache == "filled":
        process()
        seconds.clear()
    benchmark.group = f"start-up: {step}, cache {cache}"
    benchmark.pedantic(process, rounds=3 if cache == "empty" else 9)
    benchmark.extra_info |= {"seconds": seconds}
