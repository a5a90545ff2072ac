"""The arithmetic of one element: a scalar function of float32 values for each step, those of Clip, Cast and round trips among
them; most others are in ``step_operators``."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..compiling.intrinsics import HAS_FMA, fma
from ..compiling.jit import inline
from ..element_types import BFLOAT16, FLOAT16, FLOAT32, ElementType
from ..element_types.codecs import decoder, nearest, rounder, upper_bits_rounder
from ..fake_quantization.arithmetic import converter as fake_converter
from ..linear.arithmetic import converter, has_reciprocal, reciprocal_converter
from ..linear.key import Key, select
from .activations import fma_in_float64, formulas
from .key import Input, Program, Step
from .step_operators import CAST, FAKE_QUANTIZE, ROUND_TRIP, STEP_OPERATORS

_f32 = np.float32


_clip_below = inline(lambda x, lowest: lowest if x < lowest else x)
_clip_above = inline(lambda x, highest: highest if x > highest else x)
_choose = inline(lambda condition, a, b: a if condition else b)
_fma = fma if HAS_FMA else inline(fma_in_float64(_choose))

# The functions of operators without attributes.
_FUNCTIONS = {
    **{name: inline(row.element) for name, row in STEP_OPERATORS.items() if row.element and not row.attributes},
    **formulas(inline, _fma, _choose),
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
    if step.operator in _FUNCTIONS:
        return _FUNCTIONS[step.operator]
    factory: Any = STEP_OPERATORS[step.operator].element
    return inline(factory(**dict(step.attributes)))  # not cached: 0 and -0 would be the same key


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
    if key.saturate and _is_float8(key.quantized):
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


def _is_float8(element_type: ElementType) -> bool:
    """Return whether a type is a float of 8 bits with -0. Each of these has NaN, too."""
    return element_type.bits == 8 and not element_type.is_integer and bool(np.signbit(element_type.dtype.type(-0.0)))


def _float8_round_trip(key: Key) -> tuple[Any, Any]:
    """Return `reciprocal_round_trip` for a float of 8 bits with -0. The function makes no codes, and takes the scale instead of
    its reciprocal. It saturates before rounding, because only a value above the largest one could round beyond it. A NaN keeps
    its sign, and becomes the value of the type's code for NaN."""
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
