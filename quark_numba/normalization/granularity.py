"""The instances of x, from its shape, and the messages of shapes that are refused. An instance is the elements that share a
mean and a variance.

``instance_shape`` is also compiled into the nodes of sessions, where shapes are arrays instead of tuples. So it uses only
``len``, indexing and integers, and returns a fault as a number. ``FAULTS`` has the message for each number.
"""

from __future__ import annotations

from typing import Any

from ..linear.granularity import size_of

NO_FAULT, RANK, SCALE, BIAS = range(4)
_FEWER = "expected at least as many elements as x has channels, its second dimension"
FAULTS = {
    RANK: "x has shape {x_shape}; expected at least two dimensions, batch and channels",
    SCALE: f"scale has shape {{scale_shape}}, x {{x_shape}}; {_FEWER}",
    BIAS: f"bias has shape {{bias_shape}}, x {{x_shape}}; {_FEWER}",
}


def instance_shape(x_shape: Any, scale_shape: Any, bias_shape: Any) -> tuple[int, int, int, int]:
    """Return (fault, instances, channels, length) for shapes given as sequences of integers. Instance i is the `length`
    elements from element ``i * length`` on, and its channel is ``i % channels``."""
    if len(x_shape) < 2:
        return RANK, 0, 0, 0
    channels, length = x_shape[1], 1
    for i in range(2, len(x_shape)):
        length *= x_shape[i]
    if size_of(scale_shape) < channels:
        return SCALE, 0, 0, 0
    if size_of(bias_shape) < channels:
        return BIAS, 0, 0, 0
    return NO_FAULT, x_shape[0] * channels, channels, length
