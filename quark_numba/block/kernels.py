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
from ..compiling.vectors import transpose
from ..element_types import FLOAT32
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
gather_blocks: Any = None  # `gather`, compiled
scatter_blocks: Any = None  # `scatter`, compiled
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
def runs_of(size: int, blocks: Any) -> Any:
    """Return (runs, count, step, width, tails) of blocks whose elements are consecutive in memory (`inner` is 1). A run is
    `count` whole blocks whose first elements are `step` apart; up to `width` of them, a unit, are converted side by side.
    `tails` is the number of short blocks at the ends of the axes, which are divided into units alike."""
    outer = size // blocks.length
    whole, rest = divmod(blocks.length, blocks.block)
    width = max(1, TILE // min(blocks.block, blocks.length))
    tails = outer if rest else outer * 0
    if whole >= outer:
        return outer, whole, blocks.block, width, tails
    return whole, outer, blocks.length, width, tails


@jit.function
def unit_shape(blocks: Any) -> Any:
    """Return (width, across), which divide blocks side by side (`inner` is not 1) into units: a unit is `width` columns of a
    row of blocks, and the row has `across` units."""
    sub_blocks = -(-min(blocks.block, blocks.length) // blocks.sub_block)
    across = -(-blocks.inner // max(1, TILE // sub_blocks))
    return -(-blocks.inner // across), across


@jit.function
def count_units(size: int, blocks: Any) -> int:
    """Return the number of units of a tensor of `size` elements. Threads share the units; a thread does its units in order."""
    if size == 0:
        return 0
    if blocks.inner == 1:
        runs, count, _, width, tails = runs_of(size, blocks)
        return runs * -(-count // width) + -(-tails // width)
    _, across = unit_shape(blocks)
    return size // (blocks.length * blocks.inner) * -(-blocks.length // blocks.block) * across


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
    return 2 * sub_blocks_at_a_time(blocks) + 3 * TILE


def gather(x: Any, start: int, step: int, count: int, rows: int, tile: Any, width: int) -> None:
    """Write `count` blocks of `rows` consecutive elements of x to the columns of a tile. The first elements of the blocks are
    `step` apart, and rows of the tile `width`."""
    for column in range(unsigned(count)):
        for row in range(unsigned(rows)):
            tile[row * unsigned(width) + column] = x[unsigned(start) + column * unsigned(step) + row]


def scatter(tile: Any, width: int, count: int, rows: int, y: Any, start: int, step: int) -> None:
    """Undo `gather`."""
    for column in range(unsigned(count)):
        for row in range(unsigned(rows)):
            y[unsigned(start) + column * unsigned(step) + row] = tile[row * unsigned(width) + column]


def gather_float32(x: Any, start: int, step: int, count: int, rows: int, tile: Any, width: int) -> None:
    """`gather` for float32."""
    transpose(x.ctypes.data + 4 * start, step, count, rows, tile.ctypes.data, width)


def scatter_float32(tile: Any, width: int, count: int, rows: int, y: Any, start: int, step: int) -> None:
    """`scatter` for float32."""
    transpose(tile.ctypes.data, width, rows, count, y.ctypes.data + 4 * start, step)


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


def columns(
    x: Any, y: Any, blocks: Any, stride: int, start: int, rows: int, width: int, exponents: Any, shared: Any, steps: Any
) -> None:
    """Convert blocks side by side: `width` columns of `rows` rows, which are `stride` apart. The index of their first element
    is `start`."""
    sub_blocks = -(-rows // blocks.sub_block)
    for i in range(sub_blocks * width):
        exponents[i] = 0
    for row in range(rows):
        at = unsigned(row // blocks.sub_block * width)
        begin = unsigned(start + row * stride)
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
        begin = unsigned(start + row * stride)
        convert_all(x, y, blocks, begin, unsigned(width), steps, at, bounds)


def run(x: Any, y: Any, blocks: Any, part: int, parts: int, scratch: Any) -> None:
    """Convert part `part` of the `parts` parts of x. `scratch` has room for `scratch_size` uint32."""
    if x.size == 1:  # returned as it is
        y[0] = x[0]
        return
    length, inner, block = blocks.length, blocks.inner, blocks.block
    units = count_units(x.size, blocks)
    first, last = part * units // parts, (part + 1) * units // parts
    if first == last:
        return
    room = sub_blocks_at_a_time(blocks)
    exponents, shared = scratch[:room], scratch[room : room + TILE]
    steps = scratch[room + TILE : 2 * room + TILE].view(np.float32)
    x_tile = scratch[2 * room + TILE : 2 * room + 2 * TILE].view(DTYPE)
    y_tile = scratch[2 * room + 2 * TILE : 2 * room + 3 * TILE].view(DTYPE)
    if inner > 1:
        width, across = unit_shape(blocks)
        for unit in range(first, last):
            down, i = divmod(unit, across)
            outer, b = divmod(down, -(-length // block))
            start = (outer * length + b * block) * inner + i * width
            rows, n = min(block, length - b * block), min(width, inner - i * width)
            convert_columns(x, y, blocks, inner, start, rows, n, exponents, shared, steps)
        return
    runs, count, step, width, tails = runs_of(x.size, blocks)
    across = -(-count // width)
    between = block if step == length else length  # from a run to the next
    for unit in range(first, last):
        at, i = divmod(unit, across)
        start, of_run, rows = at * between, count, block
        if unit >= runs * across:
            start, i, of_run, rows, step = length // block * block, unit - runs * across, tails, length % block, length
        start, n = start + i * width * step, min(width, of_run - i * width)
        if rows > TILE:
            convert_columns(x, y, blocks, inner, start, rows, n, exponents, shared, steps)
            continue
        # Rows of a tile begin with a cache line.
        padded = min(-(-n // 16) * 16, TILE // rows)
        gather_blocks(x, start, step, n, rows, x_tile, padded)
        convert_columns(x_tile, y_tile, blocks, padded, np.int64(0), rows, n, exponents, shared, steps)
        scatter_blocks(y_tile, padded, n, rows, y, start, step)


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
    is_float32 = jit.JIT_ENABLED and key.x is FLOAT32
    return jit.function(
        run,
        f"run_{key.name}",
        convert_columns=jit.function(columns, f"columns_{key.name}", **names),
        gather_blocks=jit.function(gather_float32 if is_float32 else gather, f"gather_{key.name}"),
        scatter_blocks=jit.function(scatter_float32 if is_float32 else scatter, f"scatter_{key.name}"),
        DTYPE=key.x.storage.type,
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
