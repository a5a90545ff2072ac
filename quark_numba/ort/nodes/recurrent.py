"""The nodes of LSTM layers in a run: their states, constant weights, which are encoded once and freed with the session, the
attributes that libraries leave free, and the cost of the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import literal_unroll

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...recurrent import fixed_point, granularity
from ...recurrent.fixed_point import LAYER, MAX_HIDDEN, OPERANDS, layer_of
from ...recurrent.granularity import DIRECTIONS, GATES
from ...recurrent.kernels import ENCODE_INPUTS, ENCODE_WEIGHTS, PHASES, WORK, count_parts, count_weight_words, count_words
from . import context

STATE = context.state_dtype(
    "weights",  # the address of the codes of constant weights; 0 if the weights are not constant
    ("layer", LAYER),
)
MESSAGE_NUMBERS = ("hidden_size",)

_SCALES, _ZERO_POINTS = (tuple(f"{name}_{of}" for name in OPERANDS) for of in ("scale", "zero_point"))

# The direction, the last one, has no meaning.
FREE_ATTRIBUTES = ("hidden_size", *_SCALES, *_ZERO_POINTS, "direction")

# The values of FREE_ATTRIBUTES: each has a word of 8 bytes, of which a scale takes the first half.
_FORMATS = [np.float32 if name in _SCALES else np.int64 for name in FREE_ATTRIBUTES]
_OFFSETS = [8 * i for i in range(len(FREE_ATTRIBUTES))]
FREE_VALUES = np.dtype({"names": FREE_ATTRIBUTES, "formats": _FORMATS, "offsets": _OFFSETS})

COST = 1 << 7  # of an element of y, see `context.is_small`
STATE_WORDS = STATE.itemsize // 8
LAYER_AT = STATE.fields["layer"][1]  # type: ignore[index]

_layer_shape = jit.function(granularity.layer_shape)
_derive = jit.function(fixed_point.derive, mantissa_and_shift=jit.function(fixed_point.mantissa_and_shift))


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the kernel's key and the numbers of the layer. Raise ValueError if an attribute is invalid."""
    return context.Selection(overload.inputs[0], {"layer": layer_of(attributes)[0]})


def set_attributes(state_address: int, values_address: int) -> int:
    """Set what the values of FREE_ATTRIBUTES decide, as `select` does it. Return 1, or 0 if one is invalid."""
    values, layer = record_at(values_address, FREE_VALUES), record_at(state_address + LAYER_AT, LAYER)
    are_valid = 0 < values.hidden_size <= MAX_HIDDEN
    layer.hidden = values.hidden_size
    for name in literal_unroll(_SCALES):
        are_valid &= 0 < values[name] < np.inf
        layer[name] = values[name]
    for name in literal_unroll(_ZERO_POINTS):
        layer[name] = values[name] & 0xFFFF
    if not are_valid:
        return 0
    _derive(layer)
    return 1 if layer.x_step < np.inf and layer.h_step < np.inf else 0


def prepare(state_address: int, constants_address: int) -> int:
    """Return the address of one node's state, or 0 if memory runs out.

    If the weights are constants of the right size, this is a copy of the state, followed by the codes of the weights. Else it
    is the address that was passed."""
    state = record_at(state_address, STATE)
    constants = array_at(constants_address, 8, np.int64)  # for each input the address of its elements and their number
    hidden = state.layer.hidden
    rows = DIRECTIONS * GATES * hidden
    if constants[2] == 0 or constants[4] == 0 or constants[6] == 0:
        return state_address
    if constants[3] % rows or constants[5] != rows * hidden or constants[7] != 2 * rows:
        return state_address
    inputs = constants[3] // rows
    address = context.copy_state(state_address, STATE_WORDS, 8 * count_weight_words(inputs, hidden))
    if address == 0:
        return 0
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
    """Release what `prepare` allocated (OrtCustomOp::KernelDestroy). Return 0."""
    if record_at(state_address, STATE).weights:
        release(state_address)
    return 0


def compute(state_address: int, context_address: int) -> int:
    """Run the node (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, STATE)
    hidden = state.layer.hidden
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, 4, 4)
    x_shape, w_shape = context.shape_at(shapes, 0), context.shape_at(shapes, 1)
    r_shape, b_shape = context.shape_at(shapes, 2), context.shape_at(shapes, 3)
    fault, steps, batch, inputs = _layer_shape(hidden, x_shape, w_shape, r_shape, b_shape)
    y_shape = array_at(stack(4), 4, np.int64)
    y_shape[0], y_shape[1], y_shape[2], y_shape[3] = steps, DIRECTIONS, batch, hidden
    status, size, y = context.begin_output(state, context_address, y_shape, exceeds_max_rank, fault, shapes, hidden)
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
