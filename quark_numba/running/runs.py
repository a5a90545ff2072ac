"""Runs over data: `Execution` has the settings of threads, processes, errors and providers, with their defaults, and `Runner`
runs the batches on threads of this process or on a cluster. The sums of batches are added up in the data's order."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from ..checks import check_choices, check_functions, check_integers, check_names, check_paths, check_texts, refuse
from ..compiling.threads import MOST_THREADS, number_of_processors, on_one_thread
from ..errors import ModelError, errors_named
from ..models.model_files import Source
from ..ort.providers import providers_of
from .data import Batch, Batches
from .saved import Saved, Total

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Execution:
    """The settings of a run: its threads, processes and providers, and its behaviour after errors and interruptions.

    Parameters
    ----------
    threads : int
        The number of computing threads of each process, at most 1024. For `evaluate`, these are the threads of a session. For
        `analyze`, each thread runs a batch or a part of a batch, in sessions of one thread. Default, 0: about one for each
        processor; with `workers`, their share of the machine; with `scheduler`, one. The result does not depend on it.
    workers : int, optional
        The number of processes on this machine that run the batches (`pip install 'quark_numba[dask]'`). Default: this process
        only. The result is the same to the last bit.
    scheduler : str, optional
        The address of a dask scheduler. Its cluster runs the batches.
    on_error : "stop" or "continue"
        "stop": raise ModelError after a batch that cannot be read or run. "continue": put its name and message in `failed`.
    resume : path, optional
        The file that keeps intermediate results. If it exists, the run continues from it.
    progress : callable, optional
        Called with the number of finished steps (for `evaluate`, batches) and the number of all steps, None if unknown.
    providers : sequence of str, optional
        The names of the sessions' execution providers, in full or without "ExecutionProvider": "cuda" means
        "CUDAExecutionProvider". Default: the CPU provider. For other providers, the models are rewritten as for
        ``InferenceSession``.
    """

    threads: int = 0
    workers: int | None = None
    scheduler: str | None = None
    on_error: Literal["stop", "continue"] = "stop"
    resume: str | os.PathLike[str] | None = None
    progress: Callable[[int, int | None], None] | None = None
    providers: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_integers(0, MOST_THREADS, f"an integer from 0 to {MOST_THREADS}", threads=self.threads)
        if self.workers is not None:
            check_integers(1, MOST_THREADS, f"an integer from 1 to {MOST_THREADS}", workers=self.workers)
        check_texts(scheduler=self.scheduler)
        check_paths(resume=self.resume)
        if self.providers is not None:
            check_names(providers=self.providers)
            if not self.is_remote:  # other machines may have another build of ONNX Runtime
                providers_of(self.providers)
        check_functions(progress=self.progress)
        if self.workers is not None and self.scheduler is not None:
            raise TypeError("workers and scheduler: one of them at most")
        check_choices(("stop", "continue"), on_error=self.on_error)

    @property
    def is_here(self) -> bool:
        """Return whether batches run in this process."""
        return self.workers is None and self.scheduler is None

    @property
    def is_remote(self) -> bool:
        """Return whether batches may run on other machines, which may lack the files of the models."""
        return self.scheduler is not None

    @property
    def providers_here(self) -> Sequence[str] | None:
        """The execution providers of the sessions in this process."""
        return None if self.is_remote else self.providers

    @property
    def threads_of_process(self) -> int:
        """The number of threads that compute in a process that runs batches; 0: the default of what runs them."""
        if self.threads or self.is_here:
            return self.threads
        return 1 if self.workers is None else max(1, number_of_processors() // self.workers)


def execution_of(execution: Execution | None) -> Execution:
    """Return what an argument of this name means. Raise TypeError if it is not valid."""
    if execution is not None and not isinstance(execution, Execution):
        refuse("execution", execution, "quark_numba.Execution")
    return execution or Execution()


class Addable(Protocol):
    def add(self, other: Any) -> None: ...


Work = Callable[[Batch], Addable]


def _outcomes_of(make: Callable[[], Work]) -> Callable[[Batch], Addable | ModelError]:
    """Return the function that returns the sums of a batch, or its error."""
    work = make()

    def outcome(batch: Batch) -> Addable | ModelError:
        try:
            return work(batch)
        except ModelError as error:
            return error

    return outcome


def with_name(name: str, message: str) -> str:
    """Return the message about a batch. It begins with the batch's name."""
    return message if message.startswith(name) else f"{name}: {message}"


class Runner:
    """Runs batches in this process or on a cluster, and handles those that fail.

    Parameters
    ----------
    execution, batches : where and how the batches run, and the batches
    run : what distinguishes this run from others, for the file that keeps sums; ModelError if that is from another run
    models : models of this run, which are also part of that
    functions : functions of the caller, whose modules workers may lack
    passes : number of times that the batches are run, for `progress`
    """

    def __init__(
        self,
        execution: Execution,
        batches: Batches,
        run: dict[str, Any],
        models: Sequence[Source | None],
        *,
        functions: Sequence[Any] = (),
        passes: int = 1,
    ) -> None:
        self.execution, self.batches, self.functions = execution, batches, functions
        self._client: Any = None
        self._saved: Saved | None = None
        run = run | {"providers": None if execution.providers is None else [*execution.providers]}
        if execution.resume is not None:
            digests = [None if model is None else model.digest() for model in models]
            data = {"data": batches.source, "limit": batches.limit, "batch": batches.layout.batch}
            self._saved = Saved(execution.resume, {**run, "models": digests, **data})
        self._steps = None if batches.count is None else batches.count * passes
        self._finished = 0  # steps of the passes before

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to the cluster for the time of the context, if there is to be one."""
        if self.execution.is_here:
            yield
            return
        try:
            from .cluster import connected
        except ImportError as error:
            raise ModelError(f"workers need dask: pip install 'quark_numba[dask]' ({error})") from None
        with connected(self.execution.workers, self.execution.scheduler) as self._client:
            yield

    def total(
        self, kind: type[Addable], work: Callable[[], Work], *, threads: int = 1, stopped: threading.Event | None = None
    ) -> Total:
        """Return the sums of all batches, whose type is `kind`. `work` is called once in each process and returns the function
        that sums up a batch. In this process, batches run on `threads` threads, and `stopped` is set if those that have begun
        need not finish.

        Raise ModelError if all batches fail, or if one fails and `on_error` is "stop".
        """
        total = self._saved.find(kind) if self._saved else Total()
        batches = self.batches.parts()
        for _ in range(total.done):
            batch = next(batches, None)
            if batch is None:
                raise ModelError(f"the data have fewer batches than the {total.done} that were run before")
            if total.first is None and batch.name not in total.failed:
                total.first = batch
        if total.done:
            self._report(total.done)
        try:
            # An error that the caller keeps would keep the batches running, too.
            with closing(self._sums(work, batches, threads, stopped or threading.Event())) as results:
                for batch, sums in results:
                    self._add(batch, sums, total)
                    batch = sums = None  # not in memory while the next one is read
                    if self._saved:
                        self._saved.add(kind, total)
                    self._report(total.done)
        finally:
            if self._saved:
                self._saved.write()
        if total.sums is None:
            name, message = next(iter(total.failed.items()))
            raise ModelError(f"no batch could be run; the first: {with_name(name, message)}")
        self._finished += total.done
        return total

    def _add(self, batch: Batch, sums: Any, total: Total) -> None:
        """Add the sums of a batch, or its error. Raise ModelError if it failed and `on_error` is "stop"."""
        try:
            if isinstance(sums, ModelError):
                raise sums
            if total.sums is None:
                total.sums = sums
            else:
                total.sums.add(sums)
            total.first = total.first or batch
        except ModelError as error:
            if self.execution.on_error == "stop":
                raise ModelError(with_name(batch.name, str(error))) from error.__cause__ or error
            total.failed[batch.name] = str(error)
        total.done += 1

    def _report(self, done: int) -> None:
        if self.execution.progress:
            with errors_named("progress"):
                self.execution.progress(self._finished + done, self._steps)

    def _sums(
        self, work: Callable[[], Work], batches: Iterator[Batch], threads: int, stopped: threading.Event
    ) -> Generator[tuple[Batch, Any]]:
        """Yield each batch with its sums or its error, in order. If no batch is left, `work` is not called."""
        first = next(batches, None)
        if first is None:
            return
        batches = itertools.chain([first], batches)
        if self._client is None:
            run = _outcomes_of(work)
            in_turn = (batch.in_turn() for batch in batches)
            yield from in_order(lambda batch: (batch, run(batch)), in_turn, threads, stopped)
        else:
            from .cluster import results_in_order

            yield from results_in_order(self._client, functools.partial(_outcomes_of, work), batches, self.functions)


def in_order(function: Callable[[T], R], items: Iterable[T], threads: int, stopped: threading.Event) -> Iterator[R]:
    """Yield the result of `function` for each item, in the items' order. `function` runs on `threads` threads, and each call
    runs its kernels on its thread alone. At most `threads` items are taken ahead. `stopped` is set if calls that have begun
    need not finish: after an error, or if the consumer stops."""
    iterator = iter(items)
    if threads == 1:
        for item in iterator:
            yield on_one_thread(function, item)
        return
    pool = ThreadPoolExecutor(threads)
    waiting: list[Future[R]] = []
    try:
        for item in iterator:
            waiting.append(pool.submit(on_one_thread, function, item))
            if len(waiting) > threads:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    except BaseException:
        stopped.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
