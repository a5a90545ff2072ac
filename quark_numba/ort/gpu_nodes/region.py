"""The nodes of regions on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.device import DeviceKernel
from ...compiling.intrinsics import address_of, array_at, record_at, stack
from ...declaration import Operator, Overload
from ...region import device, gpu_loops
from ...region.granularity import GPU_LOOPS, NO_FAULT
from ...region.key import MOST_INPUTS, MOST_STREAMS
from ..nodes import context, region
from ..nodes.context import MAX_RANK
from .launching import launch, state_dtype

STATE = state_dtype(region.STATE)
LAUNCH_AT = region.STATE.itemsize

# At most, of ``device.work_of``.
WORK_WORDS = 5 + MOST_INPUTS + (MOST_STREAMS + 2) * GPU_LOOPS

_loop_of = jit.function(gpu_loops.loop_of, loop_shape=region.loop_shape)
_set_work = jit.function(gpu_loops.set_work, set_steps=jit.function(gpu_loops.set_steps))


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    if attributes["block_size"]:
        raise ValueError(f"block_size is {attributes['block_size']}; expected 0, as there is no blocked layout on a GPU")
    return region.select(operator, overload, attributes)


def kernel(overload: Overload, selection: context.Selection) -> DeviceKernel:
    return device.kernel(selection.key)


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: start the node's kernel. Returns an OrtStatus."""
    state = record_at(state_address, region.STATE)
    has_many, fault, wrong, values, operands, y_shape = region.begin(state, context_address)
    lengths, masks = array_at(stack(MAX_RANK), MAX_RANK, np.int64), array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    slots = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    dimensions: Any = np.int64(0)
    rows: Any = np.int64(0)
    if fault == NO_FAULT:
        fault, dimensions, rows = _loop_of(operands, state.axis, y_shape, lengths, masks, slots)
    shapes = region.shape_at_fault(fault, wrong, operands, y_shape)
    status, size, y = context.begin_output(
        state, context_address, y_shape, has_many, fault, shapes, wrong, state.axis, state.channels
    )
    if status or size == 0:
        return status
    # The record has the fields of ``device.work_of``, in their order.
    work = array_at(stack(WORK_WORDS), WORK_WORDS, np.int64)
    work[0] = context.data_of(state, y)
    for k in range(state.count):
        work[1 + k] = context.data_of(state, values[k])
    units = _set_work(work, operands.scalars, size, state.block, rows, dimensions, lengths, masks, slots)
    return launch(state, state_address + LAUNCH_AT, context_address, address_of(work, 0), units, shapes)
