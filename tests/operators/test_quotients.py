"""The quotient that integer types use in place of a division, on inputs where the two are most likely to differ."""

import numba
import numpy as np
import pytest

from quark_numba.compiling.intrinsics import HAS_FMA
from quark_numba.linear import arithmetic

pytestmark = [pytest.mark.compiled, pytest.mark.skipif(not HAS_FMA, reason="no instruction for it")]


@pytest.fixture(scope="module")
def quotients():
    """(x, scale) -> the quotients of x by one scale."""
    quotient = arithmetic._quotient

    @numba.njit(error_model="numpy")
    def all_of(x, scale):
        reciprocal = np.float32(np.float32(1) / scale)
        y = np.empty_like(x)
        for i in range(x.size):
            y[i] = quotient(x[i], reciprocal, scale)
        return y

    return all_of


def test_beside_ties(quotients):
    """The quotients are next to the middle of two float32, where the least error changes the rounding. Scales have random
    mantissas and those near both ends."""
    random = np.random.default_rng(0)
    mantissas = [*random.integers(2**23, 2**24, 500), *range(2**23, 2**23 + 50), *range(2**24 - 50, 2**24)]
    for mantissa in mantissas:
        scale = np.float32(mantissa) * np.float32(2.0 ** random.integers(-87, 40))
        middles = random.integers(2**23, 2**24, 2000) + 0.5
        x = (middles * np.float64(scale) * 2.0 ** random.integers(-24, 30)).astype(np.float32)
        x = np.concatenate([(x.view(np.int32) + step).view(np.float32) for step in range(-2, 3)])
        np.testing.assert_array_equal(quotients(x, scale), x / scale)


def test_any_bits(quotients):
    """Quotients from 1/4 to 2**64 in magnitude are those of a division. For a quotient below 1/4, any number below 1/2 is
    right. Above 2**64, any number is right."""
    random = np.random.default_rng(1)
    for exponent in [-64, 63, *random.integers(-64, 64, 30)]:
        scale = np.float32(2.0**exponent * random.uniform(1, 2))
        x = random.integers(0, 2**32, 100_000, np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            found, expected = quotients(x, scale), x / scale
        matters = (np.abs(expected) >= 0.25) & (np.abs(expected) < 2.0**64)
        np.testing.assert_array_equal(found[matters], expected[matters])
        assert np.all(np.abs(found[np.abs(expected) < 0.25]) < 0.5)
