"""Real models, batch 6, in turns with the float model."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from test_operators import TURNS

from quark_numba.model_run import create_session, quantization_nodes

MODELS = Path(__file__).parent.parent / "tests" / "models"


@lru_cache
def _session(name: str):
    path = MODELS / f"textline_cls_{name}.onnx"
    return create_session(path, quantization_nodes(path), threads=2)


@lru_cache
def _inputs() -> np.ndarray:
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        return arrays["x"]


@pytest.mark.parametrize("name", ["float", "bf16", "fp16", "i32", "u32", "bfp16", "mx9", "mxfp8"])
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.benchmark(max_time=0.3, min_rounds=20, warmup=True, warmup_iterations=5)
def test_real_model(benchmark, turn, name):
    benchmark.group = "real models"
    benchmark.extra_info |= {"model": name}
    benchmark(_session(name).run, None, {"x": _inputs()})
