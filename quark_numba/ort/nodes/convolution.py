"""The nodes of convolutions of codes in a run: their states, constant weights, which are packed once and freed with the
session, and the sizes of the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, record_at, release, stack
from ...convolution import granularity
from ...convolution.calls import check_attributes
from ...convolution.granularity import Window
from ...convolution.kernels import (
    ENCODE,
    MULTIPLY,
    WORK,
    count_parts,
    encode_task,
    pack,
    packed_bytes,
    set_parts,
    write_offsets,
)
from ...convolution.key import GROUP, Key
from ...declaration import Operator, Overload
from ...element_types import FLOAT32, UINT8
from . import context

STATE = context.state_dtype(
    "encode",  # the C function that writes the codes of x
    "packed",  # the address of the packed weights; 0 if the weights are not constant
    *("lanes", "group", "zero_point", "y_zero_point", "is_float"),
    "gives_codes",  # whether y is codes, which are looked up in a table
    *((name, np.int64, 2) for name in ("kernel", "strides", "dilations")),
    ("pads", np.int64, 4),
    # Of float64, as fields have whole words.
    *((name, np.float64) for name in ("inverse", "lowest", "y_inverse")),
)
MESSAGE_NUMBERS = ("lanes", "kernel_rows", "kernel_columns")

# The multiplications that take as long as the conversion of an element, see `context.is_small`.
_PRODUCTS = 64

STATE_WORDS = STATE.itemsize // 8

_fault_of = jit.function(granularity.fault_of, output_length=jit.function(granularity.output_length))
_fault_of_table = jit.function(granularity.fault_of_table)
_output_length = jit.function(granularity.output_length, "length_of_convolution")


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the kernel's key, and what the attributes say. Raise ValueError if an attribute is invalid."""
    window, lanes = check_attributes(attributes), attributes["lanes"]
    numbers = {
        **window._asdict(),
        "lanes": lanes,
        "group": attributes["group"],
        "zero_point": attributes["x_zero_point"],
        "is_float": overload.inputs[0] is FLOAT32,
        "inverse": 1 / attributes["x_scale"],
        "lowest": 0.0 if attributes["relu"] else -np.inf,
        "gives_codes": overload.outputs[0] is UINT8,
        "y_inverse": 1 / attributes.get("y_scale", 1.0),
        "y_zero_point": attributes.get("y_zero_point", 0),
    }
    return context.Selection(Key(overload.outputs[0], lanes), numbers)


def functions(overload: Overload, key: Key) -> dict[str, Any]:
    """Return the C functions of the state besides the kernel."""
    return {"encode": encode_task(overload.inputs[0], key.lanes)}


def prepare(state_address: int, constants_address: int) -> int:
    """Return the address of one node's state, or 0 if memory runs out.

    If the weights, the scales and the biases are constants of sizes that fit, this is a copy of the state, followed by the
    packed weights. Else it is the address that was passed."""
    state = record_at(state_address, STATE)
    # For each input the address of its elements and their number. A table is read in each run.
    constants = array_at(constants_address, 8, np.int64)
    places, outer = state.kernel[0] * state.kernel[1], constants[5]
    if constants[2] == 0 or constants[4] == 0 or constants[6] == 0:
        return state_address
    if outer == 0 or constants[7] != outer or constants[3] == 0 or constants[3] % (outer * places):
        return state_address
    depth = constants[3] // (outer * places)
    whole, inner = (outer + state.lanes - 1) // state.lanes * state.lanes, (depth + GROUP - 1) // GROUP
    if whole // state.lanes % state.group:
        return state_address
    address = context.copy_state(state_address, STATE_WORDS, packed_bytes(whole, inner, places))
    if address == 0:
        return 0
    own = record_at(address, STATE)
    own.packed = address + 8 * STATE_WORDS
    inputs = constants[2], constants[4], constants[6]
    pack(inputs, outer, depth, places, state.group, state.zero_point, state.lanes, own.packed)
    return address


def destroy(state_address: int) -> int:
    """Release what `prepare` allocated (OrtCustomOp::KernelDestroy). Return 0."""
    if record_at(state_address, STATE).packed:
        release(state_address)
    return 0


@jit.expand
def _set_sizes(work: Any, state: Any, x_shape: Any, y_shape: Any, depth: int) -> bool:
    """Set the sizes of the work. Return whether each pixel of y is computed from the same pixel of x alone. Then an image is
    described as one row."""
    lanes, kernel, pads = state.lanes, state.kernel, state.pads
    work.batch, work.group = x_shape[0], state.group
    work.blocks, work.outer_blocks = x_shape[1] // lanes // state.group, y_shape[1] // lanes // state.group
    work.inner, work.kernel_rows, work.kernel_columns = (depth + GROUP - 1) // GROUP, kernel[0], kernel[1]
    work.steps = work.inner * kernel[0] * kernel[1]
    work.rows, work.columns, work.y_rows, work.y_columns = x_shape[2], x_shape[3], y_shape[2], y_shape[3]
    work.row_stride, work.phases = state.strides[0], state.strides[1]
    work.row_dilation, work.column_dilation = state.dilations[0], state.dilations[1]
    work.top, work.left = pads[0], pads[1]
    is_pointwise = kernel[0] * kernel[1] * work.row_stride * work.phases == 1 and pads[0] + pads[1] + pads[2] + pads[3] == 0
    if is_pointwise:
        work.columns, work.y_columns = work.rows * work.columns, work.y_rows * work.y_columns
        work.rows = work.y_rows = 1
    work.all_rows = work.top + work.rows + pads[2]
    work.line = (work.left + work.columns + pads[3] + work.phases - 1) // work.phases
    set_parts(work, lanes)
    return is_pointwise


def compute(state_address: int, context_address: int) -> int:
    """Run the node (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, STATE)
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, 4 + state.gives_codes, 5)
    x_shape, w_shape = context.shape_at(shapes, 0), context.shape_at(shapes, 1)
    scale_shape, bias_shape = context.shape_at(shapes, 2), context.shape_at(shapes, 3)
    window = Window(state.kernel, state.strides, state.dilations, state.pads)
    lanes, kernel = state.lanes, state.kernel
    fault = _fault_of(window, state.group, lanes, x_shape, w_shape, scale_shape, bias_shape)
    if state.gives_codes and fault == granularity.NO_FAULT:
        fault = _fault_of_table(context.shape_at(shapes, 4))
    y_shape = array_at(stack(4), 4, np.int64)
    outer = depth = np.int64(1)
    for axis in range(4):
        y_shape[axis] = 0
    if fault == granularity.NO_FAULT:
        outer, depth = (w_shape[0] + lanes - 1) // lanes * lanes, w_shape[1]
        y_shape[0], y_shape[1] = x_shape[0], outer
        y_shape[2], y_shape[3] = _output_length(window, 0, x_shape[2]), _output_length(window, 1, x_shape[3])
    status, size, y = context.begin_output(
        state, context_address, y_shape, exceeds_max_rank, fault, shapes, lanes, kernel[0], kernel[1]
    )
    if status or size == 0:
        return status

    work_address, work = context.new_record(WORK)
    work.encode = state.encode
    work.x, work.y = context.data_of(state, values[0]), context.data_of(state, y)
    work.table = context.data_of(state, values[4]) if state.gives_codes else 0
    work.y_inverse, work.y_zero_point = state.y_inverse, state.y_zero_point
    work.inverse, work.zero_point, work.lowest = state.inverse, state.zero_point, state.lowest
    is_pointwise = _set_sizes(work, state, x_shape, y_shape, depth)
    encodes = state.is_float or not is_pointwise
    code_bytes = work.batch * x_shape[1] * work.all_rows * work.phases * work.line if encodes else 0
    code_bytes, offset_bytes = (code_bytes + 63) // 64 * 64, (4 * work.steps + 63) // 64 * 64
    weight_bytes = 0 if state.packed else packed_bytes(outer, work.inner, kernel[0] * kernel[1])
    memory = allocate(code_bytes + offset_bytes + weight_bytes)
    if memory == 0:
        return context.no_memory(state)
    work.codes, work.offsets = memory if encodes else work.x, memory + code_bytes
    work.weights = state.packed
    if not state.packed:
        work.weights = memory + code_bytes + offset_bytes
        inputs = context.data_of(state, values[1]), context.data_of(state, values[2]), context.data_of(state, values[3])
        pack(inputs, w_shape[0], depth, kernel[0] * kernel[1], state.group, state.zero_point, lanes, work.weights)
    work.starts = work.weights + outer * work.steps * GROUP
    work.scales, work.biases = work.starts + 4 * outer, work.starts + 8 * outer
    write_offsets(work, lanes)
    cost = size * work.steps * GROUP // _PRODUCTS
    for phase in range(ENCODE if encodes else MULTIPLY, MULTIPLY + 1):
        work.phase = phase
        if status == 0:
            status = context.run_tasks(state, context_address, work_address, count_parts(work, phase), cost)
    release(memory)
    return status
