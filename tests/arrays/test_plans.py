"""Plans: a second call of arrays with the same dtypes, shapes and options takes a shorter way, with the same result."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import quark_numba
from quark_numba.linear import plans
from quark_numba.linear.plans import plans as kept

X = np.random.default_rng(61).normal(0, 40, (4, 6)).astype(np.float32)
SCALES = {"tensor": np.float32(0.5), "axis": np.float32([0.5, 1, 2, 3, 4, 5]), "blocks": np.full((4, 3), 0.25, np.float32)}


@pytest.fixture(autouse=True)
def no_plans():
    kept.clear()
    yield
    kept.clear()


def arrays(granularity, dtype):
    scale = np.asarray(SCALES[granularity])
    return scale, np.full(scale.shape, 1, dtype)


@pytest.mark.parametrize("granularity", SCALES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, ml_dtypes.int4, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("call", ["quantize", "dequantize", "quantize_dequantize"])
def test_a_plan_gives_the_same(call, dtype, granularity):
    scale, zero_point = arrays(granularity, dtype)
    x = X.astype(dtype) if call == "dequantize" else X
    function = getattr(quark_numba, call)
    first = function(x, scale, zero_point)
    assert len(kept) == 1
    second = function(x, scale, zero_point)
    out = np.empty_like(first)
    assert function(x, scale, zero_point, out=out) is out
    aside = np.empty((2, *first.shape), first.dtype).transpose(1, 2, 0)[..., 0]
    assert function(x, scale, zero_point, out=aside) is aside
    for each in (second, out, aside):
        assert each.tobytes() == first.tobytes()
    assert len(kept) == 1


def test_values_are_read_in_each_call():
    scale, zero_point = arrays("axis", np.int8)
    for number in (0, 3, 0):
        zero_point[:] = number
        scale *= 2
        actual = quark_numba.quantize(X, scale, zero_point, axis=1)
        kept.clear()
        np.testing.assert_array_equal(actual, quark_numba.quantize(X, scale, zero_point, axis=1))


def test_in_place():
    x = X.copy()
    scale = np.asarray(SCALES["tensor"])
    expected = quark_numba.quantize_dequantize(x, scale)
    assert quark_numba.quantize_dequantize(x, scale, out=x) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"axis": 1.0}, TypeError),
        ({"block_size": 0.0}, TypeError),
        ({"saturate": 1.0}, ValueError),
        ({"opset": 9}, ValueError),
        ({"dtype": 3.0}, TypeError),
        ({"out": np.empty(3, np.int8)}, ValueError),
    ],
)
def test_wrong_options_after_a_plan(options, error):
    """They are equal to right ones, or the plan does not depend on them."""
    scale, zero_point = arrays("axis", np.int8)
    for dtype in ("int8", 3):
        quark_numba.quantize(X, scale, zero_point, axis=1, block_size=0, saturate=True, dtype=dtype)
    with pytest.raises(error):
        quark_numba.quantize(X, scale, zero_point, **({"axis": 1, "dtype": 3} | options))


def test_what_has_no_plan():
    """Lists, other memory orders, other byte orders and subclasses."""
    scale = np.asarray(SCALES["tensor"])
    expected = quark_numba.quantize(X, scale)
    kept.clear()
    for x in (
        X.tolist(),
        np.asfortranarray(X),
        X.astype(">f4"),
        np.ma.filled(X).view(Subclass),
        X[::-1][::-1][:, ::-1][:, ::-1],
    ):
        np.testing.assert_array_equal(quark_numba.quantize(x, scale), expected)
    np.testing.assert_array_equal(quark_numba.quantize(X.tolist(), 0.5), expected)


class Subclass(np.ndarray):
    """Numbers with a behaviour of their own."""


def test_a_limit_that_was_passed(monkeypatch):
    """As two threads pass it that add at the same time."""
    zero_point = np.array([5], np.int32)
    quark_numba.quantize(X, 0.1, zero_point)
    (plan,) = kept.values()
    monkeypatch.setattr(plans, "_MOST_ZERO_POINTS", len(plan.zero_points) - 1)
    zero_point[:] = 10**6
    quark_numba.quantize(X, 0.1, zero_point)
    assert len(plan.zero_points) == 1


def test_plans_share_zero_points():
    """Many plans with many zero points take little memory."""
    scale = np.asarray(SCALES["tensor"])

    def fill(sizes):
        for size in sizes:
            x = np.zeros(size, np.float32)
            for number in range(200):
                quark_numba.quantize(x, scale, np.array([number], np.int32))

    fill(range(1, 3))
    tracemalloc.start()
    fill(range(3, 103))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == 102
    assert grown < 102 * 8192


def test_plans_are_limited(monkeypatch):
    monkeypatch.setattr(plans, "_MOST_PLANS", 3)
    for size in range(1, 9):
        quark_numba.quantize(X[0, :1].repeat(size), np.asarray(SCALES["tensor"]))
        assert len(kept) <= 3
