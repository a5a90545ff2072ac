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
from ...region.granularity import GPU_LOOPS, MANY_LOOPS, NO_FAULT
from ...region.key import MOST_INPUTS, MOST_STREAMS
from ..nodes import context, region
from ..nodes.context import MAX_RANK
from .launching import are_aligned, launch, state_dtype

STATE = state_dtype(region.STATE)

# At most, of ``device.work_of``.
WORK_WORDS = 8 + MOST_INPUTS + (MOST_STREAMS + 1) * GPU_LOOPS

_y_shape = jit.function(granularity.y_shape)
_loop_shape = jit.function(granularity.loop_shape)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    if attributes["block_size"]:
        raise ValueError(f"block_size is {attributes['block_size']}; expected 0, as there is no blocked layout on a GPU")
    return region.select(operator, overload, attributes)


def kernel(overload: Overload, selection: context.Selection) -> DeviceKernel:
    return device.kernel(selection.key)


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: start the node's kernel. Returns an OrtStatus."""
    state = record_at(state_address, STATE)
    has_many, values, ranks, shapes, scalars, axes = region.inputs(state, state_address, context_address)
    count = state.count
    shape = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    fault, wrong, rank = _y_shape(shapes, ranks, axes, scalars, shape)
    y_shape = shape.ctypes.data + 8 * (MAX_RANK - rank)
    wrong_shape = context.words(shapes.ctypes.data + 8 * (MAX_RANK * (wrong + 1) - ranks[wrong]), ranks[wrong])
    lengths, masks = array_at(stack(MAX_RANK), MAX_RANK, np.int64), array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    dimensions: Any = np.int64(0)
    if fault == NO_FAULT:
        dimensions = _loop_shape(shapes, ranks, axes, shape, rank, lengths, masks)
        if dimensions > GPU_LOOPS:
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
    at = 1 + count
    work[at] = size
    for d in range(GPU_LOOPS):
        work[at + 1 + d] = 1
    at += 1 + GPU_LOOPS
    for d in range(dimensions):
        work[at - dimensions + d] = lengths[d]
    full: Any = np.int64(0)
    is_aligned = are_aligned(work[0], 0)
    for k in range(count):
        if scalars[k]:
            continue
        elements: Any = np.int64(1)
        for d in range(GPU_LOOPS):
            work[at + d] = 0
        for i in range(dimensions):
            d = dimensions - 1 - i
            if masks[d] >> k & 1:
                work[at + GPU_LOOPS - 1 - i] = elements
                elements *= lengths[d]
        at += GPU_LOOPS
        if elements == size:
            full |= 1 << k
            is_aligned = is_aligned and are_aligned(work[1 + k], 0)
    work[at], work[at + 1] = full, is_aligned
    return launch(state, context_address, work.ctypes.data, size, array_at(wrong_shape.ctypes.data, 2, np.int64))
