"""`evaluate`: the errors of a quantized model's outputs against the float model's, over data."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ..checks import check_flags, check_functions, check_integers, check_texts
from ..errors import ModelError, errors_named
from ..running import sessions
from ..running.data import Batch, open_batches
from ..running.inputs import inputs_of
from ..running.runs import Execution, Runner, Work, execution_of
from ..running.sessions import Arrays
from .measures.classes import Classes, Labelling, Labels, Places, count, has_axis, labelling_of, labels_of
from .measures.distributions import LOGITS, DistributionSums, distribution, distribution_sums
from .measures.outputs import Comparison, OutputError, check_chosen, check_logits, check_outputs, compare, output_error
from .measures.sums import FIRST, Sums, share
from .results import Evaluation
from .twin import float_twin
from .twin.random_nodes import random_outputs

# The outputs that can be compared, of the model and of the reference, by name.
_Compared = dict[str, tuple[NDArray[Any], NDArray[Any]]]


@dataclass
class _Batch(Sums):
    """The sums of one or more batches. With labels, `first_labels` has for each output how they fit the first batch."""

    samples: int
    outputs: Comparison
    places: dict[str, Places]
    distributions: dict[str, DistributionSums]
    metrics: dict[str, float]
    seconds: list[float]
    first_labels: dict[str, Labelling] = field(metadata=FIRST)

    def add(self, other: _Batch) -> None:
        """Add the sums of later batches. Raise ModelError, before anything is added, if a mean or a share would be taken over
        only some of the batches."""
        for name, labelling in other.first_labels.items():
            first = self.first_labels.get(name, labelling)
            if first.fits != labelling.fits:
                fit = {True: "they fit", False: "they do not fit"}
                raise ModelError(
                    f"{labelling.shapes}: {fit[labelling.fits]}; in the first batch {first.shapes}: {fit[first.fits]}; "
                    "expected labels that fit an output in every batch or in none"
                )
        # A metric is not called for a batch without samples.
        if self.samples and other.samples and {*self.metrics} != {*other.metrics}:
            names, before = (", ".join(metrics) or "nothing" for metrics in (other.metrics, self.metrics))
            raise ModelError(f"metric: it returns {names}; expected {before}, as in the first batch")
        super().add(other)


def evaluate(
    model: float_twin.Model,
    data: Any,
    reference: float_twin.Model | None = None,
    *,
    outputs: Sequence[str] | None = None,
    labels: str | None = None,
    class_axis: int = -1,
    ignore_label: int | None = None,
    next_token: bool = False,
    top_k: int = 1,
    logits: str | None = None,
    metric: Callable[[Arrays, Arrays, Arrays], Any] | None = None,
    execution: Execution | None = None,
) -> Evaluation:
    """Run a quantized model and a float model over data, batch by batch, and compare their outputs.

    Parameters
    ----------
    model : path, or onnx.ModelProto
        The quantized model; it runs as it is written, with ONNX Runtime's optimizations. With execution providers other than
        the CPU provider (`execution`), it is rewritten as for ``InferenceSession``.
    data : Data, RandomData, or what Data takes as its source
        The batches, such as ``"images.npz"``, ``Data("images.npz", batch=8)`` or ``RandomData(4)``.
    reference : path, or onnx.ModelProto, optional
        The float model. Default: the model itself without its quantization nodes.
    outputs : sequence of str, optional
        The names of the outputs to compare. Default: all. Outputs that cannot be compared are in `not_compared`.
    labels : str, optional
        The key of the labels in the data: integers in the shape of an output without its class axis, or with 1 in its place.
        They have to fit an output in every batch or in none; outputs that they do not fit are in `not_labelled`.
    class_axis : int
        The axis of the outputs along which classes lie, 1 for most segmentation models.
    ignore_label : int, optional
        The label of places that do not count for `same_top` and the accuracy, such as 255 or -100. Other labels that are not a
        class are refused.
    next_token : bool
        Whether `labels` are tokens (batch, sequence), and the label of a place is the token after it. The last place then does
        not count. `labels` may be an input of the model, such as "input_ids".
    top_k : int
        The number of largest elements along an output's class axis that count for `same_top` and for the accuracy.
    logits : str, optional
        The output that has logits along the class axis, whose distributions are compared (`distributions`). Default: an output
        named "logits", if there is one.
    metric : callable, optional
        ``metric(outputs, reference_outputs, feed)`` returns a number for a batch, or several by name, the same names for each
        batch. Their means over the samples are in `metrics`. It is not called for a batch without samples.
    execution : Execution, optional
        Threads, processes or a cluster, execution providers, what a faulty batch does, and the file to continue from.

    Returns
    -------
    Evaluation

    Raises
    ------
    ModelError
        If the model or the data cannot be used. Faults in the headers of files are found before the first run.
    TypeError, ValueError
        If an argument has an invalid type or value.
    """
    execution = execution_of(execution)
    check_outputs(outputs)
    check_texts(labels=labels, logits=logits)
    check_integers(-math.inf, math.inf, "an integer", class_axis=class_axis)
    if ignore_label is not None:
        check_integers(-math.inf, math.inf, "an integer, or None", ignore_label=ignore_label)
        if labels is None:
            raise ValueError(f"ignore_label is {ignore_label} without labels; expected both, or neither")
    check_flags(next_token=next_token)
    if next_token and labels is None:
        raise ValueError(f"next_token is {next_token} without labels; expected both, or neither")
    check_integers(1, math.inf, "a positive integer", top_k=top_k)
    check_functions(metric=metric)
    models = float_twin.load_pair(model, reference, whole=execution.is_remote)
    threads = execution.threads_of_process
    classes = Classes(class_axis, top_k, labels, ignore_label, bool(next_token))
    pair = _pair(models, threads, execution.providers_here)
    names = [output.name for output in pair[0].get_outputs()]
    check_chosen(outputs, names)
    check_logits(logits, outputs or names)
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
        "class_axis": class_axis,
        "ignore_label": ignore_label,
        "next_token": bool(next_token),
        "top_k": top_k,
        "logits": logits,
        "metric": getattr(metric, "__qualname__", metric),
    }
    runner = Runner(execution, batches, run, models, functions=[metric] if metric else [])
    make_pair = (lambda: pair) if execution.is_here else functools.partial(_pair, models, threads, execution.providers)
    work = functools.partial(_make_work, make_pair, compared, classes, logits or LOGITS, metric)
    with runner.connected():
        done = runner.total(_Batch, work)
    float_twin.check(*models)
    total: _Batch = done.sums
    rates = [total.samples / seconds if seconds else 0.0 for seconds in total.seconds]
    return Evaluation(
        outputs=[_output_error(name, total) for name in total.outputs.errors],
        samples=total.samples,
        batches=done.done,
        samples_per_second=rates[0],
        reference_samples_per_second=rates[1],
        metrics={name: value / total.samples for name, value in total.metrics.items()},
        failed=done.failed,
        not_compared=total.outputs.reasons | random,
        not_labelled={name: each.shapes for name, each in total.first_labels.items() if not each.fits},
        distributions=[
            distribution(name, sums, is_labelled=name in total.first_labels and total.first_labels[name].fits)
            for name, sums in total.distributions.items()
            if name in total.outputs.errors
        ],
    )


def _make_work(make_pair: Callable[[], list[Any]], outputs: Sequence[str], classes: Classes, logits: str, metric: Any) -> Work:
    """Return the function that measures a batch with the sessions of a pair."""
    return functools.partial(_measure_batch, make_pair(), outputs, classes, logits, metric)


def _pair(models: float_twin.Pair, threads: int, providers: Sequence[str] | None) -> list[Any]:
    """Return the sessions of a model and of the reference, which is the model's twin if it is None."""
    model, reference = models
    options: dict[str, Any] = {"threads": threads, "providers": providers}
    session = sessions.session_of(model, "the model", **options)
    floats = float_twin.make_twin(model).lazy if reference is None else reference
    return [session, sessions.session_of(floats, "the reference", **options)]


def _output_error(name: str, total: _Batch) -> OutputError:
    error, places = output_error(name, total.outputs.errors[name]), total.places[name]
    if places.largest_classes > 1 and not places.without_axis:
        error.places, error.same_top = places.places, share(places.same, places.places)
    if name in total.first_labels and total.first_labels[name].fits:
        error.labelled, error.ignored = places.labelled, places.ignored
        error.accuracy = share(places.right, places.labelled)
        error.reference_accuracy = share(places.reference_right, places.labelled)
    return error


def _measure_batch(pair: list[Any], outputs: Sequence[str], classes: Classes, logits: str, metric: Any, batch: Batch) -> _Batch:
    feed = batch.load()
    results, seconds = _run(pair, feed)
    of_model, of_reference = results
    compared = compare(of_model, of_reference, outputs)
    arrays = {
        name: (y, expected)
        for (name, y), expected in zip(of_model.items(), of_reference.values(), strict=True)
        if name in compared.errors
    }
    _check_class_axis(arrays, classes)
    labels = labels_of(feed[classes.key], classes) if classes.key else None
    labelled = {} if labels is None else _labellings(labels, arrays, compared.reasons, classes)
    fitting = {name: labels for name, each in labelled.items() if each.fits}
    places = {name: count(*pair, name, fitting.get(name), classes) for name, pair in arrays.items()}
    distributions = {
        name: distribution_sums(*arrays[name], name, fitting.get(name), classes)
        for name in (logits,)
        if name in arrays and places[name].largest_classes > 1
    }
    samples = batch.layout.samples(feed)
    metrics = _call_metric(metric, results, feed, samples) if metric is not None and samples else {}
    return _Batch(samples, compared, places, distributions, metrics, seconds, labelled)


def _run(pair: list[Any], feed: Arrays) -> tuple[list[Arrays], list[float]]:
    """Return the outputs of each session, and its time in seconds."""
    results: list[Arrays] = []
    seconds: list[float] = []
    for session in pair:
        start = time.perf_counter()
        results.append(sessions.run(session, feed))
        seconds.append(time.perf_counter() - start)
    return results, seconds


def _check_class_axis(arrays: _Compared, classes: Classes) -> None:
    """Raise ModelError if no output has the class axis, and the class axis is not the default."""
    if classes.axis != -1 and arrays and not any(has_axis(y, classes) for y, _ in arrays.values()):
        raise ModelError(f"class_axis is {classes.axis}; expected an axis of an output: {', '.join(_shapes(arrays))}")


def _labellings(labels: Labels, arrays: _Compared, reasons: dict[str, str], classes: Classes) -> dict[str, Labelling]:
    """Return how the labels fit each output. Raise ModelError if they fit none."""
    labelled = {name: labelling_of(y, name, labels, classes) for name, (y, _) in arrays.items()}
    if not any(each.fits for each in labelled.values()):
        shapes = [*_shapes(arrays), *(f"{name} {reason}" for name, reason in reasons.items())]
        raise ModelError(
            f"labels {classes.key} have shape {labels.values.shape}; expected that of an output without its class axis "
            f"{classes.axis}, or with 1 in its place; output {', '.join(shapes)}"
        )
    return labelled


def _shapes(arrays: _Compared) -> list[str]:
    return [f"{name} has shape {y.shape}" for name, (y, _) in arrays.items()]


def _call_metric(metric: Any, results: list[Arrays], feed: Arrays, samples: int) -> dict[str, float]:
    """Return the metric's numbers for a batch by name, each times the samples."""
    name = getattr(metric, "__name__", "metric")
    with errors_named(f"metric {name}"):
        given = metric(*results, feed)
        named = given if isinstance(given, Mapping) else {name: given}
        return {str(key): float(value) * samples for key, value in named.items()}
