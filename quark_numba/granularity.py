"""From the shapes of x, scale and zero point to the loop: which elements share which scale.

``loop_shape`` is compiled into the native operators as well, where it gets arrays instead of tuples: it uses nothing but
``len``, indexing and integers, and reports a fault by number. ``FAULTS`` holds the message of each number.
"""

from __future__ import annotations

from typing import Any

NO_FAULT, SCALE_RANK, ZERO_POINT_SHAPE, AXIS, SCALE_LENGTH, RANK = range(6)

# What numpy has; the native operators keep shapes on the stack.
MAX_RANK = 64

FAULTS = {
    SCALE_RANK: "{scale} has shape {scale_shape}; expected a scalar, one element, or one dimension (per axis)",
    ZERO_POINT_SHAPE: "{zero_point} has shape {zero_point_shape}; expected the shape of {scale}, {scale_shape}",
    AXIS: "axis is {axis}, out of range for {x} of shape {x_shape}; {scale} has shape {scale_shape}",
    SCALE_LENGTH: "{scale} has shape {scale_shape}; expected as many elements as {x} of shape {x_shape} has along axis {axis}",
    RANK: f"a tensor has more than {MAX_RANK} dimensions",
}


def loop_shape(x_shape: Any, scale_shape: Any, zero_point_shape: Any, axis: int) -> tuple[int, int, int]:
    """(fault, length, inner) of shapes given as sequences of integers.

    Seen as (outer, length, inner) in C order, x[:, i, :] is scaled by scale[i]. Per tensor, length is 1 and inner is
    everything; the axis does not matter then (ExtendedQuantizeLinear-1, "axis").
    """
    inner = 1
    scales = 1
    for dimension in scale_shape:
        scales *= dimension
    zero_points = 1
    for dimension in zero_point_shape:
        zero_points *= dimension
    if scales == 1 and zero_points == 1:
        for dimension in x_shape:
            inner *= dimension
        return NO_FAULT, 1, inner
    if scales != 1 and len(scale_shape) != 1:
        return SCALE_RANK, 0, 0
    if zero_points != scales or len(zero_point_shape) != len(scale_shape):
        return ZERO_POINT_SHAPE, 0, 0
    rank = len(x_shape)
    if axis < -rank or axis >= rank:
        return AXIS, 0, 0
    if axis < 0:
        axis += rank
    if x_shape[axis] != scales:
        return SCALE_LENGTH, 0, 0
    for i in range(axis + 1, rank):
        inner *= x_shape[i]
    return NO_FAULT, scales, inner
