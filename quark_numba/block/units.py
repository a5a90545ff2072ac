"""How the work of a kernel is divided into units, and the memory that a unit needs."""

from __future__ import annotations

from typing import Any

from ..compiling import jit

# The number of elements that are converted together: their magnitudes and steps stay in the first-level cache.
TILE = 1 << 11


@jit.function
def runs_of(size: int, blocks: Any) -> Any:
    """Return (runs, count, step, width, tails) of blocks whose elements are consecutive in memory (`inner` is 1). A run is
    `count` whole blocks whose first elements are `step` apart; up to `width` of them, a unit, are converted side by side.
    `tails` is the number of short blocks at the ends of the axes, which are divided into units alike."""
    outer = size // blocks.length
    whole, rest = divmod(blocks.length, blocks.block)
    width = max(1, TILE // min(blocks.block, blocks.length))
    tails = outer if rest else outer * 0
    if whole >= outer:
        return outer, whole, blocks.block, width, tails
    return whole, outer, blocks.length, width, tails


@jit.function
def unit_shape(blocks: Any) -> Any:
    """Return (width, across), which divide blocks side by side (`inner` is not 1) into units: a unit is `width` columns of a
    row of blocks, and the row has `across` units."""
    sub_blocks = -(-min(blocks.block, blocks.length) // blocks.sub_block)
    across = -(-blocks.inner // max(1, TILE // sub_blocks))
    return -(-blocks.inner // across), across


@jit.function
def count_units(size: int, blocks: Any) -> int:
    """Return the number of units of a tensor of `size` elements. Threads share the units; a thread does its units in order."""
    if size == 0:
        return 0
    if blocks.inner == 1:
        runs, count, _, width, tails = runs_of(size, blocks)
        return runs * -(-count // width) + -(-tails // width)
    _, across = unit_shape(blocks)
    return size // (blocks.length * blocks.inner) * -(-blocks.length // blocks.block) * across


@jit.function
def sub_blocks_at_a_time(blocks: Any) -> int:
    """Return the largest number of steps of a unit: the sub-blocks of one column, or the elements of a tile if there are
    more of them."""
    return max(TILE, -(-min(blocks.block, blocks.length) // blocks.sub_block))


@jit.function
def scratch_size(blocks: Any) -> int:
    """Return the number of 32-bit words that `run` needs as scratch memory."""
    return 2 * sub_blocks_at_a_time(blocks) + 3 * TILE


@jit.function
def piece_size(blocks: Any) -> int:
    """Return the number of elements of a piece of `run_packed`: an even number, and whole rows of blocks side by side."""
    row = blocks.block * blocks.inner
    count = max(1, TILE // row)
    return row * (count + count * row % 2)
