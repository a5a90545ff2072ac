"""What ONNX Runtime calls while a node runs: compiled, without Python, without the GIL, without a copy of a tensor."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import carray, types

from .. import block_kernels, jit
from ..block_formats import BLOCK_RANK, NO_BLOCK_FAULT, Blocks, block_shape
from ..granularity import MAX_RANK, NO_FAULT, RANK, loop_shape
from ..intrinsics import call, pointer, stack
from ..kernels import (
    CHUNK,
    WORK_BLOCK,
    WORK_INNER,
    WORK_LENGTH,
    WORK_ROWS,
    WORK_SCALE,
    WORK_SCALES,
    WORK_SIZE,
    WORK_VARY,
    WORK_WORDS,
    WORK_X,
    WORK_Y,
    WORK_ZERO_POINT,
    WORK_ZERO_POINTS,
)
from .c_api import API_WORDS, ORT_INVALID_ARGUMENT, OrtApi

# Up to this many elements one thread is done before a second has woken up, unless it has been waiting for work, as it has
# amid a model: a compromise.
SERIAL_SIZE = 1 << 16

# The same for block formats, whose elements take longer.
BLOCK_SERIAL_SIZE = 1 << 14

# A node's state, as int64 words: addresses, which thus stay out of compiled (and cached) code, and attributes.
(
    STATE_API,
    STATE_HAS_SHAPE_REFERENCE,  # whether ONNX Runtime shows shapes where they lie
    STATE_AXIS,
    STATE_BLOCK_SIZE,
    STATE_TASK,
    STATE_SCALE,  # address of a widening
    STATE_ZERO_POINT,  # another
    STATE_MESSAGES,
    STATE_WORDS,
) = range(9)

# Behind them, of a block format: Blocks, whose shape only the run knows.
BLOCK_STATE_WORDS = STATE_WORDS + len(Blocks._fields)

# How the elements of a scale or zero point become what kernels take, float32 or, of ITEMSIZE 8, float64, as int64 words:
# types of up to 16 bits are looked up in a table of the float32 values of all codes, 32-bit types become float64.
WIDENING_KIND, WIDENING_ITEMSIZE, WIDENING_BITS, WIDENING_TABLE, WIDENING_WORDS = range(5)
AS_IT_IS, BY_TABLE, FROM_INT32, FROM_UINT32, FROM_FLOAT32 = range(5)

# In a message these bytes stand for what only the run knows.
MARK_X_SHAPE, MARK_SCALE_SHAPE, MARK_ZERO_POINT_SHAPE, MARK_AXIS, MARK_BLOCK_SIZE = range(1, 6)

_CREATE_STATUS = int(OrtApi.CreateStatus)
_GET_DATA = int(OrtApi.GetTensorMutableData)
_GET_RANK = int(OrtApi.GetDimensionsCount)
_GET_DIMENSIONS = int(OrtApi.GetDimensions)
_GET_SHAPE = int(OrtApi.GetTensorTypeAndShape)
_GET_SHAPE_REFERENCE = int(OrtApi.GetTensorElementTypeAndShapeDataReference)
_GET_INPUT_COUNT = int(OrtApi.KernelContext_GetInputCount)
_GET_INPUT = int(OrtApi.KernelContext_GetInput)
_GET_OUTPUT = int(OrtApi.KernelContext_GetOutput)
_RELEASE_SHAPE = int(OrtApi.ReleaseTensorTypeAndShapeInfo)
_PARALLEL_FOR = int(OrtApi.KernelContext_ParallelFor)

_loop_shape = jit.function(loop_shape)
_block_shape = jit.function(block_shape)


@jit.function
def _keep(array: Any) -> None:
    """Numba frees an array after its last use, and a use of its address is none."""


@jit.function
def _shape(api: Any, has_reference: int, value: int, slot: Any, dimensions: Any) -> tuple[int, Any]:
    """A tensor's rank, and its shape: where it lies, or in `dimensions`, as far as there is room. None of these calls fails
    on a tensor."""
    if has_reference:
        first = slot.ctypes.data
        call(api[_GET_SHAPE_REFERENCE], (value, first + 16, first, first + 8))  # element type, address, rank
        return slot[1], carray(pointer(slot[0]), min(slot[1], dimensions.size), np.int64)
    call(api[_GET_SHAPE], (value, slot.ctypes.data))
    info = slot[0]
    call(api[_GET_RANK], (info, slot.ctypes.data))
    rank = slot[0]
    shape = dimensions[: min(rank, dimensions.size)]
    call(api[_GET_DIMENSIONS], (info, dimensions.ctypes.data, shape.size))
    call(api[_RELEASE_SHAPE], (info,))
    return rank, shape


@jit.function
def _write_integer(text: Any, at: int, value: int) -> int:
    if value < 0:
        text[at] = ord("-")
        at += 1
    ten = np.uint64(10)
    magnitude = np.uint64(abs(value))  # abs of the lowest int64 is itself, and as uint64 the right number
    digits = 1
    rest = magnitude // ten
    while rest:
        digits += 1
        rest //= ten
    for i in range(digits):
        text[at + digits - 1 - i] = ord("0") + magnitude % ten
        magnitude //= ten
    return at + digits


@jit.function
def _write_shape(text: Any, at: int, shape: Any) -> int:
    """As Python writes a tuple."""
    text[at] = ord("(")
    at += 1
    for i in range(shape.size):
        if i:
            text[at] = ord(",")
            text[at + 1] = ord(" ")
            at += 2
        at = _write_integer(text, at, shape[i])
    if shape.size == 1:
        text[at] = ord(",")
        at += 1
    text[at] = ord(")")
    return at + 1


@jit.function
def _fault_status(api: Any, state: Any, fault: int, x_shape: Any, scale_shape: Any, zero_point_shape: Any) -> int:
    messages = carray(pointer(state[STATE_MESSAGES]), 2 * (fault + 1), np.int64)
    template = carray(pointer(messages[2 * fault]), messages[2 * fault + 1], np.uint8)
    # 22 bytes for an integer and what separates it from the next; a shape or a number may stand twice.
    text = np.empty(template.size + 44 * (x_shape.size + scale_shape.size + zero_point_shape.size + 8), np.uint8)
    at = 0
    for i in range(template.size):
        mark = template[i]
        if mark == MARK_X_SHAPE:
            at = _write_shape(text, at, x_shape)
        elif mark == MARK_SCALE_SHAPE:
            at = _write_shape(text, at, scale_shape)
        elif mark == MARK_ZERO_POINT_SHAPE:
            at = _write_shape(text, at, zero_point_shape)
        elif mark == MARK_AXIS:
            at = _write_integer(text, at, state[STATE_AXIS])
        elif mark == MARK_BLOCK_SIZE:
            at = _write_integer(text, at, state[STATE_BLOCK_SIZE])
        else:
            text[at] = mark
            at += 1
    text[at] = 0
    status = call(api[_CREATE_STATUS], (ORT_INVALID_ARGUMENT, text.ctypes.data))
    _keep(text)
    return status


@jit.function
def _widen(widening: Any, source: int, count: int, target: int) -> None:
    floats = carray(pointer(target), count, np.float32)
    doubles = carray(pointer(target), count, np.float64)
    kind, bits = widening[WIDENING_KIND], widening[WIDENING_BITS]
    if kind == BY_TABLE:
        table = carray(pointer(widening[WIDENING_TABLE]), 1 << bits, np.float32)
        per_word = max(1, 8 // bits)
        packed = carray(pointer(source), (count + per_word - 1) // per_word, np.uint8)
        words = carray(pointer(source), count, np.uint16)
        for i in range(count):
            code = np.int64(words[i]) if bits == 16 else packed[i // per_word] >> (i % per_word * bits) & ((1 << bits) - 1)
            if widening[WIDENING_ITEMSIZE] == 8:
                doubles[i] = table[code]
            else:
                floats[i] = table[code]
    elif kind != FROM_INT32 and kind != FROM_UINT32:
        values = carray(pointer(source), count, np.float32)
        for i in range(count):
            if widening[WIDENING_ITEMSIZE] == 8:
                doubles[i] = values[i]
            else:
                floats[i] = values[i]
    else:
        integers = carray(pointer(source), count, np.int32)
        mask = 0xFFFFFFFF if kind == FROM_UINT32 else -1
        for i in range(count):
            doubles[i] = integers[i] & mask


@jit.function
def _is_zero(source: int, size: int) -> bool:
    """Whether no bit of so many bytes is set."""
    bits = np.uint8(0)
    for byte in carray(pointer(source), size, np.uint8):
        bits |= byte
    return bits == 0


@jit.function
def _parameter(widening: Any, source: int, given: int, count: int, word: Any) -> Any:
    """Room for `count` widened elements of a scale or zero point, filled with those that are given, again and again: `word`
    if that is enough. None is needed, and the room empty, where they serve as they are; where there are none (source 0),
    zeros stand for them."""
    itemsize = widening[WIDENING_ITEMSIZE]
    if source and given >= count and widening[WIDENING_KIND] == AS_IT_IS:
        return word[:0]
    size = count * itemsize
    room = word[:size] if size <= word.size else np.empty(size, np.uint8)
    if source:
        _widen(widening, source, min(given, count), room.ctypes.data)
        for i in range(given * itemsize, size):
            room[i] = room[i - given * itemsize]
    else:
        room[:] = 0
    return room


@jit.function
def _output(api: Any, context: int, shape: Any, slot: Any) -> tuple[int, int, int]:
    """An OrtStatus, the output of this shape, and how many elements it has."""
    status = call(api[_GET_OUTPUT], (context, 0, shape.ctypes.data, shape.size, slot.ctypes.data))
    size = 1
    for dimension in shape:
        size *= dimension
    return status, slot[0], size


def compute(state_pointer: Any, context: int) -> int:
    """OrtCustomOp::KernelComputeV2 of every operator: an OrtStatus, null if all went well."""
    state = carray(state_pointer, STATE_WORDS)
    api = carray(pointer(state[STATE_API]), API_WORDS, np.int64)
    slot = carray(stack(3), 3, np.int64)

    call(api[_GET_INPUT_COUNT], (context, slot.ctypes.data))
    input_count = slot[0]
    call(api[_GET_INPUT], (context, 0, slot.ctypes.data))
    x = slot[0]
    call(api[_GET_INPUT], (context, 1, slot.ctypes.data))
    scale = slot[0]
    zero_point = 0
    if input_count > 2:
        call(api[_GET_INPUT], (context, 2, slot.ctypes.data))
        zero_point = slot[0]

    reference = state[STATE_HAS_SHAPE_REFERENCE]
    rank, x_shape = _shape(api, reference, x, slot, carray(stack(MAX_RANK), MAX_RANK, np.int64))
    scale_rank, scale_shape = _shape(api, reference, scale, slot, carray(stack(MAX_RANK), MAX_RANK, np.int64))
    zero_point_rank, zero_point_shape = scale_rank, scale_shape
    if zero_point:
        room = carray(stack(MAX_RANK), MAX_RANK, np.int64)
        zero_point_rank, zero_point_shape = _shape(api, reference, zero_point, slot, room)

    fault, loop = _loop_shape(x_shape, scale_shape, zero_point_shape, state[STATE_AXIS], state[STATE_BLOCK_SIZE])
    if max(rank, scale_rank, zero_point_rank) > MAX_RANK:
        fault = RANK
    if fault != NO_FAULT:
        return _fault_status(api, state, fault, x_shape, scale_shape, zero_point_shape)

    status, y, size = _output(api, context, x_shape, slot)
    if status or size == 0:
        return status
    work = carray(stack(WORK_WORDS), WORK_WORDS, np.int64)
    work[WORK_SIZE] = size
    work[WORK_LENGTH], work[WORK_BLOCK], work[WORK_INNER], work[WORK_ROWS] = loop.length, loop.block, loop.inner, loop.rows
    work[WORK_VARY] = loop.vary
    width = loop.inner if loop.vary else 1
    work[WORK_SCALES] = loop.rows * width
    call(api[_GET_DATA], (x, slot.ctypes.data))
    work[WORK_X] = slot[0]
    call(api[_GET_DATA], (y, slot.ctypes.data))
    work[WORK_Y] = slot[0]
    call(api[_GET_DATA], (scale, slot.ctypes.data))
    work[WORK_SCALE] = slot[0]
    given = 1
    for dimension in scale_shape:
        given *= dimension
    widening = carray(pointer(state[STATE_SCALE]), WIDENING_WORDS, np.int64)
    scales = _parameter(widening, work[WORK_SCALE], given, work[WORK_SCALES], carray(stack(1), 8, np.uint8))
    if scales.size:
        work[WORK_SCALE] = scales.ctypes.data
    widening = carray(pointer(state[STATE_ZERO_POINT]), WIDENING_WORDS, np.int64)
    work[WORK_ZERO_POINT], work[WORK_ZERO_POINTS] = 0, 1
    if zero_point:
        call(api[_GET_DATA], (zero_point, slot.ctypes.data))
        if given == 1 or not _is_zero(slot[0], (given * widening[WIDENING_BITS] + 7) // 8):
            work[WORK_ZERO_POINT], work[WORK_ZERO_POINTS] = slot[0], work[WORK_SCALES]
    word = carray(stack(1), 8, np.uint8)
    zero_points = _parameter(widening, work[WORK_ZERO_POINT], given, work[WORK_ZERO_POINTS], word)
    if zero_points.size:
        work[WORK_ZERO_POINT] = zero_points.ctypes.data

    chunks = (size + CHUNK - 1) // CHUNK
    status = 0
    if size <= SERIAL_SIZE:
        for i in range(chunks):
            call(state[STATE_TASK], (work.ctypes.data, i))
    else:
        status = call(api[_PARALLEL_FOR], (context, state[STATE_TASK], chunks, 0, work.ctypes.data))
    _keep(scales)
    _keep(zero_points)
    return status


def compute_blocks(state_pointer: Any, context: int) -> int:
    """OrtCustomOp::KernelComputeV2 of the operators of block formats."""
    state = carray(state_pointer, BLOCK_STATE_WORDS)
    api = carray(pointer(state[STATE_API]), API_WORDS, np.int64)
    slot = carray(stack(3), 3, np.int64)

    call(api[_GET_INPUT], (context, 0, slot.ctypes.data))
    x = slot[0]
    room = carray(stack(MAX_RANK), MAX_RANK, np.int64)
    rank, x_shape = _shape(api, state[STATE_HAS_SHAPE_REFERENCE], x, slot, room)
    fault, length, inner = _block_shape(x_shape, state[STATE_AXIS], state[STATE_BLOCK_SIZE])
    if rank > MAX_RANK:
        fault = BLOCK_RANK
    if fault != NO_BLOCK_FAULT:
        return _fault_status(api, state, fault, x_shape, x_shape, x_shape)

    status, y, size = _output(api, context, x_shape, slot)
    if status or size == 0:
        return status

    work = carray(stack(block_kernels.WORK_WORDS), block_kernels.WORK_WORDS, np.int64)
    call(api[_GET_DATA], (x, slot.ctypes.data))
    work[block_kernels.WORK_X] = slot[0]
    call(api[_GET_DATA], (y, slot.ctypes.data))
    work[block_kernels.WORK_Y] = slot[0]
    work[block_kernels.WORK_SIZE] = size
    for i in range(BLOCK_STATE_WORDS - STATE_WORDS):
        work[block_kernels.WORK_BLOCKS + i] = state[STATE_WORDS + i]
    work[block_kernels.WORK_LENGTH] = length
    work[block_kernels.WORK_INNER] = inner
    if size <= BLOCK_SERIAL_SIZE:
        work[block_kernels.WORK_PARTS] = 1
        call(state[STATE_TASK], (work.ctypes.data, 0))
        return 0
    parts = (size + block_kernels.CHUNK - 1) // block_kernels.CHUNK
    work[block_kernels.WORK_PARTS] = parts
    return call(api[_PARALLEL_FOR], (context, state[STATE_TASK], parts, 0, work.ctypes.data))


def destroy(state_pointer: Any) -> None:
    """OrtCustomOp::KernelDestroy: states are shared and stay. Compiled, as it may run after the interpreter."""


@functools.cache
def compute_function() -> Any:
    return jit.c_function(compute, "compute", types.int64(types.CPointer(types.int64), types.int64))


@functools.cache
def compute_blocks_function() -> Any:
    return jit.c_function(compute_blocks, "compute_blocks", types.int64(types.CPointer(types.int64), types.int64))


@functools.cache
def destroy_function() -> Any:
    return jit.c_function(destroy, "destroy", types.void(types.CPointer(types.int64)))
