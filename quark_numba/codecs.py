"""Scalar arithmetic of each element type, made from its row of the table as small compiled functions.

A code's value is exact in float32, or in float64 for 32-bit integers. Scales and zero points come as such values already
(``Key.scale_dtype``, ``Key.zero_point_dtype``), and only x and y as codes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from . import intrinsics
from .dispatch import Key
from .element_types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, ElementType
from .jit import inline


def converter(key: Key) -> Any:
    """(x, scale, zero point) -> y, for x and y as stored."""
    if key.via:
        return _round_trip(key)
    return _quantizer(key) if key.operation == "quantize" else _dequantizer(key)


def _quantizer(key: Key) -> Any:
    """y = saturate(x / scale + zero point) (QuantizeLinear-28; ExtendedQuantizeLinear-1).

    x and scale are rounded to the precision of the division, and so is the quotient. For float types the sum is rounded to
    float32, to nearest; but from float64 to odd, so that rounding it once more gives what rounding once would.
    """
    divide = _divider(key)
    x_value = decoder(key.x)
    if key.y.is_integer:
        y_code = _integer_encoder(key.y, np.float64 if key.precision is FLOAT64 else key.zero_point_dtype)
        return inline(lambda x, scale, zero_point: y_code(divide(x_value(x), scale), zero_point))
    encode = encoder(key.y, key.saturate)
    sum_type, narrow = (np.float64, _to_odd_float32) if key.precision is FLOAT64 else (np.float32, _same)
    return inline(lambda x, scale, zero_point: encode(narrow(sum_type(divide(x_value(x), scale)) + zero_point)))


def _divider(key: Key) -> Any:
    if key.precision in (FLOAT16, BFLOAT16):
        # For +, -, *, / of such operands, rounding to float32 first changes nothing (24 >= 2 * 11 + 2 bits).
        precise = rounder(key.precision)
        x_narrow = _to_odd_float32 if _wide(key.x) is np.float64 else _same
        return inline(lambda value, scale: precise(precise(x_narrow(value)) / precise(scale)))
    operand = key.precision.dtype.type
    return inline(lambda value, scale: operand(value) / scale)


def _dequantizer(key: Key) -> Any:
    """y = (x - zero point) * scale (DequantizeLinear-28; ExtendedDequantizeLinear-1), the difference exact for integers,
    then rounded to float32; the product rounded to float32, and from there to y."""
    x_value, y_code = decoder(key.x), encoder(key.y, saturate=False)
    float32 = np.float32

    def dequantize(x: Any, scale: Any, zero_point: Any) -> Any:
        return y_code(float32(x_value(x) - zero_point) * scale)

    return inline(dequantize)


def _round_trip(key: Key) -> Any:
    """What dequantizing gives of what quantizing gives."""
    divide, x_value = _divider(key), decoder(key.x)
    if key.quantized.is_integer:
        multiple = _integer_multiple(key)
        return inline(lambda x, scale, zero_point: multiple(divide(x_value(x), scale), scale, zero_point))
    there, back = map(converter, key.there_and_back)
    return inline(lambda x, scale, zero_point: back(there(x, scale, zero_point), scale, zero_point))


def plain_round_trip(key: Key) -> Any:
    """(x, reciprocal, scale, zero point) -> y, for a scale whose reciprocal is exact, and a zero point of 0: the product with
    it is the quotient, rounded once as well."""
    x_value = decoder(key.x)
    if key.quantized.is_integer:
        multiple = _integer_multiple(key)
        return inline(lambda x, reciprocal, scale, zero_point: multiple(x_value(x) * reciprocal, scale, zero_point))
    encode, decode, f32 = encoder(key.quantized, key.saturate), decoder(key.quantized), np.float32
    # Adding 0 makes 0 of -0.
    return inline(
        lambda x, reciprocal, scale, zero_point: f32(decode(encode(f32(f32(x_value(x) * reciprocal) + f32(0)))) * scale)
    )


def _integer_multiple(key: Key) -> Any:
    """(quotient, scale, zero point) -> y, for integers.

    The difference of a code and the zero point is what the quotient is rounded to, between bounds which are exact in the zero
    point's dtype. It is rounded to float32 before it is multiplied. The rounded quotient is a float32 already, and rounding
    keeps the order: so the bounds may be rounded instead. The difference is never -0, which adding 0 sees to.
    """
    f32 = np.float32
    lowest, highest = (key.zero_point_dtype(bound) for bound in (key.quantized.lowest, key.quantized.highest))

    def multiple(quotient: Any, scale: Any, zero_point: Any) -> Any:
        least, most = f32(lowest - zero_point), f32(highest - zero_point)
        value = np.rint(quotient)
        value = value if value > least else least  # also NaN
        value = value if value < most else most
        return f32(f32(value + f32(0)) * scale)

    return inline(multiple)


def _wide(row: ElementType) -> Any:
    return np.float64 if row.is_integer and row.bits > 16 else np.float32


@functools.cache
def decoder(row: ElementType) -> Any:
    """Code as stored -> its value in the wide type."""
    if row is FLOAT32:
        return _same
    if row.is_integer:
        return _integer_decoder(row)
    if row is FLOAT16 and intrinsics.HAS_FLOAT16:
        return inline(lambda code: intrinsics.float16_value(code))
    return _float_decoder(row)


@functools.cache
def encoder(row: ElementType, saturate: bool) -> Any:
    """float32 -> code of a float type as stored: rounded half to even, and beyond the finite range saturated, or else Inf
    or what stands for it."""
    if row is FLOAT32:
        return _same
    if row.exponent_bits == 8:
        return _upper_bits_encoder(row, saturate)
    if row is FLOAT16 and intrinsics.HAS_FLOAT16:
        bits = inline(lambda value: intrinsics.float16_bits(value))
    else:
        bits = _float_encoder(row, saturate)
    if not saturate:
        return bits
    lowest, highest = np.float32(row.lowest), np.float32(row.highest)

    # Saturating before rounding is saturating after it: what lies between the largest finite value and the next that
    # there would be rounds to one of the two, and both saturate to the former.
    def encode(value: Any) -> Any:
        value = lowest if value < lowest else value  # NaN stays
        return bits(highest if value > highest else value)

    return inline(encode)


@functools.cache
def rounder(row: ElementType) -> Any:
    """float32 -> the nearest value of a 16-bit float type, as float32."""
    encode, decode = encoder(row, saturate=False), decoder(row)
    return inline(lambda value: decode(encode(value)))


@functools.cache
def nearest(row: ElementType) -> Any:
    """float32 of no more than twice the largest finite value -> the nearest value of a float type of up to 11 bits of precision
    and 5 of exponent, ties to even, saturated, of the same sign.

    One unit in the last place of `magic`, 1.5 times a power of two, is that of the value's binade in the type, or of its
    subnormals: adding it rounds to multiples of that, and half to even ones, as `magic` is one.
    """
    u32, f32 = np.uint32, np.float32
    exponent_mask, smallest, highest = u32(0xFF << 23), u32((128 - row.bias) << 23), f32(row.highest)
    up, half_bit = u32((23 - row.mantissa_bits) << 23), u32(1 << 22)

    def nearest_value(value: Any) -> Any:
        exponent = max(u32(f32(value).view(u32) & exponent_mask), smallest)
        magic = u32(u32(exponent + up) | half_bit).view(f32)
        magnitude = abs(f32(f32(value + magic) - magic))
        return np.copysign(highest if magnitude > highest else magnitude, value)

    return inline(nearest_value)


def _integer_decoder(row: ElementType) -> Any:
    wide = _wide(row)
    if row.bits >= 8:
        return inline(lambda code: wide(code))
    # The bits above a code are not to be relied on: ml_dtypes clears those of int4, others extend the sign into them.
    i32, unused = np.int32, np.int32(32 - row.bits)
    if row.is_signed:
        return inline(lambda code: wide(i32(i32(i32(code) << unused) >> unused)))
    mask = i32(2**row.bits - 1)
    return inline(lambda code: wide(i32(i32(code) & mask)))


def _integer_encoder(row: ElementType, wide: Any) -> Any:
    """(quotient, zero point) -> code: rounded half to even, then the zero point added, then saturated; NaN the lowest.

    Saturated first, between bounds that are whole and exact in `wide`, which comes to the same: then half a unit and less
    is to be rounded away, which adding 1.5 units in the place of the leading bit does and leaves the whole number, of
    either sign, in the bits below.
    """
    magic, integer = (np.float64(1.5 * 2**52), np.int64) if wide is np.float64 else (np.float32(1.5 * 2**23), np.int32)
    lowest, highest = wide(row.lowest), wide(row.highest)
    code, mask = row.storage.type, integer(2**row.bits - 1)

    def encode(quotient: Any, zero_point: Any) -> Any:
        least, most = wide(lowest - zero_point), wide(highest - zero_point)
        value = wide(quotient)
        value = value if value > least else least  # also NaN
        value = value if value < most else most
        return code(integer(integer(wide(value + magic).view(integer) + integer(zero_point)) & mask))

    return inline(encode)


# Numba computes with 64-bit integers unless it is told not to, and vectors then hold half as many: hence every u32.
# A float32 is sign, 8 exponent bits with bias 127, 23 mantissa bits. Below, `exponent_shift` moves between the biases and
# `shift` between the mantissas of float32 and the row's format.


def _float_decoder(row: ElementType) -> Any:
    """The bits of a format with no more exponent or mantissa bits than float32 -> float32, exactly."""
    u32, f32 = np.uint32, np.float32
    shift = u32(23 - row.mantissa_bits)
    if row.exponent_bits == 8:
        return inline(lambda code: u32(u32(code) << shift).view(f32))

    sign_shift = u32(32 - row.bits)
    sign_bit = u32(1 << 31)
    magnitude_mask = u32((1 << (row.bits - 1)) - 1)
    smallest_normal = u32(1 << row.mantissa_bits)
    exponent_shift = u32((127 - row.bias) << 23)
    subnormal_unit = f32(2.0 ** (1 - row.bias - row.mantissa_bits))

    # Inf and NaN: with an all-ones exponent as in IEEE formats, or one NaN of all ones (of either sign), or one in the
    # place of -0.
    has_infinity, has_nan, has_negative_zero = row.has_infinity, row.has_nan, row.has_negative_zero
    first_special = u32((2**row.exponent_bits - 1) << row.mantissa_bits) if has_infinity else magnitude_mask
    special_bits = u32(0xFF << 23) if has_infinity else u32(0x1FF << 22)
    code_mask, negative_zero = u32(2**row.bits - 1), u32(1 << (row.bits - 1))

    def decode(code: Any) -> Any:
        magnitude = u32(u32(code) & magnitude_mask)
        normal = u32(u32(magnitude << shift) + exponent_shift)
        subnormal = f32(f32(magnitude) * subnormal_unit).view(u32)  # a product of an integer and a power of two
        bits = normal if magnitude >= smallest_normal else subnormal
        if has_nan and has_negative_zero:
            bits = u32(bits | special_bits) if magnitude >= first_special else bits
        elif has_nan:
            bits = special_bits if u32(u32(code) & code_mask) == negative_zero else bits
        sign = u32(u32(u32(code) << sign_shift) & sign_bit)
        return u32(bits | sign).view(f32)

    return inline(decode)


def _upper_bits_encoder(row: ElementType, saturate: bool) -> Any:
    """The same as `_float_encoder` for a format with the exponents of float32: its codes are float32's upper bits, Inf and what
    rounds to it are float32's, and saturating is taking the lower of two magnitudes, seen as integers."""
    u32, f32, code_type = np.uint32, np.float32, row.storage.type
    shift, sign_bit, magnitude_mask = u32(23 - row.mantissa_bits), u32(1 << 31), u32(0x7FFFFFFF)
    one, half_less_one, quiet = u32(1), u32((1 << (22 - row.mantissa_bits)) - 1), u32(row.nan)
    largest = np.float32(row.highest).view(u32)

    def encode(value: Any) -> Any:
        bits = f32(value).view(u32)
        magnitude = u32(bits & magnitude_mask)
        odd = u32(u32(magnitude >> shift) & one)
        magnitude = u32(u32(magnitude + half_less_one) + odd)
        if saturate:
            magnitude = min(magnitude, u32(largest + half_less_one))
        code = u32(u32(magnitude | u32(bits & sign_bit)) >> shift)
        return code_type(code if value == value else u32(u32(bits >> shift) | quiet))

    return inline(encode)


def _float_encoder(row: ElementType, saturated: bool) -> Any:
    """float32 -> the bits of the nearest value, ties to even. `saturated`: no input is beyond the finite range.

    Adding half a unit of the kept mantissa less one, and one more if what is kept is odd, carries into what is kept
    exactly when what is dropped is above half a unit, or is half and the kept part odd. A carry out of the mantissa
    raises the exponent, as it must. What comes out beyond the largest finite value becomes Inf, or NaN where there is no
    Inf, or the largest where there is neither. A NaN, which that could carry away, becomes the quiet NaN of its sign, or
    its substitute.
    """
    u32, f32, code_type = np.uint32, np.float32, row.storage.type
    shift = u32(23 - row.mantissa_bits)
    one, half_less_one = u32(1), u32((1 << (22 - row.mantissa_bits)) - 1)
    magnitude_mask, sign_shift, sign_bit = u32(0x7FFFFFFF), u32(32 - row.bits), u32(1 << (row.bits - 1))
    exponent_shift = u32((127 - row.bias) << row.mantissa_bits)
    smallest_normal = f32(2.0 ** (1 - row.bias))
    # One unit in the last place of this float32 is one of the format's subnormals: adding it rounds to those, half to
    # even, and leaves their number in the low bits.
    magic = f32(2.0 ** (24 - row.bias - row.mantissa_bits))
    magic_bits = magic.view(u32)

    largest: Any = u32(np.flatnonzero(row.code_values == np.float32(row.highest))[0])
    nan = u32(row.nan)
    overflow: Any = u32(largest + one) if row.has_infinity else nan if row.has_nan else largest
    has_nan, has_negative_zero, zero = row.has_nan, row.has_negative_zero, u32(0)

    def encode(value: Any) -> Any:
        bits = f32(value).view(u32)
        magnitude = u32(bits & magnitude_mask)
        odd = u32(u32(magnitude >> shift) & one)
        code = u32(u32(u32(u32(magnitude + half_less_one) + odd) >> shift) - exponent_shift)
        absolute = magnitude.view(f32)
        subnormal = u32(f32(absolute + magic).view(u32) - magic_bits)
        code = code if absolute >= smallest_normal else subnormal
        if not saturated:
            code = overflow if code > largest else code
        sign = u32(u32(bits >> sign_shift) & sign_bit)
        if not has_negative_zero:
            sign = sign if code != zero else zero
        if has_nan:
            code = code if value == value else nan
            return code_type(u32(code | sign))
        return code_type(u32(code | sign) if value == value else nan)

    return inline(encode)


@inline
def _to_odd_float32(value: Any) -> Any:
    """float64 -> float32, to odd: of the two values around an inexact one, the one whose last bit is set."""
    one = np.uint32(1)
    nearest = np.float32(value)
    bits = nearest.view(np.uint32)
    wide = np.float64(nearest)
    other = np.uint32(bits + one) if abs(wide) < abs(value) else np.uint32(bits - one)
    exact = wide == value or value != value or np.uint32(bits & one) == one
    odd = bits if exact else other
    return np.uint32(odd).view(np.float32)


@inline
def _same(value: Any) -> Any:
    return value
