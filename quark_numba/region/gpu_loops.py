"""The loops of a kernel on a GPU, from the loop of ``granularity``, and the record of a launch, which tells the kernel of them.

The functions except `work_of` are compiled into the nodes of sessions: see ``granularity``.
"""

from __future__ import annotations

from typing import Any

from ..compiling.device import VECTOR, work_dtype
from .granularity import AXIS, GPU_LOOPS, MANY_LOOPS, NO_FAULT, Operands, merge_dimensions
from .key import Program

# The number of the kernel's loop along the axis of blocks.
OF_BLOCKS = 2

# The numbers of the kernel's loops for the other dimensions of a node's loop, from the last dimension to the first: without
# blocks, with blocks along the last dimension, and with blocks along one before it. Neighbouring threads differ in loop 3, or,
# if its length is 1, in loop 2: they get neighbours in the last dimension. Beside a loop over blocks there are three others; a
# fourth dimension is a fault.
WITHOUT_BLOCKS, BLOCKS_LAST, BLOCKS_BEFORE = (3, 2, 1, 0), (1, 0, 3, 3), (3, 1, 0, 0)


def work_of(program: Program) -> Any:
    """Return the dtype of the record of a launch. The units are the elements of y, or its blocks.

    It has the addresses `y`, and `x0`, `x1` and so on of the inputs, which have the tensors' element types. `length0` to
    `length3` are the dimensions of y, with neighbours merged or dimensions of 1 in front. For input k with more than one
    element, `step{k}_{d}` is how many of its elements are from one index along dimension d to the next, 0 if it lacks the
    dimension. Bit k of `full` is set if its elements are laid out as those of y. `is_aligned` tells whether y and these inputs
    are at multiples of VECTOR.

    If the program rounds to block formats, `length2` is the number of blocks along their axis, and `rows` the number of
    elements. The other dimensions may have any order. There are also steps of y, `step_y_{d}`.

    `set_work` sets the fields after the addresses, in the order of this dtype."""
    has_blocks = program.block_steps != []
    steps = [f"step{k}_{d}" for k in [*program.streams, *["_y"] * has_blocks] for d in range(GPU_LOOPS)]
    addresses = [f"x{k}" for k in range(len(program.inputs))]
    lengths = [f"length{d}" for d in range(GPU_LOOPS)]
    return work_dtype(["y", *addresses], [*lengths, *["rows"] * has_blocks, *steps, "full", "is_aligned"])


def loops_of(operands: Operands, axis: int, shape: Any, lengths: Any, masks: Any, loops: Any) -> tuple[int, int, int]:
    """Return (fault, number of dimensions of a node's loop, length of the axis of blocks). Set `lengths` and `masks` as
    `merge_dimensions` does, and in `loops` the number of the kernel's loop for each dimension. `axis` is 0 without blocks."""
    rank, count = len(shape), len(operands.ranks)
    if axis and rank < 2:
        axis = -1  # as ``block.granularity`` has it
    elif -axis > rank:
        return AXIS, 0, 0
    dimensions = merge_dimensions(operands, axis, shape, lengths, masks)
    block_dimension, rows = -1, 1
    for d in range(dimensions):
        if axis and masks[d] >> count & 1:
            block_dimension, rows = d, lengths[d]
    order = WITHOUT_BLOCKS if axis == 0 else BLOCKS_LAST if block_dimension == dimensions - 1 else BLOCKS_BEFORE
    others = 0
    for d in range(dimensions - 1, -1, -1):
        if d == block_dimension:
            loops[d] = OF_BLOCKS
        else:
            loops[d] = order[min(others, GPU_LOOPS - 1)]
            others += 1
    return NO_FAULT if others + (axis != 0) <= GPU_LOOPS else MANY_LOOPS, dimensions, rows


def set_steps(work: Any, first: int, dimensions: int, lengths: Any, masks: Any, k: int, loops: Any) -> int:
    """Set how far elements of input `k`, or of y if k is below 0, are apart along each of the kernel's loops: GPU_LOOPS words
    of the record, from index `first` on. Return the number of elements."""
    for loop in range(GPU_LOOPS):
        work[first + loop] = 0
    elements = 1
    for d in range(dimensions - 1, -1, -1):
        if k < 0 or masks[d] >> k & 1:
            work[first + loops[d]] = elements
            elements *= lengths[d]
    return elements


def set_work(
    work: Any, operands: Operands, size: int, block: int, rows: int, dimensions: int, lengths: Any, masks: Any, loops: Any
) -> int:
    """Set the fields of a record `work_of` after the addresses. Return the number of units. `size` is that of y; the other
    arguments are as in `loops_of`."""
    count = len(operands.ranks)
    units_at = 1 + count  # after the addresses of y and the inputs
    lengths_at = units_at + 1
    rows_at = lengths_at + GPU_LOOPS
    steps_at = rows_at + (block != 0)
    for loop in range(GPU_LOOPS):
        work[lengths_at + loop] = 1
    for d in range(dimensions):
        work[lengths_at + loops[d]] = lengths[d]
    units = size
    if block:
        blocks = (rows + block - 1) // block
        units = size // rows * blocks
        work[lengths_at + OF_BLOCKS], work[rows_at] = blocks, rows
    work[units_at] = units
    full, addresses = 0, work[0]
    for k in range(count):
        if operands.scalars[k] == 0:
            if set_steps(work, steps_at, dimensions, lengths, masks, k, loops) == size:
                full |= 1 << k
                addresses |= work[1 + k]
            steps_at += GPU_LOOPS
    if block:
        set_steps(work, steps_at, dimensions, lengths, masks, -1, loops)
        steps_at += GPU_LOOPS
    work[steps_at], work[steps_at + 1] = full, addresses % VECTOR == 0
    return units
