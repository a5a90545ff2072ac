"""The arithmetic of one element: a scalar function of float32 values for each step.

The results have the bits of ONNX Runtime's CPU provider, NaNs included, with two exceptions: if both operands are NaN, either
one may be the result; and ONNX Runtime may compute ``activations`` otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..compiling.intrinsics import HAS_FMA, fma
from ..compiling.jit import inline
from ..element_types import BFLOAT16, FLOAT16, FLOAT32
from ..element_types.codecs import decoder, nearest, rounder, upper_bits_rounder
from ..fake_quantization.arithmetic import converter as fake_converter
from ..linear.arithmetic import converter, has_reciprocal, reciprocal_converter
from ..linear.key import Key, select
from .activations import fma_in_float64, formulas
from .key import CAST, FAKE_QUANTIZE, ROUND_TRIP, Input, Program, Step

_f32 = np.float32


@inline
def _clip_below(x: Any, lowest: Any) -> Any:
    return lowest if x < lowest else x


@inline
def _clip_above(x: Any, highest: Any) -> Any:
    return highest if x > highest else x


def _hard_sigmoid(alpha: float, beta: float) -> Any:
    a, b, zero, one = _f32(alpha), _f32(beta), _f32(0), _f32(1)
    return inline(lambda x: _clip_below(_clip_above(_f32(_f32(x * a) + b), one), zero))


_gate = _hard_sigmoid(float(_f32(1) / _f32(6)), 0.5)  # of HardSwish

# The functions of operators without attributes, except Clip.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Abs": lambda x: abs(x),
    "Add": lambda a, b: _f32(a + b),
    "Ceil": lambda x: np.ceil(x),
    "Div": lambda a, b: _f32(a / b),
    "Floor": lambda x: np.floor(x),
    "HardSwish": lambda x: _f32(x * _gate(x)),
    "Identity": lambda x: x,
    "Max": lambda a, b: a if a >= b or a != a else b,
    "Min": lambda a, b: a if a <= b or a != a else b,
    "Mul": lambda a, b: _f32(a * b),
    "Neg": lambda x: -x,
    "PRelu": lambda x, slope: x if x >= _f32(0) else _f32(x * slope),
    "Reciprocal": lambda x: _f32(_f32(1) / x),
    "Relu": lambda x: _clip_below(x, _f32(0)),
    "Sign": lambda x: _f32(1) if x > _f32(0) else _f32(-1) if x < _f32(0) else x if x != x else _f32(0),
    "Sqrt": lambda x: np.sqrt(x),
    "Sub": lambda a, b: _f32(a - b),
}


@inline
def _choose(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


_fma = fma if HAS_FMA else inline(fma_in_float64(_choose))

_PLAIN = {
    **{operator: inline(function) for operator, function in _FUNCTIONS.items()},
    **formulas(inline, _fma, _choose),
}

# For operators with attributes: (attributes of a step) -> the function of the step. These functions are not cached, because 0
# and -0 would be the same key.
_WITH_ATTRIBUTES: dict[str, Callable[..., Any]] = {
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": lambda alpha: inline(lambda x: x if x >= _f32(0) else _f32(_f32(alpha) * x)),
    "ThresholdedRelu": lambda alpha: inline(lambda x: x if x > _f32(alpha) else _f32(0)),
}


def function(step: Step, inputs: tuple[Input, ...]) -> Any:
    """Return the function of a step that does not round blocks: (operands that are present) -> value. The function of fake
    quantization takes x and the result of a `preparer` for the parameters."""
    if step.operator == ROUND_TRIP:
        return converter(round_trip_key(step, inputs))
    if step.operator == FAKE_QUANTIZE:
        return fake_converter(step.fake_key)
    if step.operator == CAST:
        return decoder(inputs[step.present[0]].element_type)
    if step.operator == "Clip":
        return _clip(*(operand is not None for operand in (*step.operands, None, None)[1:3]))
    if step.operator in _PLAIN:
        return _PLAIN[step.operator]
    return _WITH_ATTRIBUTES[step.operator](**dict(step.attributes))


@functools.cache
def _clip(has_lowest: bool, has_highest: bool) -> Any:
    """Return the function of Clip. ONNX Runtime replaces a missing bound by the lowest or highest finite float32."""
    lowest, highest = _f32(np.finfo(_f32).min), _f32(np.finfo(_f32).max)
    if has_lowest and has_highest:
        return inline(lambda x, low, high: _clip_above(_clip_below(x, low), high))
    if has_lowest:
        return inline(lambda x, low: _clip_above(_clip_below(x, low), highest))
    if has_highest:
        return inline(lambda x, high: _clip_above(_clip_below(x, lowest), high))
    return inline(lambda x: _clip_above(_clip_below(x, lowest), highest))


@functools.cache
def reciprocal_round_trip(key: Key) -> tuple[Any, Any]:
    """Return two functions for a round trip that multiplies by the reciprocal of the scale, which is faster than the round trip
    of ``linear``. The first one is (x, reciprocal, scale, zero point) -> y, or None if there is no such function. The second
    one is (scale, zero point) -> whether the first one can be used with them."""
    if key.quantized.name in _FLOAT8 and key.saturate:
        return _float8_round_trip(key)
    if key.quantized not in (BFLOAT16, FLOAT16) or not HAS_FMA:
        return reciprocal_converter(key), has_reciprocal(key)
    round_to_nearest = upper_bits_rounder(BFLOAT16) if key.quantized is BFLOAT16 else rounder(FLOAT16)
    lowest, highest = _f32(key.quantized.lowest), _f32(key.quantized.highest)

    # The sum turns -0 into 0 and makes a signalling NaN quiet. Clipping before rounding is enough to saturate: only a value
    # above the largest finite value could round beyond it.
    def round_trip(x: Any, reciprocal: Any, scale: Any, zero_point: Any) -> Any:
        return round_to_nearest(fma(_clip_above(_clip_below(x, lowest), highest), reciprocal, _f32(0)))

    def has_unit_scale(scale: Any, zero_point: Any) -> Any:
        return scale == _f32(1) and zero_point == _f32(0) and not np.signbit(zero_point)

    return inline(round_trip), inline(has_unit_scale)


# Float types of 8 bits with NaN and -0.
_FLOAT8 = ("float8e4m3fn", "float8e5m2")


def _float8_round_trip(key: Key) -> tuple[Any, Any]:
    """Return `reciprocal_round_trip` for the types of _FLOAT8. The function makes no codes, and takes the scale instead of its
    reciprocal. It saturates before rounding, because only a value above the largest one could round beyond it. A NaN keeps its
    sign, and becomes the value of the type's code for NaN."""
    round_to_nearest, highest = nearest(key.quantized), _f32(key.quantized.highest)
    decode, nan = decoder(key.quantized), key.quantized.storage.type(key.quantized.nan)

    def round_trip(x: Any, reciprocal: Any, scale: Any, zero_point: Any) -> Any:
        quotient = _f32(_f32(x / scale) + _f32(0))
        value = round_to_nearest(_clip_above(_clip_below(quotient, -highest), highest))
        return _f32((value if quotient == quotient else np.copysign(decode(nan), quotient)) * scale)

    return inline(round_trip), inline(lambda scale, zero_point: zero_point == _f32(0) and not np.signbit(zero_point))


def round_trip_key(step: Step, inputs: tuple[Input, ...]) -> Key:
    """Return the linear family's key for a step that is a round trip."""
    quantized, saturate = inputs[step.present[2]].element_type, dict(step.attributes)["saturate"] != 0
    return select("quantize_dequantize", FLOAT32, FLOAT32, quantized, FLOAT32, saturate=saturate)


def input_dtypes(program: Program) -> list[Any]:
    """Return the dtypes in which the program reads its inputs. Zero points have the dtype that the kernels of the linear family
    read, inputs of Cast have their storage dtype, and all other inputs are float32."""
    dtypes: list[Any] = [np.dtype(np.float32)] * len(program.inputs)
    for step in program.steps:
        if step.operator == CAST:
            dtypes[step.present[0]] = program.inputs[step.present[0]].element_type.storage
        if step.operator == ROUND_TRIP:
            dtypes[step.present[2]] = np.dtype(round_trip_key(step, program.inputs).zero_point_dtype)
    return dtypes
