"""Plans: a second call of arrays with the same dtypes, shapes and options takes a shorter way, with the same result."""

import itertools
import random
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import oracle
import pytest

import quark_numba
from quark_numba.catalog import OPERATORS
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
@pytest.mark.by_default(8)
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


@pytest.mark.parametrize("name", ["ExtendedQuantizeLinear", "ExtendedDequantizeLinear"])
def test_operators_have_plans(name):
    """Nodes of the extensions backend and of the ReferenceEvaluator take the shorter way, too."""
    operator = OPERATORS.find("com.amd.quark", name)
    scale, zero_point = arrays("tensor", np.uint8)
    x = X if name == "ExtendedQuantizeLinear" else X.astype(np.uint8)
    first, second = (operator.call(x, scale, zero_point, axis=1) for _ in range(2))
    assert len(kept) == 1
    assert second.tobytes() == first.tobytes()


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
    """Wrong options are refused although they equal right ones, or the plan of the call does not depend on them."""
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
    """Subclasses of numbers, with other behaviour."""


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
    fill(range(3, 33))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == 32
    assert grown < 32 * 8192


def test_plans_are_limited(monkeypatch):
    monkeypatch.setattr(plans, "_MOST_PLANS", 3)
    for size in range(1, 9):
        quark_numba.quantize(X[0, :1].repeat(size), np.asarray(SCALES["tensor"]))
        assert len(kept) <= 3


# Types with items of one size, whose bits a plan of the call before would take for other numbers.
ALIKE = {
    1: ["uint8", "int8", "int4", "float8e4m3fn", "float6e2m3"],
    2: ["uint16", "int16", "float16", "bfloat16"],
    4: ["uint32", "int32"],
}
ORDERED = {"uint16", "int16", "float16", "uint32", "int32"}  # those that numpy has in both byte orders


def scales(number):
    """Return a scale in all ways that a call takes it."""
    yield from (dtype(number) for dtype in (float, np.float64, np.float32, np.float16, ml_dtypes.float8_e8m0fnu))
    for shape in ((), (1,), (1, 1)):
        yield from (np.full(shape, number, dtype) for dtype in ("<f4", ">f4", "<f2", ">f2", ml_dtypes.bfloat16))


@pytest.mark.parametrize("itemsize", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_types_of_scales_and_zero_points_change_from_call_to_call(itemsize):
    """Two scales and two zero points in all ways, in a random order."""
    ways = len([*scales(1.0)])
    cases = [*itertools.product(ALIKE[itemsize], (2, 5), (0.5, 4.0), range(ways), "<>", (0, 1))]
    for name, code, number, way, order, rank in random.Random(itemsize).choices(cases, k=400):
        scale = [*scales(number)][way]
        one = np.array(code, f"u{itemsize}").view(oracle.dtype(name))
        zero_point = one.astype(one.dtype.newbyteorder(order)) if name in ORDERED else one
        zero_point = zero_point.reshape((1,) * rank)
        plain = np.asarray(scale, np.float32 if isinstance(scale, float) else None).reshape(())
        plain = plain.astype(plain.dtype.newbyteorder("="))
        codes = oracle.quantize(X, plain, one, name)
        oracle.assert_same_bits(quark_numba.quantize(X, scale, zero_point), codes)
        expected = oracle.dequantize(codes, plain, one, name)
        oracle.assert_same_bits(quark_numba.dequantize(codes, scale, zero_point, output_dtype="float32"), expected)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.by_default(1)
def test_int32_scales_of_any_byte_order(order):
    """A scale just beside a tie of bfloat16 is rounded once."""
    x = np.array([2**30, 2**31 - 1, 5], np.int32)
    for number in 2**30 + 2**22 + np.arange(-1, 2):
        scale = np.array(number, f"{order}i4")
        expected = oracle.quantize(x, np.array(number, np.int32), None, "bfloat16", precision="bfloat16")
        for _ in range(2):
            found = quark_numba.quantize(x, scale, dtype="bfloat16", precision="bfloat16")
            oracle.assert_same_bits(found, expected)


@pytest.mark.slow
@pytest.mark.compiled
def test_threads_at_once(monkeypatch):
    """Plans and zero points are dropped while other threads use them."""
    monkeypatch.setattr(plans, "_MOST_PLANS", 3)
    monkeypatch.setattr(plans, "_MOST_ZERO_POINTS", 2)
    cases = []
    for name, length, code in itertools.product(("int8", "uint8", "int16", "bfloat16"), (1, 6, 9), (0, 1, 2, 3)):
        x, zero_point = np.resize(X, (3, length)), np.array(code).astype(oracle.dtype(name))
        cases.append((x, zero_point, oracle.quantize(x, np.float32(0.5), zero_point, name)))

    def use(case):
        x, zero_point, codes = case
        oracle.assert_same_bits(quark_numba.quantize(x, 0.5, zero_point), codes)
        expected = oracle.dequantize(codes, np.float32(0.5), zero_point, codes.dtype.name)
        oracle.assert_same_bits(quark_numba.dequantize(codes, np.float32(0.5), zero_point), expected)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(use, random.Random(8).choices(cases, k=1500)))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.slow
def test_many_shapes():
    """Plans of 20,000 shapes take no more memory than those of the first 5,000."""
    scale = np.asarray(SCALES["tensor"])
    peaks = []
    tracemalloc.start()
    for first in range(0, 20_000, 5_000):
        for length in range(first, first + 5_000):
            quark_numba.quantize(np.empty((length, 0), np.float32), scale)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
    tracemalloc.stop()
    assert max(peaks[1:]) < peaks[0] * 1.1
