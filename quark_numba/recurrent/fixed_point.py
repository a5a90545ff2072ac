"""The integers that a layer computes with, from its scales and zero points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Gates are integers in steps of 2**-24.
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
    """Return (m, s) with number = m / 2**s, up to the rounding of m, half away from zero. The magnitude of m is
    from 2**(bits - 1) to 2**bits."""
    fraction, exponent = math.frexp(abs(number))  # 1/2 <= fraction < 1
    if fraction == 0:
        return 0, 0
    shift = bits - (exponent - 1 if fraction == 0.5 else exponent)
    mantissa = math.floor(Fraction(fraction) * Fraction(2) ** (exponent + shift) + Fraction(1, 2))
    return (mantissa if number > 0 else -mantissa), shift
