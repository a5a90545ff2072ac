"""The loops that run a program on a tile, and the buffers between the loops: which steps share a loop, when a buffer is reused,
and which roundings of blocks are left out. A loop is a list of the actions for each element. ``source`` writes its Python
source.

For example, the absolute value of a round trip of x0 + x1, where x1 has one element, is a list of one loop:

    [Load(0, "x0"), Apply(0), Apply(1), Apply(2), Store(6, "y")]

Values are numbered as in a program: 0 to 3 are the inputs x0, x1, the scale and the zero point, and the results of the steps
follow. For ordinary blocks, a step that rounds to a block format is an action in a loop. For other blocks, such a step is a
`Conversion` between two loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ..block.tiles import closed_function, has_ordinary_functions
from .key import Program, Step
from .step_operators import BLOCK_ROUND_TRIPS, FAKE_QUANTIZE, ROUND_TRIP

# The ways to compute an element of a step: call the function of the step; multiply by a reciprocal (some round trips); round by
# the anchor of the element's block; or return the operand unchanged.
EXACT, RECIPROCAL, ANCHOR, UNCHANGED = "exact", "reciprocal", "anchor", "unchanged"

# Answers to "does a step that rounds blocks return its operand unchanged?". A third answer is a condition for the run time.
NEVER, ALWAYS = "never", "always"


class Load(NamedTuple):
    """A load of the element of a value from an array."""

    value: int
    array: str


class Apply(NamedTuple):
    """A computation of the element of a step's result."""

    step: int
    way: str = EXACT


class Reduce(NamedTuple):
    """A search for the largest magnitude of each block that a step rounds."""

    step: int


class Store(NamedTuple):
    """A store of the element of a value to an array."""

    value: int
    array: str


# The actions of a loop for each element, in order.
LoopBody = list[Load | Apply | Reduce | Store]


class Conversion(NamedTuple):
    """A step that rounds blocks, run on the whole tile from array `x` to array `y` by the task that converts any blocks."""

    step: int
    x: str
    y: str


class Choice(NamedTuple):
    """A branch: `parts` run if the expression `condition` holds, and `others` run if it does not."""

    condition: str
    parts: Sequence[Part]
    others: Sequence[Part]


Part = LoopBody | Conversion | Choice


def exact_parts(program: Program) -> tuple[list[LoopBody | Conversion], int]:
    """Return the loops and conversions that run a program on any elements, and the number of their buffers. A loop ends with a
    round trip; the loop of the last round trip also has the steps after it. A step that rounds blocks is a conversion."""
    blocks = program.block_formats
    round_trips = [k for k, step in enumerate(program.steps) if step.operator in (ROUND_TRIP, FAKE_QUANTIZE)]
    pieces = _cut(program, {*blocks, *(number + 1 for number in (*blocks, *round_trips[:-1]))} - {0, len(program.steps)})
    # The task that converts any blocks cannot convert in place.
    buffers = _numbered_buffers(_lifetimes(program, pieces), is_in_place=False)
    arrays = _arrays(program, buffers)
    parts: list[LoopBody | Conversion] = [_loop(program, steps, arrays) for steps in pieces]
    for place, number in ((place, steps[0]) for place, steps in enumerate(pieces) if steps[0] in blocks):
        (operand,) = program.steps[number].present
        parts[place] = Conversion(number, arrays[operand], arrays[len(program.inputs) + number])
    return parts, len(set(buffers.values()))


def has_ordinary_parts(program: Program) -> bool:
    """Return whether `ordinary_parts` can run a program. The program must round to block formats. Each of the formats
    must have functions for ordinary blocks. At most one size of sub-blocks may occur."""
    formats = program.block_formats.values()
    sizes = {each.sub_block for each in formats if each.sub_block < each.block}
    return bool(formats) and all(map(has_ordinary_functions, formats)) and len(sizes) <= 1


def ordinary_parts(program: Program) -> tuple[list[Part], int]:
    """Return the parts that run a program on ordinary blocks, and the number of their buffers.

    A step that rounds blocks needs the largest magnitude of a block before it can convert an element. So a loop begins with
    a step that rounds blocks, does the elementwise steps after it, and finds the magnitudes for the next step that rounds
    blocks. For example, let steps 0, 2 and 4 of a program round blocks. The first loop only finds magnitudes for step 0. The
    further loops have steps 0 and 1, steps 2 and 3, and step 4.

    A step that returns its operand unchanged needs no magnitudes, and no loop has to begin with it. If a condition decides
    whether the operand is unchanged, there is a `Choice`. In the example, if step 2 returns its operand, one loop with steps 0
    to 3 replaces the second and the third loop. Only the first step with a condition has a choice. Each further choice would
    double the number of loops, and the choices of two successive steps would share a loop."""
    unchanged = {number: _unchanged(program, number) for number in program.block_formats}
    converted = [number for number, condition in unchanged.items() if condition != ALWAYS]
    # A loop reads each element before it writes it.
    buffers = _numbered_buffers(_lifetimes(program, _cut(program, converted), converted), is_in_place=True)
    parts: list[Part] = [*_ordinary_loops(program, converted, buffers)]
    chosen = next((number for number in converted if unchanged[number] != NEVER), None)
    if chosen is not None:
        k = converted.index(chosen)
        up_to_step, from_step = parts[k : k + 2]
        merged = _ordinary_loops(program, [number for number in converted if number != chosen], buffers)[k]
        parts[k : k + 2] = [Choice(unchanged[chosen], [merged], [up_to_step, from_step])]
    return parts, len(set(buffers.values()))


def _ordinary_loops(program: Program, converted: list[int], buffers: dict[int, int]) -> list[LoopBody]:
    """Return the loops that run a program on ordinary blocks. The first loop begins with step 0, and each further loop with one
    of the steps `converted`. `buffers` are the buffers of values; the loops may need only some of them."""
    pieces = _cut(program, converted)
    arrays = _arrays(program, {value: buffers[value] for value in _lifetimes(program, pieces, converted)})
    return [_loop(program, steps, arrays, converted) for steps in pieces]


def group_size(program: Program) -> int:
    """Return the number of rows of a tile that are converted together. The rows are whole sub-blocks of each step. Without
    sub-blocks, and if all block sizes are even, the number is two, so that maxima are stored once for two rows."""
    formats = program.block_formats.values()
    rows = math.lcm(*(each.sub_block for each in formats if each.sub_block < each.block))
    return 2 if rows == 1 and all(each.block % 2 == 0 for each in formats) else rows


def _cut(program: Program, starts: Iterable[int]) -> list[range]:
    """Return the steps of each loop. The first loop begins at step 0, the others at `starts`."""
    return [range(*ends) for ends in itertools.pairwise([0, *sorted(starts), len(program.steps)])]


def _with_next(steps: range, converted: Collection[int]) -> list[int]:
    """Return the steps whose operands a loop reads: `steps`, and the next step if the loop finds its magnitudes."""
    return [*steps, *([steps.stop] if steps.stop in converted else [])]


def _loop(program: Program, steps: range, arrays: dict[int, str], converted: Collection[int] = ()) -> LoopBody:
    """Return the loop of these steps. An element is loaded where it is first read, unless the loop has computed it. `arrays`
    are the names of the arrays of values, and `converted` the steps that round blocks by anchors."""
    loop: LoopBody = []
    known: set[int] = set()
    for number in _with_next(steps, converted):
        step = program.steps[number]
        loads = [value for value in dict.fromkeys(step.present) if value in arrays and value not in known]
        known |= {*loads, len(program.inputs) + number}
        way = EXACT if step.operator not in BLOCK_ROUND_TRIPS else ANCHOR if number in converted else UNCHANGED
        loop += [*(Load(value, arrays[value]) for value in loads), Apply(number, way) if number in steps else Reduce(number)]
    results = (len(program.inputs) + number for number in steps)
    return loop + [Store(value, arrays[value]) for value in results if value in arrays]


def _arrays(program: Program, buffers: dict[int, int]) -> dict[int, str]:
    """Return the names of the arrays that hold values: the inputs of more than one element, the values in buffers, and y."""
    inputs = {k: f"x{k}" for k, x in enumerate(program.inputs) if not x.is_scalar}
    y = len(program.inputs) + len(program.steps) - 1
    return inputs | {value: f"b{buffer}" for value, buffer in buffers.items()} | {y: "y"}


def _lifetimes(program: Program, pieces: list[range], converted: Collection[int] = ()) -> dict[int, tuple[int, int]]:
    """For each result of a step that a later loop reads, return (the index of the loop that computes it, the index of the last
    loop that reads it)."""
    count, read = len(program.inputs), dict[int, int]()
    for place, steps in enumerate(pieces):
        read |= {value: place for number in _with_next(steps, converted) for value in program.steps[number].present}
    computed = {count + number: place for place, steps in enumerate(pieces) for number in steps}
    return {value: (place, read[value]) for value, place in computed.items() if read.get(value, place) > place}


def _numbered_buffers(lives: dict[int, tuple[int, int]], *, is_in_place: bool) -> dict[int, int]:
    """Return the number of the buffer for each of these values. A buffer is reused after the last loop that reads its value or,
    if `is_in_place`, already in that loop."""
    buffers: dict[int, int] = {}
    for value, (computed, _) in lives.items():
        taken = {buffer for other, buffer in buffers.items() if lives[other][1] >= computed + is_in_place}
        buffers[value] = min(set(range(len(lives))) - taken)
    return buffers


def _unchanged(program: Program, number: int) -> str:
    """Return when step `number`, which rounds blocks, returns ordinary blocks unchanged: NEVER, ALWAYS, or an expression for
    the condition. It does so if an earlier step rounded to the same format and only clips came between, unless a bound of a
    Clip is not a value of the block format."""
    since, is_closed = _steps_since_rounding(program, number), closed_function(*program.steps[number].block_format)
    if since is None or is_closed is None:
        return NEVER
    conditions = []
    for step in since:
        bounds = step.present[1:]
        are_scalars = all(bound < len(program.inputs) and program.inputs[bound].is_scalar for bound in bounds)
        if step.operator == "Clip" and len(bounds) == 2 and are_scalars:
            conditions.append(f"is_closed{number}({', '.join(f'x{bound}' for bound in bounds)})")
        elif step.operator not in ("Identity", "Relu"):
            return NEVER
    return " and ".join(conditions) or ALWAYS


def _steps_since_rounding(program: Program, number: int) -> list[Step] | None:
    """Return the steps between step `number` and the last earlier step that rounds to the same block format, going back along
    first operands. Return None if there is no such step."""
    step, since = program.steps[number], list[Step]()
    operand = step.present[0]
    while operand >= len(program.inputs):
        before = program.steps[operand - len(program.inputs)]
        if (before.operator, before.attributes) == (step.operator, step.attributes):
            return since
        since.append(before)
        operand = before.present[0]
    return None
