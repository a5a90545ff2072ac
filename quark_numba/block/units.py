"""How the work of a kernel is divided into units, which threads share, and the memory that a unit needs: the sizes of units,
and of pieces of packed codes."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..compiling import jit

# The number of elements that are converted together: their magnitudes and steps stay in the first-level cache.
UNIT_SIZE = 1 << 11


class Runs(NamedTuple):
    """The whole blocks of a tensor, in runs of blocks at equal distances. The elements of a block are consecutive in memory
    (`inner` is 1). A run has either all blocks of one axis, or the blocks at one position of every axis, whichever are more."""

    run_count: int
    blocks: int  # the number of blocks in a run
    stride: int  # from the first element of a block to the first element of the next block
    between: int  # from the first element of a run to the first element of the next run
    width: int  # the number of blocks in a unit, converted side by side; the last unit of a run may have fewer
    tails: int  # the number of short blocks at the ends of axes, divided into units of `width` blocks too


@jit.function
def runs_of(size: int, block_format: Any, loop: Any) -> Any:
    """Return the Runs of a tensor of `size` elements."""
    outer = size // loop.length
    whole, rest = divmod(loop.length, block_format.block)
    width = max(1, UNIT_SIZE // min(block_format.block, loop.length))
    tails = outer if rest else outer * 0
    if whole >= outer:
        return Runs(outer, whole, block_format.block, loop.length, width, tails)
    return Runs(whole, outer, loop.length, block_format.block, width, tails)


@jit.inline
def blocks_of_unit(unit: int, runs: Any, block_format: Any, loop: Any) -> Any:
    """Return (start, stride, count, rows): the unit is `count` blocks of `rows` elements. The first block begins at element
    `start`, and each further block begins `stride` elements after the previous one."""
    units_of_run = -(-runs.blocks // runs.width)
    if unit < runs.run_count * units_of_run:
        run, i = divmod(unit, units_of_run)
        at = i * runs.width
        return run * runs.between + at * runs.stride, runs.stride, min(runs.width, runs.blocks - at), block_format.block
    at = (unit - runs.run_count * units_of_run) * runs.width
    rows = loop.length % block_format.block
    return (at + 1) * loop.length - rows, loop.length, min(runs.width, runs.tails - at), rows


@jit.function
def unit_shape(block_format: Any, loop: Any) -> Any:
    """Return (width, across), which divide blocks side by side (`inner` is not 1) into units: a unit is `width` columns of a
    row of blocks, and the row has `across` units."""
    sub_blocks = -(-min(block_format.block, loop.length) // block_format.sub_block)
    across = -(-loop.inner // max(1, UNIT_SIZE // sub_blocks))
    return -(-loop.inner // across), across


@jit.function
def count_units(size: int, block_format: Any, loop: Any) -> int:
    """Return the number of units of a tensor of `size` elements. Threads share the units; a thread does its units in order."""
    if size == 0:
        return 0
    if loop.inner == 1:
        runs = runs_of(size, block_format, loop)
        return runs.run_count * -(-runs.blocks // runs.width) + -(-runs.tails // runs.width)
    _, across = unit_shape(block_format, loop)
    return size // (loop.length * loop.inner) * -(-loop.length // block_format.block) * across


@jit.function
def sub_blocks_at_a_time(block_format: Any, loop: Any) -> int:
    """Return the largest number of steps of a unit: the number of elements of a tile, or the number of sub-blocks of one column
    if that is larger."""
    return max(UNIT_SIZE, -(-min(block_format.block, loop.length) // block_format.sub_block))


@jit.function
def scratch_size(block_format: Any, loop: Any) -> int:
    """Return the number of 32-bit words that `run` needs as scratch memory."""
    return 2 * sub_blocks_at_a_time(block_format, loop) + 3 * UNIT_SIZE


# The smallest number of columns of a piece of `run_packed`. These columns are whole bytes, however many codes a byte has.
_MIN_COLUMNS = 64


@jit.function
def piece_columns(block_format: Any, loop: Any, per_byte: int) -> int:
    """Return the number of columns of a piece of `run_packed`. A piece is one or more whole rows of blocks side by side. Only a
    row that is longer than a tile, and whose lines begin and end with whole bytes, is cut into pieces of fewer columns."""
    if loop.inner == 1 or loop.inner % per_byte or block_format.block * loop.inner <= UNIT_SIZE:
        return loop.inner
    return min(loop.inner, max(1, UNIT_SIZE // block_format.block // _MIN_COLUMNS) * _MIN_COLUMNS)


@jit.function
def piece_size(block_format: Any, loop: Any, per_byte: int) -> int:
    """Return the largest number of elements of a piece of `run_packed`. A piece of whole rows has an even number of
    elements."""
    columns = piece_columns(block_format, loop, per_byte)
    row = block_format.block * columns
    if columns < loop.inner:
        return row
    count = max(1, UNIT_SIZE // row)
    return row * (count + count * row % 2)


@jit.function
def count_pieces(size: int, block_format: Any, loop: Any, per_byte: int) -> int:
    """Return the number of pieces of a tensor of `size` elements."""
    columns = piece_columns(block_format, loop, per_byte)
    if columns < loop.inner:
        return size // (block_format.block * loop.inner) * -(-loop.inner // columns)
    return -(-size // piece_size(block_format, loop, per_byte))
