"""The tiles of y for programs with steps of blocks: whole blocks side by side, in buffers in the first-level cache."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from ..block.granularity import tile_width
from ..compiling import jit
from ..compiling.intrinsics import allocate, array_at, call, copy_bytes, record_at, release, stack
from ..compiling.jit import unsigned
from .kernels import CHUNK, WORK, full_inputs, row_offset, spread
from .lanes import load_lanes, store_lanes
from .source import FILLED_COLUMNS, FILLED_ROWS, FUNCTIONS, HAS_FAILED, PASSES, ROOM, ROWS

# The words of a run, which is a number of columns that are side by side in y too: the first column in the tile, the number of
# columns, and the index in y of the first element.
_RUN_WORDS = 3

_width = jit.function(tile_width)


@jit.function
def _columns_a_chunk(block: int, rows: int) -> int:
    """Return the number of columns of `rows` rows that one call of a task does."""
    width = _width(block)
    return width * max(1, CHUNK // (width * rows))


def count_chunks(size: int, block: int, length: int, inner: int) -> int:
    """Return the number of chunks: first those of whole blocks, then those of the short blocks at the end of an axis."""
    down, rest = divmod(length, block)
    outer = size // (length * inner)
    count = -(-outer * down * inner // _columns_a_chunk(block, block))
    if rest:
        count += -(-outer * inner // _columns_a_chunk(block, rest))
    return count


@jit.function
def load(
    work_address: int, k: int, itemsize: int, is_full: bool, column: int, n: int, index: int, rows: int, width: int, buffer: int
) -> None:
    """Write the part of the tile of input k for a run of columns into its buffer."""
    work = record_at(work_address, WORK)
    data = array_at(work.inputs, k + 1, np.int64)[k]
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    length = lengths[work.dimensions - 1]
    has_last = (masks[work.dimensions - 1] >> k) & 1 == 1
    is_one_a_row = itemsize == 4 and length == work.inner and not has_last
    is_one_row = has_last and index % length + n <= length
    for d in range(work.dimensions - 1):
        is_one_row &= (masks[d] >> k) & 1 == 0
    target = buffer + column * itemsize
    if is_full or (is_one_row and work.inner % length == 0):
        source, step = data + index * itemsize, work.inner * itemsize
        if not is_full:
            source, step = data + index % length * itemsize, np.int64(0)
        for _ in range(rows):
            copy_bytes(source, target, n * itemsize)
            source += step
            target += width * itemsize
    elif is_one_a_row:
        first = index // length
        for row in range(rows):
            offset = row_offset(first + row, k, work.dimensions, lengths, masks)
            words = array_at(target, n, np.float32)
            value = array_at(data + offset * 4, 1, np.float32)[0]
            for i in range(unsigned(n)):
                words[i] = value
            target += width * 4
    else:
        for row in range(rows):
            source = spread(work_address, k, itemsize, index + row * work.inner, n, target, np.int64(0))
            if source != target:
                copy_bytes(source, target, n * itemsize)
            target += width * itemsize


@jit.expand
def _store(work: Any, column: int, n: int, index: int, rows: int, width: int, tile: int) -> None:
    """Write a run of columns of the tile to y."""
    source, target = tile + column * 4, work.y + index * 4
    for _ in range(rows):
        copy_bytes(source, target, n * 4)
        source += width * 4
        target += work.inner * 4


@jit.expand
def _columns_of(work: Any, index: int) -> Any:
    """Return (the rows of the blocks, the first row, the blocks along an axis, the first column, the column behind the last) of
    a chunk. It has whole blocks alone, or the short ones at the end of an axis."""
    block = work.block
    down, rest = divmod(work.length, block)
    outer = work.size // (work.length * work.inner)
    rows, columns, above = block, outer * down * work.inner, np.int64(0)
    whole = -(-columns // _columns_a_chunk(block, block))
    if index >= whole:
        index -= whole
        rows, columns, above, down = rest, outer * work.inner, down * block, np.int64(1)
    a_chunk = _columns_a_chunk(block, rows)
    return rows, above, down, index * a_chunk, min((index + 1) * a_chunk, columns)


@jit.expand
def _set_runs(work: Any, runs: Any, start: int, n: int, above: int, down: int) -> int:
    """Write the runs of the n columns from `start` on, and return the number of words. `above` and `down` are the first row and
    the blocks along an axis."""
    inner = work.inner
    done = at = 0
    while done < n:
        blocks_above, column = divmod(start + done, inner)
        o, b = divmod(blocks_above, down)
        m = min(inner - column, n - done)
        runs[at], runs[at + 1], runs[at + 2] = done, m, (o * work.length + above + b * work.block) * inner + column
        at += _RUN_WORDS
        done += m
    return at


def chunk(work_address: int, index: int) -> None:
    """Do chunk `index` of a node's work, on a thread of ONNX Runtime.

    A column is a block of y, and columns are numbered through all of y. A tile is a number of columns, stored row by row: there
    is a buffer for each input of more than one element, and one for y."""
    work = record_at(work_address, WORK)
    count, width = work.count, _width(work.block)
    rows, above, down, first, last = _columns_of(work, index)
    words = count + FUNCTIONS + 2 * work.formats
    addresses = array_at(stack(words), words, np.int64)
    functions = array_at(work.functions, 2 * work.formats, np.int64)
    for k in range(2 * work.formats):
        addresses[count + FUNCTIONS + k] = functions[k]
    tile_rows = -(-rows // work.group) * work.group
    addresses[count + PASSES], addresses[count + ROWS], addresses[count + FILLED_ROWS] = work.size == 1, tile_rows, rows
    addresses[count + HAS_FAILED] = 0
    inputs, itemsizes = array_at(work.inputs, count, np.int64), array_at(work.itemsizes, count, np.int64)
    full = full_inputs(work_address)
    tile = tile_rows * width * 8
    runs_at = (work.streams + 1) * tile + work.buffers_size
    spare_at = runs_at + width * _RUN_WORDS * 8
    room = allocate(spare_at + min(width, work.inner) * work.lanes * 8)
    if room == 0:
        work.has_failed = 1
        return
    runs, spare = array_at(room + runs_at, width * _RUN_WORDS, np.int64), room + spare_at
    addresses[count + ROOM] = room + (work.streams + 1) * tile
    for start in range(first, last, width):
        n = addresses[count + FILLED_COLUMNS] = min(width, last - start)
        run_words = _set_runs(work, runs, start, n, above, down)
        buffer = room + tile
        for k in range(count):
            addresses[k] = inputs[k]
            if itemsizes[k]:  # more than one element
                addresses[k] = buffer
                is_full = (full >> k) & 1 == 1
                for at in range(0, run_words, _RUN_WORDS):
                    column, m, first_index = runs[at], runs[at + 1], runs[at + 2]
                    if work.lanes > 1:
                        load_lanes(work_address, k, itemsizes[k], is_full, column, m, first_index, rows, width, buffer, spare)
                    else:
                        load(work_address, k, itemsizes[k], is_full, column, m, first_index, rows, width, buffer)
                buffer += tile
        call(work.run, (addresses.ctypes.data, room, tile_rows * width))
        for at in range(0, run_words, _RUN_WORDS):
            if work.lanes > 1:
                store_lanes(work_address, runs[at], runs[at + 1], runs[at + 2], rows, width, room)
            else:
                _store(work, runs[at], runs[at + 1], runs[at + 2], rows, width, room)
    if addresses[count + HAS_FAILED]:
        work.has_failed = 1
    release(room)


@functools.cache
def chunk_function() -> Any:
    """Return the C function void (int64_t work, size_t index), as ``kernels.chunk_function``, for programs with steps of
    blocks."""
    return jit.c_function(chunk, "chunk_region_of_blocks", types.void(types.int64, types.intp))
