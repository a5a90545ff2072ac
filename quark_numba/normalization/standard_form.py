"""What the family computes, in the standard operators of ONNX.

The functions correspond to the functions of ``arithmetic``. CumSum computes the sums of an instance, because it adds one
element after another. The square of a bfloat16 is a float32, so that adding it is the fused step of the kernel. Two cases
differ: squares of elements below 2 ** -67, which are rounded here, and those NaN of x that the kernel makes Inf or 0, and that
no computation returns. All but the last steps take one element for each instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..declaration.meaning import AnyOperand
from ..declaration.reasons import NotRewrittenError
from ..declaration.standard_arithmetic import last_place
from ..declaration.standard_form import Builder, Given, int64s
from ..element_types import BFLOAT16, FLOAT32, FLOAT64

_f32, _f64 = np.float32, np.float64


def write(op: Builder[AnyOperand], inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> list[AnyOperand]:
    """Write the nodes of a normalization, and return their output. Raise NotRewrittenError."""
    x, scale, bias = inputs
    rank, shape = op.rank(x), op.shape(x)
    assert shape is not None
    if shape[1] is None:
        raise NotRewrittenError("the number of channels of its x is not known")
    if 0 in shape:
        return [op("Identity", x)]
    values = _bfloat16(op, x)
    instances = op("Transpose", op.reshape(values, (0, 0, -1)), perm=[2, 0, 1])
    reciprocal = _reciprocal(op, instances)
    mean, mean_of_squares = (op.product(_sum(op, each), reciprocal) for each in (instances, op("Mul", instances, instances)))
    high = _bfloat16(op, mean)
    variance = _minus_square(op, mean, high, mean_of_squares)
    inverse = _inverse_root(op, op.plus(variance, np.array(attributes["epsilon"], _f32)))
    center = _bfloat16(op, op("Mul", high, inverse))
    spread = (0, 0, *[1] * (rank - 2))
    quotient = _bfloat16(op, op("Mul", values, op.reshape(inverse, spread)))
    centered = _bfloat16(op, op("Sub", quotient, op.reshape(center, spread)))
    gamma, beta = (_of_channels(op, each, shape[1], rank) for each in (scale, bias))
    return [_bfloat16(op, op.plus(op.product(centered, gamma), beta))]


def _bfloat16(op: Builder[AnyOperand], x: AnyOperand) -> AnyOperand:
    return op.cast(op.cast(x, BFLOAT16), FLOAT32)


def _sum(op: Builder[AnyOperand], instances: AnyOperand) -> AnyOperand:
    """Return the sums along the first axis. They begin with 0, and so are never -0."""
    sums = op("CumSum", instances, int64s(0)[0])
    return op.with_positive_zero(op("Gather", sums, int64s(-1)[0], axis=0))


def _reciprocal(op: Builder[AnyOperand], instances: AnyOperand) -> Given:
    shape = op.shape(instances)
    if shape and shape[0]:
        return np.array(1.0 / shape[0], _f32)
    length = op.cast(op("Gather", op("Shape", instances), int64s(0)[0]), FLOAT64)
    return op.cast(op("Div", _f64(1), length), FLOAT32)


def _of_channels(op: Builder[AnyOperand], parameter: AnyOperand, channels: int, rank: int) -> Given:
    """Return the first elements of a parameter, one for each channel, as bfloat16, in a shape that broadcasts to x."""
    spread = (channels, *[1] * (rank - 2))
    if parameter.array is None:
        first = op("Slice", op.reshape(parameter, (-1,)), int64s(0), int64s(channels))
        return op.reshape(_bfloat16(op, first), spread)
    bits = parameter.array.reshape(-1)[:channels].view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + up) & np.uint32(0xFFFF0000)).view(_f32).reshape(spread)


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
    total = aligned[0]
    for each in aligned[1:]:
        total = op("Add", total, each)
    return total


def _inverse_root(op: Builder[AnyOperand], variance: AnyOperand) -> AnyOperand:
    root = op("Sqrt", op.cast(variance, FLOAT64))
    return _bfloat16(op, op.cast(op("Div", _f64(1), root), FLOAT32))
