"""The sizes of a convolution, from the shapes of its inputs, and the messages of shapes that are refused.

The functions are compiled into the nodes of sessions. So shapes are arrays, and a fault is returned as a number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_FAULT, NOT_BLOCKED, WRONG_WEIGHTS, WRONG_CHANNELS, WRONG_VECTORS, TOO_SMALL, WRONG_TABLE = range(7)
FAULTS = {
    NOT_BLOCKED: "x has shape {x_shape}; expected four dimensions, and channels that are a multiple of {lanes}",
    WRONG_WEIGHTS: "w has shape {w_shape}; expected (channels of y, channels of x, {kernel_rows}, {kernel_columns}), not empty",
    WRONG_CHANNELS: "x has shape {x_shape}, w {w_shape}; with several groups each has whole blocks of channels",
    WRONG_VECTORS: "scale has shape {scale_shape}, bias {bias_shape}; expected one element for each channel of y",
    TOO_SMALL: "x has shape {x_shape}; it is smaller than the kernel",
}
FAULTS_OF_TABLE = {WRONG_TABLE: "table has shape {table_shape}; expected 256 elements"}


class Window(NamedTuple):
    """What the attributes say of the two axes of an image: rows and columns."""

    kernel: Any
    strides: Any
    dilations: Any
    pads: Any  # before the rows, before the columns, after the rows, after the columns


def output_length(window: Window, axis: int, length: int) -> int:
    """Return the length of y along an axis."""
    reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1
    padded = length + window.pads[axis] + window.pads[axis + 2]
    return (padded - reach) // window.strides[axis] + 1 if padded >= reach else 0


def fault_of(window: Window, group: int, lanes: int, x: Any, w: Any, scale: Any, bias: Any) -> int:
    """Return the fault of the shapes, or NO_FAULT."""
    if len(x) != 4 or x[1] % lanes:
        return NOT_BLOCKED
    if len(w) != 4 or w[0] * w[1] == 0 or w[2] != window.kernel[0] or w[3] != window.kernel[1]:
        return WRONG_WEIGHTS
    if group == 1:
        if x[1] != (w[1] + lanes - 1) // lanes * lanes:
            return WRONG_CHANNELS
    elif x[1] != w[1] * group or w[1] % lanes or w[0] % (group * lanes):
        return WRONG_CHANNELS
    if len(scale) != 1 or len(bias) != 1 or scale[0] != w[0] or bias[0] != w[0]:
        return WRONG_VECTORS
    if output_length(window, 0, x[2]) == 0 or output_length(window, 1, x[3]) == 0:
        return TOO_SMALL
    return NO_FAULT


def fault_of_table(table: Any) -> int:
    """Return the fault of the shape of a table, or NO_FAULT."""
    return NO_FAULT if len(table) == 1 and table[0] == 256 else WRONG_TABLE
