"""The Python source of the lines that compute one element, for processors and for GPUs, and the values of the names in it."""

from __future__ import annotations

from typing import Any

from ..fake_quantization.arithmetic import preparer
from . import arithmetic, loops
from .key import Program
from .loops import Apply, Load, Reduce, Store
from .step_operators import BLOCK_ROUND_TRIPS, FAKE_QUANTIZE


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
