"""The expected results of the operators, computed in numpy, slowly and plainly. Imports nothing of the package."""

import functools
from typing import NamedTuple

import ml_dtypes
import numpy as np


class Integer(NamedTuple):
    dtype: type
    bits: int
    lowest: int
    highest: int


class Float(NamedTuple):
    dtype: type
    bits: int
    highest: float
    nan: int  # the code that NaN becomes
    beyond: int  # the code, without the sign, of a value beyond the finite range if it does not saturate
    has_negative_zero: bool = True


# One line for each element type.
TYPES = {
    "uint8": Integer(np.uint8, 8, 0, 255),
    "int8": Integer(np.int8, 8, -128, 127),
    "uint16": Integer(np.uint16, 16, 0, 65535),
    "int16": Integer(np.int16, 16, -32768, 32767),
    "uint32": Integer(np.uint32, 32, 0, 4294967295),
    "int32": Integer(np.int32, 32, -2147483648, 2147483647),
    "uint4": Integer(ml_dtypes.uint4, 4, 0, 15),
    "int4": Integer(ml_dtypes.int4, 4, -8, 7),
    "uint2": Integer(ml_dtypes.uint2, 2, 0, 3),
    "int2": Integer(ml_dtypes.int2, 2, -2, 1),
    "float16": Float(np.float16, 16, 65504.0, nan=0x7E00, beyond=0x7C00),
    "bfloat16": Float(ml_dtypes.bfloat16, 16, 3.3895313892515355e38, nan=0x7FC0, beyond=0x7F80),
    "float8e4m3fn": Float(ml_dtypes.float8_e4m3fn, 8, 448.0, nan=0x7F, beyond=0x7F),
    "float8e4m3fnuz": Float(ml_dtypes.float8_e4m3fnuz, 8, 240.0, nan=0x80, beyond=0x80, has_negative_zero=False),
    "float8e5m2": Float(ml_dtypes.float8_e5m2, 8, 57344.0, nan=0x7E, beyond=0x7C),
    "float8e5m2fnuz": Float(ml_dtypes.float8_e5m2fnuz, 8, 57344.0, nan=0x80, beyond=0x80, has_negative_zero=False),
    "float6e2m3": Float(ml_dtypes.float6_e2m3fn, 6, 7.5, nan=0x20, beyond=0x1F),
    "float6e3m2": Float(ml_dtypes.float6_e3m2fn, 6, 28.0, nan=0x20, beyond=0x1F),
    "float4e2m1": Float(ml_dtypes.float4_e2m1fn, 4, 6.0, nan=0x07, beyond=0x07),
}

# The output types of ExtendedQuantizeLinear.
EXTENDED = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16")

# The types of x, scale and dequantized y that are not quantized types.
OTHER_DTYPES = {"float32": np.float32, "float64": np.float64, "float8e8m0": ml_dtypes.float8_e8m0fnu}

BITS = {np.dtype(row.dtype): row.bits for row in TYPES.values()}


def dtype(name):
    return np.dtype(TYPES[name].dtype if name in TYPES else OTHER_DTYPES[name])


def along(values, axis, rank):
    """Return a 1-D array reshaped to broadcast along `axis` of `rank` dimensions."""
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def spread(values, axis, block_size, shape):
    """Return scales or zero points of any granularity in a shape that broadcasts to `shape`."""
    if block_size:
        return np.repeat(values, min(block_size, shape[axis]), axis)[tuple(slice(length) for length in shape)]
    return values.reshape(()) if values.size == 1 else along(values, axis, len(shape))


def quantize(x, scale, zero_point, name, *, precision=None, saturate=True):
    """Return saturate(x / scale + zero_point). The quotient is in `precision`, by default the type of scale, float64 for int32
    and float32 for float8e8m0. For integers it is rounded before the sum, which is in int64. `zero_point` may be None."""
    row = TYPES[name]
    if precision is None:
        precision = {"int32": "float64", "float8_e8m0fnu": "float32"}.get(scale.dtype.name, scale.dtype.name)
    zero_point = 0 if zero_point is None else values(zero_point, name)
    with np.errstate(all="ignore"):
        operands = [rounded(np.asarray(operand).astype(np.float64), precision) for operand in (x, scale)]
        quotient = rounded(operands[0] / operands[1], precision)
        if isinstance(row, Integer):
            whole = np.rint(np.where(np.isnan(quotient), -np.inf, quotient))
            whole = np.clip(whole, -(2.0**40), 2.0**40).astype(np.int64)
            codes = np.clip(whole + zero_point, row.lowest, row.highest) & (2**row.bits - 1)
        else:
            total = rounded(quotient + zero_point, "float64" if precision == "float64" else "float32")
            codes = nearest(total, name, saturate=saturate or row.bits != 8)
    return codes.astype(_unsigned(row.dtype)).view(row.dtype)


def dequantize(x, scale, zero_point, name, output="float32"):
    """Return (x - zero_point) * scale, computed in float32 and converted to the type `output`. The difference of integers is in
    int64."""
    zero_point = 0 if zero_point is None else values(zero_point, name)
    with np.errstate(all="ignore"):
        difference = rounded((values(x, name) - zero_point).astype(np.float64), "float32")
        product = rounded(difference * np.asarray(scale).astype(np.float64), "float32")
        if output == "float32":
            return product.astype(np.float32)
        return nearest(product, output, saturate=False).astype(np.uint16).view(dtype(output))


# Microscaling formats: the element type, and the exponent of its highest binade.
MX_ELEMENTS = {
    "fp8_e5m2": ("float8e5m2", 15),
    "fp8_e4m3": ("float8e4m3fn", 8),
    "fp6_e3m2": ("float6e3m2", 4),
    "fp6_e2m3": ("float6e2m3", 2),
    "fp4_e2m1": ("float4e2m1", 2),
    "int8": ("int8", 0),
}


def bfp(
    x,
    *,
    bfp_method,
    axis,
    bit_width,
    rounding_mode,
    block_size=8,
    sub_block_size=2,
    sub_block_shift_bits=1,
    convert_to_bfloat_before_bfp=0,
):
    """Return the result of BFPQuantizeDequantize-1: to_bfp computed in float64, which is exact, and to_bfp_prime with integer
    significands."""
    if x.size == 1:
        return x
    single = x.astype(np.float32)
    if convert_to_bfloat_before_bfp:
        with np.errstate(over="ignore"):
            single = single.astype(ml_dtypes.bfloat16).astype(np.float32)
    cut, together = _cut(single, axis, block_size)
    exponents, bits = _exponents(cut), bit_width - 9
    if bfp_method == "to_bfp":
        step = 2.0 ** (_largest_finite(exponents) - (bits - 1))
        return _like(x, together(np.where(exponents == 255, cut, _whole(cut / step, rounding_mode, 2**bits - 1) * step)))

    significands = np.where(exponents > 0, cut.view(np.uint32) & 0x7FFFFF | 1 << 23, 0).astype(np.int64)
    negative = np.signbit(cut)
    shared = exponents.max(-1, keepdims=True, initial=0)
    subs = exponents.reshape(*cut.shape[:-1], block_size // sub_block_size, sub_block_size).max(-1, initial=0)
    shift = np.repeat(np.minimum(shared - subs, 2**sub_block_shift_bits - 1), sub_block_size, axis=-1)
    dropped = shared - shift - exponents + 23 - bits + 1
    drop = np.minimum(dropped, 30)
    kept, rest, half = significands >> drop, significands & ((1 << drop) - 1), 1 << (drop - 1)
    tie_up = {0: True, 1: ~negative, 2: kept % 2 == 1}[rounding_mode]
    up = (rest > half) | ((rest == half) & tie_up)
    number = np.where(kept == 2**bits - 1, kept, kept + up)
    number = np.where(dropped > 25, 0, number)
    y = np.where(negative, -1.0, 1.0) * number * 2.0 ** (shared - 127 - shift + 1 - bits)
    return _like(x, together(np.where(shared == 255, np.nan, y)))


def mx(x, *, element_dtype, axis, block_size, rounding_mode):
    """Return the result of MXQuantizeDequantize-1, computed in float64, which is exact."""
    if x.size == 1:
        return x
    cut, together = _cut(x.astype(np.float32), axis, block_size)
    exponents = _exponents(cut)
    name, highest = MX_ELEMENTS[element_dtype]
    scale = 2.0 ** (_largest_finite(exponents) - highest)
    finite = np.where(exponents == 255, 0, cut) / scale
    if element_dtype == "int8":
        elements = np.maximum(_whole(finite * 64, rounding_mode, 128), -128)
        elements = np.minimum(elements, 127) / 64 + 0.0  # int8 has no -0
    else:
        elements = values(nearest(finite, name, saturate=True).astype(np.uint8).view(dtype(name)), name)
    return _like(x, together(np.where(exponents == 255, cut, elements * scale)))


def _cut(x, axis, block_size):
    """Return x as an array (..., blocks, block_size), padded with zeros, and the function that reverses this."""
    axis = 0 if x.ndim == 1 else axis
    moved = np.moveaxis(x, axis, -1)
    length = moved.shape[-1]
    padded = np.pad(moved, [(0, 0)] * (x.ndim - 1) + [(0, -length % block_size)])
    blocks = padded.shape[-1] // block_size
    cut = np.ascontiguousarray(padded).reshape(*moved.shape[:-1], blocks, block_size)
    return cut, lambda y: np.moveaxis(y.reshape(padded.shape)[..., :length], -1, axis)


def _exponents(x):
    """Return the biased exponents of float32."""
    return (x.view(np.uint32) >> 23 & 0xFF).astype(np.int64)


def _largest_finite(exponents):
    return np.where(exponents == 255, 0, exponents).max(-1, keepdims=True, initial=0) - 127


def _whole(numbers, rounding_mode, most):
    """Return the numbers rounded half away from zero, upward or to even, and clipped to -most..most. A zero has the sign of its
    number."""
    if rounding_mode == 0:
        whole = np.trunc(numbers + np.copysign(0.5, numbers))
    else:
        whole = np.floor(numbers + 0.5) if rounding_mode == 1 else np.rint(numbers)
    return np.copysign(np.abs(np.clip(whole, -most, most)), np.where(whole == 0, numbers, whole))


def _like(x, y):
    """Return float64 numbers, all exact in float32, in the type of x."""
    name = {np.dtype(np.float16): "float16", np.dtype(ml_dtypes.bfloat16): "bfloat16"}.get(x.dtype)
    with np.errstate(all="ignore"):
        return (rounded(y, name) if name else y).astype(x.dtype)


def rounded(numbers, name):
    """Return float64 numbers rounded to a float type that has infinities. If a number is a sum, product or quotient of numbers
    of up to 24 bits, its earlier rounding to the 53 bits of float64 does not change the result (53 >= 2 * 24 + 2)."""
    if name == "float64":
        return numbers
    if name == "float32":
        return numbers.astype(np.float32).astype(np.float64)
    return values(nearest(numbers, name, saturate=False).astype(np.uint16).view(dtype(name)), name)


def nearest(numbers, name, *, saturate):
    """Return the codes of the values of a float type that are nearest to float64 numbers; a tie goes to the even code."""
    row, table = TYPES[name], _magnitudes(name)
    magnitude = np.abs(numbers)
    above = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    middle = (table[above - 1] + table[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    codes = np.where(up, above, above - 1)
    codes = np.where(codes == len(table) - 1, len(table) - 2 if saturate else row.beyond, codes)
    negative = np.signbit(numbers) & (row.has_negative_zero | (codes != 0))
    codes = codes | np.where(negative, 1 << (row.bits - 1), 0)
    return np.where(np.isnan(numbers), row.nan, codes)


@functools.cache
def _magnitudes(name):
    """Return the values of the codes 0, 1, ... up to the largest finite value, and the value that would be next."""
    row = TYPES[name]
    table = values(np.arange(1 << (row.bits - 1)).astype(_unsigned(row.dtype)).view(row.dtype), name)
    table = table[: np.flatnonzero(table == row.highest)[0] + 1]
    return np.append(table, 2 * table[-1] - table[-2])


def values(array, name):
    """Return the exact values of codes, as int64 or float64."""
    row, codes = TYPES[name], bits(array)
    if isinstance(row, Float):
        with np.errstate(invalid="ignore"):  # signalling NaN
            return codes.view(row.dtype).astype(np.float64)
    numbers = codes.astype(np.int64)
    return np.where(numbers > row.highest, numbers - 2**row.bits, numbers)


def bits(array):
    """Return the codes as unsigned integers. The bits above a code of 2, 4 or 6 bits are undefined, and are cleared."""
    array = np.asarray(array)
    unsigned = _unsigned(array.dtype)
    return array.view(unsigned) & unsigned.type(2 ** BITS.get(array.dtype, 8 * array.dtype.itemsize) - 1)


def _unsigned(of):
    return np.dtype(f"u{np.dtype(of).itemsize}")


def assert_same_bits(actual, expected):
    """Assert that all bits are equal, the sign of zero included, and that NaN is where NaN is expected, with any payload."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float64)), nan)
    wrong = (bits(actual) != bits(expected)) & ~nan
    if wrong.any():
        where = np.argwhere(wrong)
        at = tuple(where[0])
        raise AssertionError(f"{len(where)} differ; first at {at}: {actual[at]!r}, expected {expected[at]!r}")
