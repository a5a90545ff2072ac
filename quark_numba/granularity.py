"""From the shapes of x, scale and zero point to the loop: which elements share which scale.

``loop_shape`` is compiled into the native operators as well, where it gets arrays instead of tuples: it uses nothing but
``len``, indexing and integers, and reports a fault by number. ``FAULTS`` holds the message of each number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Stands for a block_size that is left out where the shapes may tell it.
INFERRED = -1

# Elements of a row of scales from which on longer ones are no faster.
ROW = 512

# What numpy has; the native operators keep shapes on the stack.
MAX_RANK = 64

NO_FAULT, SCALE_RANK, ZERO_POINT_SHAPE, AXIS, SCALE_LENGTH, BLOCKED_RANK, BLOCKED_SHAPE, BLOCK_SIZE, NO_BLOCK_SIZE, RANK = (
    range(10)
)

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
    RANK: f"a tensor has more than {MAX_RANK} dimensions",
}


class Loop(NamedTuple):
    """x seen as (outer, length, inner) in C order, and the scales as rows of one element, or of `inner` if they `vary`.

    The `length` rows of x are divided into blocks of `block` rows, the last one maybe shorter. Counting the blocks through
    all of x, block b has the row b % rows of the scales. Where these are less than rows of that size need, they are to be
    repeated. The same holds for the zero points; where none differs from zero, a single one stands for them: rows of both
    may not fit the first-level cache beside x.
    """

    length: int
    block: int
    inner: int
    rows: int
    vary: bool


def loop_shape(x_shape: Any, scale_shape: Any, zero_point_shape: Any, axis: int, block_size: int) -> tuple[int, Loop]:
    """(fault, loop) of shapes given as sequences of integers (QuantizeLinear-28, "granularities"). `block_size` may also be
    INFERRED, for a scale that may be blocked."""
    nothing = Loop(0, 0, 0, 0, False)
    rank = len(x_shape)
    size = 1
    for dimension in x_shape:
        size *= dimension
    scales = 1
    for dimension in scale_shape:
        scales *= dimension
    zero_points = 1
    for dimension in zero_point_shape:
        zero_points *= dimension

    blocked = len(scale_shape) == rank and block_size > 0
    if len(scale_shape) == rank and block_size == INFERRED:
        blocked = rank > 1 or (rank == 1 and 0 < scale_shape[0] < x_shape[0])
    if scales == 1 and zero_points == 1 and not (blocked and block_size > 0):
        return NO_FAULT, Loop(1, 1, size, 1, False)
    if block_size > 0 and not blocked:
        return BLOCKED_RANK, nothing
    if scales != 1 and len(scale_shape) != 1 and not blocked:
        return SCALE_RANK, nothing
    if zero_points != scales or len(zero_point_shape) != len(scale_shape):
        return ZERO_POINT_SHAPE, nothing
    if axis < -rank or axis >= rank:
        return AXIS, nothing
    if axis < 0:
        axis += rank
    length = x_shape[axis]
    inner = 1
    for i in range(axis + 1, rank):
        inner *= x_shape[i]

    if not blocked:
        if scale_shape[0] != length:
            return SCALE_LENGTH, nothing
        if inner == 1:
            # A short row is repeated, so that kernels have a longer one at a time.
            repeated = max(1, min(ROW // max(1, length), size // max(1, 2 * length)))
            return NO_FAULT, Loop(1, 1, length * repeated, 1, True)
        return NO_FAULT, Loop(length, 1, inner, length, False)

    for i in range(rank):
        if scale_shape[i] != zero_point_shape[i]:
            return ZERO_POINT_SHAPE, nothing
        if i != axis and scale_shape[i] != x_shape[i]:
            return BLOCKED_SHAPE, nothing
    blocks = scale_shape[axis]
    if block_size == INFERRED:
        # "the accepted range is [ceil(Di/Si), ceil(Di/(Si-1))-1]" (block_size): where that is one size, or one block.
        if blocks > length or (blocks == 0 and length > 0):
            return BLOCK_SIZE, nothing
        block_size = max(1, -(-length // max(1, blocks)))
        if blocks > 1 and -(-length // (blocks - 1)) - 1 > block_size:
            return NO_BLOCK_SIZE, nothing
    if -(-length // block_size) != blocks:
        return BLOCK_SIZE, nothing
    block_size = min(block_size, max(1, length))  # larger than an int64, maybe
    return NO_FAULT, Loop(length, block_size, inner, scales // max(1, inner), inner > 1)
