"""The Python source of the function that runs a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..block.granularity import tile_width
from ..compiling.text import indented
from ..fake_quantization.arithmetic import converter as fake_converter
from ..fake_quantization.arithmetic import preparer
from ..linear.arithmetic import converter
from . import arithmetic
from .block_source import FUNCTIONS, ROOM, QuickLoops, has_quick_loops
from .key import BLOCK_ROUND_TRIPS, FAKE_QUANTIZE, ROUND_TRIP, Program
from .loops import Loop, Row, lifetimes, numbered_buffers

# The number of elements of a tile, which stays in the first-level cache, if the program has no steps of blocks.
TILE = 1 << 10


class Writer:
    """The writer of the function that runs a program for n elements of y. `addresses` is the address of the addresses of the
    inputs' elements. For each tile there is a loop for each round trip, together with the steps before it. One loop for all
    steps would be slower: an element's steps depend on each other, and a processor looks only some hundred instructions ahead
    to overlap them with the next element's. For example, the absolute value of a round trip of x0 + x1, where x1 has one
    element:

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

    A program with steps of blocks is run for one tile. `buffers_size` are the bytes of the program's buffers, each of which
    holds a tile of float32."""

    def __init__(self, program: Program) -> None:
        self.program, self.count = program, len(program.inputs)
        self.tile = next((tile_width(blocks.block) * blocks.block for blocks in program.blocks), TILE)  # elements, at most
        self.names: dict[str, Any] = {"TILE": self.tile}
        self.once: list[str] = []  # lines before all loops
        self.loops = _loops(program)
        # The task that converts any blocks does not convert them in place.
        self.buffers = numbered_buffers(lifetimes(program, self.loops), is_in_place=False)
        self.quick = QuickLoops(program) if has_quick_loops(program) else None
        self.buffer_count = max(len({*self.buffers.values()}), len({*self.quick.buffers.values()}) if self.quick else 0)
        self.buffers_size = 4 * max(self.buffer_count * self.tile, self.quick.size if self.quick else 0)

    def source(self) -> tuple[str, dict[str, Any]]:
        """Return the source, and the names in it."""
        arrays = self._arrays()
        quick = self.quick.source(self.expression, self.names) if self.quick else []
        loops = [line for loop in self.loops for line in self._loop(loop)]
        if self.program.block_steps:  # the tiles are larger, and the caller allocates the buffers
            words, room = self.count + FUNCTIONS + 2 * len(self.program.block_steps), f"at[{self.count + ROOM}]"
            tiles = ["start, m = np.int64(0), n", *arrays, *quick, *loops]
        else:
            words, room = self.count, f"stack({self.buffers_size // 8})"
            tiles = ["for start in range(0, n, TILE):", *indented(["m = min(TILE, n - start)", *arrays, *loops])]
        lines = [f"at = array_at(addresses, {words}, np.int64)", *self.once, f"room = {room}", *tiles]
        return "\n".join(["def run_program(addresses, y_address, n):", *indented(lines)]) + "\n", self.names

    def _arrays(self) -> list[str]:
        """Return the lines that make the arrays of a tile. Inputs of one element are read before all loops."""
        lines = []
        for k, dtype in enumerate(map(np.dtype, arithmetic.input_dtypes(self.program))):
            if self.program.inputs[k].is_scalar:
                self.once.append(f"x{k} = array_at(at[{k}], 1, np.{dtype.name})[0]")
            else:
                lines.append(f"x{k} = array_at(at[{k}] + {dtype.itemsize} * start, m, np.{dtype.name})")
        lines.append("y = array_at(y_address + 4 * start, m, np.float32)")
        return lines + [f"b{k} = array_at(room + {4 * self.tile * k}, m, np.float32)" for k in range(self.buffer_count)]

    def _array(self, value: int) -> str:
        number = value - self.count
        return f"x{value}" if number < 0 else f"b{self.buffers[number]}" if number in self.buffers else "y"

    def _loop(self, loop: Loop) -> list[str]:
        number = loop.steps[-1]
        if self.program.steps[number].operator in BLOCK_ROUND_TRIPS:
            return [self._block_step(number)]
        exact = self._body(loop)
        by_reciprocal = next(filter(self._has_reciprocal, loop.steps), None)
        if by_reciprocal is None:
            return exact
        return [f"if is_fast{by_reciprocal}:", *indented(self._body(loop, by_reciprocal)), "else:", *indented(exact)]

    def _body(self, loop: Loop, by_reciprocal: int | None = None) -> list[str]:
        row = Row(self.program, self.buffers)
        for number in loop.steps:
            operands = row.operands(number)
            if number == by_reciprocal:
                x, scale, zero_point = operands
                row.compute(number, f"q{number}({x}, r{number}, {scale}, {zero_point})")
            else:
                row.compute(number, self.expression(number, operands))
        return ["for i in range(unsigned(m)):", *indented([*row.lines, *row.stores(loop.steps)])]

    def _block_step(self, number: int) -> str:
        step, name = self.program.steps[number], f"blocks{number}"
        (operand,) = step.operands
        assert operand is not None
        x, y, blocks = self._array(operand), self._array(self.count + number), step.block_format[1]
        self.names[name] = blocks._replace(inner=tile_width(blocks.block))
        place = self.program.block_numbers.index(number)
        # Numba compiles a function once for each set of literals that it is called with.
        return f"convert_blocks(at, np.int64({self.count}), np.int64({place}), {x}.ctypes.data, {y}.ctypes.data, {name})"

    def expression(self, number: int, operands: list[str]) -> str:
        """Return the expression of a step that is not one of blocks, for an element of each operand."""
        step, name = self.program.steps[number], f"f{number}"
        is_new = name not in self.names
        if step.operator == FAKE_QUANTIZE:
            self.names |= {name: fake_converter(step.fake_key), f"p{number}": preparer(step.fake_key)}
            x, *parameters = operands
            made = f"p{number}({', '.join(f'np.float64({parameter})' for parameter in parameters)})[1]"
            if self._has_scalars(number):
                if is_new:
                    self.once.append(f"n{number} = {made}")
                made = f"n{number}"
            return f"{name}({x}, {made})"
        if is_new and step.operator == ROUND_TRIP:
            self.names[name] = converter(arithmetic.round_trip_key(step, self.program.inputs))
        elif is_new:
            self.names[name] = arithmetic.function(step, self.program.inputs)
        return f"{name}({', '.join(operands)})"

    def _has_scalars(self, number: int) -> bool:
        """Return whether the parameters of a step, which are inputs, have one element each."""
        parameters = (parameter for parameter in self.program.steps[number].operands[1:] if parameter is not None)
        return all(self.program.inputs[parameter].is_scalar for parameter in parameters)

    def _has_reciprocal(self, number: int) -> bool:
        """Return whether a step is a round trip with a quicker function. If it is, names are added for it."""
        step = self.program.steps[number]
        if step.operator != ROUND_TRIP or not self._has_scalars(number):
            return False
        by_reciprocal, takes = arithmetic.fast_round_trip(arithmetic.round_trip_key(step, self.program.inputs))
        if by_reciprocal is None:
            return False
        self.names |= {f"q{number}": by_reciprocal, f"has{number}": takes}
        _, scale, zero_point = step.operands
        self.once.append(f"r{number} = np.float32(np.float32(1) / x{scale})")
        self.once.append(f"is_fast{number} = has{number}(x{scale}, x{zero_point})")
        return True


def _loops(program: Program) -> list[Loop]:
    """Return the steps of each loop. A loop ends with a round trip, except that the steps behind the last one belong to its
    loop. A step of blocks is a loop of its own."""
    loops: list[list[int]] = [[]]
    last = max((k for k, step in enumerate(program.steps) if step.operator in (ROUND_TRIP, FAKE_QUANTIZE)), default=0)
    for number, step in enumerate(program.steps):
        is_of_blocks = step.operator in BLOCK_ROUND_TRIPS
        if is_of_blocks and loops[-1]:
            loops.append([])
        loops[-1].append(number)
        if is_of_blocks or (step.operator in (ROUND_TRIP, FAKE_QUANTIZE) and number != last):
            loops.append([])
    return [Loop(steps) for steps in loops if steps]
