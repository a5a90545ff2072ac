"""The loops of an operation, the functions that compile them, the making of a flat table, and the sizes of a tile and of the
work of a task.

The table lies in a flat array, column by column: NUMBERS columns of numbers, the last of which y begins with, then the entries.
So the entries of elements side by side lie side by side, whether these elements share a row or have a row each."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import prange, types

from ..compiling import jit
from ..compiling.array_functions import array_function
from ..compiling.intrinsics import array_at, record_at
from ..compiling.jit import unsigned
from ..compiling.records import words
from ..compiling.variants import READ, WRITTEN, Loops, variants
from .arithmetic import LAST, STEP
from .granularity import NUMBERS, TOGETHER

# The number of elements that one call of a task converts: see linear.kernels.
CHUNK = 1 << 13

# The number of elements that are compared with all entries before the next ones are: they stay in the first-level cache.
TILE = 1 << 11

# The record that a node's tasks share: addresses of the tensors' elements and of the table; the elements of x, those of a row
# that lie side by side, the rows and the entries of each.
WORK = words("x", "y", "table", "size", "inner", "rows", "entries")

# The type of a counter that is passed to functions: see linear.kernels.
signed = np.intp if jit.JIT_ENABLED else int


@jit.inline
def numbers_of(table: Any, place: Any, columns: Any) -> Any:
    """Return the numbers for `step` and `last` of the row whose first number is at a place."""
    return table[place], table[place + columns], table[place + columns + columns]


@jit.inline
def entries_of(table: Any, place: Any, columns: Any) -> Any:
    """Return TOGETHER entries, the first of which is at a place."""
    after = place + columns + columns
    return table[place], table[place + columns], table[after], table[after + columns]


def _steps(operation: str) -> Any:
    step = STEP[operation]

    def steps(x: Any, y: Any, entries: Any, numbers: Any) -> Any:
        """Return y after `step` with TOGETHER entries."""
        a, b, c, d = entries
        return step(x, step(x, step(x, step(x, y, a, numbers), b, numbers), c, numbers), d, numbers)

    return jit.inline(steps)


def _run(operation: str) -> Any:
    compare, last = _steps(operation), LAST[operation]

    def run(x: Any, table: Any, y: Any, inner: int, rows: int, entries: int, start: int) -> None:
        """Convert x, which begins at element `start` of a tensor. See `granularity.shape_of` for the rows of its elements."""
        done, size = signed(0), x.size
        row = start // inner
        column = start - row * inner
        row %= rows
        while done < size:
            n = min(rows - row if inner == 1 else inner - column, size - done, TILE)
            begin, end, columns = unsigned(done), unsigned(done + n), unsigned(rows)
            start_offset, entries_offset = unsigned(NUMBERS - 1) * columns, unsigned(NUMBERS) * columns
            if inner == 1:
                at = unsigned(row - done)
                for i in range(begin, end):
                    y[i] = table[i + at + start_offset]
                for k in range(unsigned(entries // TOGETHER)):
                    place = at + entries_offset + k * unsigned(TOGETHER) * columns
                    for i in range(begin, end):
                        y[i] = compare(x[i], y[i], entries_of(table, i + place, columns), numbers_of(table, i + at, columns))
                for i in range(begin, end):
                    y[i] = last(y[i], numbers_of(table, i + at, columns))
                row = row + n if row + n < rows else 0
            else:
                at = unsigned(row)
                numbers, start_value = numbers_of(table, at, columns), table[at + start_offset]
                for i in range(begin, end):
                    y[i] = start_value
                for k in range(unsigned(entries // TOGETHER)):
                    some = entries_of(table, at + entries_offset + k * unsigned(TOGETHER) * columns, columns)
                    for i in range(begin, end):
                        y[i] = compare(x[i], y[i], some, numbers)
                for i in range(begin, end):
                    y[i] = last(y[i], numbers)
                column = column + n if column + n < inner else 0
                row = row if column else (row + 1 if row + 1 < rows else 0)
            done += n

    return jit.expand(run)


@functools.cache
def _loops(operation: str) -> Loops:
    convert_rows = _run(operation)

    def serial(x: Any, table: Any, y: Any, inner: int, rows: int, entries: int) -> None:
        """Convert all of x on one thread."""
        convert_rows(x, table, y, inner, rows, entries, 0)

    def parallel(x: Any, table: Any, y: Any, inner: int, rows: int, entries: int, slices: int) -> None:
        """Convert all of x on Numba's threads."""
        for i in prange(slices):
            start, stop = i * x.size // slices, (i + 1) * x.size // slices
            convert_rows(x[start:stop], table, y[start:stop], inner, rows, entries, start)

    def task(work_address: int, index: int) -> None:
        """Convert chunk `index` of a node's work, on one of ONNX Runtime's threads."""
        work = record_at(work_address, WORK)
        start = index * CHUNK
        size = work.size - start if work.size - start < CHUNK else CHUNK
        x, y = array_at(work.x + 4 * start, size, np.float32), array_at(work.y + 4 * start, size, np.float32)
        table = array_at(work.table, work.rows * (NUMBERS + work.entries), np.float32)
        convert_rows(x, table, y, work.inner, work.rows, work.entries, start)

    return serial, parallel, task


def fill(
    is_nearest: bool, one: Any, two: Any, source: Any, thresholds: Any, source_rows: int, table: Any, rows: int, entries: int
) -> bool:
    """Make the table of `rows` and `entries` from the numbers of a `calls.Rule` and the inputs of a node. Return whether all
    thresholds are valid. In "count" these are entries, in a row for each channel, and are always valid."""
    are_valid: Any = np.bool_(True)
    source_entries = source.size if is_nearest else source.size // source_rows
    for row in range(rows):
        source_row = row % source_rows
        threshold = thresholds[source_row] if is_nearest else np.float32(0)
        are_valid &= not is_nearest or threshold > 0
        table[row] = np.float32(threshold + two) if is_nearest else one
        table[rows + row] = one if is_nearest else two
        table[2 * rows + row] = threshold
        table[3 * rows + row] = source[0] if is_nearest else np.float32(0)
        begin = 0 if is_nearest else source_row * source_entries
        for k in range(entries):
            table[(NUMBERS + k) * rows + row] = source[begin + k] if k < source_entries else np.float32(np.nan)
    return bool(are_valid)


def fill_kernel() -> Any:
    """Return the kernel of `fill`."""
    numbers, sizes = (types.float32, types.float32), (types.intp, types.intp)
    signature = types.boolean(types.boolean, *numbers, READ, READ, types.intp, WRITTEN, *sizes)
    return array_function(fill, "fill_table", signature)


_ARGUMENTS = (READ, READ, WRITTEN, types.intp, types.intp, types.intp)

serial_kernel, parallel_kernel, task_function = variants(
    _loops, lambda operation: f"table_{operation}", lambda operation: _ARGUMENTS
)
