"""The loops of a kernel on a GPU, made from the loop of ``granularity``, and the record of a launch, which passes them to the
kernel.

The functions except `work_of` are compiled into the nodes of sessions: see ``granularity``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..compiling.device import VECTOR, work_dtype
from .granularity import GPU_LOOPS, NO_FAULT, TOO_MANY_LOOPS, WRONG_AXIS, Operands, merge_dimensions
from .key import Program

# The number of the kernel's loop along the axis of blocks.
BLOCK_LOOP = 2

# The numbers of the kernel's loops for the other dimensions of a node's loop, from the last dimension to the first.
# Neighbouring threads differ in loop 3 or, if its length is 1, in BLOCK_LOOP, and should get neighbours in the last dimension:
#
#   blocks along           loops in turn   loop 3 has
#   no dimension           3, 2, 1, 0      the last dimension
#   the last dimension     1, 0, 3         the first of four dimensions; with fewer its length is 1
#   another dimension      3, 1, 0         the last dimension
#
# With blocks, more than three other dimensions are a fault. The fourth number then only completes the tuple.
PLAIN_ORDER = (3, 2, 1, 0)
LAST_AXIS_ORDER = (1, 0, 3, 3)
OTHER_AXIS_ORDER = (3, 1, 0, 0)


class LaunchLayout(NamedTuple):
    """The indices of the fields in the record of a launch, which are 64-bit words: see `work_of`."""

    y: int
    inputs: int  # the index of the first input; other plurals are the index of the first one too
    units: int
    lengths: int
    rows: int
    strides: int  # GPU_LOOPS words for each input of more than one element
    y_strides: int
    full: int
    is_aligned: int
    end: int


def lay_out(count: int, streams: int, has_blocks: bool) -> LaunchLayout:
    """Return the LaunchLayout for a number of inputs, of which `streams` have more than one element."""
    units = 1 + count
    rows = units + 1 + GPU_LOOPS
    strides = rows + has_blocks
    y_strides = strides + streams * GPU_LOOPS
    full = y_strides + has_blocks * GPU_LOOPS
    return LaunchLayout(0, 1, units, units + 1, rows, strides, y_strides, full, full + 1, full + 2)


def work_of(program: Program) -> Any:
    """Return the dtype of the record of a launch. The units are the elements of y, or its blocks.

    It has the addresses `y`, and `x0`, `x1` and so on of the inputs, which have the tensors' element types. `length0` to
    `length3` are the dimensions of y, with neighbours merged or dimensions of 1 in front. For input k with more than one
    element, `stride{k}_{d}` is how many of its elements are from one index along dimension d to the next, 0 if it lacks the
    dimension. Bit k of `full` is set if its elements are laid out as those of y. `is_aligned` tells whether y and these inputs
    are at multiples of VECTOR.

    If the program rounds to block formats, `length2` is the number of blocks along their axis, and `rows` the number of
    elements. The other dimensions may have any order. There are also strides of y, `stride_y_{d}`."""
    has_blocks = program.block_size != 0
    at = lay_out(len(program.inputs), len(program.streams), has_blocks)
    strides = [f"stride{k}_{d}" for k in [*program.streams, *["_y"] * has_blocks] for d in range(GPU_LOOPS)]
    names = {at.y: "y", at.full: "full", at.is_aligned: "is_aligned"} | ({at.rows: "rows"} if has_blocks else {})
    names |= {at.inputs + k: f"x{k}" for k in range(len(program.inputs))}
    names |= {at.lengths + d: f"length{d}" for d in range(GPU_LOOPS)} | dict(enumerate(strides, at.strides))
    return work_dtype([names[i] for i in range(at.units)], [names[i] for i in range(at.units + 1, at.end)])


class Loops(NamedTuple):
    """The loop of a node, from `merge_dimensions`, and the kernel's loops that are made of it."""

    dimensions: int
    lengths: Any
    masks: Any
    numbers: Any  # for each dimension, the number of the kernel's loop
    rows: int  # the length of the axis of blocks, or 1


def loops_of(operands: Operands, axis: int, shape: Any, lengths: Any, masks: Any, numbers: Any) -> tuple[int, Loops]:
    """Set the arrays `lengths`, `masks` and `numbers`, and return (fault, Loops) of them. `axis` is 0 without blocks."""
    rank, count = len(shape), len(operands.ranks)
    if axis and rank < 2:
        axis = -1  # as ``block.granularity`` has it
    elif -axis > rank:
        return WRONG_AXIS, Loops(0, lengths, masks, numbers, 0)
    dimensions = merge_dimensions(operands, axis, shape, lengths, masks)
    block_dimension, rows = -1, 1
    for d in range(dimensions):
        if axis and masks[d] >> count & 1:
            block_dimension, rows = d, lengths[d]
    if axis == 0:
        order = PLAIN_ORDER
    elif block_dimension == dimensions - 1:
        order = LAST_AXIS_ORDER
    else:
        order = OTHER_AXIS_ORDER
    others = 0
    for d in range(dimensions - 1, -1, -1):
        if d == block_dimension:
            numbers[d] = BLOCK_LOOP
        else:
            numbers[d] = order[min(others, GPU_LOOPS - 1)]
            others += 1
    fault = NO_FAULT if others + (axis != 0) <= GPU_LOOPS else TOO_MANY_LOOPS
    return fault, Loops(dimensions, lengths, masks, numbers, rows)


def set_strides(work: Any, first: int, loops: Loops, k: int) -> int:
    """Set the distance between elements of input `k` along each of the kernel's loops: GPU_LOOPS words of the record, from
    index `first` on. A negative k stands for y. Return the number of elements."""
    for number in range(GPU_LOOPS):
        work[first + number] = 0
    elements = 1
    for d in range(loops.dimensions - 1, -1, -1):
        if k < 0 or loops.masks[d] >> k & 1:
            work[first + loops.numbers[d]] = elements
            elements *= loops.lengths[d]
    return elements


def set_work(work: Any, operands: Operands, size: int, block: int, loops: Loops) -> int:
    """Set the fields of a record `work_of` that follow the addresses, and return the number of units. `size` is the number of
    elements of y, and `block` the block size, or 0 without blocks."""
    count, streams = len(operands.ranks), 0
    for k in range(count):
        streams += operands.scalars[k] == 0
    at = lay_out(count, streams, block != 0)
    for number in range(GPU_LOOPS):
        work[at.lengths + number] = 1
    for d in range(loops.dimensions):
        work[at.lengths + loops.numbers[d]] = loops.lengths[d]
    units = size
    if block:
        blocks = (loops.rows + block - 1) // block
        units = size // loops.rows * blocks
        work[at.lengths + BLOCK_LOOP], work[at.rows] = blocks, loops.rows
        set_strides(work, at.y_strides, loops, -1)
    work[at.units] = units
    full, addresses, strides = 0, work[at.y], at.strides
    for k in range(count):
        if operands.scalars[k] == 0:
            if set_strides(work, strides, loops, k) == size:
                full |= 1 << k
                addresses |= work[at.inputs + k]
            strides += GPU_LOOPS
    work[at.full], work[at.is_aligned] = full, addresses % VECTOR == 0
    return units
