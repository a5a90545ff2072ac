"""The shape of y and the loop, from the shapes of the inputs. The loop tells which element of each input goes with an element
of y.

The functions are compiled into the nodes of sessions: shapes are arrays, and a fault is returned as a number.
"""

from __future__ import annotations

from typing import Any

NO_FAULT, NOT_ONE, NOT_ALIKE, AXIS, NOT_BLOCKED, CHANNELS, MANY_LOOPS = range(7)
FAULTS = {
    NOT_ONE: "input {input} has shape {x_shape}; expected one element",
    NOT_ALIKE: "input {input} has shape {x_shape}, which does not go with those of the others",
    AXIS: "the blocks' axis is {axis}, out of range for shape {x_shape}",
    NOT_BLOCKED: "input {input} has shape {x_shape}; expected one channel, or whole blocks of channels",
    CHANNELS: "y has shape {x_shape}; expected channel {channels} in the last block of channels",
    MANY_LOOPS: "y has shape {x_shape}, along which the inputs broadcast in more ways than a GPU's kernel has loops",
}

# The loops of a kernel on a GPU, one in another.
GPU_LOOPS = 4

# The number that stands for None of `Program.axes`.
OPERAND = 1


def split_channels(shape: Any, block: int) -> bool:
    """Replace the shape (N, C, H, W), the last four places of `shape`, by the five dimensions (N, C / block, H, W, block), in
    which the elements of a blocked tensor are stored, or by (N, 1, H, W, 1) for one channel. Return False if C is neither 1 nor
    a multiple of the block."""
    end = len(shape)
    n, channels, h, w = shape[end - 4], shape[end - 3], shape[end - 2], shape[end - 1]
    inner = 1 if channels == 1 else block
    if channels % inner != 0:
        return False
    shape[end - 5], shape[end - 4], shape[end - 3] = n, channels // inner, h
    shape[end - 2], shape[end - 1] = w, inner
    return True


def join_channels(shape: Any) -> None:
    """Undo `split_channels`."""
    end = len(shape)
    n, channels, h, w = shape[end - 5], shape[end - 4] * shape[end - 1], shape[end - 3], shape[end - 2]
    shape[end - 4], shape[end - 3], shape[end - 2], shape[end - 1] = n, channels, h, w


def y_shape(shapes: Any, ranks: Any, axes: Any, scalars: Any, shape: Any) -> tuple[int, int, int]:
    """Write y's shape to the end of `shape`, and return (fault, input at fault, rank). `shapes` has len(shape) places for each
    input, whose shape is at the end of them. It is a flat array because a two-dimensional one takes a second longer to
    compile."""
    count, room = len(ranks), len(shape)
    rank = 0
    for k in range(count):
        if axes[k] == OPERAND and ranks[k] > rank:
            rank = ranks[k]
    for d in range(room - rank, room):
        shape[d] = 1
        for k in range(count):
            if axes[k] == OPERAND and d >= room - ranks[k] and shapes[k * room + d] != 1:
                if shape[d] != 1 and shape[d] != shapes[k * room + d]:
                    return NOT_ALIKE, k, rank
                shape[d] = shapes[k * room + d]
    for k in range(count):
        size = 1
        for d in range(room - ranks[k], room):
            size *= shapes[k * room + d]
        if scalars[k] and size != 1:
            return NOT_ONE, k, rank
        if axes[k] < 0:
            fits = ranks[k] == 1 and -axes[k] <= rank and shape[room + axes[k]] == shapes[k * room + room - 1]
            if not fits:
                return NOT_ALIKE, k, rank
    return NO_FAULT, 0, rank


def loop_shape(shapes: Any, ranks: Any, axes: Any, shape: Any, rank: int, lengths: Any, masks: Any) -> int:
    """Return the number of dimensions of the loop, and write their `lengths` and `masks`. The loop has y's dimensions without
    dimensions of length 1; neighbours are merged unless an input has only one of them. Bit k of a mask is set if input k has
    the dimension."""
    count, room = len(ranks), len(shape)
    dimensions = 0
    for d in range(room - rank, room):
        if shape[d] == 1:
            continue
        mask = 0
        for k in range(count):
            is_along = axes[k] < 0 and d == room + axes[k]
            mask |= (is_along or (axes[k] == OPERAND and d >= room - ranks[k] and shapes[k * room + d] != 1)) << k
        if dimensions and masks[dimensions - 1] == mask:
            lengths[dimensions - 1] *= shape[d]
        else:
            lengths[dimensions], masks[dimensions] = shape[d], mask
            dimensions += 1
    if dimensions == 0:
        lengths[0], masks[0] = 1, -1
        dimensions = 1
    return dimensions
