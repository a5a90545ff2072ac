"""The tiles of y for programs that round to block formats: whole blocks side by side, in buffers in the first-level cache.

A column of a tile is a block of y. Columns are numbered through all of y: first the whole blocks, then the short ones at the
end of an axis. A chunk has columns of one of these kinds alone.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from ..block.granularity import tile_width
from ..compiling import jit
from ..compiling.intrinsics import allocate, array_at, call, copy_bytes, record_at, release, stack
from ..compiling.jit import unsigned
from ..compiling.records import new_record, words
from .kernels import CHUNK, WORK, full_inputs, row_offset, spread
from .lanes import load_lanes, store_lanes
from .source import TILE_WORK

# A span: columns of the tile that are side by side in y too. The first column in the tile, the number of columns, and the index
# in y of the first element, as if y were in ONNX's layout.
SPAN = words("column", "count", "index")

_SPAN_SIZE = SPAN.itemsize

_width = jit.function(tile_width)


@jit.function
def _columns_per_chunk(block: int, rows: int) -> int:
    """Return the number of columns of `rows` rows that one call of a task does."""
    width = _width(block)
    return width * max(1, CHUNK // (width * rows))


def count_chunks(block: int, outer: int, length: int, inner: int) -> int:
    """Return the number of chunks for a y of this shape, as in WORK: first those of whole blocks, then those of short ones."""
    whole_blocks, short_rows = divmod(length, block)
    chunks = -(-outer * whole_blocks * inner // _columns_per_chunk(block, block))
    if short_rows:
        chunks += -(-outer * inner // _columns_per_chunk(block, short_rows))
    return chunks


@jit.function
def load(work_address: int, k: int, itemsize: int, is_full: bool, span: Any, rows: int, width: int, buffer: int) -> None:
    """Write the part of the tile of input k for a span into its buffer."""
    work, n, index = record_at(work_address, WORK), span.count, span.index
    data = array_at(work.inputs, k + 1, np.int64)[k]
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    length = lengths[work.dimensions - 1]
    has_last = (masks[work.dimensions - 1] >> k) & 1 == 1
    # Each row of the tile is one element of the input, repeated.
    repeats_elements = itemsize == 4 and length == work.inner and not has_last
    # All rows of the tile are the same elements of the input, which are side by side.
    repeats_row = has_last and index % length + n <= length and work.inner % length == 0
    for d in range(work.dimensions - 1):
        repeats_row &= (masks[d] >> k) & 1 == 0
    target = buffer + span.column * itemsize
    if is_full or repeats_row:
        source, step = data + index * itemsize, work.inner * itemsize
        if not is_full:
            source, step = data + index % length * itemsize, np.int64(0)
        for _ in range(rows):
            copy_bytes(source, target, n * itemsize)
            source += step
            target += width * itemsize
    elif repeats_elements:
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
            source, _ = spread(work_address, k, itemsize, index + row * work.inner, n, target, np.int64(0))
            if source != target:
                copy_bytes(source, target, n * itemsize)
            target += width * itemsize


@jit.expand
def _store(work: Any, span: Any, rows: int, width: int, tile: int) -> None:
    """Write a span of the tile to y."""
    source, target = tile + span.column * 4, work.y + span.index * 4
    for _ in range(rows):
        copy_bytes(source, target, span.count * 4)
        source += width * 4
        target += work.inner * 4


@jit.expand
def _columns_of(work: Any, number: int) -> Any:
    """Return what a chunk has: (rows of each block, index of the first row in `length`, blocks along `length`, first column,
    column after the last)."""
    rows, first_row = work.block, np.int64(0)
    blocks, short_rows = divmod(work.length, rows)
    columns = work.outer * blocks * work.inner
    whole_chunks = -(-columns // _columns_per_chunk(work.block, rows))
    if number >= whole_chunks:
        number -= whole_chunks
        rows, first_row, blocks, columns = short_rows, blocks * work.block, np.int64(1), work.outer * work.inner
    per_chunk = _columns_per_chunk(work.block, rows)
    return rows, first_row, blocks, number * per_chunk, min((number + 1) * per_chunk, columns)


@jit.expand
def _set_spans(work: Any, spans: Any, start: int, n: int, first_row: int, blocks: int) -> int:
    """Write the spans of the n columns from `start` on, and return their number. `first_row` and `blocks` are from
    `_columns_of`."""
    count = column = 0
    while column < n:
        number, offset = divmod(start + column, work.inner)
        outer, block = divmod(number, blocks)
        span = spans[count]
        span.column, span.count = column, min(work.inner - offset, n - column)
        span.index = (outer * work.length + first_row + block * work.block) * work.inner + offset
        column += span.count
        count += 1
    return count


def chunk(work_address: int, number: int) -> None:
    """Do a chunk of a node's work, on a thread of ONNX Runtime. The chunks are numbered.

    A tile is stored row by row. The memory has a tile for y, one for each input of more than one element, the program's
    buffers, the spans of a tile, and the scratch of `load_lanes`."""
    work = record_at(work_address, WORK)
    count, width = work.count, _width(work.block)
    rows, first_row, blocks, first, last = _columns_of(work, number)
    tile_address, tile = new_record(TILE_WORK)
    addresses = array_at(stack(count), count, np.int64)
    tile.inputs, tile.functions = addresses.ctypes.data, work.functions
    tile.rows, tile.filled_rows = -(-rows // work.group_size) * work.group_size, rows
    tile.is_unchanged, tile.has_failed = work.outer * work.length * work.inner == 1, 0
    inputs, itemsizes = array_at(work.inputs, count, np.int64), array_at(work.itemsizes, count, np.int64)
    full = full_inputs(work_address)
    tile_size = tile.rows * width * 8  # 8 bytes for an element of any type
    spans_at = (work.streams + 1) * tile_size + work.buffers_size
    scratch_at = spans_at + width * _SPAN_SIZE
    memory = allocate(scratch_at + min(width, work.inner) * work.lanes * 8)
    if memory == 0:
        work.has_failed = 1
        return
    spans, scratch = array_at(memory + spans_at, width, SPAN), memory + scratch_at
    # Whether the elements of a column are side by side in y: in the blocked layout, or if blocks lie along the last axis.
    has_lanes = work.lanes > 1
    tile.buffers = memory + (work.streams + 1) * tile_size
    for start in range(first, last, width):
        tile.filled_columns = min(width, last - start)
        span_count = _set_spans(work, spans, start, tile.filled_columns, first_row, blocks)
        buffer = memory + tile_size
        for k in range(count):
            addresses[k] = inputs[k]
            if itemsizes[k]:  # more than one element
                addresses[k] = buffer
                is_full = (full >> k) & 1 == 1
                for i in range(span_count):
                    if has_lanes:
                        load_lanes(work_address, k, itemsizes[k], is_full, spans[i], rows, width, buffer, scratch)
                    else:
                        load(work_address, k, itemsizes[k], is_full, spans[i], rows, width, buffer)
                buffer += tile_size
        call(work.program, (tile_address, memory, tile.rows * width))
        for i in range(span_count):
            if has_lanes:
                store_lanes(work_address, spans[i], rows, width, memory)
            else:
                _store(work, spans[i], rows, width, memory)
    if tile.has_failed:
        work.has_failed = 1
    release(memory)


@functools.cache
def chunk_function() -> Any:
    """Return the C function void (int64_t work, size_t number), as ``kernels.chunk_function``, for programs that round to block
    formats."""
    return jit.c_function(chunk, "chunk_region_of_blocks", types.void(types.int64, types.intp))
