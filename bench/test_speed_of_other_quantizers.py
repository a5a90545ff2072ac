"""Latency of other quantizers' models: the float model, as written, optimised, in turns; and in the quantizer's own runtime."""

from collections.abc import Callable
from functools import lru_cache

import onnxruntime
import pytest
from cases import TURNS
from models_of_quantizers import (
    AS_WRITTEN,
    CONTENDERS,
    FLOAT,
    NAMES,
    OPTIMISED,
    VENDOR,
    float_model,
    inputs,
    quantized,
    vendors_runtime,
)

from quark_numba import InferenceSession, register


@lru_cache
def _run(name: str, contender: str, threads: int) -> Callable[[], object] | None:
    if contender == VENDOR:
        return vendors_runtime(name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if contender == OPTIMISED:
        session = InferenceSession(quantized(name), options)
    else:
        if contender == AS_WRITTEN:
            register(options, standard_ops="NVFP4" in name)  # ONNX Runtime lacks DequantizeLinear of float4
        source = float_model(name) if contender == FLOAT else quantized(name)
        session = onnxruntime.InferenceSession(source.SerializeToString(), options)
    feeds = inputs(name)
    return lambda: session.run(None, feeds)


def measure(benchmark, threads, name, contender):
    run = _run(name, contender, threads)
    if run is None:
        pytest.skip("no such runtime here")
    benchmark.group = f"{name}, threads: {threads}"
    benchmark.extra_info |= {"model": contender}
    if contender == VENDOR:  # slow, up to a second
        benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    else:
        benchmark(run)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("contender", [FLOAT, AS_WRITTEN, OPTIMISED])
@pytest.mark.benchmark(max_time=0.2, min_rounds=20, warmup=True, warmup_iterations=5)
def test_model(benchmark, contender, threads, turn, name):
    measure(benchmark, threads, name, contender)


@pytest.mark.parametrize("name", NAMES)
def test_quantizers_runtime(benchmark, name):
    measure(benchmark, 1, name, VENDOR)


@pytest.mark.quick
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.benchmark(max_time=0.02, min_rounds=2)
def test_model_briefly(benchmark, contender, name):
    measure(benchmark, 2, name, contender)
