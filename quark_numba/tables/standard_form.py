"""What the family computes, in the standard operators of ONNX: up to how many thresholds these are compared one by one, and the
reasons why a node has no such form.

Both operations are step functions. The steps are thresholds in ascending order. NaN reaches no threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration.meaning import AnyOperand
from ..declaration.reasons import NotRewrittenError, stays_if
from ..declaration.standard_form import Builder, Given, int64s, is_constant
from ..element_types import FLOAT32, INT32
from .calls import Rule, convert, rule
from .granularity import BY_RANK, NO_AXIS, THRESHOLD, shape_of

_f32 = np.float32

# The most thresholds that are compared one by one, which takes three nodes for each. A search among more thresholds takes five
# nodes for each power of two of their number, and one of the five nodes, Gather, takes as long as seven thresholds.
_FEW = 31

# Beyond the end of each shape.
_BEYOND = 2**31

# The orders of -Inf and Inf among float32: see `_float32_at`.
_LOWEST, _HIGHEST = -1 - 0x7F800000, 0x7F800000


def write(op: Builder[AnyOperand], operation: str, inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> AnyOperand:
    """Write the nodes of an operator, and return their output. Raise NotRewrittenError; ValueError if the node is not
    valid."""
    applied = rule(operation, attributes)
    if applied.is_nearest:
        return _nearest(op, applied, *inputs)
    count = _count(op, applied, *inputs)
    scale, bias = (np.array(number, _f32) for number in (applied.first, applied.second))
    y = op.product(count, scale)
    return op.plus(y, bias) if bias != 0 or np.signbit(scale) else y  # a count is not -0


def _count(op: Builder[AnyOperand], applied: Rule, x: AnyOperand, thresholds: AnyOperand) -> AnyOperand:
    """Return how many thresholds each x reaches, as a float32. Thresholds that are not constant lie along another dimension."""
    if thresholds.array is None:
        count = op.reduce("ReduceSum", op.cast(_reached(op, applied, x, thresholds), FLOAT32), -1)
        return op.squeeze(count, -1) if op.shape(x) is not None else op.like(count, x)
    rows = _shape_of_rows(op, applied, x, thresholds, thresholds)
    table = np.sort(thresholds.array, axis=1)  # NaN is last
    table = table[:, ~np.all(np.isnan(table), axis=0)]
    if not table.size:
        return op("Expand", 0.0, op("Shape", x))
    if table.shape[1] > _FEW:
        index, first = _search(op, x, table, rows)
        return op.cast(op("Sub", index, first) if len(table) > 1 else index, FLOAT32)
    count, *others = (op.cast(op.at_least(x, _along(op, column, rows)), FLOAT32) for column in table.T)
    for each in others:
        count = op("Add", count, each)
    return count


def _reached(op: Builder[AnyOperand], applied: Rule, x: AnyOperand, thresholds: AnyOperand) -> AnyOperand:
    """Return whether each x reaches each threshold of its row. The last axis is that of the thresholds."""
    shape = op.shape(thresholds)
    one, rows = op.unsqueeze(x, -1), None if shape is None else shape[0]
    if op.shape(x) is not None and rows is not None:
        known: Any = _shape_of_rows(op, applied, x, thresholds, thresholds)
        return op.at_least(one, op.reshape(thresholds, (*known, -1)))
    # One row for all of x broadcasts in this shape too.
    dims = op("Shape", thresholds)
    whole = op.concat(op.slice(dims, 0, 1), op.ones(_dims_behind(op, applied, x)), op.slice(dims, 1))
    return op.at_least(one, op("Reshape", thresholds, whole, **({"allowzero": 1} if op.opset >= 14 else {})))


def _dims_behind(op: Builder[AnyOperand], applied: Rule, x: AnyOperand) -> AnyOperand:
    """Return the lengths of x behind the axis of channels, computed in the run."""
    dims, axis = op("Shape", x), applied.axis
    if axis in (NO_AXIS, -1):
        return op.slice(dims, _BEYOND)
    if axis != BY_RANK:
        return op.slice(dims, axis + 1)
    is_3 = op("Equal", op("Shape", dims), int64s(3))
    return op("Slice", dims, op("Where", is_3, int64s(3), int64s(2)), int64s(_BEYOND), int64s(0))


def _along(op: Builder[AnyOperand], column: Given, rows: Given) -> Given:
    """Return one element for each row in the shape `rows`, which may be computed in the run."""
    if not isinstance(rows, Sequence):
        return op("Reshape", column, rows)
    return column.reshape(rows) if is_constant(column) else op.reshape(column, rows)


def _nearest(op: Builder[AnyOperand], applied: Rule, x: AnyOperand, lut: AnyOperand, threshold: AnyOperand) -> AnyOperand:
    """Return the nearest value, which is a step function of the quotient. The steps are found by trying with the kernel, for a
    threshold of 1: then the quotient is x."""
    if lut.array is None:
        raise NotRewrittenError("its lut is not a constant")
    unit, at = _f32(applied.first), np.unique(lut.array, return_index=True)[1]
    first, entries = lut.array.reshape(-1)[:1], lut.array.reshape(-1)[at]
    # Then no two entries are equally near except in the middle between them, so that the nearest one does not decrease.
    gap = np.min(np.diff(entries), initial=np.inf)
    stays_if(not np.all(np.isfinite(entries)), "its lut has a value that is not finite")
    stays_if(bool(gap < 2.0**-21 * (np.max(np.abs(entries)) + unit)), "its lut has two values too close to each other")
    low, high = np.full(entries.shape, _LOWEST - 1), np.full(entries.shape, _HIGHEST + 1)  # below the entry, and not
    tried = Rule(applied.operation, NO_AXIS, applied.first, 0.0)
    while np.any(high - low > 1):
        middle = (low + high + 1) // 2  # of neighbours: the higher one, so that they stay
        is_reached = convert(tried, _float32_at(middle), lut.array, np.ones(1, _f32)) >= entries / unit
        low, high = np.where(is_reached, low, middle), np.where(is_reached, middle, high)
    steps = np.where(high > _HIGHEST, _f32(np.nan), _float32_at(high))  # an entry may be out of reach

    rows, factor, added = _shape_of_rows(op, applied, x, lut, threshold), threshold.array, np.array(applied.second, _f32)
    scale: Given = _along(op, threshold if factor is None else factor, rows)
    if factor is not None and not np.all(factor > 0):
        raise ValueError(applied.message(THRESHOLD, 0, (lut.array.shape,) * 3))
    q = op.quotient(x, scale + added) if is_constant(scale) else op("Div", x, op.plus(scale, added))
    index, _ = _search(op, q, steps.reshape(1, -1), [])
    values = np.concatenate([first, entries]) / unit  # NaN, which reaches no step, becomes the first entry
    y = op.product(op("Gather", values, index), scale)
    return y if op.shape(x) is not None else op.like(y, x)  # the scale may have a dimension, and x none


def _shape_of_rows(op: Builder[AnyOperand], applied: Rule, x: AnyOperand, table: AnyOperand, threshold: AnyOperand) -> Given:
    """Return a shape that broadcasts to x for an element for each row: [] if there is one row for all of x. If the rank of x is
    not known, the shape is computed in the run."""
    table_shape, shape = op.shape(table), op.shape(threshold)
    if table_shape is None or shape is None or None in (*table_shape[:1], *shape[:1]):  # the shape fits one row too
        return op.concat(int64s(-1), op.ones(_dims_behind(op, applied, x)))
    known = [[length or 0 for length in each] for each in (table_shape, shape)]
    _, _, rows, _, _ = shape_of(applied.is_nearest, applied.axis, (), *known)
    if rows == 1:
        return []
    x_shape = op.shape(x)
    if x_shape is None:
        return op.concat(int64s(-1), op.ones(_dims_behind(op, applied, x)))
    rank = len(x_shape)
    axis = shape_of(applied.is_nearest, applied.axis, [rows] * rank, *known)[1]
    return [rows, *[1] * (rank - 1 - axis)]


def _search(op: Builder[AnyOperand], x: AnyOperand, table: NDArray[Any], rows: Given) -> tuple[AnyOperand, Given]:
    """Return how many entries of its row each x reaches, as an int32, plus the place of the row in a flat table whose rows
    have the next power of two as length; and these places, in the shape `rows`. Entries are in ascending order, then NaN."""
    count, entries = table.shape
    steps = entries.bit_length()
    flat = np.pad(table, ((0, 0), (0, (1 << steps) - entries)), constant_values=np.nan).reshape(-1)
    first = _along(op, np.arange(count, dtype=np.int32) << steps, rows)
    index: Given = first
    for step in (1 << k for k in reversed(range(steps))):
        is_first = step == 1 << (steps - 1)
        entry = _along(op, flat[step - 1 :: 1 << steps], rows) if is_first else op("Gather", flat[step - 1 :], index)
        reached = op.cast(op.at_least(x, entry), INT32)
        reached = op("Mul", reached, np.int32(step)) if step > 1 else reached
        index = reached if is_first and count == 1 else op("Add", reached, index)
    return index, first


def _float32_at(order: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the float32 at these places of their order, in which 0 is at 0, and -0 at -1."""
    return np.where(order < 0, 0x7FFFFFFF - order, order).astype(np.uint32).view(_f32)
