"""The nodes of blocks whose scales are computed in the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import array_at, record_at, stack
from ...declaration import Operator, Overload, Tensor
from ...dynamic_blocks import granularity
from ...dynamic_blocks.dispatch import TABLE
from ...dynamic_blocks.granularity import NO_FAULT, SCALE
from ...dynamic_blocks.kernels import CHUNK, WORK
from ...dynamic_blocks.key import FORMATS, Key
from . import context

STATE = np.dtype(
    [*context.STATE, ("axis", np.int64), ("block_size", np.int64), ("has_tensor_scale", np.int64), ("has_scales", np.int64)]
)
NUMBERS = ("axis", "block_size")

# Up to this many elements are left to one thread, which is done before a second one would have woken up.
SERIAL_SIZE = 1 << 14

WORK_WORDS = WORK.itemsize // 8

_block_shape = jit.function(granularity.block_shape, "block_shape_of_dynamic_blocks")


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """The kernel's key, the axis and the block size. Raises ValueError for wrong attributes."""
    operator.infer([Tensor(each, None) for each in overload.inputs], attributes)
    (form,) = (each for each in FORMATS if each.name in operator.formats)
    has_scales = len(operator.outputs) > 1
    key = Key(form, overload.inputs[0], is_round_trip=not has_scales)
    numbers = {name: attributes[name] for name in NUMBERS}
    return context.Selection(key, {**numbers, "has_tensor_scale": form.has_tensor_scale, "has_scales": has_scales})


def functions(overload: Overload, key: Key) -> dict[str, Any]:
    """The C functions of the state."""
    return {"task": TABLE[key].task}


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: run the node. Returns an OrtStatus."""
    state = record_at(state_address, STATE)
    values, shapes = array_at(stack(2), 2, np.int64), array_at(stack(4), 4, np.int64)
    count = 1 + state.has_tensor_scale
    has_many = context.inputs_of(state, context_address, count, values, shapes, stack(2 * context.MAX_RANK))
    x_shape = array_at(shapes[0], shapes[1], np.int64)
    fault, axis, inner = _block_shape(x_shape, state.axis, state.block_size)
    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.tensor_scale = np.float32(1)
    if state.has_tensor_scale:
        size = np.int64(1)
        for i in range(shapes[3]):
            size *= array_at(shapes[2], shapes[3], np.int64)[i]
        if fault == NO_FAULT and size != 1:
            fault = SCALE
        elif size == 1:
            work.tensor_scale = array_at(context.data_of(state, values[1]), 1, np.float32)[0]
    if has_many or fault != NO_FAULT:
        numbers = array_at(stack(2), 2, np.int64)
        numbers[0], numbers[1] = state.axis, state.block_size
        return context.fault_status(state, has_many, fault, array_at(shapes.ctypes.data, 2 * count, np.int64), numbers)

    status, y = context.output_of(state, context_address, 0, shapes[0], shapes[1])
    if status:
        return status
    work.scales = 0
    if state.has_scales:
        of_blocks = array_at(stack(context.MAX_RANK), shapes[1], np.int64)
        for i in range(shapes[1]):
            of_blocks[i] = x_shape[i] // state.block_size if i == axis else x_shape[i]
        status, scales = context.output_of(state, context_address, 1, of_blocks.ctypes.data, shapes[1])
        if status:
            return status
        work.scales = context.data_of(state, scales)
    size = np.int64(1)
    for i in range(shapes[1]):
        size *= x_shape[i]
    if size == 0:
        return 0
    work.x, work.y = context.data_of(state, values[0]), context.data_of(state, y)
    work.size, work.block, work.inner, work.has_failed = size, state.block_size, inner, 0
    is_serial = size <= SERIAL_SIZE
    work.parts = 1 if is_serial else (size + CHUNK - 1) // CHUNK
    status = context.run_tasks(state, context_address, work_address, work.parts, is_serial)
    if status == 0 and work.has_failed:
        return context.no_memory(state)
    return status
