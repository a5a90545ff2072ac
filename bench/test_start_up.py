"""Whole processes: from the start of Python to its end, in turns with a process that makes ONNX Runtime's session of the float
model. Their processor time includes that of processes that help to compile."""

import os
import subprocess
import sys
from statistics import median

import pytest
from cases import TURNS
from labels import DROP_IN, EMPTY, FILLED, FLOAT, SESSION, SESSION_WITHOUT_CACHE
from measuring import MODELS

BF16, MX9, MODEL = (str(MODELS / f"textline_cls_{name}.onnx") for name in ("bf16", "mx9", "float"))
CALL = "import numpy, quark_numba; quark_numba.quantize(numpy.ones({}, 'f'), 0.5)"
REGISTER = f"""
import onnxruntime, quark_numba
options = onnxruntime.SessionOptions()
quark_numba.register(options)
onnxruntime.InferenceSession({BF16!r}, options)
"""
CREATE = "import quark_numba; quark_numba.InferenceSession({!r})"
CREATE_WITHOUT_CACHE = "import quark_numba; quark_numba.InferenceSession({!r}, cache=False)"

# What Python is to run.
PROCESSES = {
    FLOAT: ["-c", f"import onnxruntime; onnxruntime.InferenceSession({MODEL!r})"],
    "import": ["-c", "import quark_numba"],
    "quark_numba_info": ["-m", "quark_numba", "info"],
    "first_call": ["-c", CALL.format(9)],
    "first_call/a_million_elements": ["-c", CALL.format(1 << 20)],
    f"{DROP_IN}/bf16_model": ["-c", REGISTER],
    f"{SESSION}/bf16_model": ["-c", CREATE.format(BF16)],
    f"{SESSION}/mx9_model": ["-c", CREATE.format(MX9)],
    f"{SESSION_WITHOUT_CACHE}/bf16_model": ["-c", CREATE_WITHOUT_CACHE.format(BF16)],
    f"{SESSION_WITHOUT_CACHE}/mx9_model": ["-c", CREATE_WITHOUT_CACHE.format(MX9)],
}
# How many processes a turn starts.
PROCESSES_PER_TURN = {EMPTY: 1, FILLED: 3}


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
        run(name, tmp_path if cache == EMPTY else filled)
        processor_times.append(processor_time() - before)

    benchmark.group = cache
    benchmark.pedantic(process, rounds=PROCESSES_PER_TURN[cache])
    benchmark.extra_info |= {"contender": name, "processor_seconds": median(processor_times)}
