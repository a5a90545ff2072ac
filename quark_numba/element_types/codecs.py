"""Conversions between codes and values: small functions for each row of the table, which are compiled into the kernels.

float32 holds the value of any code exactly, except for 32-bit integers, which float64 holds exactly.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..compiling import intrinsics
from ..compiling.jit import inline
from . import FLOAT16, FLOAT32, ElementType


def wide_type(element_type: ElementType) -> Any:
    """Return float32 if it holds every value of the type, otherwise float64."""
    return np.float64 if element_type.is_integer and element_type.bits > 16 else np.float32


@functools.cache
def decoder(element_type: ElementType) -> Any:
    """Return the function: a code as stored -> its value in the wide type."""
    if element_type is FLOAT32:
        return same
    if element_type.is_integer:
        return _integer_decoder(element_type)
    if element_type is FLOAT16 and intrinsics.HAS_FLOAT16:
        return inline(lambda code: intrinsics.float16_value(code))
    return _float_decoder(element_type)


@functools.cache
def encoder(element_type: ElementType, saturate: bool) -> Any:
    """Return the function: float32 -> the code of a float type as stored, rounded half to even. Values beyond the finite range
    saturate, or without `saturate` become Inf or its substitute."""
    if element_type is FLOAT32:
        return same
    if element_type.exponent_bits == 8:
        return _upper_bits_encoder(element_type, saturate)
    if element_type is FLOAT16 and intrinsics.HAS_FLOAT16:
        bits = inline(lambda value: intrinsics.float16_bits(value))
    else:
        bits = _float_encoder(element_type, saturate)
    if not saturate:
        return bits
    lowest, highest = np.float32(element_type.lowest), np.float32(element_type.highest)

    # Saturating before rounding returns the same as saturating after it. A value beyond the largest finite value is rounded to
    # that value or to a larger one, and both saturate to the largest finite value.
    def encode(value: Any) -> Any:
        value = lowest if value < lowest else value  # NaN stays
        return bits(highest if value > highest else value)

    return inline(encode)


@functools.cache
def rounder(element_type: ElementType) -> Any:
    """Return the function: float32 -> the nearest value of a 16-bit float type, as float32."""
    encode, decode = encoder(element_type, saturate=False), decoder(element_type)
    return inline(lambda value: decode(encode(value)))


@functools.cache
def nearest(element_type: ElementType) -> Any:
    """Return the function: float32 -> the nearest value of a float type, as float32: ties to even, saturated, with the sign of
    the input.

    The type may have up to 11 bits of precision and 5 exponent bits. The input may be up to twice the largest finite value.

    For an input with the exponent E, the type keeps `mantissa_bits` bits after the leading 1. `magic` has the exponent
    E + 23 - mantissa_bits and the mantissa 1000..0:

        input   0 E                      mmmmmmm dddddddddddddddd    m: kept, d: dropped
        magic   0 E+(23-mantissa_bits)   10000000000000000000000     its last bit is worth as much as the last m

    So input + magic is rounded to a multiple of the last kept bit, half to even, because the last bit of `magic` is 0.
    Subtracting `magic` is exact. For a subnormal of the type, E is the exponent of the smallest normal value, which has the
    same step.
    """
    u32, f32 = np.uint32, np.float32
    exponent_mask, smallest, highest = u32(0xFF << 23), u32((128 - element_type.bias) << 23), f32(element_type.highest)
    up, half_bit = u32((23 - element_type.mantissa_bits) << 23), u32(1 << 22)

    def nearest_value(value: Any) -> Any:
        exponent = max(u32(f32(value).view(u32) & exponent_mask), smallest)
        magic = u32(u32(exponent + up) | half_bit).view(f32)
        magnitude = abs(f32(f32(value + magic) - magic))
        return np.copysign(highest if magnitude > highest else magnitude, value)

    return inline(nearest_value)


def _integer_decoder(element_type: ElementType) -> Any:
    wide = wide_type(element_type)
    if element_type.bits >= 8:
        return inline(lambda code: wide(code))
    # The bits above a code are undefined: ml_dtypes clears them for int4, others extend the sign into them.
    i32, unused = np.int32, np.int32(32 - element_type.bits)
    if element_type.is_signed:
        return inline(lambda code: wide(i32(i32(i32(code) << unused) >> unused)))
    mask = i32(2**element_type.bits - 1)
    return inline(lambda code: wide(i32(i32(code) & mask)))


# Without the casts to u32, Numba would compute with 64-bit integers, and a vector would hold half as many.
#
# The bits of a float32 and of a code with fewer bits; the sign is the highest bit of both:
#
#     float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm    exponent biased by 127, 23 bits of mantissa
#     code      s eeee     mmm                        exponent biased by `bias`, `mantissa_bits` bits of mantissa
#
# Below, `exponent_shift` converts an exponent from one bias to the other, and `shift` is the difference of the mantissas'
# widths.


def _float_decoder(element_type: ElementType) -> Any:
    """Return the function: a code of a format with at most as many exponent and mantissa bits as float32 -> its exact
    float32."""
    u32, f32 = np.uint32, np.float32
    shift = u32(23 - element_type.mantissa_bits)
    if element_type.exponent_bits == 8:
        return inline(lambda code: u32(u32(code) << shift).view(f32))

    sign_shift = u32(32 - element_type.bits)
    sign_bit = u32(1 << 31)
    magnitude_mask = u32((1 << (element_type.bits - 1)) - 1)
    smallest_normal = u32(1 << element_type.mantissa_bits)
    exponent_shift = u32((127 - element_type.bias) << 23)
    subnormal_unit = f32(2.0 ** (1 - element_type.bias - element_type.mantissa_bits))

    # Inf and NaN have an exponent of all ones, as in IEEE formats. Other formats have one NaN of all ones (of either sign),
    # or one in the place of -0.
    has_infinity, has_nan, has_negative_zero = element_type.has_infinity, element_type.has_nan, element_type.has_negative_zero
    first_special = u32((2**element_type.exponent_bits - 1) << element_type.mantissa_bits) if has_infinity else magnitude_mask
    special_bits = u32(0xFF << 23) if has_infinity else u32(0x1FF << 22)
    code_mask, negative_zero = u32(2**element_type.bits - 1), u32(1 << (element_type.bits - 1))

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


def _upper_bits_encoder(element_type: ElementType, saturate: bool) -> Any:
    """Return a function like that of `_float_encoder`, for a type with the exponents of float32 (bfloat16). The exponent stays,
    and the codes of all values, subnormals too, are the upper bits of a float32. A value that is rounded beyond the largest
    finite value has the bits of Inf. Magnitudes have the order of their bits as integers, so saturating is the minimum of two
    integers."""
    u32, f32, code_type = np.uint32, np.float32, element_type.storage.type
    shift, sign_bit, magnitude_mask = u32(23 - element_type.mantissa_bits), u32(1 << 31), u32(0x7FFFFFFF)
    one, half_less_one, quiet = u32(1), u32((1 << (22 - element_type.mantissa_bits)) - 1), u32(element_type.nan)
    largest = np.float32(element_type.highest).view(u32)

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


@functools.cache
def upper_bits_rounder(element_type: ElementType) -> Any:
    """Return the function: a float32 other than a signalling NaN -> the nearest value of a type with the exponents of float32
    (bfloat16), as float32: ties to even, not saturated. It works like that of `_upper_bits_encoder`, but does not remove the
    sign first, because no number carries into it. A quiet NaN stays a quiet NaN, without its lower bits."""
    u32, f32 = np.uint32, np.float32
    dropped = 23 - element_type.mantissa_bits
    shift, kept = u32(dropped), u32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    one, half_less_one, zero = u32(1), u32((1 << (dropped - 1)) - 1), u32(0)

    def round_to_nearest(value: Any) -> Any:
        bits = f32(value).view(u32)
        up = u32(u32(u32(bits >> shift) & one) + half_less_one)
        return u32(u32(bits + (up if value == value else zero)) & kept).view(f32)

    return inline(round_to_nearest)


def _float_encoder(element_type: ElementType, saturated: bool) -> Any:
    """Return the function: float32 -> the code of the nearest value, ties to even. `saturated` says that all inputs are within
    the finite range.

    The code of a normal value is the upper bits of the float32, rounded:

        float32 without sign   eeeeeeee mmm dddddddddddddddddddd    m: kept, d: dropped (`shift` bits)
        + half less one        00000000 000 01111111111111111111
        + the last kept bit    00000000 000 00000000000000000001    if it is 1

    The sum carries into the kept bits exactly if d is more than half a unit of the last m, or if d is half a unit and the
    last m is 1. So ties go to even. A carry out of the mantissa raises the exponent, as it must.

    A subnormal of the type is a multiple of its smallest step. `magic` is the float32 whose last bit is worth one step. So
    adding `magic` rounds to a multiple of the step, half to even, and the low bits of the sum are the number of steps.

    A result beyond the largest finite value becomes Inf, or NaN if the type has no Inf, or the largest value if it has
    neither. The carry could destroy a NaN, so a NaN becomes the quiet NaN with its sign, or the type's substitute.
    """
    u32, f32, code_type = np.uint32, np.float32, element_type.storage.type
    shift = u32(23 - element_type.mantissa_bits)
    one, half_less_one = u32(1), u32((1 << (22 - element_type.mantissa_bits)) - 1)
    magnitude_mask, sign_shift, sign_bit = u32(0x7FFFFFFF), u32(32 - element_type.bits), u32(1 << (element_type.bits - 1))
    exponent_shift = u32((127 - element_type.bias) << element_type.mantissa_bits)
    smallest_normal = f32(2.0 ** (1 - element_type.bias))
    magic = f32(2.0 ** (24 - element_type.bias - element_type.mantissa_bits))
    magic_bits = magic.view(u32)

    largest: Any = u32(np.flatnonzero(element_type.code_values == np.float32(element_type.highest))[0])
    nan = u32(element_type.nan)
    overflow: Any = u32(largest + one) if element_type.has_infinity else nan if element_type.has_nan else largest
    has_nan, has_negative_zero, zero = element_type.has_nan, element_type.has_negative_zero, u32(0)

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
def same(value: Any) -> Any:
    return value
