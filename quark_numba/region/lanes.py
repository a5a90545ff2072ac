"""Tiles of y in ONNX Runtime's blocked layout, for programs with steps of blocks. There the `lanes` channels of a block of the
layout are side by side in memory. In a tile each channel is a row, as in ONNX's layout."""

from __future__ import annotations

import numpy as np

from ..compiling import jit
from ..compiling.intrinsics import array_at, record_at
from ..compiling.jit import unsigned
from ..compiling.vectors import transpose_8, transpose_16
from .kernels import WORK, spread


@jit.function
def _to_rows(source: int, lanes: int, count: int, n: int, target: int, width: int) -> None:
    """Write `count` of the `lanes` elements that are side by side, `n` times, to as many rows of a tile."""
    done = 0
    if count == lanes == 8:
        while done + 8 <= n:
            transpose_8(source + done * 32, 32, target + done * 4, width * 4)
            done += 8
    elif count == lanes == 16:
        while done + 16 <= n:
            transpose_16(source + done * 64, 64, target + done * 4, width * 4)
            done += 16
    given, taken = array_at(source, n * lanes, np.float32), array_at(target, count * width, np.float32)
    for row in range(unsigned(count)):
        for i in range(unsigned(done), unsigned(n)):
            taken[row * unsigned(width) + i] = given[i * unsigned(lanes) + row]


@jit.function
def _from_rows(source: int, width: int, count: int, n: int, target: int, lanes: int) -> None:
    """Undo `_to_rows`."""
    done = 0
    if count == lanes == 8:
        while done + 8 <= n:
            transpose_8(source + done * 4, width * 4, target + done * 32, 32)
            done += 8
    elif count == lanes == 16:
        while done + 16 <= n:
            transpose_16(source + done * 4, width * 4, target + done * 64, 64)
            done += 16
    given, taken = array_at(source, count * width, np.float32), array_at(target, n * lanes, np.float32)
    for row in range(unsigned(count)):
        for i in range(unsigned(done), unsigned(n)):
            taken[i * unsigned(lanes) + row] = given[row * unsigned(width) + i]


@jit.function
def _place(work_address: int, index: int, row: int) -> tuple[int, int]:
    """Return (index in memory of the first lane, lane) of the element `row` channels behind the element with an index in ONNX's
    layout."""
    work = record_at(work_address, WORK)
    channels, place = divmod(index, work.inner)
    batch, channel = divmod(channels, work.length)
    group, lane = divmod(channel + row, work.lanes)
    groups = -(-work.length // work.lanes)
    return ((batch * groups + group) * work.inner + place) * work.lanes, lane


@jit.function
def load_lanes(
    work_address: int, k: int, is_full: bool, column: int, n: int, index: int, rows: int, width: int, buffer: int, spare: int
) -> None:
    """Write the part of the tile of input k for a run of columns into its buffer, as ``tiles.load`` does. `spare` is the
    address of room for as many elements as a row has, for each lane."""
    work = record_at(work_address, WORK)
    data, lanes = array_at(work.inputs, k + 1, np.int64)[k], work.lanes
    row = 0
    while row < rows:
        at, lane = _place(work_address, index, row)
        count = min(lanes - lane, rows - row)
        source = data + at * 4 if is_full else spread(work_address, k, np.int64(4), at, n * lanes, spare, np.int64(0))
        _to_rows(source + lane * 4, lanes, count, n, buffer + (row * width + column) * 4, width)
        row += count


@jit.function
def store_lanes(work_address: int, column: int, n: int, index: int, rows: int, width: int, tile: int) -> None:
    """Write a run of columns of the tile to y, and zeros to the lanes behind y's last channel."""
    work = record_at(work_address, WORK)
    lanes = work.lanes
    first = index // work.inner % work.length
    row = 0
    while row < rows:
        at, lane = _place(work_address, index, row)
        count = min(lanes - lane, rows - row)
        _from_rows(tile + (row * width + column) * 4, width, count, n, work.y + (at + lane) * 4, lanes)
        row += count
        if first + row == work.length:
            y = array_at(work.y + at * 4, n * lanes, np.float32)
            for i in range(n):
                for added in range(lane + count, lanes):
                    y[i * lanes + added] = np.float32(0)
