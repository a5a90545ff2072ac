"""The Python source of the function that runs a program: the size of a tile, the arrays, and when reciprocals or the loops for
ordinary blocks are used.

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

A tile is the elements of y that are computed together and stay in the first-level cache. Without block formats these are up to
TILE consecutive elements. A part is a loop over a tile, a conversion of a tile (a step that rounds any blocks), or a choice
between parts, see ``loops``. The source of an element is from ``element_source``, and that of the loops over ordinary blocks
from ``block_source``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..block.granularity import tile_width
from ..compiling.records import words
from ..compiling.text import branch, indented
from . import arithmetic, loops
from .block_source import BlockWriter, bind_ordinary
from .element_source import ElementWriter, bind_steps
from .key import Program
from .loops import Apply, Choice, Conversion, LoopBody, Part
from .step_operators import ROUND_TRIP

# The number of elements of a tile, if the program does not round to block formats. A tile stays in the first-level cache.
TILE = 1 << 10

# The record of a tile, for a program that rounds to block formats. Addresses and numbers:
# - `inputs`, the address of an array of the addresses of the inputs' elements;
# - `functions`, the address of an array of C functions: for each step that rounds to a block format, the task that converts any
#   blocks;
# - `buffers`, the address of memory for the program's buffers;
# - `rows`, the number of rows of the tile, a multiple of `group_size`; `filled_rows` and `filled_columns`, how many rows and
#   columns have elements of y;
# - `is_unchanged`, whether blocks stay as they are because y has only one element;
# - `has_failed`, which the program sets if it cannot allocate memory.
TILE_WORK = words(
    *("inputs", "functions", "buffers", "rows", "filled_rows", "filled_columns", "is_unchanged", "has_failed"),
)


def bind_names(program: Program) -> dict[str, Any]:
    """Return the values of the names in the text of a `Writer`, except for functions of the compiler. They are those from
    `bind_steps` and `bind_ordinary`; TILE; and for step n:
    - by_reciprocal{n} and takes_reciprocal{n}: a round trip by the reciprocal of the scale, and its condition;
    - format{n}: the numbers of its block format."""
    names = {**bind_steps(program), **(bind_ordinary(program) if loops.has_ordinary_parts(program) else {}), "TILE": TILE}
    names |= {f"format{number}": block_format for number, block_format in program.block_formats.items()}
    for number, (function, condition) in _reciprocals(program).items():
        names |= {f"by_reciprocal{number}": function, f"takes_reciprocal{number}": condition}
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


class Writer:
    """The writer of the function that runs a program for n elements of y. The function converts a tile at a time, with one loop
    for each round trip and the steps before it. One loop for all steps would be slower: the steps of an element depend on each
    other, and a processor looks only some hundred instructions ahead for steps of the next element that it can overlap.

    If the program rounds to block formats, a call of the function converts one tile, which a record TILE_WORK describes.
    `buffers_size` is the size of the program's buffers in bytes. Each buffer holds a tile of float32."""

    def __init__(self, program: Program) -> None:
        self.program, self.elements = program, ElementWriter(program)
        block = program.block_size
        self.tile = tile_width(block) * block if block else TILE  # elements, at most
        self.parts, self.buffer_count = loops.exact_parts(program)
        self.ordinary = BlockWriter(program, self.elements) if loops.has_ordinary_parts(program) else None
        if self.ordinary:
            self.buffer_count = max(self.buffer_count, self.ordinary.buffer_count)
        self.buffers_size = 4 * max(self.buffer_count * self.tile, self.ordinary.size if self.ordinary else 0)

    def write(self) -> str:
        """Return the source of the function. `bind_names` returns the values of the names in the source."""
        lines = self._write_tiled() if self.program.block_size else self._write_elementwise()
        return "\n".join(lines) + "\n"

    def _write_elementwise(self) -> list[str]:
        """Return the lines of a function that computes all tiles, for a program that rounds to no block format."""
        tile = ["m = min(TILE, n - start)", *self._make_arrays(), *self._write_exact_parts()]
        lines = self._write_preamble("inputs", f"stack({self.buffers_size // 8})")
        lines += ["for start in range(0, n, TILE):", *indented(tile)]
        return ["def run_program(inputs, y_address, n):", *indented(lines)]

    def _write_tiled(self) -> list[str]:
        """Return the lines of a function that computes one tile, for a program that rounds to block formats. The tiles of such
        a program are larger, so the caller allocates the buffers."""
        lines = [
            "tile = record_at(tile_address, TILE_WORK)",
            f"functions = array_at(tile.functions, {len(self.program.block_formats)}, np.int64)",
            *self._write_preamble("tile.inputs", "tile.buffers"),
            "start, m = np.int64(0), n",
            *self._make_arrays(),
            *(self._write_ordinary_parts(self.ordinary) if self.ordinary else []),
            *self._write_exact_parts(),
        ]
        return ["def run_program(tile_address, y_address, n):", *indented(lines)]

    def _write_preamble(self, inputs: str, buffers: str) -> list[str]:
        """Return the lines before all loops. `inputs` is an expression for the address of the inputs' addresses, `buffers`
        one for the address of the buffers."""
        return [
            "use_widest_vectors()",
            f"addresses = array_at({inputs}, {len(self.program.inputs)}, np.int64)",
            *self._read_scalars(),
            *self.elements.prepare(),
            *(line for number in _reciprocals(self.program) for line in self.elements.prepare_reciprocal(number)),
            f"buffers = {buffers}",
        ]

    def _write_ordinary_parts(self, ordinary: BlockWriter) -> list[str]:
        """Return the lines that compute a tile of ordinary blocks, and return from the program if all blocks are ordinary."""
        lines = [*ordinary.prepare(), *_write_parts(ordinary.parts, ordinary.write)]
        return ["if tile.is_unchanged == 0:", *indented([*lines, "if has_extreme_blocks == 0:", "    return"])]

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
        convert = f"functions[{[*self.program.block_formats].index(part.step)}]"
        return [f"convert_blocks(tile, {convert}, {part.x}.ctypes.data, {part.y}.ctypes.data, format{part.step})"]


def _with_choice(part: LoopBody | Conversion, reciprocals: list[int]) -> Part:
    """Return a choice between a loop that multiplies by the reciprocal and the given loop, if the loop computes one of the
    steps `reciprocals`. Return any other part unchanged."""
    for number in reciprocals:
        if not isinstance(part, Conversion) and Apply(number) in part:
            faster = Apply(number, loops.RECIPROCAL)
            by_reciprocal: LoopBody = [faster if action == Apply(number) else action for action in part]
            return Choice(f"has_reciprocal{number}", [by_reciprocal], [part])
    return part


def _write_parts(parts: Sequence[Part], write_one: Callable[[Any], list[str]]) -> list[str]:
    """Return the lines of these parts. `write_one` returns the lines of one loop or one conversion."""
    lines = []
    for part in parts:
        if isinstance(part, Choice):
            lines += branch(part.condition, _write_parts(part.parts, write_one), _write_parts(part.others, write_one))
        else:
            lines += write_one(part)
    return lines
