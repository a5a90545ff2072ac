"""The arithmetic of one element: scalar functions for a key, which are compiled into the key's kernel.

The functions of this module return them. A docstring that begins with "(x, scale) -> y" describes the returned function.

Scales and zero points are passed as values, in ``Key.scale_dtype`` and ``Key.zero_point_dtype``; x and y are codes as stored.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..compiling.intrinsics import HAS_FMA, fma
from ..compiling.jit import inline
from ..element_types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ..element_types.codecs import decoder, encoder, rounder, same, wide_type
from .key import Key

# Rounding to integers: half to even (QuantizeLinear-10 to -28, ExtendedQuantizeLinear-1). The operators of this family round
# with one of these two functions: with the first where the integer stays a float, with the second where it becomes a code.


@inline
def round_half_even(value: Any) -> Any:
    """float -> the nearest integer, as a float; of two, the even one."""
    return np.rint(value)


@functools.cache
def half_even_adder(wide: Any) -> Any:
    """(value, addend) -> ``round_half_even(value)`` plus an integer, as an integer. `wide` is the type of the value, whose
    magnitude has to be below 2**22, or below 2**51 if `wide` is float64. It takes an addition of each kind.

    Adding `magic` rounds the value, half to even. In float32, 1.5 * 2**23 is

        0 10010110 10000000000000000000000      sign, exponent, mantissa

    and its last bit is worth 1. So the sum with a number of magnitude below 2**22 has the same exponent, and is rounded to an
    integer, half to even. The mantissa of the sum is 2**22 plus this integer. So the bits of the sum, as an integer, are those
    of `magic` plus this integer. In float64 the same holds for 1.5 * 2**52.
    """
    magic, integer = (np.float64(1.5 * 2**52), np.int64) if wide is np.float64 else (np.float32(1.5 * 2**23), np.int32)
    magic_bits: Any = magic.view(integer)
    return inline(lambda value, addend: integer(wide(value + magic).view(integer) + integer(integer(addend) - magic_bits)))


@functools.cache
def converter(key: Key) -> Any:
    """(x, scale, zero point) -> y, for integers as an int32 if ``key.converts_to_words``."""
    if key.operation == "quantize_dequantize":
        return _round_trip(key)
    return _quantizer(key) if key.operation == "quantize" else _dequantizer(key)


def _quantizer(key: Key) -> Any:
    """y = saturate(x / scale + zero point) (QuantizeLinear-28; ExtendedQuantizeLinear-1).

    x and scale are rounded to the precision of the division, and so is the quotient. For float types the sum is rounded to the
    nearest float32. A float64 sum is rounded to odd instead, so that rounding it a second time gives the same as rounding once.
    """
    divide = _divider(key)
    x_value = decoder(key.x)
    if key.y.is_integer:
        y_code = _code_of_quotient(key)
        return inline(lambda x, scale, zero_point: y_code(divide(x_value(x), scale), scale, zero_point))
    encode = encoder(key.y, key.saturate)
    sum_type, narrow = (np.float64, _to_odd_float32) if key.precision is FLOAT64 else (np.float32, same)
    return inline(lambda x, scale, zero_point: encode(narrow(sum_type(divide(x_value(x), scale)) + zero_point)))


@functools.cache
def _divider(key: Key) -> Any:
    """(value of x, scale) -> the quotient, in the key's precision."""
    if key.precision in (FLOAT16, BFLOAT16):
        # Rounding +, -, *, / of such operands to float32 first changes nothing (24 >= 2 * 11 + 2 bits).
        precise = rounder(key.precision)
        x_narrow = _to_odd_float32 if wide_type(key.x) is np.float64 else same
        return inline(lambda value, scale: precise(precise(x_narrow(value)) / precise(scale)))
    operand = key.precision.dtype.type
    return inline(lambda value, scale: operand(value) / scale)


def _dequantizer(key: Key) -> Any:
    """y = (x - zero point) * scale (DequantizeLinear-28; ExtendedDequantizeLinear-1). The difference is exact for integers, and
    then rounded to float32. The product is rounded to float32, and then to the type of y."""
    x_value, y_code = decoder(key.x), encoder(key.y, saturate=False)
    float32, has_exact_float32 = np.float32, wide_type(key.x) is np.float32

    def dequantize(x: Any, scale: Any, zero_point: Any) -> Any:
        # Without a zero point, an integer of 32 bits is rounded to float32 at once, in half the time.
        difference = float32(x_value(x) - zero_point) if has_exact_float32 or zero_point != 0 else float32(x)
        return y_code(difference * scale)

    return inline(dequantize)


def _round_trip(key: Key) -> Any:
    """(x, scale, zero point) -> y, quantized and dequantized."""
    if key.quantized.is_integer:
        divide, x_value, multiple = _divider(key), decoder(key.x), _integer_multiple(key)
        return inline(lambda x, scale, zero_point: multiple(divide(x_value(x), scale), scale, zero_point))
    quantize, dequantize = map(converter, key.steps)
    return inline(lambda x, scale, zero_point: dequantize(quantize(x, scale, zero_point), scale, zero_point))


@functools.cache
def reciprocal_converter(key: Key) -> Any:
    """(x, reciprocal, scale, zero point) -> the same y as `converter` returns, without a division, if ``has_reciprocal``
    accepts the scale and the zero point. Return None if the key has no such function."""
    if key.operation == "dequantize" or key.precision is not FLOAT32 or wide_type(key.x) is not np.float32:
        return None
    x_value, f32 = decoder(key.x), np.float32
    if key.quantized.is_integer:
        if not HAS_FMA:
            return None
        return _large_code(key) if key.quantized.bits > 16 and key.operation == "quantize" else _of_saturated(key)
    encode, decode = encoder(key.quantized, key.saturate), decoder(key.quantized)
    # The product with the reciprocal is the quotient, and is also rounded once. Adding 0 turns -0 into 0.
    code_of = inline(lambda x, reciprocal: encode(f32(f32(x_value(x) * reciprocal) + f32(0))))
    if key.operation == "quantize":
        return inline(lambda x, reciprocal, scale, zero_point: code_of(x, reciprocal))
    return inline(lambda x, reciprocal, scale, zero_point: f32(decode(code_of(x, reciprocal)) * scale))


@functools.cache
def has_reciprocal(key: Key) -> Any:
    """(scale, zero point) -> whether ``reciprocal_converter`` may be used.

    For float types, the scale has to be a power of two from 2**-126 to 2**125, whose reciprocal is exact and normal, and the
    zero point 0, but not -0. For integers, the scale has to be from 2**-64 to 2**64 (see `_quotient`), and the bounds have to
    be right (see `_of_saturated`).
    """
    if key.quantized.is_integer:
        is_checked, has_right_bounds = key.quantized.bits > 16, _has_right_bounds(key)
        return inline(
            lambda scale, zero_point: (
                scale >= np.float32(2.0**-64)
                and scale <= np.float32(2.0**64)
                and (not is_checked or has_right_bounds(scale, zero_point))
            )
        )

    def is_power_of_two(scale: Any, zero_point: Any) -> Any:
        bits = np.float32(scale).view(np.uint32)
        exponent = bits >> np.uint32(23)
        is_power = bits & np.uint32(0x7FFFFF) == 0 and 0 < exponent < 253
        return is_power and zero_point == 0 and not np.signbit(zero_point)

    return inline(is_power_of_two)


@inline
def _quotient(x: Any, reciprocal: Any, scale: Any) -> Any:
    """Return x / scale, rounded to nearest as a division rounds it, if its magnitude is from 1/4 to 2**64. If its magnitude is
    below 1/4, return some number below 1/2. `reciprocal` is 1 / scale, rounded to nearest; scale is from 2**-64 to 2**64.

    The product differs from the quotient by at most 3/2 units in its last place: half a unit for its own rounding, and one
    for the rounding of the reciprocal. The remainder is exact: it needs no more bits than a float32 has, and its last bit is
    worth at least 2**-112. So the sum is the quotient, except for an error of the correction that is too small to change the
    rounding (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990, theorem 8.1;
    Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when the divisor is known in
    advance", 2004, section 2).
    """
    product = np.float32(x * reciprocal)
    return fma(fma(-product, scale, x), reciprocal, product)


@inline
def _smaller(value: Any, most: Any) -> Any:
    """Return the smaller of a float32 other than NaN and one that is 0 or more. Their bits as signed integers have the order of
    the numbers, except for two negative ones. The minimum of integers does not use the units that multiply."""
    return np.int32(min(np.float32(value).view(np.int32), np.float32(most).view(np.int32))).view(np.float32)


def _of_saturated(key: Key) -> Any:
    """``reciprocal_converter`` for round trips through integers, and for codes of up to 16 bits. x is saturated instead of the
    quotient. The upper bound is scale * most, rounded to float32, where most = highest - zero point. The lower bound is alike.

    With up to 16 bits, the quotient of the bound differs from most by less than 2**-6, so it is rounded to most.

    With 32 bits, the quotient of the bound may differ from most by some units in the last place. Saturating x instead of the
    quotient can make a difference only for quotients between these two numbers. If each of the two, multiplied by scale, is
    rounded to the bound, then so is every number between them, and there is no difference. most is, by the definition of the
    bound. `_has_right_bounds` checks the quotient.
    """
    x_value, bounds = decoder(key.x), _bounds(key)

    def quotient(x: Any, reciprocal: Any, scale: Any, zero_point: Any) -> Any:
        least, most = bounds(scale, zero_point)
        value = x_value(x)
        value = value if value > least else least  # also NaN
        return _quotient(_smaller(value, most), reciprocal, scale)

    of_saturated = inline(quotient)
    if key.operation == "quantize_dequantize":
        # Adding 0 turns -0 into 0.
        return inline(
            lambda x, r, scale, zero_point: fma(round_half_even(of_saturated(x, r, scale, zero_point)), scale, np.float32(0))
        )
    code_of = _code_of_whole(key, np.float32)
    return inline(lambda x, r, scale, zero_point: code_of(of_saturated(x, r, scale, zero_point), zero_point))


@functools.cache
def _bounds(key: Key) -> Any:
    """(scale, zero point) -> the two bounds that x is saturated to."""
    f32, wide, lowest, highest = np.float32, key.zero_point_dtype, key.quantized.lowest, key.quantized.highest
    return inline(
        lambda scale, zero_point: (
            f32(scale * f32(wide(lowest) - zero_point)),
            f32(scale * f32(wide(highest) - zero_point)),
        )
    )


def _has_right_bounds(key: Key) -> Any:
    """(scale, zero point) -> whether a round trip of the bounds without saturation returns them (see `_of_saturated`)."""
    f32, bounds = np.float32, _bounds(key)

    def has_right_bounds(scale: Any, zero_point: Any) -> Any:
        least, most = bounds(scale, zero_point)
        return (
            f32(round_half_even(f32(least / scale)) * scale) == least
            and f32(round_half_even(f32(most / scale)) * scale) == most
        )

    return inline(has_right_bounds)


def _large_code(key: Key) -> Any:
    """``reciprocal_converter`` for codes of 32 bits. Quotients of 2**32 and more saturate, so x may be limited to 2**33 *
    scale, whose quotient is exactly 2**33. Without a limit, `_quotient` would return NaN for the largest x."""
    x_value, code_of, f32 = decoder(key.x), _code_of_quotient(key), np.float32

    def convert(x: Any, reciprocal: Any, scale: Any, zero_point: Any) -> Any:
        most = f32(scale * f32(2.0**33))
        value = x_value(x)
        value = value if value > -most else -most  # also NaN
        value = value if value < most else most
        return code_of(_quotient(value, reciprocal, scale), scale, zero_point)

    return inline(convert)


def _integer_multiple(key: Key) -> Any:
    """(quotient, scale, zero point) -> y, for a round trip through integers.

    Quantize computes code = clamp(rint(quotient) + zero point, lowest, highest), and dequantize uses code - zero point. So the
    difference is clamp(rint(quotient), lowest - zero point, highest - zero point). The bounds are exact in the zero point's
    dtype. Then the difference is rounded to float32. rint(quotient) is a float32 already, and rounding keeps the order, so
    rounding the bounds is enough. A difference of integers is never -0; adding 0 turns -0 into 0.
    """
    f32 = np.float32
    lowest, highest = (key.zero_point_dtype(bound) for bound in (key.quantized.lowest, key.quantized.highest))

    def multiple(quotient: Any, scale: Any, zero_point: Any) -> Any:
        least, most = f32(lowest - zero_point), f32(highest - zero_point)
        value = round_half_even(quotient)
        value = value if value > least else least  # also NaN
        value = value if value < most else most
        return f32(f32(value + f32(0)) * scale)

    return inline(multiple)


def _code_of_quotient(key: Key) -> Any:
    """(quotient, scale, zero point) -> code: round half to even, add the zero point, saturate. NaN becomes the lowest code."""
    if key.y.bits > 16 and key.precision is not FLOAT64:
        return _large_code_of_quotient(key)
    # Saturating the quotient first returns the same, because the bounds are integers and exact in `wide`.
    wide = np.float64 if key.precision is FLOAT64 else np.float32
    lowest, highest, code_of = wide(key.y.lowest), wide(key.y.highest), _code_of_whole(key, wide)

    def encode(quotient: Any, scale: Any, zero_point: Any) -> Any:
        least, most = wide(lowest - zero_point), wide(highest - zero_point)
        value = wide(quotient)
        value = value if value > least else least  # also NaN
        value = value if value < most else most
        return code_of(value, zero_point)

    return inline(encode)


def _large_code_of_quotient(key: Key) -> Any:
    """`_code_of_quotient` for codes of 32 bits and a quotient in float32.

    The rounded quotient is a float32. It saturates below lowest - zero point, which is 0 or less, and above highest - zero
    point, which is 0 or more. Rounding these bounds towards 0 to a float32 does not change the comparisons. Between the
    bounds, the magnitude of the rounded quotient is below 2**32, and the sum is the code. Its 32 bits are right if each step
    is right modulo 2**32.
    """
    code, u32, f64, i64 = key.y.storage.type, np.uint32, np.float64, np.int64
    mask = i64(2**32 - 1)
    lowest, highest = f64(key.y.lowest), f64(key.y.highest)
    lowest_code, highest_code = (code(bound) for bound in (key.y.lowest, key.y.highest))

    def encode(quotient: Any, scale: Any, zero_point: Any) -> Any:
        least, most = _toward_zero_float32(lowest - zero_point), _toward_zero_float32(highest - zero_point)
        value = round_half_even(quotient)
        magnitude = u32(abs(value))
        whole = u32(u32(0) - magnitude) if value < 0 else magnitude
        within = code(u32(whole + u32(i64(zero_point) & mask)))
        saturated = highest_code if value > most else within
        return saturated if value >= least else lowest_code  # also NaN

    return inline(encode)


def _code_of_whole(key: Key, wide: Any) -> Any:
    """(value, zero point) -> the code of the rounded value plus the zero point, a sum that has to be within the range of y's
    type. A code of 8 bits in an int32 is the sum itself, as ``vectors.narrow`` takes it. Other codes are its lowest bits."""
    round_and_add, integer = half_even_adder(wide), np.int64 if wide is np.float64 else np.int32
    code = np.int32 if key.converts_to_words else key.y.storage.type
    mask, is_code = integer(2**key.y.bits - 1), key.converts_to_words and key.y.bits == 8

    def encode(value: Any, zero_point: Any) -> Any:
        whole = round_and_add(value, zero_point)
        return code(whole if is_code else integer(whole & mask))

    return inline(encode)


@inline
def _to_odd_float32(value: Any) -> Any:
    """float64 -> float32, rounded to odd: a value between two float32 becomes the one whose last bit is set."""
    one = np.uint32(1)
    nearest = np.float32(value)
    bits = nearest.view(np.uint32)
    wide = np.float64(nearest)
    other = np.uint32(bits + one) if abs(wide) < abs(value) else np.uint32(bits - one)
    exact = wide == value or value != value or np.uint32(bits & one) == one
    odd = bits if exact else other
    return np.uint32(odd).view(np.float32)


@inline
def _toward_zero_float32(value: Any) -> Any:
    """float64 -> float32, rounded towards 0."""
    nearest = np.float32(value)
    below = np.uint32(nearest.view(np.uint32) - np.uint32(1)).view(np.float32)
    return nearest if abs(np.float64(nearest)) <= abs(value) else below
