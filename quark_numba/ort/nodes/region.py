"""The nodes of regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...block.dispatch import TABLE as BLOCK_TABLE
from ...block.granularity import block_shape
from ...block.tiles import prepare_function
from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, call, record_at, release, stack
from ...declaration import Operator, Overload
from ...linear.kernels import widen_function
from ...region import granularity, tiles
from ...region.arithmetic import input_dtypes
from ...region.block_source import group_size
from ...region.calls import check_layout
from ...region.dispatch import TABLE
from ...region.granularity import AXIS, CHANNELS, NO_FAULT, NOT_BLOCKED, OPERAND
from ...region.kernels import CHUNK, WORK, chunk_function
from ...region.key import MOST_INPUTS, MOST_STEPS, Program, parse
from ...region.source import Writer
from . import context
from .context import MAX_RANK

STATE = context.state_dtype(
    "run",  # the C function of the program
    "count",  # the number of inputs
    "streams",  # the number of inputs with more than one element
    # For each input: its axis (granularity.OPERAND for an operand); whether it has one element; the C function that converts it
    # to the program's type, or 0; the bytes of an element in that type, 0 for an input of one element.
    *((name, np.int64, MOST_INPUTS) for name in ("axes", "scalars", "widen", "itemsizes")),
    # About the steps of block formats; 0 if the program has none.
    "block",  # elements in a block
    "group",  # the rows of a tile are a multiple of it
    "axis",  # the axis that is cut into blocks
    "formats",  # the number of these steps
    "buffers_size",  # bytes of the program's buffers, if it has such steps
    ("functions", np.int64, 2 * MOST_STEPS),  # for each such step two C functions: `prepare`, and the task for any blocks
    "layout",  # channels in a block of the blocked layout; 0 if tensors are not in that layout
    "channels",  # in that layout: the channels of y without padding; 0 if there is no padding
)
NUMBERS = ("input", "axis", "channels")

COST = 4  # of an element, see `context.is_small`. A step takes less time than a quantization alone.
WORK_WORDS = WORK.itemsize // 8
AXES_AT, SCALARS_AT, WIDEN_AT, ITEMSIZES_AT, FUNCTIONS_AT = (
    STATE.fields[name][1]  # type: ignore[index]
    for name in ("axes", "scalars", "widen", "itemsizes", "functions")
)

_y_shape = jit.function(granularity.y_shape)
_split_channels = jit.function(granularity.split_channels)
_join_channels = jit.function(granularity.join_channels)
_loop_shape = jit.function(granularity.loop_shape)
_block_shape = jit.function(block_shape)
_count_tile_chunks = jit.function(tiles.count_chunks)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """The program, and the numbers of its inputs, blocks and layout. Raises ValueError for wrong attributes."""
    program = parse(attributes["program"])
    check_layout(program, attributes["block_size"], attributes["channels"])
    inputs, steps, formats = program.inputs, program.block_steps, program.blocks
    numbers = {
        "count": len(inputs),
        "streams": sum(not x.is_scalar for x in inputs),
        "axes": tuple(OPERAND if axis is None else axis for axis in program.axes),
        "scalars": tuple(x.is_scalar for x in inputs),
        "itemsizes": tuple(
            0 if x.is_scalar else np.dtype(dtype).itemsize for x, dtype in zip(inputs, input_dtypes(program), strict=True)
        ),
        # All steps of block formats have the same block and axis.
        "block": formats[0].block if formats else 0,
        "group": group_size(program) if formats else 0,
        "axis": steps[0].axis if steps else 0,
        "formats": len(steps),
        "buffers_size": Writer(program).buffers_size,
        "layout": attributes["block_size"],
        "channels": attributes["channels"],
    }
    return context.Selection(program, numbers)


def functions(overload: Overload, key: Program) -> dict[str, Any]:
    """The C functions of the state."""
    formats = [step.block_format for step in key.block_steps]
    return {
        "task": tiles.chunk_function() if formats else chunk_function(),  # in place of the kernel, which is in `run`
        "run": TABLE[key].task,
        "functions": tuple(
            function
            for block_key, blocks in formats
            for function in (prepare_function(block_key, blocks), BLOCK_TABLE[block_key].task)
        ),
        "widen": tuple(
            None if axis is None else widen_function(x.element_type, dtype)
            for x, axis, dtype in zip(key.inputs, key.axes, input_dtypes(key), strict=True)
        ),
    }


@jit.expand
def inputs(state: Any, state_address: int, context_address: int) -> Any:
    """(whether an input has a rank above MAX_RANK, the values of the inputs, their ranks, their shapes as `granularity` takes
    them, and from the state whether each has one element and its axis)."""
    count = state.count
    axes, scalars = array_at(state_address + AXES_AT, count, np.int64), array_at(state_address + SCALARS_AT, count, np.int64)
    has_many, values, given_shapes = context.inputs(state, context_address, count, count)
    ranks, shapes = array_at(stack(count), count, np.int64), array_at(stack(MAX_RANK * count), MAX_RANK * count, np.int64)
    for k in range(count):
        dimensions = context.shape_at(given_shapes, k)
        ranks[k] = dimensions.size
        for d in range(dimensions.size):
            shapes[MAX_RANK * (k + 1) - dimensions.size + d] = dimensions[d]
    return has_many, values, ranks, shapes, scalars, axes


@jit.expand
def fault_status(state: Any, has_many: bool, fault: int, wrong: int, wrong_shape: Any) -> int:
    """An OrtStatus for a fault of an input, or of a shape, whose address and rank are in `wrong_shape`."""
    numbers = array_at(stack(3), 3, np.int64)
    numbers[0], numbers[1], numbers[2] = wrong, state.axis, state.channels
    return context.fault_status(state, has_many, fault, wrong_shape, numbers)


def compute(state_address: int, context_address: int) -> int:
    """OrtCustomOp::KernelComputeV2: run the node. Returns an OrtStatus."""
    state = record_at(state_address, STATE)
    has_many, values, ranks, shapes, scalars, axes = inputs(state, state_address, context_address)
    count = state.count
    itemsizes = array_at(state_address + ITEMSIZES_AT, count, np.int64)
    widen = array_at(state_address + WIDEN_AT, count, np.int64)
    shape = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
    fault: Any = np.int64(NO_FAULT)
    rank: Any = np.int64(0)
    wrong: Any = np.int64(0)  # the input at fault
    if state.layout:
        for i in range(count):
            if axes[i] == OPERAND and ranks[i] == 4 and fault == NO_FAULT:
                ranks[i] = 5
                if not _split_channels(shapes[MAX_RANK * i : MAX_RANK * (i + 1)], state.layout):
                    fault, wrong, ranks[i] = NOT_BLOCKED, i, 4
    if fault == NO_FAULT:
        fault, wrong, rank = _y_shape(shapes, ranks, axes, scalars, shape)
    y_shape = shape.ctypes.data + 8 * (MAX_RANK - rank)
    wrong_shape = context.words(shapes.ctypes.data + 8 * (MAX_RANK * (wrong + 1) - ranks[wrong]), ranks[wrong])
    size = context.size_of(array_at(y_shape, rank, np.int64))
    length: Any = np.int64(0)
    inner: Any = np.int64(0)
    lanes: Any = np.int64(0)
    if fault == NO_FAULT and rank == 5 and state.layout:
        lanes = shape[MAX_RANK - 1]
    if lanes and state.block:
        length = state.channels or lanes * shape[MAX_RANK - 4]
        inner = shape[MAX_RANK - 3] * shape[MAX_RANK - 2]
    elif fault == NO_FAULT and state.block:
        no_axis, length, inner = _block_shape(array_at(y_shape, rank, np.int64), state.axis, state.block)
        if no_axis != NO_FAULT:
            fault, wrong_shape[0], wrong_shape[1] = AXIS, y_shape, rank
        elif inner == 1:
            # A block is consecutive in memory, as the channels of one place are in the blocked layout. So y is taken for one
            # image with a place for each block, or, if the last block of an axis is short, with a place for each axis.
            lanes = length = state.block if length % state.block == 0 else length
            inner = size // length if length else 0
    own_lanes: Any = np.int64(0)
    if lanes and state.channels:
        own_lanes = state.channels - (shape[MAX_RANK - 4] - 1) * lanes
        if own_lanes <= 0 or own_lanes > lanes:
            fault, wrong_shape[0], wrong_shape[1] = CHANNELS, y_shape, rank
    if has_many or fault != NO_FAULT:
        return fault_status(state, has_many, fault, wrong, wrong_shape)

    given, given_rank = y_shape, rank  # to ONNX Runtime
    if state.layout and rank == 5:
        joined = array_at(stack(MAX_RANK), MAX_RANK, np.int64)
        for d in range(MAX_RANK - rank, MAX_RANK):
            joined[d] = shape[d]
        _join_channels(joined)
        given, given_rank = joined.ctypes.data + 8 * (MAX_RANK - 4), np.int64(4)
    status, y = context.output_of(state, context_address, 0, given, given_rank)
    if status or size == 0:
        return status

    work_address = stack(WORK_WORDS)
    work = record_at(work_address, WORK)
    work.run, work.count, work.streams = state.run, count, state.streams
    work.size, work.y = size, context.data_of(state, y)
    work.lengths, work.masks, work.inputs = stack(MAX_RANK), stack(MAX_RANK), stack(count)
    work.itemsizes = state_address + ITEMSIZES_AT
    lengths, masks = array_at(work.lengths, MAX_RANK, np.int64), array_at(work.masks, MAX_RANK, np.int64)
    work.dimensions = _loop_shape(shapes, ranks, axes, shape, rank, lengths, masks)
    work.block, work.group, work.length, work.inner, work.has_failed = state.block, state.group, length, inner, 0
    work.formats, work.functions, work.buffers_size = state.formats, state_address + FUNCTIONS_AT, state.buffers_size
    work.lanes, work.own_lanes = lanes, own_lanes
    if state.layout and lanes and state.block:
        work.size = shape[MAX_RANK - 5] * length * inner  # without the channels that the layout adds
    if own_lanes:
        work.batch_size = size // shape[MAX_RANK - 5]
        work.last_block = work.batch_size - work.batch_size // shape[MAX_RANK - 4]
    widened, slots = array_at(stack(count), count, np.int64), stack(count)
    addresses = array_at(work.inputs, count, np.int64)
    for k in range(count):
        data = context.data_of(state, values[k])
        widened[k] = 0
        if widen[k]:
            elements, target = np.int64(1), slots + 8 * k
            if scalars[k] == 0:
                elements = shapes[MAX_RANK * (k + 1) - 1]
                target = widened[k] = allocate(elements * itemsizes[k])
                if target == 0:
                    status = context.no_memory(state)
                    break
            call(widen[k], (data, target, elements))
            data = target
        addresses[k] = data
    else:
        chunks = (size + CHUNK - 1) // CHUNK
        if state.block:
            chunks = _count_tile_chunks(work.size, state.block, length, inner)
        status = context.run_tasks(state, context_address, work_address, chunks, COST * size)
    for k in range(count):
        if widened[k]:
            release(widened[k])
    if status == 0 and work.has_failed:
        return context.no_memory(state)
    return status
