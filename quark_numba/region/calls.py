"""A program on arrays: each step is a numpy function, or a round trip of another family (``step_operators``); and the checks of
inputs and of the attributes of the blocked layout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import counted
from .granularity import OPERAND
from .key import Program, parse
from .step_operators import BLOCK_ROUND_TRIPS, STEP_OPERATORS

# The possible numbers of lanes. A lane is a channel of a block of the blocked layout. The size of a tile is a multiple of each.
LANES = (2, 4, 8, 16, 32, 64)

# The axis of channels in the blocked layout.
CHANNEL_AXIS = -3


def run_region(*inputs: NDArray[Any], program: str, lanes: int = 0, channels: int = 0) -> NDArray[np.float32]:
    """Return the result of a program for these arrays. Raise ValueError if the text is not a program, if the program has
    another number of inputs, or if the arrays do not fit the layout."""
    parsed = parse(program)
    check_inputs(parsed, len(inputs))
    check_layout(parsed, lanes, channels)
    if lanes:
        shapes: list[Any] = [blocked_shape(x.shape, lanes, number) or x.shape for number, x in enumerate(inputs)]
        inputs = tuple(map(np.reshape, inputs, shapes))
    y = _run(parsed, inputs, channels if lanes else None)
    if not lanes or y.ndim != 5:
        return y
    n, blocks, h, w, lanes = y.shape  # one lane, if y has one channel
    if channels:
        own_lanes = channels - (blocks - 1) * lanes
        if not 0 < own_lanes <= lanes:
            raise ValueError(f"y has {blocks * lanes} channels; expected channel {channels} in the last block of {lanes}")
        y = y.copy()
        y[:, -1, :, :, own_lanes:] = 0
    return y.reshape(n, blocks * lanes, h, w)


def _run(program: Program, inputs: Sequence[NDArray[Any]], channels: int | None) -> NDArray[np.float32]:
    """Return the result of a program. In the blocked layout `channels` is the node's attribute, and tensors have five
    dimensions here. In ONNX's layout `channels` is None."""
    values: list[Any] = list(inputs)
    shape = np.broadcast_shapes(*(x.shape for x, role in zip(inputs, program.roles, strict=True) if role == OPERAND))
    with np.errstate(all="ignore"):
        for step in program.steps:
            call = functools.partial(STEP_OPERATORS[step.operator].array, **dict(step.attributes))
            operands: list[Any] = [None if operand is None else values[operand] for operand in step.operands]
            if step.operator in BLOCK_ROUND_TRIPS:
                operands = [np.broadcast_to(operands[0], shape)]
                if channels is not None and len(shape) == 5:
                    call = functools.partial(_call_on_channels, call, channels)
            values.append(call(*operands))
    return np.asarray(values[-1], np.float32)


def _call_on_channels(call: Callable[..., Any], channels: int, x: NDArray[Any]) -> NDArray[Any]:
    """Return the result of a call for a tensor in the blocked layout. `call` gets it in ONNX's layout, without the channels
    that the blocked layout adds."""
    n, blocks, h, w, lanes = x.shape
    by_channels = x.transpose(0, 1, 4, 2, 3).reshape(n, blocks * lanes, h, w)
    y = np.zeros_like(by_channels)
    own = channels or blocks * lanes
    y[:, :own] = call(by_channels[:, :own])
    return y.reshape(n, blocks, lanes, h, w).transpose(0, 1, 3, 4, 2)


def blocked_shape(shape: Sequence[int | None], lanes: int, number: int) -> list[int | None] | None:
    """Return the shape of a blocked tensor with a dimension for the channels of a block, as `granularity.split_channels` does,
    or None unless the tensor has four dimensions. Raise ValueError if the channels do not fill whole blocks."""
    if len(shape) != 4:
        return None
    n, channels, h, w = shape
    if channels is None or channels == 1:
        return [n, channels, h, w, channels]
    if channels % lanes:
        raise ValueError(f"input {number} has shape {list(shape)}; expected one channel, or a multiple of {lanes}")
    return [n, channels // lanes, h, w, lanes]


def check_layout(program: Program, lanes: int, channels: int) -> None:
    """Raise ValueError unless the program can run on tensors in the blocked layout with these attributes."""
    if lanes not in (0, *LANES):
        raise ValueError(f"lanes is {lanes}; expected 0 or one of {LANES}")
    if channels < 0 or (channels and not lanes):
        raise ValueError(f"channels is {channels} with lanes {lanes}; expected 0, or a number of channels with lanes")
    if lanes and any(role < 0 for role in program.roles):
        raise ValueError("program has scales along an axis; expected none in the blocked layout")
    if lanes and program.block_axis not in (0, CHANNEL_AXIS):
        raise ValueError(f"program has blocks along an axis other than {CHANNEL_AXIS}, as the blocked layout does not allow")


def check_inputs(program: Program, count: int) -> None:
    """Raise ValueError unless the program has `count` inputs."""
    if count != len(program.inputs):
        raise ValueError(f"the node has {counted(count, 'input')}; its program has {len(program.inputs)}")
