"""Arithmetic that several families share, in ONNX's standard operators."""

from __future__ import annotations

from ..element_types import ElementType
from .meaning import AnyOperand
from .standard_form import Builder

# float32 has significands of 24 bits, and numbers up to 2.0**128.
_BITS, _BEYOND = 24, 2.0**128


def rounded_to_float(op: Builder[AnyOperand], x: AnyOperand, to: ElementType) -> AnyOperand:
    """Return a float32 rounded to the values of a float type, half to even, without a Cast: a provider need not have the type.
    Values beyond the range become the largest finite one. NaN becomes the type's NaN, or its substitute. -0 becomes 0.

    For t = \\|x\\| and p, which is t * (2**k + 1) rounded to float32, (t - p) + p is t rounded to 24 - k bits (Veltkamp's
    splitting). The numbers near p are multiples of the step s of the type at t, so that t - p is rounded to such a multiple,
    and the rest is exact. If t is in the middle of two of them, so is t * (2**k + 1), as 2**k is even. Then p / s is even, and
    the result is, too. A lower limit of p keeps the step from becoming smaller than that of the subnormal values."""
    factor = 2.0 ** (_BITS - 1 - to.mantissa_bits)
    least = 2.0 ** (1 - to.bias)
    if not to.has_nan:  # ONNX Runtime's Where loses the sign of a -0, so -0 is the rounded value of another number
        x = op.without_nan(x, float(to.code_values[to.nan]) or -least / factor)
    t = op("Min", op("Abs", x), float(to.highest))  # WebGPU's Clip loses NaN
    scale = None
    if to.highest * factor >= _BEYOND:  # p would be Inf
        scale = op("Where", op("Greater", t, 1.0), 1 / (2 * factor), 1.0)
        t = op("Mul", t, scale)
    p = op("Max", op("Mul", t, factor + 1), 1.5 * factor * least)
    y = op("Add", op("Sub", t, p), p)
    y = op("Mul", y if scale is None else op("Div", y, scale), op("Sign", x))
    return y if to.has_negative_zero else op.with_positive_zero(y)
