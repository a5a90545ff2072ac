"""The shape of y and the loop, from the shapes of the inputs. The loop tells which element of each input goes with an element
of y.

The functions are compiled into the nodes of sessions: shapes are arrays, and a fault is returned as a number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..block.granularity import block_shape

NO_FAULT, NOT_ONE, NOT_ALIKE, NOT_BLOCKED, AXIS, CHANNELS, MANY_LOOPS = range(7)
FAULTS = {
    NOT_ONE: "input {input} has shape {x_shape}; expected one element",
    NOT_ALIKE: "input {input} has shape {x_shape}, which does not go with those of the others",
    NOT_BLOCKED: "input {input} has shape {x_shape}; expected one channel, or whole blocks of channels",
    AXIS: "the blocks' axis is {axis}, out of range for shape {x_shape}",
    CHANNELS: "y has shape {x_shape}; expected channel {channels} in the last block of channels",
    MANY_LOOPS: "y has shape {x_shape}, along which the inputs broadcast in more ways than a GPU's kernel has loops",
}

# The first fault of y's shape: those before it are of an input's.
FIRST_OF_Y = AXIS

# The loops of a kernel on a GPU, one in another.
GPU_LOOPS = 4

# The number that stands for None of `Program.axes`.
OPERAND = 1


class Operands(NamedTuple):
    """The inputs of a node, as arrays with an element for each."""

    # The same number of places for each, whose shape is at the end of them. Two dimensions compile a second longer.
    shapes: Any
    ranks: Any
    axes: Any  # OPERAND, or the axis below 0 along which it has scales or zero points; 0 for one of these
    scalars: Any  # whether it has to have one element
    room: int  # the places for a shape


def split_channels(operands: Operands, block: int) -> int:
    """Replace each shape (N, C, H, W) by the five dimensions (N, C / block, H, W, block), in which the elements of a blocked
    tensor are stored, or by (N, 1, H, W, 1) for one channel. Return the number of the first input whose C is neither 1 nor a
    multiple of the block; -1: there is none."""
    shapes, ranks, _, _, room = operands
    for k in range(len(ranks)):
        if operands.axes[k] != OPERAND or ranks[k] != 4:
            continue
        end = (k + 1) * room
        channels = shapes[end - 3]
        inner = 1 if channels == 1 else block
        if channels % inner != 0:
            return k
        ranks[k] = 5
        shapes[end - 5], shapes[end - 4] = shapes[end - 4], channels // inner
        shapes[end - 3], shapes[end - 2], shapes[end - 1] = shapes[end - 2], shapes[end - 1], inner
    return -1


def join_channels(shape: Any, joined: Any) -> None:
    """Undo `split_channels`: write the four dimensions to `joined`."""
    joined[0], joined[1], joined[2], joined[3] = shape[0], shape[1] * shape[4], shape[2], shape[3]


def broadcast(operands: Operands, shape: Any) -> tuple[int, int]:
    """Write the shape to which all operands broadcast to the end of `shape`, which has a place for each of an input. Return
    (the number of an operand that does not go with the others, rank); -1: there is none."""
    shapes, ranks, axes, _, room = operands
    count = len(ranks)
    rank = 0
    for k in range(count):
        if axes[k] == OPERAND and ranks[k] > rank:
            rank = ranks[k]
    for d in range(room - rank, room):
        shape[d] = 1
        for k in range(count):
            if axes[k] == OPERAND and d >= room - ranks[k] and shapes[k * room + d] != 1:
                if shape[d] != 1 and shape[d] != shapes[k * room + d]:
                    return k, rank
                shape[d] = shapes[k * room + d]
    return -1, rank


def y_shape(operands: Operands, layout: int, shape: Any) -> tuple[int, int, int]:
    """Write y's shape to the end of `shape`, and return (fault, input at fault, rank). `layout` is the number of channels in a
    block of the blocked layout, whose tensors get five dimensions; 0: tensors are in ONNX's layout."""
    shapes, ranks, axes, scalars, room = operands
    count = len(ranks)
    wrong = split_channels(operands, layout) if layout else -1
    if wrong >= 0:
        return NOT_BLOCKED, wrong, 0
    wrong, rank = broadcast(operands, shape)
    if wrong >= 0:
        return NOT_ALIKE, wrong, rank
    for k in range(count):
        for d in range(room - ranks[k], room):
            if scalars[k] and shapes[k * room + d] != 1:
                return NOT_ONE, k, rank
        fits = axes[k] >= 0 or (ranks[k] == 1 and -axes[k] <= rank and shape[room + axes[k]] == shapes[k * room + room - 1])
        if not fits:
            return NOT_ALIKE, k, rank
    return NO_FAULT, 0, rank


def cut(work: Any, shape: Any, size: int, axis: int, layout: int, channels: int) -> int:
    """Set what a record ``kernels.WORK`` says of how y of this shape and size lies in memory and is cut, and return the fault.
    The record has the `block` of steps of blocks, `axis` is theirs; `layout` is as in `y_shape`, and `channels` are those of y
    without padding; 0: there is none."""
    work.size, work.length, work.inner, work.lanes, work.own_lanes = size, 0, 0, 0, 0
    if layout and len(shape) == 5:
        work.lanes = lanes = shape[4]
        place = shape[2] * shape[3] * lanes
        work.batch_size, work.last_block = shape[1] * place, (shape[1] - 1) * place
        if channels:
            work.own_lanes = own_lanes = channels - (shape[1] - 1) * lanes
            if own_lanes <= 0 or own_lanes > lanes:
                return CHANNELS
        if work.block:
            work.length, work.inner = channels if channels else shape[1] * lanes, shape[2] * shape[3]
            work.size = shape[0] * work.length * work.inner  # without the channels that the layout adds
    elif work.block:
        fault, length, inner = block_shape(shape, axis, work.block)
        if fault:
            return AXIS
        if inner == 1:
            # A block is consecutive in memory, as the channels of one place are in the blocked layout. So y is taken for one
            # image with a place for each block, or, if the last block of an axis is short, with a place for each axis.
            work.lanes = length = work.block if length % work.block == 0 else length
            inner = size // length if length else 0
        work.length, work.inner = length, inner
    return NO_FAULT


def loop_shape(operands: Operands, axis: int, shape: Any, lengths: Any, masks: Any) -> int:
    """Return the number of dimensions of the loop, and write their `lengths` and `masks`. The loop has the dimensions of y's
    `shape` without dimensions of length 1; neighbours are merged unless an input has only one of them. Bit k of a mask is set
    if input k has the dimension; the bit behind those of the inputs, if it is `axis`, which is not merged; 0: there is none."""
    shapes, ranks, axes, _, room = operands
    count, rank = len(ranks), len(shape)
    dimensions = 0
    for d in range(rank):
        if shape[d] == 1:
            continue
        end = rank - d
        mask = (axis == -end) << count
        for k in range(count):
            is_operands = axes[k] == OPERAND and ranks[k] >= end and shapes[(k + 1) * room - end] != 1
            mask |= (is_operands or axes[k] == -end) << k
        if dimensions and masks[dimensions - 1] == mask:
            lengths[dimensions - 1] *= shape[d]
        else:
            lengths[dimensions], masks[dimensions] = shape[d], mask
            dimensions += 1
    if dimensions == 0:
        lengths[0], masks[0] = 1, -1
        dimensions = 1
    return dimensions
