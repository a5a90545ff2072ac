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
from .block_source import FUNCTIONS, ROOM, QuickLoops, block_numbers, has_quick_loops
from .key import BLOCK_ROUND_TRIPS, FAKE_QUANTIZE, ROUND_TRIP, Program

# The number of elements of a tile, which stays in the first-level cache, if the program has no steps of blocks.
TILE = 1 << 10


def source_of(program: Program) -> tuple[str, dict[str, Any]]:
    """Return the source of the function that runs a program for n elements of y, and the names in it. `addresses` is the
    address of the addresses of the inputs' elements. For each tile there is a loop for each round trip, together with the steps
    before it. One loop for all steps would be slower: an element's steps depend on each other, and a processor looks only some
    hundred instructions ahead to overlap them with the next element's. For example, the absolute value of a round trip of
    x0 + x1, where x1 has one element:

        def run_program(addresses, y_address, n):
            at = array_at(addresses, 4, np.int64)
            x1 = array_at(at[1], 1, np.float32)[0]
            ...
            room = stack(0)
            r1 = np.float32(np.float32(1) / x2)
            is_fast1 = has1(x2, x3)
            for start in range(0, n, TILE):
                m = min(TILE, n - start)
                x0 = array_at(at[0] + 4 * start, m, np.float32)
                y = array_at(y_address + 4 * start, m, np.float32)
                if is_fast1:
                    for i in range(unsigned(m)):
                        v0 = f0(x0[i], x1)
                        v1 = q1(v0, r1, x2, x3)
                        v2 = f2(v1)
                        y[i] = v2
                else:
                    for i in range(unsigned(m)):
                        v0 = f0(x0[i], x1)
                        v1 = f1(v0, x2, x3)
                        v2 = f2(v1)
                        y[i] = v2
    """
    return _Writer(program).source()


def tile_size(program: Program) -> int:
    """Return the largest number of elements of a tile."""
    for step in program.block_steps:
        _, blocks = step.block_format
        return tile_width(blocks.block) * blocks.block
    return TILE


def buffers_size(program: Program) -> int:
    """Return the bytes of a program's buffers. A buffer holds a tile of float32."""
    size = tile_size(program) * len(set(_buffers(program, _loops(program)).values()))
    return 4 * max(size, QuickLoops(program).size if has_quick_loops(program) else 0)


class _Writer:
    """The writer of the source for one program."""

    def __init__(self, program: Program) -> None:
        self.program, self.count = program, len(program.inputs)
        self.names: dict[str, Any] = {}
        self.once: list[str] = []  # lines before the loop over tiles
        self.each_tile: list[str] = []
        self.loops = _loops(program)
        self.buffers = _buffers(program, self.loops)
        self.values: list[str] = []  # the expression of each value's element in a loop

    def source(self) -> tuple[str, dict[str, Any]]:
        self._inputs()
        self._room()
        for steps in self.loops:
            if self.program.steps[steps[0]].operator in BLOCK_ROUND_TRIPS:
                self._block_step(steps[0])
            else:
                self._loop(steps)
        quick: list[str] = []
        if has_quick_loops(self.program):
            quick = QuickLoops(self.program).source(self.expression, self.names)
        block_steps = len(self.program.block_steps)
        words = self.count + (FUNCTIONS + 2 * block_steps if block_steps else 0)
        lines = ["def run_program(addresses, y_address, n):", f"    at = array_at(addresses, {words}, np.int64)"]
        lines += indented([*self.once, *quick, "for start in range(0, n, TILE):"])
        lines += indented(indented(["m = min(TILE, n - start)", *self.each_tile]))
        return "\n".join(lines) + "\n", self.names

    def _inputs(self) -> None:
        dtypes = arithmetic.input_dtypes(self.program)
        for k, (each, dtype) in enumerate(zip(self.program.inputs, dtypes, strict=True)):
            name, itemsize = np.dtype(dtype).name, np.dtype(dtype).itemsize
            if each.is_scalar:
                self.once.append(f"x{k} = array_at(at[{k}], 1, np.{name})[0]")
            else:
                self.each_tile.append(f"x{k} = array_at(at[{k}] + {itemsize} * start, m, np.{name})")
            self.values.append(f"x{k}" if each.is_scalar else f"x{k}[i]")

    def _room(self) -> None:
        tile, numbers = tile_size(self.program), sorted(set(self.buffers.values()))
        # Tiles of blocks are larger, and the caller allocates the buffers.
        room = f"at[{self.count + ROOM}]" if self.program.block_steps else f"stack({buffers_size(self.program) // 8})"
        self.once.append(f"room = {room}")
        self.each_tile.append("y = array_at(y_address + 4 * start, m, np.float32)")
        self.each_tile += [f"b{k} = array_at(room + {4 * tile} * {k}, m, np.float32)" for k in numbers]

    def _target(self, number: int) -> str | None:
        """Return the name of the array for the result of a step; None if only the step's own loop needs the result."""
        if number == len(self.program.steps) - 1:
            return "y"
        return f"b{self.buffers[number]}" if number in self.buffers else None

    def _block_step(self, number: int) -> None:
        step = self.program.steps[number]
        (operand,) = step.operands
        assert operand is not None
        x, y = f"x{operand}" if operand < self.count else self._target(operand - self.count), self._target(number)
        blocks = step.block_format[1]
        self.names[f"blocks{number}"] = blocks._replace(inner=tile_width(blocks.block))
        place = block_numbers(self.program).index(number)
        # Numba compiles a function once for each set of literals that it is called with.
        arguments = f"at, np.int64({self.count}), np.int64({place}), {x}.ctypes.data, {y}.ctypes.data, blocks{number}"
        self.each_tile.append(f"convert_blocks({arguments})")
        self.values.append(f"{y}[i]")

    def expression(self, number: int, arguments: list[str]) -> str:
        """Return the expression of a step that is not one of blocks, for an element of each operand."""
        step, name = self.program.steps[number], f"f{number}"
        is_new = name not in self.names
        if step.operator == FAKE_QUANTIZE:
            self.names |= {name: fake_converter(step.fake_key), f"p{number}": preparer(step.fake_key)}
            x, *parameters = arguments
            made = f"p{number}({', '.join(f'np.float64({each})' for each in parameters)})[1]"
            if self._has_scalars(number):
                if is_new:
                    self.once.append(f"n{number} = {made}")
                made = f"n{number}"
            return f"{name}({x}, {made})"
        if is_new and step.operator == ROUND_TRIP:
            self.names[name] = converter(arithmetic.round_trip_key(step, self.program.inputs))
        elif is_new:
            self.names[name] = arithmetic.function(step, self.program.inputs)
        return f"{name}({', '.join(arguments)})"

    def _has_scalars(self, number: int) -> bool:
        """Return whether the parameters of a step, which are inputs, have one element each."""
        parameters = (each for each in self.program.steps[number].operands[1:] if each is not None)
        return all(self.program.inputs[each].is_scalar for each in parameters)

    def _loop(self, steps: list[int]) -> None:
        exact, fast, condition = [], [], ""
        for number in steps:
            step = self.program.steps[number]
            arguments = [self.values[each] for each in step.operands if each is not None]
            exact.append(f"v{number} = {self.expression(number, arguments)}")
            fast.append(exact[-1])
            self.values.append(f"v{number}")
            if step.operator != ROUND_TRIP or not self._has_scalars(number):
                continue
            by_reciprocal, takes = arithmetic.fast_round_trip(arithmetic.round_trip_key(step, self.program.inputs))
            if by_reciprocal is None:
                continue
            self.names |= {f"q{number}": by_reciprocal, f"has{number}": takes}
            x, scale, zero_point = arguments
            condition = f"is_fast{number}"
            self.once.append(f"r{number} = np.float32(np.float32(1) / {scale})")
            self.once.append(f"{condition} = has{number}({scale}, {zero_point})")
            fast[-1] = f"v{number} = q{number}({x}, r{number}, {scale}, {zero_point})"
        for number in steps:
            target = self._target(number)
            if target:
                self.values[self.count + number] = f"{target}[i]"
                exact.append(f"{target}[i] = v{number}")
                fast.append(exact[-1])
        loop = "for i in range(unsigned(m)):"
        if condition:
            loops = [indented([loop, *indented(each)]) for each in (fast, exact)]
            self.each_tile += [f"if {condition}:", *loops[0], "else:", *loops[1]]
        else:
            self.each_tile += [loop, *indented(exact)]


def _loops(program: Program) -> list[list[int]]:
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
    return [steps for steps in loops if steps]


def _buffers(program: Program, loops: list[list[int]]) -> dict[int, int]:
    """Return the number of the buffer for each step whose value a later loop needs. Buffers are reused."""
    loop_of = {number: place for place, steps in enumerate(loops) for number in steps}
    last_use = {
        operand - len(program.inputs): loop_of[number]
        for number, step in enumerate(program.steps)
        for operand in step.operands
        if operand is not None
    }
    found: dict[int, int] = {}
    for number in range(len(program.steps) - 1):
        if last_use[number] > loop_of[number]:
            taken = {buffer for other, buffer in found.items() if last_use[other] >= loop_of[number]}
            found[number] = min(set(range(len(program.steps))) - taken)
    return found
