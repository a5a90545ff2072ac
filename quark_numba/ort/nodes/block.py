"""Nodes of block formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...block import granularity
from ...block.dispatch import TABLE
from ...block.granularity import NO_FAULT, Blocks
from ...block.kernels import CHUNK, WORK
from ...block.operators import FORMATS
from ...compiling import jit
from ...compiling.intrinsics import array_at, ask, record_at, stack
from ...declaration import Operator, Overload
from ..c_api import API_WORDS, keep
from . import context
from .context import (
    FIRST_FAULT,
    GET_DATA,
    GET_INPUT,
    GET_OUTPUT,
    MAX_RANK,
    RANK,
    fault_status,
    no_memory,
    run_tasks,
    shape_of,
)

STATE = np.dtype([*context.STATE, ("axis", np.int64), *((name, np.int64) for name in Blocks._fields)])
NUMBERS = ("axis",)

# Up to this many elements one thread is done before a second has woken up.
SERIAL_SIZE = 1 << 14

WORK_WORDS = WORK.itemsize // 8

_block_shape = jit.function(granularity.block_shape)


def fill(state: Any, operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> None:
    """Set the fields of the wing's own; raises ValueError for an attribute that cannot be."""
    of_format = {name: value for name, value in attributes.items() if name != "axis"}
    key, blocks = FORMATS[operator.name](overload.inputs[0], **of_format)
    state["task"] = keep(TABLE[key].task).address
    state["axis"] = attributes["axis"]
    for name, value in blocks._asdict().items():
        state[name] = value


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2."""
    state = record_at(state_address, STATE)
    api = array_at(state.api, API_WORDS, np.int64)
    x = ask(api[GET_INPUT], (context_address, 0))[1]
    shape = array_at(stack(2), 2, np.int64)
    shape_of(state, x, shape, stack(MAX_RANK))
    has_many = shape[1] > MAX_RANK
    if has_many:
        shape[1] = 0
    fault, length, inner = _block_shape(array_at(shape[0], shape[1], np.int64), state.axis, state.block)
    if has_many or fault != NO_FAULT:
        numbers = array_at(stack(1), 1, np.int64)
        numbers[0] = state.axis
        return fault_status(state, RANK if has_many else FIRST_FAULT + fault, shape, numbers)
    status, y = ask(api[GET_OUTPUT], (context_address, 0, shape[0], shape[1]))
    size = np.int64(1)
    for i in range(shape[1]):
        size *= array_at(shape[0], shape[1], np.int64)[i]
    if status or size == 0:
        return status
    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.x = ask(api[GET_DATA], (x,))[1]
    work.y = ask(api[GET_DATA], (y,))[1]
    work.size, work.length, work.inner, work.has_failed = size, length, inner, 0
    work.block, work.sub_block, work.max_shift, work.drop = state.block, state.sub_block, state.max_shift, state.drop
    work.lowest, work.highest, work.rounding_mode = state.lowest, state.highest, state.rounding_mode
    is_serial = size <= SERIAL_SIZE
    work.parts = 1 if is_serial else (size + CHUNK - 1) // CHUNK
    status = run_tasks(api, context_address, state.task, work_address, work.parts, is_serial)
    if status == 0 and work.has_failed:
        return no_memory(api, state.messages)
    return status
