"""The limits of a layer's attributes, such as hidden_size, their errors, and, from its scales and zero points, the integers
that a layer computes with. `arithmetic` rounds with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Gates are integers in steps of 2**-24.
GATE_STEPS = 1 << 24

OPERANDS = "xwrby"

# The largest number of hidden units. The 8 * hidden**2 recurrent weights then have less than 2**62 bytes, which int64 holds.
MAX_HIDDEN = (1 << 28) - 1

# The numbers of a layer: see `layer_of`.
LAYER = np.dtype(
    [
        ("hidden", np.int64),
        *((f"{name}_scale", np.float64) for name in OPERANDS),
        *((f"{name}_zero_point", np.int64) for name in OPERANDS),  # 0..65535
        ("initial", np.int64),
        *((f"{name}_step", np.float64) for name in ("x", "h", "xz", "hz")),
        *((f"{name}_mantissa", np.int64) for name in ("x", "h", "xz", "hz", "y")),
        *((f"{name}_shift", np.int64) for name in ("x", "h", "xz", "hz", "y")),
    ]
)


def layer_of(attributes: Mapping[str, Any]) -> NDArray[Any]:
    """Return an array of one LAYER, from the values of all attributes of the operator.

    `x_step` and `h_step` are the value of a product of two codes, in gate steps; `xz_step` and `hz_step` are the value of a
    code times the zero point of the weights. `mantissa` and `shift` express a step in integers, as mantissa / 2**shift; the
    magnitude of the mantissa is from 2**14 to 2**15. For the output y they express 1 / y_scale, with a mantissa of 16
    bits, and 24 is added to the shift. `initial` is the code of the initial hidden state, less 32768.

    Raises
    ------
    ValueError
        If a value is invalid. The message names the attribute.
    """
    hidden = attributes["hidden_size"]
    if not 0 < hidden <= MAX_HIDDEN:
        raise ValueError(f"hidden_size is {hidden}; expected an integer from 1 to {MAX_HIDDEN}")
    for name in ("input_forget", "layout"):
        if attributes[name] != 0:
            raise ValueError(f"{name} is {attributes[name]}; expected 0")
    layers: Any = np.zeros(1, LAYER).view(np.recarray)
    layer = layers[0]
    layer.hidden = hidden
    for name in OPERANDS:
        scale = np.float32(attributes[f"{name}_scale"])
        if not 0 < scale < np.inf:
            raise ValueError(f"{name}_scale is {attributes[f'{name}_scale']}; expected a finite, positive float32")
        layer[f"{name}_scale"], layer[f"{name}_zero_point"] = scale, attributes[f"{name}_zero_point"] % (1 << 16)
    with np.errstate(all="ignore"):
        derive(layer)
    for step, one, other in ((layer.x_step, "x", "w"), (layer.h_step, "y", "r")):
        if step == math.inf:
            scales = " * ".join(str(np.float32(layer[f"{name}_scale"])) for name in (one, other))
            raise ValueError(f"{one}_scale * {other}_scale is {scales}, beyond float32")
    return layers


def derive(layer: Any) -> None:
    """Set the fields that follow from scales and zero points. If `x_step` or `h_step` is infinite, the rest means nothing. The
    function is also compiled into libraries."""
    half = 1 << 15
    layer.initial = layer.y_zero_point - half
    if layer.initial < 0:
        layer.initial += 1
    layer.x_step = np.float64(np.float32(layer.x_scale) * np.float32(layer.w_scale)) * GATE_STEPS
    layer.h_step = np.float64(np.float32(layer.y_scale) * np.float32(layer.r_scale)) * GATE_STEPS
    layer.xz_step = layer.x_step * (layer.w_zero_point - half)
    layer.hz_step = layer.h_step * (layer.r_zero_point - half)
    layer.x_mantissa, layer.x_shift = mantissa_and_shift(layer.x_step, 15)
    layer.h_mantissa, layer.h_shift = mantissa_and_shift(layer.h_step, 15)
    layer.xz_mantissa, layer.xz_shift = mantissa_and_shift(layer.xz_step, 15)
    layer.hz_mantissa, layer.hz_shift = mantissa_and_shift(layer.hz_step, 15)
    mantissa, shift = mantissa_and_shift(1 / layer.y_scale, 16)
    layer.y_mantissa, layer.y_shift = min(mantissa, 2 * half - 1), shift + 24


def mantissa_and_shift(number: float, bits: int) -> tuple[int, int]:
    """Return (m, s) with number = m / 2**s, up to the rounding of m, half away from zero. The magnitude of m is
    from 2**(bits - 1) to 2**bits. If the number is 0 or not finite, both are 0."""
    scaled, shift = abs(number), 0
    if not 0 < scaled < math.inf:
        return 0, 0
    # Doubling and halving are exact.
    while scaled <= 1 << (bits - 1):
        scaled, shift = scaled * 2, shift + 1
    while scaled > 1 << bits:
        scaled, shift = scaled / 2, shift - 1
    mantissa = int(scaled + 0.5)  # exact for 38 bits and fewer after the point
    return (mantissa if number > 0 else -mantissa), shift
