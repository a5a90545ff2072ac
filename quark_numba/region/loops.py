"""What the emitters of a program's source share: loops, the buffers between them, and the lines that compute elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .key import Program


class Loop(NamedTuple):
    """The steps that one loop over a tile computes, in order.

    In the loops of ``block_source``, `before` is the step of blocks whose elements the loop converts first, one of `steps`, and
    `behind` the step of blocks for which it finds the largest magnitudes."""

    steps: list[int]
    before: int | None = None
    behind: int | None = None


def lifetimes(program: Program, loops: Sequence[Loop]) -> dict[int, tuple[int, int]]:
    """Return (the place of the loop that computes it, the place of the last loop that reads it) for each step whose value a
    later loop reads."""
    computed = {number: place for place, loop in enumerate(loops) for number in loop.steps}
    read: dict[int, int] = {}
    for place, loop in enumerate(loops):
        for number in (*loop.steps, *([] if loop.behind is None else [loop.behind])):
            operands = program.steps[number].operands
            read |= {operand - len(program.inputs): place for operand in operands if operand is not None}
    return {number: (place, read[number]) for number, place in computed.items() if read.get(number, place) > place}


def numbered_buffers(lives: dict[int, tuple[int, int]], *, is_in_place: bool) -> dict[int, int]:
    """Return the number of the buffer for each of these steps. Buffers are reused, if `is_in_place` even for a value that is
    computed by the loop that reads the former one for the last time."""
    buffers: dict[int, int] = {}
    for number, (computed, _) in lives.items():
        taken = {buffer for other, buffer in buffers.items() if lives[other][1] >= computed + is_in_place}
        buffers[number] = min(set(range(len(lives))) - taken)
    return buffers


class Row:
    """The lines that compute one element, in the body of a loop over `i`. `buffers` has the steps that a later loop reads. If a
    tile is converted in groups of rows, `row` is the place of the element's row, which begins at the index o{row}."""

    def __init__(self, program: Program, buffers: dict[int, int], row: int | None = None) -> None:
        self.lines: list[str] = []
        self._program, self._buffers = program, buffers
        self._index, self._suffix = ("i", "") if row is None else (f"i + o{row}", f"_{row}")
        self._names: dict[int, str] = {}  # of elements, by value

    def element(self, operand: int) -> str:
        """Return the name of an operand's element. If the loop has not read it yet, a line is added that does."""
        number = operand - len(self._program.inputs)
        if number < 0 and self._program.inputs[operand].is_scalar:
            return f"x{operand}"
        if operand not in self._names:
            self._names[operand] = f"e{operand}{self._suffix}" if number < 0 else f"v{number}{self._suffix}"
            array = f"x{operand}" if number < 0 else f"b{self._buffers[number]}"
            self.lines.append(f"{self._names[operand]} = {array}[{self._index}]")
        return self._names[operand]

    def operands(self, number: int) -> list[str]:
        """Return the names of the elements of a step's operands."""
        return [self.element(operand) for operand in self._program.steps[number].operands if operand is not None]

    def compute(self, number: int, expression: str) -> None:
        """Add the line that computes a step."""
        name = self._names[len(self._program.inputs) + number] = f"v{number}{self._suffix}"
        self.lines.append(f"{name} = {expression}")

    def stores(self, numbers: Sequence[int]) -> list[str]:
        """Return the lines that store the results of the steps that a later loop reads, and y."""
        arrays = {number: f"b{buffer}" for number, buffer in self._buffers.items()} | {len(self._program.steps) - 1: "y"}
        return [f"{arrays[number]}[{self._index}] = v{number}{self._suffix}" for number in numbers if number in arrays]
