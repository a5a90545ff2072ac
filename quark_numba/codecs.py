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
    if row.is_integer:
        wide = _wide(row)
        return inline(lambda code: wide(code))
    return {"float32": _same, "float16": _float16_value, "bfloat16": _bfloat16_value}[row.name]


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
        # Saturating before rounding is saturating after it: what lies between the largest finite value and the next
        # power of two would round to one of the two, and both saturate to the former.
        bits = {"float16": intrinsics.float16_bits, "bfloat16": _bfloat16_bits}[row.name]

        def encode(value: Any) -> Any:
            value = lowest if value < lowest else value  # NaN stays
            return bits(highest if value > highest else value)

    return inline(encode)


@inline
def _same(value: Any) -> Any:
    return value


@inline
def _rint(value: Any) -> Any:
    return np.rint(value)


@inline
def _float16_value(code: Any) -> Any:
    return intrinsics.float16_value(code)


@inline
def _bfloat16_value(code: Any) -> Any:
    return np.uint32(np.uint32(code) << np.uint32(16)).view(np.float32)


@inline
def _bfloat16_bits(value: Any) -> Any:
    """A bfloat16 is the upper half of a float32. Adding 0x7FFF, and 1 more if the upper half is odd, carries into it
    exactly when the lower half is above a half, or is a half and the upper half is odd. A NaN, whose payload may lie in
    the lower half alone, is kept one by setting its quiet bit instead."""
    bits = np.float32(value).view(np.uint32)
    upper = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded if value == value else upper | np.uint32(0x40))
