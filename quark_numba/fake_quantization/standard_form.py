"""What the family computes, in the standard operators of ONNX, form by form, and the reasons why a node has no such form, such
as a parameter that is not constant.

The functions correspond to the functions of ``arithmetic`` by the same names, operation by operation. The numbers that they
take are those of ``arithmetic.preparer``: arrays that broadcast to x, or operands. In ONNX Runtime Clip, Min and Max keep NaN,
and Clip alone keeps -0 at a bound of 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration.meaning import AnyOperand, FakeQuantize
from ..declaration.reasons import NotRewrittenError, stays_if
from ..declaration.standard_arithmetic import last_place
from ..declaration.standard_form import Builder, Given, int64s, is_constant, one
from ..element_types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, ElementType
from .calls import prepare
from .key import FORMS, Key, select

_INF = float("inf")
_f32 = np.float32

# The parameters that need not be constants, by form, and their places among the numbers, at which they are as they are. All
# other numbers depend on the parameters without places.
_VARYING: dict[str, dict[str, tuple[int, ...]]] = {
    "integer": {"scale": (0,), "zero_point": (1,), "bit_width": ()},
    "codes": {"scale": (0,), "low": (1,), "high": (2,)},
    "bipolar": {"scale": (0,)},
    "truncation": {"scale": (0, 6), "zero_point": (1, 5)},  # without an out_scale
    "minifloat": {"scale": (0,)},
    "threshold": {"threshold": ()},
}


def write(op: Builder[AnyOperand], meaning: FakeQuantize[AnyOperand]) -> AnyOperand:
    """Write the nodes of a meaning, and return their output. Raise NotRewrittenError; ValueError if the format is not
    valid."""
    key = select(meaning.form, meaning.rounding_mode)
    if op.shape(meaning.x) is None and isinstance(meaning.axis, int) and meaning.axis >= 0:
        return op.like(write(op, _with_three_axes(op, meaning, meaning.axis)), meaning.x)
    parameters = {name: _parameter(op, meaning, name) for name in FORMS[key.form].parameters}
    if any(is_constant(each) and not each.size for each in parameters.values()):
        return op("Identity", meaning.x)  # which is empty, too
    return _FUNCTIONS[key.form](op, meaning.x, _numbers(op, key, parameters), key.rounding_mode)


def _with_three_axes(op: Builder[AnyOperand], meaning: FakeQuantize[AnyOperand], axis: int) -> FakeQuantize[AnyOperand]:
    """Return a meaning whose x, of unknown rank, has the axis of the parameters between two other axes."""
    dims, one_more = op("Shape", meaning.x), int64s(1)
    before, length, after = (op.slice(dims, 0, axis), op.slice(dims, axis, axis + 1), op.slice(dims, axis + 1))
    sizes = [op("ReduceProd", op.concat(one_more, each), keepdims=1) for each in (before, length, after)]
    x = op("Reshape", meaning.x, op.concat(*sizes), **({"allowzero": 1} if op.opset >= 14 else {}))
    return replace(meaning, x=x, axis=1)


def _numbers(op: Builder[AnyOperand], key: Key, parameters: Mapping[str, Given]) -> list[Given]:
    """Return the numbers, each as an array of one element without a shape, an array that broadcasts to x, or an operand."""
    varying = {name: parameter for name, parameter in parameters.items() if not is_constant(parameter)}
    places = _VARYING.get(key.form, {})
    if key.form == "truncation" and ("out_scale" in varying or not np.isnan(parameters["out_scale"]).all()):
        places = {}
    for name in varying:
        stays_if(name not in places, f"its {name} is not a constant")
    arrays = [np.ones((), _f32) if name in varying else parameter for name, parameter in parameters.items()]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    prepared = prepare(key, arrays, shape, {name: name for name in parameters}).reshape(-1, *shape)
    numbers: list[Given] = [one(number) for number in prepared]
    if varying and key.form == "minifloat" and parameters["saturation"] != 0 and np.any(np.isinf(numbers[4])):
        raise NotRewrittenError("its scale is not a constant, and its largest value is beyond float32")
    for name, parameter in varying.items():
        for place in places[name]:
            numbers[place] = parameter
    if key.form == "integer" and not is_constant(parameters["bit_width"]):
        numbers[2:] = _bounds(op, parameters["bit_width"], bool(parameters["signed"] != 0), bool(parameters["narrow"] != 0))
    if key.form == "threshold" and not is_constant(parameters["threshold"]):
        numbers = _of_threshold(op, parameters["threshold"], int(parameters["bit_width"]), bool(parameters["signed"] != 0))
    return numbers


def _bounds(op: Builder[AnyOperand], bits: AnyOperand, signed: bool, narrow: bool) -> tuple[Given, Given]:
    """Return the lowest and highest code for a bit width that is not constant. Powers of two are exact, and so is each
    difference before it is rounded."""
    less, bits = float(narrow), op.cast(bits, FLOAT32)
    if not signed:
        return np.zeros((), _f32), op("Sub", op("Pow", 2.0, bits), 1 + less)
    half = op("Pow", 2.0, op("Sub", bits, 1.0))
    return op("Sub", less, half), op("Sub", half, 1.0)


def _of_threshold(op: Builder[AnyOperand], threshold: AnyOperand, bits: int, signed: bool) -> list[Given]:
    """Return the numbers for a threshold that is not constant: 2 ** -places times it, and the bounds. 1 - 2 ** -places is a
    float32 for up to 24 places."""
    places = bits - 1 if signed else bits
    stays_if(not 1 <= places <= 24, "its threshold is not a constant")
    low = op("Neg", threshold) if signed else np.zeros((), _f32)
    return [op("Mul", threshold, 2.0**-places), low, op("Mul", threshold, 1 - 2.0**-places)]


def _parameter(op: Builder[AnyOperand], meaning: FakeQuantize[AnyOperand], name: str) -> Given:
    operand = meaning.parameters[name]
    if isinstance(operand, (int, float)):
        return np.array(operand, _f32 if isinstance(operand, float) else np.int64)
    array = operand.array
    if array is None:
        shape, has_one = op.shape(operand), name in FORMS[meaning.form].single
        if not has_one and operand.element_type is not FLOAT32:
            raise NotRewrittenError(f"its {name} is neither a constant nor known to be float32")
        if has_one or (shape is not None and all(length == 1 for length in shape)):
            return op.reshape(operand, ()) if shape is None or len(shape) else operand
        if isinstance(meaning.axis, int):
            return op.along(operand, meaning.x, meaning.axis)
        x_shape = op.shape(meaning.x)
        if shape is not None and x_shape is not None and len(shape) <= len(x_shape):
            return operand
        # It may have more dimensions than x, of length 1 and in front.
        dims, rank = op("Shape", operand), op("Shape", op("Shape", meaning.x))
        more = op("Sub", op("Shape", dims), rank)
        dims = op("Slice", dims, op("Where", op("Less", more, int64s(0)), int64s(0), more), int64s(2**31), int64s(0))
        return op("Reshape", operand, dims, **({"allowzero": 1} if op.opset >= 14 else {}))
    array = array.astype(_f32) if array.dtype == np.float64 else array
    if array.size == 1:
        return array.reshape(())
    if isinstance(meaning.axis, int):
        return op.along(array, meaning.x, meaning.axis)
    first = next(axis for axis, length in enumerate(array.shape) if length != 1)
    return array.reshape(array.shape[first:])  # x need not have the ones in front


# Operations.


def _minus(op: Builder[AnyOperand], x: AnyOperand, number: Given) -> AnyOperand:
    return op.plus(x, -number) if is_constant(number) else op("Sub", x, number)


def _scaled(op: Builder[AnyOperand], x: AnyOperand, scale: Given, zero_point: Given) -> AnyOperand:
    """Return x / scale + zero_point. For a zero point of 0 it is 0 - x / -scale, one node for any shape that adds 0 to -0."""
    has_zero = is_constant(zero_point) and not np.any(zero_point) and not np.any(np.signbit(zero_point))
    if has_zero and is_constant(scale) and not np.all(scale == 1):
        return op("Sub", 0.0, op.quotient(x, -scale))
    return op.plus(op.quotient(x, scale), zero_point)


def _clamp(op: Builder[AnyOperand], v: AnyOperand, low: Given, high: Given) -> AnyOperand:
    if is_constant(low) and is_constant(high) and low.size == high.size == 1:
        return v if low == -_INF and high == _INF else op.clip(v, low, high)
    return _one_bound(op, _one_bound(op, v, low, "Max", "Less"), high, "Min", "Greater")


def _one_bound(op: Builder[AnyOperand], v: AnyOperand, bound: Given, operator: str, beyond: str) -> AnyOperand:
    if not is_constant(bound):
        return op(operator, v, bound)
    if bound.size == 1:
        return v if np.isinf(bound) else op.clip(v, *((bound, _INF) if operator == "Max" else (-_INF, bound)))
    return op(operator, v, bound) if np.all(bound) else op("Where", op(beyond, v, bound), bound, v)


def _rounded(op: Builder[AnyOperand], v: AnyOperand, mode: str, *, is_positive: bool, may_be_negative_zero: bool) -> AnyOperand:
    """Return v rounded. With `is_positive` no element is below 0.

    The sign of v is taken by Clip: below a magnitude of 1, or 1/4, the other factor is a zero, so that only the sign counts."""
    if mode in _ONE_NODE:
        return op(_ONE_NODE[mode], v)
    if mode == "DOWN":
        return op("Floor", v) if is_positive else op("Mul", op("Floor", op("Abs", v)), op.clip(v, -1.0, 1.0))
    if may_be_negative_zero and not (is_positive and mode != "UP"):
        v = op.with_positive_zero(v)
    if mode == "UP":
        if is_positive:
            return op("Ceil", v)
        return op("Add", op("Ceil", op.clip(v, 0.0, _INF)), op("Floor", op.clip(v, -_INF, 0.0)))
    magnitude = v if is_positive else op("Abs", v)
    magnitude = op("Floor", op("Add", magnitude, 0.5)) if mode == "HALF_UP" else op("Ceil", op("Sub", magnitude, 0.5))
    return magnitude if is_positive else op("Mul", magnitude, op.clip(op("Mul", v, 4.0), -1.0, 1.0))


_ONE_NODE = {"ROUND": "Round", "CEIL": "Ceil", "FLOOR": "Floor"}


# Forms.


def _integer(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    scale, zero_point, low, high = numbers
    v = _scaled(op, x, scale, zero_point)
    is_constant_width = is_constant(high)
    if is_constant_width and low > high:
        return _two_levels(op, v, scale, zero_point)
    clamped = _clamp(op, v, low, high)
    is_positive = is_constant(low) and bool(low >= 0)
    # v is -0 only if -0 is added
    of_negative_zero = not is_constant(zero_point) or _has_negative_zero(zero_point)
    code = _rounded(op, clamped, mode, is_positive=is_positive, may_be_negative_zero=of_negative_zero)
    if not is_constant_width and not is_positive:  # one bit has two levels
        levels = op("Where", op.at_least(v, np.zeros((), _f32)), 1.0, -1.0)
        code = op("Where", op("Less", high, 0.5), levels, code)
    return op.product(_minus(op, code, zero_point), scale)


def _two_levels(op: Builder[AnyOperand], v: AnyOperand, scale: Given, zero_point: Given) -> AnyOperand:
    """Return (1 - zero_point) * scale where v >= 0, else (-1 - zero_point) * scale."""
    is_high = op.at_least(v, np.zeros((), _f32))
    if is_constant(scale) and is_constant(zero_point):
        high, low = (_f32(1) - zero_point) * scale, (_f32(-1) - zero_point) * scale
        if np.all(high):  # see `_replaced`
            return op("Where", is_high, high, low)
    return op.product(_minus(op, op("Where", is_high, 1.0, -1.0), zero_point), scale)


def _codes(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    scale, low, high = numbers
    code = op("Round", op.quotient(x, scale))
    code = op.without_nan(code, low)
    if not (is_constant(low) and is_constant(high)):
        return op.product(op.with_positive_zero(op("Min", op("Max", code, low), high)), scale)
    code = op.clip(code, low, high)
    if is_constant(scale) and all(map(np.all, (scale > 0, low == np.rint(low), high == np.rint(high)))):
        return op("Sub", 0.0, op.product(code, -scale))  # whole codes: no product is rounded to 0
    return op.product(op.with_positive_zero(code), scale)


def _bipolar(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    return _two_levels(op, x, numbers[0], np.zeros((), _f32))


def _truncation(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    scale, zero_point, step, low, high, out_zero_point, out_scale = numbers
    v = op.quotient(op("Round", _scaled(op, x, scale, zero_point)), step)
    code = _rounded(op, _clamp(op, v, low, high), mode, is_positive=bool(low >= 0), may_be_negative_zero=True)
    return op.product(_minus(op, code, out_zero_point), out_scale)


def _minifloat(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    scale, mantissa_bits, least, top, y_beyond = numbers
    v = op.quotient(x, scale)
    step = _step(op, v, int(mantissa_bits), int(least))
    code = _rounded(op, op("Div", v, step), mode, is_positive=False, may_be_negative_zero=True)
    nearest = op("Mul", step, code)
    known = scale if is_constant(scale) else np.ones((), _f32)
    with np.errstate(all="ignore"):
        is_clamped = top >= 0 and bool(np.array_equal(_f32(top * known), np.broadcast_to(y_beyond, np.shape(known))))
    if is_clamped:
        return op.product(op.clip(nearest, -top, top), scale)
    at_end = op("Where", op("Greater", nearest, 0.0), y_beyond, -y_beyond)
    at_end = at_end if is_constant(scale) else op("Mul", at_end, scale)
    return op("Where", op("Greater", op("Abs", nearest), top), at_end, op.product(nearest, scale))


def _step(op: Builder[AnyOperand], v: AnyOperand, mantissa_bits: int, least: int) -> AnyOperand:
    """Return the step between the values of the format at v, or NaN for NaN and Inf."""
    smallest = max(least + mantissa_bits, -126)
    stays_if(smallest > 127, "its smallest normal value is beyond float32")
    magnitude = op("Abs", v)
    if smallest >= _MIN_EXPONENT:
        return op.product(last_place(op, op.clip(magnitude, 2.0**smallest, _INF)), _power(23 - mantissa_bits))
    magnitude = op("Add", magnitude, 2.0**-126)
    # The powers of two of numbers below 1, and of numbers from 1 on. One factor is 1.
    below = last_place(op, op("Mul", op.clip(magnitude, 2.0**smallest, 1.0), 2.0**40))
    above = last_place(op, op.clip(magnitude, 1.0, _INF))
    return op.product(op("Mul", below, above), _power(2 * 23 - 40 - mantissa_bits))


# From this exponent on `last_place` is right, and 2 ** -126, which QONNX adds before it takes the exponent, has no effect.
_MIN_EXPONENT = -101


def _power(exponent: int) -> NDArray[Any]:
    return np.array(2.0**exponent, _f32)


def _of_clamped(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    scale, low, high = numbers
    return op.product(op("Round", op.quotient(_clamp(op, x, low, high), scale)), scale)


def _levels(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    """Return a limit of y needs no extra nodes if it is the result of the limit of x."""
    least, most, low, width, last, y_low, y_high, y_width = numbers

    def of_limit(limit: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(all="ignore"):
            code = np.rint(_f32(_f32(_f32(limit - low) / width) * last))
            return np.asarray(_f32(_f32(_f32(code / last) * y_width) + y_low))

    is_low_clamped, is_high_clamped = _have_same_bits(of_limit(least), y_low), _have_same_bits(of_limit(most), y_high)
    infinity = np.array(_INF, _f32)
    v = _clamp(op, x, least if is_low_clamped else -infinity, most if is_high_clamped else infinity)
    v = op.product(op.quotient(_minus(op, v, low), width), last)
    y = op.plus(op.product(op.quotient(op("Round", v), last), y_width), y_low)
    if _has_negative_zero(y_low, y_high) and not np.all((width > 0) & (y_width >= 0)):
        raise NotRewrittenError("a limit of its y is -0")  # y may be -0 as well
    if not is_high_clamped:
        y = _replaced(op, op("Greater", x, most), y_high, y)
    return y if is_low_clamped else _replaced(op, op.at_least(op("Neg", x), -least), y_low, y)


def _replaced(op: Builder[AnyOperand], where: AnyOperand, number: NDArray[Any], y: AnyOperand) -> AnyOperand:
    """Return y with a number in other places. Where of ONNX Runtime returns 0 for a -0 in its second input, but not in its
    third one. Its optimizers exchange the two after a Not, which therefore is an Xor."""
    if not _has_negative_zero(number):
        return op("Where", where, number, y)
    return op("Where", op("Xor", where, np.array(True)), y, number)


def _has_negative_zero(*numbers: NDArray[Any]) -> bool:
    return any(bool(np.any((number == 0) & np.signbit(number))) for number in numbers)


def _have_same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    one, other = np.broadcast_arrays(one, other)
    return bool(np.all((one == other) & (np.signbit(one) == np.signbit(other))))


def _offset(op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    step, low, high = numbers
    v = op.cast(x, FLOAT64)
    # Before opset 12 Clip takes no float64.
    v = op("Min", op("Max", v, low), high) if op.opset < 12 else op.clip(v, low, high)
    has_offset = bool(np.any(low))
    v = op("Sub", v, low) if has_offset else v
    y = op("Mul", op("Round", op("Div", v, step)), step)
    y = op.cast(op("Add", y, low) if has_offset else y, FLOAT32)
    return y if np.all(low) else op.with_positive_zero(y)


def _cast(element_type: ElementType, op: Builder[AnyOperand], x: AnyOperand, numbers: list[Given], mode: str) -> AnyOperand:
    return op.cast(op.cast(x, element_type), FLOAT32)


# By form.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "integer": _integer,
    "codes": _codes,
    "bipolar": _bipolar,
    "truncation": _truncation,
    "minifloat": _minifloat,
    "threshold": _of_clamped,
    "range": _of_clamped,
    "levels": _levels,
    "offset range": _offset,
    **{element_type.name: functools.partial(_cast, element_type) for element_type in (FLOAT16, BFLOAT16)},
}
