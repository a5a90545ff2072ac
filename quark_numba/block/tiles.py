"""A step of a region that rounds float32 blocks side by side in a tile (``region.tiles`` makes it): which formats have such
steps, and when a clipped block stays as it is.

The functions here are for ordinary blocks, which have no extreme values. Such a step has three parts. First the program of the
region finds the largest magnitude of each block. Then `prepare` checks these magnitudes. Last, the program converts each
element with an anchor that is computed from them. The loops of the program also do the elementwise steps between.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..compiling import jit
from . import arithmetic
from .arithmetic import find_least, is_ordinary
from .formats import HALF_UPWARD
from .granularity import Format
from .key import Key


@jit.inline
def prepare(largest: Any, least: Any, columns: Any, max_shift: Any) -> Any:
    """Return whether any block is not ordinary, as a number. `largest` has a 32-bit word for each block, its largest magnitude,
    which is then set to 0. The result of `find_least` is written to `least`."""
    has_extreme = np.uint32(0)
    for i in range(columns):
        has_extreme = np.uint32(has_extreme | (np.uint32(0) if is_ordinary(largest[i]) else np.uint32(1)))
        least[i] = find_least(largest[i], max_shift)
        largest[i] = np.uint32(0)
    return np.int64(has_extreme)


def ordinary_names(key: Key, block_format: Format) -> dict[str, Any]:
    """Return what a program needs of a format: functions of ``arithmetic`` and the numbers for them."""
    f32 = np.float32
    return {
        "measure": arithmetic.magnitude_measure(key),
        "find_anchor": arithmetic.anchor_finder(key),
        "drop": np.int32(block_format.drop),
        "max_shift": np.uint32(block_format.max_shift if block_format.sub_block < block_format.block else 0),
        "convert": arithmetic.ordinary_converters(key, is_symmetric=_is_symmetric(block_format))[block_format.rounding_mode],
        "bounds": (f32(block_format.lowest), f32(block_format.highest), f32(0)),
    }


def closed_function(key: Key, block_format: Format) -> Any:
    """Return the function (lowest, highest) -> whether clipping an ordinary block to these bounds leaves values of the format;
    None if even clipping at 0 alone (Relu) may give values outside of the format.

    The format has to be symmetric: else the lowest number may have a larger exponent than the block had before.
    Clipping never increases the exponent of a block, so the elements stay multiples of the step. They also have to stay in
    range. After clipping, another element may be the largest of its block, with any mantissa bits. If the largest value of a
    type does not have all mantissa bits set, as in float8e4m3fn, that element may be above it. `lowest` has to be 0. Where
    `highest` replaces an element, `highest` is the largest element of the block. So it has to be a value of the format in such
    a block."""
    most = key.element.highest if key.element else block_format.highest
    bits = key.element.mantissa_bits + 1 if key.element else int(block_format.highest).bit_length()
    is_closed_at_zero = _is_symmetric(block_format) and math.frexp(most)[0] == 1 - 2.0**-bits
    if not (has_ordinary_functions(block_format) and is_closed_at_zero):
        return None
    names = ordinary_names(key, block_format)
    measure, find_anchor, convert = names["measure"], names["find_anchor"], names["convert"]
    drop, bounds, mask, shift = names["drop"], names["bounds"], arithmetic.MAGNITUDE, np.uint32(block_format.max_shift)

    def is_closed(lowest: Any, highest: Any) -> Any:
        magnitude = measure(highest, mask)
        rounded = convert(highest, find_anchor(magnitude, find_least(magnitude, shift), drop), bounds)
        return lowest == np.float32(0) and highest > np.float32(0) and is_ordinary(magnitude) and rounded == highest

    return jit.inline(is_closed)


def has_ordinary_functions(block_format: Format) -> bool:
    """Return whether the functions of ``arithmetic`` for ordinary blocks support the format."""
    return block_format.max_shift <= arithmetic.MAX_SHIFT and block_format.rounding_mode != HALF_UPWARD


def _is_symmetric(block_format: Format) -> bool:
    return block_format.lowest == -block_format.highest
