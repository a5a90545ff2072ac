"""The loops over blocks that share an exponent: templates, and their compilation for a key of the table."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import carray, prange, types

from . import block_codecs, jit
from .block_formats import HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, HALF_UPWARD, BlockKey, Blocks
from .intrinsics import pointer
from .kernels import unsigned

# Names in the templates that a compilation binds.
exponent_of: Any = None  # of block_codecs
step_of: Any = None
convert: Any = None  # for a rounding mode
to_even: Any = None  # `convert_by`, compiled for a rounding mode
away_from_zero: Any = None
upward: Any = None
convert_all: Any = None  # `convert_by`, or `convert_in_mode` where there are several
convert_columns: Any = None  # `columns`, compiled
convert_row: Any = None  # `row`, compiled
convert_part: Any = None  # `run`, compiled
DTYPE: Any = None

# Elements that are worked on at a time: their exponents and steps stay in the first-level cache.
TILE = 1 << 11

# Elements that one call of a task converts, about.
CHUNK = 1 << 13

# The work of one node, as int64 words that `task` reads; the numbers of Blocks from WORK_BLOCKS on.
WORK_X, WORK_Y, WORK_SIZE, WORK_PARTS, WORK_BLOCKS = range(5)
WORK_LENGTH, WORK_INNER = (WORK_BLOCKS + Blocks._fields.index(name) for name in ("length", "inner"))
WORK_WORDS = WORK_BLOCKS + len(Blocks._fields)


@jit.function
def halve(exponents: Any, at: Any, count: Any, run: int) -> Any:
    """The maxima of each `run` elements, a power of two, of the `count` ones from `at` on: where they begin, and how many
    they are. They and those of shorter runs are put behind."""
    while run > 1:
        to = at + count
        count >>= unsigned(1)
        for i in range(count):
            exponents[to + i] = max(exponents[at + i + i], exponents[at + i + i + unsigned(1)])
        at = to
        run >>= 1
    return at, count


@jit.function
def spread(values: Any, at: Any, count: Any, run: int) -> Any:
    """Each of the `count` values from `at` on `run` times, a power of two: where they begin. They are put behind."""
    while run > 1:
        to = at + count
        for i in range(count):
            values[to + i + i] = values[at + i]
            values[to + i + i + unsigned(1)] = values[at + i]
        at = to
        count += count
        run >>= 1
    return at


@jit.function
def unit_shape(blocks: Any) -> Any:
    """Work divides into units, of a row of x, or of so many columns of a row of blocks: the elements of the row, or the
    columns; and how many units lie side by side."""
    if blocks.inner == 1:
        width = max(1, TILE // blocks.block) * blocks.block
        return width, -(-blocks.length // width)
    sub_blocks = -(-min(blocks.block, blocks.length) // blocks.sub_block)
    across = -(-blocks.inner // max(1, TILE // sub_blocks))
    return -(-blocks.inner // across), across


@jit.function
def count_units(size: int, blocks: Any) -> int:
    if size == 0:
        return 0
    _, across = unit_shape(blocks)
    outer = size // (blocks.length * blocks.inner)
    return outer * across if blocks.inner == 1 else outer * -(-blocks.length // blocks.block) * across


@jit.function
def bounds_of(blocks: Any) -> Any:
    """Of an element that is a whole number; and what is added to a result of zero to have its sign, or none, as in two's
    complement."""
    lowest, highest = np.float32(blocks.lowest), np.float32(blocks.highest)
    return lowest, highest, np.float32(-0.0) if lowest == -highest else np.float32(0)


def convert_by(x: Any, y: Any, blocks: Any, begin: Any, n: Any, steps: Any, at: Any, bounds: Any) -> None:
    """Elements that follow each other, with steps that do."""
    for i in range(n):
        y[begin + i] = convert(x[begin + i], steps[at + i], bounds)


def convert_in_mode(x: Any, y: Any, blocks: Any, begin: Any, n: Any, steps: Any, at: Any, bounds: Any) -> None:
    """The same in the rounding mode of the blocks."""
    if blocks.rounding_mode == HALF_AWAY_FROM_ZERO:
        away_from_zero(x, y, blocks, begin, n, steps, at, bounds)
    elif blocks.rounding_mode == HALF_UPWARD:
        upward(x, y, blocks, begin, n, steps, at, bounds)
    else:
        to_even(x, y, blocks, begin, n, steps, at, bounds)


def columns(x: Any, y: Any, blocks: Any, start: int, rows: int, width: int, exponents: Any, shared: Any, steps: Any) -> None:
    """The blocks that are side by side in so many columns, of which the first begins at `start`, and in these rows."""
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
    """Whole blocks one after the other. Their sizes are powers of two, so that each loop goes through many blocks."""
    begin = unsigned(start)
    for i in range(unsigned(n)):
        exponents[i] = exponent_of(x[begin + i])
    sub_blocks_a_block = blocks.block // blocks.sub_block
    largest, count = halve(exponents, unsigned(0), unsigned(n), blocks.sub_block)
    top, tops = halve(exponents, largest, count, sub_blocks_a_block)
    for i in range(tops):
        shared[i] = exponents[top + i]
    spread_out = spread(shared, unsigned(0), tops, sub_blocks_a_block)
    max_shift, drop = np.uint32(blocks.max_shift), np.int32(blocks.drop)
    for i in range(count):
        steps[i] = step_of(shared[spread_out + i], exponents[largest + i], max_shift, drop)
    at = spread(steps, unsigned(0), count, blocks.sub_block)
    bounds = bounds_of(blocks)
    convert_all(x, y, blocks, begin, unsigned(n), steps, at, bounds)


def run(x: Any, y: Any, blocks: Any, part: int, parts: int) -> None:
    """One of so many parts of the work."""
    if x.size == 1:  # passes through
        y[0] = x[0]
        return
    length, inner, block, sub_block = blocks.length, blocks.inner, blocks.block, blocks.sub_block
    width, across = unit_shape(blocks)
    units = count_units(x.size, blocks)
    first, last = part * units // parts, (part + 1) * units // parts
    if first == last:
        return
    room = max(TILE, -(-min(block, length) // sub_block))
    exponents, shared, steps = np.empty(2 * room, np.uint32), np.empty(2 * TILE, np.uint32), np.empty(2 * room, np.float32)
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
            convert_columns(x, y, blocks, start + done, rows, 1, exponents, shared, steps)
            done += rows


def parallel(x: Any, y: Any, blocks: Any, slices: int) -> None:
    """All of it, on Numba's threads."""
    for i in prange(slices):
        convert_part(x, y, blocks, i, slices)


def task(work_pointer: Any, index: int) -> None:
    """The part `index` of a node's work, on a thread of ONNX Runtime's."""
    work = carray(work_pointer, WORK_WORDS)
    x = carray(pointer(work[WORK_X]), work[WORK_SIZE], DTYPE)
    y = carray(pointer(work[WORK_Y]), work[WORK_SIZE], DTYPE)
    n = work[WORK_BLOCKS:]
    blocks = Blocks(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8])
    convert_part(x, y, blocks, index, work[WORK_PARTS])


def serial_kernel(key: BlockKey) -> Any:
    """(x, y, blocks, part, parts) -> None: flat contiguous arrays of x's storage dtype."""
    modes = {mode: jit.inline(convert_by, convert=convert) for mode, convert in block_codecs.converters(key).items()}
    convert_all = modes[HALF_TO_EVEN]
    if len(modes) > 1:
        names = {"to_even": HALF_TO_EVEN, "away_from_zero": HALF_AWAY_FROM_ZERO, "upward": HALF_UPWARD}
        convert_all = jit.inline(convert_in_mode, **{name: modes[mode] for name, mode in names.items()})
    names = block_codecs.exponent_functions(key) | {"convert_all": convert_all}
    return jit.kernel(
        run,
        _name("run", key),
        types.void(*_arrays(key), _BLOCKS, types.intp, types.intp),
        convert_columns=jit.function(columns, _name("columns", key), **names),
        convert_row=jit.function(row, _name("row", key), **names),
    )


def parallel_kernel(key: BlockKey, serial: Any) -> Any:
    """(x, y, blocks, slices) -> None"""
    signature = types.void(*_arrays(key), _BLOCKS, types.intp)
    return jit.kernel(parallel, _name("parallel", key), signature, parallel=True, convert_part=serial)


def task_function(key: BlockKey, serial: Any) -> Any:
    """The C function void (int64_t *work, size_t index) that ONNX Runtime's threads call."""
    signature = types.void(types.CPointer(types.int64), types.intp)
    return jit.c_function(task, _name("task", key), signature, convert_part=serial, DTYPE=key.x.storage.type)


_BLOCKS = types.NamedUniTuple(types.int64, len(Blocks._fields), Blocks)


def _arrays(key: BlockKey) -> list[Any]:
    item = numba.from_dtype(key.x.storage)
    return [types.Array(item, 1, "C", readonly=True), types.Array(item, 1, "C")]


def _name(template: str, key: BlockKey) -> str:
    element = key.element.name if key.element else "whole"
    return f"blocks_{template}_{key.x.name}_{element}" + "_prime" * key.is_prime + "_via_bfloat16" * key.via_bfloat16
