"""The loop over x, from its shape: which elements form a block, the messages of shapes that are refused, the size of a tile,
and the largest block in a GPU's registers.

``block_shape`` and ``whole_block_shape`` are also compiled into the nodes of sessions, where the shape is an array instead of a
tuple. So they use only ``len``, indexing and integers, and return a fault as a number. ``FAULTS`` has the message for each
number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_FAULT, AXIS, LENGTH, SCALE = range(4)
FAULTS = {
    AXIS: "axis is {axis}, out of range for x of shape {x_shape}",
    LENGTH: "x has shape {x_shape}; expected a length along axis {axis} that is a multiple of block_size, {block_size}",
    SCALE: "scale has shape {scale_shape}; expected one element",
}


class Format(NamedTuple):
    """The numbers of a block format. A block has `block` elements, and is divided into sub-blocks of `sub_block` elements.

    An element is a whole number of steps, from `lowest` to `highest`, or a value of a float type times the step. The step is
    2**(e - drop), where e is the exponent of the largest element of the block. In a sub-block whose largest element has a
    smaller exponent, the step is divided by 2 once for each unit of the difference, at most `max_shift` times."""

    block: int
    sub_block: int
    max_shift: int
    drop: int
    lowest: int
    highest: int
    rounding_mode: int  # for whole numbers of steps


class BlockLoop(NamedTuple):
    """The loop over x, which is viewed as an array of shape (outer, length, inner) in C order. Consecutive rows
    of the middle axis, as many as a block has elements, are `inner` blocks side by side, one in each column. The last block of
    an axis may have fewer rows."""

    length: int
    inner: int


def block_shape(x_shape: Any, axis: int, block: int) -> tuple[int, int, int]:
    """Return (fault, and the length and inner of the BlockLoop) for a shape given as a sequence of integers."""
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
        length = size // inner  # blocks end where an axis ends: treat all axes as one long axis
    return NO_FAULT, length, inner


def whole_block_shape(x_shape: Any, axis: int, block: int) -> tuple[int, int, int]:
    """Return what `block_shape` returns. It is also a fault if x does not have the axis, or if the last block would be
    shorter."""
    rank = len(x_shape)
    if axis < -rank or axis >= rank:
        return AXIS, 0, 0
    if x_shape[axis if axis >= 0 else axis + rank] % block:
        return LENGTH, 0, 0
    return block_shape(x_shape, axis, block)


# The approximate number of elements of a tile of whole blocks, which may be doubled if its rows would be short; the number of
# columns up to which a row counts as short; and the largest number of rows. Blocks with more rows are not converted in tiles.
_TILE_SIZE, _ENOUGH_COLUMNS, MAX_ROWS = 1 << 11, 1 << 7, 1 << 7

# The most rows of a block that a thread of a GPU holds in registers.
MAX_IN_REGISTERS = 32


def tile_width(block: int) -> int:
    """Return the number of blocks side by side in a tile."""
    return max(16, _TILE_SIZE // block // 16 * 16, min(_ENOUGH_COLUMNS, 2 * _TILE_SIZE // block // 16 * 16))
