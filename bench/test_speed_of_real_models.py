"""Latency and loading of quantized models, as written and optimised, in turns with the float model. The models are a classifier
that Quark quantized, in batches of 6, and those of `architectures`."""

from functools import lru_cache, partial
from pathlib import Path

import pytest
from architectures import ARCHITECTURES, BLOCK_FORMATS, architecture, quantized
from cases import TURNS
from measuring import MODELS, Run, classifier_inputs, measure, random_inputs, session_options

from quark_numba import InferenceSession, optimize
from quark_numba.running.sessions import create_session

TYPES = {"bf16": "bfloat16", "fp16": "float16", "i32": "int32", "u32": "uint32", **{name: name for name in BLOCK_FORMATS}}
QUANTIZED = [name for name in TYPES if (MODELS / f"textline_cls_{name}.onnx").exists()]
OPTIMISED = ", optimised"

VARIANTS = [
    (model, f"{name}{suffix}")
    for model in ("classifier", *ARCHITECTURES)
    for name in ("float", *(QUANTIZED if model == "classifier" else TYPES))
    for suffix in ("", OPTIMISED)
    if name + suffix != f"float{OPTIMISED}"
]


@lru_cache
def _content(model: str, variant: str) -> bytes:
    name = variant.removesuffix(OPTIMISED)
    if variant != name:
        return optimize(_path(name) if model == "classifier" else _quantized(model, name)).SerializeToString()
    return _path(name).read_bytes() if model == "classifier" else _quantized(model, name).SerializeToString()


def _path(name: str) -> Path:
    return MODELS / f"textline_cls_{name}.onnx"


def _quantized(model: str, name: str):
    return architecture(model) if name == "float" else quantized(architecture(model), TYPES[name])


def _load(model: str, variant: str, threads: int = 2):
    return create_session(_content(model, variant), model, has_own_operators=True, threads=threads)


def _run(model: str, variant: str, threads: int) -> Run:
    """Return a run in a session as users create it: optimised models are in the blocked layout, too."""
    if OPTIMISED in variant:
        options = session_options(threads, "session.disable_quant_qdq")  # as `create_session` does
        session = InferenceSession(_content(model, variant), options)
    else:
        session = _load(model, variant, threads)
    inputs = classifier_inputs() if model == "classifier" else random_inputs(architecture(model))
    return partial(session.run, None, inputs)


# The variants of a model are next to each other, as they are compared.
@pytest.mark.parametrize("variant", dict.fromkeys(variant for _, variant in VARIANTS))
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", dict.fromkeys(model for model, _ in VARIANTS))
@pytest.mark.benchmark(max_time=0.1, min_rounds=10, warmup=True, warmup_iterations=3)
def test_real_model(benchmark, model, threads, turn, variant):
    if (model, variant) not in VARIANTS:
        pytest.skip("there is no such model")
    measure(benchmark, f"{model}, threads: {threads}", variant, partial(_run, model, variant, threads))


@pytest.mark.parametrize(("model", "variant"), VARIANTS)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.benchmark(max_time=0.3, min_rounds=3, warmup=True, warmup_iterations=1)
def test_load(benchmark, turn, model, variant):
    measure(benchmark, f"loading {model}", variant, lambda: partial(_load, model, variant))
