"""`evaluate`: the errors of a quantized model's outputs against the float model's, over data."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, reraise_of_signal_handler
from ..models.model_files import Source
from ..running import data, sessions
from ..running.data import check_positive, check_source
from ..running.runs import OnError, Progress, Runner, Work
from ..running.sessions import Arrays
from .measures.outputs import Comparison, OutputError, check_chosen, check_names, compare, output_error
from .measures.sums import ErrorSums, Sums
from .twin import float_twin


@dataclass
class Evaluation:
    """The result of `evaluate`.

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


@dataclass
class _Places(Sums):
    """Counts of an output's places, its positions along all axes but the last: all, and those with the expected top element."""

    places: int = 0
    same: int = 0
    labelled: int = 0
    right: int = 0
    reference_right: int = 0


@dataclass
class _Batch:
    """The sums of one or more batches."""

    samples: int
    outputs: Comparison
    places: dict[str, _Places]
    metrics: dict[str, float]
    seconds: list[float]

    def add(self, other: _Batch) -> None:
        self.samples += other.samples
        self.outputs.add(other.outputs)
        for name, places in other.places.items():
            self.places.setdefault(name, _Places()).add(places)
        for name, value in other.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value
        self.seconds = [mine + others for mine, others in zip(self.seconds, other.seconds, strict=True)]


def evaluate(
    model: float_twin.Model,
    reference: float_twin.Model | None = None,
    data: data.Source = None,
    *,
    random: int | None = None,
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    limit: int | None = None,
    batch: int | None = None,
    outputs: Sequence[str] | None = None,
    labels: str | None = None,
    top_k: int = 1,
    metric: Callable[[Arrays, Arrays, Arrays], Any] | None = None,
    threads: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    on_error: OnError = "stop",
    resume: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Run a quantized model and a float model over data, batch by batch, and compare their outputs.

    Parameters
    ----------
    model : path, or onnx.ModelProto
        The quantized model; it runs as it is written, with ONNX Runtime's optimisations.
    reference : path, or onnx.ModelProto, optional
        The float model. Default: the model itself without its quantization nodes.
    data : path, "module:function", or an iterable of feeds, or a callable that returns one, optional
        The path of an .npz file with the names of inputs as keys, of a folder of .npz files, or of a folder of .npy files if
        the model has one input. Each array is a batch, or a stack of batches if all arrays have one dimension more than their
        inputs. A feed is a mapping of names to arrays. Batches are read when their turn comes, and nothing is unpickled.
    random : int, optional
        The number of random batches to run instead of data. `seed` seeds them, and `dimensions` sets the sizes of free
        dimensions.
    limit : int, optional
        The largest number of batches to run.
    batch : int, optional
        The number of rows of a batch: arrays are cut into batches of this size.
    outputs : sequence of str, optional
        The names of the outputs to compare. Default: all. Outputs that cannot be compared are in `not_compared`.
    labels : str, optional
        The key of the labels in the data: integers, one for each place of an output along all axes but its last.
    top_k : int
        The number of largest elements along an output's last axis that count for `same_top` and for the accuracy.
    metric : callable, optional
        ``metric(outputs, reference_outputs, feed)`` returns a number for a batch, or several by name. Their means over the
        samples are in `metrics`.
    threads : int
        The number of threads of each session. Default, 0: ONNX Runtime's choice; with `workers`, their share of the machine;
        with `scheduler`, one.
    workers : int, optional
        The number of processes on this machine that run the batches (`pip install 'quark_numba[dask]'`). Default: this process
        alone. The result is the same to the last bit.
    scheduler : str, optional
        The address of a dask scheduler. Its cluster runs the batches.
    on_error : "stop" or "continue"
        "stop": raise ModelError after a batch that cannot be read or run. "continue": put its name and message in `failed`.
    resume : path, optional
        The file that keeps intermediate results. If it exists, the run continues from it.
    progress : callable, optional
        Called with the number of finished batches and the number of all batches, None if unknown.

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
    check_source(data, random)
    check_names(outputs)
    check_positive(top_k=top_k, limit=limit, batch=batch, random=random, workers=workers)
    runner = Runner(workers=workers, scheduler=scheduler, threads=threads, on_error=on_error, resume=resume, progress=progress)
    models = (
        float_twin.load(model, whole=scheduler is not None),  # the scheduler's workers may not have the files
        None if reference is None else float_twin.load(reference, "reference", whole=scheduler is not None),
    )
    threads = threads if runner.is_here else runner.share
    pair = _pair(models, threads)
    check_chosen(outputs, [each.name for each in pair[0].get_outputs()])
    batches = _open(pair[0], data, random, seed, dimensions, limit, batch, labels)
    runner.functions = [metric] if metric else []
    options = {
        "outputs": outputs,
        "labels": labels,
        "top_k": top_k,
        "metric": getattr(metric, "__qualname__", metric),
        "limit": limit,
        "batch": batch,
    }
    runner.describe("evaluate", models, batches, options)
    make = functools.partial(_work, pair if runner.is_here else None, models, threads, outputs, labels, top_k, metric)
    with runner.open():
        done = runner.total(_Batch, make, batches, steps=batches.batches)
    float_twin.check(*models)
    total: _Batch = done.sums
    if labels and not any(each.labelled for each in total.places.values()):
        raise ModelError(f"labels {labels}: expected one for each place of an output along all axes but its last")
    seconds = [total.samples / each if each else 0.0 for each in total.seconds]
    metrics = {name: value / total.samples for name, value in total.metrics.items()}
    return Evaluation(
        [_output_error(name, sums, total.places.get(name)) for name, sums in total.outputs.errors.items()],
        total.samples,
        done.done,
        seconds[0],
        seconds[1],
        metrics,
        done.failed,
        total.outputs.reasons,
    )


def _work(pair: list[Any] | None, models: tuple[Source, Source | None], threads: int, *arguments: Any) -> Work:
    """Return the function that measures a batch. It creates its own sessions if `pair` is None."""
    own = pair or _pair(models, threads)
    return lambda batch: _of_batch(own, batch, *arguments)


def _pair(models: tuple[Source, Source | None], threads: int) -> list[Any]:
    """Return the sessions of a model and of the reference, which is the model's twin if it is None."""
    model, reference = models
    of_model = sessions.session_of(model, "the model", threads=threads)
    floats = float_twin.make_twin(model).lazy if reference is None else reference
    return [of_model, sessions.session_of(floats, "the reference", threads=threads)]


def _output_error(name: str, sums: ErrorSums, places: _Places | None) -> OutputError:
    made = output_error(name, sums)
    if places and places.places:
        made.same_top = places.same / places.places
        if places.labelled:
            made.accuracy = places.right / places.labelled
            made.reference_accuracy = places.reference_right / places.labelled
    return made


def _open(session: Any, *arguments: Any) -> data.Data:
    source, random, seed, dimensions, limit, batch, labels = arguments
    return data.open_data(
        data.inputs_of(session),
        source,
        random=random,
        seed=seed,
        dimensions=dimensions,
        limit=limit,
        batch=batch,
        labels=labels,
    )


def _of_batch(
    pair: list[Any], batch: data.Batch, outputs: Sequence[str] | None, labels: str | None, top_k: int, metric: Any
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
    samples = batch.samples_of(feed)
    metrics = {name: value * samples for name, value in _metrics(metric, results[0], results[1], feed).items()}
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


def _metrics(metric: Any, outputs: Arrays, reference: Arrays, feed: Arrays) -> dict[str, float]:
    if metric is None:
        return {}
    name = getattr(metric, "__name__", "metric")
    try:
        given = metric(outputs, reference, feed)
        return {str(key): float(value) for key, value in (given if isinstance(given, Mapping) else {name: given}).items()}
    except Exception as error:  # whatever the function raises
        reraise_of_signal_handler(error)
        raise ModelError(f"metric {name}: {type(error).__name__}: {error}") from error
