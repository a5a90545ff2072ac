"""The values that a node returns if it rounds each element by itself: numbers of an integer or a float type, times a scale.

Only nodes are described that are proved to return these values unchanged, as numbers:

- Integers of up to 16 bits: see `is_exact`. In QONNX's Quant the zero point is added to the quotient, and the sum is rounded
  with an error below 2^-6, so it is still rounded to the code. To be rounded to the next code, and not up or down, is needed.
- Integers of 32 bits: the quotient is rounded to a whole number that float32 has, and saturates at two such numbers
  (``linear.arithmetic``). A power of two times such a number is exact, and so is the quotient of the result. With other scales
  the quotient may be off by more than 1, so these nodes are not described.
- Float types, with zero point 0: a code is exact in float32, and so are its product with a power of two and the quotient of the
  result. bfloat16 has float32's exponents, so its scale has to be 1. With other scales a product may be rounded, or overflow.
- Casts to float16 or bfloat16 and back: float32 has the numbers of both types.

So scales that are not float32, computed in a run, negative, or so large or small that products overflow or get subnormal are
not described. Nor are scales of blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..declaration import Affine, Dequantize, FakeQuantize, Meaning, RoundTrip
from ..declaration.reasons import NotRewrittenError
from ..element_types import BFLOAT16, ElementType, named
from ..fake_quantization.key import CASTS
from .fake_quantizers import array_of
from .moved_elements import Format
from .nodes import GraphOperand
from .round_trips import is_exact

# The largest magnitude of codes of up to 16 bits, and of their zero points.
_MAX_CODE = 1 << 16

# Rounding modes that round a number near to a whole number to it.
_TO_NEAREST = ("ROUND", "HALF_UP", "HALF_DOWN")


class Values(NamedTuple):
    """The values scale * n: for each scale, n is a number of a float type, or a whole number from `least` to `most`. 0 is one
    of them. The arrays have one element, or one for each index along `axis`.

    `has_minus_zero` tells whether -0 is returned for some x, and NaN for NaN. Only casts return -0 for -0."""

    scale: NDArray[Any]
    least: NDArray[Any]
    most: NDArray[Any]
    axis: int | None = None
    element_type: ElementType | None = None  # the float type
    saturate: bool = True
    has_minus_zero: bool = False
    is_cast: bool = False

    @property
    def format(self) -> Format:
        is_finite = self.element_type is None and not self.has_minus_zero
        has_magnitudes = bool(np.all(self.most >= -self.least))
        # Neg makes -0 of 0, which a node that never returns -0 would turn into 0 again.
        has_negatives = self.has_minus_zero and bool(np.all(self.most == -self.least))
        return Format(0, is_finite, has_negatives, has_magnitudes)

    @property
    def returns_bits(self) -> bool:
        """Return whether the node returns its own results with all bits, and not only the same numbers."""
        return self.is_cast or not self.has_minus_zero

    def include(self, other: Values) -> bool:
        """Return whether all values of another node are values of this one, along whatever axes."""
        if self.scale.tobytes() != other.scale.tobytes() or self.element_type is not other.element_type:
            return False
        if self.element_type is not None:
            return self.is_cast or (not other.is_cast and self.saturate == other.saturate)
        is_wider = np.all(self.least <= other.least) and np.all(self.most >= other.most)
        return bool(is_wider) and self.has_minus_zero >= other.has_minus_zero

    def has_all(self, numbers: NDArray[Any], axis: int | None) -> bool:
        """Return whether all elements of a float32 array are values, those at each index along the axis with its scale. Without
        an axis they have to be values with each of the scales. Return False if there is a -0, Inf or NaN."""
        if numbers.dtype != np.float32 or not np.all(np.isfinite(numbers)) or np.any(np.signbit(numbers) & (numbers == 0)):
            return False
        if axis is None or self.axis is None:
            x = numbers.reshape(-1, 1)
        elif -numbers.ndim <= axis < numbers.ndim and numbers.shape[axis] == self.scale.size:
            x = np.moveaxis(numbers, axis, -1)
        else:
            return False
        with np.errstate(all="ignore"):
            quotient = x.astype(np.float64) / self.scale
            if self.element_type is None:
                whole = np.rint(quotient)
                is_value = (whole >= self.least) & (whole <= self.most) & (whole.astype(np.float32) * self.scale == x)
            else:
                rounded = quotient.astype(np.float32).astype(self.element_type.dtype).astype(np.float64)
                is_value = (quotient >= self.least) & (quotient <= self.most) & (rounded == quotient)
        return bool(np.all(is_value))


def values_of(meaning: Meaning[GraphOperand] | None) -> Values | None:
    """Return the values of a node, or None if they are not known, or not proved to be returned unchanged. A Dequantize node to
    an integer type is described, too: it returns values of the round trip."""
    try:
        if isinstance(meaning, FakeQuantize):
            return _of_fake_quantizer(meaning)
        return _of_affine(meaning) if isinstance(meaning, (RoundTrip, Dequantize)) else None
    except (NotRewrittenError, ValueError):  # a parameter is not a constant, or has a wrong shape
        return None


def _of_affine(meaning: Affine[GraphOperand]) -> Values | None:
    codes, scale, zero_points = meaning.element_type, meaning.scale.array, meaning.zero_points
    if codes is None or scale is None or scale.size == 0 or scale.dtype != np.float32 or meaning.has_other_type:
        return None
    is_one = scale.size == 1
    if not is_one and (scale.ndim != 1 or meaning.block_size):
        return None
    if not np.all(scale > 0) or (meaning.zero_point is not None and zero_points is None):
        return None
    scale, axis = scale.reshape(-1), None if is_one else meaning.axis
    are_powers = np.all(np.frexp(scale)[0] == 0.5) and np.all((scale >= 2.0**-60) & (scale <= 2.0**60))
    if codes.is_integer:
        offset = np.zeros(1) if zero_points is None else zero_points.astype(np.float64).reshape(-1)
        is_proved = is_exact(meaning, meaning, scale) if codes.bits <= 16 else are_powers
        if not is_proved or offset.size not in (1, scale.size):
            return None
        least, most = (np.broadcast_to(bound - offset, scale.shape) for bound in _ends(codes))
        return Values(scale, least, most, axis)
    is_proved = are_powers and meaning.is_symmetric and (codes is not BFLOAT16 or np.all(scale == 1))
    if isinstance(meaning, Dequantize) or not is_proved:  # a code may be Inf, which the round trip does not return
        return None
    least, most = (np.full(scale.shape, bound) for bound in _ends(codes))
    return Values(scale, least, most, axis, codes, meaning.saturate, has_minus_zero=True)


def _ends(codes: ElementType) -> tuple[float, float]:
    return float(codes.lowest), float(codes.highest)


def _of_fake_quantizer(meaning: FakeQuantize[GraphOperand]) -> Values | None:
    if meaning.form in CASTS:
        codes = named(meaning.form)[0]
        least, most = (np.full(1, bound) for bound in _ends(codes))
        return Values(np.ones(1, np.float32), least, most, None, codes, False, has_minus_zero=True, is_cast=True)
    if meaning.form == "codes":
        arrays = [array_of(meaning, name) for name in ("scale", "low", "high")]
    elif meaning.form == "integer" and meaning.rounding_mode in _TO_NEAREST:
        scale, zero_point, bits, signed, narrow = (
            array_of(meaning, name) for name in ("scale", "zero_point", "bit_width", "signed", "narrow")
        )
        bit_width, less = float(bits.reshape(())), float(narrow.reshape(()) != 0)
        if not 2 <= bit_width <= 16:
            return None
        half = 2.0 ** (bit_width - 1)
        low, high = (less - half, half - 1) if signed.reshape(()) != 0 else (0, 2 * half - 1 - less)
        offset = zero_point.astype(np.float64)
        arrays = [scale, low - offset, high - offset]
    else:
        return None
    return _of_grid(meaning, arrays)


def _of_grid(meaning: FakeQuantize[GraphOperand], arrays: list[NDArray[Any]]) -> Values | None:
    """Return the values scale * n, for whole numbers n from a lowest to a highest one."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    long = [k for k, length in enumerate(shape) if length != 1]
    if len(long) > 1 or 0 in shape or (long and meaning.axis != "broadcast"):
        return None
    scale, least, most = (np.broadcast_to(array, shape).reshape(-1).astype(np.float64) for array in arrays)
    in_range = np.all((scale >= 2.0**-126) & (scale <= 2.0**110)) and np.all(scale.astype(np.float32) == scale)
    are_whole = all(np.all((np.rint(bound) == bound) & (np.abs(bound) <= 2 * _MAX_CODE)) for bound in (least, most))
    if not in_range or not are_whole or np.any(least > 0) or np.any(most < 0):
        return None
    axis = long[0] - len(shape) if long else None
    return Values(scale.astype(np.float32), least, most, axis, has_minus_zero=meaning.form == "integer")
