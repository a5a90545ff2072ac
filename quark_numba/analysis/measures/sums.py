"""Sums that measure how far arrays are apart. The sums of two batches add up to those of both, so that no array is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Elements that are converted to float64 at a time.
_CHUNK = 1 << 16


class Sums:
    """A dataclass of numbers that are added; those whose name begins with "largest" or "least" are the largest or the least."""

    def add(self, other: Any) -> None:
        """Add the sums of what comes later in the data."""
        for each in fields(self):  # type: ignore[arg-type]
            one, two = getattr(self, each.name), getattr(other, each.name)
            if each.name.startswith("largest"):
                value = max(one, two)
            elif each.name.startswith("least"):
                value = min(one, two)
            else:
                value = one + two
            setattr(self, each.name, value)


@dataclass
class ErrorSums(Sums):
    """Of an array and what it should be: their squares and product, and those of the difference."""

    count: int = 0
    signal: float = 0.0  # squares of what it should be
    energy: float = 0.0  # squares of what it is
    product: float = 0.0
    noise: float = 0.0  # squares of the difference
    absolute: float = 0.0
    largest: float = 0.0

    @property
    def sqnr_db(self) -> float:
        """The signal-to-quantization-noise ratio; inf where there is no noise, nan where there are no finite sums."""
        return decibels(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        return cosine(self.signal, self.energy, self.product)

    @property
    def mean(self) -> float:
        return self.absolute / self.count if self.count else 0.0


def decibels(signal: float, noise: float) -> float:
    if math.isnan(signal) or math.isnan(noise) or (math.isinf(signal) and math.isinf(noise)):
        return math.nan
    if noise == 0:
        return math.inf if signal > 0 else math.nan
    return 10 * math.log10(signal / noise) if 0 < signal / noise < math.inf else math.copysign(math.inf, signal - noise)


def cosine(signal: float, energy: float, product: float) -> float:
    """1 where both are zero."""
    if signal == energy == 0:
        return 1.0
    length = math.sqrt(signal) * math.sqrt(energy)
    return product / length if length else 0.0


def error_sums(y: NDArray[Any], expected: NDArray[Any]) -> ErrorSums:
    """The sums of two arrays of numbers of one shape. Two NaNs, and two equal infinities, do not differ."""
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
            if is_integer:  # float64 has not all of 64 bits
                highest, lowest = (choose(a, b).astype(np.uint64) for choose in (np.maximum, np.minimum))
                largest = float((highest - lowest).max())
            sums.add(
                ErrorSums(
                    a.size,
                    float(np.sum(signal**2)),
                    float(np.sum(value**2)),
                    float(np.sum(value * signal)),
                    float(np.sum(noise**2)),
                    float(np.sum(magnitude)),
                    math.inf if math.isnan(largest) else largest,
                )
            )
    return sums


@dataclass
class TensorSums(Sums):
    """Of a tensor that is rounded, in the float model and in the quantized one."""

    count: int = 0
    signal: float = 0.0  # squares of the float model's
    energy: float = 0.0  # squares of the quantized model's
    product: float = 0.0
    noise: float = 0.0  # squares of the difference
    own_noise: float = 0.0  # of rounding the float model's
    inherited_noise: float = 0.0  # of the tensor before rounding
    flushed: float = 0.0
    saturated: float = 0.0
    least_code: float = math.inf  # in units of the codes
    largest_code: float = -math.inf
    largest: float = 0.0
    largest_own: float = 0.0
