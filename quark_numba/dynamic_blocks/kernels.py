"""The loops over blocks: templates, and their compilation for a key of the dispatch table."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numba import prange, types

from ..compiling import jit
from ..compiling.intrinsics import allocate, array_at, record_at, release
from ..compiling.jit import unsigned
from ..element_types import packing
from . import arithmetic
from .key import Key

# Names in the templates, which a compilation binds.
magnitude_of: Any = None  # from ``arithmetic``
code_of: Any = None
factor_of: Any = None
convert: Any = None
convert_consecutive: Any = None  # `consecutive`, compiled
convert_columns: Any = None  # `columns`, compiled
convert_unit: Any = None  # `unit`, compiled
convert_part: Any = None  # `run`, compiled
pack: Any = None  # packing.regroup
IS_ROUND_TRIP: Any = None
IS_PACKED: Any = None
X_DTYPE: Any = None
Y_DTYPE: Any = None
Y_PER_BYTE: Any = None

# The number of elements that are converted together: their magnitudes and factors stay in the first-level cache.
TILE = 1 << 11

# The approximate number of elements that one call of a task converts.
CHUNK = 1 << 13

# The record that the tasks of a node share: addresses, the number of elements of x, the block size, the length of the rows, the
# number of parts of the work, and the scale of the tensor. A task that cannot allocate memory sets `has_failed`.
WORK = np.dtype(
    [(name, np.int64) for name in ("x", "y", "scales", "size", "block", "inner", "parts", "has_failed")]
    + [("tensor_scale", np.float32), ("unused", np.float32)]
)


@jit.function
def unit_shape(size: int, block: int, inner: int, is_packed: bool) -> Any:
    """Return (rows, width, across), which divide the work into units. A unit is `rows` rows of `width` columns, and `across`
    units lie side by side. If codes are packed, every row of a unit begins with a whole byte, or the unit does and its rows are
    as long as those of x."""
    if inner == 1:
        rows = max(1, TILE // block) * block
        return rows + block if is_packed and rows % 2 else rows, 1, 1
    if is_packed and inner % 2:
        return block + block % 2 * block, inner, 1
    width = min(inner, max(64, 4 * TILE // block // 2 * 2))
    return block, width, -(-inner // width)


@jit.function
def scratch_words(size: int, block: int, inner: int, is_packed: bool) -> Any:
    """Return the number of 32-bit words that `run` needs for magnitudes, as many again for factors, and those for codes."""
    rows, width, _ = unit_shape(size, block, inner, is_packed)
    return rows // block if inner == 1 else width, rows * width // 4 + 1 if is_packed else 1


def consecutive(
    x: Any, y: Any, scales: Any, tensor_scale: Any, block: int, at: Any, count: Any, largest: Any, factors: Any
) -> None:
    """Convert `count` blocks of consecutive elements. `at` has the index of the first element in x, in y and in the scales."""
    x_at, y_at, scale_at, n = unsigned(at[0]), unsigned(at[1]), unsigned(at[2]), unsigned(block)
    for b in range(count):
        most = np.uint32(0)
        for i in range(n):
            most = max(most, magnitude_of(x[x_at + b * n + i]))
        largest[b] = most
    for b in range(count):
        code = code_of(largest[b], tensor_scale)
        if not IS_ROUND_TRIP:
            scales[scale_at + b] = code
        factors[b] = factor_of(code, tensor_scale)
    for b in range(count):
        factor = factors[b]
        for i in range(n):
            y[y_at + b * n + i] = convert(x[x_at + b * n + i], factor)


def columns(
    x: Any, y: Any, scales: Any, tensor_scale: Any, block: int, inner: int, at: Any, width: Any, largest: Any, factors: Any
) -> None:
    """Convert `width` blocks side by side. `at` has the index of the first element in x, in y and in the scales, and the
    distance of rows in y."""
    x_at, y_at, scale_at, y_row = unsigned(at[0]), unsigned(at[1]), unsigned(at[2]), unsigned(at[3])
    for i in range(width):
        largest[i] = np.uint32(0)
    for row in range(unsigned(block)):
        begin = x_at + row * unsigned(inner)
        for i in range(width):
            largest[i] = max(largest[i], magnitude_of(x[begin + i]))
    for i in range(width):
        code = code_of(largest[i], tensor_scale)
        if not IS_ROUND_TRIP:
            scales[scale_at + i] = code
        factors[i] = factor_of(code, tensor_scale)
    for row in range(unsigned(block)):
        begin, to = x_at + row * unsigned(inner), y_at + row * y_row
        for i in range(width):
            y[to + i] = convert(x[begin + i], factors[i])


def unit(
    x: Any,
    y: Any,
    scales: Any,
    tensor_scale: Any,
    block: int,
    inner: int,
    at: Any,
    rows: int,
    width: int,
    largest: Any,
    factors: Any,
) -> None:
    """Convert `rows` rows of `width` elements. `at` is as for `columns`."""
    count = rows // block
    if inner == 1:
        convert_consecutive(x, y, scales, tensor_scale, block, at, unsigned(count), largest, factors)
    else:
        for b in range(count):
            of_block = (at[0] + b * block * inner, at[1] + b * block * at[3], at[2] + b * inner, at[3])
            convert_columns(x, y, scales, tensor_scale, block, inner, of_block, unsigned(width), largest, factors)


def run(x: Any, y: Any, scales: Any, tensor_scale: Any, block: int, inner: int, part: int, parts: int, scratch: Any) -> None:
    """Convert part `part` of the `parts` parts of x. `scratch` has room for `scratch_words`."""
    rows, width, across = unit_shape(x.size, block, inner, IS_PACKED)
    all_rows = x.size // inner
    units = -(-all_rows // rows) * across
    room, _ = scratch_words(x.size, block, inner, IS_PACKED)
    largest, factors, codes = scratch[:room], scratch[room : 2 * room].view(np.float32), scratch[2 * room :].view(np.uint8)
    for index in range(part * units // parts, (part + 1) * units // parts):
        down, i = divmod(index, across)
        first = down * rows
        n, count = min(width, inner - i * width), min(rows, all_rows - first)
        start, scale_at = first * inner + i * width, first // block * inner + i * width
        if not IS_PACKED:
            at = (start, start, scale_at, inner)
            convert_unit(x, y, scales, tensor_scale, block, inner, at, count, n, largest, factors)
            continue
        at = (start, 0, scale_at, n)
        convert_unit(x, codes, scales, tensor_scale, block, inner, at, count, n, largest, factors)
        pieces = 1 if n == inner else count
        size = count * n // pieces
        for piece in range(pieces):
            begin = (start + piece * inner) // Y_PER_BYTE
            pack(codes[piece * size : (piece + 1) * size], y[begin : begin + -(-size // Y_PER_BYTE)])


def serial(x: Any, y: Any, scales: Any, tensor_scale: Any, block: int, inner: int) -> None:
    """Convert all of x on the caller's thread."""
    words, of_codes = scratch_words(x.size, block, inner, IS_PACKED)
    convert_part(x, y, scales, tensor_scale, block, inner, 0, 1, np.empty(2 * words + of_codes, np.uint32))


def parallel(x: Any, y: Any, scales: Any, tensor_scale: Any, block: int, inner: int, slices: int) -> None:
    """Convert all of x on Numba's threads."""
    words, of_codes = scratch_words(x.size, block, inner, IS_PACKED)
    for i in prange(slices):
        convert_part(x, y, scales, tensor_scale, block, inner, i, slices, np.empty(2 * words + of_codes, np.uint32))


def task(work_address: int, index: int) -> None:
    """Do part `index` of a node's work, on a thread of ONNX Runtime."""
    work = record_at(work_address, WORK)
    words, of_codes = scratch_words(work.size, work.block, work.inner, IS_PACKED)
    size = 2 * words + of_codes
    address = allocate(4 * size)
    if address == 0:
        work.has_failed = 1
        return
    x = array_at(work.x, work.size, X_DTYPE)
    y = array_at(work.y, -(-work.size // Y_PER_BYTE), Y_DTYPE)
    scales = array_at(work.scales, work.size // work.block, np.uint8)
    scratch = array_at(address, size, np.uint32)
    convert_part(x, y, scales, work.tensor_scale, work.block, work.inner, index, work.parts, scratch)
    release(address)


def serial_kernel(key: Key) -> Any:
    """Return the kernel (x, y, scales, tensor_scale, block, inner) -> None. The arrays are flat and contiguous, of storage
    dtypes; codes of less than 8 bits have a byte each. In a round trip, scales may be empty."""
    signature = types.void(*_arrays(key), types.float32, types.int64, types.int64)
    return jit.kernel(serial, f"serial_{key.name}", signature, **_parts(key, is_packed=False))


def parallel_kernel(key: Key) -> Any:
    """Return the kernel (x, y, scales, tensor_scale, block, inner, slices) -> None."""
    signature = types.void(*_arrays(key), types.float32, types.int64, types.int64, types.intp)
    return jit.kernel(parallel, f"parallel_{key.name}", signature, parallel=True, **_parts(key, is_packed=False))


def task_function(key: Key) -> Any:
    """Return the C function void (int64_t work, size_t index) that ONNX Runtime's threads call."""
    is_packed = key.y.is_packed
    return jit.c_function(
        task,
        f"task_{key.name}",
        types.void(types.int64, types.intp),
        X_DTYPE=key.x.storage.type,
        Y_DTYPE=key.y.storage.type,
        Y_PER_BYTE=8 // key.y.bits if is_packed else 1,
        **_parts(key, is_packed=is_packed),
    )


@functools.cache
def _parts(key: Key, *, is_packed: bool) -> dict[str, Any]:
    names = {**arithmetic.functions(key), "IS_ROUND_TRIP": key.is_round_trip}
    convert_part = jit.function(
        run,
        f"run_{key.name}{'_packed' * is_packed}",
        convert_unit=jit.function(
            unit,
            f"unit_{key.name}{'_packed' * is_packed}",
            convert_consecutive=jit.inline(consecutive, **names),
            convert_columns=jit.inline(columns, **names),
        ),
        pack=packing.regroup_function(key.y.bits, 8) if is_packed else None,
        IS_PACKED=is_packed,
        Y_PER_BYTE=8 // key.y.bits if is_packed else 1,
    )
    return {"convert_part": convert_part, "IS_PACKED": is_packed}


def _arrays(key: Key) -> list[Any]:
    x, y = (numba.from_dtype(each.storage) for each in (key.x, key.y))
    return [types.Array(x, 1, "C", readonly=True), types.Array(y, 1, "C"), types.Array(types.uint8, 1, "C")]
