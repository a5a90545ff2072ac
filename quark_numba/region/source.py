"""The Python source of the function that runs a program.

For example, that of the absolute value of a round trip of x0 + x1, where x1 has one element:

    def run_program(addresses, y_address, n):
        at = array_at(addresses, 4, np.int64)
        x1 = array_at(at[1], 1, np.float32)[0]
        ...
        r1 = np.float32(np.float32(1) / x2)
        is_fast1 = has1(x2, x3)
        room = stack(0)
        for start in range(0, n, TILE):
            m = min(TILE, n - start)
            x0 = array_at(at[0] + 4 * start, m, np.float32)
            y = array_at(y_address + 4 * start, m, np.float32)
            if is_fast1:
                for i in range(unsigned(m)):
                    e0 = x0[i]
                    v0 = f0(e0, x1)
                    v1 = q1(v0, r1, x2, x3)
                    v2 = f2(v1)
                    y[i] = v2
            else:
                for i in range(unsigned(m)):
                    e0 = x0[i]
                    v0 = f0(e0, x1)
                    v1 = f1(v0, x2, x3)
                    v2 = f2(v1)
                    y[i] = v2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..block.arithmetic import MAGNITUDE
from ..block.granularity import tile_width
from ..block.tiles import closed_function, quick_names
from ..compiling.text import branch, indented
from ..fake_quantization.arithmetic import preparer
from . import arithmetic, loops
from .key import BLOCK_ROUND_TRIPS, FAKE_QUANTIZE, ROUND_TRIP, Program
from .loops import Apply, Choice, Conversion, Load, Loop, Part, Reduce, Store

# The number of elements of a tile, which stays in the first-level cache, if the program has no steps of blocks.
TILE = 1 << 10

# The words behind the addresses of the inputs, for a program with steps of blocks: whether blocks stay as they are; the number
# of rows of the tile, a multiple of `group_size`; the numbers of rows and columns that hold elements of y; whether memory could
# not be allocated, written by the program; the address of the room for its buffers; and the functions of its steps of blocks,
# two for each: `block.tiles.prepare`, and the task that converts any blocks.
PASSES, ROWS, FILLED_ROWS, FILLED_COLUMNS, HAS_FAILED, ROOM, FUNCTIONS = range(7)


class ElementWriter:
    """The writer of the lines that compute one element, for processors and for GPUs. `names` has what they call, and `once` the
    lines before all loops that prepare parameters of one element."""

    def __init__(self, program: Program) -> None:
        self.names: dict[str, Any] = {}
        self.once: list[str] = []
        self._program, self._count = program, len(program.inputs)
        for number, step in enumerate(program.steps):
            if step.operator not in BLOCK_ROUND_TRIPS:
                self.names[f"f{number}"] = arithmetic.function(step, program.inputs)
            if step.operator == FAKE_QUANTIZE:
                self.names[f"p{number}"] = preparer(step.fake_key)
                if program.has_scalars(step):
                    self.once.append(f"n{number} = {self._prepared(number, self.operands(number)[1:])}")

    def line(self, do: Load | Apply | Reduce | Store, row: int | None = None) -> str:
        """Return the line that does this for an element. If a loop has elements of several rows, `row` tells them apart."""
        index = "i" if row is None else f"i + o{row}"
        match do:
            case Load(value, array):
                return f"{self.name(value, row)} = {array}[{index}]"
            case Apply(number, way):
                return f"{self.name(self._count + number, row)} = {self._expression(number, way, self.operands(number, row))}"
            case Reduce(number):  # the first row of a group has elements of y
                (x,) = self.operands(number, row)
                return f"m{row} = magnitude_of{number}({x}, {f'k{row}' if row else 'MAGNITUDE'})"
            case Store(value, array):
                return f"{array}[{index}] = {self.name(value, row)}"

    def name(self, value: int, row: int | None = None) -> str:
        """Return the name of an element."""
        if value < self._count and self._program.inputs[value].is_scalar:
            return f"x{value}"
        name = f"e{value}" if value < self._count else f"v{value - self._count}"
        return name if row is None else f"{name}_{row}"

    def operands(self, number: int, row: int | None = None) -> list[str]:
        """Return the names of the elements of a step's operands."""
        return [self.name(operand, row) for operand in self._program.steps[number].given]

    def add_reciprocal(self, number: int) -> bool:
        """Add what lines take that compute a step by a reciprocal. Return whether it is a round trip with such a function."""
        step = self._program.steps[number]
        if step.operator != ROUND_TRIP or not self._program.has_scalars(step):
            return False
        by_reciprocal, takes = arithmetic.fast_round_trip(arithmetic.round_trip_key(step, self._program.inputs))
        if by_reciprocal is None:
            return False
        self.names |= {f"q{number}": by_reciprocal, f"has{number}": takes}
        _, scale, zero_point = self.operands(number)
        self.once.append(f"r{number} = np.float32(np.float32(1) / {scale})")
        self.once.append(f"is_fast{number} = has{number}({scale}, {zero_point})")
        return True

    def _expression(self, number: int, way: str, operands: list[str]) -> str:
        x, *parameters = operands
        if way == loops.UNCHANGED:
            return x
        if way == loops.BY_ANCHOR:
            return f"convert{number}({x}, anchor, bounds{number})"
        if way == loops.BY_RECIPROCAL:
            return f"q{number}({x}, r{number}, {', '.join(parameters)})"
        step = self._program.steps[number]
        if step.operator == FAKE_QUANTIZE:
            return f"f{number}({x}, {f'n{number}' if self._program.has_scalars(step) else self._prepared(number, parameters)})"
        return f"f{number}({', '.join(operands)})"

    def _prepared(self, number: int, parameters: list[str]) -> str:
        return f"p{number}({', '.join(f'np.float64({parameter})' for parameter in parameters)})[1]"


class BlockWriter:
    """The writer of the loops over a tile of ordinary blocks. `buffer_count` is the number of their buffers, and `size` that of
    the elements of all the room that they take. For example, the loop between two steps of blocks of 4 without sub-blocks, and
    the call of `block.tiles.prepare`, which checks the magnitudes:

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
        self.parts, self.buffer_count = loops.quick_parts(program)
        self.count, self.numbers = len(program.inputs), program.block_numbers
        self.formats = {number: program.steps[number].block_format for number in self.numbers}
        block, self.sub_block = program.blocks[0].block, min(blocks.sub_block for blocks in program.blocks)
        self.width, self.group, self.sub_blocks = tile_width(block), loops.group_size(program), block // self.sub_block
        # Behind the buffers are the largest magnitudes of blocks, the results of `prepare`, and the largest magnitudes of
        # sub-blocks.
        self.largest = block * self.width * self.buffer_count
        self.size = self.largest + (2 + self.sub_blocks) * self.width

    def source(self, elements: ElementWriter) -> list[str]:
        """Return the lines of the source, which has the arrays of the tile already, and add the names in it to those of
        `elements`. The program has returned behind these lines if all blocks are ordinary."""
        elements.names["MAGNITUDE"] = MAGNITUDE
        for number, kind in self.formats.items():
            names = quick_names(*kind) | {"is_closed": closed_function(*kind)}
            elements.names |= {f"{name}{number}": value for name, value in names.items()}
        at = [f"at[{self.count + word}]" for word in range(FUNCTIONS)]
        lines = [f"groups, columns = unsigned({at[ROWS]} // {self.group}), unsigned({at[FILLED_COLUMNS]})"]
        lines += [f"filled, left = unsigned({at[FILLED_ROWS]}), np.int64(0)"]
        for k, (name, rows) in enumerate({"largest": 1, "least": 1, "maxima": self.sub_blocks}.items()):
            address = f"room + {4 * (self.largest + k * self.width)}"
            lines.append(f"{name} = array_at({address}, {rows * self.width}, np.uint32)")
        lines += ["for i in range(columns):", "    largest[i] = np.uint32(0)"]
        lines += _lines_of(self.parts, lambda loop: self._loop(loop, elements))
        return [f"if {at[PASSES]} == 0:", *indented([*lines, "if left == 0:", "    return"])]

    def _loop(self, loop: Loop, elements: ElementWriter) -> list[str]:
        """Return the lines of a loop, and of the check behind it."""
        begin: dict[str, str] = {}  # what is computed for each group of rows, by name
        lines: list[str] = []
        stores: list[str] = []
        for row in range(self.group):
            begin[f"o{row}"] = f"g * unsigned({self.group * self.width}) + unsigned({row * self.width})"
            for do in loop:
                if isinstance(do, Reduce) and row:
                    is_filled = f"g * unsigned({self.group}) + unsigned({row}) < filled"
                    begin[f"k{row}"] = f"MAGNITUDE if {is_filled} else np.uint32(0)"
                if isinstance(do, Apply) and do.way == loops.BY_ANCHOR and row % self.formats[do.step][1].sub_block == 0:
                    largest = f"maxima[i + {self._sub_block(row, begin)}]" if self._has_sub_blocks(do.step) else "least[i]"
                    lines.append(f"anchor = anchor_of{do.step}({largest}, least[i], drop{do.step})")
                (stores if isinstance(do, Store) else lines).append(elements.line(do, row))
        check = [line for do in loop if isinstance(do, Reduce) for line in self._check(do.step, begin, lines, stores)]
        group = [f"{name} = {value}" for name, value in begin.items()]
        group += ["for i in range(columns):", *indented(lines + stores)]
        return ["for g in range(groups):", *indented(group), *check]

    def _check(self, number: int, begin: dict[str, str], lines: list[str], stores: list[str]) -> list[str]:
        """Return the line that checks the largest magnitudes for a step of blocks. What finds them, from those of a group's
        rows, is added to the lines of a loop."""
        magnitudes = [f"m{row}" for row in range(self.group)]
        if self._has_sub_blocks(number):
            rows = range(0, self.group, self.sub_block)
            lines += [f"s{row} = {_largest(magnitudes[row : row + self.sub_block])}" for row in rows]
            stores += [f"maxima[i + {self._sub_block(row, begin)}] = s{row}" for row in rows]
            magnitudes = [f"s{row}" for row in rows]
        stores.append(f"largest[i] = max(largest[i], {_largest(magnitudes)})")
        prepare = f"at[{self.count + FUNCTIONS + 2 * self.numbers.index(number)}]"
        return [f"left |= call({prepare}, (largest.ctypes.data, least.ctypes.data, np.int64(columns)))"]

    def _has_sub_blocks(self, number: int) -> bool:
        blocks = self.formats[number][1]
        return blocks.sub_block < blocks.block

    def _sub_block(self, row: int, begin: dict[str, str]) -> str:
        """Return the name of the index in `maxima` of the first column of the sub-block that begins at a row of a group. It is
        added to `begin`."""
        rows = self.group // self.sub_block
        begin[f"t{row}"] = f"g * unsigned({rows * self.width}) + unsigned({row // self.sub_block * self.width})"
        return f"t{row}"


class Writer:
    """The writer of the function that runs a program for n elements of y. `addresses` is the address of the addresses of the
    inputs' elements. For each tile there is a loop for each round trip, together with the steps before it. One loop for all
    steps would be slower: an element's steps depend on each other, and a processor looks only some hundred instructions ahead
    to overlap them with the next element's.

    A program with steps of blocks is run for one tile. `buffers_size` are the bytes of the program's buffers, each of which
    holds a tile of float32."""

    def __init__(self, program: Program) -> None:
        self.program, self.count = program, len(program.inputs)
        self.tile = next((tile_width(blocks.block) * blocks.block for blocks in program.blocks), TILE)  # elements, at most
        self.parts, self.buffer_count = loops.exact_parts(program)
        self.quick = BlockWriter(program) if loops.has_quick_parts(program) else None
        if self.quick:
            self.buffer_count = max(self.buffer_count, self.quick.buffer_count)
        self.buffers_size = 4 * max(self.buffer_count * self.tile, self.quick.size if self.quick else 0)

    def source(self) -> tuple[str, dict[str, Any]]:
        """Return the source, and the names in it."""
        elements = ElementWriter(self.program)
        elements.names["TILE"] = self.tile
        arrays, scalars = self._arrays()
        quick = self.quick.source(elements) if self.quick else []
        parts = [part if isinstance(part, Conversion) else self._with_quicker(part, elements) for part in self.parts]
        lines = _lines_of(parts, lambda part: self._lines(part, elements))
        if self.program.block_steps:  # the tiles are larger, and the caller allocates the buffers
            words, room = self.count + FUNCTIONS + 2 * len(self.program.block_steps), f"at[{self.count + ROOM}]"
            tiles = ["start, m = np.int64(0), n", *arrays, *quick, *lines]
        else:
            words, room = self.count, f"stack({self.buffers_size // 8})"
            tiles = ["for start in range(0, n, TILE):", *indented(["m = min(TILE, n - start)", *arrays, *lines])]
        once = [f"at = array_at(addresses, {words}, np.int64)", *scalars, *elements.once, f"room = {room}"]
        return "\n".join(["def run_program(addresses, y_address, n):", *indented(once + tiles)]) + "\n", elements.names

    def _arrays(self) -> tuple[list[str], list[str]]:
        """Return the lines that make the arrays of a tile, and those that read the inputs of one element, before all loops."""
        lines, scalars = [], []
        for k, dtype in enumerate(map(np.dtype, arithmetic.input_dtypes(self.program))):
            if self.program.inputs[k].is_scalar:
                scalars.append(f"x{k} = array_at(at[{k}], 1, np.{dtype.name})[0]")
            else:
                lines.append(f"x{k} = array_at(at[{k}] + {dtype.itemsize} * start, m, np.{dtype.name})")
        lines.append("y = array_at(y_address + 4 * start, m, np.float32)")
        lines += [f"b{k} = array_at(room + {4 * self.tile * k}, m, np.float32)" for k in range(self.buffer_count)]
        return lines, scalars

    def _lines(self, part: Loop | Conversion, elements: ElementWriter) -> list[str]:
        if not isinstance(part, Conversion):
            return ["for i in range(unsigned(m)):", *indented([elements.line(do) for do in part])]
        _, blocks = self.program.steps[part.step].block_format
        elements.names[f"blocks{part.step}"] = blocks._replace(inner=tile_width(blocks.block))
        # Numba compiles a function once for each set of literals that it is called with.
        numbers = f"np.int64({self.count}), np.int64({self.program.block_numbers.index(part.step)})"
        return [f"convert_blocks(at, {numbers}, {part.x}.ctypes.data, {part.y}.ctypes.data, blocks{part.step})"]

    def _with_quicker(self, loop: Loop, elements: ElementWriter) -> Part:
        """Return a choice of a loop with the quicker function of its round trip and this one, if there is such a function."""
        for number in (do.step for do in loop if isinstance(do, Apply)):
            if elements.add_reciprocal(number):
                quicker: Loop = [Apply(number, loops.BY_RECIPROCAL) if do == Apply(number) else do for do in loop]
                return Choice(f"is_fast{number}", [quicker], [loop])
        return loop


def _lines_of(parts: Sequence[Part], lines_of_one: Callable[[Any], list[str]]) -> list[str]:
    """Return the lines of these parts. `lines_of_one` makes those of a loop or a conversion."""
    lines = []
    for part in parts:
        if isinstance(part, Choice):
            lines += branch(part.condition, _lines_of(part.parts, lines_of_one), _lines_of(part.others, lines_of_one))
        else:
            lines += lines_of_one(part)
    return lines


def _largest(names: list[str]) -> str:
    """Return the expression for the maximum of these names, as a tree, so that no `max` waits for all the others."""
    half = len(names) // 2
    return f"max({_largest(names[:half])}, {_largest(names[half:])})" if half else names[0]
