"""Which elements share a scale, from the shapes of x, scale and zero point.

``loop_shape``, and what it calls, is also compiled into native nodes, which pass arrays instead of tuples. So it uses only
``len``, indexing and integers, and reports a fault by its number. ``FAULTS`` has the message of each number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Rows of scales that are longer than this are not faster.
ROW = 512

NO_FAULT, SCALE_RANK, ZERO_POINT_SHAPE, AXIS, SCALE_LENGTH, BLOCKED_RANK, BLOCKED_SHAPE, BLOCK_SIZE, NO_BLOCK_SIZE = range(9)

FAULTS = {
    SCALE_RANK: "{scale} has shape {scale_shape}; expected a scalar, one element, one dimension (per axis), or if it is "
    "blocked, as many dimensions as {x} of shape {x_shape}",
    ZERO_POINT_SHAPE: "{zero_point} has shape {zero_point_shape}; expected the shape of {scale}, {scale_shape}",
    AXIS: "axis is {axis}, out of range for {x} of shape {x_shape}; {scale} has shape {scale_shape}",
    SCALE_LENGTH: "{scale} has shape {scale_shape}; expected as many elements as {x} of shape {x_shape} has along axis {axis}",
    BLOCKED_RANK: "block_size is {block_size}, {scale} has shape {scale_shape}; expected as many dimensions as {x} of shape "
    "{x_shape}, or block_size 0",
    BLOCKED_SHAPE: "{scale} has shape {scale_shape}; expected the shape of {x}, {x_shape}, except along axis {axis}",
    BLOCK_SIZE: "block_size is {block_size}; expected one that divides {x} of shape {x_shape} along axis {axis} into as many "
    "blocks as {scale} of shape {scale_shape} has",
    NO_BLOCK_SIZE: "block_size is 0, and several would fit {x} of shape {x_shape} and {scale} of shape {scale_shape} along "
    "axis {axis}; expected one of them",
}


class Names(NamedTuple):
    """The names, in messages, of the arguments of a call on arrays, or of the inputs and attributes of an operator."""

    x: str = "x"
    scale: str = "scale"
    zero_point: str = "zero_point"
    dtype: str = "dtype"

    def message(self, fault: int, x_shape: Any, scale_shape: Any, zero_point_shape: Any, axis: Any, block_size: Any) -> str:
        """Return the message of a fault. The shapes and attributes may be given as texts."""
        shapes = {"x_shape": x_shape, "scale_shape": scale_shape, "zero_point_shape": zero_point_shape}
        return FAULTS[fault].format(**self._asdict(), **shapes, axis=axis, block_size=block_size)


class Loop(NamedTuple):
    """How a kernel goes through x and the scales. Both are in C order.

    x is treated as an array of shape (outer, length, inner): rows of `inner` elements, and `length` rows along the axis.
    `block` consecutive rows along the axis are a block; the last block of an axis may have fewer rows. The scales are treated
    as `rows` rows. Blocks are numbered through all of x, and block number b uses row b % rows of the scales:

    - If `vary` is False, a row of scales is one scale. All elements of the block share it.
    - If `vary` is True, a row of scales is as long as a row of x. Element i of each row of the block has scale i.

    Examples, of x with shape (4, 6): one scale for all is Loop(1, 1, 24, 1, False). A scale for each index of axis 0 is Loop(4,
    1, 6, 4, False), of axis 1 Loop(1, 1, 12, 1, True), for two rows. Blocks of 2 along axis 0, with scales of shape (2, 6), are
    Loop(4, 2, 6, 2, True); along axis 1, with scales of shape (4, 3), Loop(6, 2, 1, 12, False).

    If there are fewer scales than `rows` rows need, they are repeated before the kernel is called: a short row is repeated
    within a row of x, so that the inner loop is longer. There are as many zero points as scales, in the same order. But if
    all are zero, a single zero replaces them, because rows of both may not fit into the first-level cache together with x.
    """

    length: int
    block: int
    inner: int
    rows: int
    vary: bool


def size_of(shape: Any) -> int:
    """Return the number of elements of a shape."""
    size = 1
    for i in range(len(shape)):
        size *= shape[i]
    return size


def per_tensor(size: int) -> Loop:
    """Return the loop over x of this size for one scale."""
    return Loop(1, 1, size, 1, False)


def per_axis(size: int, length: int, inner: int) -> Loop:
    """Return the loop for a scale for each index of an axis."""
    if inner != 1:
        return Loop(length, 1, inner, length, False)
    # A short row is repeated, so that inner loops are longer.
    row = max(length, 1)
    return Loop(1, 1, length * max(1, min(size // (2 * row), ROW // row)), 1, True)


def blocked(length: int, inner: int, block_size: int, scales: int) -> Loop:
    """Return the loop for a scale for each block along an axis."""
    return Loop(length, block_size, inner, scales // max(inner, 1), inner > 1)


def blocked_fault(x_shape: Any, scale_shape: Any, zero_point_shape: Any, axis: int, block_size: int) -> int:
    """Return the fault of a scale with as many dimensions as x."""
    for i in range(len(x_shape)):
        if scale_shape[i] != zero_point_shape[i]:
            return ZERO_POINT_SHAPE
        if i != axis and scale_shape[i] != x_shape[i]:
            return BLOCKED_SHAPE
    return NO_FAULT if (x_shape[axis] + block_size - 1) // block_size == scale_shape[axis] else BLOCK_SIZE


def loop_shape(x_shape: Any, scale_shape: Any, zero_point_shape: Any, axis: int, block_size: int) -> tuple[int, Loop]:
    """Return (fault, loop) for shapes as sequences of integers (QuantizeLinear-28, "granularities")."""
    nothing, rank, scale_rank = per_tensor(0), len(x_shape), len(scale_shape)
    size, scales, zero_points = size_of(x_shape), size_of(scale_shape), size_of(zero_point_shape)
    is_blocked = scale_rank == rank and block_size > 0
    if scales == 1 and zero_points == 1 and not is_blocked:
        return NO_FAULT, per_tensor(size)
    if block_size > 0 and not is_blocked:
        return BLOCKED_RANK, nothing
    if scales != 1 and scale_rank != 1 and not is_blocked:
        return SCALE_RANK, nothing
    if zero_points != scales or len(zero_point_shape) != scale_rank:
        return ZERO_POINT_SHAPE, nothing
    if axis < -rank or axis >= rank:
        return AXIS, nothing
    axis = axis if axis >= 0 else axis + rank
    length, inner = x_shape[axis], 1
    for i in range(axis + 1, rank):
        inner *= x_shape[i]
    if not is_blocked:
        return (NO_FAULT, per_axis(size, length, inner)) if scale_shape[0] == length else (SCALE_LENGTH, nothing)
    # A block size beyond the length of the axis means the whole axis. It is lowered, as sums with it might overflow an int64.
    block_size = min(block_size, max(length, 1))
    return blocked_fault(x_shape, scale_shape, zero_point_shape, axis, block_size), blocked(length, inner, block_size, scales)


def inferred_block_size(x_shape: Any, scale_shape: Any, axis: int) -> tuple[int, int]:
    """Return (fault, block size) for a scale without a given block size. A blocked scale has no fault if exactly one size fits.
    The block size is 0 if the scale is not blocked. "The accepted range is [ceil(Di/Si), ceil(Di/(Si-1))-1]"
    (QuantizeLinear-28, block_size)."""
    rank = len(x_shape)
    is_blocked = len(scale_shape) == rank and (rank > 1 or (rank == 1 and 0 < scale_shape[0] < x_shape[0]))
    if not is_blocked or size_of(scale_shape) == 1 or not -rank <= axis < rank:
        return NO_FAULT, 0
    length, blocks = x_shape[axis], scale_shape[axis]
    if blocks > length or (blocks == 0 and length > 0):
        return BLOCK_SIZE, 1
    block_size = max(1, -(-length // max(1, blocks)))
    if blocks > 1 and -(-length // (blocks - 1)) - 1 > block_size:
        return NO_BLOCK_SIZE, block_size
    return NO_FAULT, block_size
