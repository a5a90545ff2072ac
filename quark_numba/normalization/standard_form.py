"""What the family computes, in the standard operators of ONNX, step by step, and for which x the bits differ.

The functions correspond to the functions of ``arithmetic``. CumSum computes the sums of an instance, because it adds one
element after another. The square of a bfloat16 is a float32, so that adding it is the fused step of the kernel. Two cases
differ: squares of elements below 2 ** -67, which are rounded here, and those NaN of x that the kernel makes Inf or 0, and that
no computation returns. All but the last steps take one element for each instance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..declaration.meaning import AnyOperand
from ..declaration.standard_arithmetic import last_place
from ..declaration.standard_form import Builder, Given, int64s
from ..element_types import BFLOAT16, FLOAT32, FLOAT64

_f32, _f64 = np.float32, np.float64


def write(op: Builder[AnyOperand], inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> list[AnyOperand]:
    """Write the nodes of a normalization, and return their output. Raise NotRewrittenError."""
    x, scale, bias = inputs
    shape = op.shape(x)
    if shape is not None and 0 in shape:
        return [op("Identity", x)]
    values = _bfloat16(op, x)
    instances = _instances(op, values)
    reciprocal = _reciprocal(op, x)
    mean, mean_of_squares = (op.product(_sum(op, each), reciprocal) for each in (instances, op("Mul", instances, instances)))
    high = _bfloat16(op, mean)
    variance = _minus_square(op, mean, high, mean_of_squares)
    root = op("Sqrt", op.cast(op.plus(variance, np.array(attributes["epsilon"], _f32)), FLOAT64))
    inverse = _bfloat16(op, op.cast(op("Div", _f64(1), root), FLOAT32))
    center = _bfloat16(op, op("Mul", high, inverse))
    quotient = _bfloat16(op, op("Mul", values, _spread(op, inverse, x)))
    centered = _bfloat16(op, op("Sub", quotient, _spread(op, center, x)))
    gamma, beta = (_of_channels(op, each, x) for each in (scale, bias))
    return [_bfloat16(op, op.plus(op.product(centered, gamma), beta))]


def _instances(op: Builder[AnyOperand], values: AnyOperand) -> AnyOperand:
    """Return the elements of all instances along the first axis, in front of the axes of x for instances and channels. If a
    length is not known, it may be 0. A first row of zeros is put in front of the others then, so that there is a last sum."""
    shape = op.shape(values)
    if shape is not None and None not in shape:
        return op("Transpose", op.reshape(values, (0, 0, -1)), perm=[2, 0, 1])
    rows = op("Transpose", op("Flatten", values, axis=2))
    dims, elements = op.slice(op("Shape", values), 0, 2), op.slice(op("Shape", rows), 0, 1)
    rows = op("Reshape", rows, op.concat(elements, dims), **({"allowzero": 1} if op.opset >= 14 else {}))
    return op("Concat", op("Expand", 0.0, op.concat(int64s(1), dims)), rows, axis=0)


def _spread(op: Builder[AnyOperand], of_instances: AnyOperand, x: AnyOperand) -> AnyOperand:
    """Return one number for each instance and channel, in a shape that broadcasts to x."""
    shape = op.shape(x)
    if shape is not None:
        return op.reshape(of_instances, (0, 0, *[1] * (len(shape) - 2)))
    return op("Reshape", of_instances, op.concat(int64s(0, 0), op.ones(op.slice(op("Shape", x), 2))))


def _bfloat16(op: Builder[AnyOperand], x: AnyOperand) -> AnyOperand:
    return op.cast(op.cast(x, BFLOAT16), FLOAT32)


def _sum(op: Builder[AnyOperand], instances: AnyOperand) -> AnyOperand:
    """Return the sums along the first axis. They begin with 0, and so are never -0."""
    sums = op("CumSum", instances, int64s(0)[0])
    return op.with_positive_zero(op("Gather", sums, int64s(-1)[0], axis=0))


def _reciprocal(op: Builder[AnyOperand], x: AnyOperand) -> Given:
    shape = op.shape(x)
    if shape is not None and None not in shape[2:]:
        return np.array(1.0 / math.prod(shape[2:]), _f32)  # type: ignore[arg-type]
    length = op.cast(op("ReduceProd", op.concat(int64s(1), op.slice(op("Shape", x), 2)), keepdims=0), FLOAT64)
    return op.cast(op("Div", _f64(1), length), FLOAT32)


def _of_channels(op: Builder[AnyOperand], parameter: AnyOperand, x: AnyOperand) -> Given:
    """Return the first elements of a parameter, one for each channel, as bfloat16, in a shape that broadcasts to x."""
    shape = op.shape(x)
    if parameter.array is None or shape is None or shape[1] is None:
        given = parameter.array.reshape(-1) if parameter.array is not None else op.reshape(parameter, (-1,))
        channels = int64s(shape[1]) if shape is not None and shape[1] is not None else op.length(x, 1)
        return op.along(_bfloat16(op, op("Slice", given, int64s(0), channels)), x, 1)
    bits = parameter.array.reshape(-1)[: shape[1]].view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + up) & np.uint32(0xFFFF0000)).view(_f32).reshape((shape[1], *[1] * (len(shape) - 2)))


def _minus_square(op: Builder[AnyOperand], mean: AnyOperand, high: AnyOperand, mean_of_squares: AnyOperand) -> AnyOperand:
    rest = op("Sub", mean, high)
    middle = _bfloat16(op, rest)
    low = _bfloat16(op, op("Sub", rest, middle))
    parts = (high, middle, low)
    negatives, powers = ([op("Neg", part) for part in parts], [_power(op, part) for part in parts])
    wholes = [op("Mul", power, _f64(2.0**_PLACES)) for power in powers]

    def product(a: int, b: int) -> tuple[AnyOperand, AnyOperand]:
        """Return parts[a] * -parts[b], and the power of two whose exponent is that of the product, or one less."""
        return op("Mul", parts[a], negatives[b]), op("Mul", powers[a], wholes[b])

    total, _ = product(2, 2)
    for a, b in ((2, 1), (1, 2), (0, 2), (1, 1), (2, 0), (1, 0), (0, 1)):
        term, power = product(a, b)
        total = _aligned_sum(op, op("Max", power, _power(op, total)), total, term)
    term, power = product(0, 0)
    power = op("Max", power, _power(op, total), _power(op, mean_of_squares))
    return _aligned_sum(op, power, total, mean_of_squares, term)


# Places of a float64.
_PLACES = 52


def _power(op: Builder[AnyOperand], x: AnyOperand) -> AnyOperand:
    """Return the power of two with x's exponent, divided by 2 ** _PLACES, as a float64; for 0 and subnormal numbers 2 ** -127,
    and NaN for Inf."""
    return last_place(op, op("Max", op("Abs", op.cast(x, FLOAT64)), _f64(2.0**-127)), _f64)


def _aligned_sum(op: Builder[AnyOperand], power: AnyOperand, *terms: AnyOperand) -> AnyOperand:
    """Return the sum of terms, each rounded by adding and subtracting a power of two with its sign. A power that is subnormal
    as a float32 is 0: divided by 2 ** 23, it is rounded to 0."""
    small = op.cast(op("Mul", power, _f64(2.0 ** (_PLACES - 23))), FLOAT32)
    positive = op("Mul", small, 2.0**23)
    negative = op("Neg", positive)
    aligned = []
    for term in terms:
        signed = op("Where", op("Less", term, 0.0), negative, positive)
        aligned.append(op("Sub", op("Add", term, signed), signed))
    return functools.reduce(lambda total, each: op("Add", total, each), aligned)
