"""The Python source of the loops over a tile, for programs with steps of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..block.arithmetic import MAGNITUDE
from ..block.granularity import tile_width
from ..block.tiles import closed_function, is_quick, quick_names
from ..compiling.text import indented
from .key import Program
from .loops import Loop, Row, lifetimes, numbered_buffers

# The words behind the addresses of the inputs, for a program with steps of blocks: whether blocks stay as they are; the number
# of rows of the tile, a multiple of `group_size`; the numbers of rows and columns that hold elements of y; whether memory could
# not be allocated, written by the program; the address of the room for its buffers; and the functions of its steps of blocks,
# two for each: `block.tiles.prepare`, and the task that converts any blocks.
PASSES, ROWS, FILLED_ROWS, FILLED_COLUMNS, HAS_FAILED, ROOM, FUNCTIONS = range(7)


def group_size(program: Program) -> int:
    """Return the number of rows of a tile that are converted together. They are whole sub-blocks of each step; without
    sub-blocks they are two, so that a maximum is stored for two rows at a time."""
    formats = program.blocks
    rows = math.lcm(*(blocks.sub_block for blocks in formats if blocks.sub_block < blocks.block))
    return 2 if rows == 1 and all(blocks.block % 2 == 0 for blocks in formats) else rows


def has_quick_loops(program: Program) -> bool:
    """Return whether a program has steps of blocks, all with quick functions, and with sub-blocks of at most one size."""
    formats = program.blocks
    sizes = {blocks.sub_block for blocks in formats if blocks.sub_block < blocks.block}
    return bool(formats) and all(map(is_quick, formats)) and len(sizes) <= 1


class QuickLoops:
    """The loops over a tile of ordinary blocks: one for each step of blocks, and one more. A loop converts the elements of the
    step of blocks before it, does the elementwise steps up to the next step of blocks, and finds the largest magnitudes for
    this one. For example, the loop between two steps of blocks of 4 without sub-blocks, and the call of `block.tiles.prepare`,
    which checks the magnitudes:

        for g in range(groups):
            o0 = g * unsigned(1024) + unsigned(0)
            o1 = g * unsigned(1024) + unsigned(512)
            k1 = MAGNITUDE if g * unsigned(2) + unsigned(1) < filled else np.uint32(0)
            for i in range(columns):
                e0_0 = x0[i + o0]
                anchor = anchor_of0(least[i], least[i], drop0)
                v0_0 = convert0(e0_0, anchor, bounds0)
                v1_0 = f1(v0_0, x1)
                m0 = magnitude_of2(v1_0, MAGNITUDE)
                ...
                m1 = magnitude_of2(v1_1, k1)
                b0[i + o0] = v1_0
                b0[i + o1] = v1_1
                largest[i] = max(largest[i], max(m0, m1))
        left |= call(at[11], (largest.ctypes.data, least.ctypes.data, np.int64(columns)))

    Rows of the tile behind the last one with elements of y count as zeros. With sub-blocks, `maxima` has a row for each of
    them, and an anchor follows from its largest magnitude and `least`."""

    def __init__(self, program: Program) -> None:
        self.program, self.count, self.numbers = program, len(program.inputs), program.block_numbers
        self.formats = {number: program.steps[number].block_format for number in self.numbers}
        block = self.formats[self.numbers[0]][1].block
        self.width, self.group = tile_width(block), group_size(program)
        self.tile = self.width * block
        self.loops = self._loops(self._kept())
        # A loop reads each element before it writes it.
        self.buffers = numbered_buffers(lifetimes(program, self.loops), is_in_place=True)
        self.sub_block = min(blocks.sub_block for _, blocks in self.formats.values())
        # Behind the buffers are the largest magnitudes of blocks, the results of `prepare`, and the largest magnitudes of
        # sub-blocks.
        self.largest = self.tile * len(set(self.buffers.values()))
        self.size = self.largest + 2 * self.width + block // self.sub_block * self.width  # in elements

    def source(self, expression: Callable[[int, list[str]], str], names: dict[str, Any]) -> list[str]:
        """Return the lines of the source, which has the arrays of the tile already, and add the names in it to `names`.
        `expression` makes the expression of an elementwise step from its number and its operands'. The program has returned
        behind these lines if all blocks are ordinary."""
        names["MAGNITUDE"] = MAGNITUDE
        for number, kind in self.formats.items():
            names |= {f"{name}{number}": value for name, value in quick_names(*kind).items()}
        at = [f"at[{self.count + word}]" for word in range(FUNCTIONS)]
        lines = [f"groups, columns = unsigned({at[ROWS]} // {self.group}), unsigned({at[FILLED_COLUMNS]})"]
        lines += [f"filled, left = unsigned({at[FILLED_ROWS]}), np.int64(0)"]
        rows = self.tile // self.width // self.sub_block
        sizes = {"largest": self.width, "least": self.width, "maxima": rows * self.width}
        for k, (name, size) in enumerate(sizes.items()):
            lines.append(f"{name} = array_at(room + {4 * (self.largest + k * self.width)}, {size}, np.uint32)")
        lines += _columns(["largest[i] = np.uint32(0)"])
        parts = [self._part(loop, self.loops, expression) for loop in self.loops]
        clipped = self._clipped()
        if clipped is not None:
            number, bounds = clipped
            loops = self._loops(self._kept() | {number})
            others = [self._part(loop, loops, expression) for loop in loops]
            first = next(k for k, part in enumerate(others) if part != parts[k])
            last = next(k for k in range(1, len(others) + 1) if others[-k] != parts[-k]) - 1
            names[f"is_closed{number}"] = closed_function(*self.formats[number])
            checks = " and ".join(f"is_closed{number}(x{low}, x{high})" for low, high in bounds)
            middles = [indented([line for part in code[first : len(code) - last] for line in part]) for code in (others, parts)]
            parts[first : len(parts) - last] = [[f"if {checks}:", *middles[0], "else:", *middles[1]]]
        lines += [line for part in parts for line in part]
        return [f"if {at[PASSES]} == 0:", *indented([*lines, "if left == 0:", "    return"])]

    def _kept(self) -> set[int]:
        """Return the steps of blocks that return an operand whose blocks were ordinary."""
        return {number for number in self.numbers if _bounds_since(self.program, number) == []}

    def _clipped(self) -> tuple[int, list[tuple[int, int]]] | None:
        """Return the first step of blocks that does so if the bounds of each Clip are values of the format, with these."""
        candidates = ((number, _bounds_since(self.program, number)) for number in self.numbers)
        return next(((number, bounds) for number, bounds in candidates if bounds), None)

    def _loops(self, kept: set[int]) -> list[Loop]:
        loops = [Loop([])]
        for number in range(len(self.program.steps)):
            if number in self.formats and number not in kept:
                loops[-1] = loops[-1]._replace(behind=number)
                loops.append(Loop([], before=number))
            loops[-1].steps.append(number)
        return loops

    def _part(self, loop: Loop, loops: list[Loop], expression: Callable[[int, list[str]], str]) -> list[str]:
        """Return the lines of a loop, and of what goes before and behind it."""
        buffers = {number: self.buffers[number] for number in lifetimes(self.program, loops)}
        group_lines: list[str] = []
        lines: list[str] = []
        stores: list[str] = []
        magnitudes: list[str] = []
        for place in range(self.group):
            group_lines.append(f"o{place} = g * unsigned({self.group * self.width}) + unsigned({place * self.width})")
            row = Row(self.program, buffers, place)
            for number in loop.steps:
                operands = row.operands(number)
                if number != loop.before:
                    row.compute(number, operands[0] if number in self.formats else expression(number, operands))
                    continue
                if place % self.formats[number][1].sub_block == 0:
                    has_sub_blocks = self._has_sub_blocks(number)
                    largest = f"maxima[i + {self._sub_block(place, group_lines)}]" if has_sub_blocks else "least[i]"
                    row.lines.append(f"anchor = anchor_of{number}({largest}, least[i], drop{number})")
                row.compute(number, f"convert{number}({operands[0]}, anchor, bounds{number})")
            if loop.behind is not None:
                (element,) = row.operands(loop.behind)
                mask = f"k{place}" if place else "MAGNITUDE"  # a group has at least one row with elements of y
                if place:
                    is_filled = f"g * unsigned({self.group}) + unsigned({place}) < filled"
                    group_lines.append(f"k{place} = MAGNITUDE if {is_filled} else np.uint32(0)")
                row.lines.append(f"m{place} = magnitude_of{loop.behind}({element}, {mask})")
                magnitudes.append(f"m{place}")
            lines += row.lines
            stores += row.stores(loop.steps)
        if loop.behind is None:
            return ["for g in range(groups):", *indented([*group_lines, *_columns(lines + stores)])]
        if self._has_sub_blocks(loop.behind):
            for place in range(0, self.group, self.sub_block):
                lines.append(f"s{place} = {_largest(magnitudes[place : place + self.sub_block])}")
                stores.append(f"maxima[i + {self._sub_block(place, group_lines)}] = s{place}")
            magnitudes = [f"s{place}" for place in range(0, self.group, self.sub_block)]
        stores.append(f"largest[i] = max(largest[i], {_largest(magnitudes)})")
        function = f"at[{self.count + FUNCTIONS + 2 * self.numbers.index(loop.behind)}]"
        check = f"left |= call({function}, (largest.ctypes.data, least.ctypes.data, np.int64(columns)))"
        return ["for g in range(groups):", *indented([*group_lines, *_columns(lines + stores)]), check]

    def _has_sub_blocks(self, number: int) -> bool:
        blocks = self.formats[number][1]
        return blocks.sub_block < blocks.block

    def _sub_block(self, row: int, each_group: list[str]) -> str:
        """Return the name of the index in `maxima` of the first column of the sub-block that begins at a row of a group. A line
        is added that computes it."""
        index = f"g * unsigned({self.group // self.sub_block * self.width}) + unsigned({row // self.sub_block * self.width})"
        if f"t{row} = {index}" not in each_group:
            each_group.append(f"t{row} = {index}")
        return f"t{row}"


def _columns(lines: list[str]) -> list[str]:
    return ["for i in range(columns):", *indented(lines)]


def _largest(names: list[str]) -> str:
    """Return the expression for the maximum of these names, as a tree, so that no `max` waits for all the others."""
    half = len(names) // 2
    return f"max({_largest(names[:half])}, {_largest(names[half:])})" if half else names[0]


def _bounds_since(program: Program, number: int) -> list[tuple[int, int]] | None:
    """Return the inputs that are the bounds of each Clip between an earlier step of blocks with the same format and step
    `number`, if the result of the earlier one is at most clipped between them; None otherwise. If the blocks of the earlier
    step were ordinary, and the bounds are values of the format, step `number` returns its operand."""
    count, step = len(program.inputs), program.steps[number]
    if closed_function(*step.block_format) is None:
        return None
    bounds: list[tuple[int, int]] = []
    before = step
    while True:
        operand = before.operands[0]
        if operand is None or operand < count:
            return None
        before = program.steps[operand - count]
        if (before.operator, before.attributes) == (step.operator, step.attributes):
            return bounds
        if before.operator == "Clip":
            _, low, high = (*before.operands, None, None)[:3]
            if low is None or high is None or not (low < count and high < count):
                return None
            if not (program.inputs[low].is_scalar and program.inputs[high].is_scalar):
                return None
            bounds.append((low, high))
        elif before.operator not in ("Identity", "Relu"):
            return None
