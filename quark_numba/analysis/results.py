"""The results of `evaluate` and `analyze`: their fields, what `print` and notebooks show of them, and the order of their tables
(whose columns are in ``result_tables``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import counted
from ..texts import Table, as_text
from . import result_tables
from .experiments.histograms import Histogram
from .experiments.sweep import Effect
from .experiments.what_if import TradeOff
from .html_tables import as_html
from .measures.distributions import Distribution
from .measures.outputs import OutputError
from .measures.tensors import QuantizedTensor


@dataclass
class Generation:
    """What both models write after a text: the number of tokens before the first difference, and the tokens."""

    name: str
    same: int
    tokens: list[int]
    reference_tokens: list[int]


@dataclass(repr=False)
class Evaluation:
    """The result of `evaluate`. `print` and notebooks show its tables, and `pandas.DataFrame` takes its outputs.

    Each row is a sample if the model leaves the number of rows open, or if the data were cut into batches. Otherwise each run
    is a sample.

    Parameters
    ----------
    outputs : errors of the model's outputs against the reference's
    samples : number of samples, without those of failed batches
    batches : number of batches, with the failed ones
    samples_per_second, reference_samples_per_second : rates of one session; they differ from run to run, and equality ignores
        them
    metrics : means of the results of `metric` over the samples, by name; {} without samples
    failed : names of batches that could not be read or run, with the messages
    not_compared : names of outputs that cannot be compared, with the reasons
    not_labelled : with labels, names of outputs without an accuracy, with the reasons
    distributions : divergences, and with labels perplexities, of an output of logits
    generations : with `Decoding(generate=N)`, the tokens that both models write after each text
    """

    outputs: list[OutputError]
    samples: int
    batches: int
    samples_per_second: float = field(compare=False)
    reference_samples_per_second: float = field(compare=False)
    metrics: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    not_labelled: dict[str, str] = field(default_factory=dict)
    distributions: list[Distribution] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Evaluation of {counted(len(self.outputs), 'output')}, over {counted(self.samples, 'sample')}>"

    def __str__(self) -> str:
        return as_text([*tables_of_evaluation(self), *result_tables.left_out(self.failed)])

    def _repr_html_(self) -> str:
        return as_html([*tables_of_evaluation(self), *result_tables.left_out(self.failed)])


@dataclass(repr=False)
class Analysis:
    """The result of `analyze`. `print` shows the tables of the command, and a notebook shows the tables of the page. Each of
    the lists can be passed to `pandas.DataFrame`, as in ``pandas.DataFrame(analysis.tensors)``.

    Parameters
    ----------
    tensors : quantized tensors, the one with the worst own error first
    outputs : errors of the quantized model's outputs against the reference's
    unmatched : names of rounded tensors that cannot be measured, or not in full, with the reasons
    samples, batches : numbers of samples and batches, as in `evaluate`
    optimizations : errors of the outputs with ONNX Runtime's optimizations against the outputs without them, for the first
        run; if the model does not run with them, the reason is in `unmatched`
    twin : with a reference, errors of the float twin's outputs against the reference's
    sweep : with `sweep`, the effects on the outputs, the worst first
    trade_offs : with `what_if`, the outputs' accuracy against the bits of all quantized tensors for one sample, the most bits
        first; without mixes of types that another one beats in both
    histograms : histograms of the worst tensors in the first run
    divergences : mean Kullback-Leibler divergence, in nats, of an output of logits (texts, places, classes) from the
        reference's, at each place; with `decoding`, a place is a number of tokens before it since the caches were empty
    failed : names of batches that could not be read or run, with the messages
    not_compared : names of outputs that cannot be compared, in general or in one measurement, with the reasons
    """

    tensors: list[QuantizedTensor]
    outputs: list[OutputError]
    unmatched: dict[str, str]
    samples: int
    batches: int
    optimizations: list[OutputError] = field(default_factory=list)
    twin: list[OutputError] = field(default_factory=list)
    sweep: list[Effect] = field(default_factory=list)
    trade_offs: list[TradeOff] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = counted(len(self.tensors), "tensor"), counted(len(self.outputs), "output")
        return f"<Analysis of {' and '.join(counts)}, over {counted(self.samples, 'sample')}>"

    def __str__(self) -> str:
        return as_text([*tables_of_analysis(self, result_tables.TOP), *result_tables.left_out(self.failed)])

    def _repr_html_(self) -> str:
        return as_html([*tables_of_analysis(self), *result_tables.left_out(self.failed)])


def tables_of_evaluation(evaluation: Evaluation) -> Iterator[Table]:
    """Yield the tables of the command."""
    yield result_tables.outputs("Quantized model, against the reference", evaluation.outputs)
    yield from result_tables.not_compared(evaluation.not_compared)
    yield from result_tables.distributions(evaluation.distributions)
    if evaluation.generations:
        rows = [[each.name, f"{each.same} of {len(each.tokens)}"] for each in evaluation.generations]
        yield Table("Tokens that both models write", ["text", ">the same before the first difference"], rows)
    figures = [
        ["samples", f"{evaluation.samples} in {counted(evaluation.batches, 'batch', 'batches')}"],
        ["samples a second", f"{evaluation.samples_per_second:.0f}"],
        ["samples a second, reference", f"{evaluation.reference_samples_per_second:.0f}"],
        *([name, f"{value:.6g}"] for name, value in evaluation.metrics.items()),
    ]
    for each in evaluation.outputs:
        if each.ignored:
            figures.append([f"labels of {each.name} that count", f"{each.labelled} of {(each.labelled or 0) + each.ignored}"])
    yield Table("", ["", ""], figures)
    yield from result_tables.reasons("Outputs without an accuracy", "output", evaluation.not_labelled)


def tables_of_analysis(analysis: Analysis, top: int | None = None) -> Iterator[Table]:
    """Yield the tables. With `top`, the tables of nodes and tensors have at most so many rows, and fewer columns."""
    yield from tables_of_outputs(analysis)
    yield from result_tables.divergences(analysis.divergences)
    yield result_tables.tensors(analysis.tensors, analysis.samples, top)
    yield from result_tables.effects(analysis.sweep, top)
    yield from result_tables.trade_offs(analysis.trade_offs)
    yield from result_tables.unmatched(analysis.unmatched, top)


def tables_of_outputs(analysis: Analysis) -> Iterator[Table]:
    yield result_tables.outputs("Quantized model, against the reference", analysis.outputs)
    yield from result_tables.not_compared(analysis.not_compared)
    if analysis.twin:
        yield result_tables.outputs("Without its quantization nodes, against the reference", analysis.twin)
    if any(row.sqnr_db != math.inf for row in analysis.optimizations):
        title = "With ONNX Runtime's optimizations, against the model without them, in the first run"
        yield result_tables.outputs(title, analysis.optimizations)
