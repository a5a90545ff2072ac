"""The loop of a kernel on a GPU, from that of ``granularity``, and what a launch is told of it.

The functions are compiled into the nodes of sessions: see ``granularity``.
"""

from __future__ import annotations

from typing import Any

from ..compiling.device import VECTOR
from .granularity import AXIS, GPU_LOOPS, MANY_LOOPS, NO_FAULT, Operands, loop_shape

# The number of the loop along which blocks lie.
OF_BLOCKS = 2


def loop_of(operands: Operands, axis: int, shape: Any, lengths: Any, masks: Any, slots: Any) -> tuple[int, int, int]:
    """Return (fault, number of dimensions of a node's loop, length of the blocks' axis), and set `lengths` and `masks` as
    `loop_shape` does, and in `slots` the number of the kernel's loop for each dimension. `axis`: 0 if there are no blocks."""
    rank, count = len(shape), len(operands.ranks)
    if axis and rank < 2:
        axis = -1  # as ``block.granularity`` has it
    elif -axis > rank:
        return AXIS, 0, 0
    dimensions = loop_shape(operands, axis, shape, lengths, masks)
    blocks_at, rows = -1, 1
    for d in range(dimensions):
        if axis and masks[d] >> count & 1:
            blocks_at, rows = d, lengths[d]
    # The loops for the other dimensions, from the last one on, as hexadecimal digits from the last one on. Neighbours in the
    # last dimension, if it is not that of the blocks, are for neighbouring threads.
    loops = 0x0123 if axis == 0 else 0x301 if blocks_at == dimensions - 1 else 0x013
    others = 0
    for i in range(dimensions):
        d = dimensions - 1 - i
        slots[d] = OF_BLOCKS if d == blocks_at else loops >> 4 * others & 15
        others += d != blocks_at
    return NO_FAULT if others + (axis != 0) <= GPU_LOOPS else MANY_LOOPS, dimensions, rows


def set_steps(work: Any, at: int, dimensions: int, lengths: Any, masks: Any, k: int, slots: Any) -> int:
    """Set how far elements of input `k` are apart along each of the kernel's loops, from index `at` of the record on; k below
    0: those of y. Return the number of its elements."""
    for slot in range(GPU_LOOPS):
        work[at + slot] = 0
    elements = 1
    for i in range(dimensions):
        d = dimensions - 1 - i
        if k < 0 or masks[d] >> k & 1:
            work[at + slots[d]] = elements
            elements *= lengths[d]
    return elements


def set_work(
    work: Any, scalars: Any, size: int, block: int, rows: int, dimensions: int, lengths: Any, masks: Any, slots: Any
) -> int:
    """Set the fields of ``device.work_of`` behind the addresses, in their order. Return the number of units. `size` is that of
    y; the other arguments are as in `loop_of`."""
    count = len(scalars)
    at = 2 + count
    for slot in range(GPU_LOOPS):
        work[at + slot] = 1
    for d in range(dimensions):
        work[at + slots[d]] = lengths[d]
    units = size
    if block:
        blocks = (rows + block - 1) // block
        units = size // rows * blocks
        work[at + OF_BLOCKS], work[at + GPU_LOOPS] = blocks, rows
        at += 1
    work[1 + count] = units
    at += GPU_LOOPS
    full, addresses = 0, work[0]
    for k in range(count):
        if scalars[k] == 0:
            if set_steps(work, at, dimensions, lengths, masks, k, slots) == size:
                full |= 1 << k
                addresses |= work[1 + k]
            at += GPU_LOOPS
    if block:
        set_steps(work, at, dimensions, lengths, masks, -1, slots)
        at += GPU_LOOPS
    work[at], work[at + 1] = full, addresses % VECTOR == 0
    return units
