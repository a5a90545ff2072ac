"""Sums of errors: compared with numpy, of special values, and in parts."""

import math
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest

from quark_numba.analysis.measures import sums, tensors
from quark_numba.analysis.twin.forms import Block
from quark_numba.block.formats import bfp_format, mx_format
from quark_numba.element_types import FLOAT32


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 300])
def test_sums_of_a_tensor(size):
    x, own, arrived, kept = np.random.default_rng(size).normal(size=(4, size)).astype(np.float32)
    own[::3] = 0
    kept[::5] = x[::5]
    found = tensors.add_up(x, own, arrived, kept, -0.5, 1.0)
    wide, *others = (each.astype(np.float64) for each in (x, own, arrived, kept))
    own_error, inherited, error = (each - wide for each in others)
    expected = [size, wide @ wide, others[2] @ others[2], wide @ others[2], error @ error, own_error @ own_error]
    expected += [inherited @ inherited, np.sum(own == 0), np.sum(((x < -0.5) | (x > 1)) & (own != x))]
    expected += [x.min(initial=np.inf), x.max(initial=-np.inf), np.abs(error).max(initial=0)]
    np.testing.assert_allclose(list(vars(found).values()), [*expected, 0], rtol=1e-13)  # 0: the shape is the same


def test_what_is_not_finite():
    """Equal infinities and two NaNs add no error, and nothing to the signal. One NaN makes the error NaN, wherever it is."""
    x = np.array([np.inf, -np.inf, 1], np.float32)
    found = tensors.add_up(x, x, x, x, -math.inf, math.inf)
    assert (found.noise, found.own_noise, found.inherited_noise, found.largest) == (0, 0, 0, 0)
    x, kept = np.array([[np.inf, np.nan, 3], [np.inf, np.nan, 4]], np.float32)
    found = tensors.add_up(x, x, x, kept, -math.inf, math.inf)
    assert (found.signal, found.energy, found.product, found.noise, found.largest) == (9, 16, 12, 1, 1)
    for place in (0, 64, 130):
        kept = np.ones(131, np.float32)
        x, kept[place] = kept.copy(), np.nan
        found = tensors.add_up(x, x, x, kept, -math.inf, math.inf)
        assert math.isnan(found.largest)
        assert math.isnan(sums.decibels(found.signal, found.noise))


@pytest.mark.parametrize(
    ("signal", "noise", "expected"),
    [
        *((100, 1, 20), (1, 0, math.inf), (0, 1, -math.inf), (0, 0, math.inf), (math.inf, 1, math.inf)),
        *((1, math.inf, -math.inf), (math.inf, math.inf, math.nan), (math.nan, 1, math.nan), (1, 1e-320, math.inf)),
    ],
)
def test_decibels(signal, noise, expected):
    np.testing.assert_equal(sums.decibels(signal, noise), expected)


@pytest.mark.parametrize(
    ("y", "expected", "sqnr_db"),
    [
        ([0, 0], [0, 0], math.inf),
        ([], [], math.nan),
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], math.inf),
        ([0, 1e-9], [0, 0], -math.inf),
        ([np.inf, 2], [np.inf, 1], 0),  # the infinity does not hide the error
        ([np.nan, 2], [np.nan, 1], 0),
        ([1, 1], [1, np.inf], -math.inf),
        ([1, np.inf], [1, 1], -math.inf),
        ([1, np.nan], [1, 1], math.nan),
        ([1, 1], [1, np.nan], math.nan),
        ([1e-200, 0], [0, 1e-200], math.nan),  # different, but the squares are 0
    ],
)
def test_exact_is_infinite(y, expected, sqnr_db):
    found = sums.error_sums(np.array(y, np.float64), np.array(expected, np.float64))
    np.testing.assert_equal(found.sqnr_db, sqnr_db)
    assert (found.largest == 0 and found.count > 0) == (sqnr_db == math.inf)


@pytest.mark.parametrize("order", [1, -1])
def test_nan_stays_the_largest_error(order):
    first, second = [sums.TensorSums(largest=1.0), sums.TensorSums(largest=math.nan)][::order]
    first.add(second)
    assert math.isnan(first.largest)


@dataclass
class Several(sums.Sums):
    """Fields whose names say something other than their metadata."""

    largest: float
    last: str = field(metadata=sums.FIRST)
    total: float = field(metadata=sums.LEAST)
    sum: float = field(metadata=sums.LARGEST)


def test_fields_say_how_they_add_up():
    first, second = pickle.loads(pickle.dumps([Several(1.0, "a", 3.0, 4.0), Several(2.0, "b", 2.0, 5.0)]))
    first.add(second)
    assert first == Several(3.0, "a", 2.0, 5.0)


def test_cosine():
    assert sums.cosine(0, 0, 0) == 1
    assert sums.cosine(4, 0, 0) == 0
    assert sums.cosine(4, 9, -6) == -1


def test_parts_add_up_to_the_whole():
    y, expected = np.random.default_rng(1).normal(size=(2, 200_000)).astype(np.float32)
    whole, parts = sums.error_sums(y, expected), sums.ErrorSums()
    for start in range(0, len(y), 70_000):
        parts.add(sums.error_sums(y[start : start + 70_000], expected[start : start + 70_000]))
    for name, value in vars(whole).items():
        assert getattr(parts, name) == pytest.approx(value, rel=1e-12)


def test_integers_of_64_bits():
    found = sums.error_sums(np.array([2**62 + 1]), np.array([2**62]))
    assert found.largest == 1


def test_saturated_in_blocks():
    """The largest element of an MXFP8 block is 448 steps. An integer element is not saturated if it rounds to the largest one
    without being cut off."""
    _, blocks = mx_format(FLOAT32, element_dtype="fp8_e4m3", block_size=4, rounding_mode=0)
    x = np.array([[500, 448, 1, -460, 1.9, 0.1, 0, 1]], np.float32)
    own = np.array([[448, 448, 1, -448, 1.75, 0.1, 0, 1]], np.float32)
    assert tensors._saturated_in_blocks(Block("", 8, {}, blocks, False, 1), x, own) == 3
    attributes = {"bfp_method": "to_bfp", "bit_width": 13, "block_size": 4, "rounding_mode": 0}
    attributes |= {"sub_block_size": 2, "sub_block_shift_bits": 1, "convert_to_bfloat_before_bfp": 0}
    _, blocks = bfp_format(FLOAT32, **attributes)
    x = np.array([15.4, 15.6, 1, np.inf, 0, 0, 0, 0], np.float32).reshape(1, 8, 1)
    own = np.array([15, 15, 1, np.inf, 0, 0, 0, 0], np.float32).reshape(1, 8, 1)
    assert tensors._saturated_in_blocks(Block("", 8, {}, blocks, True, 1), x, own) == 1
    assert tensors._saturated_in_blocks(Block("", 8, {}, blocks, True, 1), x[:0], own[:0]) == 0
