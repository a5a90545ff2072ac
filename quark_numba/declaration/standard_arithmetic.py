"""Arithmetic of float32 in ONNX's standard operators (powers of two, rounding to the values of a float type, signs): exact, and
without comparisons, which are slow on large tensors.

A number is rounded to the grid of another format by means of an anchor: a float32 whose last place is the distance between
neighbouring values of the grid. The difference anchor - number is rounded to the grid, half to even. The anchor minus that
difference is the rounded number."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from ..element_types import ElementType
from .meaning import AnyOperand
from .standard_form import Builder

# The bits of a float32's mantissa, without the hidden bit.
MANTISSA_BITS = 23

LARGEST = float(np.finfo(np.float32).max)


def power_of_two(op: Builder[AnyOperand], number: AnyOperand, factor: float = 1.0) -> AnyOperand:
    """Return `factor` times the largest power of two that is at most t, or `factor` times 2**-127 if that power is smaller.
    `factor` is a power of two of at most 1. `number` is 3/4 * t, rounded to float32, for a t from 0 to the largest float32.

    Let the power be p, and `unit` be 2**-23 * p. The number is at least 3/4 * p, and below 3/2 * p. So the product of the
    number and 1 - 2**-23 is the number less d, with d at least 3/4 * unit, and below 3/2 * unit. Rounding always makes it the
    number less `unit`:
    - If the number is at least p, then d is from 1 to 3/2 units. Float32 numbers are a unit apart there.
    - If it is below p, then d is from 3/4 of a unit to one. Float32 numbers are half a unit apart there. d = 3/4 * unit is a
      tie, and only for the number 3/4 * p. The number less `unit` is even then, and the number less half a unit is not.

    For subnormal t the number becomes 0, and the power the least one. Abs changes nothing, but keeps a compiler from a fused
    multiply-add, which would not round the product. WebGPU may take a subnormal unit for 0, so the least power is 2**-103
    there."""
    number = op("ThresholdedRelu", number, alpha=0.75 * 2.0**-126 - 2.0**-149)
    unit = op("Sub", number, op("Abs", op("Mul", number, 1 - 2.0**-MANTISSA_BITS)))
    least = 2.0**-103 if op.is_for_webgpu else 2.0**-127
    return op.clip(op("Mul", unit, 2.0**MANTISSA_BITS * factor), least * factor, LARGEST)


def one_where_zero(op: Builder[AnyOperand], number: AnyOperand) -> AnyOperand:
    """Return 1 where a number from 0 to the largest float32 is 0, and 0 elsewhere."""
    return op("HardSigmoid", op("Mul", number, 2.0**100), alpha=-(2.0**100), beta=1.0)


def nearest(op: Builder[AnyOperand], v: AnyOperand, element_type: ElementType) -> AnyOperand:
    """Return the nearest values of a float type of at most 7 bits of exponent, half to even and saturated. NaN stays.

    A zero has the sign of v if the type has -0; otherwise it is 0."""
    magnitude = op.clip(op("Abs", v), 0.0, float(element_type.highest))
    y = op("Mul", on_grid(op, magnitude, element_type), sign(op, v, 0.5 * least_step(element_type)))
    return _with_zero_of(op, y, element_type)


def saturated(op: Builder[AnyOperand], v: AnyOperand, element_type: ElementType) -> AnyOperand:
    """Return the nearest values of a float type of at most 16 bits, half to even and saturated. NaN stays, and -0 becomes 0.

    This takes fewer nodes than ``nearest``, for providers on which all operators take the same time, and does not rely on a
    Clip that keeps NaN. bfloat16 has the exponents of float32. So for bfloat16 numbers above 1 are scaled down first, because
    their anchor would be Inf."""
    shift = 2.0 ** (MANTISSA_BITS - element_type.mantissa_bits)
    t, scale = op("Min", op("Abs", v), float(element_type.highest)), None
    if shift * float(element_type.highest) > LARGEST:
        scale = op("Where", op("Greater", t, 1.0), 0.5 / shift, 1.0)
        t = op("Mul", t, scale)
    anchor = op("Max", op("Mul", t, shift), 3.0 * 2.0**22 * least_step(element_type))
    y = op("Sub", anchor, op("Sub", anchor, t))
    y = op("Mul", y if scale is None else op("Div", y, scale), op("Sign", v))
    return _with_zero_of(op, y, element_type)


def _with_zero_of(op: Builder[AnyOperand], y: AnyOperand, element_type: ElementType) -> AnyOperand:
    """Return y, with 0 in the place of -0 if the type has none."""
    with np.errstate(invalid="ignore"):  # on AArch64, numpy warns about codes of float16 that are signalling NaNs
        has_negative_zero = element_type.has_negative_zero
    return y if has_negative_zero else op.with_positive_zero(y)


def least_step(element_type: ElementType) -> float:
    """Return the distance of the values of a float type below its smallest normal number, and just above it."""
    return float(2.0 ** (1 - element_type.bias - element_type.mantissa_bits))


def on_grid(op: Builder[AnyOperand], magnitude: AnyOperand, element_type: ElementType, unit: float = 1.0) -> AnyOperand:
    """Return numbers from 0 to Inf, or NaN, rounded to the nearest values of a float type times `unit`, a power of two. The
    results do not saturate: beyond the largest value of the type they have as many mantissa bits as the values of the type.

    A value has `mantissa_bits` + 1 bits. So the anchor is the number times 2**(23 - mantissa_bits): the last place of the
    anchor is the last place of the value. If the number is a tie, the anchor's last bit is 0, so the tie goes to even. If the
    difference has a smaller exponent than the anchor, its last place is smaller; but then the number is so close to a power of
    two that the result is the same. Below the smallest normal number, all neighbouring values are equally far apart, and the
    anchor is 3 * 2**22 times their distance."""
    shift = MANTISSA_BITS - element_type.mantissa_bits
    least, most = 3.0 * 2.0**22 * least_step(element_type) * unit, 4.0 * 2.0**shift * float(element_type.highest) * unit
    anchor = op.clip(op("Mul", magnitude, 2.0**shift), least, most)
    return op("Sub", anchor, op("Sub", anchor, magnitude))


def sign(op: Builder[AnyOperand], v: AnyOperand, least: float) -> AnyOperand:
    """Return the sign of v, -1 or 1, if the magnitude of v is at least `least`, a power of two. A smaller magnitude gives a
    number between -1 and 1; 0 gives 0, and -0 gives -0."""
    return op.clip(op("Mul", v, 1 / least), -1.0, 1.0)


def half_away_from_zero(op: Builder[AnyOperand], magnitude: AnyOperand) -> AnyOperand:
    """Return numbers from 0 to Inf, or NaN, rounded to the nearest whole number, halves upward. The addend is the float32 just
    below 1/2 (see ``block.arithmetic``)."""
    return op("Floor", op("Add", magnitude, float(np.nextafter(np.float32(0.5), np.float32(0)))))


def last_place(op: Builder[AnyOperand], t: AnyOperand, dtype: DTypeLike = np.float32) -> AnyOperand:
    """Return the last place of t, a number of a dtype, float32 or float64. For a t from 2 ** e up to, but not including,
    2 ** (e + 1) that is 2 ** (e - places), with 23 or 52 places. It is NaN for Inf. A float32 t has to be at least 2 ** -102.

    The result is computed as t - (t - 3/4 * t * 2 ** -places). The product is 3/4 to 3/2 of the last place, and less than 3/2
    unless it is subnormal. So the inner difference is rounded to t minus one place. This also holds for a power of two, below
    which numbers are half a place apart: there the product is 3/4 of a place, and the tie goes to the even number, a whole
    place below t."""
    return op("Sub", t, op("Sub", t, op("Mul", t, np.array(0.75 * 2.0 ** -np.finfo(dtype).nmant, dtype))))
