"""The sizes of a layer, from the shapes of its inputs, the messages of shapes that are refused, and the order of the gates.

``layer_shape`` is also compiled into the nodes of sessions, where shapes are arrays instead of tuples. So it uses only
``len``, indexing and integers, and returns a fault as a number. ``FAULTS`` has the message for each number.
"""

from __future__ import annotations

from typing import Any

# Forward and reverse.
DIRECTIONS = 2

# The gates of a cell, in the order of their rows: input, output, forget, candidate.
GATES = 4

NO_FAULT, X_RANK, W_SHAPE, R_SHAPE, B_SHAPE = range(5)
_EXPECTED = "for hidden_size {hidden_size}; there are layers of both directions only"
FAULTS = {
    X_RANK: "x has shape {x_shape}; expected (sequence length, batch, input size)",
    W_SHAPE: f"w has shape {{w_shape}}, x {{x_shape}}; expected (2, 4 * hidden_size, input size) {_EXPECTED}",
    R_SHAPE: f"r has shape {{r_shape}}; expected (2, 4 * hidden_size, hidden_size) {_EXPECTED}",
    B_SHAPE: f"b has shape {{b_shape}}; expected (2, 8 * hidden_size) {_EXPECTED}",
}


def layer_shape(hidden: int, x_shape: Any, w_shape: Any, r_shape: Any, b_shape: Any) -> tuple[int, int, int, int]:
    """Return (fault, steps, batch, inputs) for shapes given as sequences of integers."""
    if len(x_shape) != 3:
        return X_RANK, 0, 0, 0
    steps, batch, inputs = x_shape[0], x_shape[1], x_shape[2]
    if len(w_shape) != 3 or w_shape[0] != DIRECTIONS or w_shape[1] != GATES * hidden or w_shape[2] != inputs:
        return W_SHAPE, 0, 0, 0
    if len(r_shape) != 3 or r_shape[0] != DIRECTIONS or r_shape[1] != GATES * hidden or r_shape[2] != hidden:
        return R_SHAPE, 0, 0, 0
    if len(b_shape) != 2 or b_shape[0] != DIRECTIONS or b_shape[1] != 2 * GATES * hidden:
        return B_SHAPE, 0, 0, 0
    return NO_FAULT, steps, batch, inputs
