"""`analyze`: the error of each quantized tensor, its own and the inherited one, and the effect on the outputs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import check_choices, check_flags, check_integers, check_names
from ..compiling.threads import number_of_processors
from ..errors import ModelError, errors_named
from ..models.model_files import Source
from ..running import sessions
from ..running.data import Batch, open_batches
from ..running.runs import Execution, Runner, Total, Work, execution_of
from ..running.threads import in_order
from .experiments.experiment import BatchValues, Experiment, ExperimentSums, Measured, Outcome, Point
from .experiments.formats import formats
from .experiments.histograms import Histograms
from .experiments.sweep import BY, By, Sweep
from .experiments.what_if import WhatIf
from .measures.outputs import Comparison, OutputError, check_chosen, check_outputs, compare, output_error
from .measures.sums import Sums, TensorSums
from .measures.tensors import QuantizedTensor, measure, tensor_of
from .results import Analysis
from .twin import float_twin
from .twin.forms import Array
from .twin.quantizers import Quantizer
from .twin.random_nodes import random_outputs
from .twin.segments import Config, Segments


@dataclass
class _Points(Sums):
    """The comparisons of outputs at the points that experiments chose, over one or more batches."""

    outputs: list[Comparison]


def analyze(
    model: float_twin.Model,
    data: Any,
    reference: float_twin.Model | None = None,
    *,
    outputs: Sequence[str] | None = None,
    sweep: bool = False,
    by: By = "tensor",
    what_if: Sequence[str] = (),
    histograms: int = 0,
    execution: Execution | None = None,
) -> Analysis:
    """Measure where a quantized model's accuracy goes, in one pass over data that keeps only sums.

    The float twin is the model without its quantization nodes. Three tensors are compared with tensors of the twin: the
    quantized model's before rounding (the inherited error), the quantized model's after rounding (the inherited error and its
    own), and the twin's after rounding (the error of this rounding alone).

    Parameters
    ----------
    model : path, or onnx.ModelProto
        The quantized model.
    data, outputs, execution
        As in `evaluate`.
    reference : path, or onnx.ModelProto, optional
        The float model. The outputs are compared with its outputs. If the model has only codes of a weight, the float values
        are taken from it. They are matched by name, or by the operator, output and input of the node that takes the weight, and
        by shape.
    sweep : bool
        For each tensor, also measure the outputs with only this tensor in float, and with only this tensor quantized.
    by : "tensor", "node" or "operator"
        The unit of the sweep: a tensor, all tensors that a node takes, or all tensors that the nodes of an operator take.
    what_if : sequence of str
        Other formats to try for each tensor, such as "bfloat16" or "mxfp8_e4m3". The data are read twice then.
    histograms : int
        The number of worst tensors to make histograms of.

    Returns
    -------
    Analysis

    Raises
    ------
    ModelError, TypeError, ValueError
        As in `evaluate`.
    """
    execution = execution_of(execution)
    check_outputs(outputs)
    check_flags(sweep=sweep)
    check_names(what_if=what_if)
    check_integers(0, math.inf, "an integer of 0 or more", histograms=histograms)
    check_choices(BY, by=by)
    models = float_twin.load_pair(model, reference, whole=execution.is_remote)
    recipe = _Recipe(*models, outputs, by if sweep else None, list(what_if), histograms, execution.providers)
    analyzer = _Analyzer(recipe, execution.providers_here, threads=execution.threads or number_of_processors())
    check_chosen(outputs, analyzer.segments.outputs)
    batches = open_batches(analyzer.segments.inputs, data)
    for experiment in analyzer.experiments:
        if experiment.has_points and not batches.is_reiterable:
            raise ModelError(
                f"{experiment.where} reads the data twice; expected a file, a folder, a function or a list, not an iterator"
            )
    run = {"command": "analyze", "by": recipe.by, "what_if": recipe.what_if, "outputs": outputs}
    runner = Runner(execution, batches, run, models, passes=1 + analyzer.has_points)
    with runner.connected():
        analysis = analyzer.run(runner)
    float_twin.check(*models)
    return analysis


@dataclass(frozen=True)
class _Recipe:
    """The models and the measurements. Each process makes its analyzer from a recipe."""

    model: Source
    reference: Source | None
    chosen: Sequence[str] | None
    by: By | None
    what_if: list[str]
    histograms: int
    providers: Sequence[str] | None


def _make_work_elsewhere(recipe: _Recipe, points: list[list[Point]] | None, threads: int) -> Work:
    """Return the function that measures a batch in another process, in the first pass or at the points of the second. A process
    has one batch at a time."""
    analyzer = _Analyzer(recipe, recipe.providers, threads=threads)
    analyzer.threads_of_batch = threads
    return analyzer.make_work(points)


class _Analyzer:
    """An analyzer measures batches. Other processes make theirs from the recipe, which may name other providers than this
    process has."""

    def __init__(self, recipe: _Recipe, providers: Sequence[str] | None, *, threads: int) -> None:
        self.recipe, self.providers, self.threads = recipe, providers, threads
        self.twin = float_twin.make_twin(recipe.model, recipe.reference)
        with errors_named("not a valid model"):
            self.segments = Segments(self.twin, providers)
            chosen = recipe.chosen or self.segments.outputs
            self.random = random_outputs(recipe.model, recipe.reference, chosen)
        self.chosen = [name for name in chosen if name not in self.random]
        self.reference = None if recipe.reference is None else self.session_of(recipe.reference, "the reference")
        self.experiments: list[Experiment] = []
        if recipe.by:
            self.experiments.append(Sweep(self.segments, self.chosen, recipe.by))
        if recipe.what_if:
            self.experiments.append(WhatIf(self.segments, self.chosen, formats(recipe.what_if)))
        if recipe.histograms:
            self.experiments.append(Histograms(self.segments, recipe.histograms))
        self.has_points = any(experiment.has_points for experiment in self.experiments)
        self.threads_of_batch = 1  # each batch is measured on so many threads
        self.first: tuple[sessions.Arrays, dict[str, Any]] | None = None  # the first batch and its outputs, if it ran here

    def run(self, runner: Runner) -> Analysis:
        done = self.total(Measured, runner, None)
        measured: Measured = done.sums
        experiments = list(zip(self.experiments, measured.experiments, strict=True))
        points = [experiment.points(measured, sums) for experiment, sums in experiments]
        compared = iter(self.total(_Points, runner, points).sums.outputs if self.has_points else ())
        assert done.first
        first, outputs = self.first or self.run_again(done.first)
        analysis = self.analysis_of(done)
        others = {"the twin": [measured.twin]}
        for (experiment, sums), chosen in zip(experiments, points, strict=True):
            at_points = list(itertools.islice(compared, len(chosen)))
            outcome = Outcome(measured, sums, at_points, analysis.tensors, first)
            for name, value in experiment.report(outcome).items():
                setattr(analysis, name, value)
            others[experiment.where] = [*sums.outputs.values(), *at_points]
        self.reference = None  # a session of the whole model needs the memory
        optimized = self.optimizations(first, outputs, analysis.unmatched)
        analysis.optimizations = _output_errors(optimized)
        analysis.not_compared = _not_compared(measured.outputs, others | {"ONNX Runtime's optimizations": [optimized]})
        analysis.not_compared |= self.random
        return analysis

    def analysis_of(self, done: Total) -> Analysis:
        """Return the analysis without what experiments and ONNX Runtime's optimizations add to it."""
        measured: Measured = done.sums
        reshaped = [self.twin.quantizers[place].name for place, sums in measured.tensors.items() if sums.reshaped]
        why = "its shape differs in the float model, so only its own error is measured"
        return Analysis(
            tensors=self.tensors(measured),
            outputs=_output_errors(measured.outputs),
            unmatched=self.twin.found.unmatched | dict.fromkeys(reshaped, why),
            samples=measured.samples,
            batches=done.done,
            failed=done.failed,
            twin=_output_errors(measured.twin),
        )

    def total(self, kind: type[Measured] | type[_Points], runner: Runner, points: list[list[Point]] | None) -> Total:
        """Return the sums of the first pass over the data, or of the second at these points."""
        make_work = functools.partial(self.make_work, points)
        if not runner.execution.is_here:
            threads_elsewhere = runner.execution.threads_of_process
            make_work = functools.partial(_make_work_elsewhere, self.recipe, points, threads_elsewhere)
        batches_at_a_time = self.threads
        if runner.batches.count == 1:  # the threads share it
            batches_at_a_time, self.threads_of_batch = 1, self.threads
        return runner.total(kind, make_work, threads=batches_at_a_time, stopped=self.segments.stopped)

    def tensors(self, measured: Measured) -> list[QuantizedTensor]:
        """Return the errors of all quantized tensors, the worst first."""
        tensors = [
            tensor_of(each, _sums_of_weight(each) if each.kind == "weight" else measured.tensors[each.place])
            for each in self.twin.quantizers
        ]
        return sorted(tensors, key=_worst_first)

    def make_work(self, points: list[list[Point]] | None) -> Work:
        """Return the function that measures a batch, in the first pass or at the points of the second, by experiment."""
        if points is None:
            return self.measure_batch
        configs = [each.config(point) for each, chosen in zip(self.experiments, points, strict=True) for point in chosen]
        return functools.partial(self.measure_points, configs)

    def run_again(self, batch: Batch) -> tuple[sessions.Arrays, dict[str, Any]]:
        """Return the inputs and outputs of a batch that ran in another process, or before the run was resumed."""
        feed = batch.load()
        return feed, self.segments.run(feed, self.segments.quantized, quantized=True)

    def measure_batch(self, batch: Batch) -> Measured:
        feed = batch.load()
        tensors: dict[int, TensorSums] = {}
        results = [ExperimentSums() for _ in self.experiments]

        def see(quantizer: Quantizer, x: Array, arrived: Array, kept: Array) -> None:
            tensors[quantizer.place] = measure(quantizer, x, arrived, kept)
            for experiment, sums in zip(self.experiments, results, strict=True):
                sums.noise |= experiment.see(quantizer, x)

        values, floats = self.segments.lockstep(feed, see, keep=any(experiment.has_runs for experiment in self.experiments))
        outputs, twin = ({name: arrays[name] for name in self.segments.outputs} for arrays in (values, floats))
        reference = twin if self.reference is None else sessions.run(self.reference, feed)
        batch_values = BatchValues(values, floats, twin, reference)
        runs = [
            (sums, key, run)
            for experiment, sums in zip(self.experiments, results, strict=True)
            for key, run in experiment.runs(batch_values).items()
        ]
        compared = in_order(lambda run: run[2](), runs, self.threads_of_batch, self.segments.stopped)
        for (sums, key, _), comparison in zip(runs, compared, strict=True):
            sums.outputs[key] = comparison
        if batch.number == 0:
            self.first = feed, outputs
        twin_comparison = Comparison() if self.reference is None else self.compare(twin, reference)
        return Measured(batch.layout.samples(feed), tensors, self.compare(outputs, reference), twin_comparison, results)

    def session_of(self, model: Source, name: str) -> Any:
        return sessions.session_of(model, name, providers=self.providers)

    def compare(self, outputs: Any, reference: Any) -> Comparison:
        return compare(outputs, reference, self.chosen)

    def optimizations(self, feed: Any, outputs: Any, unmatched: dict[str, str]) -> Comparison:
        try:
            return self.compare(sessions.run(self.session_of(self.recipe.model, "the model"), feed), outputs)
        except ModelError as error:
            unmatched["ONNX Runtime's optimizations"] = str(error)
            return Comparison()

    def measure_points(self, configs: list[Config], batch: Batch) -> _Points:
        feed = batch.load()
        if self.reference is None:
            reference = self.segments.run(feed, {}, quantized=False)
        else:
            reference = sessions.run(self.reference, feed)

        def compare_point(config: Config) -> Comparison:
            return self.compare(self.segments.run(feed, config, quantized=True), reference)

        return _Points(list(in_order(compare_point, configs, self.threads_of_batch, self.segments.stopped)))


def _output_errors(compared: Comparison) -> list[OutputError]:
    return [output_error(name, errors) for name, errors in compared.errors.items()]


def _not_compared(compared: Comparison, others: Mapping[str, Sequence[Comparison]]) -> dict[str, str]:
    """Return the reasons why outputs cannot be compared, by name. The reasons in `others` count only for outputs without
    another reason."""
    reasons = dict(compared.reasons)
    for where, comparisons in others.items():
        for comparison in comparisons:
            reasons = {name: f"in {where} it {reason}" for name, reason in comparison.reasons.items()} | reasons
    return reasons


def _sums_of_weight(quantizer: Quantizer) -> TensorSums | None:
    if quantizer.floats is None:
        return None
    weight, rounded = quantizer.weight, quantizer.rounded
    sums = measure(quantizer, weight, weight, rounded)
    # The errors are those of the rounded weight in the model. Rounding the float weight here may have another result.
    sums.own_noise = sums.noise
    sums.flushed = float(np.sum((rounded == 0) & (weight != 0)))
    return sums


def _worst_first(tensor: QuantizedTensor) -> tuple[bool, bool, float, int]:
    """Return the sort key of a tensor, by its own error: NaN comes first as the worst, and an unknown error comes last."""
    ratio = tensor.own_sqnr_db
    if ratio is None:
        return True, True, 0.0, tensor.place
    return False, not math.isnan(ratio), 0.0 if math.isnan(ratio) else ratio, tensor.place
