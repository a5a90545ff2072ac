"""Scalar arithmetic of each element type, made from its row of the table as small compiled functions.

Between codes lies a `wide` float type in which a code, and the difference or sum of two, is exact or rounded just once:
float64 for 32-bit integers (33 bits are enough), float32 for everything else (17 bits for 16-bit integers; for float16
and bfloat16, float32 is the type that the operators compute in).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import intrinsics
from .element_types import ElementType
from .jit import inline


def quantizer(x: ElementType, scale: ElementType, y: ElementType) -> Any:
    """(x, scale, zero point) -> y = saturate(x / scale + zero point) (ExtendedQuantizeLinear-1).

    Integers: x / scale is rounded half to even before the zero point is added. In float32 that sum is exact for 8- and
    16-bit types wherever it is below 2**24, and above they are saturated whatever the zero point.
    """
    x_value, scale_value, zero_point_value, y_code = _decoder(x), _decoder(scale), _decoder(y), _encoder(y)
    wide = _wide(y)
    rounded = _rint if y.is_integer else _same

    def quantize(value: Any, scale: Any, zero_point: Any) -> Any:
        quotient = wide(rounded(x_value(value) / scale_value(scale)))
        return y_code(quotient + zero_point_value(zero_point))

    return inline(quantize)


def dequantizer(x: ElementType, scale: ElementType, y: ElementType) -> Any:
    """(x, scale, zero point) -> y = (x - zero point) * scale (ExtendedDequantizeLinear-1), the difference exact for
    integers and then rounded to float32."""
    x_value, scale_value, y_code = _decoder(x), _decoder(scale), _encoder(y)
    float32 = np.float32

    def dequantize(code: Any, scale: Any, zero_point: Any) -> Any:
        return y_code(float32(x_value(code) - x_value(zero_point)) * scale_value(scale))

    return inline(dequantize)


def _wide(row: ElementType) -> Any:
    return np.float64 if row.is_integer and row.bits > 16 else np.float32


def _decoder(row: ElementType) -> Any:
    """Code as stored -> its value in the wide type."""
    if row.name == "float32":
        return _same
    if row.is_integer:
        wide = _wide(row)
        return inline(lambda code: wide(code))
    if row.name == "float16" and intrinsics.HAS_FLOAT16:
        return inline(lambda code: intrinsics.float16_value(code))
    return _float_decoder(row)


def _encoder(row: ElementType) -> Any:
    """Value in the wide type -> code as stored, rounded half to even (integers: already whole) and saturated."""
    if row.name == "float32":
        return _same
    lowest, highest = _wide(row)(row.lowest), _wide(row)(row.highest)

    if row.is_integer:
        code = row.dtype.type

        def encode(value: Any) -> Any:
            value = value if value > lowest else lowest  # also NaN
            return code(value if value < highest else highest)
    else:
        hardware = row.name == "float16" and intrinsics.HAS_FLOAT16
        bits = intrinsics.float16_bits if hardware else _float_encoder(row)

        # Saturating before rounding is saturating after it: what lies between the largest finite value and the next
        # power of two would round to one of the two, and both saturate to the former.
        def encode(value: Any) -> Any:
            value = lowest if value < lowest else value  # NaN stays
            return bits(highest if value > highest else value)

    return inline(encode)


# Numba computes with 64-bit integers unless it is told not to, and vectors then hold half as many: hence every u32.
# A float32 is sign, 8 exponent bits with bias 127, 23 mantissa bits. Below, `exponent_shift` moves between the biases and
# `shift` between the mantissas of float32 and the row's format, whose all-ones exponent holds Inf and NaN as IEEE's do.


def _float_decoder(row: ElementType) -> Any:
    """The bits of a format with no more exponent or mantissa bits than float32 -> float32, exactly."""
    u32, f32 = np.uint32, np.float32
    shift = u32(23 - row.mantissa_bits)
    if row.exponent_bits == 8:
        return inline(lambda code: u32(u32(code) << shift).view(f32))

    sign_shift = u32(32 - row.bits)
    sign_bit = u32(1 << 31)
    magnitude_mask = u32((1 << (row.bits - 1)) - 1)
    smallest_normal, infinity = u32(1 << row.mantissa_bits), u32((2**row.exponent_bits - 1) << row.mantissa_bits)
    exponent_shift, infinite_exponent = u32((127 - row.bias) << 23), u32(0xFF << 23)
    subnormal_unit = f32(2.0 ** (1 - row.bias - row.mantissa_bits))

    def decode(code: Any) -> Any:
        magnitude = u32(u32(code) & magnitude_mask)
        normal = u32(u32(magnitude << shift) + exponent_shift)
        subnormal = f32(f32(magnitude) * subnormal_unit).view(u32)  # a product of an integer and a power of two
        bits = normal if magnitude >= smallest_normal else subnormal
        bits = u32(bits | infinite_exponent) if magnitude >= infinity else bits
        sign = u32(u32(u32(code) << sign_shift) & sign_bit)
        return u32(bits | sign).view(f32)

    return inline(decode)


def _float_encoder(row: ElementType) -> Any:
    """float32 within the format's finite range, or NaN -> the bits of the nearest value, ties to even.

    Adding half a unit of the kept mantissa less one, and one more if what is kept is odd, carries into what is kept
    exactly when what is dropped is above half a unit, or is half and the kept part odd. A carry out of the mantissa
    raises the exponent, as it must. A NaN, which that could carry away, becomes the quiet NaN of its sign.
    """
    u16, u32, f32 = np.uint16, np.uint32, np.float32
    shift = u32(23 - row.mantissa_bits)
    one, half_less_one = u32(1), u32((1 << (22 - row.mantissa_bits)) - 1)
    magnitude_mask, sign_shift, sign_bit = u32(0x7FFFFFFF), u32(32 - row.bits), u32(1 << (row.bits - 1))
    nan = u32((2 ** (row.exponent_bits + 1) - 1) << (row.mantissa_bits - 1))
    exponent_shift = u32((127 - row.bias) << row.mantissa_bits)
    smallest_normal = f32(2.0 ** (1 - row.bias))
    # One unit in the last place of this float32 is one of the format's subnormals: adding it rounds to those, half to
    # even, and leaves their number in the low bits. float32's own subnormals are the format's if the exponents agree.
    magic = f32(2.0 ** (24 - row.bias - row.mantissa_bits))
    magic_bits = magic.view(u32)
    has_subnormals_of_its_own = row.exponent_bits < 8

    def encode(value: Any) -> Any:
        bits = f32(value).view(u32)
        magnitude = u32(bits & magnitude_mask)
        odd = u32(u32(magnitude >> shift) & one)
        code = u32(u32(u32(magnitude + half_less_one) + odd) >> shift) - exponent_shift
        if has_subnormals_of_its_own:
            absolute = magnitude.view(f32)
            subnormal = f32(absolute + magic).view(u32) - magic_bits
            code = code if absolute >= smallest_normal else subnormal
        code = code if value == value else nan
        return u16(u32(code) | u32(u32(bits >> sign_shift) & sign_bit))

    return inline(encode)


@inline
def _same(value: Any) -> Any:
    return value


@inline
def _rint(value: Any) -> Any:
    return np.rint(value)
