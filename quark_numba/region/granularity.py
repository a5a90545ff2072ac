"""From the shapes of inputs to that of y, and to the loop: where the elements of each input lie beside those of y.

All of it is compiled into nodes of sessions: it gets arrays, and reports a fault by number.
"""

from __future__ import annotations

from typing import Any

NO_FAULT, NOT_ONE, NOT_ALIKE, AXIS, NOT_BLOCKED, CHANNELS = range(6)
FAULTS = {
    NOT_ONE: "input {input} has shape {x_shape}; expected one element",
    NOT_ALIKE: "input {input} has shape {x_shape}, which does not go with those of the others",
    AXIS: "the blocks' axis is {axis}, out of range for shape {x_shape}",
    NOT_BLOCKED: "input {input} has shape {x_shape}; expected one channel, or whole blocks of channels",
    CHANNELS: "y has the shape {x_shape}; expected one of which the last block of channels has channel {channels}",
}

# What stands for None in `Program.axes`.
OPERAND = 1


def split_channels(shape: Any, block: int) -> bool:
    """Give the shape (N, C, H, W), which fills the last four places of `shape`, a dimension more: (N, C / block, H, W, block),
    as the elements of a blocked tensor lie, or (N, 1, H, W, 1) of one channel. Returns False if C is neither 1 nor a multiple
    of the block."""
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
    """(fault, input, rank): write y's shape to the end of `shape`. `shapes` has as much room for each input, with its shape at
    the end. (It is one flat array: of two dimensions it took a second more to compile.)"""
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
    """How many dimensions the loop has: y's, but those of length 1, and with neighbours taken as one where no input has the
    one and not the other. Their `lengths`; the bits of `masks` tell which inputs have them."""
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
