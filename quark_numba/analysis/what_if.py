"""Which tensors to give how many bits: the outputs' accuracy against the bits that are moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .formats import Format
from .outputs import Errors
from .program import Rounding
from .quantizers import Quantizer

# How many points of the line are measured, at most.
_POINTS = 24


@dataclass
class TradeOff:
    """A point of the line: the bits of all quantized tensors of one sample, the outputs' least signal-to-quantization-noise
    ratio, and the tensors that have another type than in the point before, in the first point than the model gives them."""

    bits: float
    sqnr_db: float
    choices: dict[str, str]


@dataclass(frozen=True)
class Candidate:
    """A type that a tensor may have: the model's own, or a format."""

    type: str
    bits: float
    apply: Rounding


def candidates(quantizer: Quantizer, formats: Sequence[Format]) -> list[Candidate]:
    """The most precise first."""
    own = Candidate(quantizer.type, quantizer.bits, quantizer.apply)
    others = [Candidate(each.name, each.bits, each.apply) for each in formats if each.name != quantizer.type]
    return sorted([own, *others], key=lambda each: -each.bits)


@dataclass
class Point:
    """What each tensor has at a point of the line."""

    bits: float
    chosen: dict[Quantizer, Candidate]


def line(
    options: Mapping[Quantizer, Sequence[Candidate]],
    elements: Mapping[Quantizer, float],
    noise: Mapping[tuple[Quantizer, str], float],
) -> list[Point]:
    """From all tensors with the least noise to all with the fewest bits. Each step gives one tensor a type of fewer bits: that
    which adds least noise for each bit that it takes away.

    `elements` are those of a sample; `noise` is what a tensor with a type adds to the outputs' by itself. What several add is
    taken for their sum: the line is chosen by that, and then measured."""
    chosen = {each: min(types, key=lambda type_: (noise[each, type_.type], type_.bits)) for each, types in options.items()}

    def bits() -> float:
        return sum(elements[each] * type_.bits for each, type_ in chosen.items())

    points = [Point(bits(), dict(chosen))]
    # For each tensor its next step; after a step only that tensor's changes.
    steps = {each: _next(each, chosen[each], types, elements, noise) for each, types in options.items()}
    while any(steps.values()):
        _, quantizer, candidate = min((step for step in steps.values() if step), key=lambda step: step[0])
        chosen[quantizer] = candidate
        steps[quantizer] = _next(quantizer, candidate, options[quantizer], elements, noise)
        points.append(Point(bits(), dict(chosen)))
    if len(points) <= _POINTS:
        return points
    # Evenly, by bits.
    first, last = points[0].bits, points[-1].bits
    wanted = [first + (last - first) * index / (_POINTS - 1) for index in range(_POINTS)]
    places = {min(range(len(points)), key=lambda place: abs(points[place].bits - bits)) for bits in wanted}
    return [points[place] for place in sorted(places)]


def _next(
    quantizer: Quantizer,
    present: Candidate,
    types: Sequence[Candidate],
    elements: Mapping[Quantizer, float],
    noise: Mapping[tuple[Quantizer, str], float],
) -> tuple[float, Quantizer, Candidate] | None:
    """The price of the cheapest step of a tensor, in noise a bit."""
    prices = []
    for each in types:
        saved = elements[quantizer] * (present.bits - each.bits)
        if saved > 0:
            prices.append(((noise[quantizer, each.type] - noise[quantizer, present.type]) / saved, each))
    if not prices:
        return None
    price, candidate = min(prices, key=lambda pair: pair[0])
    return price, quantizer, candidate


def noise_of(errors: Errors) -> float:
    """Of all outputs, each against its own signal."""
    return sum(each.noise / each.signal if each.signal else each.noise for each in errors.values())


def trade_offs(points: Sequence[Point], sqnr_db: Sequence[float], own: Mapping[Quantizer, str]) -> list[TradeOff]:
    before = dict(own)
    found = []
    for point, ratio in zip(points, sqnr_db, strict=True):
        changed = {each: type_.type for each, type_ in point.chosen.items() if before[each] != type_.type}
        before |= changed
        found.append(TradeOff(point.bits, ratio, {each.name: name for each, name in changed.items()}))
    return found
