"""The computations of the family in the standard operators of ONNX, and the reasons why a node has no such form, such as
numbers that would be rounded twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration.meaning import Affine, AnyOperand, Dequantize, Quantize
from ..declaration.reasons import NotRewrittenError, require, stays_if
from ..declaration.schema import Shape
from ..declaration.standard_arithmetic import least_step, nearest, saturated
from ..declaration.standard_form import Builder, Given, int64s, is_constant, one
from ..element_types import FLOAT8E8M0, FLOAT32, FLOAT64, INT32, UINT8, ElementType
from ..element_types.operands import INT64

# The limit of a quotient before it becomes an int64: beyond all 32-bit codes for all zero points, and a float32.
_LARGE = 2.0**34


def write(op: Builder[AnyOperand], meaning: Affine[AnyOperand]) -> AnyOperand:
    """Write the nodes of a meaning, and return their output. Raise NotRewrittenError."""
    known = meaning.element_type or (meaning.x.element_type if isinstance(meaning, Dequantize) else None)
    codes = require(known, "the type of its codes is not known")
    if isinstance(meaning, Dequantize):
        return _dequantize(op, meaning, codes)
    if isinstance(meaning, Quantize):
        return _quantize(op, meaning, codes)
    return _round_trip(op, meaning, codes)


def _round_trip(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return y = (code - zero point) * scale. The zero point of integers cancels: the code less the zero point is the rounded
    quotient, clipped to the bounds less the zero point (see ``arithmetic._integer_multiple``)."""
    scale = _parameter(op, meaning, meaning.scale, FLOAT32)
    if not codes.is_integer:
        code = _code_as_float32(op, meaning, codes)
        zero_point = _zero_point(op, meaning, FLOAT32)
        return op.product(code if zero_point is None else op("Sub", code, zero_point), scale)
    q = _within(op, op("Round", _quotient(op, meaning, FLOAT32)), meaning, codes)
    if not op.signs_of_zeros_matter:
        return op.product(q, scale)
    if isinstance(scale, np.ndarray) and bool(np.all(scale > 0)):
        return op("Sub", 0.0, op("Mul", q, -scale))  # 0 - -0 is 0
    return op.product(op.with_positive_zero(q), scale)


def _quantize(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return code = saturate(round(x / scale) + zero point)."""
    if not codes.is_integer:
        return _float_code(op, meaning, codes)
    precision = _precision(meaning)
    q = op("Round", _quotient(op, meaning, precision))
    if codes.bits > 16:
        return _large_code(op, q, meaning, codes)
    q = _within(op, q, meaning, codes)
    zero_point = _zero_point(op, meaning, FLOAT64 if precision is FLOAT64 else FLOAT32)
    return op.cast(q if zero_point is None else op("Add", q, zero_point), codes)


def _large_code(op: Builder[AnyOperand], q: AnyOperand, meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return the code of 32 bits for a rounded quotient, computed in int64."""
    q = op.clip(op.without_nan(q, _number(q, -_LARGE)), _number(q, -_LARGE), _number(q, _LARGE))
    code, zero_point = op.cast(q, INT64), _zero_point(op, meaning, INT64)
    code = code if zero_point is None else op("Add", code, zero_point)
    lowest, highest = int64s(int(codes.lowest), int(codes.highest))
    return op.cast(op("Min", op("Max", code, lowest), highest), codes)


def _within(op: Builder[AnyOperand], q: AnyOperand, meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return a rounded quotient, clipped to the range of the codes less the zero point; NaN becomes the lowest value. Bounds
    that float32 does not hold are rounded. That changes nothing, because the quotient is a float32 and rounding keeps the
    order."""
    lowest, highest = int64s(int(codes.lowest), int(codes.highest))
    dtype = FLOAT64 if q.element_type is FLOAT64 else FLOAT32
    zero_point = _zero_point(op, meaning, INT64)
    if zero_point is None or isinstance(zero_point, np.ndarray):
        zeros = int64s(0)[0] if zero_point is None else zero_point
        low, high = (one((bound - zeros).astype(dtype.dtype)) for bound in (lowest, highest))
        return op.clip(op.without_nan(q, low), low, high)
    least, most = (op.cast(op("Sub", bound, zero_point), dtype) for bound in (lowest, highest))
    return op("Min", op("Max", op.without_nan(q, least), least), most)


def _float_code(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return code = saturate(x / scale + zero point), a code of a float type. NaN stays; -0 + 0 is 0."""
    v = _sum(op, meaning, codes)
    return op.cast(v, codes) if _saturates(meaning, codes) else op.cast(_with_overflow(op, v, v, codes), codes, saturate=0)


def _code_as_float32(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return the value of a code of a float type. Types of 8 bits and less need no Cast, which many opsets and execution
    providers lack."""
    if op.is_for_webgpu and _saturates(meaning, codes):
        v, zero_point = _quotient(op, meaning, FLOAT32), _zero_point(op, meaning, FLOAT32)
        v = _without_nan(op, v if zero_point is None else op.plus(v, zero_point), codes)
        return saturated(op, v, codes)
    if codes.bits > 8:
        return op.cast(_float_code(op, meaning, codes), FLOAT32)
    v = _without_nan(op, _sum(op, meaning, codes), codes)
    y = nearest(op, v, codes)
    return y if _saturates(meaning, codes) else _with_overflow(op, v, y, codes)


def _without_nan(op: Builder[AnyOperand], v: AnyOperand, codes: ElementType) -> AnyOperand:
    """Return v with NaN replaced by a number that is rounded to the code of NaN in a type without NaN."""
    if codes.nan_substitute is None:
        return v
    return op.without_nan(v, codes.code_values[codes.nan_substitute] or -least_step(codes) / 4)  # -0 might become 0


def _saturates(meaning: Affine[AnyOperand], codes: ElementType) -> bool:
    return meaning.saturate or codes.bits != 8


def _sum(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return x / scale + zero point, which may be saturated already."""
    precision = _precision(meaning)
    if precision is FLOAT64:
        raise NotRewrittenError(f"a float64 would be rounded to {codes.name} twice")
    zero_point, v = _zero_point(op, meaning, FLOAT32), _quotient(op, meaning, precision)
    is_limited, bounds = codes.bits > 8 or _saturates(meaning, codes), (float(codes.lowest), float(codes.highest))
    if zero_point is None:  # the bounds come first, because ONNX Runtime fuses them with a preceding Conv
        v = op.clip(v, *bounds) if is_limited else v
        return op.with_positive_zero(v) if op.signs_of_zeros_matter else v
    v = op.plus(v, zero_point)
    return op.clip(v, *bounds) if is_limited else v


def _with_overflow(op: Builder[AnyOperand], v: AnyOperand, y: AnyOperand, codes: ElementType) -> AnyOperand:
    """Return y with Inf, or NaN for a type without Inf, where v is rounded beyond the largest value of the type. Without
    saturation, the Cast of ONNX Runtime 1.32 turns 480 into 448 in float8e4m3fn, where NaN is due."""
    values = np.unique(codes.code_values[np.isfinite(codes.code_values)])
    tie = np.float32(values[-1] + (values[-1] - values[-2]) / 2)
    is_odd = np.array(codes.highest).astype(codes.dtype).view(np.uint8) % 2 == 1  # then the tie goes beyond
    beyond = tie if is_odd else np.nextafter(tie, np.float32(np.inf))
    # The Where of ONNX Runtime's CPU provider turns -0 into 0, so it chooses a factor.
    return op("Mul", y, op("Where", op("Less", op("Abs", v), beyond), 1.0, np.inf if codes.has_infinity else np.nan))


def _dequantize(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return y = (code - zero point) * scale. The difference is exact for integers, and rounded to float32."""
    if meaning.x.element_type is UINT8 and codes is not UINT8:
        raise NotRewrittenError(f"its codes, of {codes.name}, are in a tensor of uint8")
    if codes.bits < (8 if codes.is_integer else 16):  # ONNX Runtime has no Shape of these types
        meaning = replace(meaning, x=op.cast(meaning.x, FLOAT32))
    wide = INT64 if codes.is_integer and codes.bits > 16 else FLOAT32
    zero_point = _zero_point(op, meaning, wide)
    if zero_point is None:
        difference = op.cast(meaning.x, FLOAT32)
    else:
        difference = op.cast(op("Sub", op.cast(meaning.x, wide), zero_point), FLOAT32)
    y_type = meaning.computes_in or _scale_type(meaning)
    y_type = FLOAT32 if y_type is None or y_type is FLOAT8E8M0 else y_type
    return op.cast(op.product(difference, _parameter(op, meaning, meaning.scale, FLOAT32)), y_type)


def _quotient(op: Builder[AnyOperand], meaning: Affine[AnyOperand], precision: ElementType) -> AnyOperand:
    """Return x / scale in a precision, as float64 if that is the precision, or else as float32."""
    x, wide = meaning.x, FLOAT64 if precision is FLOAT64 else FLOAT32
    if precision is not wide:
        stays_if(x.element_type is INT32, f"an int32 would be rounded to {precision.name} twice")
        x, scale = op.cast(x, precision), _parameter(op, meaning, meaning.scale, precision, FLOAT32)
        return op.cast(op.cast(op("Div", op.cast(x, FLOAT32), scale), precision), FLOAT32)
    x, scale = op.cast(x, wide), _parameter(op, meaning, meaning.scale, wide)
    return op.quotient(x, scale)


def _precision(meaning: Affine[AnyOperand]) -> ElementType:
    """Return the type in which the division is done (see ``key.select``)."""
    scale = require(_scale_type(meaning), "the type of its scale is not known")
    return meaning.computes_in or {FLOAT8E8M0: FLOAT32, INT32: FLOAT64}.get(scale, scale)


def _scale_type(meaning: Affine[AnyOperand]) -> ElementType | None:
    """Return the element type of the scale. A uint8 tensor holds the exponents of powers of two."""
    scale = meaning.scale.element_type
    return FLOAT8E8M0 if scale is UINT8 else scale


def _number(q: AnyOperand, number: float) -> NDArray[Any]:
    """Return a constant in the type of a quotient."""
    return np.array(number, np.float64 if q.element_type is FLOAT64 else np.float32)


def _zero_point(op: Builder[AnyOperand], meaning: Affine[AnyOperand], to: ElementType) -> Given:
    """Return the zero point as `_parameter` does, or None if it is known to be 0."""
    given = _parameter(op, meaning, meaning.zero_point, to)
    return None if isinstance(given, np.ndarray) and not any(given.tobytes()) else given


def _parameter(op: Builder[AnyOperand], meaning: Affine[AnyOperand], operand: AnyOperand | None, *to: ElementType) -> Given:
    """Return a scale or a zero point, converted to one type after another, in a shape that broadcasts to x: an array, an
    operand, or None. A blocked one is repeated to the shape of x."""
    if operand is None:
        return None
    shape, array = op.shape(operand), operand.array
    given: Any = operand if array is None else array
    if operand is meaning.scale and operand.element_type is UINT8:
        values = FLOAT8E8M0.code_values
        given = op("Gather", values, op.cast(given, INT32), axis=0) if array is None else values[array]
    for element_type in to:
        with np.errstate(over="ignore"):
            given = op.cast(given, element_type) if array is None else given.astype(element_type.dtype)
    if shape is not None and all(length == 1 for length in shape):
        return given.reshape(()) if array is not None else op.reshape(given, ()) if shape else given
    if not meaning.block_size:
        given = op.along(given, meaning.x, meaning.axis)
        if op.shape(meaning.x) is None and (shape is None or None in shape):  # x may have no dimension
            dims = op("Shape", given)
            given = op("Reshape", given, op("Slice", dims, int64s(0), op("Shape", op("Shape", meaning.x)), int64s(0)))
        return given
    return _repeated(op, meaning, given, shape)


def _repeated(op: Builder[AnyOperand], meaning: Affine[AnyOperand], given: Given, shape: Shape | None) -> Given:
    """Return blocked scales or zero points, each repeated for the elements of its block. `shape` is their shape, as far as it
    is known."""
    x_shape, axis = op.shape(meaning.x), meaning.axis
    if x_shape is not None and shape is not None and len(shape) != len(x_shape):
        return op.reshape(given, ())  # only one for all of x is valid
    length = None if x_shape is None else x_shape[axis]
    if length is not None and shape is not None:
        block = np.arange(length) // meaning.block_size
        axis %= len(shape)
        return op("Gather", given, block, axis=axis) if not is_constant(given) else np.take(given, block, axis)
    last = op.reshape(op.length(meaning.x, axis), ())
    index = op("Div", op("Range", int64s(0)[0], last, int64s(1)[0]), int64s(meaning.block_size)[0])
    if shape is None:  # one for all of x
        given = op("Expand", given, op.ones(op("Shape", meaning.x)))
        index = op("Min", index, op("Sub", op.length(given, axis), int64s(1)))
    return op("Gather", given, index, axis=axis)
