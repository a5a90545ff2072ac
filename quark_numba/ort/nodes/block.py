"""The nodes of block formats in a run: their states, the attributes that libraries leave free, the checks of shapes, and the
cost of an element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...block import formats, granularity
from ...block.formats import BIT_WIDTHS, NVIDIA_FORMATS, SHIFT_BITS
from ...block.granularity import NO_FAULT, SCALE, Format
from ...block.kernels import CHUNK, WORK
from ...block.operators import FORMATS
from ...compiling import jit
from ...compiling.intrinsics import array_at, record_at, stack
from ...declaration import Operator, Overload, Tensor
from . import context

STATE = context.state_dtype(
    "axis",
    "has_bit_width",  # block floating point
    "is_microexponent",
    # The operators of TensorRT take whole blocks only; they may have an input with the scale of the tensor, and return scales.
    "is_of_whole_blocks",
    "has_tensor_scale",
    "has_codes",
    *Format._fields,
)
MESSAGE_NUMBERS = ("axis", "block_size")

# See `set_attributes`. All formats except block floating point have only the first two.
FREE_ATTRIBUTES = ("axis", "block_size", "bit_width", "sub_block_size", "sub_block_shift_bits")

COST = 4  # of an element, see `context.is_small`

_block_shape = jit.function(granularity.block_shape)
_whole_block_shape = jit.function(granularity.whole_block_shape, block_shape=_block_shape)
_bfp_fields = jit.function(formats.bfp_fields)
_MIN_BITS, _MAX_BITS, _MAX_SHIFT_BITS = BIT_WIDTHS[0], BIT_WIDTHS[-1], SHIFT_BITS[-1]


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the kernel's key, the axis and the numbers of the format. Raise ValueError if an attribute is invalid."""
    numbers = {"axis": attributes["axis"]}
    if operator.newest_name in FORMATS:
        key, block_format = FORMATS[operator.newest_name](overload.inputs[0], **attributes)
        numbers |= {"has_bit_width": "bit_width" in attributes, "is_microexponent": key.is_microexponent}
    else:
        operator.infer([Tensor(element_type, None) for element_type in overload.inputs], attributes)
        (nvidia,) = (known for known in NVIDIA_FORMATS if known.name in operator.formats)
        has_codes = len(operator.outputs) > 1
        key, block_format = nvidia.format(overload.inputs[0], attributes["block_size"], has_codes=has_codes)
        numbers |= {"is_of_whole_blocks": 1, "has_tensor_scale": len(operator.inputs) > 1, "has_codes": has_codes}
    return context.Selection(key, numbers | block_format._asdict())


def set_attributes(state_address: int, values_address: int) -> int:
    """Set what the values of FREE_ATTRIBUTES decide, as `select` does it. Return 1, or 0 if one is invalid."""
    state, values = record_at(state_address, STATE), array_at(values_address, 5, np.int64)
    block, bit_width, sub_block, shift_bits = values[1], values[2], values[3], values[4]
    state.axis, state.block, state.sub_block = values[0], block, block
    if block < 1:
        return 0
    if not state.has_bit_width:  # not block floating point
        return 1
    if bit_width < _MIN_BITS or bit_width > _MAX_BITS:
        return 0
    if state.is_microexponent and (sub_block < 1 or shift_bits < 0 or shift_bits > _MAX_SHIFT_BITS or block % sub_block):
        return 0
    fields = _bfp_fields(state.is_microexponent, bit_width, block, sub_block, shift_bits)
    state.sub_block, state.max_shift, state.drop, state.lowest, state.highest = fields
    return 1


class Run(NamedTuple):
    """What a run of a node works on. There is nothing to do if the status is an error or the size 0."""

    status: int  # an OrtStatus
    size: int  # the number of elements of x
    values: Any  # the values of the inputs
    shapes: Any  # an array of SHAPE, one for each input
    length: int  # of the axis
    inner: int  # the number of elements of x with the same indices up to the axis
    y: int  # its value
    scales: int  # the value of the output for scales; 0 if the node returns no scales


@jit.expand
def begin(state: Any, context_address: int) -> Any:
    """Check the inputs of a node, create its outputs, and return the Run."""
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, 1 + state.has_tensor_scale, 2)
    x_shape = context.shape_at(shapes, 0)
    if state.is_of_whole_blocks:
        fault, length, inner = _whole_block_shape(x_shape, state.axis, state.block)
    else:
        fault, length, inner = _block_shape(x_shape, state.axis, state.block)
    if state.has_tensor_scale and fault == NO_FAULT and context.size_of(context.shape_at(shapes, 1)) != 1:
        fault = SCALE
    scales: Any = np.int64(0)
    status, size, y = context.begin_output(
        state, context_address, x_shape, exceeds_max_rank, fault, shapes, state.axis, state.block
    )
    if status == 0 and state.has_codes:
        scales_shape = array_at(stack(context.MAX_RANK), x_shape.size, np.int64)
        axis = state.axis if state.axis >= 0 else state.axis + x_shape.size
        for i in range(x_shape.size):
            scales_shape[i] = x_shape[i] // state.block if i == axis else x_shape[i]
        status, scales = context.output_of(state, context_address, 1, scales_shape)
    return Run(status, size, values, shapes, length, inner, y, scales)


def compute(state_address: int, context_address: int) -> int:
    """Run the node (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, STATE)
    run = begin(state, context_address)
    if run.status or run.size == 0:
        return run.status
    work_address, work = context.new_record(WORK)
    work.tensor_scale = np.float32(1)
    if state.has_tensor_scale:
        work.tensor_scale = array_at(context.data_of(state, run.values[1]), 1, np.float32)[0]
    if state.has_codes:
        work.scales = context.data_of(state, run.scales)
    work.x, work.y = context.data_of(state, run.values[0]), context.data_of(state, run.y)
    work.size, work.length, work.inner, work.has_failed = run.size, run.length, run.inner, 0
    work.block, work.sub_block, work.max_shift, work.drop = state.block, state.sub_block, state.max_shift, state.drop
    work.lowest, work.highest, work.rounding_mode = state.lowest, state.highest, state.rounding_mode
    work.parts = 1 if context.is_small(COST * run.size) else (run.size + CHUNK - 1) // CHUNK
    status = context.run_tasks(state, context_address, work_address, work.parts, COST * run.size)
    if status == 0 and work.has_failed:
        return context.no_memory(state)
    return status
