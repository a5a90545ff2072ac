"""The faster round trips of regions, against those of the linear family, whose every float32 is tested."""

import numba
import numpy as np
import pytest

from quark_numba.element_types import FLOAT32, find
from quark_numba.linear.arithmetic import converter
from quark_numba.linear.key import select
from quark_numba.region.arithmetic import reciprocal_round_trip

pytestmark = pytest.mark.compiled
NAMES = ["float8e4m3fn", "float8e5m2", "bfloat16", "float16"]
SCALES = [1.0, 0.0371, 2.0**-9, 3e-38, -0.7, 0.0, np.inf]


def mismatches(name):
    """Return the function (scale, lower bits) -> how many of the float32 numbers with these lower 16 bits differ, or None if
    the fast round trip refuses the scale."""
    key = select("quantize_dequantize", FLOAT32, FLOAT32, find(name), FLOAT32, saturate=True)
    (fast, takes), exact = reciprocal_round_trip(key), converter(key)
    zero = key.zero_point_dtype(0)

    @numba.njit(error_model="numpy")
    def count(scale, low):
        reciprocal, wrong = np.float32(np.float32(1) / scale), 0
        for high in range(1 << 16):
            x = np.uint32(high << 16 | low).view(np.float32)
            one, other = fast(x, reciprocal, scale, zero), exact(x, scale, zero)
            wrong += np.float32(one).view(np.uint32) != np.float32(other).view(np.uint32)
        return wrong

    accepts = numba.njit(lambda scale: takes(scale, zero))
    return lambda scale, low: count(scale, low) if accepts(scale) else None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.by_default(1)
def test_many_numbers(name):
    count = mismatches(name)
    found = [count(np.float32(scale), low) for scale in SCALES for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xABCD, 0xFFFF)]
    assert 0 in found
    assert set(found) <= {0, None}


@pytest.mark.exhaustive
@pytest.mark.parametrize("scale", SCALES[:3])
@pytest.mark.parametrize("name", NAMES[:2])
def test_every_float32(name, scale):
    count = mismatches(name)
    assert {count(np.float32(scale), low) for low in range(1 << 16)} == {0}
