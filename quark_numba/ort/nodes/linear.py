"""Nodes of QuantizeLinear and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, ask, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...element_types import FLOAT64, INT32
from ...linear import granularity
from ...linear.dispatch import TABLE
from ...linear.granularity import NO_FAULT
from ...linear.kernels import CHUNK, WORK, widen_function
from ...linear.key import PRECISIONS, select
from ..c_api import API_WORDS, keep
from . import context
from .context import (
    FIRST_FAULT,
    GET_DATA,
    GET_INPUT,
    GET_INPUT_COUNT,
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
        ("axis", np.int64),
        ("block_size", np.int64),
        # Of scales and zero points as kernels take them: what makes them of those of the tensor (a C function, or 0), and
        # bytes.
        ("widen_scale", np.int64),
        ("scale_itemsize", np.int64),
        ("widen_zero_point", np.int64),
        ("zero_point_itemsize", np.int64),
        ("zero_point_bits", np.int64),  # of one in a tensor
    ]
)

NUMBERS = ("axis", "block_size")

# Up to this many elements one thread is done before a second has woken up, unless it has been waiting for work, as it has
# amid a model: a compromise.
SERIAL_SIZE = 1 << 16

WORK_WORDS = WORK.itemsize // 8

_size = jit.function(granularity.size_of)
_loop_shape = jit.function(granularity.loop_shape, size_of=_size)


def fill(state: Any, operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> None:
    """Set the fields of the wing's own; raises ValueError for an attribute that cannot be."""
    x, scale, quantized = overload.inputs
    (y,) = overload.outputs
    block_size, output_dtype = attributes.get("block_size", 0), attributes.get("output_dtype", 0)
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}; expected a positive integer, or 0")
    if output_dtype not in (0, y.number):
        raise ValueError(f"output_dtype is {output_dtype}, and y is {y.name}, {y.number}")
    precisions = {0: None} | {each.number: each for each in PRECISIONS if scale is not INT32 or each is FLOAT64}
    precision = attributes.get("precision", 0)
    if precision not in precisions:
        expected = " or ".join(f"{number} ({each.name})" if each else "0" for number, each in precisions.items())
        raise ValueError(f"precision is {precision}; expected {expected} for a scale of {scale.name}")
    saturate = attributes.get("saturate", 1) != 0
    key = select(operator.operation, x, scale, quantized, y, saturate=saturate, precision=precisions[precision])  # type: ignore[arg-type]
    state["task"] = keep(TABLE[key].task).address
    state["axis"], state["block_size"] = attributes.get("axis", 0), block_size
    for name, element_type, dtype in (("scale", scale, key.scale_dtype), ("zero_point", quantized, key.zero_point_dtype)):
        widen = widen_function(element_type, dtype)
        state[f"widen_{name}"] = keep(widen).address if widen else 0
        state[f"{name}_itemsize"] = np.dtype(dtype).itemsize
    state["zero_point_bits"] = quantized.bits if quantized.is_packed else 8 * quantized.dtype.itemsize


@jit.function
def _is_zero(address: int, size: int) -> bool:
    """Whether no bit of so many bytes is set."""
    bits = np.uint8(0)
    codes = array_at(address, size, np.uint8)
    for i in range(size):
        bits |= codes[i]
    return bits == 0


@jit.function
def _parameters(widen: int, itemsize: int, source: int, given: int, count: int, one: int) -> int:
    """The address of `count` scales or zero points as kernels take them, or 0 if there is no memory for them.

    `source` is where the tensor has `given` of them, which are repeated if they are fewer; 0 stands for zeros. What is returned
    is `source` if these will do, `one` if that has room, 8 bytes, or else memory to be released.
    """
    if source and given >= count and widen == 0:
        return source
    size = count * itemsize
    target = one
    if size > 8:
        target = allocate(size)
        if target == 0:
            return 0
    words = array_at(target, size // 4, np.int32)
    done = 0
    if source:
        done = given if given < count else count
        if widen:
            call(widen, (source, target, done))
        done *= itemsize // 4
        if widen == 0:
            codes = array_at(source, done, np.int32)
            for i in range(done):
                words[i] = codes[i]
    for i in range(done, words.size):
        words[i] = words[i - done] if source else 0
    return target


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2."""
    state = record_at(state_address, STATE)
    api = array_at(state.api, API_WORDS, np.int64)
    x = ask(api[GET_INPUT], (context_address, 0))[1]
    scale = ask(api[GET_INPUT], (context_address, 1))[1]
    zero_point = np.int64(0)
    if ask(api[GET_INPUT_COUNT], (context_address,))[1] > 2:
        zero_point = ask(api[GET_INPUT], (context_address, 2))[1]  # 0 if it is left out

    shapes = array_at(stack(6), 6, np.int64)
    shape_of(state, x, shapes[0:2], stack(MAX_RANK))
    shape_of(state, scale, shapes[2:4], stack(MAX_RANK))
    shape_of(state, zero_point if zero_point else scale, shapes[4:6], stack(MAX_RANK))
    has_many = shapes[1] > MAX_RANK or shapes[3] > MAX_RANK or shapes[5] > MAX_RANK
    if has_many:
        shapes[1] = shapes[3] = shapes[5] = 0
    x_shape = array_at(shapes[0], shapes[1], np.int64)
    scale_shape = array_at(shapes[2], shapes[3], np.int64)
    fault, loop = _loop_shape(x_shape, scale_shape, array_at(shapes[4], shapes[5], np.int64), state.axis, state.block_size)
    if has_many or fault != NO_FAULT:
        numbers = array_at(stack(2), 2, np.int64)
        numbers[0], numbers[1] = state.axis, state.block_size
        return fault_status(state, RANK if has_many else FIRST_FAULT + fault, shapes, numbers)

    status, y = ask(api[GET_OUTPUT], (context_address, 0, shapes[0], shapes[1]))
    size = _size(x_shape)
    if status or size == 0:
        return status
    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.size = size
    work.length, work.block, work.inner, work.rows, work.vary = loop.length, loop.block, loop.inner, loop.rows, loop.vary
    work.x = ask(api[GET_DATA], (x,))[1]
    work.y = ask(api[GET_DATA], (y,))[1]
    given = _size(scale_shape)
    scales = loop.rows * loop.inner if loop.vary else loop.rows
    scale_data = ask(api[GET_DATA], (scale,))[1]
    zero_points, zero_point_data = 1, 0
    if zero_point:
        zero_point_data = ask(api[GET_DATA], (zero_point,))[1]
        if given > 1 and _is_zero(zero_point_data, (given * state.zero_point_bits + 7) // 8):
            zero_point_data = 0
        else:
            zero_points = scales
    one_scale, one_zero_point = stack(1), stack(1)
    work.scales, work.zero_points = scales, zero_points
    work.scale = _parameters(state.widen_scale, state.scale_itemsize, scale_data, given, scales, one_scale)
    work.zero_point = _parameters(
        state.widen_zero_point, state.zero_point_itemsize, zero_point_data, given, zero_points, one_zero_point
    )
    if work.scale == 0 or work.zero_point == 0:
        status = no_memory(api, state.messages)
    else:
        chunks = (size + CHUNK - 1) // CHUNK
        status = run_tasks(api, context_address, state.task, work_address, chunks, size <= SERIAL_SIZE)
    if work.scale != scale_data and work.scale != one_scale:
        release(work.scale)
    if work.zero_point != zero_point_data and work.zero_point != one_zero_point:
        release(work.zero_point)
    return status
