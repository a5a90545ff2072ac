"""Latency and loading of the synthetic models of `architectures` in Quark's types, in drop-in sessions and optimized, in turns
with the float model. `test_speed_beside_quark.py` measures the classifier that Quark quantized."""

from functools import lru_cache, partial

import pytest
from architectures import ARCHITECTURES, BLOCK_FORMATS, architecture, quantized
from cases import TURNS
from labels import DROP_IN, FLOAT, OPTIMIZED, group_of
from measuring import Run, measure, random_inputs, session_options

from quark_numba import InferenceSession, optimize
from quark_numba.running.sessions import create_session

TYPES = {"bf16": "bfloat16", "fp16": "float16", "i32": "int32", "u32": "uint32", **{name: name for name in BLOCK_FORMATS}}
VARIANTS = (FLOAT, *(f"{name}/{way}" for name in TYPES for way in (DROP_IN, OPTIMIZED)))


@lru_cache
def _content(model: str, variant: str) -> bytes:
    if variant == FLOAT:
        return architecture(model).SerializeToString()
    name, _, way = variant.partition("/")
    made = quantized(architecture(model), TYPES[name])
    return (optimize(made) if way == OPTIMIZED else made).SerializeToString()


def _load(model: str, variant: str, threads: int = 2):
    return create_session(_content(model, variant), model, has_own_operators=True, threads=threads)


def _run(model: str, variant: str, threads: int) -> Run:
    """Return a run in a session as users create it: optimized models are in the blocked layout, too."""
    if variant.endswith(f"/{OPTIMIZED}"):
        options = session_options(threads, "session.disable_quant_qdq")  # as `create_session` does
        session = InferenceSession(_content(model, variant), options)
    else:
        session = _load(model, variant, threads)
    return partial(session.run, None, random_inputs(architecture(model)))


# The variants of a model are next to each other, as they are compared.
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", ARCHITECTURES)
@pytest.mark.benchmark(max_time=0.1, min_rounds=10, warmup=True, warmup_iterations=3)
def test_model(benchmark, model, threads, turn, variant):
    measure(benchmark, group_of(model, threads), variant, partial(_run, model, variant, threads))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("model", ARCHITECTURES)
@pytest.mark.benchmark(max_time=0.3, min_rounds=3, warmup=True, warmup_iterations=1)
def test_load(benchmark, turn, model, variant):
    measure(benchmark, f"{model}/load", variant, lambda: partial(_load, model, variant))
