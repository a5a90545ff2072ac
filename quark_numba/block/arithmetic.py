"""The arithmetic of one element and of the steps of a block, as scalar functions for a key: how a scale follows from the
largest element, and how elements are rounded, with halves, saturation, Inf and NaN.

The bits of a float32, for reference:

    bit 31   30..23                 22..0
    sign     exponent, biased 127   mantissa without its leading 1
             0: zero or subnormal; 255: Inf or NaN
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ..compiling.intrinsics import HAS_FMA, fma
from ..compiling.jit import inline
from ..element_types import BFLOAT16, ElementType, codecs
from ..linear.exponents import value_of as value_of_scale
from .formats import HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, HALF_UPWARD, INT8_FRACTION_BITS
from .key import CEIL, EVEN, FLOOR, NVFP4, RCEIL, Key

_LARGEST = np.finfo(np.float32).max


class BlockFunctions(NamedTuple):
    """The functions of a key that compute magnitudes, scales and steps.

    measure : x as stored -> a number, whose maximum over a block or sub-block decides the step
    find_step : (maximum of the block, or its scale if the key has scales; maximum of the sub-block; max_shift; drop; scale of
        the tensor) -> step
    find_scale, if the key has scales : (maximum of the block, drop, scale of the tensor) -> the scale as stored
    """

    measure: Any
    find_step: Any
    find_scale: Any = None


@functools.cache
def block_functions(key: Key) -> BlockFunctions:
    if not key.has_scales:
        return BlockFunctions(_exponent_measure(key), _find_step)
    if key.rule == FLOOR:
        return BlockFunctions(_exponent_measure(key), _scale_decoder(key), _floor_scale(key))
    measure = magnitude_measure(key)
    return BlockFunctions(inline(lambda x: measure(x, MAGNITUDE)), _scale_decoder(key), _SCALES[key.rule](key))


@functools.cache
def converters(key: Key) -> dict[int, Any]:
    """Return the converters by rounding mode: (x as stored, step, the result of `kernels.bounds_of`) -> y as stored. A float
    type has only one mode."""
    if key.element and key.has_scales:
        return {HALF_TO_EVEN: _float_coder(key, key.element) if key.has_codes else _scaled_converter(key, key.element)}
    if key.element:
        return {HALF_TO_EVEN: _converter(key, _element(key.element))}
    converter = _whole_coder if key.has_codes else _converter
    return {mode: converter(key, _whole(nearest)) for mode, nearest in _NEAREST.items()}


@functools.cache
def ordinary_converters(key: Key, *, is_symmetric: bool) -> dict[int, Any]:
    """Return the converters for ordinary blocks by rounding mode: (x as stored, anchor, the result of `kernels.bounds_of`) -> y
    as stored. There is no converter for HALF_UPWARD. `is_symmetric` says whether the lowest number is minus the highest."""
    if key.element:
        return {HALF_TO_EVEN: _ordinary_converter(key, *_element_grid(key.element), is_symmetric=is_symmetric)}
    modes = HALF_TO_EVEN, HALF_AWAY_FROM_ZERO
    return {mode: _ordinary_converter(key, *_whole_grid(mode), is_symmetric=is_symmetric) for mode in modes}


@functools.cache
def _value_of(key: Key) -> Any:
    """Return the function from an element as stored to its float32 value."""
    decode = codecs.decoder(key.x)
    if not key.rounds_to_bfloat16:
        return decode
    via = codecs.rounder(BFLOAT16)
    return inline(lambda x: via(decode(x)))


def _exponent_measure(key: Key) -> Any:
    """Return the function: x as stored -> a number whose maximum over a block gives the shared exponent. It is the biased
    exponent plus 1, or 0 for an element to ignore.

    x                    MicroeXponents, or codes   other formats
                         without Inf and NaN
    zero, subnormal      1                          1
    normal               2..255                     2..255
    Inf, NaN             256: the block's maximum   0: ignored
    """
    value_of, u32, f32 = _value_of(key), np.uint32, np.float32
    shift, mask, one = u32(23), u32(0xFF), u32(1)
    if key.is_microexponent or (key.has_codes and not (key.element and key.element.has_nan)):
        return inline(lambda x: u32(u32(u32(f32(value_of(x)).view(u32) >> shift) & mask) + one))
    # The sum carries 255 to 256, and the mask after it leaves 0.
    return inline(lambda x: u32(u32(u32(f32(value_of(x)).view(u32) >> shift) + one) & mask))


@inline
def _find_step(shared: Any, largest: Any, max_shift: Any, drop: Any, tensor_scale: Any) -> Any:
    """Return the step of a sub-block, or NaN if a block of MicroeXponents holds Inf or NaN. `shared` is the maximum of
    `measure` over the block, `largest` the maximum over the sub-block.

    The step is 2**e with e = (shared - 1) - 127 - drop - shift, where the shift is the exponent of the block minus the
    exponent of the sub-block, at most `max_shift`. The smallest step, 2**-142, is subnormal, so its bits are not a shifted
    exponent. A step is therefore computed as the product of 2**half and 2**(e - half) with half = floor(e / 2): both factors
    are normal, and a product of powers of two is exact."""
    u32, i32 = np.uint32, np.int32
    shift = min(u32(shared - largest), max_shift)
    exponent = i32(i32(i32(u32(max(shared, u32(1)) - shift)) - drop) - i32(128))
    half = i32(exponent >> i32(1))
    rest = i32(exponent - half)
    one_power = u32(u32(i32(half + i32(127))) << u32(23)).view(np.float32)
    other_power = u32(u32(i32(rest + i32(127))) << u32(23)).view(np.float32)
    step = np.float32(one_power * other_power)
    return np.float32(np.nan) if shared == u32(256) else step


def _floor_scale(key: Key) -> Any:
    """Return the function for OCP Microscaling. The scale is the biased exponent of the largest element minus `drop`, but at
    least 0. For int8, whose elements are below 2, `drop` is not subtracted. A block with Inf or NaN has the scale 255, which is
    NaN."""
    u32, is_whole = np.uint32, key.element is None

    def find_scale(shared: Any, drop: Any, tensor_scale: Any) -> Any:
        biased = u32(max(u32(shared), u32(1)) - u32(1))
        return biased if is_whole or biased == u32(255) else u32(max(biased, u32(drop)) - u32(drop))

    return inline(find_scale)


def _rceil_scale(key: Key) -> Any:
    """Return the function for scales that are rounded up: the biased exponent of the least power of two, from -127 to 127, that
    is at least the largest magnitude divided by the largest value of the element type. NaN gives 255, which is NaN.

    Rounding the quotient to float32 does not matter: a quotient above a power of two stays above it."""
    u32, f32 = np.uint32, np.float32
    highest = f32(key.element.highest if key.element else key.codes.highest * 2.0**-INT8_FRACTION_BITS)

    def find_scale(largest: Any, drop: Any, tensor_scale: Any) -> Any:
        biased = _ceil_exponent(f32(u32(largest).view(f32) / highest).view(u32))
        return u32(255) if largest > _INFINITY else min(biased, u32(254))

    return inline(find_scale)


@inline
def _ceil_exponent(bits: Any) -> Any:
    """Return the biased exponent of the least power of two, from 2**-127 on, that is at least the number with these bits. A
    subnormal number is above 2**-127, which has the biased exponent 0, if it is above half of 2**-126."""
    u32 = np.uint32
    limit = u32(0) if bits > u32(0x7FFFFF) else u32(0x400000)
    return u32(u32(bits >> u32(23)) + (u32(1) if u32(bits & u32(0x7FFFFF)) > limit else u32(0)))


def _ceil_scale(key: Key) -> Any:
    """Return the function for the exponent of the least power of two that is at least the largest magnitude, see `_limiter`."""
    u32, limit_exponent = np.uint32, _limiter(key)
    return inline(lambda largest, drop, tensor_scale: limit_exponent(u32(largest), _ceil_exponent(u32(largest)), drop))


# The number of bits to which EVEN rounds the largest magnitude for int8, as in Quark. torchao does not have int8.
_INT8_EVEN_BITS = 8


def _even_scale(key: Key) -> Any:
    """Return the function for the exponent of the largest magnitude. The magnitude is first rounded to as many mantissa bits as
    the element type has, halves upward; see `_limiter`."""
    u32 = np.uint32
    bits = key.element.mantissa_bits if key.element else _INT8_EVEN_BITS
    half, exponent, limit_exponent = u32(1 << (22 - bits)), u32(23), _limiter(key)
    return inline(
        lambda largest, drop, tensor_scale: limit_exponent(u32(largest), u32(u32(u32(largest) + half) >> exponent), drop)
    )


def _limiter(key: Key) -> Any:
    """Return the function (the bits of the largest magnitude, a biased exponent that follows from it, drop) -> the biased
    exponent, less `drop`, within 0..254. For int8, whose elements are below 2, `drop` is not subtracted. NaN gives 255, which
    is NaN."""
    u32, is_whole = np.uint32, key.element is None

    def limit(bits: Any, biased: Any, drop: Any) -> Any:
        below = u32(0) if is_whole else u32(drop)
        return u32(255) if bits > _INFINITY else min(u32(max(biased, below) - below), u32(254))

    return inline(limit)


def _nvfp4_scale(key: Key) -> Any:
    """Return the function for scales in float8e4m3fn. The scale turns the largest magnitude into the largest value of the
    element type. A scale that would be 0 is 1. A NaN is written without a sign, because processors give 0 / 0 different
    signs."""
    u32, f32 = np.uint32, np.float32
    encode = codecs.encoder(key.scales, saturate=True)
    lowest, most, one, largest_code = f32(2.0**-9), f32(key.scales.highest), f32(1), f32(key.codes.highest)

    def find_scale(largest: Any, drop: Any, tensor_scale: Any) -> Any:
        scale = f32(u32(largest).view(f32) / f32(largest_code * tensor_scale))
        scale = one if scale == f32(0) else scale
        scale = lowest if scale < lowest else scale
        scale = most if scale > most else scale
        return u32(encode(abs(scale)))

    return inline(find_scale)


# By rule: the factory of the function that computes scales from the bits of the largest magnitude.
_SCALES = {CEIL: _ceil_scale, EVEN: _even_scale, RCEIL: _rceil_scale, NVFP4: _nvfp4_scale}


def _scale_decoder(key: Key) -> Any:
    """Return the function: (scale as stored, ...) -> the value of an element that is 1, or one step for int8."""
    f32 = np.float32
    if key.rule == NVFP4:
        decode = codecs.decoder(key.scales)
        return inline(lambda scale, largest, max_shift, drop, tensor_scale: f32(decode(scale) * tensor_scale))
    unit = f32(1 if key.element else 2.0**-INT8_FRACTION_BITS)
    return inline(lambda scale, largest, max_shift, drop, tensor_scale: f32(value_of_scale(scale) * unit))


# The biased exponents that the largest element of an ordinary block may have. For these exponents, no intermediate result in
# the conversion of an element is subnormal or infinite.
_MIN_ORDINARY, _MAX_ORDINARY = 127 - 64, 127 + 64

# The largest `max_shift` of a format that has functions for ordinary blocks.
MAX_SHIFT = 16

# The bits of a float32's magnitude, and of Inf.
MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


@functools.cache
def magnitude_measure(key: Key) -> Any:
    """Return the function: (x as stored, mask) -> the bits of the magnitude of x, or 0. The mask is MAGNITUDE or 0. The bits
    compare like magnitudes; Inf and NaN are above all finite values."""
    value_of = _value_of(key)
    return inline(lambda x, mask: np.uint32(np.float32(value_of(x)).view(np.uint32) & mask))


@inline
def is_ordinary(shared: Any) -> Any:
    """Return whether a block is ordinary: the exponent of its largest magnitude, `shared`, is in range, or the magnitude is
    0."""
    exponent = np.uint32(shared >> np.uint32(23))
    return shared == np.uint32(0) or (exponent >= np.uint32(_MIN_ORDINARY) and exponent <= np.uint32(_MAX_ORDINARY))


@inline
def find_least(shared: Any, max_shift: Any) -> Any:
    """Return the bits of the smallest power of two that an anchor of a sub-block of an ordinary block may be computed from.
    `shared` is the largest magnitude of the block. The result is the power of two of the block, with its exponent reduced by
    `max_shift`."""
    u32 = np.uint32
    return u32(max(u32(shared & u32(0x7F800000)), u32(_MIN_ORDINARY << 23)) - u32(max_shift << u32(23)))


@functools.cache
def anchor_finder(key: Key) -> Any:
    """Return the function: (largest magnitude of the sub-block, the result of `find_least`, drop) -> anchor, for an ordinary
    block.

    For whole numbers of steps the anchor is 2**23 steps: between the anchor and twice the anchor, the float32 numbers are
    exactly the whole numbers of steps. For a float type the anchor is its smallest normal number times the step."""
    u32, i32, element = np.uint32, np.int32, key.element
    lift, exponent = i32(1 - element.bias if element else 23), u32(0x7F800000)

    def find_anchor(largest: Any, least: Any, drop: Any) -> Any:
        own = max(u32(largest & exponent), least)
        return u32(own + u32(u32(i32(lift - drop)) << u32(23))).view(np.float32)

    return inline(find_anchor)


def _ordinary_converter(key: Key, nearest: Any, bound_of: Any, *, is_symmetric: bool) -> Any:
    """Return the function: (x as stored, anchor, the result of `kernels.bounds_of`) -> y as stored, for the elements of an
    ordinary block, which are finite. If the lowest and the highest number differ in magnitude, a zero has no sign: see
    `kernels.bounds_of`."""
    value_of, encode = _value_of(key), codecs.encoder(key.x, saturate=False)

    def convert(x: Any, anchor: Any, bounds: Any) -> Any:
        value = np.float32(value_of(x))
        magnitude = nearest(abs(value), anchor)
        bound = bound_of(anchor, bounds)
        if not is_symmetric:
            bound = bound_of(anchor, (bounds[1], np.float32(-bounds[0]), bounds[2])) if value < np.float32(0) else bound
        magnitude = magnitude if magnitude < bound else bound
        sign = np.uint32(value.view(np.uint32) & ~MAGNITUDE)
        y = np.uint32(np.float32(magnitude).view(np.uint32) | sign).view(np.float32)  # the magnitude is positive
        return encode(y if is_symmetric else np.float32(y + np.float32(0)))

    return inline(convert)


def _whole_grid(mode: int) -> tuple[Any, Any]:
    """Return two functions for results that are multiples of the step: (magnitude, anchor) -> the nearest multiple; and
    (anchor, bounds) -> the largest multiple of the format.

    The sum of magnitude and anchor is rounded to a multiple of the step, half to even. Subtracting the anchor is exact.

    For half away from zero, the magnitude is first increased by less than a unit in its last place. A magnitude at a tie moves
    above the tie, and every other magnitude stays on its side. Let the magnitude be 2**e * (1 + k * 2**-23), with the unit
    2**(e - 23). Its product with 1 - 2**-24 is rounded to the next float32 below. The product of that float32 and 1 + 2**-23
    is the magnitude plus 2**(e - 46) * (k - 1), or, for k = 0, the magnitude plus less than 2**(e - 24). The fused multiply-add
    does not round this product before it adds the anchor. For k = 1 nothing is added, but such a magnitude is never at a tie:
    at a tie it has at most 15 bits before the half, so its last 7 bits are zeros."""
    f32 = np.float32
    if mode == HALF_TO_EVEN:
        nearest = inline(lambda magnitude, anchor: f32(f32(magnitude + anchor) - anchor))
    elif HAS_FMA:
        below, above = f32(1 - 2.0**-24), f32(1 + 2.0**-23)
        nearest = inline(lambda magnitude, anchor: f32(fma(f32(magnitude * below), above, anchor) - anchor))
    else:

        def half_away(magnitude: Any, anchor: Any) -> Any:
            number = f32(f32(magnitude + anchor) - anchor)
            is_tie = f32(magnitude - number) == f32(anchor * f32(2.0**-24))
            return f32(number + f32(anchor * f32(2.0**-23))) if is_tie else number

        nearest = inline(half_away)
    return nearest, inline(lambda anchor, bounds: f32(anchor * f32(bounds[1] * f32(2.0**-23))))


def _element_grid(element: ElementType) -> tuple[Any, Any]:
    """Return the two functions of `_whole_grid`, for results that are values of a float type. From a power of two to the next,
    the values are multiples of power * 2**-mantissa_bits. Below the smallest normal number, neighbouring values are as
    far apart as just above it."""
    u32, f32 = np.uint32, np.float32
    above, most = u32(23 - element.mantissa_bits << 23), f32(element.highest * 2.0 ** (element.bias - 1))

    def nearest(magnitude: Any, anchor: Any) -> Any:
        power = max(u32(f32(magnitude).view(u32) & u32(0x7F800000)), f32(anchor).view(u32))
        own = u32(power + above).view(f32)
        return f32(f32(magnitude + own) - own)

    return inline(nearest), inline(lambda anchor, bounds: f32(anchor * most))


def _converter(key: Key, multiple: Any) -> Any:
    """Return the function: (x as stored, step, the result of `kernels.bounds_of`) -> y as stored.

    The quotient is exact, because a step is a power of two; a quotient that underflows is rounded to zero anyway. The product
    is exact too: it is a whole number, or a float of few bits, times the step. Zero is not divided, because a subnormal step is
    zero on a thread that flushes subnormal numbers (``session.set_denormal_as_zero``).
    """
    value_of, encode = _value_of(key), codecs.encoder(key.x, saturate=False)
    is_microexponent, largest_float, smallest_normal = key.is_microexponent, _LARGEST, np.float32(2.0**-126)

    def convert(x: Any, step: Any, bounds: Any) -> Any:
        value = value_of(x)
        magnitude = abs(value)
        if is_microexponent:
            value = np.copysign(np.float32(0), value) if magnitude < smallest_normal else value
            magnitude = abs(value)
        quotient = np.float32(value / step) if magnitude > np.float32(0) else value
        y = np.float32(multiple(quotient, bounds) * step)
        if is_microexponent:
            return encode(y)
        return encode(y if magnitude <= largest_float else value)

    return inline(convert)


def _float_coder(key: Key, element: ElementType) -> Any:
    """Return the converter to codes of a float type. Quotients saturate. In OCP Microscaling, Inf and NaN become Inf
    and NaN of the element type. If the element type has only NaN, Inf becomes NaN."""
    value_of, has_specials = _value_of(key), key.rule == FLOOR
    encode, largest_float = codecs.encoder(element, saturate=not has_specials), _LARGEST
    lowest, highest = np.float32(element.lowest), np.float32(element.highest)

    def convert(x: Any, step: Any, bounds: Any) -> Any:
        value = np.float32(value_of(x))
        quotient = np.float32(value / step)
        if has_specials and abs(value) <= largest_float:
            quotient = lowest if quotient < lowest else quotient
            quotient = highest if quotient > highest else quotient
        return encode(quotient)

    return inline(convert)


def _whole_coder(key: Key, multiple: Any) -> Any:
    """Return the converter to codes that are whole numbers of steps. The code is 0 if the step is NaN."""
    value_of, code_type = _value_of(key), key.codes.storage.type

    def convert(x: Any, step: Any, bounds: Any) -> Any:
        number = multiple(np.float32(np.float32(value_of(x)) / step), bounds)
        return code_type(np.int32(number if number == number else np.float32(0)))

    return inline(convert)


def _scaled_converter(key: Key, element: ElementType) -> Any:
    """Return the converter to the value of the code times the step, rounded to float32."""
    value_of, nearest, encode = _value_of(key), codecs.nearest(element), codecs.encoder(key.x, saturate=False)
    lowest, highest, has_nan = np.float32(element.lowest), np.float32(element.highest), element.has_nan

    def convert(x: Any, step: Any, bounds: Any) -> Any:
        quotient = np.float32(np.float32(value_of(x)) / step)
        # For an element type without NaN, a NaN becomes the highest value.
        is_within = quotient < highest or (has_nan and quotient != quotient)
        bounded = quotient if is_within else highest
        bounded = lowest if bounded < lowest else bounded
        return encode(np.float32(nearest(bounded) * step))

    return inline(convert)


def _element(element: ElementType) -> Any:
    """Return the function: float32 -> the nearest value of the element type, saturated."""
    nearest = codecs.nearest(element)
    return inline(lambda quotient, bounds: nearest(quotient))


def _whole(nearest: Any) -> Any:
    """Return the function: float32 -> the nearest whole number, saturated; NaN stays. A zero has the sign of the quotient if
    the range is symmetric (sign and magnitude, which has -0), and is 0 otherwise (two's complement, which has no -0)."""

    def whole(quotient: Any, bounds: Any) -> Any:
        lowest, highest, zero = bounds
        number = nearest(quotient)
        number = lowest if number < lowest else number
        number = highest if number > highest else number
        return np.float32(number + zero)

    return inline(whole)


@inline
def _half_upward(quotient: Any) -> Any:
    """Return the nearest whole number, ties upward. The difference between the quotient and its value rounded half to even is
    exact."""
    number = np.rint(quotient)
    return np.float32(number + np.float32(1)) if np.float32(quotient - number) == np.float32(0.5) else number


# By rounding mode: the function float32 -> the nearest whole number. For ties away from zero, the addend is the float32 just
# below 1/2. It differs from 1/2 by half a unit in the last place of the float32 just below 1. If the fraction is 1/2 or more,
# the sum is rounded to at least the next whole number. If the fraction is smaller, the sum stays below the next whole number.
_LESS_THAN_HALF = np.nextafter(np.float32(0.5), np.float32(0))
_NEAREST = {
    HALF_TO_EVEN: inline(lambda quotient: np.rint(quotient)),
    HALF_AWAY_FROM_ZERO: inline(lambda q: np.copysign(np.floor(np.float32(abs(q) + _LESS_THAN_HALF)), q)),
    HALF_UPWARD: _half_upward,
}
