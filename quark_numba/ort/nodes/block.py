"""The nodes of block formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...block import formats, granularity
from ...block.dispatch import TABLE
from ...block.formats import BIT_WIDTHS, SHIFT_BITS
from ...block.granularity import NO_FAULT, Blocks
from ...block.kernels import CHUNK, WORK
from ...block.key import Key
from ...block.operators import FORMATS
from ...compiling import jit
from ...compiling.intrinsics import array_at, record_at, stack
from ...declaration import Operator, Overload
from . import context

STATE = np.dtype(
    [
        *context.STATE,
        ("axis", np.int64),
        ("is_microexponent", np.int64),
        *((name, np.int64) for name in Blocks._fields),
    ]
)
NUMBERS = ("axis",)

# See `settle`. Microscaling formats have the first two alone.
FREE = ("axis", "block_size", "bit_width", "sub_block_size", "sub_block_shift_bits")

# Up to this many elements are left to one thread, which is done before a second one would have woken up.
SERIAL_SIZE = 1 << 14

WORK_WORDS = WORK.itemsize // 8

_block_shape = jit.function(granularity.block_shape)
_steps = jit.function(formats.steps)
_FEWEST_BITS, _MOST_BITS, _MOST_SHIFT_BITS = BIT_WIDTHS[0], BIT_WIDTHS[-1], SHIFT_BITS[-1]


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """The kernel's key, the axis and the numbers of the format. Raises ValueError for wrong attributes."""
    of_format = {name: value for name, value in attributes.items() if name != "axis"}
    key, blocks = FORMATS[operator.newest_name](overload.inputs[0], **of_format)
    numbers = {"axis": attributes["axis"], "is_microexponent": key.is_microexponent, **blocks._asdict()}
    return context.Selection(key, numbers)


def functions(overload: Overload, key: Key) -> dict[str, Any]:
    """The C functions of the state."""
    return {"task": TABLE[key].task}


def settle(state_address: int, values_address: int) -> int:
    """Set what the values of the attributes FREE decide, as `select` does it. Returns 0 if they are wrong."""
    state, values = record_at(state_address, STATE), array_at(values_address, 5, np.int64)
    block, bit_width, sub_block, shift_bits = values[1], values[2], values[3], values[4]
    state.axis, state.block, state.sub_block = values[0], block, block
    if block < 1:
        return 0
    if bit_width == 0:  # a Microscaling format
        return 1
    if bit_width < _FEWEST_BITS or bit_width > _MOST_BITS:
        return 0
    if state.is_microexponent and (sub_block < 1 or shift_bits < 0 or shift_bits > _MOST_SHIFT_BITS or block % sub_block):
        return 0
    sub_block, max_shift, drop, lowest, highest = _steps(state.is_microexponent, bit_width, block, sub_block, shift_bits)
    state.sub_block, state.max_shift, state.drop = sub_block, max_shift, drop
    state.lowest, state.highest = lowest, highest
    return 1


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: run the node. Returns an OrtStatus."""
    state = record_at(state_address, STATE)
    x = context.input_of(state, context_address, 0)
    shape = array_at(stack(2), 2, np.int64)
    has_many = context.shape_of(state, x, shape, stack(context.MAX_RANK))
    fault, length, inner = _block_shape(array_at(shape[0], shape[1], np.int64), state.axis, state.block)
    if has_many or fault != NO_FAULT:
        numbers = array_at(stack(1), 1, np.int64)
        numbers[0] = state.axis
        return context.fault_status(state, has_many, fault, shape, numbers)
    status, y = context.output_of(state, context_address, 0, shape[0], shape[1])
    size = np.int64(1)
    for i in range(shape[1]):
        size *= array_at(shape[0], shape[1], np.int64)[i]
    if status or size == 0:
        return status
    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.x, work.y = context.data_of(state, x), context.data_of(state, y)
    work.size, work.length, work.inner, work.has_failed = size, length, inner, 0
    work.block, work.sub_block, work.max_shift, work.drop = state.block, state.sub_block, state.max_shift, state.drop
    work.lowest, work.highest, work.rounding_mode = state.lowest, state.highest, state.rounding_mode
    is_serial = size <= SERIAL_SIZE
    work.parts = 1 if is_serial else (size + CHUNK - 1) // CHUNK
    status = context.run_tasks(state, context_address, work_address, work.parts, is_serial)
    if status == 0 and work.has_failed:
        return context.no_memory(state)
    return status
