"""Histograms of the worst tensors in the first run, together with the values of their types: the number of bins, and where they
begin and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..twin.forms import Array
from ..twin.quantizers import Quantizer
from ..twin.segments import Segments
from .experiment import Experiment, Outcome

_BINS = 96


@dataclass
class Histogram:
    """A histogram of a tensor in the float model. `counts` are the numbers of elements between neighbouring `edges`. Elements
    below `lowest` or above `highest` saturate. `grid` holds the type's values within the edges. `lowest`, `highest` and `grid`
    are None for tensors with several scales and for block formats; `grid` is also None for types of more than 16 bits.
    `not_finite` elements are Inf or NaN, and do not count anywhere else."""

    name: str
    edges: list[float] = field(repr=False)
    counts: list[int] = field(repr=False)
    lowest: float | None
    highest: float | None
    grid: list[float] | None = field(repr=False)
    not_finite: int = 0


class Histograms(Experiment):
    """Histograms of the `count` worst tensors in the first run."""

    where = "the histograms"

    def __init__(self, segments: Segments, count: int) -> None:
        super().__init__(segments, None)
        self.count = count

    def report(self, outcome: Outcome) -> dict[str, Any]:
        quantizers = self.segments.twin.quantizers
        worst = [quantizers[tensor.place] for tensor in outcome.tensors[: self.count]]
        weights = [quantizer for quantizer in worst if quantizer.floats is not None]
        histograms = {quantizer: _histogram(quantizer, quantizer.weight) for quantizer in weights}

        def see(quantizer: Quantizer, x: Array, *_: Array) -> None:
            if quantizer in worst:
                histograms[quantizer] = _histogram(quantizer, x)

        if any(quantizer.kind == "activation" for quantizer in worst):
            self.segments.lockstep(outcome.first, see)
        return {"histograms": [histograms[quantizer] for quantizer in worst if quantizer in histograms]}


def _histogram(quantizer: Quantizer, x: Array) -> Histogram:
    values = x[np.isfinite(x)].astype(np.float64)
    least, most = _ends(values)
    counts, edges = np.histogram(values, _BINS, (least, most))
    lowest, highest = quantizer.form.limits or (None, None)
    every = quantizer.form.grid()
    grid = None if every is None else every[(every >= least) & (every <= most)].tolist()
    return Histogram(quantizer.name, edges.tolist(), counts.tolist(), lowest, highest, grid, x.size - values.size)


def _ends(values: Array) -> tuple[float, float]:
    """Return the ends of a histogram, between which there are numbers for the edges of all bins."""
    if not values.size:
        return 0.0, 1.0
    least, most = float(values.min()), float(values.max())
    if least < most:
        return least, most
    width = max(0.5, abs(least) / 1024)
    return least - width, most + width
