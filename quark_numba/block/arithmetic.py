"""What becomes of one element, and the steps of a block: scalar functions made for a key, which are compiled into its kernel.

A float32 x, for reference:

    bit 31   30..23                 22..0
    sign     exponent, biased 127   mantissa without its leading 1
             0: zero or subnormal; 255: Inf or NaN
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..compiling.intrinsics import HAS_FMA, fma
from ..compiling.jit import inline
from ..element_types import BFLOAT16, ElementType, codecs
from .formats import HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, HALF_UPWARD
from .key import Key

_LARGEST = np.finfo(np.float32).max


def exponent_functions(key: Key) -> dict[str, Any]:
    """The functions by their names in the templates of ``kernels``."""
    return {"exponent_of": _exponent_of(key), "step_of": _step_of}


def converters(key: Key) -> dict[int, Any]:
    """By rounding mode: (x as stored, step, what `kernels.bounds_of` gives) -> y as stored. Float types have but one."""
    if key.element:
        return {HALF_TO_EVEN: _converter(key, _element(key.element))}
    return {mode: _converter(key, _whole(nearest)) for mode, nearest in _NEAREST.items()}


@functools.cache
def quick_functions(key: Key) -> dict[str, Any]:
    """The functions by their names in ``tiles``."""
    return {"magnitude_of": _magnitude_of(key), "is_ordinary": _is_ordinary, "anchor_of": _anchor_of(key)}


@functools.cache
def quick_converters(key: Key) -> dict[int, Any]:
    """By rounding mode, of those that have one: (x as stored, anchor, what `kernels.bounds_of` gives) -> y as stored, of
    ordinary blocks."""
    if key.element:
        return {HALF_TO_EVEN: _quick_converter(key, *_element_grid(key.element))}
    return {mode: _quick_converter(key, *_whole_grid(mode)) for mode in (HALF_TO_EVEN, HALF_AWAY_FROM_ZERO)}


@functools.cache
def _value_of(key: Key) -> Any:
    """x as stored -> float32."""
    decode = codecs.decoder(key.x)
    if not key.rounds_to_bfloat16:
        return decode
    via = codecs.rounder(BFLOAT16)
    return inline(lambda x: via(decode(x)))


def _exponent_of(key: Key) -> Any:
    """x as stored -> a number that grows with its exponent, for a maximum over a block: the biased exponent plus 1, so that
    0 is left for what does not count.

    x                    MicroeXponents   else
    zero, subnormal      1                1
    normal               2..255           2..255
    Inf, NaN             256: they win    0: they do not count
    """
    value_of, u32, f32 = _value_of(key), np.uint32, np.float32
    shift, mask, one = u32(23), u32(0xFF), u32(1)
    if key.is_microexponent:
        return inline(lambda x: u32(u32(u32(f32(value_of(x)).view(u32) >> shift) & mask) + one))
    # The sum carries 255 to 256, and the mask, applied after it, leaves 0.
    return inline(lambda x: u32(u32(u32(f32(value_of(x)).view(u32) >> shift) + one) & mask))


@inline
def _step_of(shared: Any, largest: Any, max_shift: Any, drop: Any) -> Any:
    """The step of a sub-block, from what `exponent_of` gives for the largest element of its block (`shared`) and for its own
    (`largest`); NaN if the block holds Inf or NaN.

    The step is 2**e for e = (shared - 1) - 127 - drop, less the shift, by which the sub-block's exponent is smaller. Its
    smallest, 2**-142, is subnormal, and no pattern of an exponent alone. So it is the product of 2**half and 2**(e - half),
    for half = floor(e / 2): both are normal, and a product of powers of two is exact."""
    u32, i32 = np.uint32, np.int32
    shift = min(u32(shared - largest), max_shift)
    exponent = i32(i32(i32(u32(max(shared, u32(1)) - shift)) - drop) - i32(128))
    half = i32(exponent >> i32(1))
    rest = i32(exponent - half)
    one_power = u32(u32(i32(half + i32(127))) << u32(23)).view(np.float32)
    other_power = u32(u32(i32(rest + i32(127))) << u32(23)).view(np.float32)
    step = np.float32(one_power * other_power)
    return np.float32(np.nan) if shared == u32(256) else step


# The biased exponents of the largest elements of ordinary blocks: no number that a conversion meets is subnormal or Inf.
_LEAST_ORDINARY, _MOST_ORDINARY = 127 - 64, 127 + 64

# Up to how much smaller the exponents of ordinary sub-blocks are.
MOST_SHIFT = 16


def _magnitude_of(key: Key) -> Any:
    """x as stored -> the bits of its magnitude, which are in the order of magnitudes; Inf and NaN are above all others."""
    value_of = _value_of(key)
    return inline(lambda x: np.uint32(np.float32(value_of(x)).view(np.uint32) & np.uint32(0x7FFFFFFF)))


@inline
def _is_ordinary(shared: Any) -> Any:
    """Whether the largest magnitude of a block is 0, or an ordinary one."""
    exponent = np.uint32(shared >> np.uint32(23))
    return shared == np.uint32(0) or (exponent >= np.uint32(_LEAST_ORDINARY) and exponent <= np.uint32(_MOST_ORDINARY))


def _anchor_of(key: Key) -> Any:
    """(largest magnitude of the block, of the sub-block, max_shift, drop) -> anchor, of an ordinary block.

    The anchor of whole numbers is 2**23 steps: float32 from there on up to twice that are whole numbers of steps. The anchor of
    a float type is its smallest normal number, in steps. The sub-block's exponent counts, but no less than the block's less
    `max_shift`."""
    u32, i32, element = np.uint32, np.int32, key.element
    lift, smallest, exponent = i32(1 - element.bias if element else 23), u32(_LEAST_ORDINARY << 23), u32(0x7F800000)

    def anchor_of(shared: Any, largest: Any, max_shift: Any, drop: Any) -> Any:
        least = u32(max(u32(shared & exponent), smallest) - u32(max_shift << u32(23)))
        own = max(u32(largest & exponent), least)
        return u32(own + u32(u32(i32(lift - drop)) << u32(23))).view(np.float32)

    return inline(anchor_of)


def _quick_converter(key: Key, nearest: Any, bound_of: Any) -> Any:
    """(x as stored, anchor, what `kernels.bounds_of` gives) -> y as stored, of finite x in an ordinary block."""
    value_of, encode = _value_of(key), codecs.encoder(key.x, saturate=False)

    def convert(x: Any, anchor: Any, bounds: Any) -> Any:
        value = np.float32(value_of(x))
        magnitude = nearest(abs(value), anchor)
        bound = bound_of(anchor, bounds)
        return encode(np.copysign(magnitude if magnitude < bound else bound, value))

    return inline(convert)


def _whole_grid(mode: int) -> tuple[Any, Any]:
    """(magnitude, anchor) -> the nearest whole number of steps; and (anchor, bounds) -> the largest.

    The sum with the anchor is rounded to a whole number of steps, half to even. What is subtracted then is exact.

    For half away from zero, the magnitude is made more by less than a unit in its last place, so that a tie is more than one,
    and all others stay on their side. It is 2**e * (1 + k * 2**-23), and a unit 2**(e - 23). The product with 1 - 2**-24 is
    rounded to the next float32 below. That times 1 + 2**-23, which is not rounded before the sum is, is the magnitude plus
    2**(e - 46) * (k - 1); or plus less than 2**(e - 24), for k = 0. For k = 1 nothing is added; but a tie has at most 15 bits
    before the half, and none among the last 7."""
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
    """As `_whole_grid`, of values of a float type. Those between a power of two and the next are multiples of the power, less
    the bits of the mantissa; below the smallest normal number they are as far apart as above it."""
    u32, f32 = np.uint32, np.float32
    above, most = u32(23 - element.mantissa_bits << 23), f32(element.highest * 2.0 ** (element.bias - 1))

    def nearest(magnitude: Any, anchor: Any) -> Any:
        power = max(u32(f32(magnitude).view(u32) & u32(0x7F800000)), f32(anchor).view(u32))
        own = u32(power + above).view(f32)
        return f32(f32(magnitude + own) - own)

    return inline(nearest), inline(lambda anchor, bounds: f32(anchor * most))


def _converter(key: Key, multiple: Any) -> Any:
    """(x as stored, step, what `kernels.bounds_of` gives) -> y as stored.

    The quotient is exact, as a step is a power of two: where it would underflow it is too small to matter. So is the product,
    a whole number or a float of few bits times the step. Zero is not divided: a step that is subnormal is zero too on a thread
    that flushes such (``session.set_denormal_as_zero``).
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


def _element(element: ElementType) -> Any:
    """float32 -> the nearest value of the element type, saturated."""
    nearest = codecs.nearest(element)
    return inline(lambda quotient, bounds: nearest(quotient))


def _whole(nearest: Any) -> Any:
    """float32 -> the nearest whole number, saturated; NaN stays. A zero has the quotient's sign if the range is symmetric, as
    that of sign and magnitude, which has -0; two's complement has none."""

    def whole(quotient: Any, bounds: Any) -> Any:
        lowest, highest, zero = bounds
        number = nearest(quotient)
        number = lowest if number < lowest else number
        number = highest if number > highest else number
        return np.float32(number + zero)

    return inline(whole)


@inline
def _half_to_even(quotient: Any) -> Any:
    return np.rint(quotient)


@inline
def _half_away_from_zero(quotient: Any) -> Any:
    """What is added is less than half, by half a unit in the last place of what is just below 1: from half on the sum rounds to
    the next number, below that it does not reach it."""
    return np.copysign(np.floor(np.float32(abs(quotient) + _LESS_THAN_HALF)), quotient)


@inline
def _half_upward(quotient: Any) -> Any:
    """What is left after rounding half to even is exact."""
    number = np.rint(quotient)
    return np.float32(number + np.float32(1)) if np.float32(quotient - number) == np.float32(0.5) else number


_LESS_THAN_HALF = np.nextafter(np.float32(0.5), np.float32(0))
_NEAREST = {HALF_TO_EVEN: _half_to_even, HALF_AWAY_FROM_ZERO: _half_away_from_zero, HALF_UPWARD: _half_upward}
