"""The arithmetic of one element, and of the numbers that all elements of a format share, for each form: rounding modes,
clamping, and which parameters are valid.

``preparer`` turns the parameters of a form, as float64, into the numbers that ``converter`` takes. The numbers are float32, or
float64 for a form in double precision. Each written operation is rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..compiling.jit import expand, inline
from ..element_types import BFLOAT16, FLOAT16
from ..element_types.codecs import rounder, upper_bits_rounder
from .key import MAX_BITS, Key

_f32, _f64 = np.float32, np.float64
_INF = _f32(np.inf)
_LARGEST = _f64(np.finfo(np.float32).max)


@functools.cache
def preparer(key: Key) -> Any:
    """Return the function (*parameters) -> (whether they are valid, the numbers)."""
    return inline(_FUNCTIONS[key.form][0])


@functools.cache
def converter(key: Key) -> Any:
    """Return the function of a key, from x and the numbers of its format to y."""
    convert, rounded = expand(_FUNCTIONS[key.form][1]), _ROUNDED[key.rounding_mode]
    return inline(lambda x, numbers: convert(x, numbers, rounded))


# Rounding. sign(v) * f(abs(v)) is written out, because its result may be -0.


_sign = inline(lambda v: _f32(1) if v > _f32(0) else _f32(-1) if v < _f32(0) else v if v != v else _f32(0))

_ROUNDED: dict[str, Any] = {
    "ROUND": inline(lambda v: np.rint(v)),
    "CEIL": inline(lambda v: np.ceil(v)),
    "FLOOR": inline(lambda v: np.floor(v)),
    "DOWN": inline(lambda v: np.trunc(v)),
    "UP": inline(lambda v: _f32(_sign(v) * np.ceil(abs(v)))),
    "HALF_UP": inline(lambda v: _f32(_sign(v) * np.floor(_f32(abs(v) + _f32(0.5))))),
    "HALF_DOWN": inline(lambda v: _f32(_sign(v) * np.ceil(_f32(abs(v) - _f32(0.5))))),
}


@inline
def _clamp(v: Any, low: Any, high: Any) -> Any:
    """Return v clamped to two bounds. NaN and -0 stay."""
    v = low if v < low else v
    return high if v > high else v


# Numbers that elements share.


@inline
def _power(exponent: Any) -> Any:
    """Return 2 ** exponent, for a whole number from -1022 to 1023."""
    return np.int64((np.int64(exponent) + np.int64(1023)) << np.int64(52)).view(np.float64)


_whole = inline(lambda number, least, most: least <= number <= most and number == np.floor(number))


@inline
def _bounds(bits: Any, signed: Any, narrow: Any) -> Any:
    """Return the lowest and highest code, in float64."""
    less = _f64(1) if narrow != 0 else _f64(0)
    if signed != 0:
        half = _power(bits - 1)
        return less - half, half - 1
    return _f64(0), _power(bits) - 1 - less


def _prepare_integer(scale: Any, zero_point: Any, bits: Any, signed: Any, narrow: Any) -> Any:
    """Return (whether the parameters are valid, the numbers for `_integer`). One bit with a sign has the codes -1 and 1: then
    the first bound is the higher one, which is so in no other format."""
    is_valid = _whole(bits, 1, MAX_BITS)
    low, high = _bounds(bits if is_valid else _f64(8), signed, narrow)
    if bits == 1 and signed != 0:
        low, high = _f64(1), _f64(-1)
    return is_valid, (_f32(scale), _f32(zero_point), _f32(low), _f32(high))


def _integer(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return (round(clamp(x / scale + zero_point)) - zero_point) * scale (QONNX, Quant-1)."""
    scale, zero_point, low, high = numbers
    v = _f32(_f32(x / scale) + zero_point)
    two_levels = low if v >= _f32(0) else high
    code = two_levels if low > high else rounded(_clamp(v, low, high))
    return _f32(_f32(code - zero_point) * scale)


def _codes(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return what QuantizeLinear, Clip and DequantizeLinear of ONNX return. `low` and `high` are the bounds of Clip, less the
    zero point. NaN becomes the lowest code, and a code has no -0."""
    scale, low, high = numbers
    code = rounded(_f32(x / scale))
    code = code if code > low else low  # also NaN
    code = code if code < high else high
    return _f32(_f32(code + _f32(0)) * scale)


def _bipolar(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return scale where x >= 0, else -scale, also for NaN (QONNX, BipolarQuant-1)."""
    (scale,) = numbers
    return scale if x >= _f32(0) else -scale


def _prepare_truncation(
    scale: Any, zero_point: Any, in_bits: Any, out_scale: Any, out_bits: Any, signed: Any, narrow: Any
) -> Any:
    """Return (whether the parameters are valid, the numbers for `_truncation`). An `out_scale` of NaN stands for version 1:
    there the bits tell how many binary places are dropped, and no code is clamped."""
    is_valid = _whole(in_bits, 1, MAX_BITS) and _whole(out_bits, 1, MAX_BITS)
    low, high = _bounds(out_bits if is_valid else _f64(8), signed, narrow)
    places = in_bits - out_bits if is_valid else _f64(0)
    scale, zero_point = _f32(scale), _f32(zero_point)
    if out_scale != out_scale:
        return is_valid, (scale, zero_point, _f32(_power(places)), -_INF, _INF, zero_point, scale)
    step = _f32(_power(_nearest_exponent(_f64(out_scale) / _f64(scale))))
    return is_valid, (scale, zero_point, step, _f32(low), _f32(high), _f32(zero_point / step), _f32(out_scale))


# The float64 above the square root of 2; the one below it has a logarithm below 1/2.
_ROOT = 1.4142135623730951


@inline
def _nearest_exponent(ratio: Any) -> Any:
    """Return rint(log2(ratio)), for a positive ratio, and any number for another one."""
    bits = np.float64(ratio).view(np.int64)
    exponent = np.int64((bits >> np.int64(52)) & np.int64(2047)) - np.int64(1023)
    exponent = min(max(exponent, np.int64(-1022)), np.int64(1022))
    mantissa = np.int64((bits & np.int64(2**52 - 1)) | np.int64(1023 << 52)).view(np.float64)
    return exponent + (np.int64(1) if mantissa >= _ROOT else np.int64(0))


def _truncation(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return (round(clamp(rint(x / scale + zero_point) / step)) - new zero point) * new scale (QONNX, Trunc-1 and Trunc-2)."""
    scale, zero_point, step, low, high, out_zero_point, out_scale = numbers
    v = _f32(np.rint(_f32(_f32(x / scale) + zero_point)) / step)
    return _f32(_f32(rounded(_clamp(v, low, high)) - out_zero_point) * out_scale)


def _prepare_minifloat(
    scale: Any, exponent_bits: Any, mantissa_bits: Any, bias: Any, max_val: Any, has_inf: Any, has_nan: Any, saturation: Any
) -> Any:
    is_valid = (
        _whole(exponent_bits, 1, 8)
        and _whole(mantissa_bits, 0, 23)
        and _whole(1 - bias - mantissa_bits, -149, 127)
        and (saturation != 0 or has_inf != 0 or has_nan != 0)
    )
    bits, places, offset = (exponent_bits, mantissa_bits, bias) if is_valid else (_f64(4), _f64(3), _f64(7))
    largest = (2 - _power(-places)) * _power(_power(bits) - 1 - offset)
    top = largest if largest < max_val else max_val
    beyond = top if saturation != 0 else _f64(np.inf) if has_inf != 0 else _f64(np.nan)
    # With 8 exponent bits `top` may be more than float32 has. Then only a quotient that rounding takes to Inf is beyond it.
    highest = top if top < _LARGEST else _LARGEST
    return is_valid, (_f32(scale), _f32(places), _f32(1 - offset - places), _f32(highest), _f32(beyond * _f64(_f32(scale))))


def _minifloat(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return scale * the value of a float format with subnormals that is next to v = x / scale (QONNX, FloatQuant-1).

    The step between values at v is 2 ** k. Here k + 127 is the exponent of a normal float32, or k + 149 the place of the bit of
    a subnormal one. The sum takes the exponent of v, except for a v of less than 2 ** -126, whose exponent field would be 0."""
    scale, mantissa_bits, least, top, y_beyond = numbers
    v = _f32(x / scale)
    magnitude = abs(v)
    exponent = np.int32(_f32(magnitude + _f32(2.0**-126)).view(np.int32) >> np.int32(23)) - np.int32(127)
    wanted, lowest = np.int32(exponent - np.int32(mantissa_bits)), np.int32(least)
    k = wanted if wanted > lowest else lowest
    normal = np.int32(np.int32(k + np.int32(127)) << np.int32(23))
    subnormal = np.int32(np.int32(1) << np.int32(np.int32(k + np.int32(149)) & np.int32(31)))
    step = np.int32(normal if k >= np.int32(-126) else subnormal).view(np.float32)
    nearest = _f32(step * rounded(_f32(v / step)))
    at_end = y_beyond if nearest > _f32(0) else _f32(-y_beyond)
    y = at_end if abs(nearest) > top else _f32(nearest * scale)
    return y if magnitude < _INF else _f32(np.nan)


def _prepare_threshold(threshold: Any, bits: Any, signed: Any) -> Any:
    is_valid = threshold > 0 and _whole(bits, 1, MAX_BITS)
    bits = bits if is_valid else _f64(8)
    scale = threshold / (_power(bits - 1) if signed != 0 else _power(bits))
    low = -threshold if signed != 0 else _f64(0)
    return is_valid, (_f32(scale), _f32(low), _f32(threshold - scale))


def _of_clamped(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return rint(clamp(x) / scale) * scale (Model Compression Toolkit)."""
    scale, low, high = numbers
    return _f32(rounded(_f32(_clamp(x, low, high) / scale)) * scale)


@inline
def _range(number: Any, least: Any, most: Any, bits: Any) -> Any:
    """Return the step and the bounds of a grid with 2 ** bits values that holds 0. `number` is the float type to compute in."""
    last = number(_power(bits) - 1)
    step = number(number(most - least) / last)
    low = number(step * np.rint(number(least / step)))
    high = number(number(most - least) + low)
    if least > 0:
        low, high = number(0), most
    elif most < 0:
        low, high = least, number(0)
    low, high = low if low < 0 else number(0), high if high > 0 else number(0)  # never -0
    return number(number(high - low) / last), low, high


def _prepare_range(least: Any, most: Any, bits: Any) -> Any:
    is_valid = least < most and _whole(bits, 1, MAX_BITS)
    return is_valid, _range(_f32, _f32(least), _f32(most), bits if is_valid else _f64(8))


def _prepare_levels(input_low: Any, input_high: Any, output_low: Any, output_high: Any, levels: Any) -> Any:
    low, high, y_low, y_high = _f32(input_low), _f32(input_high), _f32(output_low), _f32(output_high)
    least, most = high if high < low else low, high if low < high else low
    is_valid = levels >= 2 and levels == np.floor(levels)
    return is_valid, (least, most, low, _f32(high - low), _f32(levels - 1), y_low, y_high, _f32(y_high - y_low))


def _levels(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return round((x - input_low) / (input_high - input_low) * (levels - 1)) / (levels - 1) * (output_high - output_low) +
    output_low, computed from left to right; output_low where x <= both input limits, and output_high where it is > both
    (OpenVINO, FakeQuantize-1). Halves go to even, as in the reference of OpenVINO."""
    least, most, low, width, last, y_low, y_high, y_width = numbers
    code = rounded(_f32(_f32(_f32(x - low) / width) * last))
    y = _f32(_f32(_f32(code / last) * y_width) + y_low)
    return y_low if x <= least else y_high if x > most else y


def _prepare_offset_range(least: Any, most: Any, bits: Any) -> Any:
    is_valid = least < most and _whole(bits, 1, MAX_BITS)
    return is_valid, _range(_f64, least, most, bits if is_valid else _f64(8))


def _offset(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return step * rint((clamp(x) - low) / step) + low, in float64, and rounded to float32 at the end (Model Compression
    Toolkit, ActivationUniformQuantizer with numpy 2)."""
    step, low, high = numbers
    return _f32(step * rounded((_clamp(_f64(x), low, high) - low) / step) + low)


_float16_value, _bfloat16_value = rounder(FLOAT16), upper_bits_rounder(BFLOAT16)


def _float16(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return x after a Cast to float16 and back (ONNX, Cast-13): the nearest value, ties to even, Inf beyond the largest."""
    return _float16_value(x)


def _bfloat16(x: Any, numbers: Any, rounded: Any) -> Any:
    """Return x after a Cast to bfloat16 and back, as `_float16`. Every NaN becomes the quiet one with its sign."""
    return _bfloat16_value(x) if x == x else np.copysign(_f32(np.nan), x)


# By form: what `preparer` compiles, and what `converter` does with the function of a rounding mode.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "integer": (_prepare_integer, _integer),
    "codes": (lambda scale, low, high: (True, (_f32(scale), _f32(low), _f32(high))), _codes),
    "bipolar": (lambda scale: (True, (_f32(scale),)), _bipolar),
    "truncation": (_prepare_truncation, _truncation),
    "minifloat": (_prepare_minifloat, _minifloat),
    "threshold": (_prepare_threshold, _of_clamped),
    "range": (_prepare_range, _of_clamped),
    "levels": (_prepare_levels, _levels),
    "offset range": (_prepare_offset_range, _offset),
    "float16": (lambda: (True, ()), _float16),
    "bfloat16": (lambda: (True, ()), _bfloat16),
}
