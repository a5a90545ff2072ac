"""What the family computes, in ONNX's standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration.meaning import Affine, AnyOperand, Dequantize, Quantize
from ..declaration.standard_form import Builder, Given, NoStandardForm, along, int64s, is_power_of_two
from ..element_types import FLOAT8E8M0, FLOAT32, FLOAT64, INT32, UINT8, ElementType
from ..element_types.operands import INT64

# What a quotient may be limited to before it becomes an int64: beyond all 32-bit codes for all zero points, and a float32.
_LARGE = 2.0**34


def write(op: Builder[AnyOperand], meaning: Affine[AnyOperand]) -> AnyOperand:
    """Write the nodes of a meaning, and return their output. Raise NoStandardForm."""
    codes = meaning.element_type
    if codes is None:
        raise NoStandardForm("the type of its codes is not known")
    if isinstance(meaning, Dequantize):
        return _dequantize(op, meaning, codes)
    if isinstance(meaning, Quantize):
        return _quantize(op, meaning, codes)
    return _round_trip(op, meaning, codes)


def _round_trip(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """y = (code - zero point) * scale. The zero point of integers goes: the code less the zero point is the rounded quotient
    between bounds less the zero point (see ``arithmetic._integer_multiple``)."""
    scale = _parameter(op, meaning, meaning.scale)
    if not codes.is_integer:
        return _product(op, _rounded_float(op, meaning, codes), scale)
    zero_point = _parameter(op, meaning, meaning.zero_point)
    q = _within(op, op("Round", _quotient(op, meaning.x, scale, FLOAT32)), zero_point, codes)
    if isinstance(scale, np.ndarray) and bool(np.all(scale > 0)):
        return op("Sub", 0.0, op("Mul", q, -scale))  # 0 - -0 is 0
    return _product(op, op.with_positive_zero(q), scale)


def _quantize(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """code = saturate(round(x / scale) + zero point)."""
    if not codes.is_integer:
        return _float_code(op, meaning, codes)
    zero_point, precision = _parameter(op, meaning, meaning.zero_point), _precision(meaning)
    q = op("Round", _quotient(op, meaning.x, _parameter(op, meaning, meaning.scale), precision))
    if codes.bits > 16:
        return _large_code(op, q, zero_point, codes)
    q = _within(op, q, zero_point, codes)
    if zero_point is not None and not _is_zero(zero_point):
        q = op("Add", q, _in_type(op, zero_point, q.element_type or FLOAT32))
    return op.cast(q, codes)


def _large_code(op: Builder[AnyOperand], q: AnyOperand, zero_point: Given, codes: ElementType) -> AnyOperand:
    """Return the code of 32 bits for a rounded quotient, by sums of int64."""
    q = op.clip(op.without_nan(q, _number(q, -_LARGE)), _number(q, -_LARGE), _number(q, _LARGE))
    code = op.cast(q, INT64)
    if zero_point is not None and not _is_zero(zero_point):
        code = op("Add", code, _in_type(op, zero_point, INT64))
    return op.cast(op("Min", op("Max", code, int64s(int(codes.lowest))[0]), int64s(int(codes.highest))[0]), codes)


def _within(op: Builder[AnyOperand], q: AnyOperand, zero_point: Given, codes: ElementType) -> AnyOperand:
    """Return a rounded quotient within the codes less the zero point; the lowest one instead of NaN. Bounds beyond float32's
    whole numbers are rounded: the quotient is one of these, and rounding keeps the order."""
    if zero_point is None:
        zero_point = np.zeros((), codes.dtype)
    if isinstance(zero_point, np.ndarray):
        wide, dtype = zero_point.astype(np.float64), _dtype_of(q)
        low, high = (_one(np.asarray(bound - wide).astype(dtype)) for bound in (codes.lowest, codes.highest))
        return op.clip(op.without_nan(q, low), low, high)
    if codes.bits > 16:
        whole = op.cast(zero_point, INT64)
        differences = (op("Sub", int64s(int(bound))[0], whole) for bound in (codes.lowest, codes.highest))
        least, most = (op.cast(difference, FLOAT32) for difference in differences)
    else:
        number = _in_type(op, zero_point, q.element_type or FLOAT32)
        least, most = (op("Sub", _number(q, float(bound)), number) for bound in (codes.lowest, codes.highest))
    return op("Min", op("Max", op.without_nan(q, least), least), most)


def _rounded_float(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """Return a code of a float type less the zero point, as a float32."""
    code = op.cast(_float_code(op, meaning, codes), FLOAT32)
    zero_point = _parameter(op, meaning, meaning.zero_point)
    if zero_point is None or _is_zero(zero_point):
        return code
    return op("Sub", code, _in_type(op, zero_point, FLOAT32))


def _float_code(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """code = saturate(x / scale + zero point), a code of a float type. NaN stays; -0 + 0 is 0."""
    zero_point, precision = _parameter(op, meaning, meaning.zero_point), _precision(meaning)
    if precision is FLOAT64:
        raise NoStandardForm(f"a float64 would be rounded to {codes.name} twice")
    v = _quotient(op, meaning.x, _parameter(op, meaning, meaning.scale), precision)
    saturates = meaning.saturate or codes.bits != 8
    bounds = (float(codes.lowest), float(codes.highest))
    if zero_point is not None and not _is_zero(zero_point):
        v = op("Add", v, _in_type(op, zero_point, FLOAT32))
        v = op.clip(v, *bounds) if saturates else v
    else:  # the bounds come first, as ONNX Runtime fuses them with a Conv in front of them
        v = op.with_positive_zero(op.clip(v, *bounds) if saturates else v)
    return op.cast(v, codes, **({"saturate": int(saturates)} if codes.bits == 8 else {}))


def _dequantize(op: Builder[AnyOperand], meaning: Affine[AnyOperand], codes: ElementType) -> AnyOperand:
    """y = (code - zero point) * scale, the difference exact for integers, and rounded to float32."""
    if meaning.x.element_type is UINT8 and codes is not UINT8:
        raise NoStandardForm(f"its codes, of {codes.name}, are in a tensor of uint8")
    zero_point, scale = _parameter(op, meaning, meaning.zero_point), _parameter(op, meaning, meaning.scale)
    has_zero_point = zero_point is not None and not _is_zero(zero_point)
    wide = INT64 if codes.is_integer and codes.bits > 16 and has_zero_point else FLOAT32
    difference = op.cast(meaning.x, wide)
    if has_zero_point:
        difference = op.cast(op("Sub", difference, _in_type(op, zero_point, wide)), FLOAT32)
    y_type = meaning.computes_in or meaning.scale.element_type
    if y_type in (None, FLOAT8E8M0):
        y_type = FLOAT32
    assert y_type
    return op.cast(_product(op, difference, scale), y_type)


def _quotient(op: Builder[AnyOperand], x: AnyOperand, scale: Given, precision: ElementType) -> AnyOperand:
    """Return x / scale in a precision, as a float64 for that type and else as a float32."""
    if precision is FLOAT64:
        return op("Div", op.cast(x, FLOAT64), _in_type(op, scale, FLOAT64))
    if precision is not FLOAT32:
        x, scale = op.cast(op.cast(x, precision), FLOAT32), _in_type(op, _in_type(op, scale, precision), FLOAT32)
        return op.cast(op.cast(op("Div", op.cast(x, FLOAT32), scale), precision), FLOAT32)
    x, scale = op.cast(x, FLOAT32), _in_type(op, scale, FLOAT32)
    if isinstance(scale, np.ndarray) and bool(np.all(scale == 1)):
        return x
    if isinstance(scale, np.ndarray) and is_power_of_two(scale):
        return op("Mul", x, np.float32(1) / scale)
    return op("Div", x, scale)


def _product(op: Builder[AnyOperand], number: AnyOperand, scale: Given) -> AnyOperand:
    scale = _in_type(op, scale, FLOAT32)
    return number if isinstance(scale, np.ndarray) and bool(np.all(scale == 1)) else op("Mul", number, scale)


def _precision(meaning: Affine[AnyOperand]) -> ElementType:
    """Return the type in which the division is done (see ``key.select``)."""
    scale = meaning.scale.element_type
    if scale is None:
        raise NoStandardForm("the type of its scale is not known")
    return meaning.computes_in or {FLOAT8E8M0: FLOAT32, INT32: FLOAT64}.get(scale, scale)


def _dtype_of(q: AnyOperand) -> Any:
    return np.float64 if q.element_type is FLOAT64 else np.float32


def _number(q: AnyOperand, number: float) -> Any:
    """Return a constant in the type of a quotient."""
    return np.array(number, _dtype_of(q))


def _one(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of equal numbers as one number."""
    return array.reshape(-1)[0].reshape(()) if array.size and bool(np.all(array == array.reshape(-1)[0])) else array


def _is_zero(zero_point: Given) -> bool:
    return isinstance(zero_point, np.ndarray) and not any(zero_point.tobytes())


def _in_type(op: Builder[AnyOperand], given: Given, element_type: ElementType) -> Any:
    """Return a parameter in another type. A constant is rounded as numpy does it, once."""
    return given.astype(element_type.dtype) if isinstance(given, np.ndarray) else op.cast(given, element_type)


def _parameter(op: Builder[AnyOperand], meaning: Affine[AnyOperand], operand: AnyOperand | None) -> Given:
    """Return a scale or a zero point in a shape that broadcasts to x: an array, an operand, or None. One that is blocked is
    repeated to x's shape."""
    if operand is None:
        return None
    given: Any = operand if operand.array is None else operand.array
    shape = op.shape(operand)
    if shape is None:
        raise NoStandardForm("the shape of its scale is not known")
    if all(length == 1 for length in shape):
        return given.reshape(()) if isinstance(given, np.ndarray) else op.reshape(given, ()) if shape else given
    rank = op.rank(meaning.x)
    if not meaning.block_size:
        if isinstance(given, np.ndarray):
            return along(given, rank, meaning.axis)
        return op.reshape(given, (-1, *[1] * (rank - 1 - meaning.axis % rank)))
    x_shape, axis = op.shape(meaning.x), meaning.axis % rank
    length = x_shape[axis] if x_shape else None
    if length is None:
        raise NoStandardForm("the length of its x along the axis is not known")
    block = np.arange(length) // meaning.block_size
    return np.take(given, block, axis) if isinstance(given, np.ndarray) else op("Gather", given, block, axis=axis)
