"""Nodes of LSTM layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, ask, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...recurrent import granularity
from ...recurrent.dispatch import TABLE
from ...recurrent.fixed_point import LAYER, layer_of
from ...recurrent.granularity import DIRECTIONS, GATES, NO_FAULT
from ...recurrent.kernels import (
    ENCODE_INPUTS,
    ENCODE_WEIGHTS,
    PHASES,
    WORK,
    count_parts,
    count_weight_words,
    count_words,
)
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

STATE = np.dtype(
    [
        *context.STATE,
        ("weights", np.int64),  # where the codes of constant weights are; 0 if they are no constants
        ("layer", LAYER),
    ]
)
NUMBERS = ("hidden_size",)

# Up to this many elements of y one thread is done before a second has woken up.
SERIAL_SIZE = 1 << 9

STATE_WORDS = STATE.itemsize // 8
WORK_WORDS = WORK.itemsize // 8
LAYER_AT = STATE.fields["layer"][1]  # type: ignore[index]

_layer_shape = jit.function(granularity.layer_shape)


def fill(state: Any, operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> None:
    """Set the fields of the wing's own; raises ValueError for an attribute that cannot be."""
    state["task"] = keep(TABLE[overload.inputs[0]].task).address
    state["layer"] = layer_of(attributes)[0]


def prepare(state_address: int, constants_address: int) -> int:
    """The address of a node's state: one of its own, behind which are the codes of its weights, if they are constants; 0 if
    there is no memory for it."""
    state = record_at(state_address, STATE)
    constants = array_at(constants_address, 8, np.int64)  # of each input the address of its elements and their number
    hidden = state.layer.hidden
    if constants[2] == 0 or constants[4] == 0 or constants[6] == 0:
        return state_address
    inputs = constants[3] // (DIRECTIONS * GATES * hidden)
    address = allocate(8 * (STATE_WORDS + count_weight_words(inputs, hidden)))
    if address == 0:
        return 0
    source, target = array_at(state_address, STATE_WORDS, np.int64), array_at(address, STATE_WORDS, np.int64)
    for i in range(STATE_WORDS):
        target[i] = source[i]
    own = record_at(address, STATE)
    own.weights = address + 8 * STATE_WORDS
    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.w, work.r, work.b, work.weights = constants[2], constants[4], constants[6], own.weights
    work.x = work.y = work.memory = work.steps = work.batch = 0
    work.layer, work.phase, work.inputs = address + LAYER_AT, ENCODE_WEIGHTS, inputs
    for part in range(count_parts(ENCODE_WEIGHTS, 0, 0, hidden)):
        call(own.task, (work_address, part))
    return address


def destroy(state_address: int) -> int:
    """OrtCustomOp::KernelDestroy."""
    if record_at(state_address, STATE).weights:
        release(state_address)
    return 0


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2."""
    state = record_at(state_address, STATE)
    api = array_at(state.api, API_WORDS, np.int64)
    hidden = state.layer.hidden
    values, shapes = array_at(stack(4), 4, np.int64), array_at(stack(8), 8, np.int64)
    room = stack(4 * MAX_RANK)
    has_many = False
    for k in range(4):
        values[k] = ask(api[GET_INPUT], (context_address, k))[1]
        shape_of(state, values[k], shapes[2 * k : 2 * k + 2], room + 8 * MAX_RANK * k)
        has_many = has_many or shapes[2 * k + 1] > MAX_RANK
    if has_many:
        shapes[1] = shapes[3] = shapes[5] = shapes[7] = 0
    x_shape, w_shape = array_at(shapes[0], shapes[1], np.int64), array_at(shapes[2], shapes[3], np.int64)
    r_shape, b_shape = array_at(shapes[4], shapes[5], np.int64), array_at(shapes[6], shapes[7], np.int64)
    fault, steps, batch, inputs = _layer_shape(hidden, x_shape, w_shape, r_shape, b_shape)
    if has_many or fault != NO_FAULT:
        numbers = array_at(stack(1), 1, np.int64)
        numbers[0] = hidden
        return fault_status(state, RANK if has_many else FIRST_FAULT + fault, shapes, numbers)
    y_shape = array_at(stack(4), 4, np.int64)
    y_shape[0], y_shape[1], y_shape[2], y_shape[3] = steps, DIRECTIONS, batch, hidden
    status, y = ask(api[GET_OUTPUT], (context_address, 0, y_shape.ctypes.data, 4))
    size = steps * batch * hidden
    if status or size == 0:
        return status
    words = count_words(steps, batch, inputs, hidden)
    memory = allocate(8 * (words + (0 if state.weights else count_weight_words(inputs, hidden))))
    if memory == 0:
        return no_memory(api, state.messages)
    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.x, work.w = ask(api[GET_DATA], (values[0],))[1], ask(api[GET_DATA], (values[1],))[1]
    work.r, work.b = ask(api[GET_DATA], (values[2],))[1], ask(api[GET_DATA], (values[3],))[1]
    work.y, work.memory, work.layer = ask(api[GET_DATA], (y,))[1], memory, state_address + LAYER_AT
    work.weights = state.weights if state.weights else memory + 8 * words
    work.steps, work.batch, work.inputs = steps, batch, inputs
    for phase in range(ENCODE_INPUTS if state.weights else ENCODE_WEIGHTS, PHASES):
        work.phase = phase
        parts = count_parts(phase, steps, batch, hidden)
        if status == 0:
            status = run_tasks(api, context_address, state.task, work_address, parts, size <= SERIAL_SIZE)
    release(memory)
    return status
