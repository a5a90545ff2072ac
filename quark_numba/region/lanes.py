"""Tiles of y in ONNX Runtime's blocked layout, for programs that round to block formats. In that layout the channels of a
block, called lanes, are side by side in memory. In a tile each channel is a row, as in ONNX's layout. If the blocks of y lie
along the last axis, the same functions load and store its tiles: see ``granularity.describe_as_channels``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiling import jit
from ..compiling.intrinsics import array_at, copy_bytes, record_at
from ..compiling.vectors import transpose
from .kernels import WORK, fill, find_repetition, find_row, nest_of, spread


@jit.function
def _index_in_memory(work_address: int, index: int, row: int) -> tuple[int, int]:
    """Return (index in memory of lane 0, the lane) of the element that is `row` channels after the element with this index in
    ONNX's layout."""
    work = record_at(work_address, WORK)
    channels, place = divmod(index, work.inner)
    batch, channel = divmod(channels, work.length)
    group, lane = divmod(channel + row, work.lanes)
    groups = -(-work.length // work.lanes)
    return ((batch * groups + group) * work.inner + place) * work.lanes, lane


@jit.function
def load_lanes(work_address: int, stream: Any, span: Any, shape: Any, buffer: int, scratch: int) -> None:
    """Write the part of the tile of a stream for a span into its buffer, as ``tiles.load`` does. `scratch` is the address of
    memory for one row of elements for each lane."""
    work, nest = record_at(work_address, WORK), nest_of(work_address)
    lanes, itemsize = work.lanes, stream.itemsize
    # Each row of the tile is one element of the input, repeated.
    repeats_elements = itemsize == 4 and find_repetition(nest, stream.number) == (lanes, lanes * work.inner)
    row = 0
    while row < shape.rows:
        first, lane = _index_in_memory(work_address, span.index, row)
        count = min(lanes - lane, shape.rows - row)
        target = buffer + (row * shape.width + span.column) * itemsize
        if repeats_elements:
            source = stream.data + 4 * (find_row(nest, stream.number, first // lanes) + lane)
            for channel in range(count):
                fill(source + 4 * channel, target + channel * shape.width * 4, span.count)
        else:
            source = stream.data + first * itemsize
            if not stream.is_full:
                source = spread(work_address, stream, first, span.count * lanes, scratch)
            transpose_elements(itemsize, source + lane * itemsize, lanes, span.count, count, target, shape.width)
        row += count


@jit.expand
def transpose_elements(itemsize: int, source: int, step: int, rows: int, columns: int, target: int, width: int) -> None:
    """Do what `transpose` does, for elements of any size."""
    if itemsize == 4:
        transpose(source, step, rows, columns, target, width)
        return
    for i in range(rows):
        for k in range(columns):
            copy_bytes(source + (i * step + k) * itemsize, target + (k * width + i) * itemsize, itemsize)


@jit.function
def store_lanes(work_address: int, span: Any, shape: Any, tile: int) -> None:
    """Write a span of the tile to y, and zeros to the lanes after the last channel of y."""
    work = record_at(work_address, WORK)
    lanes, n = work.lanes, span.count
    first_channel = span.index // work.inner % work.length
    row = 0
    while row < shape.rows:
        first, lane = _index_in_memory(work_address, span.index, row)
        count = min(lanes - lane, shape.rows - row)
        transpose(tile + (row * shape.width + span.column) * 4, shape.width, count, n, work.y + (first + lane) * 4, lanes)
        row += count
        if first_channel + row == work.length:
            y = array_at(work.y + first * 4, n * lanes, np.float32)
            for i in range(n):
                for added in range(lane + count, lanes):
                    y[i * lanes + added] = np.float32(0)
