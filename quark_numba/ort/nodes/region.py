"""The nodes of regions in a run: their states, the shape of y, the conversion of inputs, memory for them, and the cost of an
element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...block.dispatch import TABLE as BLOCK_TABLE
from ...block.granularity import block_shape
from ...compiling import jit
from ...compiling.intrinsics import address_of, allocate, array_at, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...linear.kernels import widen_function
from ...region import granularity, tiles
from ...region.arithmetic import input_dtypes
from ...region.calls import check_layout
from ...region.dispatch import TABLE
from ...region.granularity import FIRST_OF_Y, NO_FAULT, OPERAND, Operands
from ...region.kernels import CHUNK, WORK, chunk_function
from ...region.key import MAX_INPUTS, MAX_STEPS, Program, parse
from ...region.loops import group_size
from ...region.source import Writer
from . import context
from .context import MAX_RANK

STATE = context.state_dtype(
    "program",  # the C function of the program
    "count",  # the number of inputs
    "streams",  # the number of inputs with more than one element
    # For each input: its role, as in granularity; whether it has one element; the C function that converts it to the
    # program's type, or 0; the bytes of an element in that type, 0 for an input of one element.
    *((name, np.int64, MAX_INPUTS) for name in ("roles", "scalars", "widen", "itemsizes")),
    # About the steps that round to block formats; 0 if the program has none.
    "block",  # elements in a block
    "group_size",  # the rows of a tile are a multiple of it
    "axis",  # the axis that is cut into blocks
    "buffers_size",  # bytes of the program's buffers, if it has such steps
    ("functions", np.int64, MAX_STEPS),  # for each of these steps: the task that converts any blocks
    "lanes",  # channels in a block of the blocked layout; 0 if tensors are in ONNX's layout
    "channels",  # in that layout: the channels of y without padding; 0 if there is no padding
)
MESSAGE_NUMBERS = ("input", "axis", "channels")

# The cost of an element, see `context.is_small`. A step takes less time than a quantization alone.
COST = 4

# The nodes of GPUs use it, too.
merge_dimensions = jit.inline(granularity.merge_dimensions)

_write_y_shape = jit.inline(
    granularity.write_y_shape,
    split_channels=jit.inline(granularity.split_channels),
    broadcast=jit.inline(granularity.broadcast),
)
_set_layout = jit.inline(
    granularity.set_layout,
    block_shape=jit.inline(block_shape),
    describe_as_channels=jit.inline(granularity.describe_as_channels),
)
_join_channels = jit.expand(granularity.join_channels)
_count_tile_chunks = jit.function(tiles.count_chunks)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the program, and the numbers of its inputs, blocks and layout. Raise ValueError if an attribute has an invalid
    value."""
    program = parse(attributes["program"])
    check_layout(program, attributes["lanes"], attributes["channels"])
    inputs, block = program.inputs, program.block_size
    numbers = {
        "count": len(inputs),
        "streams": len(program.streams),
        "roles": program.roles,
        "scalars": tuple(x.is_scalar for x in inputs),
        "itemsizes": tuple(
            0 if x.is_scalar else dtype.itemsize for x, dtype in zip(inputs, input_dtypes(program), strict=True)
        ),
        "block": block,
        "group_size": group_size(program) if block else 0,
        "axis": program.block_axis,
        "buffers_size": Writer(program).buffers_size,
        "lanes": attributes["lanes"],
        "channels": attributes["channels"],
    }
    return context.Selection(program, numbers)


def functions(overload: Overload, key: Program) -> dict[str, Any]:
    """Return the C functions of the state."""
    formats = [key.steps[number].block_format for number in key.block_formats]
    return {
        "task": tiles.chunk_function() if formats else chunk_function(),  # in place of the kernel, which is `program`
        "program": TABLE[key].task,
        "functions": tuple(BLOCK_TABLE[block_key].task for block_key, _ in formats),
        "widen": tuple(
            None if role == OPERAND else widen_function(x.element_type, dtype.type)
            for x, role, dtype in zip(key.inputs, key.roles, input_dtypes(key), strict=True)
        ),
    }


class Inputs(NamedTuple):
    """The inputs of a node, and the shape of y."""

    exceeds_max_rank: Any  # whether an input has a rank above MAX_RANK
    fault: Any  # of the shapes
    faulty_input: Any  # its number
    values: Any
    operands: Any  # granularity.Operands
    y_shape: Any  # an array


@jit.expand
def read_inputs(state: Any, context_address: int) -> Any:
    """Return the Inputs."""
    count = state.count
    exceeds_max_rank, values, input_shapes = context.read_inputs(state, context_address, count, count)
    ranks, shapes = array_at(stack(count), count, np.int64), array_at(stack(MAX_RANK * count), MAX_RANK * count, np.int64)
    for k in range(count):
        dimensions = context.shape_at(input_shapes, k)
        ranks[k] = dimensions.size
        for d in range(dimensions.size):
            shapes[MAX_RANK * (k + 1) - dimensions.size + d] = dimensions[d]
    operands = Operands(shapes, ranks, state.roles, state.scalars, MAX_RANK)
    lengths = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    fault, faulty_input, rank = _write_y_shape(operands, state.lanes, lengths)
    y_shape = array_at(address_of(lengths, MAX_RANK - rank), rank, np.int64)
    return Inputs(exceeds_max_rank, fault, faulty_input, values, operands, y_shape)


@jit.expand
def shape_at_fault(fault: int, inputs: Any) -> Any:
    """Return an array with the SHAPE that a fault concerns: that of y, or of the faulty input."""
    shapes, operands = array_at(stack(2), 1, context.SHAPE), inputs.operands
    shapes[0].dimensions, shapes[0].rank = address_of(inputs.y_shape, 0), inputs.y_shape.size
    if fault < FIRST_OF_Y:
        rank, end = operands.ranks[inputs.faulty_input], MAX_RANK * (inputs.faulty_input + 1)
        shapes[0].dimensions, shapes[0].rank = address_of(operands.shapes, end - rank), rank
    return shapes


@jit.expand
def convert_inputs(state: Any, values: Any, operands: Any, addresses: Any, owned: Any, scalars: int) -> bool:
    """Set the `addresses` of the inputs' elements, in the types of the program. Return whether there was memory for those that
    are converted. A converted input of one element is in a word of its own at the address `scalars`; another one is in
    allocated memory, whose address is written to `owned`. `owned` is 0 for all other inputs."""
    has_memory: Any = np.bool_(True)
    for k in range(state.count):
        data = context.data_of(state, values[k])
        owned[k] = 0
        if state.widen[k]:
            elements, target = np.int64(1), scalars + 8 * k
            if operands.scalars[k] == 0:
                elements = operands.shapes[MAX_RANK * (k + 1) - 1]
                target = owned[k] = allocate(elements * state.itemsizes[k])
            if target:
                call(state.widen[k], (data, target, elements))
            else:
                has_memory = np.bool_(False)
            data = target
        addresses[k] = data
    return has_memory


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: run the node. Return an OrtStatus."""
    state = record_at(state_address, STATE)
    inputs = read_inputs(state, context_address)
    fault, operands, y_shape = inputs.fault, inputs.operands, inputs.y_shape
    count, size = state.count, context.size_of(y_shape)
    work_address, work = context.new_record(WORK)
    if fault == NO_FAULT:
        fault = _set_layout(work, y_shape, size, state.block, state.axis, state.lanes != 0, state.channels)
    shapes, number = shape_at_fault(fault, inputs), inputs.faulty_input
    output_shape = y_shape
    if state.lanes and y_shape.size == 5:
        output_shape = array_at(stack(4), 4, np.int64)
        _join_channels(y_shape, output_shape)
    status, _, y = context.begin_output(
        state, context_address, output_shape, inputs.exceeds_max_rank, fault, shapes, number, state.axis, state.channels
    )
    if status or size == 0:
        return status

    work.program, work.y, work.count, work.streams = state.program, context.data_of(state, y), count, state.streams
    work.inputs, work.itemsizes = stack(count), address_of(state.itemsizes, 0)
    work.lengths, work.masks = stack(MAX_RANK), stack(MAX_RANK)
    lengths, masks = array_at(work.lengths, MAX_RANK, np.int64), array_at(work.masks, MAX_RANK, np.int64)
    work.dimensions = merge_dimensions(operands, 0, y_shape, lengths, masks)
    work.group_size, work.functions, work.buffers_size = state.group_size, address_of(state.functions, 0), state.buffers_size
    work.has_failed = 0
    addresses, owned = array_at(work.inputs, count, np.int64), array_at(stack(count), count, np.int64)
    if convert_inputs(state, inputs.values, operands, addresses, owned, stack(count)):
        chunks = _count_tile_chunks(work.block, work.outer, work.length, work.inner) if work.block else -(-size // CHUNK)
        status = context.run_tasks(state, context_address, work_address, chunks, COST * size)
    else:
        work.has_failed = 1
    for k in range(count):
        release(owned[k])
    if status == 0 and work.has_failed:
        return context.no_memory(state)
    return status
