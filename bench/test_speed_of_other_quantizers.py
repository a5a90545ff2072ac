"""Latency of other quantizers' models: the float model, a drop-in session and `InferenceSession`, in turns; and in the
quantizer's own runtime."""

from functools import partial

import models_of_quantizers
import onnxruntime
import pytest
from cases import TURNS
from labels import DROP_IN, FLOAT, SESSION, group_of
from measuring import Run, measure, session_options
from models_of_quantizers import NAMES, VENDOR, inputs, quantized

from quark_numba import InferenceSession, register


def _run(name: str, contender: str, threads: int) -> Run:
    if contender == VENDOR:
        return models_of_quantizers.vendors_runtime(name)
    options = session_options(threads)
    if contender == SESSION:
        session = InferenceSession(quantized(name), options, keep_initializers_as_inputs=False)
    else:
        if contender == DROP_IN:
            register(options, qdq="float" if "nvfp4" in name else "auto")  # ONNX Runtime lacks DequantizeLinear of float4
        source = models_of_quantizers.float_model(name) if contender == FLOAT else quantized(name)
        session = onnxruntime.InferenceSession(source.SerializeToString(), options)
    return partial(session.run, None, inputs(name))


@pytest.mark.parametrize("contender", [FLOAT, DROP_IN, SESSION])
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.benchmark(max_time=0.2, min_rounds=20, warmup=True, warmup_iterations=5)
def test_model(benchmark, contender, threads, turn, name):
    measure(benchmark, group_of(name, threads), contender, partial(_run, name, contender, threads))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.benchmark(max_time=0.2, min_rounds=5)  # up to a second each
def test_quantizers_runtime(benchmark, name):
    measure(benchmark, group_of(name, 1), VENDOR, partial(_run, name, VENDOR, 1))


@pytest.mark.quick
@pytest.mark.parametrize("contender", models_of_quantizers.CONTENDERS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.benchmark(max_time=0.02, min_rounds=2)
def test_model_briefly(benchmark, contender, name):
    measure(benchmark, group_of(name, 2), contender, partial(_run, name, contender, 2))
