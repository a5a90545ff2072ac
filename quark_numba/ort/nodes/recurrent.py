"""The nodes of LSTM layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...recurrent import fixed_point, granularity
from ...recurrent.fixed_point import LAYER, OPERANDS, layer_of
from ...recurrent.granularity import DIRECTIONS, GATES
from ...recurrent.kernels import ENCODE_INPUTS, ENCODE_WEIGHTS, PHASES, WORK, count_parts, count_weight_words, count_words
from . import context

STATE = context.state_dtype(
    "weights",  # the address of the codes of constant weights; 0 if the weights are not constant
    ("layer", LAYER),
)
NUMBERS = ("hidden_size",)

# The first ones are those of LAYER, in its order. The direction has no meaning.
FREE = ("hidden_size", *(f"{name}_{of}" for of in ("scale", "zero_point") for name in OPERANDS), "direction")

COST = 1 << 7  # of an element of y, see `context.is_small`
STATE_WORDS = STATE.itemsize // 8
LAYER_AT = STATE.fields["layer"][1]  # type: ignore[index]

_layer_shape = jit.function(granularity.layer_shape)
_derive = jit.function(fixed_point.derive, mantissa_and_shift=jit.function(fixed_point.mantissa_and_shift))


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """The kernel's key and the numbers of the layer. Raises ValueError for wrong attributes."""
    return context.Selection(overload.inputs[0], {"layer": layer_of(attributes)[0]})


def settle(state_address: int, values_address: int) -> int:
    """Set what the values of the attributes FREE decide, as `select` does it. Returns 0 if they are wrong."""
    given, given_reals = array_at(values_address, 11, np.int64), array_at(values_address, 22, np.float32)
    numbers, reals = (array_at(state_address + LAYER_AT, 11, np.int64), array_at(state_address + LAYER_AT, 11, np.float64))
    if given[0] < 1 or given[0] >= 1 << 28:
        return 0
    numbers[0] = given[0]
    for i in range(1, 6):
        scale = given_reals[2 * i]
        if not 0 < scale < np.inf:
            return 0
        reals[i] = scale
        numbers[5 + i] = given[5 + i] & 0xFFFF
    layer = record_at(state_address + LAYER_AT, LAYER)
    _derive(layer)
    return 1 if layer.x_step < np.inf and layer.h_step < np.inf else 0


def prepare(state_address: int, constants_address: int) -> int:
    """The address of one node's state; 0 if memory runs out.

    If the weights are constants of the right size, it is a copy of the state, followed by the weights' codes. Else it is the
    given state."""
    state = record_at(state_address, STATE)
    constants = array_at(constants_address, 8, np.int64)  # for each input the address of its elements and their number
    hidden = state.layer.hidden
    rows = DIRECTIONS * GATES * hidden
    if constants[2] == 0 or constants[4] == 0 or constants[6] == 0:
        return state_address
    if constants[3] % rows or constants[5] != rows * hidden or constants[7] != 2 * rows:
        return state_address
    inputs = constants[3] // rows
    address = allocate(8 * (STATE_WORDS + count_weight_words(inputs, hidden)))
    if address == 0:
        return 0
    source, target = array_at(state_address, STATE_WORDS, np.int64), array_at(address, STATE_WORDS, np.int64)
    for i in range(STATE_WORDS):
        target[i] = source[i]
    own = record_at(address, STATE)
    own.weights = address + 8 * STATE_WORDS
    work_address, work = context.new_record(WORK)
    work.w, work.r, work.b, work.weights = constants[2], constants[4], constants[6], own.weights
    work.x = work.y = work.memory = work.steps = work.batch = 0
    work.layer, work.phase, work.inputs = address + LAYER_AT, ENCODE_WEIGHTS, inputs
    for part in range(count_parts(ENCODE_WEIGHTS, 0, 0, hidden)):
        call(own.task, (work_address, part))
    return address


def destroy(state_address: int) -> int:
    """OrtCustomOp::KernelDestroy: release what `prepare` allocated."""
    if record_at(state_address, STATE).weights:
        release(state_address)
    return 0


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: run the node. Returns an OrtStatus."""
    state = record_at(state_address, STATE)
    hidden = state.layer.hidden
    has_many, values, shapes = context.read_inputs(state, context_address, 4, 4)
    x_shape, w_shape = context.shape_at(shapes, 0), context.shape_at(shapes, 1)
    r_shape, b_shape = context.shape_at(shapes, 2), context.shape_at(shapes, 3)
    fault, steps, batch, inputs = _layer_shape(hidden, x_shape, w_shape, r_shape, b_shape)
    y_shape = array_at(stack(4), 4, np.int64)
    y_shape[0], y_shape[1], y_shape[2], y_shape[3] = steps, DIRECTIONS, batch, hidden
    status, size, y = context.begin_output(state, context_address, y_shape, has_many, fault, shapes, hidden)
    if status or size == 0:
        return status
    words = count_words(steps, batch, inputs, hidden)
    memory = allocate(8 * (words + (0 if state.weights else count_weight_words(inputs, hidden))))
    if memory == 0:
        return context.no_memory(state)
    work_address, work = context.new_record(WORK)
    work.x, work.w = context.data_of(state, values[0]), context.data_of(state, values[1])
    work.r, work.b = context.data_of(state, values[2]), context.data_of(state, values[3])
    work.y, work.memory, work.layer = context.data_of(state, y), memory, state_address + LAYER_AT
    work.weights = state.weights if state.weights else memory + 8 * words
    work.steps, work.batch, work.inputs = steps, batch, inputs
    for phase in range(ENCODE_INPUTS if state.weights else ENCODE_WEIGHTS, PHASES):
        work.phase = phase
        parts = count_parts(phase, steps, batch, hidden)
        if status == 0:
            status = context.run_tasks(state, context_address, work_address, parts, COST * size)
    release(memory)
    return status
