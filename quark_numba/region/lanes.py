"""Tiles of y in ONNX Runtime's blocked layout, for programs that round to block formats. In memory the channels of a block of
that layout, its lanes, are side by side. In a tile each channel is a row, as in ONNX's layout. Tiles of a y whose blocks lie
along the last axis are the same: see ``granularity.as_channels``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiling import jit
from ..compiling.intrinsics import array_at, copy_bytes, record_at
from ..compiling.jit import unsigned
from ..compiling.vectors import transpose
from .kernels import WORK, pattern_of, row_offset, spread


@jit.function
def _index_in_memory(work_address: int, index: int, row: int) -> tuple[int, int]:
    """Return (index in memory of lane 0, the lane) of an element: that which is `row` channels after the element with this
    index in ONNX's layout."""
    work = record_at(work_address, WORK)
    channels, place = divmod(index, work.inner)
    batch, channel = divmod(channels, work.length)
    group, lane = divmod(channel + row, work.lanes)
    groups = -(-work.length // work.lanes)
    return ((batch * groups + group) * work.inner + place) * work.lanes, lane


@jit.function
def load_lanes(
    work_address: int, k: int, itemsize: int, is_full: bool, span: Any, rows: int, width: int, buffer: int, scratch: int
) -> None:
    """Write the part of the tile of input k for a span into its buffer, as ``tiles.load`` does. `scratch` is the address of
    memory for as many elements as a row has, for each lane."""
    work = record_at(work_address, WORK)
    lengths, masks = array_at(work.lengths, work.dimensions, np.int64), array_at(work.masks, work.dimensions, np.int64)
    data, lanes, n = array_at(work.inputs, k + 1, np.int64)[k], work.lanes, span.count
    # Each row of the tile is one element of the input, repeated.
    repeats_elements = itemsize == 4 and pattern_of(k, work.dimensions, lengths, masks) == (lanes, lanes * work.inner)
    row = 0
    while row < rows:
        first, lane = _index_in_memory(work_address, span.index, row)
        count = min(lanes - lane, rows - row)
        if repeats_elements:
            values = data + 4 * (row_offset(first // lanes, k, work.dimensions, lengths, masks) + lane)
            for channel in range(count):
                value = array_at(values + 4 * channel, 1, np.float32)[0]
                words = array_at(buffer + ((row + channel) * width + span.column) * 4, n, np.float32)
                for i in range(unsigned(n)):
                    words[i] = value
            row += count
            continue
        source = data + first * itemsize
        if not is_full:
            source, _ = spread(work_address, k, itemsize, first, n * lanes, scratch, np.int64(0))
        source, target = source + lane * itemsize, buffer + (row * width + span.column) * itemsize
        row += count
        if itemsize == 4:
            transpose(source, lanes, n, count, target, width)
            continue
        for i in range(n):
            for channel in range(count):
                copy_bytes(source + (i * lanes + channel) * itemsize, target + (channel * width + i) * itemsize, itemsize)


@jit.function
def store_lanes(work_address: int, span: Any, rows: int, width: int, tile: int) -> None:
    """Write a span of the tile to y, and zeros to the lanes after the last channel of y."""
    work = record_at(work_address, WORK)
    lanes, n = work.lanes, span.count
    first_channel = span.index // work.inner % work.length
    row = 0
    while row < rows:
        first, lane = _index_in_memory(work_address, span.index, row)
        count = min(lanes - lane, rows - row)
        transpose(tile + (row * width + span.column) * 4, width, count, n, work.y + (first + lane) * 4, lanes)
        row += count
        if first_channel + row == work.length:
            y = array_at(work.y + first * 4, n * lanes, np.float32)
            for i in range(n):
                for added in range(lane + count, lanes):
                    y[i * lanes + added] = np.float32(0)
