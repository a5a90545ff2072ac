"""The tiles of y for programs that round to block formats: whole blocks side by side, in buffers on the stack, or in allocated
memory above a limit.

A column of a tile is a block of y. The columns of all of y are numbered: first the whole blocks, then the short blocks at the
end of an axis. A chunk has only whole blocks or only short ones.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ..compiling import jit
from ..compiling.intrinsics import allocate, array_at, call, copy_bytes, record_at, release, stack
from ..compiling.records import new_record, words
from .kernels import CHUNK, WORK, fill, find_full_inputs, find_row, has_dimension, nest_of, spread, stream_of, tile_width
from .lanes import load_lanes, store_lanes
from .source import TILE_WORK

# A span is a set of neighbouring columns of the tile that are also side by side in y. It has the first column in the tile, the
# number of columns, and the index of the first element in y, as if y were in ONNX's layout.
SPAN = words("column", "count", "index")

_SPAN_SIZE = SPAN.itemsize

# The longest run of columns of one block, if some blocks share the lanes of the blocked layout.
_RUN = 128

# A chunk that needs more bytes allocates them. In a small node, to allocate memory takes longer than to compute.
_MAX_ON_STACK = 1 << 16


@jit.function
def _columns_per_chunk(block: int, rows: int) -> int:
    """Return the number of columns of `rows` rows that one call of a task computes."""
    width = tile_width(block)
    return width * max(1, CHUNK // (width * rows))


def count_chunks(block: int, outer: int, length: int, inner: int) -> int:
    """Return the number of chunks for a y of this shape, which is given as in WORK. The chunks of whole blocks come first, then
    the chunks of short blocks."""
    whole_blocks, short_rows = divmod(length, block)
    chunks = -(-outer * whole_blocks * inner // _columns_per_chunk(block, block))
    if short_rows:
        chunks += -(-outer * inner // _columns_per_chunk(block, short_rows))
    return chunks


class TileShape(NamedTuple):
    """The rows of a tile that have elements of y, and the columns for which each row has space."""

    rows: int
    width: int


# The ways to load a span of a stream:
# - COPY_ROWS: the input is laid out as y, and each row of the tile is consecutive elements of the input;
# - REPEAT_ROW: all rows of the tile are the same consecutive elements of the input;
# - REPEAT_ELEMENTS: each row of the tile is one element of the input, repeated;
# - SPREAD: each row is made by `kernels.spread`.
COPY_ROWS, REPEAT_ROW, REPEAT_ELEMENTS, SPREAD = range(4)


@jit.expand
def choose_way(work_address: int, stream: Any, span: Any) -> int:
    """Return the way to load a span of a stream."""
    work, nest, k = record_at(work_address, WORK), nest_of(work_address), stream.number
    if stream.is_full:
        return COPY_ROWS
    last = nest.dimensions - 1
    length = nest.lengths[last]
    if not has_dimension(nest, k, last):
        return REPEAT_ELEMENTS if stream.itemsize == 4 and length == work.inner else SPREAD
    has_last_alone = True
    for d in range(last):
        has_last_alone &= not has_dimension(nest, k, d)
    is_in_row = span.index % length + span.count <= length and work.inner % length == 0
    return REPEAT_ROW if has_last_alone and is_in_row else SPREAD


@jit.function
def load(work_address: int, stream: Any, span: Any, shape: Any, buffer: int) -> None:
    """Write the part of the tile of a stream for a span into its buffer."""
    work, nest = record_at(work_address, WORK), nest_of(work_address)
    length, itemsize = nest.lengths[nest.dimensions - 1], stream.itemsize
    target, step = buffer + span.column * itemsize, shape.width * itemsize
    way = choose_way(work_address, stream, span)
    if way == COPY_ROWS:
        copy_rows(stream.data + span.index * itemsize, work.inner * itemsize, target, step, span.count * itemsize, shape.rows)
    elif way == REPEAT_ROW:
        copy_rows(stream.data + span.index % length * itemsize, np.int64(0), target, step, span.count * itemsize, shape.rows)
    else:
        for row in range(shape.rows):
            if way == REPEAT_ELEMENTS:
                fill(stream.data + find_row(nest, stream.number, span.index // length + row) * 4, target, span.count)
            else:
                source = spread(work_address, stream, span.index + row * work.inner, span.count, target)
                if source != target:
                    copy_bytes(source, target, span.count * itemsize)
            target += step


@jit.function
def copy_rows(source: int, source_step: int, target: int, target_step: int, size: int, rows: int) -> None:
    """Copy `size` bytes for each of `rows` rows. The rows are `source_step` and `target_step` bytes apart."""
    for _ in range(rows):
        copy_bytes(source, target, size)
        source += source_step
        target += target_step


class ChunkColumns(NamedTuple):
    """The columns of a chunk."""

    rows: int  # of each block
    first_row: int  # the index of the first row along `length` if the blocks are short, else 0
    blocks: int  # along `length`
    begin: int
    end: int


@jit.expand
def _columns_of(work: Any, number: int) -> Any:
    """Return the ChunkColumns of a chunk."""
    rows, first_row = work.block, 0
    blocks, short_rows = divmod(work.length, rows)
    count = work.outer * blocks * work.inner
    whole_chunks = -(-count // _columns_per_chunk(work.block, rows))
    if number >= whole_chunks:
        number -= whole_chunks
        rows, first_row, blocks, count = short_rows, blocks * work.block, np.int64(1), work.outer * work.inner
    per_chunk = _columns_per_chunk(work.block, rows)
    return ChunkColumns(rows, first_row, blocks, number * per_chunk, min((number + 1) * per_chunk, count))


@jit.expand
def _find_run(work: Any, columns: Any, number: int) -> Any:
    """Return where a column is, and how many columns from it on are side by side in y: (index of the axes before `length`,
    block, index of the axes after it, number of columns).

    If some blocks share the lanes of the blocked layout, the columns are a run of the first block, a run of the next, and so
    on. Thus a tile reads and writes whole cache lines."""
    most = work.lanes // work.block
    if most < 2 or work.inner <= _RUN:
        number, place = divmod(number, work.inner)
        outer, block = divmod(number, columns.blocks)
        return outer, block, place, work.inner - place
    outer, number = divmod(number, columns.blocks * work.inner)
    group, number = divmod(number, most * work.inner)
    run, number = divmod(number, min(most, columns.blocks - group * most) * _RUN)
    first = run * _RUN
    length = min(_RUN, work.inner - first)
    block, place = divmod(number, length)
    return outer, group * most + block, first + place, length - place


@jit.expand
def _set_spans(work: Any, spans: Any, columns: Any, start: int, n: int) -> int:
    """Write the spans of the n columns from `start` on, and return their number."""
    count = column = 0
    while column < n:
        outer, block, place, length = _find_run(work, columns, start + column)
        span = spans[count]
        span.column, span.count = column, min(length, n - column)
        span.index = (outer * work.length + columns.first_row + block * work.block) * work.inner + place
        column += span.count
        count += 1
    return count


class ChunkMemory(NamedTuple):
    """The layout of the memory of a chunk. At its beginning are a tile of y and a tile for each stream. The fields are offsets
    in bytes."""

    streams: int  # the tiles of the streams
    buffers: int  # the program's
    spans: int  # those of a tile
    scratch: int  # that of `load_lanes`
    end: int


@jit.expand
def _lay_out(work: Any, rows: int, width: int) -> Any:
    """Return the ChunkMemory for tiles of this shape."""
    itemsizes, streams = array_at(work.itemsizes, work.count, np.int64), rows * width * 4
    buffers = streams
    for k in range(work.count):
        buffers += rows * width * itemsizes[k]
    spans = buffers + work.buffers_size
    scratch = spans + width * _SPAN_SIZE
    return ChunkMemory(streams, buffers, spans, scratch, scratch + min(width, work.inner) * work.lanes * 8)


@jit.expand
def load_tiles(work_address: int, spans: Any, shape: Any, elements: int, memory: int, scratch: int, addresses: Any) -> None:
    """Load the tiles of all streams, of so many elements each, and set their `addresses`. The tiles lie one after the other
    from `memory` on."""
    work, full = record_at(work_address, WORK), find_full_inputs(nest_of(work_address))
    for k in range(work.count):
        stream = stream_of(work_address, k, full)
        if stream.itemsize == 0:  # one element
            addresses[k] = stream.data
            continue
        addresses[k] = memory
        for i in range(spans.size):
            if work.lanes > 1:
                load_lanes(work_address, stream, spans[i], shape, memory, scratch)
            else:
                load(work_address, stream, spans[i], shape, memory)
        memory += elements * stream.itemsize


@jit.expand
def store_tile(work_address: int, spans: Any, shape: Any, tile: int) -> None:
    """Write the tile to y."""
    work = record_at(work_address, WORK)
    for i in range(spans.size):
        span = spans[i]
        if work.lanes > 1:
            store_lanes(work_address, span, shape, tile)
        else:
            source, target = tile + span.column * 4, work.y + span.index * 4
            copy_rows(source, shape.width * 4, target, work.inner * 4, span.count * 4, shape.rows)


def run_chunk(work_address: int, number: int) -> None:
    """Do the chunk `number` of a node's work, on a thread of ONNX Runtime. A tile is stored row by row."""
    work = record_at(work_address, WORK)
    width, columns = tile_width(work.block), _columns_of(work, number)
    tile_address, tile = new_record(TILE_WORK)
    tile.rows, tile.filled_rows = -(-columns.rows // work.group_size) * work.group_size, columns.rows
    layout, shape = _lay_out(work, tile.rows, width), TileShape(columns.rows, width)
    owned = np.int64(0)
    if layout.end <= _MAX_ON_STACK:
        memory = stack(layout.end // 8)
    else:
        memory = owned = allocate(layout.end)
        if memory == 0:
            work.has_failed = 1
            return
    addresses = array_at(stack(work.count), work.count, np.int64)
    tile.inputs, tile.functions, tile.buffers = addresses.ctypes.data, work.functions, memory + layout.buffers
    tile.is_unchanged, tile.has_failed = work.outer * work.length * work.inner == 1, 0
    for start in range(columns.begin, columns.end, width):
        tile.filled_columns = min(width, columns.end - start)
        count = _set_spans(work, array_at(memory + layout.spans, width, SPAN), columns, start, tile.filled_columns)
        spans = array_at(memory + layout.spans, count, SPAN)
        elements, streams = tile.rows * width, memory + layout.streams
        load_tiles(work_address, spans, shape, elements, streams, memory + layout.scratch, addresses)
        call(work.program, (tile_address, memory, elements))
        store_tile(work_address, spans, shape, memory)
    if tile.has_failed:
        work.has_failed = 1
    release(owned)


@functools.cache
def chunk_function() -> Any:
    """Return the C function void (int64_t work, size_t number), as ``kernels.chunk_function``, for programs that round to block
    formats."""
    return jit.c_function(run_chunk, "chunk_region_of_blocks", types.void(types.int64, types.intp))
