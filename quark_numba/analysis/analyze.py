"""`analyze`: which tensors of a quantized model lose how much, by themselves and by what they inherit, and what that does to
its outputs."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ModelError
from ..rewriting import model_files
from . import data as data_of
from . import sessions, sweep, twins, what_if
from .evaluate import OutputError, check_positive, check_source, output_error
from .formats import Format, formats
from .histograms import Histogram, histogram
from .outputs import Comparison, check_chosen, check_names, common, compare
from .program import Config, Program, in_order, number_of_threads
from .quantizers import Array, Quantizer
from .runs import OnError, Progress, Runner, Total, Work
from .sums import ErrorSums, TensorSums
from .sweep import By, Effect
from .tensors import Tensor, measure, own_noise, tensor_of
from .what_if import TradeOff


@dataclass
class Analysis:
    """What `analyze` returns.

    Parameters
    ----------
    tensors : those that the model quantizes, the one with the worst error of its own first
    outputs : of the quantized model, against the reference's
    unmatched : names of what is rounded in a way that cannot be told apart, with the reasons
    samples, batches : of the data, as in `evaluate`
    optimizations : the outputs of the first batch with ONNX Runtime's optimisations on, against those with them off; where it
        cannot run the model with them, the reason is in `unmatched`
    twin : with a reference, the outputs of the model without its quantization nodes, against the reference's
    sweep : by `sweep`, the effects on the outputs, the worst first
    trade_offs : by `what_if`, the outputs' accuracy against the bits of all quantized tensors of a sample
    histograms : of the worst tensors in the first batch
    failed : names of batches that could not be read or run, with what was wrong
    not_compared : names of outputs that cannot be compared, or not in all that is measured, with the reasons
    """

    tensors: list[Tensor]
    outputs: list[OutputError]
    unmatched: dict[str, str]
    samples: int
    batches: int
    optimizations: list[OutputError] = field(default_factory=list)
    twin: list[OutputError] = field(default_factory=list)
    sweep: list[Effect] = field(default_factory=list)
    trade_offs: list[TradeOff] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)


@dataclass
class _Batch:
    """The sums of a batch, by place in the order of execution, and by name of what is swept, and whether that is on."""

    samples: int
    tensors: dict[int, TensorSums]
    reshaped: list[int]  # of these, those of another shape in the quantized model
    outputs: Comparison
    twin: Comparison
    what_if: dict[tuple[int, str], float]
    sweep: dict[tuple[str, bool], Comparison]
    effects: dict[tuple[int, str], Comparison]

    def add(self, other: _Batch) -> None:
        self.samples += other.samples
        for place, sums in other.tensors.items():
            self.tensors[place].add(sums)
        self.reshaped = sorted({*self.reshaped, *other.reshaped})
        for key, noise in other.what_if.items():
            self.what_if[key] += noise
        self.outputs.add(other.outputs)
        self.twin.add(other.twin)
        for name, compared in other.sweep.items():
            self.sweep[name].add(compared)
        for change, compared in other.effects.items():
            self.effects[change].add(compared)


@dataclass
class _Points:
    """The sums of a batch at the points of the line of trade-offs."""

    outputs: list[Comparison]

    def add(self, other: _Points) -> None:
        for mine, others in zip(self.outputs, other.outputs, strict=True):
            mine.add(others)


def analyze(
    model: twins.Model,
    reference: twins.Model | None = None,
    data: data_of.Source = None,
    *,
    sweep: bool = False,
    by: By = "tensor",
    what_if: Sequence[str] = (),
    histograms: int = 0,
    random: int | None = None,
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    limit: int | None = None,
    batch: int | None = None,
    outputs: Sequence[str] | None = None,
    threads: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    on_error: OnError = "stop",
    resume: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Measure where a quantized model's accuracy goes, in one pass over data, with sums only.

    The float twin is the model without its quantization nodes. Of each tensor that the model quantizes its value in the twin is
    compared with that in the quantized model, and with itself rounded: errors that it inherits, and its own.

    Parameters
    ----------
    model : path, or onnx.ModelProto
        The quantized model.
    reference : path, or onnx.ModelProto, optional
        The float model. The outputs are compared with its outputs; and weights of which the model has codes only take their
        values from it, where names, or operators and outputs of nodes, and shapes are the same.
    data, random, seed, dimensions, limit, batch, outputs
        As in `evaluate`.
    sweep : bool
        Also leave each tensor in float alone, and quantize each alone.
    by : "tensor", "node" or "operator"
        What the sweep leaves in float, and quantizes, at a time: a tensor, or all that a node takes, or the nodes of an
        operator.
    what_if : sequence of str
        Formats that each tensor might have, as "bfloat16" or "mxfp8_e4m3". The data are read twice.
    histograms : int
        Of so many of the worst tensors.
    threads : int
        How many batches are run side by side in this process. Default, 0: as many as there are processors. The result does not
        depend on it.
    workers, scheduler, on_error, resume
        As in `evaluate`.
    progress : callable, optional
        Called with the number of steps that are done, and how many there are, or None.

    Returns
    -------
    Analysis

    Raises
    ------
    ModelError
        For a model, or data, that cannot be used. What the headers of files tell is refused before the first run.
    TypeError, ValueError
        For a wrong argument.
    """
    check_source(data, random)
    check_names(outputs)
    check_positive(limit=limit, batch=batch, random=random, workers=workers)
    runner = Runner(workers=workers, scheduler=scheduler, threads=threads, on_error=on_error, resume=resume, progress=progress)
    if by not in ("tensor", "node", "operator"):
        raise ValueError(f'by is {by!r}; expected "tensor", "node" or "operator"')
    quantized = twins.load(model)
    float_model = None if reference is None else twins.load(reference, "reference")
    recipe = quantized, float_model, by if sweep else None, list(what_if), outputs
    analyzer = _Analyzer(*recipe, threads=number_of_threads(threads))
    check_chosen(outputs, analyzer.program.outputs)
    batches = data_of.open_data(
        analyzer.program.inputs,
        data,
        random=random,
        seed=seed,
        dimensions=dimensions,
        limit=limit,
        batch=batch,
    )
    if what_if and not batches.again:
        raise ModelError("what_if reads the data twice; expected a file, a folder, a function or a list, and no iterator")
    options = {"by": recipe[2], "what_if": recipe[3], "outputs": outputs, "limit": limit, "batch": batch}
    runner.describe("analyze", recipe[:2], batches, options)
    with runner.open():
        return analyzer.run(batches, histograms, runner, recipe)


def _work(recipe: tuple[Any, ...], points: list[dict[int, str]] | None) -> Work:
    """What gives the sums of a batch, or those at the points, in another process."""
    return _Analyzer(*recipe, threads=1).work(points)


class _Analyzer:
    def __init__(
        self,
        model: Any,
        reference: Any,
        by: By | None,
        what_if_formats: list[str],
        chosen: Sequence[str] | None,
        *,
        threads: int,
    ) -> None:
        self.model, self.threads, self.formats, self.chosen = model, threads, formats(what_if_formats), chosen
        self.twin = twins.make_twin(model, reference)
        self.program = Program(self.twin)
        self.places = {each: place for place, each in enumerate(self.twin.quantizers)}
        self.reference = None if reference is None else _session(reference, "the reference")
        self.groups = sweep.groups_of(self.program, by) if by else {}
        known = [each for each in self.twin.quantizers if each.kind == "activation" or each.weight is not None]
        self.candidates = {each: what_if.candidates(each, self.formats) for each in known} if self.formats else {}
        self.within = 1  # threads within a batch
        self.first: tuple[sessions.Arrays, dict[str, Any]] | None = None  # batch that was run here, and its outputs

    def run(self, batches: data_of.Data, histograms: int, runner: Runner, recipe: Any) -> Analysis:
        one_batch = batches.batches == 1
        threads, self.within = (1, self.threads) if one_batch else (self.threads, 1)
        steps = None if batches.batches is None else batches.batches * (1 + bool(self.formats))

        def run_all(kind: type[_Batch] | type[_Points], points: list[dict[int, str]] | None, before: int) -> Total:
            here = functools.partial(self.work, points)
            work = here if runner.is_here else functools.partial(_work, recipe, points)
            return runner.total(kind, work, batches, threads=threads, stopped=self.program.stopped, before=before, steps=steps)

        done = run_all(_Batch, None, 0)
        total: _Batch = done.sums
        assert done.first
        first, outputs = self.first or self.again(done.first)
        quantizers = self.twin.quantizers
        weights = {self.places[each]: _of_weight(each) for each in self.program.weights}
        tensors = []
        for place, each in enumerate(quantizers):
            sums = weights[place] if place in weights else total.tensors[place]
            made = tensor_of(each, place, sums, own_only=place in total.reshaped)
            tensors.append(made)
            signal = _signal(each, total, place)
            for format_ in self.formats:
                noise = self.noise_of_format(each, format_, total, place)
                if noise is not None and signal is not None:
                    made.what_if[format_.name] = sums_db(signal, noise)
        unmatched = dict(self.twin.found.unmatched)
        for place in total.reshaped:
            unmatched[quantizers[place].name] = "its shape is another in the float model: only its own error is measured"
        optimized = self.optimizations(first, outputs, unmatched)
        analysis = Analysis(
            tensors=sorted(tensors, key=_worst_first),
            outputs=_output_errors(total.outputs),
            unmatched=unmatched,
            samples=total.samples,
            batches=done.done,
            failed=done.failed,
            optimizations=_output_errors(optimized),
            twin=_output_errors(total.twin),
            sweep=sweep.ranked(total.sweep),
        )
        others = {"the twin": [total.twin], "the sweep": [*total.sweep.values()], "what_if": [*total.effects.values()]}
        if self.formats:
            points = self.points(total)
            chosen = [{self.places[each]: type_.type for each, type_ in point.chosen.items()} for point in points]
            measured: _Points = run_all(_Points, chosen, done.done).sums
            own = {each: each.type for each in self.candidates}
            errors = common(dict(enumerate(measured.outputs)))
            analysis.trade_offs = what_if.trade_offs(points, [sweep.least_sqnr_db(each) for each in errors.values()], own)
            others["what_if"] += measured.outputs
        analysis.not_compared = _not_compared(total.outputs, others | {"ONNX Runtime's optimisations": [optimized]})
        if histograms:
            worst = [quantizers[each.place] for each in analysis.tensors[:histograms]]
            analysis.histograms = self.histograms(worst, first)
        return analysis

    def work(self, points: list[dict[int, str]] | None) -> Work:
        """What gives the sums of a batch, or those at the points: the types of tensors by their places."""
        if points is None:
            return self.of_batch
        types = {(self.places[each], type_.type): type_ for each, all_ in self.candidates.items() for type_ in all_}
        quantizers = self.twin.quantizers
        configs: list[Config] = [
            {**self.program.quantized, **{quantizers[place]: types[place, name].apply for place, name in point.items()}}
            for point in points
        ]
        return functools.partial(self.at_points, configs)

    def again(self, batch: data_of.Batch) -> tuple[sessions.Arrays, dict[str, Any]]:
        """A batch that was run elsewhere, or before, and its outputs."""
        feed = batch.load()
        return feed, self.program.run(feed, self.program.quantized, quantized=True)

    def of_batch(self, batch: data_of.Batch) -> _Batch:
        feed = batch.load()
        tensors: dict[int, TensorSums] = {}
        reshaped: list[int] = []
        noise: dict[tuple[int, str], float] = {}

        def see(quantizer: Quantizer, x: Array, arrived: Array, kept: Array) -> None:
            place = self.places[quantizer]
            tensors[place] = measure(quantizer, x, arrived, kept)
            if arrived.shape != x.shape:
                reshaped.append(place)
            for each in self.formats:
                noise[place, each.name] = own_noise(x, each.apply(x))

        more = bool(self.groups or self.candidates)
        values, floats = self.program.lockstep(feed, see, keep=more)
        outputs, twin = ({name: each[name] for name in self.program.outputs} for each in (values, floats))
        reference = twin if self.reference is None else sessions.run(self.reference, feed)
        run_variant = functools.partial(sweep.run_variant, self.program)
        changes: list[tuple[Any, Callable[[], Comparison]]] = [
            ((variant.name, variant.is_on), functools.partial(run_variant, variant, values, floats, reference, self.chosen))
            for variant in sweep.variants(self.groups)
        ]
        changes += [
            ((place, candidate.type), functools.partial(self.effect, quantizer, candidate, floats, twin))
            for quantizer, each_candidates in self.candidates.items()
            for place in [self.places[quantizer]]
            for candidate in each_candidates
        ]
        found = dict(
            zip(
                [key for key, _ in changes],
                in_order(lambda change: change[1](), changes, self.within, self.program.stopped),
                strict=True,
            )
        )
        of_sweep = {key: compared for key, compared in found.items() if isinstance(key[0], str)}
        effects = {key: compared for key, compared in found.items() if isinstance(key[0], int)}
        if batch.number == 0:
            self.first = feed, outputs
        return _Batch(
            batch.samples_of(feed),
            tensors,
            reshaped,
            self.compare(outputs, reference),
            Comparison() if self.reference is None else self.compare(twin, reference),
            noise,
            of_sweep,
            effects,
        )

    def compare(self, outputs: Any, reference: Any) -> Comparison:
        return compare(outputs, reference, self.chosen)

    def effect(self, quantizer: Quantizer, candidate: what_if.Candidate, floats: Any, twin: Any) -> Comparison:
        """On the outputs, of one tensor that has a type, and no other rounded."""
        config = {quantizer: candidate.apply}
        return self.compare(self.program.rerun(floats, config, [quantizer], quantized=False), twin)

    def noise_of_format(self, quantizer: Quantizer, format_: Format, total: _Batch, place: int) -> float | None:
        if quantizer.kind == "activation":
            return total.what_if[place, format_.name]
        return None if quantizer.weight is None else own_noise(quantizer.weight, format_.apply(quantizer.weight))

    def optimizations(self, feed: Any, outputs: Any, unmatched: dict[str, str]) -> Comparison:
        try:
            return self.compare(sessions.run(_session(self.model, "the model"), feed), outputs)
        except ModelError as error:
            unmatched["ONNX Runtime's optimisations"] = str(error)
            return Comparison()

    def points(self, total: _Batch) -> list[what_if.Point]:
        """Of the line of trade-offs."""
        elements = {
            each: float(each.weight.size) if each.weight is not None else total.tensors[self.places[each]].count / total.samples
            for each in self.candidates
        }
        effects = common(total.effects)
        noise = {
            (each, candidate.type): what_if.noise_of(effects[self.places[each], candidate.type])
            for each, types in self.candidates.items()
            for candidate in types
        }
        return what_if.line(self.candidates, elements, noise)

    def at_points(self, configs: list[Config], batch: data_of.Batch) -> _Points:
        feed = batch.load()
        if self.reference is None:
            reference = self.program.run(feed, {}, quantized=False)
        else:
            reference = sessions.run(self.reference, feed)

        def of_point(config: Config) -> Comparison:
            return self.compare(self.program.run(feed, config, quantized=True), reference)

        return _Points(list(in_order(of_point, configs, self.within, self.program.stopped)))

    def histograms(self, worst: list[Quantizer], feed: Any) -> list[Histogram]:
        found: dict[Quantizer, Histogram] = {each: histogram(each, each.weight) for each in worst if each.weight is not None}

        def see(quantizer: Quantizer, x: Array, *_: Array) -> None:
            if quantizer in worst:
                found[quantizer] = histogram(quantizer, x)

        if any(each.kind == "activation" for each in worst):
            self.program.lockstep(feed, see)
        return [found[each] for each in worst if each in found]


def _output_errors(compared: Comparison) -> list[OutputError]:
    return [output_error(name, errors) for name, errors in compared.errors.items()]


def _not_compared(compared: Comparison, others: Mapping[str, Sequence[Comparison]]) -> dict[str, str]:
    """The reasons, with those of other comparisons for outputs that can be compared else."""
    found = dict(compared.reasons)
    for where, comparisons in others.items():
        for each in comparisons:
            found = {name: f"in {where} it {reason}" for name, reason in each.reasons.items()} | found
    return found


def _session(model: Any, name: str) -> Any:
    with model_files.session_source(model) as source:
        return sessions.create_session(source, name, has_own_operators=twins.has_own_operators(model))


def _of_weight(quantizer: Quantizer) -> TensorSums | None:
    assert quantizer.rounded is not None
    if quantizer.weight is None:
        return None
    sums = measure(quantizer, quantizer.weight, quantizer.weight, quantizer.rounded)
    # What the model has, which may be other than what it would be rounded to.
    sums.own_noise, sums.largest_own = sums.noise, sums.largest
    sums.flushed = float(np.sum((quantizer.rounded == 0) & (quantizer.weight != 0)))
    return sums


def _signal(quantizer: Quantizer, total: _Batch, place: int) -> float | None:
    if quantizer.kind == "activation":
        return total.tensors[place].signal
    return None if quantizer.weight is None else own_noise(quantizer.weight, np.zeros_like(quantizer.weight))


def sums_db(signal: float, noise: float) -> float:
    return ErrorSums(signal=signal, noise=noise).sqnr_db


def _worst_first(tensor: Tensor) -> tuple[bool, bool, float, int]:
    """What is not known comes last; what is not a number is the worst."""
    ratio = tensor.own_sqnr_db
    if ratio is None:
        return True, True, 0.0, tensor.place
    return False, not math.isnan(ratio), 0.0 if math.isnan(ratio) else ratio, tensor.place
