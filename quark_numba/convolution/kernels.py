"""The loops of a convolution of codes, the functions that compile them, the order of packed weights, and the sizes of tiles and
of the parts of the work.

Weights are packed once (`pack`). A convolution then has two phases, each with `count_parts` parts, which may run at the same
time:

- ENCODE: write the codes of x to memory, with the pads around them.
- MULTIPLY: compute y, tile by tile (`vectors.convolve_tile`).

A line is a row of codes. With a stride s it has first the columns 0, s, 2 s and so on, then the columns 1, s + 1, and so on. So
the codes for consecutive pixels of y are consecutive, whatever the stride is."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from ..compiling import jit
from ..compiling.intrinsics import array_at, call, record_at
from ..compiling.jit import unsigned
from ..element_types import FLOAT32, ElementType
from .key import GROUP, Key
from .vectors import BLOCKS, TILES, encode_function, tile_function

ENCODE, MULTIPLY = range(2)

_NAMES = (
    # Addresses: the C function of ENCODE, and memory.
    *("encode", "x", "y", "table", "codes", "offsets", "weights", "starts", "scales", "biases"),
    "phase",
    "batch",
    "group",  # the number of groups of channels
    # Blocks of channels of x and y in a group.
    *("blocks", "outer_blocks"),
    # The groups of GROUP channels, the rows and columns of the kernel, and the product of all three: the steps of a sum.
    *("inner", "kernel_rows", "kernel_columns", "steps"),
    # Of an image of x; before its rows and columns; and with all pads, where a line has `phases` times `line` columns.
    *("rows", "columns", "top", "left", "all_rows", "phases", "line"),
    *("row_stride", "row_dilation", "column_dilation"),
    # Of an image of y.
    *("y_rows", "y_columns"),
    # The pixels of a tile, the tiles of a row, and the tiles of a part.
    *("tile", "row_tiles", "part_tiles"),
)
# Of the codes of x, the results, and the codes of y.
_NUMBERS = "inverse", "zero_point", "lowest", "y_inverse", "y_zero_point"
WORK = np.dtype([*((name, np.int64) for name in _NAMES), *((name, np.float64) for name in _NUMBERS)])

# The multiplications of a part, and the pixels of x that a part of ENCODE converts: some microseconds.
_PRODUCTS, _PIXELS = 1 << 21, 1 << 10


@jit.function
def packed_bytes(outer: int, inner: int, places: int) -> int:
    """Return the size of packed weights, for a multiple of `lanes` channels of y, groups of channels of x, and places of the
    kernel. After the weights there are the starts, scales and biases."""
    return outer * inner * places * GROUP + 3 * 4 * outer


@jit.function
def pack(inputs: Any, channels: int, depth: int, places: int, group: int, zero: int, lanes: int, to: int) -> None:
    """Pack weights of shape (channels, depth, places), with their scales and biases: `inputs` are the addresses of the three.
    `group` is the number of groups of channels. `zero` is the zero point of x, which is in all codes: so a sum begins with the
    negative sum of its weights, times `zero`."""
    w_address, scale, bias = inputs
    w = array_at(w_address, channels * depth * places, np.int8)
    scales, biases = array_at(scale, channels, np.float32), array_at(bias, channels, np.float32)
    blocks, inner = (channels + lanes - 1) // lanes, (depth + GROUP - 1) // GROUP
    outer, steps = blocks * lanes, inner * places
    size = outer * steps * GROUP
    packed, starts = array_at(to, size, np.int8), array_at(to + size, outer, np.int32)
    numbers = array_at(to + size + 4 * outer, 2 * outer, np.float32)
    for i in range(size):
        packed[i] = 0
    groups_of_block, blocks_of_group = lanes // GROUP, blocks // group
    for channel in range(outer):
        block, lane = channel // lanes, channel % lanes
        # The blocks side by side in a tile: their number, the first of them, and the place of this block.
        place_in_group = block % blocks_of_group
        side = place_in_group % BLOCKS
        first = block - side
        width = min(BLOCKS, blocks_of_group - place_in_group + side)
        total: Any = np.int64(0)
        if channel < channels:
            for k in range(depth):
                # The step of this channel of x at place 0: whole blocks of x come with all places one after the other.
                whole = k // lanes
                own = min(groups_of_block, inner - whole * groups_of_block)
                for place in range(places):
                    step = whole * groups_of_block * places + place * own + k % lanes // GROUP
                    weight = w[(channel * depth + k) * places + place]
                    at = first * steps * lanes + (step * width + side) * lanes + lane
                    packed[at * GROUP + k % GROUP] = weight
                    total += weight
        starts[channel] = -zero * total
        numbers[channel] = scales[channel] if channel < channels else np.float32(0)
        numbers[outer + channel] = biases[channel] if channel < channels else np.float32(0)


@jit.function
def write_offsets(work: Any, lanes: int) -> None:
    """Write the offsets of all steps, in the order of `pack`."""
    offsets = array_at(work.offsets, work.steps, np.int32)
    groups_of_block = lanes // GROUP
    step = 0
    for block in range(work.blocks):
        own = min(groups_of_block, work.inner - block * groups_of_block)
        for row in range(work.kernel_rows):
            for column in range(work.kernel_columns):
                line = (block * work.all_rows + row * work.row_dilation) * work.phases
                away = column * work.column_dilation
                pixel = (line + away % work.phases) * work.line + away // work.phases
                for group in range(own):
                    offsets[step] = pixel * lanes + group * GROUP
                    step += 1


@jit.function
def choose_tile(columns: int) -> int:
    """Return the pixels of a tile for a number of columns, of at most so many pixels. Besides the pixels a tile takes some
    time of its own. Tiles of a row overlap if they do not divide it."""
    best: Any = np.int64(1)
    least = columns * (1 + 2)
    for pixels in TILES:
        cost = (columns + pixels - 1) // pixels * (pixels + 2)
        if pixels <= columns and cost < least:
            best, least = np.int64(pixels), cost
    return best


@jit.function
def set_parts(work: Any, lanes: int) -> None:
    """Set the fields about tiles."""
    work.tile = choose_tile(work.y_columns)
    work.row_tiles = (work.y_columns + work.tile - 1) // work.tile
    products = work.tile * BLOCKS * lanes * GROUP * work.steps
    work.part_tiles = max(1, _PRODUCTS // products)


@jit.function
def rows_of_part(work: Any) -> int:
    """Return the rows that a part of ENCODE converts."""
    return max(1, _PIXELS // (work.line * work.phases))


@jit.function
def count_parts(work: Any, phase: int) -> int:
    if phase == ENCODE:
        rows = rows_of_part(work)
        return work.batch * work.group * work.blocks * ((work.all_rows + rows - 1) // rows)
    tiles = work.y_rows * work.row_tiles
    pairs = (work.outer_blocks + BLOCKS - 1) // BLOCKS
    return work.batch * work.group * pairs * ((tiles + work.part_tiles - 1) // work.part_tiles)


@functools.cache
def encode_task(x_type: ElementType, lanes: int) -> Any:
    """Return the C function void (int64_t work, size_t part) for a part of ENCODE: some lines of one block of channels."""
    is_float = x_type is FLOAT32
    pixel_bytes = lanes * (4 if is_float else 1)
    encode = encode_function(lanes, is_float)

    def encode_part(work_address, part):  # type: ignore[no-untyped-def]
        work = record_at(work_address, WORK)
        inverse, zero_point = np.float32(work.inverse), np.float32(work.zero_point)
        part_rows = rows_of_part(work)
        parts = (work.all_rows + part_rows - 1) // part_rows
        plane, first = part // parts, part % parts * part_rows
        x = work.x + plane * work.rows * work.columns * pixel_bytes
        width = work.phases * work.line * lanes
        for row in range(first, min(first + part_rows, work.all_rows)):
            line_address = work.codes + (plane * work.all_rows + row) * width
            x_row = row - work.top
            is_pad = x_row < 0 or x_row >= work.rows
            if is_pad or work.phases * work.line != work.columns:
                line = array_at(line_address, width, np.uint8)
                for i in range(unsigned(width)):
                    line[i] = np.uint8(zero_point)
            if is_pad:
                continue
            x_line = x + x_row * work.columns * pixel_bytes
            for phase in range(work.phases):
                # The first column of x with this remainder, and its place in the line.
                first_column = (phase - work.left) % work.phases
                place = (first_column + work.left) // work.phases
                to = line_address + (phase * work.line + place) * lanes
                step = work.phases * pixel_bytes
                count = min((work.columns - first_column + work.phases - 1) // work.phases, work.line - place)
                for i in range(count):
                    encode(x_line + first_column * pixel_bytes + i * step, to + i * lanes, inverse, zero_point)

    return jit.c_function(encode_part, f"encode_{x_type.name}_{lanes}", types.void(types.int64, types.intp))


def task_function(key: Key) -> Any:
    """Return the C function void (int64_t work, size_t part) for a part of a phase. A part of MULTIPLY is some tiles of up to
    BLOCKS blocks of channels."""
    lanes, gives_codes = key.lanes, key.element_type is not FLOAT32
    pixel_bytes = lanes * (1 if gives_codes else 4)
    convolve_tile = tile_function(lanes, gives_codes)

    def run_part(work_address, part):  # type: ignore[no-untyped-def]
        work = record_at(work_address, WORK)
        if work.phase == ENCODE:
            call(work.encode, (work_address, part))
            return
        tiles = work.y_rows * work.row_tiles
        parts = (tiles + work.part_tiles - 1) // work.part_tiles
        pairs = (work.outer_blocks + BLOCKS - 1) // BLOCKS
        chunk, pair, image = part % parts, part // parts % pairs, part // parts // pairs
        block = pair * BLOCKS
        blocks = min(BLOCKS, work.outer_blocks - block)
        own = image % work.group * work.outer_blocks + block  # the blocks before those of this part
        line = work.phases * work.line * lanes
        codes = work.codes + image * work.blocks * work.all_rows * line
        block_step = work.y_rows * work.y_columns * pixel_bytes
        y = work.y + (image * work.outer_blocks + block) * block_step
        weights = work.weights + own * lanes * GROUP * work.steps
        at = own * lanes * 4
        for tile in range(chunk * work.part_tiles, min((chunk + 1) * work.part_tiles, tiles)):
            row = tile // work.row_tiles
            column = min(tile % work.row_tiles * work.tile, work.y_columns - work.tile)
            addresses = codes + row * work.row_stride * line + column * lanes, work.offsets, work.steps, weights
            target = y + (row * work.y_columns + column) * pixel_bytes, block_step
            of_channels = work.starts + at, work.scales + at, work.biases + at
            limits = np.float32(work.lowest), np.float32(work.y_inverse), np.float32(work.y_zero_point), work.table
            convolve_tile(work.tile, blocks, (*addresses, *target, *of_channels, *limits))

    return jit.c_function(run_part, f"task_{key.name}", types.void(types.int64, types.intp))
