"""The nodes of regions on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.device import DeviceKernel
from ...compiling.intrinsics import array_at, record_at, stack
from ...declaration import Operator, Overload
from ...region import device, granularity
from ...region.granularity import AXIS, GPU_LOOPS, MANY_LOOPS, NO_FAULT, OPERAND
from ...region.key import MOST_INPUTS, MOST_STREAMS
from ..nodes import context, region
from ..nodes.context import MAX_RANK
from .launching import LAUNCH, are_aligned, launch, state_dtype

STATE = state_dtype(region.STATE)
LAUNCH_AT = region.STATE.itemsize

# At most, of ``device.work_of``.
WORK_WORDS = 5 + MOST_INPUTS + (MOST_STREAMS + 2) * GPU_LOOPS

_y_shape = jit.function(granularity.y_shape)
_loop_shape = jit.function(granularity.loop_shape)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    if attributes["block_size"]:
        raise ValueError(f"block_size is {attributes['block_size']}; expected 0, as there is no blocked layout on a GPU")
    return region.select(operator, overload, attributes)


def kernel(overload: Overload, selection: context.Selection) -> DeviceKernel:
    return device.kernel(selection.key)


# The number of the dimension of blocks where there are none, and where they have one element.
_NO_BLOCKS, _ONE_ROW = -2, -1


@jit.function
def _slots(dimensions: int, blocks_at: int, slots: Any) -> bool:
    """Set the dimension of the kernel's loop for each dimension of a node's, of which number `blocks_at` is cut into blocks;
    below 0: none is. Returns whether there are enough."""
    if blocks_at == _NO_BLOCKS:
        for d in range(dimensions):
            slots[d] = GPU_LOOPS - dimensions + d
        return dimensions <= GPU_LOOPS
    others = 0
    for i in range(dimensions):
        d = dimensions - 1 - i
        if d == blocks_at:
            slots[d] = device.AXIS
        else:
            # Neighbours in the last dimension, if it is not that of the blocks, are for neighbouring threads.
            place = others + (blocks_at == dimensions - 1)
            slots[d] = 3 if place == 0 or place == 3 else 2 - place
            others += 1
    return others < GPU_LOOPS


@jit.function
def _set_steps(work: Any, at: int, dimensions: int, lengths: Any, masks: Any, k: int, slots: Any) -> int:
    """Set how far elements of an input are apart along each dimension of the kernel's loop, from index `at` of the record on.
    Number `k` below 0: that is y. Returns the number of its elements."""
    for slot in range(GPU_LOOPS):
        work[at + slot] = 0
    elements: Any = np.int64(1)
    for i in range(dimensions):
        d = dimensions - 1 - i
        if k < 0 or masks[d] >> k & 1:
            work[at + slots[d]] = elements
            elements *= lengths[d]
    return elements


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: start the node's kernel. Returns an OrtStatus."""
    state = record_at(state_address, region.STATE)
    further = record_at(state_address + LAUNCH_AT, LAUNCH)
    has_many, values, ranks, shapes, scalars, axes = region.inputs(state, state_address, context_address)
    count = state.count
    shape = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    fault, wrong, rank = _y_shape(shapes, ranks, axes, scalars, shape)
    y_shape = shape.ctypes.data + 8 * (MAX_RANK - rank)
    wrong_shape = context.words(shapes.ctypes.data + 8 * (MAX_RANK * (wrong + 1) - ranks[wrong]), ranks[wrong])
    lengths, masks = array_at(stack(MAX_RANK), MAX_RANK, np.int64), array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    slots = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    dimensions: Any = np.int64(0)
    rows: Any = np.int64(1)
    axis: Any = state.axis if rank > 1 else np.int64(-1)  # as in `block_shape`
    if fault == NO_FAULT and state.block and rank > 1 and -axis > rank:
        fault, wrong_shape[0], wrong_shape[1] = AXIS, y_shape, rank
    if fault == NO_FAULT:
        # One more input has the axis of blocks alone, so that it is not joined with its neighbours.
        all_axes = array_at(stack(MOST_INPUTS + 1), count + 1, np.int64)
        all_ranks = array_at(stack(MOST_INPUTS + 1), count + 1, np.int64)
        for k in range(count):
            all_axes[k], all_ranks[k] = axes[k], ranks[k]
        all_axes[count], all_ranks[count] = axis if state.block else OPERAND, 0
        dimensions = _loop_shape(shapes, all_ranks, all_axes, shape, rank, lengths, masks)
        blocks_at: Any = np.int64(_ONE_ROW if state.block else _NO_BLOCKS)
        for d in range(dimensions):
            if state.block and masks[d] >> count & 1:
                blocks_at, rows = d, lengths[d]
        if not _slots(dimensions, blocks_at, slots):
            fault, wrong_shape[0], wrong_shape[1] = MANY_LOOPS, y_shape, rank
    if has_many or fault != NO_FAULT:
        return region.fault_status(state, has_many, fault, wrong, wrong_shape)
    status, y = context.output_of(state, context_address, 0, y_shape, rank)
    size = context.size_of(array_at(y_shape, rank, np.int64))
    if status or size == 0:
        return status

    # The record has the fields of ``device.work_of``, in their order.
    work = array_at(stack(WORK_WORDS), WORK_WORDS, np.int64)
    work[0] = context.data_of(state, y)
    for k in range(count):
        work[1 + k] = context.data_of(state, values[k])
    at = 2 + count
    for slot in range(GPU_LOOPS):
        work[at + slot] = 1
    for d in range(dimensions):
        work[at + slots[d]] = lengths[d]
    units = size
    if state.block:
        blocks = (rows + state.block - 1) // state.block
        units = size // rows * blocks
        work[at + device.AXIS], work[at + GPU_LOOPS] = blocks, rows
        at += 1
    work[1 + count] = units
    at += GPU_LOOPS
    full: Any = np.int64(0)
    is_aligned = are_aligned(work[0], 0)
    for k in range(count):
        if scalars[k] == 0:
            if _set_steps(work, at, dimensions, lengths, masks, k, slots) == size:
                full |= 1 << k
                is_aligned = is_aligned and are_aligned(work[1 + k], 0)
            at += GPU_LOOPS
    if state.block:
        _set_steps(work, at, dimensions, lengths, masks, -1, slots)
        at += GPU_LOOPS
    work[at], work[at + 1] = full, is_aligned
    return launch(state, further, context_address, work.ctypes.data, units, wrong_shape)
