"""The LSTM layer on arrays: check the arguments, run a kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays.arguments import flat, float32_arrays, index, real
from ..compiling.threads import run_on_threads
from ..element_types import FLOAT32
from .dispatch import TABLE
from .fixed_point import layer_of
from .granularity import DIRECTIONS, FAULTS, GATES, layer_shape

# Below this many products one thread is done before a second has woken up.
_PARALLEL_SIZE = 1 << 16


def lstm(
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
    """A bidirectional LSTM layer in 16-bit fixed point: ExtendedLSTM-1 of com.amd.quark.

    It is neither LSTM of ONNX, in float32, nor bfloat16. x, w, r, b and the hidden state are codes of uint16, and the gates are
    sums of products of codes, in integers that count 2**-24. Sigmoid is taken of tanh, and tanh is the tanhf of the process's C
    library; the cell state is float32. The hidden state is saturated. Beside what Quark's library gives with glibc 2.36, the
    tanhf of another C library makes a difference of up to some 4 steps of y_scale in some codes.

    Parameters
    ----------
    x : array_like of float32, shape [S, N, I]
        N sequences of S steps.
    w, r : array_like of float32, shapes [2, 4 * H, I] and [2, 4 * H, H]
        Forward, then reverse; the rows of each in ONNX's order: input, output, forget, cell.
    b : array_like of float32, shape [2, 8 * H]
        The biases for w, then for r.
    hidden_size : int
        H.
    x_scale, w_scale, r_scale, b_scale, y_scale : float
        Finite and positive, as float32.
    x_zero_point, w_zero_point, r_zero_point, b_zero_point, y_zero_point : int
        Taken modulo 65536. A y_zero_point below 32768 makes the first hidden state one step more than 0, as in Quark's library.
    direction : str
        Without meaning, as in Quark's library: there are two directions.
    layout, input_forget : int
        0.

    Returns
    -------
    ndarray of float32, shape [S, 2, N, H]: the hidden state of each step, dequantized.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it is and what was expected.
    """
    arrays = float32_arrays(x=x, w=w, r=r, b=b)
    given = locals()
    numbers = {name: index(given[name], name) for name in ("hidden_size", "layout", "input_forget")}
    for name in "xwrby":
        numbers[f"{name}_zero_point"] = index(given[f"{name}_zero_point"], f"{name}_zero_point")
    layers = layer_of(numbers | {f"{name}_scale": real(given[f"{name}_scale"], f"{name}_scale") for name in "xwrby"})
    fault, steps, batch, inputs = layer_shape(numbers["hidden_size"], *(each.shape for each in arrays))
    if fault:
        shapes = {f"{name}_shape": each.shape for name, each in zip("xwrb", arrays, strict=True)}
        raise ValueError(FAULTS[fault].format(**shapes, hidden_size=hidden_size))
    y = np.empty((steps, DIRECTIONS, batch, hidden_size), np.float32)
    if y.size:
        kernel = TABLE[FLOAT32]
        operands = [*(flat(each, FLOAT32) for each in arrays), y.reshape(-1), steps, batch, inputs, layers]
        is_small = y.size * GATES * (inputs + hidden_size) < _PARALLEL_SIZE
        if is_small or not run_on_threads(lambda slices: kernel.parallel(*operands, slices)):
            kernel.serial(*operands)
    return y
