"""The nodes of QuantizeLinear, DequantizeLinear and QuantizeDequantizeLinear, by all their names, in a run: their states, the
checks of attributes and shapes, and the conversion of scales and zero points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...element_types import FLOAT8E8M0, FLOAT64, INT32
from ...linear import exponents, granularity
from ...linear import key as keys
from ...linear.kernels import CHUNK, CHUNKS, WORK, widen_function
from . import context

STATE = context.state_dtype(
    "axis",
    "block_size",
    # The kernel may take scales and zero points in a wider type than the tensor's: then `widen` is the C function that converts
    # them, else 0. The itemsize is that of the kernel's type.
    "widen_scale",
    "scale_itemsize",
    "widen_zero_point",
    "zero_point_itemsize",
    "zero_point_bits",  # of a zero point in the tensor
)
MESSAGE_NUMBERS = FREE_ATTRIBUTES = ("axis", "block_size")

_PARTS = granularity.per_tensor, granularity.per_axis, granularity.blocked, granularity.blocked_fault
_loop_shape = jit.inline(
    granularity.loop_shape, size_of=context.size_of, **{part.__name__: jit.inline(part) for part in _PARTS}
)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the kernel's key, and how scales and zero points lie in tensors. Raise ValueError if an attribute is invalid."""
    x, scale, *zero_points = overload.inputs
    (y,) = overload.outputs
    quantized = {"quantize": y, "dequantize": x}.get(operator.operation) or zero_points[0]
    block_size, output_dtype = attributes.get("block_size", 0), attributes.get("output_dtype", 0)
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}; expected a positive integer, or 0")
    if output_dtype not in (0, y.number):
        raise ValueError(f"output_dtype is {output_dtype}; expected {y.number}, as y is {y.name}")
    precisions = {0: None} | {each.number: each for each in keys.PRECISIONS if scale is not INT32 or each is FLOAT64}
    precision = attributes.get("precision", 0)
    if precision not in precisions:
        expected = " or ".join(f"{number} ({each.name})" if each else "0" for number, each in precisions.items())
        raise ValueError(f"precision is {precision}; expected {expected} for a scale of {scale.name}")
    saturate = attributes.get("saturate", 1) != 0
    key = keys.select(operator.operation, x, scale, quantized, y, saturate=saturate, precision=precisions[precision])  # type: ignore[arg-type]
    numbers = {
        "axis": attributes.get("axis", 0),
        "block_size": block_size,
        "scale_itemsize": np.dtype(key.scale_dtype).itemsize,
        "zero_point_itemsize": np.dtype(key.zero_point_dtype).itemsize,
        "zero_point_bits": quantized.bits if quantized.is_packed else 8 * quantized.dtype.itemsize,
    }
    return context.Selection(key, numbers)


def functions(overload: Overload, key: keys.Key) -> dict[str, Any]:
    """Return the C functions of the state, besides the task."""
    scale = overload.inputs[1]
    return {
        "widen_scale": (
            exponents.widen_function(key.scale_dtype) if scale is FLOAT8E8M0 else widen_function(scale, key.scale_dtype)
        ),
        "widen_zero_point": widen_function(key.quantized, key.zero_point_dtype),
    }


@jit.function
def _is_zero(address: int, size: int) -> bool:
    bits = np.uint8(0)
    codes = array_at(address, size, np.uint8)
    for i in range(size):
        bits |= codes[i]
    return bits == 0


@jit.function
def _convert_parameters(widen: int, itemsize: int, source: int, source_count: int, count: int, one: int) -> tuple[int, int]:
    """Return (address, owned): the address of `count` scales or zero points in the type of the kernel, or 0 if memory runs out;
    and the address of memory that the caller has to release, or 0.

    `source` is the address of those in the tensor, and `source_count` their number: fewer than `count` are repeated. If
    `source` is 0, the result is zeros. The result is at `source` if the tensor can be used as it is. Else it is at `one`, the
    address of 8 bytes, if it fits there, or in memory that this function allocates."""
    if source and source_count >= count and widen == 0:
        return source, 0
    size = count * itemsize
    target, owned = one, 0
    if size > 8:
        target = owned = allocate(size)
        if target == 0:
            return 0, 0
    words, written = array_at(target, size // 4, np.int32), 0
    if source:
        read = source_count if source_count < count else count
        written = read * itemsize // 4
        if widen:
            call(widen, (source, target, read))
        else:
            codes = array_at(source, written, np.int32)
            for i in range(written):
                words[i] = codes[i]
    for i in range(written, words.size):
        words[i] = words[i - written] if source else 0
    return target, owned


def set_attributes(state_address: int, values_address: int) -> int:
    """Set what the values of FREE_ATTRIBUTES decide, as `select` does it. Return 1, or 0 if one is invalid."""
    state, values = record_at(state_address, STATE), array_at(values_address, 2, np.int64)
    state.axis, state.block_size = values[0], values[1]
    return 1 if values[1] >= 0 else 0


class Run(NamedTuple):
    """What a run of a node works on. There is nothing to do if the status is an error or the size 0."""

    status: int  # an OrtStatus
    size: int  # the number of elements of x
    values: Any  # the values of the inputs, 0 for an omitted zero point
    shapes: Any  # an array of SHAPE, one for each input
    loop: Any  # a granularity.Loop
    y: int  # its value


@jit.expand
def begin(state: Any, context_address: int) -> Any:
    """Check the inputs of a node, create its output, and return the Run."""
    count = context.count_inputs(state, context_address)
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, count, 3)
    if values[2] == 0:  # without a zero point
        shapes[2].dimensions, shapes[2].rank = shapes[1].dimensions, shapes[1].rank
    x_shape, scale_shape = context.shape_at(shapes, 0), context.shape_at(shapes, 1)
    fault, loop = _loop_shape(x_shape, scale_shape, context.shape_at(shapes, 2), state.axis, state.block_size)
    status, size, y = context.begin_output(
        state, context_address, x_shape, exceeds_max_rank, fault, shapes, state.axis, state.block_size
    )
    return Run(status, size, values, shapes, loop, y)


def compute(state_address: int, context_address: int) -> int:
    """Run the node (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, STATE)
    run = begin(state, context_address)
    status, size, loop = run.status, run.size, run.loop
    x, scale, zero_point = run.values[0], run.values[1], run.values[2]
    if status or size == 0:
        return status
    work_address, work = context.new_record(WORK)
    work.size = size
    work.length, work.block, work.inner, work.rows, work.vary = loop.length, loop.block, loop.inner, loop.rows, loop.vary
    work.x, work.y = context.data_of(state, x), context.data_of(state, run.y)
    source_count = context.size_of(context.shape_at(run.shapes, 1))
    scales = loop.rows * loop.inner if loop.vary else loop.rows
    scale_data = context.data_of(state, scale)
    zero_points, zero_point_data = 1, 0
    if zero_point:
        zero_point_data = context.data_of(state, zero_point)
        if source_count > 1 and _is_zero(zero_point_data, (source_count * state.zero_point_bits + 7) // 8):
            zero_point_data = 0
        else:
            zero_points = scales
    work.scales, work.zero_points = scales, zero_points
    work.scale, owned_scale = _convert_parameters(
        state.widen_scale, state.scale_itemsize, scale_data, source_count, scales, stack(1)
    )
    work.zero_point, owned_zero_point = _convert_parameters(
        state.widen_zero_point, state.zero_point_itemsize, zero_point_data, source_count, zero_points, stack(1)
    )
    if work.scale == 0 or work.zero_point == 0:
        status = context.no_memory(state)
    else:
        work.chunk = CHUNK if state.zero_point_bits < 8 else CHUNK * max(1, size // (CHUNK * CHUNKS))
        chunks = (size + work.chunk - 1) // work.chunk
        status = context.run_tasks(state, context_address, work_address, chunks, size)
    release(owned_scale)
    release(owned_zero_point)
    return status
