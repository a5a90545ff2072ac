"""The nodes of instance normalization in a run: their states, and the cost of an element."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.intrinsics import array_at, record_at
from ...declaration import Operator, Overload
from ...normalization import granularity
from ...normalization.kernels import WORK, part_of
from . import context

STATE = context.state_dtype("threads", ("epsilon", np.float32))  # the largest number of threads
FREE_ATTRIBUTES = ("epsilon",)
COST = 4  # of an element, see `context.is_small`

_instance_shape = jit.function(granularity.instance_shape, size_of=context.size_of)


def select(operator: Operator, overload: Overload, attributes: Mapping[str, Any]) -> context.Selection:
    """Return the kernel's key, epsilon and this machine's number of processors."""
    return context.Selection(overload.inputs[0], {"threads": os.cpu_count() or 1, "epsilon": attributes["epsilon"]})


def set_attributes(state_address: int, values_address: int) -> int:
    """Set what the value of epsilon decides, as `select` does it. Return 1: all values are valid."""
    record_at(state_address, STATE).epsilon = array_at(values_address, 1, np.float32)[0]
    return 1


def compute(state_address: int, context_address: int) -> int:
    """Run the node (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, STATE)
    exceeds_max_rank, values, shapes = context.read_inputs(state, context_address, 3, 3)
    scale_shape, bias_shape = context.shape_at(shapes, 1), context.shape_at(shapes, 2)
    x_shape = context.shape_at(shapes, 0)
    fault, instances, channels, length = _instance_shape(x_shape, scale_shape, bias_shape)
    status, size, y = context.begin_output(state, context_address, x_shape, exceeds_max_rank, fault, shapes)
    if status or size == 0:
        return status
    work_address, work = context.new_record(WORK)
    work.x, work.scale = context.data_of(state, values[0]), context.data_of(state, values[1])
    work.bias, work.y = context.data_of(state, values[2]), context.data_of(state, y)
    work.instances, work.channels, work.length = instances, channels, length
    work.epsilon, work.part = state.epsilon, part_of(instances, length, state.threads)
    parts = (instances + work.part - 1) // work.part
    return context.run_tasks(state, context_address, work_address, parts, COST * size)
