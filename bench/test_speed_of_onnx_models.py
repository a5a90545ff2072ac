"""Latency of models in ONNX's own operators: the float model, ONNX Runtime alone, and this package, in turns."""

from functools import partial

import onnxruntime
import pytest
from cases import TURNS
from labels import FLOAT, ONNX_RUNTIME, group_of
from measuring import Run, measure, session_options
from models_of_onnx import ALL_OURS, CONTENDERS, NAMES, float_model, inputs, quantized

from quark_numba import InferenceSession


def _run(name: str, contender: str, threads: int) -> Run:
    options = session_options(threads)
    source = float_model(name.partition("/")[0]) if contender == FLOAT else quantized(name)
    if contender in (FLOAT, ONNX_RUNTIME):
        session = onnxruntime.InferenceSession(source.SerializeToString(), options)
    else:
        session = InferenceSession(source, options, qdq="float" if contender == ALL_OURS else "auto")
    return partial(session.run, None, inputs(name))


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.benchmark(max_time=0.1, min_rounds=10, warmup=True, warmup_iterations=3)
def test_model(benchmark, name, threads, turn, contender):
    measure(benchmark, group_of(name, threads), contender, partial(_run, name, contender, threads))


@pytest.mark.quick
@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("name", ["classifier/a8w8", "dense_layers/uint8"])
@pytest.mark.benchmark(max_time=0.02, min_rounds=2)
def test_model_briefly(benchmark, name, contender):
    measure(benchmark, group_of(name, 2), contender, partial(_run, name, contender, 2))
