"""The loops over blocks for a key of the dispatch table, the functions that compile the loops, which blocks are transposed, and
how many elements a call of a task converts. From the inside out:

- `convert` of ``arithmetic`` rounds an element, given the step of its sub-block.
- `convert_columns` and `convert_consecutive` convert a unit: a few blocks, whose elements stay in the first-level cache. They
  find the largest magnitude of each block, then its scale and its steps, and then round the elements. `convert_columns`
  takes blocks that lie side by side in memory, `convert_consecutive` blocks whose elements are consecutive.
- `run_columns`, `run_consecutive` and `run_transposed` convert a range of units. `run_transposed` copies blocks along the
  last axis into a tile, where they lie side by side, and copies the results back.
- `run` converts a part of an array by one of these three. `run_packed` does the same for codes of less than 8 bits.
- `serial`, `parallel` and `task` are the three variants of a kernel (``compiling.variants``): for one thread, for Numba's
  threads and for ONNX Runtime's threads."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import prange, types

from ..compiling import jit
from ..compiling.array_functions import new_words, release_words
from ..compiling.intrinsics import address_of, allocate, array_at, record_at, release
from ..compiling.jit import unsigned
from ..compiling.variants import Loops, variants
from ..compiling.vectors import transpose
from ..element_types import FLOAT32, packing
from . import arithmetic
from .formats import HALF_AWAY_FROM_ZERO, HALF_TO_EVEN, HALF_UPWARD
from .granularity import BlockLoop, Format
from .key import Key
from .units import (
    UNIT_SIZE,
    blocks_of_unit,
    count_pieces,
    count_units,
    piece_columns,
    piece_size,
    runs_of,
    scratch_size,
    sub_blocks_at_a_time,
    unit_shape,
)

# The approximate number of elements that one call of a task converts.
CHUNK = 1 << 13

# The record that the tasks of a node share: the addresses of the elements of x and y and of the scales, the number of elements,
# the number of parts of the work, the format and the loop, and the scale of the tensor. A task that cannot allocate memory sets
# `has_failed`. Keys without scales do not use `scales` and `tensor_scale`.
WORK = np.dtype(
    [(name, np.int64) for name in ("x", "y", "scales", "size", "parts", *Format._fields, *BlockLoop._fields, "has_failed")]
    + [("tensor_scale", np.float32), ("unused", np.float32)]
)


@jit.function
def bounds_of(block_format: Any) -> Any:
    """Return (lowest, highest, zero) for elements that are whole numbers of steps. `zero` is added to a result. For sign and
    magnitude it is -0, which keeps the sign of a zero. For two's complement, which has no -0, it is 0, which clears the
    sign."""
    lowest, highest = np.float32(block_format.lowest), np.float32(block_format.highest)
    return lowest, highest, np.float32(-0.0) if lowest == -highest else np.float32(0)


def gather(x: Any, start: int, stride: int, count: int, rows: int, tile: Any, width: int) -> None:
    """Write `count` blocks of `rows` consecutive elements of x to the columns of a tile. The first elements of the blocks are
    `stride` apart, and the rows of the tile are `width` apart."""
    for column in range(unsigned(count)):
        for row in range(unsigned(rows)):
            tile[row * unsigned(width) + column] = x[unsigned(start) + column * unsigned(stride) + row]


def scatter(tile: Any, width: int, count: int, rows: int, y: Any, start: int, stride: int) -> None:
    """Write the columns of a tile to blocks of y, as `gather` reads them from x."""
    for column in range(unsigned(count)):
        for row in range(unsigned(rows)):
            y[unsigned(start) + column * unsigned(stride) + row] = tile[row * unsigned(width) + column]


def gather_float32(x: Any, start: int, stride: int, count: int, rows: int, tile: Any, width: int) -> None:
    """Gather float32 elements as `gather` does, by `transpose`."""
    transpose(x.ctypes.data + 4 * start, stride, count, rows, tile.ctypes.data, width)


def scatter_float32(tile: Any, width: int, count: int, rows: int, y: Any, start: int, stride: int) -> None:
    """Scatter float32 elements as `scatter` does, by `transpose`."""
    transpose(tile.ctypes.data, width, rows, count, y.ctypes.data + 4 * start, stride)


_bytes_at = (
    jit.inline(lambda address, size: array_at(address, size, np.uint8))
    if jit.JIT_ENABLED
    else lambda address, size: np.ctypeslib.as_array((ctypes.c_uint8 * int(size)).from_address(int(address)))
)


def _convert_by(convert: Any) -> Any:
    def convert_by(x: Any, y: Any, begin: Any, n: Any, steps: Any, at: Any, bounds: Any) -> None:
        """Convert `n` consecutive elements from `begin` on, with consecutive steps from `at` on."""
        for i in range(n):
            y[begin + i] = convert(x[begin + i], steps[at + i], bounds)

    return jit.inline(convert_by)


def _convert_in_mode(converters: dict[int, Any]) -> Any:
    has_modes, to_even = len(converters) > 1, _convert_by(converters[HALF_TO_EVEN])
    away_from_zero, upward = (
        _convert_by(converters[mode]) if has_modes else to_even for mode in (HALF_AWAY_FROM_ZERO, HALF_UPWARD)
    )

    def convert_in_mode(x: Any, y: Any, mode: Any, begin: Any, n: Any, steps: Any, at: Any, bounds: Any) -> None:
        """Convert as `convert_by` does. If the key has several rounding modes, round in `mode`."""
        if has_modes and mode == HALF_AWAY_FROM_ZERO:
            away_from_zero(x, y, begin, n, steps, at, bounds)
        elif has_modes and mode == HALF_UPWARD:
            upward(x, y, begin, n, steps, at, bounds)
        else:
            to_even(x, y, begin, n, steps, at, bounds)

    return jit.inline(convert_in_mode)


class Scaling(NamedTuple):
    """The memory for the scales of a unit, and the scale of the tensor. An array instead of the address would cost each unit as
    much time as a few elements."""

    address: Any  # of the first scale
    stride: Any  # from one scale to the next
    tensor_scale: Any


class Scratch(NamedTuple):
    """The arrays of a unit: the numbers of its blocks, and its elements if they are transposed."""

    magnitudes: Any  # the largest one of each sub-block
    steps: Any  # of each sub-block
    shared: Any  # for each block, the largest magnitude, and then the scale
    x_tile: Any
    y_tile: Any


@jit.inline
def _scratch_in(memory: Any, sub_blocks: int) -> Any:
    """Return the Scratch in an array of `scratch_size` words, for units of at most `sub_blocks` sub-blocks."""
    magnitudes, steps, rest = memory[:sub_blocks], memory[sub_blocks : 2 * sub_blocks], memory[2 * sub_blocks :]
    shared, x_tile, y_tile = rest[:UNIT_SIZE], rest[UNIT_SIZE : 2 * UNIT_SIZE], rest[2 * UNIT_SIZE :]
    return Scratch(magnitudes, steps.view(np.float32), shared, x_tile, y_tile)


class Columns(NamedTuple):
    """Blocks side by side: `width` columns of `rows` rows, which are `stride` apart."""

    start: Any  # the index of the first element
    stride: Any
    rows: Any
    width: Any


@functools.cache
def _set_scales(key: Key) -> Any:
    find_scale, has_codes = arithmetic.block_functions(key).find_scale, key.has_codes

    def set_scales(shared: Any, count: int, drop: Any, scaling: Any) -> None:
        """Replace the largest magnitudes of blocks by their scales. `scaling` is a Scaling."""
        address, stride, tensor_scale = scaling
        for i in range(unsigned(count)):
            shared[i] = find_scale(shared[i], drop, tensor_scale)
        if has_codes:
            scales = _bytes_at(address, (count - 1) * stride + 1)
            for i in range(unsigned(count)):
                scales[i * unsigned(stride)] = shared[i]

    return jit.inline(set_scales)


@functools.cache
def _columns_converter(key: Key) -> Any:
    (measure, find_step, _), converters = arithmetic.block_functions(key), arithmetic.converters(key)
    convert_in_mode, has_scales = _convert_in_mode(converters), key.has_scales
    set_scales: Any = _set_scales(key) if has_scales else None

    def convert_columns(x: Any, y: Any, block_format: Any, columns: Any, scaling: Any, scratch: Any) -> None:
        """Convert Columns."""
        start, stride, rows, width = columns
        magnitudes, shared, steps = scratch.magnitudes, scratch.shared, scratch.steps
        sub_blocks = -(-rows // block_format.sub_block)
        for i in range(sub_blocks * width):
            magnitudes[i] = 0
        for row in range(rows):
            at = unsigned(row // block_format.sub_block * width)
            begin = unsigned(start + row * stride)
            for i in range(unsigned(width)):
                magnitudes[at + i] = max(magnitudes[at + i], measure(x[begin + i]))
        for i in range(width):
            shared[i] = 0
        for sub in range(sub_blocks):
            at = unsigned(sub * width)
            for i in range(unsigned(width)):
                shared[i] = max(shared[i], magnitudes[at + i])
        max_shift, drop = np.uint32(block_format.max_shift), np.int32(block_format.drop)
        if has_scales:
            set_scales(shared, width, drop, scaling)
        for sub in range(sub_blocks):
            at = unsigned(sub * width)
            for i in range(unsigned(width)):
                steps[at + i] = find_step(shared[i], magnitudes[at + i], max_shift, drop, scaling.tensor_scale)
        bounds = bounds_of(block_format)
        for row in range(rows):
            at = unsigned(row // block_format.sub_block * width)
            begin = unsigned(start + row * stride)
            convert_in_mode(x, y, block_format.rounding_mode, begin, unsigned(width), steps, at, bounds)

    return jit.function(convert_columns, f"columns_{key.name}")


def _consecutive_converter(key: Key) -> Any:
    """Return the loop over blocks along the last axis, or None if such blocks are converted in transposed tiles."""
    if not key.has_scales or len(arithmetic.converters(key)) > 1:
        return None
    (measure, find_step, _), set_scales = arithmetic.block_functions(key), _set_scales(key)
    convert = arithmetic.converters(key)[HALF_TO_EVEN]

    def convert_consecutive(x: Any, y: Any, block_format: Any, unit: Any, scaling: Any, scratch: Any) -> None:
        """Convert the blocks of a unit from `blocks_of_unit`. Their elements are consecutive."""
        start, stride, count, rows = unit
        shared, steps = scratch.shared, scratch.steps
        for b in range(unsigned(count)):
            begin, largest = unsigned(start) + b * unsigned(stride), np.uint32(0)
            for i in range(unsigned(rows)):
                largest = max(largest, measure(x[begin + i]))
            shared[b] = largest
        max_shift, drop = np.uint32(block_format.max_shift), np.int32(block_format.drop)
        set_scales(shared, count, drop, scaling)
        for b in range(unsigned(count)):
            steps[b] = find_step(shared[b], shared[b], max_shift, drop, scaling.tensor_scale)
        bounds = bounds_of(block_format)
        for b in range(unsigned(count)):
            begin, step = unsigned(start) + b * unsigned(stride), steps[b]
            for i in range(unsigned(rows)):
                y[begin + i] = convert(x[begin + i], step, bounds)

    return jit.function(convert_consecutive, f"consecutive_{key.name}")


def _transposers(key: Key) -> tuple[Any, Any]:
    x_is_float32, y_is_float32 = (jit.JIT_ENABLED and element_type is FLOAT32 for element_type in (key.x, key.y))
    return (
        jit.function(gather_float32 if x_is_float32 else gather, f"gather_{key.name}"),
        jit.function(scatter_float32 if y_is_float32 else scatter, f"scatter_{key.name}"),
    )


def _columns_runner(key: Key) -> Any:
    convert_columns = _columns_converter(key)

    def run_columns(x: Any, y: Any, block_format: Any, loop: Any, units: Any, first_scaling: Any, scratch: Any) -> None:
        """Convert blocks side by side in place: the units of `unit_shape` from `units[0]` up to, but not including,
        `units[1]`. `first_scaling` is the Scaling of the first blocks of x."""
        length, inner, block = loop.length, loop.inner, block_format.block
        blocks_along, (width, across) = -(-length // block), unit_shape(block_format, loop)
        address, stride, tensor_scale = first_scaling
        for unit in range(units[0], units[1]):
            down, i = divmod(unit, across)
            outer, b = divmod(down, blocks_along)
            start = (outer * length + b * block) * inner + i * width
            columns = Columns(start, inner, min(block, length - b * block), min(width, inner - i * width))
            scaling = Scaling(address + down * inner + i * width, stride, tensor_scale)
            convert_columns(x, y, block_format, columns, scaling, scratch)

    return jit.inline(run_columns)


def _scaling_finder(key: Key) -> Any:
    has_codes = key.has_codes

    def find_scaling(start: int, stride: int, block_format: Any, loop: Any, first_scaling: Any) -> Any:
        """Return the Scaling of a unit from `blocks_of_unit`."""
        address, scale_stride, tensor_scale = first_scaling
        if has_codes:
            blocks_along = -(-loop.length // block_format.block)
            outer, begin = divmod(start, loop.length)
            address += outer * blocks_along + begin // block_format.block
            scale_stride = np.int64(1) if stride == block_format.block else blocks_along
        return Scaling(address, scale_stride, tensor_scale)

    return jit.inline(find_scaling)


def _consecutive_runner(key: Key) -> Any:
    """Return the function that converts blocks along the last axis in place, or None if these are converted in transposed
    tiles."""
    convert_consecutive, find_scaling = _consecutive_converter(key), _scaling_finder(key)
    if convert_consecutive is None:
        return None

    def run_consecutive(x: Any, y: Any, block_format: Any, loop: Any, units: Any, first_scaling: Any, scratch: Any) -> None:
        """Convert units of `blocks_of_unit` in place. The arguments are as for `run_columns`."""
        runs = runs_of(x.size, block_format, loop)
        for unit in range(units[0], units[1]):
            start, stride, n, rows = blocks_of_unit(unit, runs, block_format, loop)
            scaling = find_scaling(start, stride, block_format, loop, first_scaling)
            convert_consecutive(x, y, block_format, (start, stride, n, rows), scaling, scratch)

    return jit.inline(run_consecutive)


def _transposed_runner(key: Key) -> Any:
    convert_columns, find_scaling = _columns_converter(key), _scaling_finder(key)
    gather_blocks, scatter_blocks = _transposers(key)
    x_dtype, y_dtype = key.x.storage.type, key.y.storage.type

    def run_transposed(x: Any, y: Any, block_format: Any, loop: Any, units: Any, first_scaling: Any, scratch: Any) -> None:
        """Convert units of `blocks_of_unit` in tiles that have blocks as columns. Blocks that are too long for a tile are
        converted in place. The arguments are as for `run_columns`."""
        runs, x_tile, y_tile = runs_of(x.size, block_format, loop), scratch.x_tile.view(x_dtype), scratch.y_tile.view(y_dtype)
        for unit in range(units[0], units[1]):
            start, stride, n, rows = blocks_of_unit(unit, runs, block_format, loop)
            scaling = find_scaling(start, stride, block_format, loop, first_scaling)
            if rows > UNIT_SIZE:
                convert_columns(x, y, block_format, Columns(start, loop.inner, rows, n), scaling, scratch)
                continue
            # Rows of a tile begin with a cache line.
            padded = min(-(-n // 16) * 16, UNIT_SIZE // rows)
            gather_blocks(x, start, stride, n, rows, x_tile, padded)
            convert_columns(x_tile, y_tile, block_format, Columns(np.int64(0), padded, rows, n), scaling, scratch)
            scatter_blocks(y_tile, padded, n, rows, y, start, stride)

    return jit.inline(run_transposed)


@functools.cache
def _run(key: Key) -> Any:
    run_columns, run_rows = _columns_runner(key), _consecutive_runner(key) or _transposed_runner(key)
    has_scales = key.has_scales

    def run(
        x: Any, y: Any, scales: Any, tensor_scale: Any, block_format: Any, loop: Any, part: int, parts: int, memory: Any
    ) -> None:
        """Convert part `part` of the `parts` parts of x. `memory` is an array of at least `scratch_size` uint32. The scales
        have the order of their blocks: (outer, blocks of an axis, inner)."""
        if x.size == 1 and not has_scales:  # returned as it is
            y[0] = x[0]
            return
        units = count_units(x.size, block_format, loop)
        first, last = part * units // parts, (part + 1) * units // parts
        if first == last:
            return
        scratch = _scratch_in(memory, sub_blocks_at_a_time(block_format, loop))
        first_scaling = Scaling(np.int64(scales.ctypes.data), np.int64(1), tensor_scale)
        if loop.inner > 1:
            run_columns(x, y, block_format, loop, (first, last), first_scaling, scratch)
        else:
            run_rows(x, y, block_format, loop, (first, last), first_scaling, scratch)

    return jit.function(run, f"run_{key.name}")


def _run_packed(key: Key) -> Any:
    convert, pack = _run(key), packing.regroup_function(key.y.bits, 8)
    y_per_byte, x_dtype, whole = 8 // key.y.bits, key.x.storage.type, (np.int64(0), np.int64(1))

    def convert_piece_of_rows(
        i: int, x: Any, y: Any, scales: Any, tensor_scale: Any, block_format: Any, loop: Any, codes: Any, scratch: Any
    ) -> None:
        """Convert piece `i`, which is one or more whole rows of blocks."""
        piece = piece_size(block_format, loop, y_per_byte)
        start = i * piece
        n = min(piece, x.size - start)
        rows, row_scales = BlockLoop(n // loop.inner, loop.inner), scales[start // block_format.block :]
        convert(x[start : start + n], codes[:n], row_scales, tensor_scale, block_format, rows, *whole, scratch)
        pack(codes[:n], y[start // y_per_byte : -(-(start + n) // y_per_byte)])

    def convert_piece_of_columns(
        i: int, x: Any, y: Any, scales: Any, tensor_scale: Any, block_format: Any, loop: Any, codes: Any, scratch: Any
    ) -> None:
        """Convert piece `i`, which is some columns of one row of blocks. `convert` takes a copy of them, without the columns
        beside them."""
        block, inner, columns = block_format.block, loop.inner, piece_columns(block_format, loop, y_per_byte)
        row, place = divmod(i, -(-inner // columns))
        start, width = row * block * inner + place * columns, min(columns, inner - place * columns)
        words, n = scratch_size(block_format, loop), block * width
        elements = scratch[words : words + n].view(x_dtype)
        for line in range(block):
            begin = unsigned(start + line * inner)
            for k in range(unsigned(width)):
                elements[unsigned(line * width) + k] = x[begin + k]
        piece_scales = scales[row * inner + place * columns :]
        convert(elements[:n], codes[:n], piece_scales, tensor_scale, block_format, BlockLoop(block, width), *whole, scratch)
        for line in range(block):
            begin = (start + line * inner) // y_per_byte
            pack(codes[line * width : (line + 1) * width], y[begin : begin + -(-width // y_per_byte)])

    convert_rows = jit.function(convert_piece_of_rows, f"rows_packed_{key.name}")
    convert_columns = jit.function(convert_piece_of_columns, f"columns_packed_{key.name}")

    def run_packed(
        x: Any, y: Any, scales: Any, tensor_scale: Any, block_format: Any, loop: Any, part: int, parts: int, scratch: Any
    ) -> None:
        """Do what `_run` does, for codes that are packed in bytes, piece by piece. All blocks are whole. `scratch` also has
        room for the elements and the codes of a piece."""
        pieces = count_pieces(x.size, block_format, loop, y_per_byte)
        codes = scratch[scratch_size(block_format, loop) + piece_size(block_format, loop, y_per_byte) :].view(np.uint8)
        for i in range(part * pieces // parts, (part + 1) * pieces // parts):
            if piece_columns(block_format, loop, y_per_byte) < loop.inner:
                convert_columns(i, x, y, scales, tensor_scale, block_format, loop, codes, scratch)
            else:
                convert_rows(i, x, y, scales, tensor_scale, block_format, loop, codes, scratch)

    return jit.function(run_packed, f"run_packed_{key.name}")


@functools.cache
def _loops(key: Key) -> Loops:
    x_dtype, y_dtype, is_packed, convert_part = key.x.storage.type, key.y.storage.type, key.y.is_packed, _run(key)
    y_per_byte, convert_part_of_task = (8 // key.y.bits, _run_packed(key)) if is_packed else (1, convert_part)
    # A read-only x is given the type that the other callers use for x. Otherwise `_run` would be compiled for both types.
    writeable = jit.inline(lambda x: array_at(x.ctypes.data, x.size, x_dtype)) if jit.JIT_ENABLED else lambda x: x

    def serial(x: Any, y: Any, scales: Any, tensor_scale: Any, block_format: Any, loop: Any) -> bool:
        """Convert all of x on one thread. Return whether there was enough memory."""
        words = new_words((scratch_size(block_format, loop) + 1) // 2)
        has_memory = address_of(words, 0) != 0
        if has_memory:
            convert_part(x, y, scales, tensor_scale, block_format, loop, np.int64(0), np.int64(1), words.view(np.uint32))
        release_words(words)
        return has_memory

    def parallel(x: Any, y: Any, scales: Any, tensor_scale: Any, block_format: Any, loop: Any, slices: int) -> None:
        """Convert all of x on Numba's threads."""
        for i in prange(slices):
            scratch = np.empty(scratch_size(block_format, loop), np.uint32)
            convert_part(writeable(x), y, scales, tensor_scale, block_format, loop, np.int64(i), slices, scratch)

    def task(work_address: int, index: int) -> None:
        """Do part `index` of a node's work, on a thread of ONNX Runtime."""
        work = record_at(work_address, WORK)
        block_format = Format(
            work.block, work.sub_block, work.max_shift, work.drop, work.lowest, work.highest, work.rounding_mode
        )
        loop = BlockLoop(work.length, work.inner)
        size = scratch_size(block_format, loop)
        if is_packed:
            pieces = count_pieces(work.size, block_format, loop, y_per_byte)
            if index * pieces // work.parts == (index + 1) * pieces // work.parts:  # pieces may be larger than parts
                return
            size += piece_size(block_format, loop, y_per_byte) * 5 // 4 + 1
        address = allocate(4 * size)
        if address == 0:
            work.has_failed = 1
            return
        x, y = array_at(work.x, work.size, x_dtype), array_at(work.y, -(-work.size // y_per_byte), y_dtype)
        scales = array_at(work.scales, work.size, np.uint8)  # an upper bound: there are fewer scales
        convert_part_of_task(
            x, y, scales, work.tensor_scale, block_format, loop, index, work.parts, array_at(address, size, np.uint32)
        )
        release(address)

    return serial, parallel, task


def _arguments(key: Key) -> list[Any]:
    """Return the types of the operands. The arrays are flat and contiguous, of storage dtypes; codes of less than 8 bits have a
    byte each. Scales may be empty if the key has no codes."""
    x, y = (numba.from_dtype(element_type.storage) for element_type in (key.x, key.y))
    arrays = [types.Array(x, 1, "C", readonly=True), types.Array(y, 1, "C"), types.Array(types.uint8, 1, "C")]
    return [
        *arrays,
        types.float32,
        *(types.NamedUniTuple(types.int64, len(each._fields), each) for each in (Format, BlockLoop)),
    ]


serial_kernel, parallel_kernel, task_function = variants(_loops, lambda key: key.name, _arguments, allocates=True)
