"""Real models, batch 6, as Quark wrote them and optimised, in turns with the float model; and loading them."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from cases import TURNS

from quark_numba import optimize
from quark_numba.cli.inventory import quantization_nodes
from quark_numba.cli.measuring import create_session

MODELS = Path(__file__).parent.parent / "tests" / "models"
QUANTIZED = ("bf16", "fp16", "i32", "u32", "bfp16", "mx9", "mxfp8")
OPTIMISED = [f"{name}, optimised" for name in QUANTIZED]


@lru_cache
def _content(name: str) -> bytes:
    path = MODELS / f"textline_cls_{name.removesuffix(', optimised')}.onnx"
    return optimize(path).SerializeToString() if name in OPTIMISED else path.read_bytes()


def _load(name: str):
    path = MODELS / f"textline_cls_{name.removesuffix(', optimised')}.onnx"
    return create_session(path, quantization_nodes(path), threads=2, content=_content(name))


_session = lru_cache(_load)


@lru_cache
def _inputs() -> np.ndarray:
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        return arrays["x"]


@pytest.mark.parametrize("name", ["float", *QUANTIZED, *OPTIMISED])
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.benchmark(max_time=0.3, min_rounds=20, warmup=True, warmup_iterations=5)
def test_real_model(benchmark, turn, name):
    benchmark.group = "real models"
    benchmark.extra_info |= {"model": name}
    benchmark(_session(name).run, None, {"x": _inputs()})


@pytest.mark.parametrize("name", [*QUANTIZED, *OPTIMISED])
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.benchmark(max_time=0.3, min_rounds=3, warmup=True, warmup_iterations=1)
def test_load(benchmark, turn, name):
    benchmark.group = "loading real models"
    benchmark.extra_info |= {"model": name}
    benchmark(_load, name)
