"""Functions for the nodes of all operators, which get inputs, shapes and outputs, split work from some cost on, limit the rank
of tensors, and report faults.

The compiled functions take the node's state, a record that begins with STATE. Their `context` is the OrtKernelContext of a run,
and a `value` is an OrtValue; both are addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import address_of, allocate, array_at, ask, call, record_at, release, stack
from ...compiling.lifetimes import keep_alive
from ...compiling.records import new_record as new_record  # for the nodes
from ...compiling.records import words
from ...declaration import Operator
from ..c_api import API, ORT_FAIL, ORT_INVALID_ARGUMENT

# The first fields of every node's state. Compiled code is cached on disk and must not contain addresses, so the state has them.
# `cached_nodes` knows the places of the first three.
STATE = [
    ("api", np.int64),  # ONNX Runtime's table of functions
    ("has_shape_reference", np.int64),  # whether that table has a function that shows shapes without a copy
    ("messages", np.int64),  # for each fault the address and the length of its message, see `messages_of`
    ("task", np.int64),  # the C function that does one part of the work
]

# A view of a tensor's shape, where ONNX Runtime has it: the address of the dimensions, and the rank.
SHAPE = words("dimensions", "rank")

# The largest rank of a tensor: numpy's limit.
MAX_RANK = 64

# Work up to this cost is done by one thread, which finishes before a second thread would have woken up. The limit is a
# compromise: in a model the second thread is often awake already, and a lower limit would be better. The unit is the conversion
# of an element by the family `linear`.
_SMALL = 1 << 16

# The numbers of the faults that every operator may have. The faults that an operator declares are numbered from 1. Messages
# are in the order of the numbers. NOT_STARTED: the GPU driver cannot start the kernel; the message has the driver's error as
# the first of MESSAGE_NUMBERS.
_NO_MEMORY, EXCEEDS_MAX_RANK, NOT_STARTED = -2, -1, 0

# The bytes of a message: _FIRST_SHAPE + i stands for the shape of input i, and _FIRST_NUMBER + i for number i of
# MESSAGE_NUMBERS. The bytes from _FIRST_TEXT on are text. `messages_of` writes them, and `_status_with_message` reads them.
_FIRST_SHAPE, _FIRST_NUMBER, _FIRST_TEXT, _MAX_NUMBERS = 1, 9, 32, 3


class Selection(NamedTuple):
    """The kernel and the numbers that a node's types and attributes select."""

    key: Any  # of the dispatch table of the family, or None if the node has no kernel
    numbers: Mapping[str, Any]  # by the names of the state's fields; a tuple for a field that is an array


def state_dtype(*fields: Any) -> np.dtype[Any]:
    """Return the dtype of a family's states: STATE, followed by these fields, in numpy's form. A name alone is a field of
    int64."""
    return np.dtype([*STATE, *((field, np.int64) if isinstance(field, str) else field for field in fields)])


def fill(state: Any, numbers: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
    """Set fields of a state to numbers and to the addresses of C functions. The address for None is 0."""
    addresses = {name: _addresses(function) for name, function in functions.items()}
    for name, value in {**numbers, **addresses}.items():
        if isinstance(value, tuple):
            state[name][: len(value)] = value  # the rest stays 0
        else:
            state[name] = value


def _addresses(functions: Any) -> Any:
    if isinstance(functions, tuple):
        return tuple(map(_addresses, functions))
    return keep_alive(functions).address if functions else 0


@jit.function
def copy_state(state_address: int, words: int, size: int) -> int:
    """Return the address of a copy of a state of so many words, with `size` bytes after it, or 0 if memory runs out."""
    address = allocate(8 * words + size)
    if address:
        source, target = array_at(state_address, words, np.int64), array_at(address, words, np.int64)
        for i in range(words):
            target[i] = source[i]
    return address


@jit.inline
def count_inputs(state: Any, context: int) -> int:
    """Return the number of the node's inputs. An omitted input counts if a given input follows it."""
    return ask(record_at(state.api, API).KernelContext_GetInputCount, (context,))[1]


@jit.inline
def stream_of(state: Any, context: int) -> int:
    """Return the CUstream of a node on a GPU."""
    return ask(record_at(state.api, API).KernelContext_GetGPUComputeStream, (context,))[1]


@jit.inline
def output_of(state: Any, context: int, index: int, shape: Any) -> Any:
    """Return (an OrtStatus, the value) of an output, which is created with a shape, an array."""
    return ask(record_at(state.api, API).KernelContext_GetOutput, (context, index, address_of(shape, 0), shape.size))


@jit.inline
def data_of(state: Any, value: int) -> int:
    """Return the address of a tensor's elements."""
    return ask(record_at(state.api, API).GetTensorMutableData, (value,))[1]


@jit.inline
def shape_of(state: Any, value: int, shape_address: int, scratch_address: int) -> bool:
    """Return whether the rank of a tensor is above MAX_RANK. Set the SHAPE at `shape_address` to the tensor's shape, with rank
    0 if the rank is above MAX_RANK.

    The dimensions are in ONNX Runtime's memory, or in the MAX_RANK words at `scratch_address`. These calls to ONNX Runtime
    never fail on a tensor."""
    api = record_at(state.api, API)
    shape = record_at(shape_address, SHAPE)
    if state.has_shape_reference:
        # The element type is written to `scratch_address`.
        call(api.GetTensorElementTypeAndShapeDataReference, (value, scratch_address, shape_address, shape_address + 8))
    else:
        info = ask(api.GetTensorTypeAndShape, (value,))[1]
        rank = ask(api.GetDimensionsCount, (info,))[1]
        call(api.GetDimensions, (info, scratch_address, rank if rank < MAX_RANK else MAX_RANK))
        call(api.ReleaseTensorTypeAndShapeInfo, (info,))
        shape.dimensions, shape.rank = scratch_address, rank
    exceeds_max_rank = shape.rank > MAX_RANK
    if exceeds_max_rank:
        shape.rank = 0
    return exceeds_max_rank


@jit.function
def element_type_of(state: Any, value: int) -> int:
    """Return the ONNXTensorElementDataType of a tensor, for inputs of any type."""
    api = record_at(state.api, API)
    found = array_at(stack(3), 3, np.int64)
    address = found.ctypes.data
    found[0] = 0
    if state.has_shape_reference:
        call(api.GetTensorElementTypeAndShapeDataReference, (value, address, address + 8, address + 16))
    else:
        info = ask(api.GetTensorTypeAndShape, (value,))[1]
        call(api.GetTensorElementType, (info, address))
        call(api.ReleaseTensorTypeAndShapeInfo, (info,))
    kind: Any = np.int64(array_at(address, 1, np.int32)[0])
    return kind


@jit.function
def _read_inputs(state: Any, context: int, count: int, values: Any, shapes: Any, scratch_address: int) -> bool:
    """Return whether one of the first `count` inputs has a rank above MAX_RANK. Set `values` to the value of each input, 0 for
    an omitted input, and `shapes` to the SHAPE of each given input. `scratch_address` is the address of MAX_RANK words for each
    input."""
    exceeds_max_rank: Any = np.bool_(False)  # a plain False has a type of its own: Numba would compile the callees once more
    for k in range(count):
        values[k] = ask(record_at(state.api, API).KernelContext_GetInput, (context, k))[1]
        if values[k]:
            exceeds_max_rank |= shape_of(state, values[k], address_of(shapes, k), scratch_address + 8 * MAX_RANK * k)
    return exceeds_max_rank


@jit.expand
def read_inputs(state: Any, context: int, count: int, most: int) -> Any:
    """Return (whether an input has a rank above MAX_RANK, the values, an array of SHAPE) of the first `count` inputs of at most
    `most`, as `_read_inputs` gets them. The other values are 0, and the other shapes empty: messages also read the shapes of
    inputs that a node lacks."""
    values, shapes = array_at(stack(most), most, np.int64), array_at(stack(2 * most), most, SHAPE)
    for k in range(most):
        values[k] = shapes[k].dimensions = shapes[k].rank = 0
    exceeds_max_rank = _read_inputs(state, context, count, values, shapes, stack(most * MAX_RANK))
    return exceeds_max_rank, values, shapes


@jit.expand
def shape_at(shapes: Any, index: int) -> Any:
    """Return the shape of an input, as an array."""
    return array_at(shapes[index].dimensions, shapes[index].rank, np.int64)


@jit.function
def size_of(shape: Any) -> int:
    """Return the number of elements of a shape."""
    size: Any = np.int64(1)
    for i in range(shape.size):
        size *= shape[i]
    return size


@jit.inline
def is_small(cost: int) -> bool:
    """Return whether one thread does work of this cost (_SMALL)."""
    return cost <= _SMALL


@jit.inline
def run_tasks(state: Any, context: int, work: int, count: int, cost: int) -> int:
    """Return the OrtStatus of the work at an address, which is `count` calls of the task. The calls are made on this thread if
    the cost is small, and on the session's threads otherwise."""
    if is_small(cost):
        for i in range(count):
            call(state.task, (work, i))
        return 0
    return call(record_at(state.api, API).KernelContext_ParallelFor, (context, state.task, count, 0, work))


@jit.inline
def no_memory(state: Any) -> int:
    """Return an OrtStatus that says that memory ran out. Its message ends in a zero byte."""
    api = record_at(state.api, API)
    return call(api.CreateStatus, (ORT_FAIL, array_at(state.messages, 2, np.int64)[0]))  # the first message


@jit.function
def _write(text: Any, at: int, numbers: Any, is_shape: np.bool_) -> int:
    """Return the index of the first character of a shape, written as Python writes a tuple, or of a single number. The text
    ends before index `at`: digits are computed from the last to the first. `is_shape` is a np.bool_: plain True and
    False have types of their own, for each of which Numba would compile this function."""
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
        magnitude = np.uint64(-number if number < 0 else number)  # right for the lowest int64, too
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


@jit.function
def _status_with_message(state: Any, fault: int, shapes: Any, numbers: Any) -> int:
    """Return an OrtStatus with the message of a fault, in which shapes and numbers replace the bytes that stand for them. The
    text is written from its end, as `_write` requires, into memory that is large enough for all shapes and numbers."""
    api = record_at(state.api, API)
    message = array_at(state.messages + 16 * (fault - _NO_MEMORY), 2, np.int64)
    template = array_at(message[0], message[1], np.uint8)
    size = template.size + 1 + 20 * len(numbers)
    for i in range(shapes.size):
        size += 22 * shapes[i].rank + 3  # digits, sign, comma and space; parentheses
    address = allocate(size)
    if address == 0:
        return no_memory(state)
    text = array_at(address, size, np.uint8)
    begin = size - 1
    text[begin] = 0
    number = array_at(stack(1), 1, np.int64)
    for i in range(template.size):
        byte = np.int64(template[template.size - 1 - i])
        if byte >= _FIRST_TEXT:
            begin -= 1
            text[begin] = byte
        elif byte >= _FIRST_NUMBER:
            number[0] = numbers[byte - _FIRST_NUMBER]
            begin = _write(text, begin, number, np.bool_(False))
        else:
            begin = _write(text, begin, shape_at(shapes, byte - _FIRST_SHAPE), np.bool_(True))
    status = call(api.CreateStatus, (ORT_INVALID_ARGUMENT, address + begin))
    release(address)
    return status


@jit.expand
def fault_status(state: Any, fault: int, shapes: Any, a: int = 0, b: int = 0, c: int = 0) -> int:
    """Return an OrtStatus for a fault, by its number.

    The message may mention `shapes`, an array of SHAPE, one for each input, and `a` to `c`, the values of the family's
    MESSAGE_NUMBERS. If memory for the message cannot be allocated, the status says that memory ran out."""
    numbers = array_at(stack(_MAX_NUMBERS), _MAX_NUMBERS, np.int64)  # to index a tuple might raise
    numbers[0], numbers[1], numbers[2] = a, b, c
    return _status_with_message(state, fault, shapes, numbers)


@jit.expand
def begin_output(
    state: Any, context: int, shape: Any, exceeds_max_rank: bool, fault: int, shapes: Any, a: int = 0, b: int = 0, c: int = 0
) -> Any:
    """Return (an OrtStatus, the number of elements, the value) of the first output. The status is an error if there is a fault
    (`fault_status`) or an input has a rank above MAX_RANK. Otherwise the output is created with a shape. The node is done if
    the status is an error or the number is 0."""
    y: Any = np.int64(0)
    if exceeds_max_rank or fault:
        status = fault_status(state, EXCEEDS_MAX_RANK if exceeds_max_rank else fault, shapes, a, b, c)
    else:
        status, y = output_of(state, context, 0, shape)
    return status, size_of(shape), y


def messages_of(operator: Operator, numbers: Sequence[str]) -> tuple[bytes, ...]:
    """Return an operator's messages, in their order. `numbers` are the family's MESSAGE_NUMBERS."""
    marks: dict[str, str] = {}
    for i, parameter in enumerate(operator.inputs):
        marks[f"{parameter.name}_shape"] = chr(_FIRST_SHAPE + i)
    for i, name in enumerate(numbers):
        marks[name] = chr(_FIRST_NUMBER + i)
    texts = {_NO_MEMORY: "out of memory\0", EXCEEDS_MAX_RANK: f"a tensor has more than {MAX_RANK} dimensions"}
    texts[NOT_STARTED] = f"the CUDA driver could not start the kernel (error {chr(_FIRST_NUMBER)})"
    texts |= {fault: text.format(**marks) for fault, text in operator.faults.items()}
    if any(text.count(mark) > 1 for text in texts.values() for mark in marks.values()):
        raise ValueError(f"a message of {operator.full_name} mentions a value twice; `fault_status` allocates memory for one")
    whole = {fault: f"{operator.full_name}: {text}".encode() for fault, text in texts.items()}
    return tuple(whole.get(fault, b"") for fault in range(_NO_MEMORY, max(whole) + 1))
