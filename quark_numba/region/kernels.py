"""The loop over elements, in tiles and chunks: how many elements a chunk has, how inputs are spread along y, and the padding of
the blocked layout. One function, the same for all programs, cuts the work into tiles. Another function, made for each program,
runs the program on a tile."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ..block import granularity
from ..block.kernels import WORK as BLOCK_WORK
from ..compiling import jit
from ..compiling.intrinsics import array_at, call, copy_bytes, record_at, stack
from ..compiling.jit import unsigned
from ..compiling.records import new_record, words
from ..compiling.text import function_of
from ..compiling.vector_width import use_widest_vectors
from .key import MAX_INPUTS, Program
from .source import TILE, TILE_WORK, Writer, bind_names

# The number of elements that one call of a task converts: see linear.kernels.
CHUNK = 1 << 14

# The record that the tasks of a node share. ``granularity.set_layout`` sets the fields from `block` on.
WORK = words(
    "program",  # the C function that runs the program on a tile
    "y",  # the address of the elements of y
    "count",  # the number of inputs
    "streams",  # how many of them have more than one element
    "inputs",  # the address of an array of the addresses of the inputs' elements
    "itemsizes",  # the address of an array of the bytes of an element, 0 for an input of one element
    *("dimensions", "lengths", "masks"),  # the loop, as from ``granularity.merge_dimensions``
    # The next three are for steps that round to block formats.
    "group_size",  # the rows of a group, into which a tile is divided
    "functions",  # the address of their functions, two for each
    "buffers_size",  # the bytes of the program's buffers
    "has_failed",  # set by a task that cannot allocate memory
    "block",  # the elements of a block, 0 if no step rounds to a block format
    "size",  # the number of elements of y in memory
    *("outer", "length", "inner"),  # with blocks: y has this shape, and blocks lie along the second axis
    # 0, or the channels of a block of the blocked layout. Then y in memory has the shape (outer, length / lanes, inner, lanes).
    # A y in ONNX's layout whose blocks are consecutive in memory is described so too: see ``granularity.describe_as_channels``.
    "lanes",
    # 0 unless the layout adds channels to y, which `length` does not count: the channels of y itself in the last block of the
    # layout. Then `batch_size` is the number of elements in memory for one index of the batch, and `last_block` how many of
    # them are before the last block of channels.
    "own_lanes",
    *("batch_size", "last_block"),
)


tile_width = jit.function(granularity.tile_width)


class Nest(NamedTuple):
    """The loop over the elements of y, as from ``granularity.merge_dimensions``."""

    dimensions: int
    lengths: Any
    masks: Any


class Stream(NamedTuple):
    """An input with what is needed to read its tiles."""

    number: int
    data: int  # the address of its elements
    itemsize: int  # 0 if it has one element
    is_full: bool  # whether its elements are laid out as those of y


class Repetition(NamedTuple):
    """How the elements of an input recur along y: `size` consecutive elements are repeated over `period` elements of y, and
    then the next `size` elements take over. For example, a bias along channels, of shape (1, 64, 1, 1), has size 1 and period
    64 in y of shape (1, 64, 8, 8). A bias of shape (64,) has size 64 and period 2,048 in y of shape (32, 64). If no element
    recurs, both numbers are the length of a row."""

    size: int
    period: int


@jit.expand
def nest_of(work_address: int) -> Any:
    work = record_at(work_address, WORK)
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    return Nest(work.dimensions, lengths, masks)


@jit.expand
def stream_of(work_address: int, k: int, full: int) -> Any:
    """Return the Stream of input k. `full` is from `find_full_inputs`."""
    work = record_at(work_address, WORK)
    inputs, itemsizes = array_at(work.inputs, work.count, np.int64), array_at(work.itemsizes, work.count, np.int64)
    return Stream(k, inputs[k], itemsizes[k], (full >> k) & 1 == 1)


@jit.function
def find_full_inputs(nest: Any) -> int:
    """Return a mask of the inputs that have all dimensions of the loop, which means that they are laid out as y."""
    full: Any = np.int64(-1)
    for d in range(nest.dimensions):
        full &= nest.masks[d]
    return full


@jit.inline
def has_dimension(nest: Any, k: int, d: int) -> bool:
    """Return whether input k has dimension d of the loop."""
    return (nest.masks[d] >> k) & 1 == 1


@jit.function
def find_row(nest: Any, k: int, row: int) -> int:
    """Return the index of the first element of input k for a row of y. A row of y is the elements along the last dimension of
    the loop; a row of a tile is something else."""
    last = nest.dimensions - 1
    stride = nest.lengths[last] if has_dimension(nest, k, last) else 1
    offset = 0
    for d in range(last - 1, -1, -1):
        index = row % nest.lengths[d]
        row //= nest.lengths[d]
        if has_dimension(nest, k, d):
            offset += index * stride
            stride *= nest.lengths[d]
    return offset


@jit.function
def find_repetition(nest: Any, k: int) -> Any:
    """Return the Repetition of input k, in which either an element or a row recurs."""
    last = nest.dimensions - 1
    length = nest.lengths[last]
    if not has_dimension(nest, k, last):
        return Repetition(1, length)
    if last > 0 and not has_dimension(nest, k, last - 1):
        return Repetition(length, length * nest.lengths[last - 1])
    return Repetition(length, length)


@jit.function
def repeat(source: int, target: int, size: int, begin: int, count: int) -> None:
    """Write `count` bytes to `target`: the `size` bytes at `source`, again and again. The first copy starts at its byte
    `begin`."""
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
def fill(source: int, target: int, n: int) -> None:
    """Write n times the float32 at `source`."""
    words, value = array_at(target, n, np.float32), array_at(source, 1, np.float32)[0]
    for i in range(unsigned(n)):
        words[i] = value


@jit.function
def spread(work_address: int, stream: Any, index: int, n: int, buffer: int) -> int:
    """Return the address of a stream's elements for the n elements of y from `index` on. If these elements are not consecutive
    in the input, they are copied to `buffer` first."""
    nest, itemsize = nest_of(work_address), stream.itemsize
    length = nest.lengths[nest.dimensions - 1]
    row = index // length
    column = index - row * length
    size, period = find_repetition(nest, stream.number)
    if size == length and column + n <= length:
        return stream.data + (find_row(nest, stream.number, row) + column) * itemsize
    done = 0
    while done < n:
        row = (index + done) // length
        column = index + done - row * length
        source = stream.data + find_row(nest, stream.number, row) * itemsize
        target = buffer + done * itemsize
        m = min(n - done, period - (index + done) % period)
        if size == period:  # nothing recurs
            copy_bytes(source + column * itemsize, target, m * itemsize)
        elif size == 1 and itemsize == 4:
            fill(source, target, m)
        else:
            repeat(source, target, size * itemsize, column % size * itemsize, m * itemsize)
        done += m
    return buffer


@jit.expand
def find_end_of_reuse(work_address: int, stream: Any, index: int, n: int) -> int:
    """Return the index in y up to which tiles of at most n elements can use the elements that `spread` wrote for this tile; 0
    if even the next tile cannot use them.

    Tiles can use them up to the end of the period, if each tile begins at the same place of the repetition. For example, a bias
    along channels, of shape (1, 64, 1, 1), has a period of 4,096 in y of shape (1, 64, 64, 64): four tiles of 1,024 elements
    take the same buffer. In y of shape (1, 64, 8, 8), with a period of 64, each tile has 16 channels of its own."""
    size, period = find_repetition(nest_of(work_address), stream.number)
    end = index - index % period + period
    return end if index + n <= end and n % size == 0 else 0


@jit.function
def clear_padding(work_address: int, index: int, n: int) -> None:
    """Write zeros to the channels that the blocked layout adds, within n elements of y from `index` on. These elements are
    whole blocks of channels. A convolution multiplies these channels by 0, and Inf times 0 would be NaN."""
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


@jit.expand
def locate_elements(work_address: int, full: int, index: int, n: int, buffers: int, addresses: Any, ends: Any) -> None:
    """Set the `addresses` of the inputs' elements for a tile, the n elements of y from `index` on. `buffers` has TILE elements
    for each stream. `ends` are the results of `find_end_of_reuse` for the previous tile, and 0 for the first tile."""
    work = record_at(work_address, WORK)
    buffer = buffers
    for k in range(work.count):
        stream = stream_of(work_address, k, full)
        if stream.itemsize == 0:  # one element
            addresses[k] = stream.data
            continue
        if stream.is_full:
            addresses[k] = stream.data + index * stream.itemsize
        elif index + n > ends[k]:
            addresses[k] = spread(work_address, stream, index, n, buffer)
            ends[k] = find_end_of_reuse(work_address, stream, index, n)
        buffer += TILE * 8


@jit.expand
def needs_spreading(work_address: int, full: int) -> bool:
    """Return whether there is a stream that is not laid out as y."""
    for k in range(record_at(work_address, WORK).count):
        stream = stream_of(work_address, k, full)
        if stream.itemsize and not stream.is_full:
            return True
    return False


def run_chunk(work_address: int, number: int) -> None:
    """Do a chunk of a node's work, on a thread of ONNX Runtime. The chunks are numbered."""
    work = record_at(work_address, WORK)
    count, start = work.count, number * CHUNK
    stop = min(start + CHUNK, work.size)
    buffers = stack(TILE * work.streams)  # 8 bytes for an element of any type
    addresses, ends = array_at(stack(count), count, np.int64), array_at(stack(count), count, np.int64)
    for k in range(count):
        ends[k] = 0
    full = find_full_inputs(nest_of(work_address))
    most = TILE if needs_spreading(work_address, full) else CHUNK
    for index in range(start, stop, most):
        n = min(most, stop - index)
        locate_elements(work_address, full, index, n, buffers, addresses, ends)
        call(work.program, (addresses.ctypes.data, work.y + index * 4, n))
        if work.own_lanes:
            clear_padding(work_address, index, n)


@jit.function
def convert_blocks(tile: Any, function: int, x_address: int, y_address: int, block_format: Any) -> None:
    """Run a step that rounds to a block format on a tile, which a record TILE_WORK describes. The C function that converts any
    blocks does the work. Places of the tile without elements are set to zero first, which does not change a block."""
    rows, filled_rows, columns, width = tile.rows, tile.filled_rows, tile.filled_columns, tile_width(block_format.block)
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
    work.block, work.sub_block = block_format.block, block_format.sub_block
    work.max_shift, work.drop = block_format.max_shift, block_format.drop
    work.lowest, work.highest, work.rounding_mode = block_format.lowest, block_format.highest, block_format.rounding_mode
    work.length, work.inner = rows, width
    call(function, (work_address, 0))
    tile.has_failed |= work.has_failed


@functools.cache
def chunk_function() -> Any:
    """Return the C function void (int64_t work, size_t number) that ONNX Runtime's threads call, the same for every program."""
    return jit.c_function(run_chunk, "chunk_region", types.void(types.int64, types.intp))


def task_function(program: Program) -> Any:
    """Return the C function void (int64_t inputs, int64_t y, int64_t n) that runs a program for n elements of y. `inputs` is
    the address of an array of the addresses of the inputs' elements, or, if the program rounds to block formats, that of a
    record TILE_WORK."""
    names = {
        "call": call,
        "convert_blocks": convert_blocks,
        "record_at": record_at,
        "TILE_WORK": TILE_WORK,
        "use_widest_vectors": use_widest_vectors,
        **bind_names(program),
    }
    run_program = function_of(Writer(program).write(), __name__, __file__, names)
    return jit.c_function(run_program, program.name, types.void(types.int64, types.int64, types.int64))


assert MAX_INPUTS < 64  # a mask has a bit for each input
