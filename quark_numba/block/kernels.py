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
from . import arithmetic
from .formats import HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, HALF_UPWARD
from .granularity import Blocks
from .key import Key

# Names in the templates, which a compilation binds to functions.
exponent_of: Any = None  # from ``arithmetic``
step_of: Any = None
convert: Any = None  # the converter of a rounding mode
to_even: Any = None  # `convert_by`, compiled for a rounding mode
away_from_zero: Any = None
upward: Any = None
convert_all: Any = None  # `convert_by`, or `convert_in_mode` if there are several rounding modes
convert_columns: Any = None  # `columns`, compiled
convert_row: Any = None  # `row`, compiled
convert_part: Any = None  # `run`, compiled
writeable: Any = None  # from `_writeable`
DTYPE: Any = None

# The number of elements that are converted together: their exponents and steps stay in the first-level cache.
TILE = 1 << 11

# The approximate number of elements that one call of a task converts.
CHUNK = 1 << 13

# The record that the tasks of a node share: the addresses of the elements of x and y, their number, the number of parts of the
# work, the format and the loop. A task that cannot allocate memory sets the last field.
WORK = np.dtype([(name, np.int64) for name in ("x", "y", "size", "parts", *Blocks._fields, "has_failed")])


@jit.function
def group_maxima(values: Any, at: Any, count: Any, group: int) -> Any:
    """Compute the maximum of each `group` consecutive values, of the `count` values from index `at` on; `group` is a power of
    two. Return the index at which the maxima begin, and their number.

    Each round writes the maxima of pairs behind the values of the round before: with group = 4 there are two rounds. So
    `values` has to have room for `count` more values."""
    while group > 1:
        to = at + count
        count >>= unsigned(1)
        for i in range(count):
            values[to + i] = max(values[at + i + i], values[at + i + i + unsigned(1)])
        at = to
        group >>= 1
    return at, count


@jit.function
def repeat_each(values: Any, at: Any, count: Any, times: int) -> Any:
    """Repeat each of the `count` values from index `at` on `times` times, a power of two. Return the index at which the result
    begins.

    Each round doubles the values behind those of the round before: a, b becomes a, a, b, b. So `values` has to have room for
    twice the result.
    """
    while times > 1:
        to = at + count
        for i in range(count):
            values[to + i + i] = values[at + i]
            values[to + i + i + unsigned(1)] = values[at + i]
        at = to
        count += count
        times >>= 1
    return at


@jit.function
def unit_shape(blocks: Any) -> Any:
    """Return (width, across), which divide the work into units. Threads share the units; a thread does its units in order.

    If the elements of a block are consecutive in memory (`inner` is 1), a unit is `width` elements of an axis, and an axis has
    `across` units; all but the last one hold whole blocks only. Otherwise a unit is `width` columns of a row of blocks, and the
    row has `across` units."""
    if blocks.inner == 1:
        width = max(1, TILE // blocks.block) * blocks.block
        return width, -(-blocks.length // width)
    sub_blocks = -(-min(blocks.block, blocks.length) // blocks.sub_block)
    across = -(-blocks.inner // max(1, TILE // sub_blocks))
    return -(-blocks.inner // across), across


@jit.function
def count_units(size: int, blocks: Any) -> int:
    """Return the number of units of a tensor of `size` elements."""
    if size == 0:
        return 0
    _, across = unit_shape(blocks)
    outer = size // (blocks.length * blocks.inner)
    return outer * across if blocks.inner == 1 else outer * -(-blocks.length // blocks.block) * across


@jit.function
def bounds_of(blocks: Any) -> Any:
    """Return (lowest, highest, zero) for elements that are whole numbers of steps. `zero` is added to a result: -0 keeps the
    sign of a zero, for sign and magnitude; 0 clears it, for two's complement, which has no -0."""
    lowest, highest = np.float32(blocks.lowest), np.float32(blocks.highest)
    return lowest, highest, np.float32(-0.0) if lowest == -highest else np.float32(0)


@jit.function
def sub_blocks_at_a_time(blocks: Any) -> int:
    """Return the largest number of steps of a unit: the sub-blocks of one column, or the elements of a tile if there are
    more of them."""
    return max(TILE, -(-min(blocks.block, blocks.length) // blocks.sub_block))


@jit.function
def scratch_size(blocks: Any) -> int:
    """Return the number of 32-bit words that `run` needs as scratch memory."""
    return 4 * sub_blocks_at_a_time(blocks) + 2 * TILE


def convert_by(x: Any, y: Any, blocks: Any, begin: Any, n: Any, steps: Any, at: Any, bounds: Any) -> None:
    """Convert `n` consecutive elements from `begin` on, with consecutive steps from `at` on."""
    for i in range(n):
        y[begin + i] = convert(x[begin + i], steps[at + i], bounds)


def convert_in_mode(x: Any, y: Any, blocks: Any, begin: Any, n: Any, steps: Any, at: Any, bounds: Any) -> None:
    """Convert as `convert_by`, in the rounding mode of the blocks."""
    if blocks.rounding_mode == HALF_AWAY_FROM_ZERO:
        away_from_zero(x, y, blocks, begin, n, steps, at, bounds)
    elif blocks.rounding_mode == HALF_UPWARD:
        upward(x, y, blocks, begin, n, steps, at, bounds)
    else:
        to_even(x, y, blocks, begin, n, steps, at, bounds)


def columns(x: Any, y: Any, blocks: Any, start: int, rows: int, width: int, exponents: Any, shared: Any, steps: Any) -> None:
    """Convert blocks side by side: `width` columns of `rows` rows. The index of their first element is `start`."""
    sub_blocks = -(-rows // blocks.sub_block)
    for i in range(sub_blocks * width):
        exponents[i] = 0
    for row in range(rows):
        at = unsigned(row // blocks.sub_block * width)
        begin = unsigned(start + row * blocks.inner)
        for i in range(unsigned(width)):
            exponents[at + i] = max(exponents[at + i], exponent_of(x[begin + i]))
    for i in range(width):
        shared[i] = 0
    for sub in range(sub_blocks):
        at = unsigned(sub * width)
        for i in range(unsigned(width)):
            shared[i] = max(shared[i], exponents[at + i])
    max_shift, drop = np.uint32(blocks.max_shift), np.int32(blocks.drop)
    for sub in range(sub_blocks):
        at = unsigned(sub * width)
        for i in range(unsigned(width)):
            steps[at + i] = step_of(shared[i], exponents[at + i], max_shift, drop)
    bounds = bounds_of(blocks)
    for row in range(rows):
        at = unsigned(row // blocks.sub_block * width)
        begin = unsigned(start + row * blocks.inner)
        convert_all(x, y, blocks, begin, unsigned(width), steps, at, bounds)


def row(x: Any, y: Any, blocks: Any, start: int, n: int, exponents: Any, shared: Any, steps: Any) -> None:
    """Convert whole blocks of consecutive elements: `n` elements from `start` on. The sizes of blocks and sub-blocks are powers
    of two, so that each loop runs over the elements of many blocks and is long enough for vector instructions."""
    begin = unsigned(start)
    for i in range(unsigned(n)):
        exponents[i] = exponent_of(x[begin + i])
    sub_blocks_a_block = blocks.block // blocks.sub_block
    largest, count = group_maxima(exponents, unsigned(0), unsigned(n), blocks.sub_block)
    top, tops = group_maxima(exponents, largest, count, sub_blocks_a_block)
    for i in range(tops):
        shared[i] = exponents[top + i]
    spread_out = repeat_each(shared, unsigned(0), tops, sub_blocks_a_block)
    max_shift, drop = np.uint32(blocks.max_shift), np.int32(blocks.drop)
    for i in range(count):
        steps[i] = step_of(shared[spread_out + i], exponents[largest + i], max_shift, drop)
    at = repeat_each(steps, unsigned(0), count, blocks.sub_block)
    bounds = bounds_of(blocks)
    convert_all(x, y, blocks, begin, unsigned(n), steps, at, bounds)


def run(x: Any, y: Any, blocks: Any, part: int, parts: int, scratch: Any) -> None:
    """Convert part `part` of the `parts` parts of x. `scratch` has room for `scratch_size` uint32."""
    if x.size == 1:  # returned as it is
        y[0] = x[0]
        return
    length, inner, block, sub_block = blocks.length, blocks.inner, blocks.block, blocks.sub_block
    width, across = unit_shape(blocks)
    units = count_units(x.size, blocks)
    first, last = part * units // parts, (part + 1) * units // parts
    if first == last:
        return
    room = sub_blocks_at_a_time(blocks)
    exponents, shared = scratch[: 2 * room], scratch[2 * room : 2 * room + 2 * TILE]
    steps = scratch[2 * room + 2 * TILE : 4 * room + 2 * TILE].view(np.float32)
    by_halves = block <= TILE and block & (block - 1) == 0 and sub_block & (sub_block - 1) == 0
    for unit in range(first, last):
        down, i = divmod(unit, across)
        if inner > 1:
            outer, b = divmod(down, -(-length // block))
            start = (outer * length + b * block) * inner + i * width
            rows, n = min(block, length - b * block), min(width, inner - i * width)
            convert_columns(x, y, blocks, start, rows, n, exponents, shared, steps)
            continue
        start, n = down * length + i * width, min(width, length - i * width)
        done = 0
        if by_halves and n >= block:
            done = n // block * block
            convert_row(x, y, blocks, start, done, exponents, shared, steps)
        while done < n:
            rows = min(block, n - done)
            convert_columns(x, y, blocks, start + done, rows, np.int64(1), exponents, shared, steps)
            done += rows


def serial(x: Any, y: Any, blocks: Any) -> None:
    """Convert all of x on the caller's thread."""
    convert_part(writeable(x), y, blocks, np.int64(0), np.int64(1), np.empty(scratch_size(blocks), np.uint32))


def parallel(x: Any, y: Any, blocks: Any, slices: int) -> None:
    """Convert all of x on Numba's threads."""
    for i in prange(slices):
        convert_part(writeable(x), y, blocks, np.int64(i), slices, np.empty(scratch_size(blocks), np.uint32))


def task(work_address: int, index: int) -> None:
    """Do part `index` of a node's work, on a thread of ONNX Runtime."""
    work = record_at(work_address, WORK)
    blocks = Blocks(
        work.block,
        work.sub_block,
        work.max_shift,
        work.drop,
        work.lowest,
        work.highest,
        work.rounding_mode,
        work.length,
        work.inner,
    )
    size = scratch_size(blocks)
    address = allocate(4 * size)
    if address == 0:
        work.has_failed = 1
        return
    x, y = array_at(work.x, work.size, DTYPE), array_at(work.y, work.size, DTYPE)
    convert_part(x, y, blocks, index, work.parts, array_at(address, size, np.uint32))
    release(address)


def serial_kernel(key: Key) -> Any:
    """Return the kernel (x, y, blocks) -> None; x and y are flat contiguous arrays of x's storage dtype, blocks is a
    ``granularity.Blocks``."""
    signature = types.void(*_arrays(key), _BLOCKS)
    return jit.kernel(serial, f"serial_{key.name}", signature, convert_part=_run(key), writeable=_writeable(key))


def parallel_kernel(key: Key) -> Any:
    """Return the kernel (x, y, blocks, slices) -> None."""
    signature = types.void(*_arrays(key), _BLOCKS, types.intp)
    names: dict[str, Any] = {"convert_part": _run(key), "writeable": _writeable(key)}
    return jit.kernel(parallel, f"parallel_{key.name}", signature, parallel=True, **names)


def task_function(key: Key) -> Any:
    """Return the C function void (int64_t work, size_t index) that ONNX Runtime's threads call."""
    signature = types.void(types.int64, types.intp)
    return jit.c_function(task, f"task_{key.name}", signature, convert_part=_run(key), DTYPE=key.x.storage.type)


@functools.cache
def _run(key: Key) -> Any:
    modes = {mode: jit.inline(convert_by, convert=convert) for mode, convert in arithmetic.converters(key).items()}
    convert_all = modes[HALF_TO_EVEN]
    if len(modes) > 1:
        names = {"to_even": HALF_TO_EVEN, "away_from_zero": HALF_AWAY_FROM_ZERO, "upward": HALF_UPWARD}
        convert_all = jit.inline(convert_in_mode, **{name: modes[mode] for name, mode in names.items()})
    names = arithmetic.exponent_functions(key) | {"convert_all": convert_all}
    return jit.function(
        run,
        f"run_{key.name}",
        convert_columns=jit.function(columns, f"columns_{key.name}", **names),
        convert_row=jit.function(row, f"row_{key.name}", **names),
    )


@functools.cache
def _writeable(key: Key) -> Any:
    """Return the function that gives a read-only x the type that `task` has for it. Otherwise `run` would be compiled for both
    types."""
    dtype = key.x.storage.type
    return jit.inline(lambda x: array_at(x.ctypes.data, x.size, dtype)) if jit.JIT_ENABLED else lambda x: x


_BLOCKS = types.NamedUniTuple(types.int64, len(Blocks._fields), Blocks)


def _arrays(key: Key) -> list[Any]:
    item = numba.from_dtype(key.x.storage)
    return [types.Array(item, 1, "C", readonly=True), types.Array(item, 1, "C")]
