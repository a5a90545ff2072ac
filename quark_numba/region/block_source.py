"""The Python source of the loops over a tile of ordinary blocks, and the values of the names in the source.

A tile has rows and columns: a column is a block of y, and a row has one element of each block (``tiles``). A group is
`group_size` neighbouring rows. A loop computes all rows of a group, one column after the other. The example is the loop between
two steps that round to blocks of 4 without sub-blocks. Its last line checks the magnitudes:

    for group in range(groups):
        offset0 = group * unsigned(1024) + unsigned(0)
        offset1 = group * unsigned(1024) + unsigned(512)
        mask1 = MAGNITUDE if group * unsigned(2) + unsigned(1) < filled_rows else np.uint32(0)
        for i in range(columns):
            e0_0 = x0[i + offset0]
            anchor = find_anchor0(least[i], least[i], drop0)
            v0_0 = convert0(e0_0, anchor, bounds0)
            v1_0 = f1(v0_0, x1)
            magnitude0 = measure2(v1_0, MAGNITUDE)
            ...
            magnitude1 = measure2(v1_1, mask1)
            b0[i + offset0] = v1_0
            b0[i + offset1] = v1_1
            largest[i] = max(largest[i], max(magnitude0, magnitude1))
    has_extreme_blocks |= prepare(largest, least, columns, max_shift2)

The names in the source:

- The last digit of a name is the number of a row in its group.
- `mask1` is 0 for a row of the tile without elements of y, so that the row counts as zeros.
- `anchor` is the number by which `convert` rounds the elements of a block or sub-block.
- `largest` has the largest magnitude of each block. `least` has the bits of each block's smallest anchor, from `prepare`.
- `maxima`, with sub-blocks, has a row of largest magnitudes for each sub-block. An anchor is then computed from `least` and the
  maximum of the sub-block.
"""

from __future__ import annotations

from typing import Any

from ..block.arithmetic import MAGNITUDE
from ..block.granularity import tile_width
from ..block.tiles import closed_function, ordinary_names, prepare
from ..compiling.text import indented
from . import loops
from .element_source import ElementWriter
from .key import Program
from .loops import Apply, Load, LoopBody, Reduce, Store


def bind_ordinary(program: Program) -> dict[str, Any]:
    """Return the values of the names in the text of a `BlockWriter`: MAGNITUDE, `prepare`, and for step n measure{n},
    find_anchor{n}, convert{n}, drop{n}, max_shift{n}, bounds{n} and is_closed{n}. The functions are those of
    ``block.arithmetic`` and ``block.tiles``; is_closed tells whether clipping leaves rounded blocks rounded."""
    names: dict[str, Any] = {"MAGNITUDE": MAGNITUDE, "prepare": prepare}
    for number in program.block_formats:
        block_format = program.steps[number].block_format
        of_step = ordinary_names(*block_format) | {"is_closed": closed_function(*block_format)}
        names |= {f"{name}{number}": value for name, value in of_step.items()}
    return names


class BlockWriter:
    """The writer of the loops over a tile of ordinary blocks. `parts` are the loops, `buffer_count` is the number of their
    buffers, and `size` the number of words that the buffers and the arrays after them take."""

    def __init__(self, program: Program, elements: ElementWriter) -> None:
        self._elements, self._formats = elements, program.block_formats
        self.parts, self.buffer_count = loops.ordinary_parts(program)
        block, self._sub_block = program.block_size, min(each.sub_block for each in self._formats.values())
        self._width, self._group_size = tile_width(block), loops.group_size(program)
        # The first row of each sub-block of a group, for formats with sub-blocks.
        self._sub_blocks = range(0, self._group_size - self._group_size % self._sub_block, self._sub_block)
        self._rows_of_arrays = {"largest": 1, "least": 1, "maxima": block // self._sub_block}
        self._buffers_end = block * self._width * self.buffer_count
        self.size = self._buffers_end + sum(self._rows_of_arrays.values()) * self._width

    def prepare(self) -> list[str]:
        """Return the lines before all loops."""
        lines = [f"groups, columns = unsigned(tile.rows // {self._group_size}), unsigned(tile.filled_columns)"]
        lines += ["filled_rows, has_extreme_blocks = unsigned(tile.filled_rows), np.int64(0)"]
        begin = self._buffers_end
        for name, rows in self._rows_of_arrays.items():
            lines.append(f"{name} = array_at(buffers + {4 * begin}, {rows * self._width}, np.uint32)")
            begin += rows * self._width
        return [*lines, "for i in range(columns):", "    largest[i] = np.uint32(0)"]

    def write(self, loop: LoopBody) -> list[str]:
        """Return the lines of a loop. If the loop finds largest magnitudes, the lines also check them."""
        rows, reduced = range(self._group_size), [action.step for action in loop if isinstance(action, Reduce)]
        computations = [line for row in rows for action in loop for line in self._write_action(action, row)]
        stores = [self._elements.write(action, row) for row in rows for action in loop if isinstance(action, Store)]
        maxima = [line for step in reduced for line in self._write_maxima(step)]
        of_column = ["for i in range(columns):", *indented([*computations, *stores, *maxima])]
        checks = [f"has_extreme_blocks |= prepare(largest, least, columns, max_shift{step})" for step in reduced]
        return ["for group in range(groups):", *indented([*self._write_places(), *of_column]), *checks]

    def _write_places(self) -> list[str]:
        """Return the lines that are computed once for a group: the offsets of its rows and of its sub-blocks' maxima, and the
        masks of the second and further rows, which may have no elements of y."""
        size = self._group_size
        masks = (f"MAGNITUDE if group * unsigned({size}) + unsigned({row}) < filled_rows" for row in range(1, size))
        return [
            *(f"offset{row} = {self._place(size, row)}" for row in range(size)),
            *(f"sub_block{row} = {self._place(size // self._sub_block, row // self._sub_block)}" for row in self._sub_blocks),
            *(f"mask{row} = {mask} else np.uint32(0)" for row, mask in enumerate(masks, 1)),
        ]

    def _write_action(self, action: Load | Apply | Reduce | Store, row: int) -> list[str]:
        """Return the lines that load or compute an element of a row of the group, and no lines for a store. In the first row of
        a block or sub-block, the lines also find the anchor for all of its rows."""
        if isinstance(action, Store):
            return []
        lines = [self._elements.write(action, row)]
        if isinstance(action, Apply) and action.way == loops.ANCHOR and row % self._formats[action.step].sub_block == 0:
            largest = f"maxima[i + sub_block{row}]" if self._has_sub_blocks(action.step) else "least[i]"
            lines.insert(0, f"anchor = find_anchor{action.step}({largest}, least[i], drop{action.step})")
        return lines

    def _write_maxima(self, step: int) -> list[str]:
        """Return the lines that find the largest magnitudes of a step's blocks and sub-blocks, from the magnitudes of the
        rows."""
        magnitudes, lines = [f"magnitude{row}" for row in range(self._group_size)], []
        if self._has_sub_blocks(step):
            for row in self._sub_blocks:
                lines.append(f"maximum{row} = {_largest(magnitudes[row : row + self._sub_block])}")
                lines.append(f"maxima[i + sub_block{row}] = maximum{row}")
            magnitudes = [f"maximum{row}" for row in self._sub_blocks]
        return [*lines, f"largest[i] = max(largest[i], {_largest(magnitudes)})"]

    def _has_sub_blocks(self, step: int) -> bool:
        return self._formats[step].sub_block < self._formats[step].block

    def _place(self, rows: int, row: int) -> str:
        """Return the index of a row of the group in an array that has `rows` rows for each group."""
        return f"group * unsigned({rows * self._width}) + unsigned({row * self._width})"


def _largest(names: list[str]) -> str:
    """Return the expression for the maximum of these names. It is a balanced tree of `max`, so that a processor can compute
    several of them at once."""
    half = len(names) // 2
    return f"max({_largest(names[:half])}, {_largest(names[half:])})" if half else names[0]
