"""The base class of the experiments of `analyze`: what an experiment may measure in each run and in a second pass, and what it
reports; and the sums that it collects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...running.sessions import Arrays
from ..measures.distributions import PlaceSums
from ..measures.outputs import Comparison
from ..measures.sums import Sums, TensorSums
from ..measures.tensors import QuantizedTensor
from ..twin.forms import Array
from ..twin.quantizers import Quantizer
from ..twin.segments import Config, Segments

# The name of one measurement in an experiment. The experiment chooses it.
Key = tuple[str, str]

# The type of each tensor at one point of an experiment, by the tensor's place in the order of execution.
Point = dict[int, str]


@dataclass
class ExperimentSums(Sums):
    """The sums of an experiment: noise of tensors, and comparisons of outputs."""

    noise: dict[Key, float] = field(default_factory=dict)
    outputs: dict[Key, Comparison] = field(default_factory=dict)


@dataclass
class Measured(Sums):
    """The sums of one or more batches: of tensors by place in the order of execution, of outputs, of each experiment, and of
    the divergences at each place of texts."""

    samples: int
    tensors: dict[int, TensorSums]
    outputs: Comparison
    twin: Comparison
    experiments: list[ExperimentSums]
    divergences: PlaceSums = field(default_factory=PlaceSums)


class RunValues(NamedTuple):
    """The values of a run: all of the quantized and of the float model, and the outputs of the twin and the reference."""

    quantized: dict[str, Any]
    floats: dict[str, Any]
    twin: Mapping[str, Any]
    reference: Mapping[str, Any]


class Outcome(NamedTuple):
    """The input of an experiment's report: the totals, its own sums, the comparisons at its points, and the inputs of the
    first run."""

    total: Measured
    own: ExperimentSums
    points: list[Comparison]
    tensors: list[QuantizedTensor]  # the worst first
    first: Arrays


class Experiment:
    """An experiment measures in each run (`see`, `runs`), may choose points that a second pass measures (`points`,
    `config`), and reports fields of an `Analysis` (`report`). A new experiment is a subclass in a new file, which
    overrides the methods that it needs.

    `where` is its name in messages. `chosen` holds the names of the outputs to compare, or is None for all.
    """

    where = ""
    has_runs = False
    has_points = False

    def __init__(self, segments: Segments, chosen: Sequence[str] | None) -> None:
        self.segments, self.chosen = segments, chosen

    def see(self, quantizer: Quantizer, x: Array) -> dict[Key, float]:
        """Return the noise of an activation by key, to be added up over runs. x is the tensor in the float model."""
        return {}

    def runs(self, values: RunValues) -> dict[Key, Callable[[], Comparison]]:
        """Return further runs of the model on the same inputs, by key. `has_runs` has to be True."""
        return {}

    def points(self, total: Measured, own: ExperimentSums) -> list[Point]:
        """Return the points that a second pass measures: the quantized model with other types. `has_points` has to be True."""
        return []

    def config(self, point: Point) -> Config:
        """Return the roundings of a point, by quantizer."""
        raise NotImplementedError

    def report(self, outcome: Outcome) -> dict[str, Any]:
        """Return fields of `Analysis` by name. May also fill in fields of the tensors."""
        raise NotImplementedError
