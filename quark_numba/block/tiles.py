"""A step of a region that rounds float32 blocks side by side in a tile, which stays in the first-level cache.

The function is generated for a format and contains its numbers. Its loop over columns has straight-line code, a line for each
row, so that elements stay in registers. It converts ordinary blocks, which are all but blocks of extreme values. If a tile has
another block, the task of ``kernels`` converts the tile.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import types

from ..compiling import jit
from ..compiling.intrinsics import call, record_at, stack
from ..compiling.text import function_of, indented
from . import arithmetic
from .formats import HALF_UPWARD
from .granularity import Blocks, group_size, tile_width
from .kernels import WORK
from .key import Key

# The values that the function for a tile returns.
ORDINARY, OTHER, NO_MEMORY = range(3)

_WORK_WORDS = WORK.itemsize // 8


@functools.cache
def tile_function(key: Key, blocks: Blocks) -> Any:
    """Return the C function int64_t (int64_t task, int64_t x, int64_t y, int64_t rows, int64_t passes), which converts a tile
    x to y. Both have `tile_width` columns and `rows` rows: a column is a block or its beginning, and `rows` is a multiple of
    `group_size`. `task` is the address of the task that converts any blocks of the key. If `passes` is set, x is copied. The
    function returns ORDINARY if all blocks are ordinary, NO_MEMORY if memory cannot be allocated, and OTHER otherwise.
    """
    text, names = _source(key, blocks)
    names |= {"convert_any": _convert_any, "ORDINARY": ORDINARY, "OTHER": OTHER}
    tile = function_of(text, __name__, __file__, names)
    numbers = "_".join(str(number) for number in blocks).replace("-", "m")
    return jit.c_function(tile, f"tile_{key.name}_{numbers}", types.int64(*[types.int64] * 5))


def _source(key: Key, blocks: Blocks) -> tuple[str, dict[str, Any]]:
    """Return the source of the function, and the names in it. For example, for blocks of 4 with sub-blocks of 2:

        def tile(task, x_address, y_address, rows, passes):
            size = rows * 512
            x, y = array_at(x_address, size, np.float32), array_at(y_address, size, np.float32)
            if passes:
                ...
            left = np.uint32(0)
            for i in range(unsigned(512)):
                m0 = magnitude_of(x[i + unsigned(0)])
                ...
                s0 = max(m0, m1)
                s1 = max(m2, m3)
                shared = max(s0, s1)
                left = np.uint32(left | (np.uint32(0) if is_ordinary(shared) else np.uint32(1)))
                a0 = anchor_of(shared, s0, max_shift, drop)
                a1 = anchor_of(shared, s1, max_shift, drop)
                y[i + unsigned(0)] = convert(x[i + unsigned(0)], a0, bounds)
                ...
            if left == np.uint32(0):
                return ORDINARY
            return convert_any(task, x_address, y_address, rows, blocks)

    For larger blocks there are two passes over the groups of rows: one for the maximum of the block, and one to convert.
    """
    width, group = tile_width(blocks.block), group_size(blocks)
    lines = [f"size = rows * {width}"]
    lines += ["x, y = array_at(x_address, size, np.float32), array_at(y_address, size, np.float32)"]
    lines += ["if passes:", "    for i in range(unsigned(size)):", "        y[i] = x[i]", "    return OTHER"]
    names: dict[str, Any] = {"blocks": blocks._replace(inner=width)}
    if _is_quick(blocks):
        names |= _quick_names(key, blocks)
        sub_block = min(blocks.sub_block, group)
        places = [f"[i + unsigned({row * width})]" for row in range(group)]
        subs = [range(first, first + sub_block) for first in range(0, group, sub_block)]
        measure = [f"m{row} = magnitude_of(x{place})" for row, place in enumerate(places)]
        measure += [f"s{k} = {_largest([f'm{row}' for row in rows])}" for k, rows in enumerate(subs)]
        largest = _largest([f"s{k}" for k in range(len(subs))])
        check = "left = np.uint32(left | (np.uint32(0) if is_ordinary(shared) else np.uint32(1)))"
        convert = [f"y{place} = convert(x{place}, a{row // sub_block}, bounds)" for row, place in enumerate(places)]
        if blocks.sub_block == blocks.block:
            convert.insert(0, "a0 = anchor_of(shared, shared, max_shift, drop)")
        else:
            convert = [*(f"a{k} = anchor_of(shared, s{k}, max_shift, drop)" for k in range(len(subs))), *convert]
        columns, each_group = f"for i in range(unsigned({width})):", f"for g in range(unsigned(rows // {group})):"
        group_columns = f"for i in range(g * unsigned({group * width}), g * unsigned({group * width}) + unsigned({width})):"
        lines.append("left = np.uint32(0)")
        if group == blocks.block:
            lines += [columns, *indented([*measure, f"shared = {largest}", check, *convert])]
        else:
            column = f"i - g * unsigned({group * width})"
            lines += [f"top = array_at(stack({width // 2}), {width}, np.uint32)", columns, "    top[i] = np.uint32(0)"]
            in_group = [group_columns, *indented([*measure, f"top[{column}] = max(top[{column}], {largest})"])]
            lines += [each_group, *indented(in_group), columns, *indented(["shared = top[i]", check])]
            again = [] if blocks.sub_block == blocks.block else measure
            in_group = [group_columns, *indented([f"shared = top[{column}]", *again, *convert])]
            lines += [each_group, *indented(in_group)]
        lines += ["if left == np.uint32(0):", "    return ORDINARY"]
    lines.append("return convert_any(task, x_address, y_address, rows, blocks)")
    return "\n".join(["def tile(task, x_address, y_address, rows, passes):", *indented(lines)]) + "\n", names


def _largest(names: list[str]) -> str:
    """Return the expression for the maximum of these names, as a tree, so that no `max` waits for all the others."""
    half = len(names) // 2
    return f"max({_largest(names[:half])}, {_largest(names[half:])})" if half else names[0]


@jit.function
def _convert_any(task: int, x_address: int, y_address: int, rows: int, blocks: Any) -> int:
    work_address = stack(_WORK_WORDS)
    work = record_at(work_address, WORK)
    work.x, work.y, work.size, work.parts, work.has_failed = x_address, y_address, rows * blocks.inner, 1, 0
    work.block, work.sub_block, work.max_shift, work.drop = blocks.block, blocks.sub_block, blocks.max_shift, blocks.drop
    work.lowest, work.highest, work.rounding_mode = blocks.lowest, blocks.highest, blocks.rounding_mode
    work.length, work.inner = rows, blocks.inner
    call(task, (work_address, 0))
    return NO_MEMORY if work.has_failed else OTHER


def closed_function(key: Key, blocks: Blocks) -> Any:
    """Return the function (lowest, highest) -> whether clipping an ordinary block to these bounds leaves values of the format;
    None if not even a block whose negative elements become 0 always does.

    Clipping does not increase the exponent of the block, so that elements stay multiples of the step. But they have to stay in
    range too. An element that becomes the largest of its block may have any mantissa bits, while the largest value of a type
    may lack some, as in float8e4m3fn. `lowest` has to be 0. Then `highest`, where it replaces an element, is the largest of the
    block, and has to be a value of the format in such a block."""
    most = key.element.highest if key.element else blocks.highest
    bits = key.element.mantissa_bits + 1 if key.element else int(blocks.highest).bit_length()
    if not _is_quick(blocks) or math.frexp(most)[0] != 1 - 2.0**-bits:
        return None
    names = _quick_names(key, blocks)
    magnitude_of, is_ordinary, anchor_of, convert = (
        names[name] for name in ("magnitude_of", "is_ordinary", "anchor_of", "convert")
    )
    max_shift, drop, bounds = names["max_shift"], names["drop"], names["bounds"]

    def is_closed(lowest: Any, highest: Any) -> Any:
        magnitude = magnitude_of(highest)
        rounded = convert(highest, anchor_of(magnitude, magnitude, max_shift, drop), bounds)
        return lowest == np.float32(0) and highest > np.float32(0) and is_ordinary(magnitude) and rounded == highest

    return jit.inline(is_closed)


def _is_quick(blocks: Blocks) -> bool:
    """Return whether the quick functions of ``arithmetic`` support the format."""
    is_symmetric = blocks.lowest == -blocks.highest
    return is_symmetric and blocks.max_shift <= arithmetic.MOST_SHIFT and blocks.rounding_mode != HALF_UPWARD


def _quick_names(key: Key, blocks: Blocks) -> dict[str, Any]:
    """Return the quick functions of ``arithmetic`` and the numbers of the format, by their names in `_source`."""
    f32 = np.float32
    return {
        **arithmetic.quick_functions(key),
        "convert": arithmetic.quick_converters(key)[blocks.rounding_mode],
        "bounds": (f32(blocks.lowest), f32(blocks.highest), f32(0)),
        "max_shift": np.uint32(blocks.max_shift),
        "drop": np.int32(blocks.drop),
    }
