"""Arithmetic of float32 in ONNX's standard operators: exact, and without comparisons, which are slow on large tensors.

A number is rounded to the grid of another format by an anchor: a float32 whose last place is the distance of the grid's values.
Their difference is rounded to the grid, half to even, and the anchor less this is the rounded number."""

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
    """Return the largest power of two that is at most t, but at least 2**-127, times `factor`, another one up to 1. `number` is
    3/4 * t, rounded to float32, for t from 0 to the largest float32.

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

    A zero has the sign of v, if the type has -0, and else is 0."""
    magnitude = op.clip(op("Abs", v), 0.0, float(element_type.highest))
    y = op("Mul", on_grid(op, magnitude, element_type), sign(op, v, 0.5 * least_step(element_type)))
    return y if element_type.has_negative_zero else op.with_positive_zero(y)


def saturated(op: Builder[AnyOperand], v: AnyOperand, element_type: ElementType) -> AnyOperand:
    """Return the nearest values of a float type of at most 16 bits, half to even and saturated. NaN stays, and -0 becomes 0.

    That is fewer nodes than ``nearest`` and a limit, for providers on which all operators take the same time; and no Clip has
    to keep NaN. The exponents of bfloat16 are those of float32, so its numbers above 1 are made smaller, or the anchor would
    be Inf."""
    shift = 2.0 ** (MANTISSA_BITS - element_type.mantissa_bits)
    t, scale = op("Min", op("Abs", v), float(element_type.highest)), None
    if shift * float(element_type.highest) > LARGEST:
        scale = op("Where", op("Greater", t, 1.0), 0.5 / shift, 1.0)
        t = op("Mul", t, scale)
    anchor = op("Max", op("Mul", t, shift), 3.0 * 2.0**22 * least_step(element_type))
    y = op("Sub", anchor, op("Sub", anchor, t))
    y = op("Mul", y if scale is None else op("Div", y, scale), op("Sign", v))
    return y if element_type.has_negative_zero else op.with_positive_zero(y)


def least_step(element_type: ElementType) -> float:
    """Return the distance of the values of a float type below its smallest normal number, and just above it."""
    return float(2.0 ** (1 - element_type.bias - element_type.mantissa_bits))


def on_grid(op: Builder[AnyOperand], magnitude: AnyOperand, element_type: ElementType, unit: float = 1.0) -> AnyOperand:
    """Return numbers from 0 to Inf, or NaN, rounded to the nearest values of a float type times `unit`, a power of two. They do
    not saturate: beyond the largest value, they have as many bits.

    A value has `mantissa_bits` + 1 bits, so the anchor is the number times 2**(23 - mantissa_bits): its last place is the last
    place of the value. It is even, or the number is not a tie. Where the difference has a smaller exponent than the anchor, it
    has another place, but then the number is so close to a power of two that this does not matter. Below the smallest normal
    number, all values are as far apart, and the anchor is 3 * 2**22 times that."""
    shift = MANTISSA_BITS - element_type.mantissa_bits
    least, most = 3.0 * 2.0**22 * least_step(element_type) * unit, 4.0 * 2.0**shift * float(element_type.highest) * unit
    anchor = op.clip(op("Mul", magnitude, 2.0**shift), least, most)
    return op("Sub", anchor, op("Sub", anchor, magnitude))


def sign(op: Builder[AnyOperand], v: AnyOperand, least: float) -> AnyOperand:
    """Return -1 or 1, by the sign, for v of at least a power of two in magnitude. Other v give less, 0 gives 0, -0 gives -0."""
    return op.clip(op("Mul", v, 1 / least), -1.0, 1.0)


def half_away_from_zero(op: Builder[AnyOperand], magnitude: AnyOperand) -> AnyOperand:
    """Return the whole numbers nearest to numbers from 0 to Inf, or NaN, and halves upward. The addend is the float32 just
    below 1/2 (see ``block.arithmetic``)."""
    return op("Floor", op("Add", magnitude, float(np.nextafter(np.float32(0.5), np.float32(0)))))


def last_place(op: Builder[AnyOperand], t: AnyOperand, dtype: DTypeLike = np.float32) -> AnyOperand:
    """Return the last place of a t of a dtype, float32 or float64: 2 ** (e - places), with 23 or 52 places, for a t from 2 ** e
    up to, but not including, 2 ** (e + 1). NaN for Inf. Float32 are at least 2 ** -102.

    It is t - (t - 3/4 * t * 2 ** -places). The product is 3/4 up to 3/2 times the last place, and less than 3/2 of it if it is
    not subnormal. So the difference is rounded to the number below t. The number below a power of two is half a place away;
    there the product is 3/4 of a place, a tie that goes to the even one, a whole place below."""
    return op("Sub", t, op("Sub", t, op("Mul", t, np.array(0.75 * 2.0 ** -np.finfo(dtype).nmant, dtype))))
