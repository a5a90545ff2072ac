"""The nodes of block formats on a GPU: their states, and what a run passes to the kernel (``block.device``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...block import device
from ...block.granularity import Format
from ...compiling import jit
from ...compiling.device import DeviceKernel
from ...compiling.intrinsics import record_at
from ...declaration import Operator, Overload
from ..nodes import block, context
from .launching import are_aligned, launch, state_dtype

STATE = state_dtype(block.STATE, ("per_byte", np.int64))  # codes in a byte of y
LAUNCH_AT = block.STATE.itemsize

_count_columns = jit.function(device.count_columns)
_count_units = jit.function(device.count_units, count_columns=_count_columns)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    key, numbers = block.select(operator, overload, attributes)
    return context.Selection(key, {**numbers, "per_byte": 8 // key.y.bits if key.y.is_packed else 1})


def kernel(overload: Overload, selection: context.Selection) -> DeviceKernel:
    return device.kernel(selection.key, Format(**{name: selection.numbers[name] for name in Format._fields}))


def compute(state_address: int, context_address: int) -> int:
    """Start the node's kernel (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, block.STATE)
    run = block.begin(state, context_address)
    if run.status or run.size == 0:
        return run.status
    work_address, work = context.new_record(device.WORK)
    work.x, work.y = context.data_of(state, run.values[0]), context.data_of(state, run.y)
    work.scales = context.data_of(state, run.scales) if state.has_codes else 0
    work.tensor_scale = context.data_of(state, run.values[1]) if state.has_tensor_scale else 0
    work.block, work.sub_block, work.max_shift, work.drop = state.block, state.sub_block, state.max_shift, state.drop
    work.lowest, work.highest, work.rounding_mode = state.lowest, state.highest, state.rounding_mode
    work.length, work.inner, work.size = run.length, run.inner, run.size
    per_byte = record_at(state_address, STATE).per_byte
    work.units = units = _count_units(run.size, run.length, run.inner, state.block, per_byte)
    work.is_aligned = are_aligned(work.x, work.y)
    return launch(state, state_address + LAUNCH_AT, context_address, work_address, units, run.shapes)
