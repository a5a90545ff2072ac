"""The loops that run a program on a tile, and the buffers between them: a list, which is decided before any source is written.

For example, the absolute value of a round trip of x0 + x1, where x1 has one element, is a list of one loop:

    [Load(0, "x0"), Apply(0), Apply(1), Apply(2), Store(6, "y")]

Values are numbered as in a program: inputs 0 to 3 are x0, x1, the scale and the zero point, and the results of steps follow.
Steps that round to block formats are loops, too, for ordinary blocks; for any others, such a step is a conversion.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ..block.tiles import closed_function, is_quick
from .key import BLOCK_ROUND_TRIPS, FAKE_QUANTIZE, ROUND_TRIP, Program

# The ways to compute an element of a step: by its own function, which of some round trips has a quicker form, by a reciprocal;
# by the anchor of its block; or not at all, as it is its operand.
EXACT, BY_RECIPROCAL, BY_ANCHOR, UNCHANGED = "exact", "by reciprocal", "by anchor", "unchanged"


class Load(NamedTuple):
    """Read the element of a value from an array."""

    value: int
    array: str


class Apply(NamedTuple):
    """Compute the element of a step's result."""

    step: int
    way: str = EXACT


class Reduce(NamedTuple):
    """Find the largest magnitude of each block that a step of blocks rounds."""

    step: int


class Store(NamedTuple):
    """Write the element of a value to an array."""

    value: int
    array: str


# What a loop does for each element, in this order.
Loop = list[Load | Apply | Reduce | Store]


class Conversion(NamedTuple):
    """A step of blocks on the whole tile, by the task that converts any blocks, from array `x` to array `y`."""

    step: int
    x: str
    y: str


class Choice(NamedTuple):
    """What runs if a condition, an expression, holds, and what runs otherwise."""

    condition: str
    parts: Sequence[Part]
    others: Sequence[Part]


Part = Loop | Conversion | Choice


def exact_parts(program: Program) -> tuple[list[Loop | Conversion], int]:
    """Return what runs a program on any elements, and how many buffers it takes. A loop ends with a round trip, except that the
    steps behind the last one belong to its loop. A step of blocks is on its own."""
    blocks = program.block_numbers
    round_trips = [k for k, step in enumerate(program.steps) if step.operator in (ROUND_TRIP, FAKE_QUANTIZE)]
    pieces = _cut(program, {*blocks, *(number + 1 for number in (*blocks, *round_trips[:-1]))} - {0, len(program.steps)})
    # The task that converts any blocks does not convert them in place.
    buffers = _numbered_buffers(_lifetimes(program, pieces), is_in_place=False)
    arrays = _arrays(program, buffers)
    parts: list[Loop | Conversion] = [_loop(program, steps, arrays) for steps in pieces]
    for place, number in ((place, steps[0]) for place, steps in enumerate(pieces) if steps[0] in blocks):
        (operand,) = program.steps[number].given
        parts[place] = Conversion(number, arrays[operand], arrays[len(program.inputs) + number])
    return parts, len(set(buffers.values()))


def has_quick_parts(program: Program) -> bool:
    """Return whether a program has steps of blocks, all with quick functions, and with sub-blocks of at most one size."""
    formats = program.blocks
    sizes = {blocks.sub_block for blocks in formats if blocks.sub_block < blocks.block}
    return bool(formats) and all(map(is_quick, formats)) and len(sizes) <= 1


def quick_parts(program: Program) -> tuple[list[Part], int]:
    """Return what runs a program on ordinary blocks, and how many buffers it takes. A loop converts the elements of a step of
    blocks, does the elementwise steps up to the next step of blocks, and finds the largest magnitudes for this one. A step of
    blocks that returns its operand is not converted. The first one that does so only if the bounds of each Clip are values of
    the format is a choice."""
    bounds = {number: _bounds_since(program, number) for number in program.block_numbers}
    starts = [number for number in bounds if bounds[number] != []]
    pieces = _cut(program, starts)
    # A loop reads each element before it writes it.
    buffers = _numbered_buffers(_lifetimes(program, pieces, starts), is_in_place=True)
    parts: list[Part] = [_loop(program, steps, _arrays(program, buffers), starts) for steps in pieces]
    clipped = next((place for place, number in enumerate(starts) if bounds[number]), None)
    if clipped is not None:
        number = starts.pop(clipped)
        pieces = _cut(program, starts)
        lives = _lifetimes(program, pieces, starts)
        arrays = _arrays(program, {value: buffer for value, buffer in buffers.items() if value in lives})
        condition = " and ".join(f"is_closed{number}(x{low}, x{high})" for low, high in bounds[number] or ())
        one = _loop(program, pieces[clipped], arrays, starts)
        parts[clipped : clipped + 2] = [Choice(condition, [one], parts[clipped : clipped + 2])]
    return parts, len(set(buffers.values()))


def group_size(program: Program) -> int:
    """Return the number of rows of a tile of blocks that are converted together. They are whole sub-blocks of each step;
    without sub-blocks they are two, so that a maximum is stored for two rows at a time."""
    formats = program.blocks
    rows = math.lcm(*(blocks.sub_block for blocks in formats if blocks.sub_block < blocks.block))
    return 2 if rows == 1 and all(blocks.block % 2 == 0 for blocks in formats) else rows


def _cut(program: Program, starts: Iterable[int]) -> list[range]:
    """Return the steps in pieces, for a loop each. The first one begins at step 0, the others at `starts`."""
    return [range(*ends) for ends in itertools.pairwise([0, *sorted(starts), len(program.steps)])]


def _with_next(steps: range, starts: Collection[int]) -> list[int]:
    """Return the steps whose operands a loop reads: its own, and the next one if the loop finds the magnitudes for it."""
    return [*steps, *([steps.stop] if steps.stop in starts else [])]


def _loop(program: Program, steps: range, arrays: dict[int, str], starts: Collection[int] = ()) -> Loop:
    """Return the loop of these steps. An element is loaded where it is first read, unless the loop has computed it. `arrays`
    are those of the values that are in arrays, `starts` the steps of blocks that are converted by anchors."""
    loop: Loop = []
    known: set[int] = set()
    for number in _with_next(steps, starts):
        step = program.steps[number]
        loads = [value for value in dict.fromkeys(step.given) if value in arrays and value not in known]
        known |= {*loads, len(program.inputs) + number}
        way = EXACT if step.operator not in BLOCK_ROUND_TRIPS else BY_ANCHOR if number in starts else UNCHANGED
        loop += [*(Load(value, arrays[value]) for value in loads), Apply(number, way) if number in steps else Reduce(number)]
    results = (len(program.inputs) + number for number in steps)
    return loop + [Store(value, arrays[value]) for value in results if value in arrays]


def _arrays(program: Program, buffers: dict[int, int]) -> dict[int, str]:
    """Return the name of the array of each value that is in one: inputs, values in buffers, and y."""
    inputs = {k: f"x{k}" for k, x in enumerate(program.inputs) if not x.is_scalar}
    y = len(program.inputs) + len(program.steps) - 1
    return inputs | {value: f"b{buffer}" for value, buffer in buffers.items()} | {y: "y"}


def _lifetimes(program: Program, pieces: list[range], starts: Collection[int] = ()) -> dict[int, tuple[int, int]]:
    """Return (the place of the loop that computes it, the place of the last loop that reads it) for each result of a step that
    a later loop reads."""
    count, read = len(program.inputs), dict[int, int]()
    for place, steps in enumerate(pieces):
        read |= {value: place for number in _with_next(steps, starts) for value in program.steps[number].given}
    computed = {count + number: place for place, steps in enumerate(pieces) for number in steps}
    return {value: (place, read[value]) for value, place in computed.items() if read.get(value, place) > place}


def _numbered_buffers(lives: dict[int, tuple[int, int]], *, is_in_place: bool) -> dict[int, int]:
    """Return the number of the buffer for each of these values. Buffers are reused, if `is_in_place` even for a value that is
    computed by the loop that reads the former one for the last time."""
    buffers: dict[int, int] = {}
    for value, (computed, _) in lives.items():
        taken = {buffer for other, buffer in buffers.items() if lives[other][1] >= computed + is_in_place}
        buffers[value] = min(set(range(len(lives))) - taken)
    return buffers


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
