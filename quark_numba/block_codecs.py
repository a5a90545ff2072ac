"""Scalar arithmetic of block formats, made for a key as small compiled functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import codecs
from .block_formats import BlockKey
from .element_types import BFLOAT16, ElementType
from .jit import inline

_LARGEST = np.finfo(np.float32).max


def functions(key: BlockKey) -> dict[str, Any]:
    """By the names that the templates of ``block_kernels`` have for them."""
    return {"exponent_of": _exponent_of(key), "step_of": _step_of, "convert": _converter(key)}


def _value_of(key: BlockKey) -> Any:
    """x as stored -> float32."""
    decode = codecs.decoder(key.x)
    if not key.via_bfloat16:
        return decode
    via = codecs.rounder(BFLOAT16)
    return inline(lambda x: via(decode(x)))


def _exponent_of(key: BlockKey) -> Any:
    """x as stored -> its biased exponent; that of Inf and NaN is 0 unless they spread."""
    value_of, u32, f32 = _value_of(key), np.uint32, np.float32
    place, mask, special, zero = u32(23), u32(0xFF), u32(0xFF), u32(0)
    spreads = key.is_prime

    def exponent_of(x: Any) -> Any:
        exponent = u32(u32(f32(value_of(x)).view(u32) >> place) & mask)
        if spreads:
            return exponent
        return zero if exponent == special else exponent

    return inline(exponent_of)


@inline
def _step_of(shared: Any, largest: Any, max_shift: Any, drop: Any) -> Any:
    """2**(exponent - drop), for the biased exponents of a block and of a sub-block in it. Subnormal float32 go down to
    2**-149, steps to 2**(-127 - 15). NaN for a block of Inf or NaN."""
    u32, i32 = np.uint32, np.int32
    shift = min(u32(shared - largest), max_shift)
    biased = i32(i32(u32(shared - shift)) - drop)
    normal = u32(u32(max(biased, i32(0))) << u32(23))
    subnormal = u32(u32(1 << 22) >> u32(max(i32(-biased), i32(0))))
    bits = normal if biased > i32(0) else subnormal
    return u32(u32(0x7FC00000) if shared == u32(0xFF) else bits).view(np.float32)


def _converter(key: BlockKey) -> Any:
    """(x as stored, step, what `block_kernels.rounding_of` gives) -> y as stored.

    The quotient is exact, as a step is a power of two: where it would underflow it is too small to matter. So is the product,
    a whole number or a float of few bits times the step. Zero is not divided: a step that is subnormal is zero too on a thread
    that flushes such (``session.set_denormal_as_zero``).
    """
    value_of, encode = _value_of(key), codecs.encoder(key.x, saturate=False)
    is_prime, largest_float, smallest_normal = key.is_prime, _LARGEST, np.float32(2.0**-126)
    multiple = _element_rounder(key.element) if key.element else _whole

    def convert(x: Any, step: Any, rounding: Any) -> Any:
        value = value_of(x)
        magnitude = abs(value)
        if is_prime:
            value = np.copysign(np.float32(0), value) if magnitude < smallest_normal else value
            magnitude = abs(value)
        quotient = np.float32(value / step) if magnitude > np.float32(0) else value
        y = np.float32(multiple(quotient, rounding) * step)
        if is_prime:
            return encode(y)
        return encode(y if magnitude <= largest_float else value)

    return inline(convert)


def _element_rounder(row: ElementType) -> Any:
    """float32 -> the nearest value of the element type, saturated."""
    encode, decode = codecs.encoder(row, saturate=True), codecs.decoder(row)
    return inline(lambda quotient, rounding: decode(encode(quotient)))


@inline
def _whole(quotient: Any, rounding: Any) -> Any:
    """float32 -> the nearest whole number, saturated; NaN stays. A result of zero has the quotient's sign if the range is
    symmetric, as that of sign and magnitude, which has -0; two's complement has none.

    What is left after rounding half to even is exact. Where it is half a unit in the direction in which halves go, the next
    number there is to be taken; that direction has the quotient's sign, or is upward.
    """
    f32, u32 = np.float32, np.uint32
    lowest, highest, half, sign = rounding
    number = np.rint(quotient)
    way = u32(f32(quotient).view(u32) & sign)
    towards = u32(way | f32(half).view(u32)).view(f32)
    one = u32(way | f32(1).view(u32)).view(f32)
    number = f32(number + one) if f32(quotient - number) == towards else number
    number = lowest if number < lowest else number
    number = highest if number > highest else number
    return number if lowest == -highest else f32(number + f32(0))
