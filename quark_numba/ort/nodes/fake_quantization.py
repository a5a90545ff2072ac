"""The nodes of fake quantization in a run: their states, where parameters come from, the checks of their types and shapes, and
the cost of an element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import address_of, allocate, array_at, call, record_at, release, stack
from ...declaration import FakeQuantize, Operator, Overload
from ...element_types import FLOAT32, FLOAT64, INT32
from ...element_types.operands import INT64
from ...fake_quantization import granularity
from ...fake_quantization.kernels import CHUNK, WORK, prepare_function
from ...fake_quantization.key import FORMS, Key, count_numbers
from ...fake_quantization.operators import BROADCASTS, FAULTS, NUMBER, ONE_ELEMENT, VALUES, key_of
from ..c_api import type_number
from . import context
from .context import MAX_RANK

# The most parameters of a form, and the most inputs of a node.
MAX_PARAMETERS = max(len(form.parameters) for form in FORMS.values())
MAX_INPUTS = MAX_PARAMETERS + 1

# The axis of operands that broadcast as in numpy.
NO_AXIS = np.iinfo(np.int64).min

STATE = context.state_dtype(
    "prepare",  # the C function that makes the numbers of the format
    "parameters",  # the number of parameters
    "numbers",  # the number of numbers
    "inputs",  # the number of inputs of a node that has all of them
    # For each parameter: the number of the input that has it, or 0; the same if the node lacks its last input; its value if no
    # input has it; whether it has to be of one element.
    ("sources", np.int64, MAX_PARAMETERS),
    ("fewer_sources", np.int64, MAX_PARAMETERS),
    ("values", np.float64, MAX_PARAMETERS),
    ("fewer_values", np.float64, MAX_PARAMETERS),
    ("single", np.int64, MAX_PARAMETERS),
    "axis",
)

# The ONNXTensorElementDataType of numbers.
FLOATS, DOUBLES, INTEGERS, LONG_INTEGERS = map(type_number, (FLOAT32, FLOAT64, INT32, INT64))

COST = 2  # of an element, see `context.is_small`

_first_place = jit.function(granularity.first_place)
_last_place = jit.function(granularity.last_place)
_index_of = jit.function(granularity.index_of)


class _Input(NamedTuple):
    """An operand: an input of a node, by its number."""

    number: int


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the kernel's key, and where each parameter comes from. Raise ValueError if an attribute is invalid."""
    most = operator.most_inputs or 1 + len(FORMS[attributes["form"]].parameters)  # variadic: the family's own operator
    fewest = operator.fewest_inputs if operator.most_inputs else most
    meaning, fewer = (_meaning(operator, count, attributes) for count in (most, fewest))
    key = key_of(meaning)
    form = FORMS[key.form]
    numbers: dict[str, Any] = {
        "parameters": len(form.parameters),
        "numbers": count_numbers(key),
        "inputs": most,
        "single": tuple(name in form.single or meaning.axis is None for name in form.parameters),
        "axis": meaning.axis if isinstance(meaning.axis, int) else NO_AXIS,
    }
    for prefix, meant in (("", meaning), ("fewer_", fewer)):
        parameters = [meant.parameters[name] for name in form.parameters]
        numbers[f"{prefix}sources"] = tuple(each.number if isinstance(each, _Input) else 0 for each in parameters)
        numbers[f"{prefix}values"] = tuple(0.0 if isinstance(each, _Input) else each for each in parameters)
    return context.Selection(key, numbers)


def _meaning(operator: Operator, count: int, attributes: Mapping[str, Any]) -> FakeQuantize[Any]:
    """Return the meaning of a node with `count` inputs."""
    assert operator.meaning
    meaning = operator.meaning([*map(_Input, range(count))], attributes)
    assert isinstance(meaning, FakeQuantize)
    return meaning


def functions(overload: Overload, key: Key) -> dict[str, Any]:
    """Return the C functions of the state, besides the task."""
    return {"prepare": prepare_function(key)}


@jit.inline
def _along(shape: Any, axis: int, rank: int, lengths: Any) -> Any:
    """Return the shape that broadcasts to x for a parameter along an axis of x: followed by dimensions of 1, in `lengths`."""
    if axis == NO_AXIS or shape.size != 1 or shape[0] == 1:
        return shape
    lengths[0] = shape[0]
    for d in range(1, rank - axis):
        lengths[d] = 1
    return array_at(lengths.ctypes.data, rank - axis, np.int64)


@jit.function
def _fault_of(shape: Any, is_single: int, kind: int, axis: int, rank: int, number: int) -> int:
    """Return the fault of input `number`, a parameter with this shape and element type, or 0 if it is valid."""
    if kind != FLOATS and kind != DOUBLES and kind != INTEGERS and kind != LONG_INTEGERS:
        return FAULTS * number + NUMBER
    if is_single or (axis != NO_AXIS and shape.size != 1):
        for d in range(shape.size):
            if shape[d] != 1:
                return FAULTS * number + ONE_ELEMENT
    if axis != NO_AXIS and (axis < 0 or axis >= rank) and shape.size == 1 and shape[0] != 1:
        return FAULTS * number + BROADCASTS
    return 0


@jit.inline
def _number_at(data: int, kind: int, index: int) -> float:
    """Return an element of a tensor of numbers, rounded to float32 if it is a float64."""
    if kind == FLOATS:
        return np.float64(array_at(data, index + 1, np.float32)[index])
    if kind == DOUBLES:
        return np.float64(np.float32(array_at(data, index + 1, np.float64)[index]))
    if kind == INTEGERS:
        return np.float64(array_at(data, index + 1, np.int32)[index])
    return np.float64(array_at(data, index + 1, np.int64)[index])


@jit.expand
def _place(state: Any, count: int, values: Any, shapes: Any, sources: Any, kinds: Any, axis: int, lengths: Any) -> Any:
    """Return (the fault, the first and the last axis of x along which a parameter has several elements). Set `kinds` to the
    element types of parameters."""
    x_shape = context.shape_at(shapes, 0)
    rank = x_shape.size
    fault: Any = np.int64(0)
    first, last = rank, np.int64(-1)
    for k in range(state.parameters):
        number = sources[k]
        if number == 0 or number >= count or fault != 0:
            continue
        shape = context.shape_at(shapes, number)
        kinds[k] = context.element_type_of(state, values[number])
        fault = _fault_of(shape, state.single[k], kinds[k], axis, rank, number)
        if fault == 0:
            shape = _along(shape, axis, rank, lengths)
            place = _first_place(x_shape, shape)
            fault = FAULTS * number + BROADCASTS if place < 0 else fault
            first, last = min(first, place), max(last, _last_place(x_shape, shape))
    return fault, first, last


def compute(state_address: int, context_address: int) -> int:
    """Run the node (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, STATE)
    count = min(context.count_inputs(state, context_address), state.inputs)
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, count, MAX_INPUTS)
    has_all = count == state.inputs and values[count - 1] != 0
    sources = state.sources if has_all else state.fewer_sources
    numbers = state.values if has_all else state.fewer_values
    kinds = array_at(stack(MAX_PARAMETERS), MAX_PARAMETERS, np.int64)
    x_shape = context.shape_at(shapes, 0)
    rank = x_shape.size
    axis = state.axis + rank if state.axis != NO_AXIS and state.axis < 0 else state.axis
    lengths = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    fault, first, last = _place(state, count, values, shapes, sources, kinds, axis, lengths)
    status, size, y = context.begin_output(state, context_address, x_shape, exceeds_max_rank, fault, shapes)
    if status or size == 0:
        return status

    rows = context.size_of(array_at(address_of(x_shape, first), max(last + 1 - first, 0), np.int64))
    inner = context.size_of(array_at(address_of(x_shape, last + 1), rank - 1 - last, np.int64))
    memory = stack(16)
    if rows > 1:
        memory = allocate(8 * rows * (state.parameters + state.numbers))
        if memory == 0:
            return context.no_memory(state)
    parameters = array_at(memory, rows * state.parameters, np.float64)
    for k in range(state.parameters):
        number = sources[k]
        if number == 0 or number >= count:
            for row in range(rows):
                parameters[k * rows + row] = numbers[k]
        else:
            shape = _along(context.shape_at(shapes, number), axis, rank, lengths)
            data, kind = context.data_of(state, values[number]), kinds[k]
            for row in range(rows):
                parameters[k * rows + row] = _number_at(data, kind, _index_of(row, x_shape, first, last, shape))
    made = memory + 8 * rows * state.parameters
    if call(state.prepare, (memory, made, rows)) == 0:
        status = context.fault_status(state, VALUES, shapes)
    else:
        work_address, work = context.new_record(WORK)
        work.x, work.y = context.data_of(state, values[0]), context.data_of(state, y)
        work.numbers, work.size, work.inner, work.rows = made, size, inner, rows
        chunks = (size + CHUNK - 1) // CHUNK
        status = context.run_tasks(state, context_address, work_address, chunks, COST * size)
    if rows > 1:
        release(memory)
    return status
