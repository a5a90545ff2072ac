"""Nodes of instance normalization."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import array_at, ask, record_at, stack
from ...declaration import Operator, Overload
from ...normalization import granularity
from ...normalization.dispatch import TABLE
from ...normalization.granularity import NO_FAULT
from ...normalization.kernels import WORK, part_of
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
    run_tasks,
    shape_of,
)

STATE = np.dtype(
    [
        *context.STATE,
        ("threads", np.int64),  # that there may be
        ("epsilon", np.float32),
    ]
)
NUMBERS = ()

# Up to this many elements one thread is done before a second has woken up.
SERIAL_SIZE = 1 << 14

WORK_WORDS = WORK.itemsize // 8

_instance_shape = jit.function(granularity.instance_shape)


def fill(state: Any, operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> None:
    """Set the fields of the wing's own."""
    state["task"] = keep(TABLE[overload.inputs[0]].task).address
    state["threads"] = os.cpu_count() or 1
    state["epsilon"] = attributes["epsilon"]


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2."""
    state = record_at(state_address, STATE)
    api = array_at(state.api, API_WORDS, np.int64)
    x = ask(api[GET_INPUT], (context_address, 0))[1]
    scale = ask(api[GET_INPUT], (context_address, 1))[1]
    bias = ask(api[GET_INPUT], (context_address, 2))[1]
    shapes = array_at(stack(6), 6, np.int64)
    shape_of(state, x, shapes[0:2], stack(MAX_RANK))
    shape_of(state, scale, shapes[2:4], stack(MAX_RANK))
    shape_of(state, bias, shapes[4:6], stack(MAX_RANK))
    has_many = shapes[1] > MAX_RANK or shapes[3] > MAX_RANK or shapes[5] > MAX_RANK
    if has_many:
        shapes[1] = shapes[3] = shapes[5] = 0
    x_shape, scale_shape = array_at(shapes[0], shapes[1], np.int64), array_at(shapes[2], shapes[3], np.int64)
    fault, instances, channels, length = _instance_shape(x_shape, scale_shape, array_at(shapes[4], shapes[5], np.int64))
    if has_many or fault != NO_FAULT:
        return fault_status(state, RANK if has_many else FIRST_FAULT + fault, shapes, array_at(stack(1), 0, np.int64))
    status, y = ask(api[GET_OUTPUT], (context_address, 0, shapes[0], shapes[1]))
    size = instances * length
    if status or size == 0:
        return status
    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.x, work.scale = ask(api[GET_DATA], (x,))[1], ask(api[GET_DATA], (scale,))[1]
    work.bias, work.y = ask(api[GET_DATA], (bias,))[1], ask(api[GET_DATA], (y,))[1]
    work.instances, work.channels, work.length = instances, channels, length
    work.epsilon, work.part = state.epsilon, part_of(instances, length, state.threads)
    parts = (instances + work.part - 1) // work.part
    return run_tasks(api, context_address, state.task, work_address, parts, size <= SERIAL_SIZE)
