"""Which elements form a block, from the shape of x.

``block_shape`` is also compiled into the nodes of sessions, where the shape is an array instead of a tuple. So it uses only
``len``, indexing and integers, and returns a fault as a number. ``FAULTS`` has the message for each number."""

from __future__ import annotations

from typing import Any

NO_FAULT, AXIS, LENGTH, SCALE = range(4)

FAULTS = {
    AXIS: "axis is {axis}, out of range for x of shape {x_shape}",
    LENGTH: "x has shape {x_shape}; expected a length along axis {axis} that is a multiple of block_size, {block_size}",
    SCALE: "scale has shape {scale_shape}; expected one element",
}


def block_shape(x_shape: Any, axis: int, block_size: int) -> tuple[int, int, int]:
    """Return (fault, the axis as a number from 0 on, inner) for a shape given as a sequence of integers. In C order, x is rows
    of `inner` elements. Each `block_size` consecutive rows hold `inner` blocks side by side, one in each column."""
    rank = len(x_shape)
    if axis < -rank or axis >= rank:
        return AXIS, 0, 0
    if axis < 0:
        axis += rank
    if x_shape[axis] % block_size:
        return LENGTH, 0, 0
    inner = 1
    for i in range(axis + 1, rank):
        inner *= x_shape[i]
    return NO_FAULT, axis, inner
