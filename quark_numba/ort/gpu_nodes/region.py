"""The nodes of regions on a GPU: their states, the attributes that are refused, and what a run passes to the kernel
(``region.device``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.device import DeviceKernel
from ...compiling.intrinsics import address_of, array_at, record_at, stack
from ...declaration import Operator, Overload
from ...region import device, gpu_loops
from ...region.granularity import NO_FAULT
from ...region.key import MAX_INPUTS, MAX_STREAMS
from ..nodes import context, region
from ..nodes.context import MAX_RANK
from .launching import launch, state_dtype

STATE = state_dtype(region.STATE)
LAUNCH_AT = region.STATE.itemsize

# The largest number of words of a record ``gpu_loops.work_of``.
WORK_WORDS = gpu_loops.lay_out(MAX_INPUTS, MAX_STREAMS, has_blocks=True).end

_loops_of = jit.function(gpu_loops.loops_of, merge_dimensions=region.merge_dimensions)
_set_work = jit.function(
    gpu_loops.set_work, lay_out=jit.inline(gpu_loops.lay_out), set_strides=jit.function(gpu_loops.set_strides)
)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    if attributes["lanes"]:
        raise ValueError(f"lanes is {attributes['lanes']}; expected 0, as there is no blocked layout on a GPU")
    return region.select(operator, overload, attributes)


def kernel(overload: Overload, selection: context.Selection) -> DeviceKernel:
    return device.kernel(selection.key)


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: start the node's kernel. Return an OrtStatus."""
    state = record_at(state_address, region.STATE)
    inputs = region.read_inputs(state, context_address)
    fault, operands, y_shape = inputs.fault, inputs.operands, inputs.y_shape
    lengths, masks = array_at(stack(MAX_RANK), MAX_RANK, np.int64), array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    numbers = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    loops: Any = gpu_loops.Loops(0, lengths, masks, numbers, 0)
    if fault == NO_FAULT:
        fault, loops = _loops_of(operands, state.axis, y_shape, lengths, masks, numbers)
    shapes, number = region.shape_at_fault(fault, inputs), inputs.faulty_input
    status, size, y = context.begin_output(
        state, context_address, y_shape, inputs.exceeds_max_rank, fault, shapes, number, state.axis, state.channels
    )
    if status or size == 0:
        return status
    # The record has the fields of ``gpu_loops.work_of``: first the addresses.
    work = array_at(stack(WORK_WORDS), WORK_WORDS, np.int64)
    work[0] = context.data_of(state, y)
    for k in range(state.count):
        work[1 + k] = context.data_of(state, inputs.values[k])
    units = _set_work(work, operands, size, state.block, loops)
    return launch(state, state_address + LAUNCH_AT, context_address, address_of(work, 0), units, shapes)
