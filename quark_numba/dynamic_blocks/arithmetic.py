"""The arithmetic of a block's scale and of one element: scalar functions for a key, which are compiled into its kernel.

Every operation is rounded to float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiling.jit import inline
from ..element_types import codecs
from ..linear import exponents
from .key import NVFP4, Key

_u32, _f32 = np.uint32, np.float32

_MAGNITUDE, _INFINITY = _u32(0x7FFFFFFF), _u32(0x7F800000)


def functions(key: Key) -> dict[str, Any]:
    """Return the functions of the templates in ``kernels``, by their names there."""
    code_of, factor_of = (_nvfp4_code, _nvfp4_factor) if key.format is NVFP4 else (_mxfp8_code, _mxfp8_factor)
    return {
        "magnitude_of": _magnitude_of(key),
        "code_of": code_of(key),
        "factor_of": factor_of(key),
        "convert": _converter(key),
    }


def _magnitude_of(key: Key) -> Any:
    """Return the function: x as stored -> the bits of its magnitude. They compare like magnitudes, and NaN is above all."""
    value_of = codecs.decoder(key.x)
    return inline(lambda x: _u32(_f32(value_of(x)).view(_u32) & _MAGNITUDE))


def _nvfp4_code(key: Key) -> Any:
    """Return the function: (the bits of a block's largest magnitude, the scale of the tensor) -> the code of the block's scale.

    The largest magnitude becomes 6, the largest float4e2m1. A scale that would be 0 is 1. NaN has no sign, whichever the
    processor gives to 0 / 0."""
    encode = codecs.encoder(key.format.scales, saturate=True)
    lowest, most, one = _f32(2.0**-9), _f32(key.format.scales.highest), _f32(1)
    largest_code = _f32(key.format.codes.highest)

    def code_of(largest: Any, tensor_scale: Any) -> Any:
        scale = _f32(_u32(largest).view(_f32) / _f32(largest_code * tensor_scale))
        scale = one if scale == _f32(0) else scale
        scale = lowest if scale < lowest else scale
        scale = most if scale > most else scale
        return encode(abs(scale))

    return inline(code_of)


def _nvfp4_factor(key: Key) -> Any:
    """Return the function: (the code of a block's scale, the scale of the tensor) -> the value of the code 1."""
    decode = codecs.decoder(key.format.scales)
    return inline(lambda code, tensor_scale: _f32(decode(code) * tensor_scale))


def _mxfp8_code(key: Key) -> Any:
    """Return the function: (the bits of a block's largest magnitude, any number) -> the biased exponent of the block.

    The exponent e is the least one with largest / 448 <= 2**e, from -127 to 127. It is -127 for a block of zeros. NaN gives
    255. The quotient's rounding is above a power of two if the quotient is."""
    highest = _f32(key.format.codes.highest)
    exponent, mantissa, half = _u32(23), _u32(0x7FFFFF), _u32(0x400000)

    def code_of(largest: Any, tensor_scale: Any) -> Any:
        bits = _f32(_u32(largest).view(_f32) / highest).view(_u32)
        # A subnormal number is above 2**-127, which has the biased exponent 0, if it is above the half of 2**-126.
        limit = _u32(0) if bits > mantissa else half
        biased = _u32(_u32(bits >> exponent) + (_u32(1) if _u32(bits & mantissa) > limit else _u32(0)))
        return np.uint8(_u32(255) if largest > _INFINITY else min(biased, _u32(254)))

    return inline(code_of)


def _mxfp8_factor(key: Key) -> Any:
    """Return the function: (the biased exponent of a block, any number) -> the value of the code 1; 255 is NaN."""

    return inline(lambda code, tensor_scale: exponents.value_of(code))


def _converter(key: Key) -> Any:
    """Return the function: (x as stored, the value of the code 1) -> the code, or in a round trip its value as stored."""
    value_of, codes = codecs.decoder(key.x), key.format.codes
    if not key.is_round_trip:
        encode = codecs.encoder(codes, saturate=True)
        return inline(lambda x, factor: encode(_f32(_f32(value_of(x)) / factor)))
    nearest, store, has_nan = codecs.nearest(codes), codecs.encoder(key.x, saturate=False), codes.has_nan
    lowest, highest = _f32(codes.lowest), _f32(codes.highest)

    def convert(x: Any, factor: Any) -> Any:
        quotient = _f32(_f32(value_of(x)) / factor)
        bounded = (
            quotient if quotient < highest or (has_nan and quotient != quotient) else highest
        )  # also NaN, if there is none
        bounded = lowest if bounded < lowest else bounded
        return store(_f32(nearest(bounded) * factor))

    return inline(convert)
