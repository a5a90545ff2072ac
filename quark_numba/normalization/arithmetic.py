"""What becomes of sums and of one element: in float32, each step rounded once, to nearest and to even, but where it says so."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiling import jit
from ..compiling.intrinsics import HAS_FMA, fma

_u32, _f32 = np.uint32, np.float32
_ONE, _HALF_LESS_ONE, _SHIFT, _UPPER = _u32(1), _u32(0x7FFF), _u32(16), _u32(0xFFFF0000)
_EXPONENT_SHIFT, _EXPONENT_MASK, _SIGN_AND_EXPONENT = _u32(23), _u32(0xFF), _u32(0xFF800000)


@jit.inline
def to_bfloat16(value: Any) -> Any:
    """The nearest bfloat16, as float32: ties to even, Inf beyond the largest. NaN is no special case, as it is for
    ``codecs.rounder``: the carry may take it to Inf, or from 0x7FFF8000 on into the sign, which leaves a zero."""
    bits = _f32(value).view(_u32)
    up = _u32(_u32(_u32(bits >> _SHIFT) & _ONE) + _HALF_LESS_ONE)
    return _u32(_u32(bits + up) & _UPPER).view(_f32)


def _add_square(total: Any, value: Any) -> Any:
    """float32 of the float64 sum ``total + value * value``. The square of a bfloat16 is exact there."""
    return _f32(np.float64(total) + np.float64(value) * np.float64(value))


def _fused_add_square(total: Any, value: Any) -> Any:
    """The same. The float64 sum is exact, or one operand is less than a 2**28th of the other: then it lies off any tie of
    float32, as the larger has at most 24 bits. So rounding it a second time gives what rounding once does."""
    return fma(value, value, total)


add_square = jit.inline(_fused_add_square if HAS_FMA else _add_square)


@jit.inline
def _exponent(value: Any) -> Any:
    """The biased one."""
    return _u32(_u32(_f32(value).view(_u32) >> _EXPONENT_SHIFT) & _EXPONENT_MASK)


@jit.inline
def _align(value: Any, exponent: Any) -> Any:
    """`value` on the grid of its sum with two to the power of a biased exponent, which has its sign. The pattern of that
    power is reckoned modulo 2**32: exponents above 255 change its sign."""
    bits = _f32(value).view(_u32)
    away = _u32(_u32(exponent - _exponent(value)) << _EXPONENT_SHIFT)
    power = _u32(_u32(bits & _SIGN_AND_EXPONENT) + away).view(_f32)
    return _f32(_f32(value + power) - power)


@jit.inline
def _product_exponent(a: Any, b: Any) -> Any:
    """The biased one of a * b, or one less; 0 if it is below."""
    exponent = _u32(_exponent(a) + _exponent(b))
    return _u32(exponent - _u32(127)) if exponent > _u32(127) else _u32(0)


@jit.inline
def _multiply_add(a: Any, b: Any, term: Any) -> Any:
    """term + a * b, in their common exponent."""
    product = _f32(a * b)
    exponent = max(_product_exponent(a, b), _exponent(term))
    return _f32(_align(term, exponent) + _align(product, exponent))


@jit.function
def minus_square(mean: Any, mean_of_squares: Any) -> Any:
    """mean_of_squares - mean * mean, of a unit that multiplies bfloat16 and adds in a common exponent: mean is split into
    three, and the products of these are added, the smallest first."""
    high = to_bfloat16(mean)
    rest = _f32(mean - high)
    middle = to_bfloat16(rest)
    low = to_bfloat16(_f32(rest - middle))
    total = _f32(low * -low)
    total = _multiply_add(low, -middle, total)
    total = _multiply_add(middle, -low, total)
    total = _multiply_add(high, -low, total)
    total = _multiply_add(middle, -middle, total)
    total = _multiply_add(low, -high, total)
    total = _multiply_add(middle, -high, total)
    total = _multiply_add(high, -middle, total)
    product = _f32(high * -high)
    exponent = max(max(_product_exponent(high, high), _exponent(total)), _exponent(mean_of_squares))
    return _f32(_f32(_align(total, exponent) + _align(mean_of_squares, exponent)) + _align(product, exponent))


@jit.function
def inverse_root(variance: Any) -> Any:
    """The bfloat16 of the float32 power -1/2, which C's powf gives; tried with every float32 that is not negative. -0 and -Inf
    are as there: Inf and 0."""
    if variance == 0:
        return _f32(np.inf)
    if variance == -np.inf:
        return _f32(0)
    return to_bfloat16(_f32(np.float64(1) / np.sqrt(np.float64(variance))))


@jit.inline
def normalized(value: Any, inverse: Any, center: Any, scale: Any, bias: Any) -> Any:
    """y of an element, each step rounded to bfloat16, but the product with the scale."""
    centered = to_bfloat16(_f32(to_bfloat16(_f32(to_bfloat16(value) * inverse)) - center))
    return to_bfloat16(_f32(_f32(scale * centered) + bias))
