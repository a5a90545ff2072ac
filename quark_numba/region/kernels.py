"""The loop over elements: one function for all programs, which cuts the work into tiles, and one for each program, which runs
it on a tile."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from ..block.kernels import WORK as BLOCK_WORK
from ..compiling import jit
from ..compiling.intrinsics import array_at, call, copy_bytes, record_at, stack
from ..compiling.jit import unsigned
from ..compiling.records import new_record, words
from ..compiling.text import function_of
from .key import MAX_INPUTS, Program
from .source import TILE, TILE_WORK, Writer

# The number of elements that one call of a task converts: see linear.kernels.
CHUNK = 1 << 14

# The record that the tasks of a node share. Addresses and numbers:
# - `program`, the C function that runs the program on a tile; `y`, the address of the elements of y;
# - `count`, the number of inputs, and `streams`, how many of them have more than one element; `inputs` and `itemsizes`, the
#   addresses of two arrays: the addresses of the inputs' elements, and the bytes of an element, 0 for an input of one element;
# - `dimensions`, `lengths` and `masks`, the loop, as from ``granularity.merge_dimensions``;
# - for steps that round to block formats: `group_size`, the rows of a group, into which a tile is divided; `functions`, the
#   address of their functions, two for each; `buffers_size`, the bytes of the program's buffers;
# - `has_failed`, which a task sets if it cannot allocate memory.
# ``granularity.set_layout`` sets the others:
# - `block`, the elements of a block, 0 if no step rounds to a block format; `size`, the number of elements of y in memory;
# - `outer`, `length` and `inner`, if the program rounds to block formats: y has this shape, with blocks along the second axis;
# - `lanes`, 0 or the channels of a block of the blocked layout. In memory such a y has the shape (outer, length / lanes, inner,
#   lanes). A y in ONNX's layout whose blocks are consecutive in memory is described in the same way, see
#   ``granularity.as_channels``;
# - `own_lanes`, 0 unless the layout adds channels to y, which `length` does not count: the channels of y itself in the last
#   block of the layout. Then `batch_size` is the number of elements in memory for one index of the batch, and `last_block`
#   how many of them are before the last block of channels.
WORK = words(
    *("program", "y", "count", "streams", "inputs", "itemsizes", "dimensions", "lengths", "masks"),
    *("group_size", "functions", "buffers_size", "has_failed"),
    *("block", "size", "outer", "length", "inner", "lanes", "own_lanes", "batch_size", "last_block"),
)


@jit.function
def row_offset(row: int, k: int, dimensions: int, lengths: Any, masks: Any) -> int:
    """Return the index of the first element of input k for a row of y. A row of y, unlike one of a tile, is the elements along
    the last dimension of the loop."""
    stride = lengths[dimensions - 1] if (masks[dimensions - 1] >> k) & 1 else 1
    offset = 0
    for d in range(dimensions - 2, -1, -1):
        index = row % lengths[d]
        row //= lengths[d]
        if (masks[d] >> k) & 1:
            offset += index * stride
            stride *= lengths[d]
    return offset


@jit.function
def full_inputs(work_address: int) -> int:
    """Return a mask of the inputs that have all dimensions of the loop: their elements are laid out as those of y."""
    work = record_at(work_address, WORK)
    masks = array_at(work.masks, work.dimensions, np.int64)
    full: Any = np.int64(-1)
    for d in range(work.dimensions):
        full &= masks[d]
    return full


@jit.function
def pattern_of(k: int, dimensions: int, lengths: Any, masks: Any) -> tuple[int, int]:
    """Return (`size`, the number of elements of input k that repeat; `period`, the number of elements of y for which they
    repeat). What repeats is an element or a row."""
    length = lengths[dimensions - 1]
    if (masks[dimensions - 1] >> k) & 1 == 0:
        return 1, length  # an element, for a row of y
    if dimensions > 1 and (masks[dimensions - 2] >> k) & 1 == 0:
        return length, length * lengths[dimensions - 2]  # a row, for all rows along the dimension before the last
    return length, length  # a row, for one row: nothing repeats


@jit.function
def repeat(source: int, target: int, size: int, begin: int, count: int) -> None:
    """Write `count` bytes to `target`: the `size` bytes at `source`, repeated, the first time from byte `begin` on."""
    done = min(size - begin, count)
    copy_bytes(source + begin, target, done)
    rest = min(begin, count - done)
    copy_bytes(source, target + done, rest)
    done += rest
    while done < count:
        more = min(done, count - done)
        copy_bytes(target, target + done, more)
        done += more


@jit.function
def spread(work_address: int, k: int, itemsize: int, index: int, n: int, buffer: int, valid_until: int) -> tuple[int, int]:
    """Return (the address of the elements of input k for the n elements of y from `index` on; `valid_until` for the next call).
    The elements are written to `buffer`, unless they are consecutive in the input already, or in the buffer.

    If the next call has the same buffer, begins where this one ends, and has no larger n, the buffer has its elements already
    if it ends at the index `valid_until` in y or before. For any other call `valid_until` has to be 0."""
    work = record_at(work_address, WORK)
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    data = array_at(work.inputs, k + 1, np.int64)[k]
    length = lengths[work.dimensions - 1]
    row = index // length
    column = index - row * length
    size, period = pattern_of(k, work.dimensions, lengths, masks)
    if size == length and column + n <= length:
        return data + (row_offset(row, k, work.dimensions, lengths, masks) + column) * itemsize, 0
    if index + n <= valid_until:
        return buffer, valid_until
    done = 0
    while done < n:
        row = (index + done) // length
        column = index + done - row * length
        source = data + row_offset(row, k, work.dimensions, lengths, masks) * itemsize
        target = buffer + done * itemsize
        m = min(n - done, period - (index + done) % period)
        if size == period:  # nothing repeats
            copy_bytes(source + column * itemsize, target, m * itemsize)
        elif size == 1 and itemsize == 4:
            words = array_at(target, m, np.float32)
            words[:] = array_at(source, 1, np.float32)[0]
        else:
            repeat(source, target, size * itemsize, column % size * itemsize, m * itemsize)
        done += m
    end = index - index % period + period  # of the repetition
    # The next call's elements are these ones if it begins at the same place of the repetition.
    return buffer, end if index + n <= end and n % size == 0 else 0


@jit.function
def clear_padding(work_address: int, index: int, n: int) -> None:
    """Write zeros to the channels that the blocked layout adds, in the n elements of y from `index` on, which are whole blocks.
    A convolution multiplies these channels by 0, and Inf times 0 would be NaN."""
    work = record_at(work_address, WORK)
    lanes, own, batch_size, last_block = work.lanes, work.own_lanes, work.batch_size, work.last_block
    while n > 0:
        place = index % batch_size
        size = min(n, (last_block if place < last_block else batch_size) - place)
        if place >= last_block:  # the last block has the added channels
            y = array_at(work.y + 4 * index, size, np.float32)
            for i in range(unsigned(size)):  # `lanes` is a power of two
                y[i] = y[i] if np.int32(i) & np.int32(lanes - 1) < np.int32(own) else np.float32(0)
        index += size
        n -= size


def chunk(work_address: int, number: int) -> None:
    """Do a chunk of a node's work, on a thread of ONNX Runtime. The chunks are numbered."""
    work = record_at(work_address, WORK)
    start = number * CHUNK
    stop = start + CHUNK if start + CHUNK < work.size else work.size
    count = work.count
    inputs, itemsizes = array_at(work.inputs, count, np.int64), array_at(work.itemsizes, count, np.int64)
    buffers = stack(TILE * work.streams)  # 8 bytes for an element of any type
    addresses, valid_until = array_at(stack(count), count, np.int64), array_at(stack(count), count, np.int64)
    full = full_inputs(work_address)
    most = CHUNK  # all elements at once, unless an input has to be spread
    for k in range(count):
        addresses[k], valid_until[k] = inputs[k], 0
        if itemsizes[k] and (full >> k) & 1 == 0:
            most = TILE
    for index in range(start, stop, most):
        n = min(most, stop - index)
        buffer = buffers
        for k in range(count):
            itemsize = itemsizes[k]
            if itemsize == 0:  # one element
                continue
            if (full >> k) & 1:
                addresses[k] = inputs[k] + index * itemsize
            else:
                addresses[k], valid_until[k] = spread(work_address, k, itemsize, index, n, buffer, valid_until[k])
            buffer += TILE * 8
        call(work.program, (addresses.ctypes.data, work.y + index * 4, n))
        if work.own_lanes:
            clear_padding(work_address, index, n)


@jit.function
def convert_blocks(tile: Any, function: int, x_address: int, y_address: int, blocks: Any) -> None:
    """Run a step that rounds to a block format on a tile, a record TILE_WORK, by the task that converts any blocks, a C
    function. Places of the tile without elements are set to zero, which affects no block."""
    rows, filled_rows, columns, width = tile.rows, tile.filled_rows, tile.filled_columns, blocks.inner
    x, y = array_at(x_address, rows * width, np.float32), array_at(y_address, rows * width, np.float32)
    if tile.is_unchanged:
        for i in range(unsigned(rows * width)):
            y[i] = x[i]
        return
    for row in range(filled_rows):
        for i in range(unsigned(row * width + columns), unsigned((row + 1) * width)):
            x[i] = np.float32(0)
    for i in range(unsigned(filled_rows * width), unsigned(rows * width)):
        x[i] = np.float32(0)
    work_address, work = new_record(BLOCK_WORK)
    work.x, work.y, work.size, work.parts, work.has_failed = x_address, y_address, rows * width, 1, 0
    work.block, work.sub_block, work.max_shift, work.drop = blocks.block, blocks.sub_block, blocks.max_shift, blocks.drop
    work.lowest, work.highest, work.rounding_mode = blocks.lowest, blocks.highest, blocks.rounding_mode
    work.length, work.inner = rows, width
    call(function, (work_address, 0))
    tile.has_failed |= work.has_failed


@functools.cache
def chunk_function() -> Any:
    """Return the C function void (int64_t work, size_t number) that ONNX Runtime's threads call, the same for every program."""
    return jit.c_function(chunk, "chunk_region", types.void(types.int64, types.intp))


def task_function(program: Program) -> Any:
    """Return the C function void (int64_t inputs, int64_t y, int64_t n) that runs a program for n elements of y. `inputs` is
    the address of an array of the addresses of the inputs' elements, or, if the program rounds to block formats, that of a
    record TILE_WORK."""
    text, names = Writer(program).source()
    names |= {"call": call, "convert_blocks": convert_blocks, "record_at": record_at, "TILE_WORK": TILE_WORK}
    run_program = function_of(text, __name__, __file__, names)
    return jit.c_function(run_program, program.name, types.void(types.int64, types.int64, types.int64))


assert MAX_INPUTS < 64  # a mask has a bit for each input
