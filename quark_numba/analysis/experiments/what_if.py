"""Other types for each tensor, and the best trade-offs between the bits of all tensors and the outputs' accuracy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..measures.outputs import Comparison, Errors, common, compare, least_sqnr_db
from ..measures.sums import ErrorSums
from ..measures.tensors import own_noise
from ..twin.forms import Array
from ..twin.quantizers import Quantizer
from ..twin.segments import Config, Rounding, Segments
from .experiment import Experiment, Found, Key, Measured, Outcome, Point, Values
from .formats import Format

# The largest number of points of the line that are measured.
_POINTS = 24


@dataclass
class TradeOff:
    """A point of the line: the bits of all quantized tensors for one sample, the least signal-to-quantization-noise ratio of
    all outputs, and the new types of the tensors whose type changed since the previous point. The first point follows the
    quantized model itself."""

    bits: float
    sqnr_db: float
    choices: dict[str, str]


@dataclass(frozen=True)
class Candidate:
    """A type that a tensor may have: the model's own, or a format."""

    type: str
    bits: float
    apply: Rounding


class WhatIf(Experiment):
    """Each tensor with other types: its own noise, and its effect on the outputs. Then a line of mixes of types."""

    where = "what_if"
    has_runs = has_points = True

    def __init__(self, segments: Segments, chosen: Sequence[str] | None, formats: Sequence[Format]) -> None:
        super().__init__(segments, chosen)
        self.formats = formats
        known = [each for each in segments.twin.quantizers if each.kind == "activation" or each.floats is not None]
        self.candidates = {each: _candidates(each, formats) for each in known}
        self.mixes: list[Mix] = []

    def see(self, quantizer: Quantizer, x: Array) -> dict[Key, float]:
        return {(str(self.places[quantizer]), each.name): own_noise(x, each.apply(x)) for each in self.formats}

    def runs(self, values: Values) -> dict[Key, Callable[[], Comparison]]:
        return {
            (str(self.places[quantizer]), candidate.type): functools.partial(self._effect, quantizer, candidate, values)
            for quantizer, candidates in self.candidates.items()
            for candidate in candidates
        }

    def _effect(self, quantizer: Quantizer, candidate: Candidate, values: Values) -> Comparison:
        """Return the comparison of the outputs if only this tensor is rounded, to the candidate's type."""
        config = {quantizer: candidate.apply}
        return compare(self.segments.rerun(values.floats, config, [quantizer], quantized=False), values.twin, self.chosen)

    def points(self, total: Measured, own: Found) -> list[Point]:
        elements = {
            each: float(each.floats.size) if each.floats is not None else total.tensors[self.places[each]].count / total.samples
            for each in self.candidates
        }
        effects = common(own.outputs)
        noise = {
            (each, candidate.type): _noise_of(effects[str(self.places[each]), candidate.type])
            for each, types in self.candidates.items()
            for candidate in types
        }
        self.mixes = _line(self.candidates, elements, noise)
        return [{self.places[each]: type_.type for each, type_ in mix.chosen.items()} for mix in self.mixes]

    def config(self, point: Point) -> Config:
        types = {(self.places[each], type_.type): type_ for each, all_ in self.candidates.items() for type_ in all_}
        quantizers = self.segments.twin.quantizers
        return self.segments.quantized | {quantizers[place]: types[place, name].apply for place, name in point.items()}

    def report(self, outcome: Outcome) -> dict[str, Any]:
        """Return the trade-offs. Also fill in `what_if` of the tensors."""
        quantizers = self.segments.twin.quantizers
        for tensor in outcome.tensors:
            quantizer = quantizers[tensor.place]
            signal = self._signal(quantizer, outcome.total)
            for format_ in self.formats:
                noise = self._noise(quantizer, format_, outcome.own)
                if noise is not None and signal is not None:
                    tensor.what_if[format_.name] = ErrorSums(signal=signal, noise=noise).sqnr_db
        errors = common(dict(enumerate(outcome.points)))
        own = {each: each.form.type for each in self.candidates}
        return {"trade_offs": _trade_offs(self.mixes, [least_sqnr_db(each) for each in errors.values()], own)}

    def _signal(self, quantizer: Quantizer, total: Measured) -> float | None:
        if quantizer.kind == "activation":
            return total.tensors[self.places[quantizer]].signal
        if quantizer.floats is None:
            return None
        weight = quantizer.weight
        return own_noise(weight, np.zeros_like(weight))

    def _noise(self, quantizer: Quantizer, format_: Format, own: Found) -> float | None:
        if quantizer.kind == "activation":
            return own.noise[str(self.places[quantizer]), format_.name]
        if quantizer.floats is None:
            return None
        weight = quantizer.weight
        return own_noise(weight, format_.apply(weight))


def _candidates(quantizer: Quantizer, formats: Sequence[Format]) -> list[Candidate]:
    """Return the types that a tensor may have, the one with the most bits first."""
    own = Candidate(quantizer.form.type, quantizer.form.bits, quantizer.apply)
    others = [Candidate(each.name, each.bits, each.apply) for each in formats if each.name != quantizer.form.type]
    return sorted([own, *others], key=lambda each: -each.bits)


@dataclass
class Mix:
    """The type of each tensor at a point of the line."""

    bits: float
    chosen: dict[Quantizer, Candidate]


def _line(
    options: Mapping[Quantizer, Sequence[Candidate]],
    elements: Mapping[Quantizer, float],
    noise: Mapping[tuple[Quantizer, str], float],
) -> list[Mix]:
    """Return points from all tensors with the least noise to all tensors with the fewest bits, at most _POINTS.

    Each step gives one tensor a type with fewer bits. It is the step that adds the least noise for each bit saved. `elements`
    are the numbers of elements in one sample. `noise` is the noise that a tensor of a type adds to the outputs if only this
    tensor is rounded. The choice of steps assumes that the noise of several tensors adds up; the points are then measured."""
    chosen = {each: min(types, key=lambda type_: (noise[each, type_.type], type_.bits)) for each, types in options.items()}

    def bits() -> float:
        return sum(elements[each] * type_.bits for each, type_ in chosen.items())

    points = [Mix(bits(), dict(chosen))]
    # The next step of each tensor. A step changes only the next step of its own tensor.
    steps = {each: _next(each, chosen[each], types, elements, noise) for each, types in options.items()}
    while any(steps.values()):
        _, quantizer, candidate = min((step for step in steps.values() if step), key=lambda step: step[0])
        chosen[quantizer] = candidate
        steps[quantizer] = _next(quantizer, candidate, options[quantizer], elements, noise)
        points.append(Mix(bits(), dict(chosen)))
    if len(points) <= _POINTS:
        return points
    # About evenly spaced in bits.
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
    """Return the cheapest step of a tensor: its price in noise per bit, the tensor and the new type; None if there is none."""
    prices = []
    for each in types:
        saved = elements[quantizer] * (present.bits - each.bits)
        if saved > 0:
            prices.append(((noise[quantizer, each.type] - noise[quantizer, present.type]) / saved, each))
    if not prices:
        return None
    price, candidate = min(prices, key=lambda pair: pair[0])
    return price, quantizer, candidate


def _noise_of(errors: Errors) -> float:
    """Return the noise of all outputs, each relative to its signal."""
    return sum(each.noise / each.signal if each.signal else each.noise for each in errors.values())


def _trade_offs(points: Sequence[Mix], sqnr_db: Sequence[float], own: Mapping[Quantizer, str]) -> list[TradeOff]:
    before = dict(own)
    found = []
    for point, ratio in zip(points, sqnr_db, strict=True):
        changed = {each: type_.type for each, type_ in point.chosen.items() if before[each] != type_.type}
        before |= changed
        found.append(TradeOff(point.bits, ratio, {each.name: name for each, name in changed.items()}))
    return found
