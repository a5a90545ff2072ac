"""The loop of a kernel from the shape of x: which elements form a block.

``block_shape`` is compiled into the nodes of sessions as well, where it gets an array instead of a tuple: it uses nothing but
``len``, indexing and integers, and reports a fault by number. ``FAULTS`` holds the message of each number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_FAULT, AXIS = range(2)
FAULTS = {AXIS: "axis is {axis}, out of range for x of shape {x_shape}"}


class Blocks(NamedTuple):
    """A block format, and how a kernel goes through x.

    x is seen as an array of shape (outer, length, inner) in C order, and each `block` rows of its axis are blocks, side by
    side, one for each of the `inner` columns. The last ones of an axis may have fewer rows. A block divides into sub-blocks
    of `sub_block` rows.

    The elements of a sub-block are whole numbers of steps, from `lowest` to `highest`, or values of a float type times a
    step. A step is two to the power of the exponent of the block's largest element, less `drop`. In a sub-block whose
    elements are all smaller it is divided by 2 as often as they allow, and at most `max_shift` times."""

    block: int
    sub_block: int
    max_shift: int
    drop: int
    lowest: int
    highest: int
    rounding_mode: int  # of whole numbers
    length: int = 0
    inner: int = 0


def block_shape(x_shape: Any, axis: int, block: int) -> tuple[int, int, int]:
    """(fault, length, inner) of a shape given as a sequence of integers."""
    rank = len(x_shape)
    size = 1
    for i in range(rank):
        size *= x_shape[i]
    if rank < 2:
        axis = 0  # whatever the attribute says
    if axis < -rank or axis >= (rank if rank else 1):
        return AXIS, 0, 0
    if size <= 1:
        return NO_FAULT, size, 1
    if axis < 0:
        axis += rank
    length = x_shape[axis]
    inner = 1
    for i in range(axis + 1, rank):
        inner *= x_shape[i]
    if length % block == 0:
        length = size // inner  # as good as one long axis
    return NO_FAULT, length, inner


# About how many elements a tile of whole blocks has, or twice as many, if they lie in short rows; how many columns are enough;
# and the most rows, so that longer blocks have no tiles.
TILE, ENOUGH_COLUMNS, MOST_ROWS = 1 << 11, 1 << 7, 1 << 7


def tile_width(block: int) -> int:
    """How many blocks lie side by side in a tile."""
    return max(16, TILE // block // 16 * 16, min(ENOUGH_COLUMNS, 2 * TILE // block // 16 * 16))


def group_size(blocks: Blocks) -> int:
    """Of how many rows a tile has a multiple: what is gone through at once."""
    if blocks.block > 16:
        sub_block = blocks.sub_block if blocks.sub_block < blocks.block else 1
        for rows in range(8, 0, -1):
            if blocks.block % rows == 0 and rows % sub_block == 0:
                return rows
    return blocks.block
