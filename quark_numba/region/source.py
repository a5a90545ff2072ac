"""The Python source of the function that runs a program.

For example, this is the source for the absolute value of a round trip of x0 + x1, where x1 has one element:

    def run_program(inputs, y_address, n):
        addresses = array_at(inputs, 4, np.int64)
        x1 = array_at(addresses[1], 1, np.float32)[0]
        ...
        reciprocal1 = np.float32(np.float32(1) / x2)
        has_reciprocal1 = takes_reciprocal1(x2, x3)
        buffers = stack(0)
        for start in range(0, n, TILE):
            m = min(TILE, n - start)
            x0 = array_at(addresses[0] + 4 * start, m, np.float32)
            y = array_at(y_address + 4 * start, m, np.float32)
            if has_reciprocal1:
                for i in range(unsigned(m)):
                    e0 = x0[i]
                    v0 = f0(e0, x1)
                    v1 = by_reciprocal1(v0, reciprocal1, x2, x3)
                    v2 = f2(v1)
                    y[i] = v2
            else:
                for i in range(unsigned(m)):
                    e0 = x0[i]
                    v0 = f0(e0, x1)
                    v1 = f1(v0, x2, x3)
                    v2 = f2(v1)
                    y[i] = v2

x0 is the array of input 0, or its element if it has only one; e0 is an element of x0. f0 is the function of step 0, and v0 its
result for an element. Names of inputs and steps end with their numbers.

The words, from the whole to its pieces:
- A tile is the elements of y that are computed together and stay in the first-level cache. Without block formats a tile is up
  to TILE consecutive elements. With block formats a tile has rows and columns: a column is a block of y, and a row has an
  element of each block, see ``tiles``.
- A group is `group_size` neighbouring rows. A loop computes all rows of a group, one column after the other.
- A part is a loop over a tile, a conversion of a tile (a step that rounds any blocks), or a choice between parts; see
  ``loops``.

The functions for ordinary blocks are those of ``block.arithmetic`` and ``block.tiles``. An anchor is the number by which
`convert` rounds the elements of a block or sub-block. `prepare` takes the largest magnitude of a block and computes `least`,
the bits of the block's smallest anchor. `is_closed` tells whether clipping leaves rounded blocks rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..block.arithmetic import MAGNITUDE
from ..block.granularity import tile_width
from ..block.tiles import closed_function, ordinary_names
from ..compiling.records import words
from ..compiling.text import branch, indented
from ..fake_quantization.arithmetic import preparer
from . import arithmetic, loops
from .key import BLOCK_ROUND_TRIPS, FAKE_QUANTIZE, ROUND_TRIP, Program
from .loops import Apply, Choice, Conversion, Load, LoopBody, Part, Reduce, Store

# The number of elements of a tile, if the program does not round to block formats. A tile stays in the first-level cache.
TILE = 1 << 10

# The record of a tile, for a program that rounds to block formats. Addresses and numbers:
# - `inputs`, the address of an array of the addresses of the inputs' elements;
# - `functions`, the address of an array of C functions, two for each step that rounds to a block format:
#   `block.tiles.prepare`, and the task that converts any blocks;
# - `buffers`, the address of memory for the program's buffers;
# - `rows`, the number of rows of the tile, a multiple of `group_size`; `filled_rows` and `filled_columns`, how many rows and
#   columns have elements of y;
# - `is_unchanged`, whether blocks stay as they are because y has only one element;
# - `has_failed`, which the program sets if it cannot allocate memory.
TILE_WORK = words(
    *("inputs", "functions", "buffers", "rows", "filled_rows", "filled_columns", "is_unchanged", "has_failed"),
)


def bind_steps(program: Program) -> dict[str, Any]:
    """Return the values of the names in the lines of an `ElementWriter`: f{n}, the function of step n; and prepare{n}, which
    prepares the parameters of fake quantization."""
    names = {}
    for number, step in enumerate(program.steps):
        if step.operator not in BLOCK_ROUND_TRIPS:
            names[f"f{number}"] = arithmetic.function(step, program.inputs)
        if step.operator == FAKE_QUANTIZE:
            names[f"prepare{number}"] = preparer(step.fake_key)
    return names


def bind_names(program: Program) -> dict[str, Any]:
    """Return the values of the names in the text of a `Writer`, except for functions of the compiler. They are those from
    `bind_steps`; TILE and MAGNITUDE; and for step n:
    - by_reciprocal{n} and takes_reciprocal{n}: a round trip by the reciprocal of the scale, and its condition;
    - measure{n}, find_anchor{n}, convert{n}, drop{n}, bounds{n} and is_closed{n}: what ordinary blocks need of their format;
    - format{n}: the numbers of its format."""
    names = bind_steps(program) | {"TILE": TILE, "MAGNITUDE": MAGNITUDE}
    for number, (function, condition) in _reciprocals(program).items():
        names |= {f"by_reciprocal{number}": function, f"takes_reciprocal{number}": condition}
    for number in program.block_numbers:
        key, block_format = program.steps[number].block_format
        names[f"format{number}"] = block_format
        if loops.has_ordinary_parts(program):
            ordinary = ordinary_names(key, block_format) | {"is_closed": closed_function(key, block_format)}
            names |= {f"{name}{number}": value for name, value in ordinary.items()}
    return names


def _reciprocals(program: Program) -> dict[int, tuple[Any, Any]]:
    """Return the result of `arithmetic.reciprocal_round_trip` for each step that has such a function, by its number."""
    found = {}
    for number, step in enumerate(program.steps):
        if step.operator == ROUND_TRIP and program.has_scalars(step):
            function, condition = arithmetic.reciprocal_round_trip(arithmetic.round_trip_key(step, program.inputs))
            if function is not None:
                found[number] = function, condition
    return found


class ElementWriter:
    """The writer of the lines that compute one element, for processors and for GPUs."""

    def __init__(self, program: Program) -> None:
        self._program, self._count = program, len(program.inputs)

    def prepare(self) -> list[str]:
        """Return the lines before all loops, which prepare parameters of one element for fake quantization."""
        return [
            f"prepared{number} = {self._prepared(number, self.operands(number)[1:])}"
            for number, step in enumerate(self._program.steps)
            if step.operator == FAKE_QUANTIZE and self._program.has_scalars(step)
        ]

    def prepare_reciprocal(self, number: int) -> list[str]:
        """Return the lines before all loops for a round trip by the reciprocal of its scale."""
        _, scale, zero_point = self.operands(number)
        return [
            f"reciprocal{number} = np.float32(np.float32(1) / {scale})",
            f"has_reciprocal{number} = takes_reciprocal{number}({scale}, {zero_point})",
        ]

    def write(self, action: Load | Apply | Reduce | Store, row: int | None = None) -> str:
        """Return the line that does this for an element. `row` is that of the element, if a loop does several rows."""
        index = "i" if row is None else f"i + offset{row}"
        match action:
            case Load(value, array):
                return f"{self.name(value, row)} = {array}[{index}]"
            case Apply(number, way):
                return f"{self.name(self._count + number, row)} = {self._expression(number, way, self.operands(number, row))}"
            case Reduce(number):  # the first row of a group has elements of y
                (x,) = self.operands(number, row)
                return f"magnitude{row} = measure{number}({x}, {f'mask{row}' if row else 'MAGNITUDE'})"
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
        return [self.name(operand, row) for operand in self._program.steps[number].present]

    def _expression(self, number: int, way: str, operands: list[str]) -> str:
        x, *parameters = operands
        if way == loops.UNCHANGED:
            return x
        if way == loops.ANCHOR:
            return f"convert{number}({x}, anchor, bounds{number})"
        if way == loops.RECIPROCAL:
            return f"by_reciprocal{number}({x}, reciprocal{number}, {', '.join(parameters)})"
        step = self._program.steps[number]
        if step.operator == FAKE_QUANTIZE:
            prepared = f"prepared{number}" if self._program.has_scalars(step) else self._prepared(number, parameters)
            return f"f{number}({x}, {prepared})"
        return f"f{number}({', '.join(operands)})"

    def _prepared(self, number: int, parameters: list[str]) -> str:
        return f"prepare{number}({', '.join(f'np.float64({parameter})' for parameter in parameters)})[1]"


class BlockWriter:
    """The writer of the loops over a tile of ordinary blocks. `buffer_count` is the number of their buffers, and `size` the
    number of words that the buffers and the arrays after them take. For example, the loop between two steps that round to
    blocks of 4 without sub-blocks, and the call of `block.tiles.prepare`, which checks the magnitudes:

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
        has_extreme_blocks |= call(functions[2], (largest.ctypes.data, least.ctypes.data, np.int64(columns)))

    Rows of the tile after the last one with elements of y count as zeros. `largest` has the largest magnitude of each block,
    and `least` the results of `prepare`. With sub-blocks, `maxima` has a row of largest magnitudes for each sub-block, and an
    anchor is computed from `least` and the maximum of its sub-block."""

    def __init__(self, program: Program, elements: ElementWriter) -> None:
        self.elements = elements
        self.parts, self.buffer_count = loops.ordinary_parts(program)
        self.formats = {number: program.steps[number].block_format for number in program.block_numbers}
        block, self.sub_block = program.formats[0].block, min(each.sub_block for each in program.formats)
        self.width, self.group_size = tile_width(block), loops.group_size(program)
        self.rows_of_arrays = {"largest": 1, "least": 1, "maxima": block // self.sub_block}
        self.buffers_end = block * self.width * self.buffer_count
        self.size = self.buffers_end + sum(self.rows_of_arrays.values()) * self.width

    def write(self) -> list[str]:
        """Return the lines that run the program, and return from it if all blocks are ordinary. The arrays of the tile have to
        be made before these lines."""
        lines = [f"groups, columns = unsigned(tile.rows // {self.group_size}), unsigned(tile.filled_columns)"]
        lines += ["filled_rows, has_extreme_blocks = unsigned(tile.filled_rows), np.int64(0)"]
        begin = self.buffers_end
        for name, rows in self.rows_of_arrays.items():
            lines.append(f"{name} = array_at(buffers + {4 * begin}, {rows * self.width}, np.uint32)")
            begin += rows * self.width
        lines += ["for i in range(columns):", "    largest[i] = np.uint32(0)", *_write_parts(self.parts, self._write_loop)]
        return ["if tile.is_unchanged == 0:", *indented([*lines, "if has_extreme_blocks == 0:", "    return"])]

    def has_sub_blocks(self, number: int) -> bool:
        """Return whether the blocks of a step are divided into sub-blocks."""
        block_format = self.formats[number][1]
        return block_format.sub_block < block_format.block

    def _write_loop(self, loop: LoopBody) -> list[str]:
        """Return the lines of a loop. If the loop finds largest magnitudes, the lines also check them."""
        body = GroupBody(self)
        for row in range(self.group_size):
            for action in loop:
                body.add(action, row)
        checks = []
        for step in (action.step for action in loop if isinstance(action, Reduce)):
            body.add_maxima(step)
            prepare = f"functions[{2 * [*self.formats].index(step)}]"
            checks.append(f"has_extreme_blocks |= call({prepare}, (largest.ctypes.data, least.ctypes.data, np.int64(columns)))")
        return ["for group in range(groups):", *indented(body.write()), *checks]


class GroupBody:
    """The body of a loop of a BlockWriter over groups of rows. `add` and `add_maxima` collect its pieces, and `write` joins
    them in this order: `of_group`, the expressions that are computed once for a group, by name; `computations`, the lines for
    each column; and `stores`, the lines for each column that write results to arrays."""

    def __init__(self, writer: BlockWriter) -> None:
        self.writer = writer
        self.of_group = {f"offset{row}": self._place(writer.group_size, row) for row in range(writer.group_size)}
        self.computations: list[str] = []
        self.stores: list[str] = []

    def add(self, action: Load | Apply | Reduce | Store, row: int) -> None:
        """Add what a loop does for an element of a row of the group."""
        writer = self.writer
        if isinstance(action, Reduce) and row:
            is_filled = f"group * unsigned({writer.group_size}) + unsigned({row}) < filled_rows"
            self.of_group[f"mask{row}"] = f"MAGNITUDE if {is_filled} else np.uint32(0)"
        if isinstance(action, Apply) and action.way == loops.ANCHOR and row % writer.formats[action.step][1].sub_block == 0:
            largest = self._maximum(row) if writer.has_sub_blocks(action.step) else "least[i]"
            self.computations.append(f"anchor = find_anchor{action.step}({largest}, least[i], drop{action.step})")
        (self.stores if isinstance(action, Store) else self.computations).append(writer.elements.write(action, row))

    def add_maxima(self, step: int) -> None:
        """Add the lines that find the largest magnitudes of a step's blocks and sub-blocks, from the magnitudes of the rows."""
        magnitudes = [f"magnitude{row}" for row in range(self.writer.group_size)]
        if self.writer.has_sub_blocks(step):
            size = self.writer.sub_block
            rows = range(0, self.writer.group_size, size)
            self.computations += [f"maximum{row} = {_largest(magnitudes[row : row + size])}" for row in rows]
            self.stores += [f"{self._maximum(row)} = maximum{row}" for row in rows]
            magnitudes = [f"maximum{row}" for row in rows]
        self.stores.append(f"largest[i] = max(largest[i], {_largest(magnitudes)})")

    def write(self) -> list[str]:
        """Return the lines of the body."""
        of_group = [f"{name} = {value}" for name, value in self.of_group.items()]
        return [*of_group, "for i in range(columns):", *indented(self.computations + self.stores)]

    def _maximum(self, row: int) -> str:
        """Return the place in `maxima` of the sub-block that begins at a row of the group."""
        size = self.writer.sub_block
        self.of_group[f"sub_block{row}"] = self._place(self.writer.group_size // size, row // size)
        return f"maxima[i + sub_block{row}]"

    def _place(self, rows: int, row: int) -> str:
        """Return the index of a row of the group in an array that has `rows` rows for each group."""
        return f"group * unsigned({rows * self.writer.width}) + unsigned({row * self.writer.width})"


class Writer:
    """The writer of the function that runs a program for n elements of y. For each tile there is a loop for each round trip,
    together with the steps before it. One loop for all steps would be slower: the steps of an element depend on each other, and
    a processor looks only some hundred instructions ahead to overlap them with those of the next element.

    A program that rounds to block formats is run for one tile, a record TILE_WORK. `buffers_size` is the number of bytes of the
    program's buffers, each of which holds a tile of float32."""

    def __init__(self, program: Program) -> None:
        self.program, self.elements = program, ElementWriter(program)
        self.tile = next((tile_width(each.block) * each.block for each in program.formats), TILE)  # elements, at most
        self.parts, self.buffer_count = loops.exact_parts(program)
        self.ordinary = BlockWriter(program, self.elements) if loops.has_ordinary_parts(program) else None
        if self.ordinary:
            self.buffer_count = max(self.buffer_count, self.ordinary.buffer_count)
        self.buffers_size = 4 * max(self.buffer_count * self.tile, self.ordinary.size if self.ordinary else 0)

    def write(self) -> str:
        """Return the text of the function. `bind_names` has the values of the names in it."""
        lines = self._write_tiled() if self.program.block_steps else self._write_elementwise()
        return "\n".join(lines) + "\n"

    def _write_elementwise(self) -> list[str]:
        """Return the lines of a function that computes all tiles, for a program that rounds to no block format."""
        tile = ["m = min(TILE, n - start)", *self._make_arrays(), *self._write_exact_parts()]
        lines = self._write_preamble("inputs", f"stack({self.buffers_size // 8})")
        lines += ["for start in range(0, n, TILE):", *indented(tile)]
        return ["def run_program(inputs, y_address, n):", *indented(lines)]

    def _write_tiled(self) -> list[str]:
        """Return the lines of a function that computes one tile, for a program that rounds to block formats. These tiles are
        larger, and the caller allocates the buffers."""
        lines = [
            "tile = record_at(tile_address, TILE_WORK)",
            f"functions = array_at(tile.functions, {2 * len(self.program.block_steps)}, np.int64)",
            *self._write_preamble("tile.inputs", "tile.buffers"),
            "start, m = np.int64(0), n",
            *self._make_arrays(),
            *(self.ordinary.write() if self.ordinary else []),
            *self._write_exact_parts(),
        ]
        return ["def run_program(tile_address, y_address, n):", *indented(lines)]

    def _write_preamble(self, inputs: str, buffers: str) -> list[str]:
        """Return the lines before all loops. The expressions `inputs` and `buffers` are the addresses of the inputs' addresses
        and of the buffers."""
        return [
            f"addresses = array_at({inputs}, {len(self.program.inputs)}, np.int64)",
            *self._read_scalars(),
            *self.elements.prepare(),
            *(line for number in _reciprocals(self.program) for line in self.elements.prepare_reciprocal(number)),
            f"buffers = {buffers}",
        ]

    def _write_exact_parts(self) -> list[str]:
        """Return the lines that compute a tile of any elements."""
        reciprocals = [*_reciprocals(self.program)]
        return _write_parts([_with_choice(part, reciprocals) for part in self.parts], self._write_part)

    def _read_scalars(self) -> list[str]:
        """Return the lines before all loops that read the inputs of one element."""
        inputs = enumerate(zip(self.program.inputs, arithmetic.input_dtypes(self.program), strict=True))
        return [f"x{k} = array_at(addresses[{k}], 1, np.{dtype.name})[0]" for k, (x, dtype) in inputs if x.is_scalar]

    def _make_arrays(self) -> list[str]:
        """Return the lines that make the arrays of a tile: x{k}, y, and b{k} in the buffers."""
        dtypes = arithmetic.input_dtypes(self.program)
        return [
            *(
                f"x{k} = array_at(addresses[{k}] + {dtypes[k].itemsize} * start, m, np.{dtypes[k].name})"
                for k in self.program.streams
            ),
            "y = array_at(y_address + 4 * start, m, np.float32)",
            *(f"b{k} = array_at(buffers + {4 * self.tile * k}, m, np.float32)" for k in range(self.buffer_count)),
        ]

    def _write_part(self, part: LoopBody | Conversion) -> list[str]:
        """Return the lines of a loop or a conversion."""
        if not isinstance(part, Conversion):
            return ["for i in range(unsigned(m)):", *indented([self.elements.write(action) for action in part])]
        convert = f"functions[{2 * self.program.block_numbers.index(part.step) + 1}]"
        return [f"convert_blocks(tile, {convert}, {part.x}.ctypes.data, {part.y}.ctypes.data, format{part.step})"]


def _with_choice(part: LoopBody | Conversion, reciprocals: list[int]) -> Part:
    """If a loop computes one of the steps `reciprocals`, return a choice between that loop with the reciprocal and the loop as
    it is. Return any other part as it is."""
    for number in reciprocals:
        if not isinstance(part, Conversion) and Apply(number) in part:
            faster = Apply(number, loops.RECIPROCAL)
            by_reciprocal: LoopBody = [faster if action == Apply(number) else action for action in part]
            return Choice(f"has_reciprocal{number}", [by_reciprocal], [part])
    return part


def _write_parts(parts: Sequence[Part], write_one: Callable[[Any], list[str]]) -> list[str]:
    """Return the lines of these parts. `write_one` returns those of a loop or a conversion."""
    lines = []
    for part in parts:
        if isinstance(part, Choice):
            lines += branch(part.condition, _write_parts(part.parts, write_one), _write_parts(part.others, write_one))
        else:
            lines += write_one(part)
    return lines


def _largest(names: list[str]) -> str:
    """Return the expression for the maximum of these names. It is a balanced tree of `max`, so that several can be computed at
    once."""
    half = len(names) // 2
    return f"max({_largest(names[:half])}, {_largest(names[half:])})" if half else names[0]
