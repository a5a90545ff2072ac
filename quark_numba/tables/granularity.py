"""Which elements of x share a row of the table (those of a channel, or all), and which tables are refused, with the messages.

``shape_of`` and ``size_of`` are also compiled into the nodes of sessions, where shapes are arrays instead of tuples. So they
use only ``len``, indexing and integers, and a fault is a number. ``COUNT_FAULTS`` and ``NEAREST_FAULTS`` have the messages.
"""

from __future__ import annotations

from typing import Any

NO_FAULT, TABLE, ROWS, THRESHOLD = range(4)
COUNT_FAULTS = {
    TABLE: "thresholds has shape {thresholds_shape}; expected two dimensions, channels and thresholds",
    ROWS: "thresholds has shape {thresholds_shape}, x {x_shape}; expected one row, or as many as x has channels along axis "
    "{axis}",
}
NEAREST_FAULTS = {
    TABLE: "lut has shape {lut_shape}; expected at least one element",
    ROWS: "threshold has shape {threshold_shape}, x {x_shape}; expected one element or, with per_channel, as many as x has "
    "along channel_axis",
    THRESHOLD: "threshold has an element that is not above 0; expected positive numbers",
}

# Values of `axis` that are not axes: there are no channels; the last axis of an x of three dimensions, or else axis 1.
NO_AXIS, BY_RANK = -(2**63), -(2**63) + 1

# The entries that are compared in one pass over a tile of x. Rows are filled up to a multiple with NaN, which has no effect.
TOGETHER = 4

# The columns of numbers in a flat table, before its entries.
NUMBERS = 4

# The least number of rows if no two neighbouring elements have the same row: loops over a few elements are slow.
_MIN_ROWS = 64


def shape_of(is_nearest: bool, axis: int, x_shape: Any, table_shape: Any, threshold_shape: Any) -> Any:
    """Return (fault, axis of channels, rows, entries of a row, inner) for shapes given as sequences of integers. In x, `inner`
    elements are of row 0, as many of row 1, and so on; row 0 follows the last row."""
    rank, rows, entries, inner = len(x_shape), 1, 1, 1
    if axis == BY_RANK:
        axis = 2 if rank == 3 else 1
    elif axis < 0 and axis != NO_AXIS:
        axis += rank
    if is_nearest:
        for i in range(len(table_shape)):
            entries *= table_shape[i]
        for i in range(len(threshold_shape)):
            rows *= threshold_shape[i]
        if entries == 0:
            return TABLE, axis, rows, entries, inner
    else:
        if len(table_shape) != 2:
            return TABLE, axis, rows, entries, inner
        rows, entries = table_shape[0], table_shape[1]
    if rows != 1 and (axis < 0 or axis >= rank or x_shape[axis] != rows):
        return ROWS, axis, rows, entries, inner
    for i in range(0 if rows == 1 else axis + 1, rank):
        inner *= x_shape[i]
    return NO_FAULT, axis, rows, entries, inner


def size_of(rows: int, entries: int, inner: int) -> Any:
    """Return (rows, entries) of the table that kernels take: rows may be repeated, one after the other."""
    times = (_MIN_ROWS + rows - 1) // rows if inner == 1 else 1
    return rows * times, (entries + TOGETHER - 1) // TOGETHER * TOGETHER
