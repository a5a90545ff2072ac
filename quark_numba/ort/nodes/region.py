"""Nodes of regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, ask, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...linear.kernels import widen_function
from ...region import granularity
from ...region.dispatch import TABLE
from ...region.granularity import NO_FAULT, OPERAND
from ...region.kernels import CHUNK, WORK, chunk_function, input_dtypes
from ...region.key import MOST_INPUTS, parse
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

# Of each input: its axis (granularity.OPERAND for an operand), whether it has one element, what makes of it what the program
# takes (a C function, or 0), and how many bytes an element has then, 0 if there is one.
INPUT = np.dtype([(name, np.int64) for name in ("axis", "is_scalar", "widen", "itemsize")])
STATE = np.dtype(
    [
        *context.STATE,
        ("run", np.int64),  # the C function of the program
        ("count", np.int64),
        ("streams", np.int64),  # how many inputs have more than one element
        ("inputs", INPUT, MOST_INPUTS),
    ]
)
NUMBERS = ("input",)

# Up to this many elements one thread is done before a second has woken up: a step takes less time than a quantization alone.
SERIAL_SIZE = 1 << 15

WORK_WORDS = WORK.itemsize // 8
INPUT_WORDS = INPUT.itemsize // 8
INPUTS_AT = STATE.fields["inputs"][1]  # type: ignore[index]

_y_shape = jit.function(granularity.y_shape)
_loop_shape = jit.function(granularity.loop_shape)


def fill(state: Any, operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> None:
    """Set the fields of the wing's own; raises ValueError for an attribute that cannot be."""
    program = parse(attributes["program"])
    state["task"], state["run"] = keep(chunk_function()).address, keep(TABLE[program].task).address
    state["count"] = len(program.inputs)
    parts = zip(program.inputs, program.axes, input_dtypes(program), strict=True)
    for k, (each, axis, dtype) in enumerate(parts):
        widen = widen_function(each.element_type, dtype)
        address = keep(widen).address if widen else 0
        itemsize = 0 if each.is_scalar else np.dtype(dtype).itemsize
        state["inputs"][k] = OPERAND if axis is None else axis, each.is_scalar, address, itemsize
        state["streams"] += not each.is_scalar


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2."""
    state = record_at(state_address, STATE)
    api = array_at(state.api, API_WORDS, np.int64)
    count = state.count
    inputs = array_at(state_address + INPUTS_AT, INPUT_WORDS * count, np.int64).reshape(count, INPUT_WORDS)
    axes, scalars = inputs[:, 0], inputs[:, 1]
    ranks, values = array_at(stack(count), count, np.int64), array_at(stack(count), count, np.int64)
    shapes = array_at(stack(MAX_RANK * count), MAX_RANK * count, np.int64).reshape(count, MAX_RANK)
    found, room = array_at(stack(2), 2, np.int64), stack(MAX_RANK)
    for k in range(count):
        values[k] = ask(api[GET_INPUT], (context_address, k))[1]
        shape_of(state, values[k], found, room)
        ranks[k] = found[1]
        if found[1] > MAX_RANK:
            found[1] = 0
            return fault_status(state, RANK, found, found)
        dimensions = array_at(found[0], found[1], np.int64)
        for d in range(found[1]):
            shapes[k, MAX_RANK - found[1] + d] = dimensions[d]

    shape = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    fault, k, rank = _y_shape(shapes, ranks, axes, scalars, shape)
    if fault != NO_FAULT:
        found[0], found[1] = shapes.ctypes.data + 8 * (MAX_RANK * (k + 1) - ranks[k]), ranks[k]
        numbers = array_at(stack(1), 1, np.int64)
        numbers[0] = k
        return fault_status(state, FIRST_FAULT + fault, found, numbers)
    status, y = ask(api[GET_OUTPUT], (context_address, 0, shape.ctypes.data + 8 * (MAX_RANK - rank), rank))
    size = np.int64(1)
    for d in range(MAX_RANK - rank, MAX_RANK):
        size *= shape[d]
    if status or size == 0:
        return status

    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.run, work.count, work.streams = state.run, count, state.streams
    work.size, work.y = size, ask(api[GET_DATA], (y,))[1]
    work.lengths, work.masks, work.inputs, work.itemsizes = stack(MAX_RANK), stack(MAX_RANK), stack(count), stack(count)
    lengths, masks = array_at(work.lengths, MAX_RANK, np.int64), array_at(work.masks, MAX_RANK, np.int64)
    work.dimensions = _loop_shape(shapes, ranks, axes, shape, rank, lengths, masks)
    widened, slots = array_at(stack(count), count, np.int64), stack(count)
    addresses, itemsizes = array_at(work.inputs, count, np.int64), array_at(work.itemsizes, count, np.int64)
    for k in range(count):
        data = ask(api[GET_DATA], (values[k],))[1]
        widened[k] = 0
        if inputs[k, 2]:
            elements, target = np.int64(1), slots + 8 * k
            if scalars[k] == 0:
                elements = shapes[k, MAX_RANK - 1]
                target = widened[k] = allocate(elements * inputs[k, 3])
                if target == 0:
                    status = no_memory(api, state.messages)
                    break
            call(inputs[k, 2], (data, target, elements))
            data = target
        addresses[k], itemsizes[k] = data, inputs[k, 3]
    else:
        chunks = (size + CHUNK - 1) // CHUNK
        status = run_tasks(api, context_address, state.task, work_address, chunks, size <= SERIAL_SIZE)
    for k in range(count):
        if widened[k]:
            release(widened[k])
    return status
