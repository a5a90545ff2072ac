"""The nodes that count thresholds below an element, and the nodes that choose the nearest entry of a look-up table, in a run:
their states, and the table, which each run makes and frees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import allocate, array_at, record_at, release
from ...declaration import Operator, Overload
from ...tables import granularity, kernels
from ...tables.calls import rule
from ...tables.granularity import THRESHOLD
from ...tables.kernels import CHUNK, WORK
from . import context

STATE = context.state_dtype("is_nearest", "axis", ("first", np.float32), ("second", np.float32))
MESSAGE_NUMBERS = ("axis",)


_shape_of = jit.function(granularity.shape_of)
_size_of = jit.function(granularity.size_of)
_fill = jit.function(kernels.fill)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the kernel's key, and what the node does. Raise ValueError if an attribute is invalid."""
    applied = rule(operator.operation, attributes)
    numbers = {"is_nearest": applied.is_nearest, "axis": applied.axis, "first": applied.first, "second": applied.second}
    return context.Selection(applied.operation, numbers)


def compute(state_address: int, context_address: int) -> int:
    """Run the node (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, STATE)
    is_nearest = state.is_nearest != 0
    count = np.int64(3) if is_nearest else np.int64(2)
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, count, 3)
    x_shape, table_shape = context.shape_at(shapes, 0), context.shape_at(shapes, 1)
    last_shape = context.shape_at(shapes, count - 1)
    fault, axis, source_rows, source_entries, inner = _shape_of(is_nearest, state.axis, x_shape, table_shape, last_shape)
    status, size, y = context.begin_output(state, context_address, x_shape, exceeds_max_rank, fault, shapes, axis)
    if status or size == 0:
        return status

    rows, entries = _size_of(source_rows, source_entries, inner)
    columns = granularity.NUMBERS + entries
    memory = allocate(4 * columns * rows)
    if memory == 0:
        return context.no_memory(state)
    table = array_at(memory, columns * rows, np.float32)
    source = array_at(context.data_of(state, values[1]), source_entries * (1 if is_nearest else source_rows), np.float32)
    thresholds = array_at(context.data_of(state, values[count - 1]), source_rows, np.float32)
    if _fill(is_nearest, state.first, state.second, source, thresholds, source_rows, table, rows, entries):
        work_address, work = context.new_record(WORK)
        work.x, work.y, work.table = context.data_of(state, values[0]), context.data_of(state, y), memory
        work.size, work.inner, work.rows, work.entries = size, inner, rows, entries
        chunks = (size + CHUNK - 1) // CHUNK
        status = context.run_tasks(state, context_address, work_address, chunks, size * columns // 2)
    else:
        status = context.fault_status(state, THRESHOLD, shapes, axis)
    release(memory)
    return status
