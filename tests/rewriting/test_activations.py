"""Activation functions in regions. `test_regions.py` compares each step with ONNX Runtime."""

from fractions import Fraction

import numpy as np
import oracle
import pytest
from onnx_models import model
from rewritten_models import floats, operators, pair, scale_and_zero_point

from quark_numba import optimize
from quark_numba.region.activations import ACTIVATIONS, fma_in_float64, on_arrays
from quark_numba.rewriting import activation_probe as activations
from quark_numba.rewriting import onnx_runtime
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model


def test_fused_multiply_add_in_float64():
    """The sum is rounded once, ties and cancellation included. The exact value is a fraction."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(1 << 23, 1 << 24, (2, 400)) * 2.0 ** rng.integers(-40, 20, (2, 400))
    with np.errstate(over="ignore"):
        c = np.concatenate([-a[:100] * b[:100], a[100:200] * 2.0 ** rng.integers(-30, 30, 100), rng.normal(size=200)])
        a, b, c = (np.float32(each) for each in (a, b, c))
        # A tie of float32 that float64 makes by rounding.
        a[-1], b[-1], c[-1] = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12), np.float32(2.0**-60)
        y = fma_in_float64(np.where)(a, b, c)
    exact = [Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)) for p, q, r in zip(a, b, c, strict=True)]
    for found, value in zip(y, exact, strict=True):
        below, above = np.nextafter(found, np.float32(-np.inf)), np.nextafter(found, np.float32(np.inf))
        error = abs(Fraction(float(found)) - value)
        assert all(error <= abs(Fraction(float(other)) - value) for other in (below, above))


def sigmoid_model(name="Sigmoid"):
    nodes = [f"v = {name} (x)", *pair("v", "codes", "y")]
    return model(nodes, [("x", "float32", [3, 50])], ["y"], initializers=scale_and_zero_point("bfloat16", 1), opset=17)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_asks_onnx_runtime(name, monkeypatch):
    """If a bit of ONNX Runtime's result differs, and be it in one of many, the node stays outside of regions, with a reason."""

    def run(operator, x):
        y = onnx_runtime.run_on_cpu(operator, x)
        if x.size == 66:
            y = y.copy()
            y[65] = np.nextafter(y[65], np.float32(2))
        return y

    assert activations._gives_same_bits(name, np.linspace(-30, 30, 999, dtype=np.float32))
    monkeypatch.setattr(activations, "find_record", lambda name: None)
    monkeypatch.setattr(activations, "keep_record", lambda name, content: None)
    monkeypatch.setattr(activations, "run_on_cpu", run)
    activations.is_computed_alike.cache_clear()
    try:
        rewritten = rewrite_model(sigmoid_model(name))
    finally:
        activations.is_computed_alike.cache_clear()
    assert operators(rewritten.model) == [name, "QuantizeDequantizeLinear"]
    assert rewritten.left == {(f"ai.onnx::{name}", activations.OTHERWISE): 1}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_joins_a_region(name):
    assert operators(optimize(sigmoid_model(name))) == ["Region"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_not_on_the_cuda_provider(name):
    assert operators(rewrite_model(sigmoid_model(name), Settings(operators="cuda")).model) == [name, "Region"]


def test_gelu_between_round_trips_is_one_region():
    """Exporters write Gelu as Div, Erf, Add, Mul, Mul. With a round trip between, ONNX Runtime does not fuse it."""
    nodes = [
        "a = Div (x, root)",
        "b = Erf (a)",
        *pair("b", "c", "d"),
        "e = Add (d, one)",
        "f = Mul (x, e)",
        "y = Mul (f, half)",
    ]
    constants = floats(root=2**0.5, one=1, half=0.5)
    source = model(nodes, [("x", "float32", [2, 40])], ["y"], initializers=[*constants, *scale_and_zero_point("bfloat16", 1)])
    assert operators(optimize(source)) == ["Region"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_arrays(name):
    x = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 0.3, -0.3, 5, -5])
    oracle.assert_same_bits(on_arrays(name, x), onnx_runtime.run_on_cpu(name, x))
