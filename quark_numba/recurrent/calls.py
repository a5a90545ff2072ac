"""The LSTM layer on arrays (`extended_lstm`): its arguments and their defaults, the checks of shapes, and the run of the
kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays.arguments import flat, float32_arrays, index, real
from ..element_types import FLOAT32
from .dispatch import TABLE
from .fixed_point import OPERANDS, layer_of
from .granularity import DIRECTIONS, FAULTS, GATES, layer_shape


def extended_lstm(
    x: ArrayLike,
    w: ArrayLike,
    r: ArrayLike,
    b: ArrayLike,
    *,
    hidden_size: int,
    x_scale: float,
    x_zero_point: int,
    w_scale: float,
    w_zero_point: int,
    r_scale: float,
    r_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    direction: str = "bidirectional",
    layout: int = 0,
    input_forget: int = 0,
) -> NDArray[np.float32]:
    """Return the hidden states of a bidirectional LSTM layer, computed in 16-bit fixed point. It is the operator
    ExtendedLSTM-1 of com.amd.quark.

    The result differs from LSTM of ONNX in float32 and in bfloat16. x, w, r, b and the hidden state are uint16 codes. A gate
    is a sum of products of codes, an integer in units of 2**-24. The sigmoid is computed from tanh, and tanh is the tanhf of
    the process's C library. The cell state is float32. The hidden state saturates. The results are those of Quark's library
    with glibc 2.36; with the tanhf of another C library, some codes differ by up to about 4 steps of y_scale.

    Parameters
    ----------
    x : array_like of float32, shape [S, N, I]
        N sequences of S steps.
    w, r : array_like of float32, shapes [2, 4 * H, I] and [2, 4 * H, H]
        The weights of the forward direction, then of the reverse one. The rows of a direction are in the order of ONNX: input,
        output, forget, cell.
    b : array_like of float32, shape [2, 8 * H]
        The biases of w, then of r.
    hidden_size : int
        H, the number of hidden units.
    x_scale, w_scale, r_scale, b_scale, y_scale : float
        Finite and positive, as float32.
    x_zero_point, w_zero_point, r_zero_point, b_zero_point, y_zero_point : int
        Taken modulo 65536. A y_zero_point below 32768 makes the initial hidden state one step more than 0, as in Quark's
        library.
    direction : str
        Ignored, as in Quark's library: the layer is always bidirectional.
    layout, input_forget : int
        Have to be 0.

    Returns
    -------
    ndarray of float32, shape [S, 2, N, H]: the hidden state of each step, dequantized.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    arrays = float32_arrays(x=x, w=w, r=r, b=b)
    arguments = locals()
    integers = "hidden_size", "layout", "input_forget", *(f"{name}_zero_point" for name in OPERANDS)
    numbers = {name: index(arguments[name], name) for name in integers}
    layers = layer_of(numbers | {f"{name}_scale": real(arguments[f"{name}_scale"], f"{name}_scale") for name in OPERANDS})
    fault, steps, batch, inputs = layer_shape(numbers["hidden_size"], *(array.shape for array in arrays))
    if fault:
        shapes = {f"{name}_shape": array.shape for name, array in zip("xwrb", arrays, strict=True)}
        raise ValueError(FAULTS[fault].format(**shapes, hidden_size=hidden_size))
    y = np.empty((steps, DIRECTIONS, batch, hidden_size), np.float32)
    if y.size:
        operands, products = [flat(array, FLOAT32) for array in (*arrays, y)], y.size * GATES * (inputs + hidden_size)
        TABLE[FLOAT32].run(products, *operands, steps, batch, inputs, layers)
    return y
