"""What the nodes of all wings do: ask ONNX Runtime for inputs, shapes and outputs, split work, and report faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, ask, call, release, stack
from ...declaration import Operator
from ..c_api import API_WORDS, ORT_FAIL, ORT_INVALID_ARGUMENT, OrtApi, keep

# What every node's state begins with. Addresses stay out of compiled code, which is kept on disk, and are here.
STATE = [
    ("api", np.int64),  # ONNX Runtime's table of functions
    ("has_shape_reference", np.int64),  # whether that shows shapes where they lie
    ("messages", np.int64),  # for each fault the address and the length of its message
    ("task", np.int64),  # the C function that does one part of the work
]

# The most dimensions that a tensor may have: what numpy has.
MAX_RANK = 64

# The numbers of messages: these two are of all wings, and behind them come those of the wing's faults, which begin with 1.
NO_MEMORY, RANK, FIRST_FAULT = 0, 1, 1

# Where ONNX Runtime's table has the functions that `call` and `ask` take.
CREATE_STATUS = int(OrtApi.CreateStatus)
GET_DATA = int(OrtApi.GetTensorMutableData)
GET_INPUT_COUNT = int(OrtApi.KernelContext_GetInputCount)
GET_INPUT = int(OrtApi.KernelContext_GetInput)
GET_OUTPUT = int(OrtApi.KernelContext_GetOutput)
PARALLEL_FOR = int(OrtApi.KernelContext_ParallelFor)
_GET_RANK = int(OrtApi.GetDimensionsCount)
_GET_DIMENSIONS = int(OrtApi.GetDimensions)
_GET_SHAPE = int(OrtApi.GetTensorTypeAndShape)
_GET_SHAPE_REFERENCE = int(OrtApi.GetTensorElementTypeAndShapeDataReference)
_RELEASE_SHAPE = int(OrtApi.ReleaseTensorTypeAndShapeInfo)

# In a message, bytes below this one stand for the shape of the input of that number, counted from 1; this one and those above
# it, up to FIRST_TEXT, for a number.
FIRST_NUMBER, FIRST_TEXT = 9, 32


@jit.function
def shape_of(state: Any, value: int, shape: Any, room: int) -> None:
    """Fill the two words of `shape`: where the dimensions of a tensor lie, and how many they are. They lie where ONNX
    Runtime has them, or in `room`, as far as it goes, which is MAX_RANK words. None of these calls fails on a tensor."""
    api = array_at(state.api, API_WORDS, np.int64)
    address = shape.ctypes.data
    if state.has_shape_reference:
        call(api[_GET_SHAPE_REFERENCE], (value, stack(1), address, address + 8))  # element type, dimensions, rank
    else:
        info = ask(api[_GET_SHAPE], (value,))[1]
        rank = ask(api[_GET_RANK], (info,))[1]
        call(api[_GET_DIMENSIONS], (info, room, rank if rank < MAX_RANK else MAX_RANK))
        call(api[_RELEASE_SHAPE], (info,))
        shape[0], shape[1] = room, rank


@jit.inline
def run_tasks(api: Any, context: int, task: int, work: int, count: int, is_serial: bool) -> int:
    """Do so many parts of the work, on this thread or on the session's: an OrtStatus."""
    if is_serial:
        for i in range(count):
            call(task, (work, i))
        return 0
    return call(api[PARALLEL_FOR], (context, task, count, 0, work))


@jit.function
def _write(text: Any, at: int, numbers: Any, is_shape: int) -> int:
    """Write a shape as Python writes a tuple, or a single number, to end before index `at`. Returns the index at which it
    begins: digits come out from the last to the first."""
    ten = np.uint64(10)
    if is_shape:
        at -= 1
        text[at] = 41  # )
        if numbers.size == 1:
            at -= 1
            text[at] = 44  # ,
    for i in range(numbers.size):
        number = numbers[numbers.size - 1 - i]
        if i:
            at -= 2
            text[at], text[at + 1] = 44, 32
        magnitude = np.uint64(-number if number < 0 else number)  # of the lowest int64, too
        digits = 0
        while digits == 0 or magnitude:
            at -= 1
            text[at] = np.uint64(48) + magnitude % ten
            magnitude //= ten
            digits += 1
        if number < 0:
            at -= 1
            text[at] = 45  # -
    if is_shape:
        at -= 1
        text[at] = 40  # (
    return at


@jit.inline
def no_memory(api: Any, messages: int) -> int:
    """An OrtStatus that says so. Its message ends in a zero byte."""
    return call(api[CREATE_STATUS], (ORT_FAIL, array_at(messages + 16 * NO_MEMORY, 2, np.int64)[0]))


@jit.function
def fault_status(state: Any, number: int, shapes: Any, numbers: Any) -> int:
    """An OrtStatus with a message. `shapes` has the two words of `shape_of` for each input, `numbers` what else the message may
    name; the message that there is no memory, if there is none for it."""
    api = array_at(state.api, API_WORDS, np.int64)
    message = array_at(state.messages + 16 * number, 2, np.int64)
    template = array_at(message[0], message[1], np.uint8)
    size = template.size + 1 + 20 * numbers.size
    for i in range(1, shapes.size, 2):
        size += 22 * shapes[i] + 3  # digits, sign, comma and space; parentheses
    address = allocate(size)
    if address == 0:
        return no_memory(api, state.messages)
    text = array_at(address, size, np.uint8)
    at = size - 1
    text[at] = 0
    for i in range(template.size):
        mark = np.int64(template[template.size - 1 - i])
        if mark >= FIRST_TEXT:
            at -= 1
            text[at] = mark
        else:
            is_shape = mark < FIRST_NUMBER
            where = shapes[2 * mark - 2] if is_shape else numbers.ctypes.data + 8 * (mark - FIRST_NUMBER)
            at = _write(text, at, array_at(where, shapes[2 * mark - 1] if is_shape else 1, np.int64), is_shape)
    status = call(api[CREATE_STATUS], (ORT_INVALID_ARGUMENT, address + at))
    release(address)
    return status


def messages_of(operator: Operator, numbers: Sequence[str]) -> NDArray[np.int64]:
    """The addresses and lengths of an operator's messages, by their numbers. `numbers` are the names that stand for
    numbers, in the order in which `fault_status` gets these."""
    marks: dict[str, str] = {}
    for i, parameter in enumerate(operator.inputs):
        marks[f"{parameter.name}_shape"] = chr(1 + i)
    for i, name in enumerate(numbers):
        marks[name] = chr(FIRST_NUMBER + i)
    texts = {NO_MEMORY: "there is no memory\0", RANK: f"a tensor has more than {MAX_RANK} dimensions"}
    texts |= {FIRST_FAULT + number: text.format(**marks) for number, text in operator.faults.items()}
    messages = keep(np.zeros((max(texts) + 1, 2), np.int64))
    for number, text in texts.items():
        if any(text.count(mark) > 1 for mark in marks.values()):
            raise ValueError(f"a message of {operator.full_name} names a thing twice, for which `fault_status` has no room")
        content = keep(np.frombuffer(f"{operator.full_name}: {text}".encode(), np.uint8))
        messages[number] = content.ctypes.data, content.size
    return messages
