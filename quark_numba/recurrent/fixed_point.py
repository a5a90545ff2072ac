"""The integers that a layer computes with, from its scales and zero points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Gates are numbers of steps of 2**-24.
GATE_STEPS = 1 << 24

OPERANDS = "xwrby"

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
    """An array of one LAYER, of values for all attributes of the operator.

    `x_step` and `h_step` are the numbers of gate steps that one step of a product of codes counts, `xz_step` and `hz_step`
    those of a code beside the zero point of the weights. `mantissa` and `shift` stand for them in integers: mantissa /
    2**shift, with a magnitude of the mantissa above 2**14 and up to 2**15; for the output y it is that of 1 / y_scale, of 16
    bits, and 24 is added to the shift. `initial` is the hidden state at first, less 32768.

    Raises
    ------
    ValueError
        For values that cannot be, naming the attribute.
    """
    hidden = attributes["hidden_size"]
    if not 0 < hidden < 1 << 28:
        raise ValueError(f"hidden_size is {hidden}; expected a positive integer")
    for name in ("input_forget", "layout"):
        if attributes[name] != 0:
            raise ValueError(f"{name} is {attributes[name]}; expected 0")
    layers: Any = np.zeros(1, LAYER).view(np.recarray)
    layer = layers[0]
    layer.hidden = hidden
    scales, zeros = {}, {}
    for name in OPERANDS:
        scales[name] = scale = np.float32(attributes[f"{name}_scale"])
        if not 0 < scale < np.inf:
            raise ValueError(f"{name}_scale is {attributes[f'{name}_scale']}; expected a finite, positive float32")
        zero_point = attributes[f"{name}_zero_point"] % (1 << 16)
        layer[f"{name}_scale"], layer[f"{name}_zero_point"] = scale, zero_point
        zeros[name] = zero_point - (1 << 15)
    layer.initial = zeros["y"] if zeros["y"] >= 0 else zeros["y"] + 1
    with np.errstate(all="ignore"):
        for name, one, other in (("x", "x", "w"), ("h", "y", "r")):
            step = float(scales[one] * scales[other]) * GATE_STEPS
            if step == math.inf:
                raise ValueError(f"{one}_scale * {other}_scale is {scales[one]} * {scales[other]}, beyond float32")
            layer[f"{name}_step"], layer[f"{name}z_step"] = step, step * zeros[other]
    for name in ("x", "h", "xz", "hz"):
        layer[f"{name}_mantissa"], layer[f"{name}_shift"] = _mantissa_and_shift(float(layer[f"{name}_step"]), 15)
    mantissa, shift = _mantissa_and_shift(1 / float(scales["y"]), 16)
    layer.y_mantissa, layer.y_shift = min(mantissa, (1 << 16) - 1), shift + 24
    return layers


def _mantissa_and_shift(number: float, bits: int) -> tuple[int, int]:
    """(m, s) with number = m / 2**s, but for rounding m, half away from zero, to a magnitude of 2**(bits - 1) to 2**bits."""
    fraction, exponent = math.frexp(abs(number))  # of 1/2 to 1
    if fraction == 0:
        return 0, 0
    shift = bits - (exponent - 1 if fraction == 0.5 else exponent)
    mantissa = math.floor(Fraction(fraction) * Fraction(2) ** (exponent + shift) + Fraction(1, 2))
    return (mantissa if number > 0 else -mantissa), shift
