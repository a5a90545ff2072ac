"""Other types for each tensor, and the best trade-offs between the bits of all tensors and the outputs' accuracy: how many
mixes of types are measured, and which are reported."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..measures.outputs import Comparison, Errors, common, compare, least_sqnr_db
from ..measures.sums import decibels, share
from ..measures.tensors import own_noise, signal
from ..twin.forms import Array
from ..twin.quantizers import Quantizer
from ..twin.segments import Config, Segments
from .experiment import Experiment, ExperimentSums, Key, Measured, Outcome, Point, RunValues
from .formats import Format

# The largest number of points of the line that are measured.
_POINTS = 24


@dataclass
class TradeOff:
    """A trade-off that no other point of the line beats: the bits of all quantized tensors for one sample, the least
    signal-to-quantization-noise ratio of all outputs, and the new types of the tensors whose type changed since the previous
    trade-off. The first one follows the quantized model itself."""

    bits: float
    sqnr_db: float
    choices: dict[str, str]


class WhatIf(Experiment):
    """The noise of each tensor with other types, and its effect on the outputs; then mixes of types, which a second pass
    measures."""

    where = "what_if"
    has_runs = has_points = True

    def __init__(self, segments: Segments, chosen: Sequence[str] | None, formats: Sequence[Format]) -> None:
        super().__init__(segments, chosen)
        self.formats = formats
        # The formats that a tensor may have, its own among them, the one with the most bits first.
        self.candidates: dict[Quantizer, list[Format]] = {}
        for quantizer in segments.twin.quantizers:
            if quantizer.kind == "activation" or quantizer.floats is not None:
                form = quantizer.form
                own = Format(form.type, form.bits, quantizer.apply)
                candidates = [own, *(each for each in formats if each.name != own.name)]
                self.candidates[quantizer] = sorted(candidates, key=lambda candidate: -candidate.bits)
        self.mixes: list[Mix] = []

    def see(self, quantizer: Quantizer, x: Array) -> dict[Key, float]:
        return {(str(quantizer.place), each.name): own_noise(x, each.apply(x)) for each in self.formats}

    def runs(self, values: RunValues) -> dict[Key, Callable[[], Comparison]]:
        return {
            (str(quantizer.place), candidate.name): functools.partial(self._effect, quantizer, candidate, values)
            for quantizer, candidates in self.candidates.items()
            for candidate in candidates
        }

    def _effect(self, quantizer: Quantizer, candidate: Format, values: RunValues) -> Comparison:
        """Return the comparison of the outputs if only this tensor is rounded, to the candidate's type."""
        config = {quantizer: candidate.apply}
        return compare(self.segments.rerun(values.floats, config, [quantizer], quantized=False), values.twin, self.chosen)

    def points(self, total: Measured, own: ExperimentSums) -> list[Point]:
        elements = {
            quantizer: share(total.tensors[quantizer.place].count, total.samples)
            if quantizer.floats is None
            else float(quantizer.floats.size)
            for quantizer in self.candidates
        }
        effects = common(own.outputs)
        noise = {
            (quantizer, candidate.name): _noise_of(effects[str(quantizer.place), candidate.name])
            for quantizer, candidates in self.candidates.items()
            for candidate in candidates
        }
        self.mixes = _line(self.candidates, elements, noise)
        return [{quantizer.place: chosen.name for quantizer, chosen in mix.chosen.items()} for mix in self.mixes]

    def config(self, point: Point) -> Config:
        formats = {(quantizer.place, each.name): each for quantizer, found in self.candidates.items() for each in found}
        quantizers = self.segments.twin.quantizers
        return self.segments.quantized | {quantizers[place]: formats[place, name].apply for place, name in point.items()}

    def report(self, outcome: Outcome) -> dict[str, Any]:
        """Return the trade-offs. Also fill in `what_if` of the tensors."""
        for tensor in outcome.tensors:
            quantizer = self.segments.twin.quantizers[tensor.place]
            if tensor.own_sqnr_db is None:  # nothing was measured
                continue
            if quantizer.kind == "activation":
                power = outcome.total.tensors[tensor.place].signal
                noise = {each.name: outcome.own.noise[str(tensor.place), each.name] for each in self.formats}
            else:
                weight = quantizer.weight
                power = signal(weight)
                noise = {each.name: own_noise(weight, each.apply(weight)) for each in self.formats}
            tensor.what_if |= {name: decibels(power, lost) for name, lost in noise.items()}
        errors = common(dict(enumerate(outcome.points)))
        present = {quantizer: quantizer.form.type for quantizer in self.candidates}
        trade_offs = []
        for mix, ratio in _best(self.mixes, [least_sqnr_db(errors_of_outputs) for errors_of_outputs in errors.values()]):
            changed = {quantizer: new.name for quantizer, new in mix.chosen.items() if present[quantizer] != new.name}
            present |= changed
            choices = {quantizer.name: name for quantizer, name in changed.items()}
            trade_offs.append(TradeOff(mix.bits, ratio, choices))
        return {"trade_offs": trade_offs}


class Mix(NamedTuple):
    """The format of each tensor at a point of the line."""

    bits: float
    chosen: dict[Quantizer, Format]


def _line(
    candidates: Mapping[Quantizer, Sequence[Format]],
    elements: Mapping[Quantizer, float],
    noise: Mapping[tuple[Quantizer, str], float],
) -> list[Mix]:
    """Return points from all tensors with the least noise to all tensors with the fewest bits, at most _POINTS.

    Each step gives one tensor a format with fewer bits. It is the step that adds the least noise for each bit saved. `elements`
    are the numbers of elements in one sample. `noise` is the noise that a tensor in a format adds to the outputs if only this
    tensor is rounded. The choice of steps assumes that the noise of several tensors adds up; the points are then measured."""
    chosen = {
        quantizer: min(formats, key=lambda candidate: (noise[quantizer, candidate.name], candidate.bits))
        for quantizer, formats in candidates.items()
    }

    def bits() -> float:
        return sum(elements[quantizer] * each.bits for quantizer, each in chosen.items())

    def next_step(quantizer: Quantizer) -> tuple[float, Quantizer, Format] | None:
        """Return the cheapest step of a tensor, as (price in noise per bit, tensor, new format), or None if there is none."""
        present, prices = chosen[quantizer], []
        for candidate in candidates[quantizer]:
            saved = elements[quantizer] * (present.bits - candidate.bits)
            if saved > 0:
                before, after = noise[quantizer, present.name], noise[quantizer, candidate.name]
                added = after - before if after != before else 0.0  # both may be inf
                prices.append((added / saved, quantizer, candidate))
        return min(prices, key=lambda price: price[0], default=None)

    points = [Mix(bits(), dict(chosen))]
    # A step changes only the next step of its own tensor.
    steps = {quantizer: next_step(quantizer) for quantizer in candidates}
    while any(steps.values()):
        _, quantizer, candidate = min(filter(None, steps.values()), key=lambda step: step[0])
        chosen[quantizer] = candidate
        steps[quantizer] = next_step(quantizer)
        points.append(Mix(bits(), dict(chosen)))
    if len(points) <= _POINTS:
        return points
    # About evenly spaced in bits.
    first, last = points[0].bits, points[-1].bits
    wanted = [first + (last - first) * index / (_POINTS - 1) for index in range(_POINTS)]
    places = {min(range(len(points)), key=lambda place: abs(points[place].bits - bits)) for bits in wanted}
    return [points[place] for place in sorted(places)]


def _best(mixes: Sequence[Mix], ratios: Sequence[float]) -> list[tuple[Mix, float]]:
    """Return the points, and their ratios, that are more accurate than every point with fewer bits. Each point has fewer bits
    than the one before. NaN counts as the least ratio."""
    best: list[tuple[Mix, float]] = []
    highest = -math.inf
    for mix, ratio in reversed([*zip(mixes, ratios, strict=True)]):
        if not best or ratio > highest:
            best.append((mix, ratio))
            highest = -math.inf if math.isnan(ratio) else ratio
    return best[::-1]


def _noise_of(errors: Errors) -> float:
    """Return the noise of all outputs, each relative to its signal. NaN counts as inf."""
    noise = sum(sums.noise / sums.signal if sums.signal else sums.noise for sums in errors.values())
    return noise if noise == noise else math.inf
