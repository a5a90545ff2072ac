"""The nodes of QuantizeLinear, DequantizeLinear and QuantizeDequantizeLinear on a GPU, by all their names: their states, and
what a run passes to the kernel (``linear.device``)."""

from __future__ import annotations

from ...compiling.device import DeviceKernel
from ...compiling.intrinsics import record_at
from ...declaration import Overload
from ...linear import device
from ..nodes import context, linear
from .launching import are_aligned, launch, state_dtype

STATE = state_dtype(linear.STATE)
LAUNCH_AT = linear.STATE.itemsize

select = linear.select


def kernel(overload: Overload, selection: context.Selection) -> DeviceKernel:
    return device.kernel(selection.key, overload.inputs[1])


def compute(state_address: int, context_address: int) -> int:
    """Start the node's kernel (OrtCustomOp::KernelComputeV2). Return an OrtStatus."""
    state = record_at(state_address, linear.STATE)
    run = linear.begin(state, context_address)
    if run.status or run.size == 0:
        return run.status
    loop, values = run.loop, run.values
    work_address, work = context.new_record(device.WORK)
    work.x, work.y = context.data_of(state, values[0]), context.data_of(state, run.y)
    work.scale = context.data_of(state, values[1])
    work.zero_point = context.data_of(state, values[2]) if values[2] else 0
    scales = context.size_of(context.shape_at(run.shapes, 1))
    work.units, work.scales = run.size, scales
    work.length, work.block, work.rows, work.vary = loop.length, loop.block, loop.rows, loop.vary
    work.inner = min(loop.inner, scales) if loop.vary else loop.inner
    work.is_aligned = are_aligned(work.x, work.y)
    return launch(state, state_address + LAUNCH_AT, context_address, work_address, run.size, run.shapes)
