"""Loops that add up the differences between tensors, and count elements that saturate or become zero: what NaN, infinite and
equal elements add to the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ...compiling import jit
from ...compiling.array_functions import array_function
from ...compiling.jit import unsigned
from ...compiling.variants import READ
from .sums import LANES, TENSOR_SUMS

# The index of each sum in the results. Its partial sums begin at LANES times the index.
SIGNAL, ENERGY, PRODUCT = map(TENSOR_SUMS.index, ("signal", "energy", "product"))
NOISE, OWN_NOISE, INHERITED_NOISE = map(TENSOR_SUMS.index, ("noise", "own_noise", "inherited_noise"))
FLUSHED, SATURATED = map(TENSOR_SUMS.index, ("flushed", "saturated"))
LEAST_CODE, LARGEST_CODE = map(TENSOR_SUMS.index, ("least_code", "largest_code"))
LARGEST = TENSOR_SUMS.index("largest")

# The exponent bits of a float64. With all other bits cleared, a positive number becomes the largest power of two that is not
# larger, and 0 stays 0.
EXPONENT = np.int64(0x7FF0000000000000)


@jit.inline
def _step(x: Any, own: Any, before: Any, after: Any, lowest: Any, highest: Any, i: Any, lane: Any, lanes: Any) -> None:
    """Add element i to the partial sums of a lane. One array holds all sums, so that the compiler sees that they do not
    overlap."""
    value, rounded, came, stays = np.float64(x[i]), np.float64(own[i]), np.float64(before[i]), np.float64(after[i])
    # Equal infinities do not differ, nor do two NaNs.
    is_nan = value != value
    error = 0.0 if (stays == value) | (is_nan & (stays != stays)) else stays - value
    own_error = 0.0 if (rounded == value) | (is_nan & (rounded != rounded)) else rounded - value
    inherited = 0.0 if (came == value) | (is_nan & (came != came)) else came - value
    # An infinite sum would hide every finite error.
    signal = value if abs(value) < np.inf else 0.0
    energy = stays if abs(stays) < np.inf else 0.0
    lanes[LANES * SIGNAL + lane] += signal * signal
    lanes[LANES * ENERGY + lane] += energy * energy
    lanes[LANES * PRODUCT + lane] += signal * energy
    lanes[LANES * NOISE + lane] += error * error
    lanes[LANES * OWN_NOISE + lane] += own_error * own_error
    lanes[LANES * INHERITED_NOISE + lane] += inherited * inherited
    lanes[LANES * FLUSHED + lane] += 1.0 if (rounded == 0.0) & (value != 0.0) else 0.0
    lanes[LANES * SATURATED + lane] += 1.0 if ((value < lowest) | (value > highest)) & (rounded != value) else 0.0
    least, most = lanes[LANES * LEAST_CODE + lane], lanes[LANES * LARGEST_CODE + lane]
    lanes[LANES * LEAST_CODE + lane] = value if value < least else least
    lanes[LANES * LARGEST_CODE + lane] = value if value > most else most
    largest, error = lanes[LANES * LARGEST + lane], abs(error)
    lanes[LANES * LARGEST + lane] = error if (error > largest) | (error != error) else largest


def _add_up(x: Any, own: Any, before: Any, after: Any, lowest: Any, highest: Any, sums: Any, lanes: Any) -> None:
    """Write the sums into `sums`, in the order of ``TENSOR_SUMS``. `lanes` has zeros, LANES for each sum.

    x is the tensor in the float model, and `own` is x after rounding. `before` and `after` are the tensor in the quantized
    model before and after rounding. An element of x below `lowest` or above `highest` is saturated if rounding changes it. A
    NaN against a number counts as the largest difference."""
    lanes[LANES * LEAST_CODE : LANES * (LEAST_CODE + 1)] = np.inf
    lanes[LANES * LARGEST_CODE : LANES * (LARGEST_CODE + 1)] = -np.inf
    whole = x.size // LANES * LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            _step(x, own, before, after, lowest, highest, start + lane, lane, lanes)
    for lane in range(x.size - whole):
        _step(x, own, before, after, lowest, highest, whole + lane, lane, lanes)
    for field in (SIGNAL, ENERGY, PRODUCT, NOISE, OWN_NOISE, INHERITED_NOISE, FLUSHED, SATURATED):
        sums[field] = 0.0
        for lane in range(LANES):
            sums[field] += lanes[LANES * field + lane]
    sums[LEAST_CODE] = lanes[LANES * LEAST_CODE : LANES * (LEAST_CODE + 1)].min()
    sums[LARGEST_CODE] = lanes[LANES * LARGEST_CODE : LANES * (LARGEST_CODE + 1)].max()
    sums[LARGEST] = 0.0
    for lane in range(LANES):
        value = lanes[LANES * LARGEST + lane]
        sums[LARGEST] = value if (value > sums[LARGEST]) | (value != value) else sums[LARGEST]


def add_up() -> Any:
    numbers = types.float64[::1]
    signature = types.void(READ, READ, READ, READ, types.float64, types.float64, numbers, numbers)
    return array_function(_add_up, "add_up", signature)


@jit.inline
def _set_largest(largest: Any, at: int, x: Any, begin: int, rows: int, inner: int) -> None:
    """Write to `largest`, from `at` on, the powers of two of the largest finite magnitudes of `inner` columns of x. Element
    `begin` is the first one of the `rows` rows."""
    first, count, bits = unsigned(at), unsigned(inner), largest.view(np.int64)
    for column in range(count):
        largest[first + column] = 0.0
    for row in range(rows):
        start = unsigned(begin + row * inner)
        for column in range(count):
            magnitude = abs(x[start + column])
            if (magnitude > largest[first + column]) & (magnitude < np.inf):
                largest[first + column] = magnitude
    for column in range(count):
        bits[first + column] &= EXPONENT


def _saturated_in_blocks(x: Any, own: Any, numbers: Any, highest: Any, largest: Any) -> int:
    """Return the number of saturated elements of x: those beyond `highest` steps of their block that rounding changes.

    `numbers` describes the blocks: (block, sub-block, most shift, drop, length, inner). They consist of rows of x in the shape
    (outer, length, inner). `largest` is scratch space for two rows."""
    block, sub_block, max_shift, drop, length, inner = numbers
    count, columns = 0, unsigned(inner)
    below, least = 2.0 ** (-drop) * highest, 2.0 ** (-max_shift)
    for start in range(0, x.size, length * inner):
        for first in range(0, length, block):
            rows = min(block, length - first)
            _set_largest(largest, 0, x, start + first * inner, rows, inner)
            for sub in range(0, rows, sub_block):
                subs = min(sub_block, rows - sub)
                _set_largest(largest, inner, x, start + (first + sub) * inner, subs, inner)
                for column in range(columns):
                    largest[columns + column] = max(largest[columns + column], largest[column] * least) * below
                for row in range(subs):
                    begin = unsigned(start + (first + sub + row) * inner)
                    for column in range(columns):
                        i = begin + column
                        count += (abs(x[i]) > largest[columns + column]) & (own[i] != x[i])
    return count


def saturated_in_blocks() -> Any:
    signature = types.int64(READ, READ, types.UniTuple(types.int64, 6), types.float64, types.float64[::1])
    return array_function(_saturated_in_blocks, "saturated_in_blocks", signature)
