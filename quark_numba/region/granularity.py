"""The shape of y, how y lies in memory, and the loop over its elements, from the shapes of the inputs; the messages of shapes
that are refused, and the number of a GPU's loops. The loop tells which element of each input goes with an element of y.

The functions are compiled into the nodes of sessions. So shapes are arrays, and a fault is returned as a number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..block.granularity import block_shape

NO_FAULT, NOT_ONE, NOT_ALIKE, NOT_BLOCKED, WRONG_AXIS, WRONG_CHANNELS, TOO_MANY_LOOPS = range(7)
FAULTS = {
    NOT_ONE: "input {input} has shape {x_shape}; expected one element",
    NOT_ALIKE: "input {input} has shape {x_shape}, which cannot be broadcast with the other inputs",
    NOT_BLOCKED: "input {input} has shape {x_shape}; expected one channel, or whole blocks of channels",
    WRONG_AXIS: "the blocks' axis is {axis}, out of range for shape {x_shape}",
    WRONG_CHANNELS: "y has shape {x_shape}; expected channel {channels} in the last block of channels",
    TOO_MANY_LOOPS: "y has shape {x_shape}, along which the inputs broadcast in more ways than a kernel for GPUs has loops",
}

# Faults numbered below this one concern the shape of an input; the others concern that of y.
FIRST_OF_Y = WRONG_AXIS

# The nested loops of a kernel on a GPU.
GPU_LOOPS = 4

# The roles of a program's inputs: an operand, which broadcasts; a scale or a zero point of one element. A negative number is
# the role of several scales or zero points: their axis of y.
OPERAND, ONE_PARAMETER = 1, 0


class Operands(NamedTuple):
    """The inputs of a node, as arrays: `ranks` has one element for each input. `roles` and `scalars` may have more elements
    than there are inputs."""

    # One array for all inputs: `shape_stride` elements for each, of which the last ones are the dimensions. An array of two
    # dimensions takes a second longer to compile.
    shapes: Any
    ranks: Any
    roles: Any
    scalars: Any  # whether the program expects one element
    shape_stride: int


def split_channels(operands: Operands, lanes: int) -> int:
    """Replace each shape (N, C, H, W) by (N, C / lanes, H, W, lanes), the order in which a blocked tensor is stored, or by (N,
    1, H, W, 1) if C is 1. Return the number of the first input whose C is neither 1 nor a multiple of `lanes`, or -1 if there
    is no such input."""
    shapes, ranks, roles, _, stride = operands
    for k in range(len(ranks)):
        if roles[k] != OPERAND or ranks[k] != 4:
            continue
        end = (k + 1) * stride
        channels = shapes[end - 3]
        inner = 1 if channels == 1 else lanes
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
    """Write the shape to which all operands broadcast to the end of `shape`, which has `shape_stride` elements. Return (the
    number of an operand that cannot be broadcast with the others, or -1; the rank)."""
    shapes, ranks, roles, _, stride = operands
    count = len(ranks)
    rank = 0
    for k in range(count):
        if roles[k] == OPERAND and ranks[k] > rank:
            rank = ranks[k]
    for d in range(stride - rank, stride):
        shape[d] = 1
        for k in range(count):
            if roles[k] == OPERAND and d >= stride - ranks[k] and shapes[k * stride + d] != 1:
                if shape[d] != 1 and shape[d] != shapes[k * stride + d]:
                    return k, rank
                shape[d] = shapes[k * stride + d]
    return -1, rank


def write_y_shape(operands: Operands, lanes: int, shape: Any) -> tuple[int, int, int]:
    """Write the shape of y to the end of `shape`, and return (fault, number of the faulty input, rank). In the blocked layout
    `lanes` is the number of channels in a block, and tensors get five dimensions. In ONNX's layout `lanes` is 0."""
    shapes, ranks, roles, scalars, stride = operands
    count = len(ranks)
    faulty_input = split_channels(operands, lanes) if lanes else -1
    if faulty_input >= 0:
        return NOT_BLOCKED, faulty_input, 0
    faulty_input, rank = broadcast(operands, shape)
    if faulty_input >= 0:
        return NOT_ALIKE, faulty_input, rank
    for k in range(count):
        for d in range(stride - ranks[k], stride):
            if scalars[k] and shapes[k * stride + d] != 1:
                return NOT_ONE, k, rank
        role, length = roles[k], shapes[(k + 1) * stride - 1]
        if role < 0 and not (ranks[k] == 1 and -role <= rank and shape[stride + role] == length):
            return NOT_ALIKE, k, rank
    return NO_FAULT, 0, rank


def set_layout(work: Any, shape: Any, size: int, block: int, axis: int, is_blocked: bool, channels: int) -> int:
    """Set the fields of a record ``kernels.WORK`` that tell how y lies in memory, from `block` to `last_block`, and return the
    fault. `shape` and `size` describe y. `channels` is the number of its channels without padding, or 0 if y has no padding.
    `block` and `axis` are the block size and the axis of the steps that round to block formats, or 0."""
    work.block, work.size, work.outer, work.length, work.inner, work.lanes, work.own_lanes = block, size, 1, 0, 0, 0, 0
    if is_blocked and len(shape) == 5:
        groups, work.lanes, work.inner = shape[1], shape[4], shape[2] * shape[3]
        work.outer, work.length = shape[0], channels if channels else groups * work.lanes
        work.batch_size, work.last_block = groups * work.inner * work.lanes, (groups - 1) * work.inner * work.lanes
        if channels:
            work.own_lanes = channels - (groups - 1) * work.lanes
            if work.own_lanes <= 0 or work.own_lanes > work.lanes:
                return WRONG_CHANNELS
    elif block:
        fault, work.length, work.inner = block_shape(shape, axis, block)
        if fault:
            return WRONG_AXIS
        if work.inner == 1:
            describe_as_channels(work, size)
        work.outer = size // (work.length * work.inner) if size else 0
    return NO_FAULT


def describe_as_channels(work: Any, size: int) -> None:
    """Set `length`, `inner` and `lanes` for blocks that are consecutive in memory. Describe y as one image in the blocked
    layout, with a pixel for each block, or for each whole axis if the last block of an axis is short."""
    if work.length % work.block == 0:
        work.length = work.block
    work.lanes, work.inner = work.length, size // work.length if size else 0


def merge_dimensions(operands: Operands, axis: int, shape: Any, lengths: Any, masks: Any) -> int:
    """Write the `lengths` and `masks` of the loop over y, and return its number of dimensions. They are the dimensions of y's
    `shape`, except for those of length 1. Neighbouring dimensions are merged if every input has both or neither of them. Bit k
    of a dimension's mask is set if input k has the dimension. The bit after the bits of the inputs marks the dimension `axis`,
    which is never merged (0 for none)."""
    shapes, ranks, roles, _, stride = operands
    count, rank = len(ranks), len(shape)
    dimensions = 0
    for d in range(rank):
        if shape[d] == 1:
            continue
        end = rank - d
        mask = (axis == -end) << count
        for k in range(count):
            has_dimension = roles[k] == OPERAND and ranks[k] >= end and shapes[(k + 1) * stride - end] != 1
            mask |= (has_dimension or roles[k] == -end) << k
        if dimensions and masks[dimensions - 1] == mask:
            lengths[dimensions - 1] *= shape[d]
        else:
            lengths[dimensions], masks[dimensions] = shape[d], mask
            dimensions += 1
    if dimensions == 0:
        lengths[0], masks[0] = 1, -1
        dimensions = 1
    return dimensions
