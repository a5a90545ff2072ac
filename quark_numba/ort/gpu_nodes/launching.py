"""The start of a kernel on a GPU: its stream, its thread blocks, and which addresses are aligned."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...compiling import jit
from ...compiling.device import THREADS, VECTOR
from ...compiling.intrinsics import array_at, call, record_at, stack
from ...compiling.records import words
from ..nodes import context

# What follows a family's state: the address of cuLaunchKernel, and a number. In the state, the field `task` is the handle that
# the driver has for the kernel.
LAUNCH = words("launch", "units_per_thread_block")


def state_dtype(state: np.dtype[Any], *fields: Any) -> np.dtype[Any]:
    """Return the dtype of a family's states on a GPU: the fields of its states on a CPU, then LAUNCH and these fields.
    Functions get the address of a state as if it were one on a CPU, because Numba would compile them anew for each type of
    record."""
    return np.dtype([*state.descr, *LAUNCH.descr, *fields])


@jit.inline
def are_aligned(first: int, second: int) -> bool:
    """Return whether both addresses are multiples of VECTOR."""
    return (first | second) % VECTOR == 0


@jit.inline
def launch(state: Any, launch_address: int, context_address: int, work_address: int, units: int, shapes: Any) -> int:
    """Start the kernel with the record at an address, which the driver copies. The kernel runs after what is on the node's
    stream already. `launch_address` is the address of the record LAUNCH, which follows the state. Return an OrtStatus."""
    further = record_at(launch_address, LAUNCH)
    records = array_at(stack(1), 1, np.int64)
    records[0] = work_address
    thread_blocks = (units + further.units_per_thread_block - 1) // further.units_per_thread_block
    stream = context.stream_of(state, context_address)
    code = (
        call(further.launch, (state.task, thread_blocks, 1, 1, THREADS, 1, 1, 0, stream, records.ctypes.data, 0)) & 0xFFFFFFFF
    )
    return context.fault_status(state, context.NOT_STARTED, shapes, code) if code else 0
