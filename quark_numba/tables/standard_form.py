"""What the family computes, in ONNX's standard operators.

Both operations are step functions of x. The steps are thresholds in ascending order, the same for all of x or a row for each
channel. NaN reaches no threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration.meaning import AnyOperand
from ..declaration.standard_form import Builder, Given, NoStandardForm, int64s
from ..element_types import FLOAT32, INT32
from .calls import Rule, convert, rule
from .granularity import shape_of

_f32 = np.float32

# The most thresholds that are compared one by one, which takes three nodes for each. A search among more takes five for each
# power of two of them, but one of these, Gather, takes as long as seven thresholds.
_FEW = 31

# The orders of -Inf and Inf among float32: see `_float32_at`.
_LOWEST, _HIGHEST = -1 - 0x7F800000, 0x7F800000


def write(op: Builder[AnyOperand], operation: str, inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> AnyOperand:
    """Write the nodes of an operator, and return their output. Raise NoStandardForm; ValueError if the node is not valid."""
    applied = rule(operation, attributes)
    x, *others = inputs
    arrays = [operand.array for operand in others]
    if applied.is_nearest:
        return _nearest(op, applied, x, arrays)
    scale, bias = (np.array(number, _f32) for number in (applied.first, applied.second))
    (thresholds,) = arrays
    count = _count_of_varying(op, applied, x, others[0]) if thresholds is None else _count(op, applied, x, thresholds)
    y = op.product(count, scale)
    return op.plus(y, bias) if bias != 0 or np.signbit(scale) else y  # a count is not -0


def _count(op: Builder[AnyOperand], applied: Rule, x: AnyOperand, thresholds: NDArray[Any]) -> AnyOperand:
    table = np.sort(thresholds, axis=1)  # NaN comes last
    table = table[:, ~np.all(np.isnan(table), axis=0)]
    if not table.size:
        return op("Expand", 0.0, op("Shape", x))
    rows = _Rows(op, applied, x, thresholds, ())
    if table.shape[1] > _FEW:
        index, first = _search(op, x, table, rows)
        return op.cast(index if first.ndim == 0 else op("Sub", index, first), FLOAT32)
    count, *others = (op.cast(op.at_least(x, rows.along(column)), FLOAT32) for column in table.T)
    for each in others:
        count = op("Add", count, each)
    return count


def _count_of_varying(op: Builder[AnyOperand], applied: Rule, x: AnyOperand, thresholds: AnyOperand) -> AnyOperand:
    """Compare with thresholds that are not constant, along another dimension."""
    shape, rank = op.shape(thresholds), op.rank(x)
    if shape is None or shape[0] is None:
        raise NoStandardForm("the number of rows of its thresholds is not known")
    rows = _Rows(op, applied, x, np.empty((shape[0], 1)), ())
    spread = op.reshape(thresholds, (*rows.shape, -1))
    last = int64s(rank)
    if op.opset < 13:
        reached = op.cast(op.at_least(op("Unsqueeze", x, axes=[rank]), spread), FLOAT32)
        return op("ReduceSum", reached, axes=[rank], keepdims=0)
    return op("ReduceSum", op.cast(op.at_least(op("Unsqueeze", x, last), spread), FLOAT32), last, keepdims=0)


def _nearest(op: Builder[AnyOperand], applied: Rule, x: AnyOperand, arrays: Sequence[NDArray[Any] | None]) -> AnyOperand:
    """The thresholds are found by trying: the nearest value does not decrease from one x to a larger one."""
    lut, threshold = arrays
    if lut is None or threshold is None:
        raise NoStandardForm(f"its {'lut' if lut is None else 'threshold'} is not a constant")
    unit, at = _f32(applied.first), np.unique(lut, return_index=True)[1]
    entries, threshold = lut.reshape(-1)[at], threshold.reshape(-1, 1)
    divisor = threshold + _f32(applied.second)
    # Then no two entries are equally near except in the middle between them, and x / divisor does not decrease.
    gap = np.min(np.diff(entries), initial=np.inf)
    if not (np.all(np.isfinite(entries)) and gap >= 2.0**-21 * (np.max(np.abs(entries)) + unit)):
        raise NoStandardForm("the values of its lut are too close to each other, or not finite")
    if not np.all((divisor > 0) & np.isfinite(divisor)):
        raise NoStandardForm("its threshold plus eps is not a finite number above 0")
    values = (entries / unit).astype(_f32) * threshold
    low, high = np.full(values.shape, _LOWEST - 1), np.full(values.shape, _HIGHEST + 1)  # below the value, and not
    while np.any(high - low > 1):
        middle = (low + high + 1) // 2  # of neighbours: the higher one, so that they stay
        is_reached = convert(applied._replace(axis=0), _float32_at(middle), lut, threshold) >= values
        low, high = np.where(is_reached, low, middle), np.where(is_reached, middle, high)
    table = np.where(high > _HIGHEST, _f32(np.nan), _float32_at(high))  # a value may be out of reach
    index, _ = _search(op, x, table, _Rows(op, applied, x, lut, threshold))
    of_nan = (lut.reshape(-1)[:1] / unit).astype(_f32) * threshold
    by_count = np.concatenate([of_nan, values], axis=1)
    return op("Gather", _filled(by_count, 1 << table.shape[1].bit_length()), index)


class _Rows:
    """The rows of a table, one for each index along an axis of x, or one for all of x."""

    def __init__(self, op: Builder[Any], applied: Rule, x: Any, table: NDArray[Any], threshold: Given) -> None:
        """`threshold` has the rows of a table of values, and () those of thresholds."""
        shape = np.shape(threshold) if applied.is_nearest else table.shape
        self.count = int(np.prod(shape)) if applied.is_nearest else shape[0]
        self.shape: list[int] = []
        if self.count != 1:
            rank = op.rank(x)
            axis = shape_of(applied.is_nearest, applied.axis, [self.count] * rank, table.shape, shape)[1]
            self.shape = [self.count, *[1] * (rank - 1 - axis)]

    def along(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a number for each row in a shape that broadcasts to x."""
        return column.reshape(self.shape)


def _search(op: Builder[AnyOperand], x: AnyOperand, table: NDArray[Any], rows: _Rows) -> tuple[AnyOperand, NDArray[np.int32]]:
    """Return how many entries of its row each x reaches, as an int32, plus the place of the row in a flat table whose rows
    have the next power of two as length; and these places, which broadcast to x. Entries are in ascending order, then NaN."""
    steps = table.shape[1].bit_length()
    flat, first = _filled(table, 1 << steps), rows.along(np.arange(rows.count, dtype=np.int32) << steps)
    index: Given = first
    for step in (1 << k for k in reversed(range(steps))):
        is_first = step == 1 << (steps - 1)
        entry = rows.along(flat[step - 1 :: 1 << steps]) if is_first else op("Gather", flat[step - 1 :], index)
        reached = op.cast(op.at_least(x, entry), INT32)
        reached = op("Mul", reached, np.int32(step)) if step > 1 else reached
        index = reached if is_first and rows.count == 1 else op("Add", reached, index)
    return index, first


def _filled(table: NDArray[Any], length: int) -> NDArray[Any]:
    """Return a table as a flat one, whose rows have a length, with NaN at their ends."""
    return np.pad(table, ((0, 0), (0, length - table.shape[1])), constant_values=np.nan).reshape(-1)


def _float32_at(order: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the float32 at these places of their order, in which 0 is at 0, and -0 at -1."""
    return np.where(order < 0, 0x7FFFFFFF - order, order).astype(np.uint32).view(_f32)
