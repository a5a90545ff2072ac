"""`analyze`: its arguments and defaults, and its two passes over the data: the error of each quantized tensor, its own and the
inherited one, and the effect on the outputs, with the worst tensor first."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_choices, check_flags, check_integers, check_names, check_texts
from ..compiling.threads import number_of_processors
from ..errors import ModelError, errors_named
from ..models.model_files import Source
from ..running import sessions
from ..running.data import Batch, open_batches
from ..running.decoding import TOKENS, Decoder, Decoding, decoding_of, runs_of, texts_of
from ..running.runs import Execution, Runner, Work, execution_of, in_order
from ..running.saved import Total
from .experiments.experiment import Experiment, ExperimentSums, Measured, Outcome, Point, RunValues
from .experiments.formats import formats
from .experiments.histograms import Histograms
from .experiments.sweep import BY, By, Sweep
from .experiments.what_if import WhatIf
from .measures.distributions import PlaceSums, name_of_logits, place_sums
from .measures.outputs import Comparison, OutputError, check_chosen, check_outputs, compare, output_error
from .measures.sums import Sums, TensorSums, added
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
    logits: str | None = None,
    decoding: Decoding | None = None,
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
    logits : str, optional
        The output of logits (texts, places, classes), whose divergence from the reference's is measured at each place
        (`divergences`). Default as in `evaluate`.
    decoding : Decoding, optional
        Runs decoders over texts, as in `evaluate`, without `generate`. The model, its twin and the reference have their own
        caches, so the inherited errors include those of the caches. A run of `sweep` and `what_if` has the caches of the model
        or of the twin, so its effect is that within a run of the decoder.

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
    check_texts(logits=logits)
    decoding = decoding_of(decoding, model, reference)
    if decoding is not None and decoding.generate:
        raise ValueError(f"decoding.generate is {decoding.generate}; expected 0, as `analyze` writes no tokens")
    models = float_twin.load_pair(model, reference, whole=execution.is_remote)
    of_logits = logits or name_of_logits(model, reference)
    recipe = _Recipe(
        *models, outputs, by if sweep else None, list(what_if), histograms, of_logits, decoding, execution.providers
    )
    setup = _Setup(recipe, execution.providers_here)
    check_chosen(outputs, logits, setup.outputs)
    tokens = setup.tokens
    batches = open_batches([] if tokens else setup.segments.inputs, data, tokens=tokens)
    for experiment in setup.experiments:
        if experiment.has_points and not batches.is_reiterable:
            raise ModelError(
                f"{experiment.where} reads the data twice; expected a file, a folder, a function or a list, not an iterator"
            )
    run = {"command": "analyze", "by": recipe.by, "what_if": recipe.what_if, "outputs": outputs, "logits": of_logits}
    run["decoding"] = repr(decoding)
    runner = Runner(execution, batches, run, models, passes=1 + setup.has_points)
    analysis = _analysis(setup, *_measure(setup, runner))
    float_twin.check(*models)
    return analysis


class _Recipe(NamedTuple):
    """The models and the measurements. Each process makes its setup from a recipe."""

    model: Source
    reference: Source | None
    chosen: Sequence[str] | None
    by: By | None
    what_if: list[str]
    histograms: int
    logits: str
    decoding: Decoding | None
    providers: Sequence[str] | None


class _Setup:
    """What a process makes from a recipe: the twin, its segments, and the experiments. The recipe may name other providers than
    this process has."""

    def __init__(self, recipe: _Recipe, providers: Sequence[str] | None) -> None:
        self.recipe, self.providers = recipe, providers
        self.twin = float_twin.make_twin(recipe.model, recipe.reference)
        with errors_named("not a valid model"):
            self.segments = Segments(self.twin, providers)
        feeder = self.feeder()
        self.outputs, self.tokens = self.segments.outputs, ""
        if isinstance(feeder, Decoder):
            self.outputs, self.tokens = feeder.outputs, feeder.made[TOKENS].name
        chosen = recipe.chosen or self.outputs
        with errors_named("not a valid model"):
            self.random = random_outputs(recipe.model, recipe.reference, chosen)
        self.chosen = [name for name in chosen if name not in self.random]
        self.experiments: list[Experiment] = []
        if recipe.by:
            self.experiments.append(Sweep(self.segments, self.chosen, recipe.by))
        if recipe.what_if:
            self.experiments.append(WhatIf(self.segments, self.chosen, formats(recipe.what_if)))
        if recipe.histograms:
            self.experiments.append(Histograms(self.segments, recipe.histograms))
        self.has_points = any(experiment.has_points for experiment in self.experiments)

    def feeder(self, reference: Any = None) -> Decoder | _WholeBatch:
        """Return what makes the inputs of each run of the model, or of a session of the reference."""
        if self.recipe.decoding is None:
            return _WholeBatch()
        names = self.recipe.decoding.names
        if reference is not None:
            return Decoder.of_session(reference, names, "the reference")
        return Decoder(self.segments.inputs, self.segments.outputs, names, "the model")

    def parts(self, batch: Batch, feeders: Sequence[Decoder | _WholeBatch]) -> tuple[int, Iterator[Any]]:
        """Return the number of samples of a batch, and the part that each run takes. The feeders are started where a part
        begins with empty caches."""
        feed = batch.load()
        if self.recipe.decoding is None:
            return batch.layout.samples(feed), iter([feed])
        tokens = texts_of(feed, self.tokens, batch)
        return len(tokens), self._windows(tokens, feeders)

    def _windows(self, tokens: Array, feeders: Sequence[Any]) -> Iterator[Array]:
        """Yield the tokens that each run takes of texts. Start the feeders where a part of the texts begins anew."""
        assert self.recipe.decoding
        for windows in runs_of(self.recipe.decoding, tokens.shape[1]):
            for feeder in feeders:
                feeder.start(len(tokens))
            yield from (tokens[:, window] for window in windows)

    def compare(self, outputs: Any, reference: Any) -> Comparison:
        return compare(outputs, reference, self.chosen)


class _WholeBatch:
    """The inputs of a model that takes a whole batch in one run, with the methods of Decoder. It need not be started."""

    length = 0

    def feeds(self, feed: sessions.Arrays) -> sessions.Arrays:
        return feed

    def take(self, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return outputs


# The inputs of the first run of the first batch, and its outputs.
_FirstRun = tuple[sessions.Arrays, dict[str, Any]]


class _Worker:
    """The worker that measures batches in one process, each on `threads` threads, with a session of the reference if there is
    one. `keep` gets the first run."""

    def __init__(self, setup: _Setup, threads: int, keep: Callable[[_FirstRun], None] | None = None) -> None:
        self.setup, self.segments, self.threads, self.keep = setup, setup.segments, threads, keep
        reference = setup.recipe.reference
        self.reference = reference and sessions.session_of(reference, "the reference", providers=setup.providers)

    def make_work(self, points: list[list[Point]] | None) -> Work:
        """Return the function of the first pass, or that of the second, at the points of each experiment."""
        if points is None:
            return self.measure_batch
        pairs = zip(self.setup.experiments, points, strict=True)
        configs = [experiment.config(point) for experiment, chosen in pairs for point in chosen]
        return functools.partial(self.measure_points, configs)

    def measure_batch(self, batch: Batch) -> Measured:
        feeders = [self.setup.feeder(), self.setup.feeder()]  # of the model, and of its twin
        if self.reference is not None:
            feeders.append(self.setup.feeder(self.reference))
        samples, parts = self.setup.parts(batch, feeders)
        total: Any = None
        for part in parts:
            place = feeders[0].length
            feeds = [feeder.feeds(part) for feeder in feeders]
            measured, results = self._measure_run(feeds, place)
            if total is None and self.keep and batch.number == 0:
                self.keep((feeds[0], results[0]))
            for feeder, outputs in zip(feeders, results, strict=False):
                feeder.take(outputs)
            total = added(total, measured)
        total.samples = samples
        return total

    def _measure_run(self, feeds: Sequence[sessions.Arrays], place: int) -> tuple[Measured, list[dict[str, Any]]]:
        """Return the sums of one run, and the outputs of the model, of its twin and of the reference. `feeds` are their inputs,
        and `place` is the number of tokens before those of the run."""
        experiments = self.setup.experiments
        tensors: dict[int, TensorSums] = {}
        results = [ExperimentSums() for _ in experiments]

        def see(quantizer: Quantizer, x: Array, before: Array, after: Array) -> None:
            tensors[quantizer.place] = measure(quantizer, x, before, after)
            for experiment, sums in zip(experiments, results, strict=True):
                sums.noise |= experiment.see(quantizer, x)

        keep = any(experiment.has_runs for experiment in experiments)
        values, floats = self.segments.lockstep(feeds[0], see, float_feed=feeds[1], keep=keep)
        outputs, twin = ({name: arrays[name] for name in self.segments.outputs} for arrays in (values, floats))
        reference = twin if self.reference is None else sessions.run(self.reference, feeds[2])
        run_values = RunValues(values, floats, twin, reference)
        for experiment, sums in zip(experiments, results, strict=True):
            runs = experiment.runs(run_values)
            compared = in_order(lambda run: run(), runs.values(), self.threads, self.segments.stopped)
            sums.outputs = dict(zip(runs, compared, strict=True))
        twin_comparison = Comparison() if self.reference is None else self.setup.compare(twin, reference)
        comparison = self.setup.compare(outputs, reference)
        logits = self.setup.recipe.logits
        divergences = PlaceSums()
        if logits in comparison.errors:
            of_reference = [*reference.values()][self.segments.outputs.index(logits)]
            divergences = place_sums(outputs[logits], of_reference, logits, place)
        measured = Measured(0, tensors, comparison, twin_comparison, results, divergences)
        return measured, [outputs, twin, reference]

    def measure_points(self, configs: list[Config], batch: Batch) -> _Points:
        of_reference, feeders = self.setup.feeder(self.reference), [self.setup.feeder() for _ in configs]
        total: Any = None
        for part in self.setup.parts(batch, [of_reference, *feeders])[1]:
            feed = of_reference.feeds(part)
            if self.reference is None:
                reference = self.segments.run(feed, {}, quantized=False)
            else:
                reference = sessions.run(self.reference, feed)
            of_reference.take(reference)
            compare_point = functools.partial(self._compare_point, part, reference)
            points = zip(configs, feeders, strict=True)
            total = added(total, _Points([*in_order(compare_point, points, self.threads, self.segments.stopped)]))
        return total

    def _compare_point(self, part: Any, reference: dict[str, Any], point: tuple[Config, Decoder | _WholeBatch]) -> Comparison:
        config, feeder = point
        outputs = self.segments.run(feeder.feeds(part), config, quantized=True)
        feeder.take(outputs)
        return self.setup.compare(outputs, reference)


def _make_work_of_worker(recipe: _Recipe, points: list[list[Point]] | None, threads: int) -> Work:
    """Return the result of `make_work`, in another process. A process has one batch at a time."""
    return _Worker(_Setup(recipe, recipe.providers), threads).make_work(points)


def _measure(setup: _Setup, runner: Runner) -> tuple[Total, list[list[Comparison]], _FirstRun]:
    """Return the sums of the first pass over the data, the comparisons of the second at the points of each experiment, and the
    first run. The session of the reference ends here, because a later session of the whole model needs the memory."""
    execution = runner.execution
    threads = execution.threads or number_of_processors()
    at_a_time, threads_of_batch = (1, threads) if runner.batches.count == 1 else (threads, 1)
    first: list[_FirstRun] = []
    worker = _Worker(setup, threads_of_batch, first.append)

    def total(kind: type[Measured] | type[_Points], points: list[list[Point]] | None) -> Total:
        make_work = functools.partial(worker.make_work, points)
        if not execution.is_here:
            make_work = functools.partial(_make_work_of_worker, setup.recipe, points, execution.threads_of_process)
        return runner.total(kind, make_work, threads=at_a_time, stopped=setup.segments.stopped)

    with runner.connected():
        done = total(Measured, None)
        experiments = zip(setup.experiments, done.sums.experiments, strict=True)
        points = [experiment.points(done.sums, sums) for experiment, sums in experiments]
        compared = iter(total(_Points, points).sums.outputs if setup.has_points else ())
    at_points = [list(itertools.islice(compared, len(chosen))) for chosen in points]
    if not first:  # it ran in another process, or before the run was resumed
        assert done.first
        feeder = setup.feeder()
        feed = feeder.feeds(next(setup.parts(done.first, [feeder])[1]))
        first.append((feed, setup.segments.run(feed, setup.segments.quantized, quantized=True)))
    return done, at_points, first[0]


def _analysis(setup: _Setup, done: Total, at_points: list[list[Comparison]], first: _FirstRun) -> Analysis:
    """Return the analysis of the measured sums, with the effect of ONNX Runtime's optimizations on the first run."""
    (feed, outputs), measured, quantizers = first, done.sums, setup.twin.quantizers
    reshaped = [quantizers[place].name for place, sums in measured.tensors.items() if sums.reshaped]
    why = "its shape differs in the float model, so only its own error is measured"
    tensors = [
        tensor_of(each, _sums_of_weight(each) if each.kind == "weight" else measured.tensors[each.place]) for each in quantizers
    ]
    analysis = Analysis(
        tensors=sorted(tensors, key=_worst_first),
        outputs=_output_errors(measured.outputs),
        unmatched=setup.twin.found.unmatched | dict.fromkeys(reshaped, why),
        samples=measured.samples,
        batches=done.done,
        failed=done.failed,
        twin=_output_errors(measured.twin),
        divergences=measured.divergences.means(),
    )
    others = {"the twin": [measured.twin]}
    for experiment, sums, compared in zip(setup.experiments, measured.experiments, at_points, strict=True):
        outcome = Outcome(measured, sums, compared, analysis.tensors, feed)
        for name, value in experiment.report(outcome).items():
            setattr(analysis, name, value)
        others[experiment.where] = [*sums.outputs.values(), *compared]
    optimized = Comparison()
    try:
        session = sessions.session_of(setup.recipe.model, "the model", providers=setup.providers)
        optimized = setup.compare(sessions.run(session, feed), outputs)
    except ModelError as error:
        analysis.unmatched[_OPTIMIZATIONS] = str(error)
    analysis.optimizations = _output_errors(optimized)
    analysis.not_compared = _not_compared(measured.outputs, others | {_OPTIMIZATIONS: [optimized]}) | setup.random
    return analysis


_OPTIMIZATIONS = "ONNX Runtime's optimizations"


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
