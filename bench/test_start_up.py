"""Whole processes: from the start of Python to its end, in turns with a process that makes ONNX Runtime's session of the float
model. Their processor time includes that of processes that help to compile."""

import os
import subprocess
import sys
from statistics import median

import pytest
from beside_quark import FLOAT
from cases import TURNS
from measuring import MODELS

BF16, MX9, MODEL = (str(MODELS / f"textline_cls_{name}.onnx") for name in ("bf16", "mx9", "float"))
CALL = "import numpy, quark_numba; quark_numba.quantize(numpy.ones({}, 'f'), 0.5)"
DROP_IN = f"""
import onnxruntime, quark_numba
options = onnxruntime.SessionOptions()
quark_numba.register(options)
onnxruntime.InferenceSession({BF16!r}, options)
"""
OPTIMIZED = "import quark_numba; quark_numba.InferenceSession({!r})"
KEPT = "import quark_numba; quark_numba.InferenceSession({!r}, cache=True)"

# What Python is to run.
PROCESSES = {
    FLOAT: ["-c", f"import onnxruntime; onnxruntime.InferenceSession({MODEL!r})"],
    "import": ["-c", "import quark_numba"],
    "quark-numba info": ["-m", "quark_numba", "info"],
    "first call": ["-c", CALL.format(9)],
    "first call, 1 M elements": ["-c", CALL.format(1 << 20)],
    "drop-in session, bf16 model": ["-c", DROP_IN],
    "InferenceSession, bf16 model": ["-c", OPTIMIZED.format(BF16)],
    "InferenceSession, MX9 model": ["-c", OPTIMIZED.format(MX9)],
    "InferenceSession with cache=True, bf16 model": ["-c", KEPT.format(BF16)],
    "InferenceSession with cache=True, MX9 model": ["-c", KEPT.format(MX9)],
}
# How many processes a turn starts.
PROCESSES_PER_TURN = {"empty": 1, "filled": 3}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder with all that these processes keep."""
    folder = tmp_path_factory.mktemp("filled")
    for name in PROCESSES:
        run(name, folder)
    return folder


def run(name, folder):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    subprocess.run([sys.executable, *PROCESSES[name]], env=env, check=True, stdout=subprocess.DEVNULL)


def processor_time():
    times = os.times()
    return times.children_user + times.children_system


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("cache", PROCESSES_PER_TURN)
def test_start_up(benchmark, tmp_path, filled, cache, turn, name):
    processor_times = []

    def process() -> None:
        before = processor_time()
        run(name, tmp_path if cache == "empty" else filled)
        processor_times.append(processor_time() - before)

    benchmark.group = f"start-up, cache {cache}"
    benchmark.pedantic(process, rounds=PROCESSES_PER_TURN[cache])
    benchmark.extra_info |= {"contender": name, "processor seconds": median(processor_times)}
