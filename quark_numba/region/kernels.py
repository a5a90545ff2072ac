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
from ..compiling.text import function_of
from .key import MOST_INPUTS, Program
from .source import FILLED_COLUMNS, FILLED_ROWS, FUNCTIONS, HAS_FAILED, PASSES, ROWS, TILE, Writer

# The number of elements that one call of a task converts: see linear.kernels.
CHUNK = 1 << 14

# The record that the tasks of a node share:
# - `run`, the C function that runs the program on a tile; the address and the number of the elements of y;
# - `count`, the number of inputs, and `streams`, how many of them have more than one element; the addresses of two arrays: the
#   addresses of the inputs' elements, and the bytes of an element, 0 for an input of one element;
# - the loop, as from ``granularity.loop_shape``;
# - for steps of blocks: the elements of a block; the rows of a group, into which a tile is divided; `length` and `inner` of
#   y, as in ``block.granularity``; the number of these steps; the address of their functions, two for each; and the bytes of
#   the program's buffers;
# - for the blocked layout: the channels of a block (`lanes`, 0 in ONNX's layout). If the layout adds channels to y: how many of
#   the last block are y's own (`own_lanes`, 0 if there is nothing to clear); the elements of y for one index of the batch; and
#   how many of these lie before the last block of channels. With steps of blocks, `size` and `length` are without them;
# - `has_failed`, which a task sets if it cannot allocate memory.
WORK = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("run", "y", "size", "count", "streams", "inputs", "itemsizes", "dimensions", "lengths", "masks"),
            *("block", "group", "length", "inner", "formats", "functions", "buffers_size"),
            *("lanes", "own_lanes", "batch_size", "last_block", "has_failed"),
        )
    ]
)


_BLOCK_WORK_WORDS = BLOCK_WORK.itemsize // 8


@jit.function
def row_offset(row: int, k: int, dimensions: int, lengths: Any, masks: Any) -> int:
    """Return the index of the first element of input k that goes with a row of y: the elements along the last dimension of the
    loop."""
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
    """Return a mask of the inputs that have all dimensions of the loop, so that their elements are laid out as y's."""
    work = record_at(work_address, WORK)
    masks = array_at(work.masks, work.dimensions, np.int64)
    full: Any = np.int64(-1)
    for d in range(work.dimensions):
        full &= masks[d]
    return full


@jit.function
def pattern_of(k: int, dimensions: int, lengths: Any, masks: Any) -> tuple[int, int]:
    """Return (number of elements of input k that repeat, number of elements of y for which they repeat). One element repeats
    along the last dimension of the loop, or a row repeats along the dimension before it. (0, 0) if nothing repeats along
    these."""
    length = lengths[dimensions - 1]
    if (masks[dimensions - 1] >> k) & 1 == 0:
        return 1, length
    if dimensions > 1 and (masks[dimensions - 2] >> k) & 1 == 0:
        return length, length * lengths[dimensions - 2]
    return 0, 0


@jit.function
def repeat(source: int, target: int, size: int, begin: int, count: int) -> None:
    """Write `count` bytes to `target`: the `size` bytes at `source`, again and again, the first time from `begin` on."""
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
def spread(work_address: int, k: int, itemsize: int, at: int, n: int, buffer: int, spread_to: int) -> int:
    """Return the address of the elements of input k that go with the n elements of y from `at` on. They are written to
    `buffer`, unless they are consecutive in the input already. `spread_to` is the index in y up to which the contents of the
    buffer from before are still right."""
    work = record_at(work_address, WORK)
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    data = array_at(work.inputs, k + 1, np.int64)[k]
    length = lengths[work.dimensions - 1]
    row = at // length
    column = at - row * length
    size, period = pattern_of(k, work.dimensions, lengths, masks)
    if size != 1 and column + n <= length:
        return data + (row_offset(row, k, work.dimensions, lengths, masks) + column) * itemsize
    if at + n <= spread_to:
        return buffer
    done = 0
    while done < n:
        row = (at + done) // length
        column = at + done - row * length
        source = data + row_offset(row, k, work.dimensions, lengths, masks) * itemsize
        target = buffer + done * itemsize
        m = period - (at + done) % period if period else length - column
        m = m if m < n - done else n - done
        if size == 0:
            copy_bytes(source + column * itemsize, target, m * itemsize)
        elif size == 1 and itemsize == 4:
            words = array_at(target, m, np.float32)
            words[:] = array_at(source, 1, np.float32)[0]
        else:
            repeat(source, target, size * itemsize, column % size * itemsize, m * itemsize)
        done += m
    return buffer


@jit.function
def clear_padding(work_address: int, at: int, n: int) -> None:
    """Write zeros to the channels that the blocked layout adds, in the n elements of y from `at` on, which are whole blocks. A
    convolution multiplies these channels by 0, and Inf times 0 would be NaN."""
    work = record_at(work_address, WORK)
    lanes, own, batch_size, last_block = work.lanes, work.own_lanes, work.batch_size, work.last_block
    while n > 0:
        place = at % batch_size
        size = batch_size - place
        if place < last_block:  # up to the last block, which has the added channels
            size = last_block - place
        if size > n:
            size = n
        if place >= last_block:
            y = array_at(work.y + 4 * at, size, np.float32)
            for i in range(unsigned(size)):  # `lanes` is a power of two
                y[i] = y[i] if np.int32(i) & np.int32(lanes - 1) < np.int32(own) else np.float32(0)
        at += size
        n -= size


def chunk(work_address: int, index: int) -> None:
    """Do chunk `index` of a node's work, on a thread of ONNX Runtime."""
    work = record_at(work_address, WORK)
    start = index * CHUNK
    stop = start + CHUNK if start + CHUNK < work.size else work.size
    count = work.count
    inputs, itemsizes = array_at(work.inputs, count, np.int64), array_at(work.itemsizes, count, np.int64)
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    buffers = stack(TILE * work.streams)
    addresses, spread_to = array_at(stack(count), count, np.int64), array_at(stack(count), count, np.int64)
    full = full_inputs(work_address)
    step = CHUNK  # all at once, unless an input has to be spread
    for k in range(count):
        addresses[k], spread_to[k] = inputs[k], 0
        if itemsizes[k] and (full >> k) & 1 == 0:
            step = TILE
    for at in range(start, stop, step):
        n = stop - at if stop - at < step else step
        buffer = buffers
        for k in range(count):
            itemsize = itemsizes[k]
            if itemsize == 0:  # one element
                continue
            if (full >> k) & 1:
                addresses[k] = inputs[k] + at * itemsize
            else:
                addresses[k] = spread(work_address, k, itemsize, at, n, buffer, spread_to[k])
                size, period = pattern_of(k, work.dimensions, lengths, masks)
                # The buffer can be used again until the repetition ends, if the next tile begins at the same place in it.
                rest = period - at % period if period else 0
                is_repeated = rest >= n and n == TILE and TILE % size == 0
                spread_to[k] = at + rest if is_repeated else 0
            buffer += TILE * 8
        call(work.run, (addresses.ctypes.data, work.y + at * 4, n))
        if work.own_lanes:
            clear_padding(work_address, at, n)


@jit.function
def convert_blocks(at: Any, count: int, number: int, x_address: int, y_address: int, blocks: Any) -> None:
    """Run step `number` of the steps of blocks on a tile, by the task that converts any blocks. Places of the tile without
    elements are set to zero, which affects no block."""
    rows, filled, columns, width = at[count + ROWS], at[count + FILLED_ROWS], at[count + FILLED_COLUMNS], blocks.inner
    x, y = array_at(x_address, rows * width, np.float32), array_at(y_address, rows * width, np.float32)
    if at[count + PASSES]:
        for i in range(unsigned(rows * width)):
            y[i] = x[i]
        return
    for row in range(filled):
        for i in range(unsigned(row * width + columns), unsigned((row + 1) * width)):
            x[i] = np.float32(0)
    for i in range(unsigned(filled * width), unsigned(rows * width)):
        x[i] = np.float32(0)
    work_address = stack(_BLOCK_WORK_WORDS)
    work = record_at(work_address, BLOCK_WORK)
    work.x, work.y, work.size, work.parts, work.has_failed = x_address, y_address, rows * width, 1, 0
    work.block, work.sub_block, work.max_shift, work.drop = blocks.block, blocks.sub_block, blocks.max_shift, blocks.drop
    work.lowest, work.highest, work.rounding_mode = blocks.lowest, blocks.highest, blocks.rounding_mode
    work.length, work.inner = rows, width
    call(at[count + FUNCTIONS + 2 * number + 1], (work_address, 0))
    at[count + HAS_FAILED] |= work.has_failed


@functools.cache
def chunk_function() -> Any:
    """Return the C function void (int64_t work, size_t index) that ONNX Runtime's threads call, the same for every program."""
    return jit.c_function(chunk, "chunk_region", types.void(types.int64, types.intp))


def task_function(program: Program) -> Any:
    """Return the C function void (int64_t addresses, int64_t y, int64_t n) that runs a program for n elements of y;
    `addresses` is the address of an array of the addresses of the inputs' elements."""
    text, names = Writer(program).source()
    run_program = function_of(text, __name__, __file__, names | {"call": call, "convert_blocks": convert_blocks})
    return jit.c_function(run_program, program.name, types.void(types.int64, types.int64, types.int64))


assert MOST_INPUTS < 64  # a mask has a bit for each input
