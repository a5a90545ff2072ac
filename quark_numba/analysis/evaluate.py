"""`evaluate`: the errors of a quantized model's outputs against the float model's, over data."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, counted, errors_named
from ..running import sessions
from ..running.data import Batch, check_positive, open_batches
from ..running.inputs import inputs_of
from ..running.runs import Execution, Runner, Work
from ..running.sessions import Arrays
from ..texts import as_text
from . import html_tables, text_tables
from .measures.outputs import Comparison, OutputError, check_chosen, check_names, compare, output_error
from .measures.sums import ErrorSums, Sums
from .twin import float_twin
from .twin.random_nodes import random_outputs


@dataclass
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
    metrics : means of the results of `metric`, by name
    failed : names of batches that could not be read or run, with the messages
    not_compared : names of outputs that cannot be compared, with the reasons
    """

    outputs: list[OutputError]
    samples: int
    batches: int
    samples_per_second: float = field(compare=False)
    reference_samples_per_second: float = field(compare=False)
    metrics: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Evaluation of {counted(len(self.outputs), 'output')}, over {counted(self.samples, 'sample')}>"

    def __str__(self) -> str:
        return as_text([*text_tables.of_evaluation(self), *text_tables.left_out(self.failed)])

    def _repr_html_(self) -> str:
        return html_tables.of_evaluation(self)


@dataclass
class _Places(Sums):
    """Counts of an output's places, its positions along all axes but the last: all, and those with the expected top element."""

    places: int = 0
    same: int = 0
    labelled: int = 0
    right: int = 0
    reference_right: int = 0


@dataclass
class _Batch(Sums):
    """The sums of one or more batches."""

    samples: int
    outputs: Comparison
    places: dict[str, _Places]
    metrics: dict[str, float]
    seconds: list[float]


def evaluate(
    model: float_twin.Model,
    data: Any,
    reference: float_twin.Model | None = None,
    *,
    outputs: Sequence[str] | None = None,
    labels: str | None = None,
    top_k: int = 1,
    metric: Callable[[Arrays, Arrays, Arrays], Any] | None = None,
    execution: Execution | None = None,
) -> Evaluation:
    """Run a quantized model and a float model over data, batch by batch, and compare their outputs.

    Parameters
    ----------
    model : path, or onnx.ModelProto
        The quantized model; it runs as it is written, with ONNX Runtime's optimisations.
    data : Data, RandomData, or what Data takes as its source
        The batches, such as ``"images.npz"``, ``Data("images.npz", batch=8)`` or ``RandomData(4)``.
    reference : path, or onnx.ModelProto, optional
        The float model. Default: the model itself without its quantization nodes.
    outputs : sequence of str, optional
        The names of the outputs to compare. Default: all. Outputs that cannot be compared are in `not_compared`.
    labels : str, optional
        The key of the labels in the data: integers, one for each place of an output along all axes but its last.
    top_k : int
        The number of largest elements along an output's last axis that count for `same_top` and for the accuracy.
    metric : callable, optional
        ``metric(outputs, reference_outputs, feed)`` returns a number for a batch, or several by name. Their means over the
        samples are in `metrics`.
    execution : Execution, optional
        Threads, processes or a cluster, what a faulty batch does, and the file to continue from.

    Returns
    -------
    Evaluation

    Raises
    ------
    ModelError
        If the model or the data cannot be used. Faults in the headers of files are found before the first run.
    TypeError, ValueError
        If an argument is wrong.
    """
    execution = execution or Execution()
    check_names(outputs)
    check_positive(top_k=top_k)
    models = float_twin.load_pair(model, reference, whole=execution.is_remote)
    threads = execution.threads_of_process
    pair = _pair(models, threads)
    names = [output.name for output in pair[0].get_outputs()]
    check_chosen(outputs, names)
    with errors_named("not a valid model"):
        random = random_outputs(*models, outputs or names)
    compared = [name for name in outputs or names if name not in random]
    if labels and not compared:
        raise ModelError(f"labels {labels}: no output can be compared: {', '.join(map(' is '.join, random.items()))}")
    batches = open_batches(inputs_of(pair[0]), data, labels=labels)
    run = {
        "command": "evaluate",
        "outputs": outputs,
        "labels": labels,
        "top_k": top_k,
        "metric": getattr(metric, "__qualname__", metric),
    }
    runner = Runner(execution, batches, run, models, functions=[metric] if metric else [])
    work = functools.partial(_work, pair if execution.is_here else None, models, threads, compared, labels, top_k, metric)
    with runner.connected():
        done = runner.total(_Batch, work)
    float_twin.check(*models)
    total: _Batch = done.sums
    if labels and not any(places.labelled for places in total.places.values()):
        raise ModelError(f"labels {labels}: expected one for each place of an output along all axes but its last")
    rates = [total.samples / seconds if seconds else 0.0 for seconds in total.seconds]
    return Evaluation(
        outputs=[_output_error(name, sums, total.places.get(name)) for name, sums in total.outputs.errors.items()],
        samples=total.samples,
        batches=done.done,
        samples_per_second=rates[0],
        reference_samples_per_second=rates[1],
        metrics={name: value / total.samples for name, value in total.metrics.items()},
        failed=done.failed,
        not_compared=total.outputs.reasons | random,
    )


def _work(pair: list[Any] | None, models: float_twin.Pair, threads: int, *arguments: Any) -> Work:
    """Return the function that measures a batch. It creates its own sessions if `pair` is None."""
    own_pair = pair or _pair(models, threads)
    return lambda batch: _of_batch(own_pair, batch, *arguments)


def _pair(models: float_twin.Pair, threads: int) -> list[Any]:
    """Return the sessions of a model and of the reference, which is the model's twin if it is None."""
    model, reference = models
    session = sessions.session_of(model, "the model", threads=threads)
    floats = float_twin.make_twin(model).lazy if reference is None else reference
    return [session, sessions.session_of(floats, "the reference", threads=threads)]


def _output_error(name: str, sums: ErrorSums, places: _Places | None) -> OutputError:
    error = output_error(name, sums)
    if places and places.places:
        error.same_top = places.same / places.places
        if places.labelled:
            error.accuracy = places.right / places.labelled
            error.reference_accuracy = places.reference_right / places.labelled
    return error


def _of_batch(
    pair: list[Any], batch: Batch, outputs: Sequence[str] | None, labels: str | None, top_k: int, metric: Any
) -> _Batch:
    feed = batch.load()
    seconds: list[float] = []
    results: list[Arrays] = []
    for session in pair:
        start = time.perf_counter()
        results.append(sessions.run(session, feed))
        seconds.append(time.perf_counter() - start)
    compared = compare(results[0], results[1], outputs)
    places = {
        name: _places(y, expected, feed[labels] if labels else None, top_k)
        for (name, y), expected in zip(results[0].items(), results[1].values(), strict=True)
        if name in compared.errors and y.ndim and y.shape[-1] > 1
    }
    samples = batch.layout.samples(feed)
    metrics: dict[str, float] = {}
    if metric is not None:
        name = getattr(metric, "__name__", "metric")
        with errors_named(f"metric {name}"):
            given = metric(results[0], results[1], feed)
            named = given if isinstance(given, Mapping) else {name: given}
            metrics = {str(key): float(value) * samples for key, value in named.items()}
    return _Batch(samples, compared, places, metrics, seconds)


def _places(y: NDArray[Any], expected: NDArray[Any], labels: NDArray[Any] | None, top_k: int) -> _Places:
    def hits(scores: NDArray[Any], wanted: NDArray[Any]) -> int:
        if top_k == 1:
            return int(np.sum(scores.argmax(axis=-1) == wanted))
        most = np.argsort(-scores.astype(np.float64), axis=-1, kind="stable")[..., :top_k]
        return int(np.sum((most == wanted[..., None]).any(axis=-1)))

    sums = _Places(y[..., 0].size, hits(y, expected.argmax(axis=-1)))
    if labels is not None and labels.size == y[..., 0].size:
        wanted = labels.reshape(y.shape[:-1])
        sums.labelled, sums.right, sums.reference_right = wanted.size, hits(y, wanted), hits(expected, wanted)
    return sums
