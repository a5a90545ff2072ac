"""Scalar arithmetic of block formats, made for a key as small compiled functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import codecs
from .block_formats import HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, HALF_UPWARD, BlockKey
from .element_types import BFLOAT16, ElementType
from .jit import inline

_LARGEST = np.finfo(np.float32).max


def exponent_functions(key: BlockKey) -> dict[str, Any]:
    """By the names that the templates of ``block_kernels`` have for them."""
    return {"exponent_of": _exponent_of(key), "step_of": _step_of}


def converters(key: BlockKey) -> dict[int, Any]:
    """By rounding mode: (x as stored, step, what `block_kernels.bounds_of` gives) -> y as stored. Float types have but one."""
    if key.element:
        return {HALF_TO_EVEN: _converter(key, _element(key.element))}
    return {mode: _converter(key, _whole(nearest)) for mode, nearest in _NEAREST.items()}


def _value_of(key: BlockKey) -> Any:
    """x as stored -> float32."""
    decode = codecs.decoder(key.x)
    if not key.via_bfloat16:
        return decode
    via = codecs.rounder(BFLOAT16)
    return inline(lambda x: via(decode(x)))


def _exponent_of(key: BlockKey) -> Any:
    """x as stored -> its biased exponent and 1, from 1 to 255, and of Inf and NaN 256 if they spread, or else 0."""
    value_of, u32, f32 = _value_of(key), np.uint32, np.float32
    place, mask, one = u32(23), u32(0xFF), u32(1)
    if key.is_prime:
        return inline(lambda x: u32(u32(u32(f32(value_of(x)).view(u32) >> place) & mask) + one))
    return inline(lambda x: u32(u32(u32(f32(value_of(x)).view(u32) >> place) + one) & mask))


@inline
def _step_of(shared: Any, largest: Any, max_shift: Any, drop: Any) -> Any:
    """2**(exponent - drop), for what `exponent_of` gives for the largest element of a block and of a sub-block in it; NaN for a
    block of Inf or NaN.

    It may be subnormal: down to 2**-142, of a largest element that is subnormal. As the product of two powers of about half the
    exponent it is exact.
    """
    u32, i32 = np.uint32, np.int32
    shift = min(u32(shared - largest), max_shift)
    exponent = i32(i32(i32(u32(max(shared, u32(1)) - shift)) - drop) - i32(128))
    half = i32(exponent >> i32(1))
    rest = i32(exponent - half)
    one_power = u32(u32(i32(half + i32(127))) << u32(23)).view(np.float32)
    other_power = u32(u32(i32(rest + i32(127))) << u32(23)).view(np.float32)
    step = np.float32(one_power * other_power)
    return np.float32(np.nan) if shared == u32(256) else step


def _converter(key: BlockKey, multiple: Any) -> Any:
    """(x as stored, step, what `block_kernels.bounds_of` gives) -> y as stored.

    The quotient is exact, as a step is a power of two: where it would underflow it is too small to matter. So is the product,
    a whole number or a float of few bits times the step. Zero is not divided: a step that is subnormal is zero too on a thread
    that flushes such (``session.set_denormal_as_zero``).
    """
    value_of, encode = _value_of(key), codecs.encoder(key.x, saturate=False)
    is_prime, largest_float, smallest_normal = key.is_prime, _LARGEST, np.float32(2.0**-126)

    def convert(x: Any, step: Any, bounds: Any) -> Any:
        value = value_of(x)
        magnitude = abs(value)
        if is_prime:
            value = np.copysign(np.float32(0), value) if magnitude < smallest_normal else value
            magnitude = abs(value)
        quotient = np.float32(value / step) if magnitude > np.float32(0) else value
        y = np.float32(multiple(quotient, bounds) * step)
        if is_prime:
            return encode(y)
        return encode(y if magnitude <= largest_float else value)

    return inline(convert)


def _element(row: ElementType) -> Any:
    """float32 -> the nearest value of the element type, saturated."""
    nearest = codecs.nearest(row)
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
