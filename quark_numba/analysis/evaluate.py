"""`evaluate`: the errors of a quantized model's outputs against the float model's, over data; its arguments and defaults,
users' metrics, the turns of the two models, and the times of their runs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_flags, check_functions, check_integers, check_texts
from ..errors import ModelError, errors_named
from ..running import sessions
from ..running.data import Batch, open_batches
from ..running.decoding import TOKENS, Decoder, Decoding, decoding_of, runs_of, texts_of
from ..running.inputs import inputs_of
from ..running.runs import Execution, Runner, Work, execution_of
from ..running.sessions import Arrays
from .measures.classes import Classes, Labelling, Labels, Places, count, has_axis, labelling_of, labels_of
from .measures.distributions import DistributionSums, distribution, distribution_sums, name_of_logits
from .measures.outputs import Comparison, OutputError, check_chosen, check_outputs, compare, output_error
from .measures.sums import FIRST, JOINED, Sums, added, share
from .results import Evaluation, Generation
from .twin import float_twin
from .twin.random_nodes import random_outputs

R = TypeVar("R")

# The number of tokens that a decoder takes before it is the other's turn, if a window is shorter.
_TURN = 32

# A run of a decoder: its outputs for the next tokens.
_Step = Callable[[NDArray[Any]], Arrays]

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
    generations: list[Generation] = field(default_factory=list, metadata=JOINED)

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
    decoding: Decoding | None = None,
    execution: Execution | None = None,
) -> Evaluation:
    """Run a quantized model and a float model over data, batch by batch, and compare their outputs.

    Parameters
    ----------
    model : path, or onnx.ModelProto
        The quantized model; it runs as it is written, with ONNX Runtime's optimizations. With execution providers other than
        the CPU provider (`execution`), it is rewritten as for ``InferenceSession``. A folder of ONNX Runtime GenAI stands for
        its decoder, and also gives the names for `logits` and `decoding`.
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
    decoding : Decoding, optional
        Runs decoders with key-value caches over texts: the data have integers under the name of the input of tokens, of shape
        (texts, tokens) or (tokens,). Each model has its own caches, and its tokens are those of the text. Default of `labels`:
        the next tokens.
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
    check_integers(1, math.inf, "a positive integer", top_k=top_k)
    check_functions(metric=metric)
    decoding = decoding_of(decoding, model, reference)
    _check_labels(labels, ignore_label, next_token, decoding)
    if decoding is not None and metric is not None:
        raise ValueError(f"metric is {metric!r} with decoding; expected one of the two")
    models = float_twin.load_pair(model, reference, whole=execution.is_remote)
    of_logits = logits or name_of_logits(model, reference)
    threads = execution.threads_of_process
    pair = _pair(models, threads, execution.providers_here)
    names = [output.name for output in pair[0].get_outputs()]
    tokens = ""
    if decoding is not None:
        decoders = _decoders(pair, decoding)
        names, tokens = decoders[0].outputs, decoders[0].made[TOKENS].name
        if of_logits not in names:
            raise ModelError(f"logits: no output is named {of_logits!r}; the outputs are {', '.join(names)}")
        next_token = next_token or labels is None
    classes = Classes(class_axis, top_k, labels or tokens or None, ignore_label, bool(next_token))
    check_chosen(outputs, logits, names)
    with errors_named("not a valid model"):
        random = random_outputs(*models, outputs or names)
    compared = [name for name in outputs or names if name not in random]
    if classes.key and not compared:
        raise ModelError(f"labels {classes.key}: no output can be compared: {', '.join(map(' is '.join, random.items()))}")
    inputs = [] if tokens else inputs_of(pair[0])
    batches = open_batches(inputs, data, labels=classes.key, tokens=tokens or None)
    run = {
        "command": "evaluate",
        "outputs": outputs,
        "labels": labels,
        "class_axis": class_axis,
        "ignore_label": ignore_label,
        "next_token": bool(next_token),
        "top_k": top_k,
        "logits": of_logits,
        "metric": getattr(metric, "__qualname__", metric),
        "decoding": repr(decoding),
    }
    runner = Runner(execution, batches, run, models, functions=[metric] if metric else [])
    make_pair = (lambda: pair) if execution.is_here else functools.partial(_pair, models, threads, execution.providers)
    measure = _Measure(compared, classes, of_logits, metric, decoding, tokens)
    with runner.connected():
        done = runner.total(_Batch, functools.partial(_make_work, make_pair, measure))
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
        generations=total.generations,
    )


def _check_labels(labels: str | None, ignore_label: int | None, next_token: bool, decoding: Decoding | None) -> None:
    """Raise an error if an argument about labels is wrong, or is given without labels. Decoding has labels by itself."""
    check_flags(next_token=next_token)
    if ignore_label is not None:
        check_integers(-math.inf, math.inf, "an integer, or None", ignore_label=ignore_label)
    for name, value in (("ignore_label", ignore_label), ("next_token", next_token or None)):
        if value is not None and labels is None and decoding is None:
            raise ValueError(f"{name} is {value} without labels; expected both, or neither")


class _Measure(NamedTuple):
    """What is measured of a batch. `tokens` is the input of tokens, with `decoding`."""

    outputs: Sequence[str]
    classes: Classes
    logits: str
    metric: Any
    decoding: Decoding | None
    tokens: str


def _make_work(make_pair: Callable[[], list[Any]], measure: _Measure) -> Work:
    """Return the function that measures a batch with the sessions of a pair."""
    return functools.partial(_measure_batch if measure.decoding is None else _decode_batch, make_pair(), measure)


def _decoders(pair: list[Any], decoding: Decoding) -> list[Decoder]:
    whats = ("the model", "the reference")
    return [Decoder.of_session(each, decoding.names, what) for each, what in zip(pair, whats, strict=True)]


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


def _measure_batch(pair: list[Any], measure: _Measure, batch: Batch) -> _Batch:
    feed = batch.load()
    results, seconds = _timed(functools.partial(sessions.run, session, feed) for session in pair)
    key = measure.classes.key
    sums = _sums(results, seconds, measure, labels_of(feed[key], measure.classes) if key else None)
    sums.samples = batch.layout.samples(feed)
    if measure.metric is not None and sums.samples:
        sums.metrics = _call_metric(measure.metric, results, feed, sums.samples)
    return sums


def _decode_batch(pair: list[Any], measure: _Measure, batch: Batch) -> _Batch:
    """Return the sums over all windows of texts of the same length."""
    decoding, classes = measure.decoding, measure.classes
    assert decoding
    assert classes.key
    feed = batch.load()
    tokens, wanted = (texts_of(feed, key, batch) for key in (measure.tokens, classes.key))
    if wanted.shape != tokens.shape:
        shapes = f"tokens {measure.tokens} have shape {tokens.shape}, labels {classes.key} {wanted.shape}"
        raise ModelError(f"{shapes}; expected the same shape")
    labels = labels_of(wanted, classes)
    decoders = _decoders(pair, decoding)
    steps = [
        functools.partial(each.step, functools.partial(sessions.run, session))
        for each, session in zip(decoders, pair, strict=True)
    ]
    total: Any = None
    # The models take turns of several runs, as each run reads all weights, which then push those of the other model out of the
    # processor's caches.
    turn = max(1, _TURN // decoding.window)
    for runs in runs_of(decoding, tokens.shape[1]):
        for decoder in decoders:
            decoder.start(len(tokens))
        for first in range(0, len(runs), turn):
            windows = runs[first : first + turn]
            parts = [tokens[:, each] for each in windows]
            of_models, seconds = _timed(functools.partial(list[Arrays], map(step, parts)) for step in steps)
            for window, *results in zip(windows, *of_models, strict=True):
                sums = _sums(results, seconds, measure, Labels(labels.values[:, window], labels.counted[:, window]))
                seconds = [0.0, 0.0]
                total = added(total, sums)
    total.samples = len(tokens)
    if decoding.generate:
        place = decoders[0].outputs.index(measure.logits)
        written = [_written(*each, decoding.generate, place) for each in zip(steps, results, strict=True)]
        for row, texts in enumerate(zip(*written, strict=True)):
            name = f"{batch.name}, text {row}" if len(tokens) > 1 else batch.name
            same = next((i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), decoding.generate)
            total.generations.append(Generation(name, same, *texts))
    return total


def _written(step: _Step, outputs: Arrays, count: int, place: int) -> list[list[int]]:
    """Return the next tokens of each text, each the most probable one after those before. `outputs` are of the last run, and
    their logits are at `place`."""
    tokens: list[NDArray[Any]] = []
    while True:
        tokens.append([*outputs.values()][place][:, -1].argmax(axis=-1))
        if len(tokens) == count:
            return [[int(token) for token in text] for text in np.stack(tokens, axis=1)]
        outputs = step(tokens[-1][:, None])


def _sums(results: Sequence[Arrays], seconds: list[float], measure: _Measure, labels: Labels | None) -> _Batch:
    """Return the sums of one run of each model, without samples and metrics."""
    of_model, of_reference = results
    classes = measure.classes
    compared = compare(of_model, of_reference, measure.outputs)
    arrays = {
        name: (y, expected)
        for (name, y), expected in zip(of_model.items(), of_reference.values(), strict=True)
        if name in compared.errors
    }
    if classes.axis != -1 and arrays and not any(has_axis(y, classes) for y, _ in arrays.values()):
        raise ModelError(f"class_axis is {classes.axis}; expected an axis of an output: {', '.join(_shapes(arrays))}")
    labelled = {} if labels is None else _labellings(labels, arrays, compared.reasons, classes)
    fitting = {name: labels for name, each in labelled.items() if each.fits}
    places = {name: count(*pair, name, fitting.get(name), classes) for name, pair in arrays.items()}
    distributions = {
        name: distribution_sums(*arrays[name], name, fitting.get(name), classes)
        for name in (measure.logits,)
        if name in arrays and places[name].largest_classes > 1
    }
    return _Batch(0, compared, places, distributions, {}, seconds, labelled)


def _timed(runs: Iterable[Callable[[], R]]) -> tuple[list[R], list[float]]:
    """Return the result of each run, and its time in seconds."""
    results: list[R] = []
    seconds: list[float] = []
    for run in runs:
        start = time.perf_counter()
        results.append(run())
        seconds.append(time.perf_counter() - start)
    return results, seconds


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


def _call_metric(metric: Any, results: Sequence[Arrays], feed: Arrays, samples: int) -> dict[str, float]:
    """Return the metric's numbers for a batch by name, each times the samples."""
    name = getattr(metric, "__name__", "metric")
    with errors_named(f"metric {name}"):
        given = metric(*results, feed)
        named = given if isinstance(given, Mapping) else {name: given}
        return {str(key): float(value) * samples for key, value in named.items()}
