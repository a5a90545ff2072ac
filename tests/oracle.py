"""What the operators must give, in numpy, slowly and plainly. Imports nothing of the package."""

from typing import NamedTuple

import ml_dtypes
import numpy as np


class Integer(NamedTuple):
    dtype: type
    lowest: int
    highest: int


class Float(NamedTuple):
    dtype: type
    highest: float


# One line an element type.
TYPES = {
    "uint8": Integer(np.uint8, 0, 255),
    "int8": Integer(np.int8, -128, 127),
    "uint16": Integer(np.uint16, 0, 65535),
    "int16": Integer(np.int16, -32768, 32767),
    "uint32": Integer(np.uint32, 0, 4294967295),
    "int32": Integer(np.int32, -2147483648, 2147483647),
    "float16": Float(np.float16, 65504.0),
    "bfloat16": Float(ml_dtypes.bfloat16, 3.3895313892515355e38),
}


def dtype(name):
    return np.dtype(TYPES[name].dtype)


def along(values, axis, rank):
    """A 1-D array in the shape that broadcasts along `axis` of `rank` dimensions."""
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def quantize(x, scale, zero_point, name):
    """saturate(x / scale + zero_point). Integers round before the sum, which is done in int64."""
    row = TYPES[name]
    with np.errstate(all="ignore"):
        quotient = np.divide(x, scale, dtype=np.float32)
        if isinstance(row, Integer):
            whole = np.rint(np.nan_to_num(quotient.astype(np.float64), nan=-np.inf))
            whole = np.clip(whole, -(2.0**40), 2.0**40).astype(np.int64)
            return np.clip(whole + np.asarray(zero_point, np.int64), row.lowest, row.highest).astype(row.dtype)
        total = quotient + np.asarray(zero_point).astype(np.float32)
        return np.clip(total, np.float32(-row.highest), np.float32(row.highest)).astype(row.dtype)


def dequantize(x, scale, zero_point, name):
    """(x - zero_point) * scale. The difference of integers is done in int64."""
    exact = np.int64 if isinstance(TYPES[name], Integer) else np.float32
    with np.errstate(all="ignore"):
        difference = np.asarray(x).astype(exact) - np.asarray(zero_point).astype(exact)
        return difference.astype(np.float32) * np.asarray(scale, np.float32)


def assert_same_bits(actual, expected):
    """Equal to the last bit, the sign of zero included; NaN where NaN is expected, whatever its payload."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    unsigned = np.dtype(f"u{expected.dtype.itemsize}")
    nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float64)), nan)
    wrong = (actual.view(unsigned) != expected.view(unsigned)) & ~nan
    if wrong.any():
        where = np.argwhere(wrong)
        at = tuple(where[0])
        raise AssertionError(f"{len(where)} differ; first at {at}: {actual[at]!r}, expected {expected[at]!r}")
