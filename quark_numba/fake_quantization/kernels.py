"""The loops of a key of the dispatch table, the functions that compile them, and how many elements a call of a task converts.

The numbers of a format lie in a flat array: the first number of each row, then the second one of each row, and so on. A row is
what `granularity` calls one: elements that share all numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import prange, types

from ..compiling import jit
from ..compiling.array_functions import array_function
from ..compiling.intrinsics import array_at, record_at
from ..compiling.jit import unsigned
from ..compiling.records import words
from ..compiling.text import function_of
from ..compiling.variants import Loops, variants
from .arithmetic import converter, preparer
from .key import FORMS, Key, count_numbers, dtype_of

# The number of elements that one call of a task converts: see linear.kernels.
CHUNK = 1 << 14

# The record that a node's tasks share: addresses of the tensors' elements and of the numbers; the elements of x, those of a
# row that lie side by side, and the rows.
WORK = words("x", "y", "numbers", "size", "inner", "rows")

# The type of a counter that is passed to functions: see linear.kernels.
signed = np.intp if jit.JIT_ENABLED else int


def _run(key: Key) -> Any:
    convert, numbers_of = converter(key), _numbers_of(key)

    def run(x: Any, numbers: Any, y: Any, inner: int, rows: int, start: int) -> None:
        """Convert x, which begins at element `start` of a tensor. In the tensor `inner` elements are of row 0, as many of row
        1, and so on; row 0 follows the last row."""
        done, size = signed(0), x.size
        row = start // inner
        column = start - row * inner
        row %= rows
        while done < size:
            if inner == 1:
                n = rows - row if rows - row < size - done else size - done
                offset = unsigned(row - done)
                for i in range(unsigned(done), unsigned(done + n)):
                    y[i] = convert(x[i], numbers_of(numbers, unsigned(rows), i + offset))
                row = 0
            else:
                n = inner - column if inner - column < size - done else size - done
                row_numbers = numbers_of(numbers, unsigned(rows), unsigned(row))
                for i in range(unsigned(done), unsigned(done + n)):
                    y[i] = convert(x[i], row_numbers)
                column = 0
                row = row + 1 if row + 1 < rows else 0
            done += n

    return jit.expand(run)


@functools.cache
def _loops(key: Key) -> Loops:
    convert_rows, count, dtype = _run(key), count_numbers(key), dtype_of(key)

    def serial(x: Any, numbers: Any, y: Any, inner: int, rows: int) -> None:
        """Convert all of x on one thread."""
        convert_rows(x, numbers, y, inner, rows, 0)

    def parallel(x: Any, numbers: Any, y: Any, inner: int, rows: int, slices: int) -> None:
        """Convert all of x on Numba's threads."""
        for i in prange(slices):
            start, stop = i * x.size // slices, (i + 1) * x.size // slices
            convert_rows(x[start:stop], numbers, y[start:stop], inner, rows, start)

    def task(work_address: int, index: int) -> None:
        """Convert chunk `index` of a node's work, on one of ONNX Runtime's threads."""
        work = record_at(work_address, WORK)
        start = index * CHUNK
        size = work.size - start if work.size - start < CHUNK else CHUNK
        x, y = array_at(work.x + 4 * start, size, np.float32), array_at(work.y + 4 * start, size, np.float32)
        convert_rows(x, array_at(work.numbers, work.rows * count, dtype), y, work.inner, work.rows, start)

    return serial, parallel, task


def _prepare(key: Key) -> Callable[[Any, Any, int], bool]:
    make = _make(key)

    def prepare(parameters: Any, numbers: Any, rows: int) -> bool:
        """Write the numbers of all rows for the parameters, which lie in the same order. Return whether the parameters are
        valid."""
        are_valid = np.bool_(True)
        for row in range(rows):
            are_valid &= make(parameters, rows, row, numbers)
        return bool(are_valid)

    return prepare


def prepare_kernel(key: Key) -> Any:
    """Return the kernel (parameters, numbers, rows) -> whether they are valid."""
    dtypes = (types.float64, numba.from_dtype(np.dtype(dtype_of(key))))
    signature = types.boolean(*(types.Array(dtype, 1, "C") for dtype in dtypes), types.intp)
    return array_function(_prepare(key), f"prepare_{key.form.replace(' ', '_')}", signature)


@functools.cache
def prepare_function(key: Key) -> Any:
    """Return the C function int64_t (int64_t parameters, int64_t numbers, int64_t rows), which does what `_prepare` does for
    arrays at these addresses."""
    prepare_rows, count, dtype = jit.expand(_prepare(key)), count_numbers(key), dtype_of(key)
    parameter_count = len(FORMS[key.form].parameters)

    def prepare_at(parameters_address: int, numbers_address: int, rows: int) -> int:
        parameters = array_at(parameters_address, rows * parameter_count, np.float64)
        return 1 if prepare_rows(parameters, array_at(numbers_address, rows * count, dtype), rows) else 0

    signature = types.int64(types.int64, types.int64, types.int64)
    return jit.c_function(prepare_at, f"prepare_at_{key.form.replace(' ', '_')}", signature)


def _numbers_of(key: Key) -> Any:
    """Return the function (the numbers of all rows, the number of rows, row) -> the numbers of a row."""
    items = "".join(f"numbers[{k} * rows + row], " for k in range(count_numbers(key)))
    text = f"def numbers_of(numbers, rows, row):\n    return ({items})\n"
    return jit.inline(function_of(text, __name__, __file__, {}))


def _make(key: Key) -> Any:
    """Return the function (the parameters of all rows, the number of rows, row, the numbers of all rows) that writes the
    numbers of a row, and returns whether they are valid."""
    count = count_numbers(key)
    parameters = ", ".join(f"parameters[{k} * rows + row]" for k in range(len(FORMS[key.form].parameters)))
    lines = [
        "def make(parameters, rows, row, numbers):",
        f"    is_valid, made = prepared({parameters})",
        *(f"    numbers[{k} * rows + row] = made[{k}]" for k in range(count)),
        "    return is_valid",
    ]
    names = {"prepared": preparer(key)}
    return jit.inline(function_of("\n".join(lines) + "\n", __name__, __file__, names))


def _arguments(key: Key) -> list[Any]:
    read = [types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C", readonly=True) for dtype in (np.float32, dtype_of(key))]
    return [*read, types.Array(types.float32, 1, "C"), types.intp, types.intp]


serial_kernel, parallel_kernel, task_function = variants(_loops, lambda key: key.name, _arguments)
