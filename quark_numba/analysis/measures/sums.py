"""Sums that measure the differences between arrays: the formulas of SQNR, cosine and decibels, and how fields of batches are
combined: added, or the largest, the least or the first one. The sums of batches add up, so no array is kept."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The number of elements that are converted to float64 at a time.
_CHUNK = 1 << 16


class Sums:
    """A dataclass of sums, also in dicts and lists, which add up key by key and place by place. The metadata of a field say if
    it holds something other than a sum: LARGEST, LEAST, FIRST or JOINED."""

    def add(self, other: Any) -> None:
        """Add the sums of later batches."""
        for each in fields(self):  # type: ignore[arg-type]
            combine = each.metadata.get(_COMBINE, added)
            setattr(self, each.name, combine(getattr(self, each.name), getattr(other, each.name)))


def added(one: Any, two: Any) -> Any:
    """Return the sum of two Sums, or of two values of their fields. The first one may change, or be None."""
    if one is None:
        return two
    if isinstance(one, dict):
        return one | {key: added(one[key], value) if key in one else value for key, value in two.items()}
    if isinstance(one, list):
        return [added(*pair) for pair in zip(one, two, strict=True)]
    if hasattr(one, "add"):
        one.add(two)
        return one
    return one + two


def _larger(one: float, two: float) -> float:
    return one if one > two or one != one else two


def _lesser(one: float, two: float) -> float:
    return two if two != two else min(one, two)


_COMBINE = "combine"

# The metadata of fields that hold a maximum or a minimum, or NaN if there is one, or the value of the first batch, or a list of
# the values of all batches.
LARGEST, LEAST, FIRST, JOINED = ({_COMBINE: combine} for combine in (_larger, _lesser, lambda one, _: one, operator.iadd))


@dataclass
class ErrorSums(Sums):
    """Sums over an array and the array that is expected: squares, products and differences."""

    count: int = 0
    signal: float = 0.0  # squares of the expected array's finite elements
    energy: float = 0.0  # squares of the array's finite elements
    product: float = 0.0
    noise: float = 0.0  # squares of the differences
    absolute: float = 0.0
    largest: float = field(default=0.0, metadata=LARGEST)

    @property
    def sqnr_db(self) -> float:
        """The signal-to-quantization-noise ratio. It is inf if the arrays are equal, and NaN if one has a NaN where the other
        has a number, if the squares are beyond float64, or if there is no element."""
        if not self.count or self.signal == self.noise == 0 < self.largest:  # squares below float64's least number
            return math.nan
        return decibels(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        return cosine(self.signal, self.energy, self.product) if self.count else math.nan

    @property
    def mean(self) -> float:
        return share(self.absolute, self.count)


def share(part: float, whole: float) -> float:
    """Return the share of a part in a whole, or NaN if the whole is 0."""
    return part / whole if whole else math.nan


def decibels(signal: float, noise: float) -> float:
    """Return a ratio in decibels: inf without noise, even if there is no signal."""
    if math.isnan(signal) or math.isnan(noise) or (math.isinf(signal) and math.isinf(noise)):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if 0 < signal / noise < math.inf else math.copysign(math.inf, signal - noise)


def cosine(signal: float, energy: float, product: float) -> float:
    """Return the cosine of the angle between two arrays, or 1 if both are zero."""
    if signal == energy == 0:
        return 1.0
    length = math.sqrt(signal) * math.sqrt(energy)
    return product / length if length else 0.0


def error_sums(y: NDArray[Any], expected: NDArray[Any]) -> ErrorSums:
    """Return the sums over two arrays of numbers with the same shape. Two NaNs do not differ, nor do equal infinities. Only
    finite elements add to the signal, as an infinite one would hide every finite error."""
    sums = ErrorSums()
    rows, expected_rows = y.reshape(-1), expected.reshape(-1)
    is_integer = y.dtype.kind in "iu" and expected.dtype.kind in "iu"
    for start in range(0, rows.size, _CHUNK):
        a, b = rows[start : start + _CHUNK], expected_rows[start : start + _CHUNK]
        with np.errstate(all="ignore"):
            value, signal = a.astype(np.float64), b.astype(np.float64)
            noise = value - signal
            noise[(a == b) | (np.isnan(signal) & np.isnan(value))] = 0
            magnitude = np.abs(noise)
            largest = float(magnitude.max())
            if is_integer:  # float64 cannot hold all integers of 64 bits
                highest, lowest = (choose(a, b).astype(np.uint64) for choose in (np.maximum, np.minimum))
                largest = float((highest - lowest).max())
            for array in (value, signal):
                array[~np.isfinite(array)] = 0
            terms = signal**2, value**2, value * signal, noise**2, magnitude
            of_signal, energy, product, of_noise, absolute = (float(np.sum(array)) for array in terms)
            largest = math.inf if math.isnan(largest) else largest
            sums.add(ErrorSums(a.size, of_signal, energy, product, of_noise, absolute, largest))
    return sums


@dataclass
class TensorSums(Sums):
    """Sums over a rounded tensor, in the float model and in the quantized model."""

    count: int = 0
    signal: float = 0.0  # squares of the finite elements of the float model's tensor
    energy: float = 0.0  # squares of the finite elements of the quantized model's tensor after rounding
    product: float = 0.0
    noise: float = 0.0  # squares of their differences
    own_noise: float = 0.0  # squares of the error of rounding the float model's tensor
    inherited_noise: float = 0.0  # squares of the error of the quantized model's tensor before rounding
    flushed: float = 0.0
    saturated: float = 0.0
    least_code: float = field(default=math.inf, metadata=LEAST)  # in units of the type's codes
    largest_code: float = field(default=-math.inf, metadata=LARGEST)
    largest: float = field(default=0.0, metadata=LARGEST)
    reshaped: float = 0.0  # batches in which its shape differs in the quantized model, so only its own error counts


# The fields that `tensors.add_up` sums over the elements.
TENSOR_SUMS = [each.name for each in fields(TensorSums) if each.name not in ("count", "reshaped")]

# The number of partial sums of each, which are computed side by side and then added. The order is the same on any machine and
# with any number of threads.
LANES = 64
