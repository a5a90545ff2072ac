"""Latency and loading of quantized models, as written and optimised, in turns with the float model. The models are a classifier
that Quark quantized, in batches of 6, and those of `architectures`."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from architectures import ARCHITECTURES, BLOCK_FORMATS, architecture, quantized
from cases import TURNS

from quark_numba import InferenceSession, optimize
from quark_numba.running.sessions import create_session

MODELS = Path(__file__).parent.parent / "tests" / "models"
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


@lru_cache
def _session(model: str, variant: str, threads: int):
    """Return a session as users create it: optimised models are in the blocked layout, too."""
    if OPTIMISED not in variant:
        return _load(model, variant, threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    for name in ("session.disable_quant_qdq", "session.force_spinning_stop"):  # as `create_session` does
        options.add_session_config_entry(name, "1")
    return InferenceSession(_content(model, variant), options)


@lru_cache
def _inputs(model: str) -> np.ndarray:
    if model != "classifier":
        shape = [each.dim_value for each in architecture(model).graph.input[0].type.tensor_type.shape.dim]
        return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        return arrays["x"]


# The variants of a model are next to each other, as they are compared.
@pytest.mark.parametrize("variant", dict.fromkeys(variant for _, variant in VARIANTS))
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", dict.fromkeys(model for model, _ in VARIANTS))
@pytest.mark.benchmark(max_time=0.1, min_rounds=10, warmup=True, warmup_iterations=3)
def test_real_model(benchmark, model, threads, turn, variant):
    if (model, variant) not in VARIANTS:
        pytest.skip("there is no such model")
    benchmark.group = f"{model}, threads: {threads}"
    benchmark.extra_info |= {"model": variant}
    benchmark(_session(model, variant, threads).run, None, {"x": _inputs(model)})


@pytest.mark.parametrize(("model", "variant"), VARIANTS)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.benchmark(max_time=0.3, min_rounds=3, warmup=True, warmup_iterations=1)
def test_load(benchmark, turn, model, variant):
    benchmark.group = f"loading {model}"
    benchmark.extra_info |= {"model": variant}
    benchmark(_load, model, variant)
