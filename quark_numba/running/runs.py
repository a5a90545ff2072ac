"""Runs over data, on threads of this process or on a cluster. The sums of batches are added up in the data's order."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..errors import ModelError
from ..models.model_files import Source
from .data import Batch, Data
from .saved import Saved
from .threads import in_order, number_of_threads

# Called with the number of batches that are done and the total number, None if it is not known.
Progress = Callable[[int, int | None], None]

OnError = Literal["stop", "continue"]


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


def _told(name: str, message: str) -> str:
    return message if message.startswith(name) else f"{name}: {message}"


@dataclass
class Total:
    """The sums of the first `done` batches except for those that failed; the messages of failed batches by their names; and
    `first`, the first batch that did not fail."""

    sums: Any = None
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    first: Batch | None = None


class Runner:
    """Runs batches in this process or on a cluster, and handles those that fail.

    Parameters
    ----------
    workers : number of new processes on this machine; None: none
    scheduler : address of a dask scheduler; None: this process, unless there are workers
    threads : number of threads that the caller asked for; 0: the caller left it open
    on_error : "stop" or "continue", after a batch that fails
    resume : file that keeps the sums, from which an interrupted run continues
    progress : function that is called after each batch
    """

    def __init__(
        self,
        *,
        workers: int | None,
        scheduler: str | None,
        threads: int,
        on_error: OnError,
        resume: Any,
        progress: Progress | None,
    ) -> None:
        if workers is not None and scheduler is not None:
            raise TypeError("workers and scheduler: one of them at most")
        if on_error not in ("stop", "continue"):
            raise ValueError(f'on_error is {on_error!r}; expected "stop" or "continue"')
        self.workers, self.scheduler, self.on_error, self.progress = workers, scheduler, on_error, progress
        self.threads = threads
        self.saved = None if resume is None else Saved(resume)
        self._client: Any = None
        self.functions: list[Any] = []  # the caller's functions, which workers may lack

    @property
    def is_here(self) -> bool:
        """Whether batches are run in this process."""
        return self.workers is None and self.scheduler is None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Connect to the cluster for the time of the context, if there is to be one."""
        if self.is_here:
            yield
            return
        try:
            from .cluster import connected
        except ImportError as error:
            raise ModelError(f"workers need dask: pip install 'quark_numba[dask]' ({error})") from None
        with connected(self.workers, self.scheduler) as self._client:
            yield

    def describe(self, what: str, models: Sequence[Source | None], data: Data, options: dict[str, Any]) -> None:
        """Open the file that keeps the sums, with the description that distinguishes this run from others. Raises ModelError if
        the file is from another run."""
        if self.saved:
            digests = [None if each is None else each.digest() for each in models]
            self.saved.open({"command": what, "models": digests, "data": data.description, **options})

    @property
    def share(self) -> int:
        """The number of threads of a worker."""
        return self.threads or (1 if self.workers is None else max(1, number_of_threads(0) // self.workers))

    def total(
        self,
        kind: type[Addable],
        work: Callable[[], Work],
        data: Data,
        *,
        threads: int = 1,
        stopped: threading.Event | None = None,
        before: int = 0,
        steps: int | None = None,
    ) -> Total:
        """Return the sums of all batches, whose type is `kind`. `work` is called once in each process and returns the function
        that sums up a batch.

        `before` is the number of steps that were done before this call, and `steps` the number of all steps, None if it is not
        known. Both are for `progress`. Raises ModelError if all batches fail, or if one fails and `on_error` is "stop".
        """
        total = Total()
        if self.saved:
            total.sums, total.done, total.failed = self.saved.of(kind)
        batches = data.parts()
        skipped = total.done
        for _ in range(skipped):
            batch = next(batches, None)
            if batch is None:
                raise ModelError(f"the data have fewer batches than the {skipped} that were run before")
            if total.first is None and batch.name not in total.failed:
                total.first = batch
        if self.progress and skipped:
            self.progress(before + skipped, steps)
        try:
            for batch, made in self._outcomes(work, batches, threads, stopped or threading.Event(), skipped):
                if isinstance(made, ModelError):
                    if self.on_error == "stop":
                        raise ModelError(_told(batch.name, str(made))) from made
                    total.failed[batch.name] = str(made)
                elif total.sums is None:
                    total.sums = made
                else:
                    total.sums.add(made)
                if total.first is None and not isinstance(made, ModelError):
                    total.first = batch
                total.done += 1
                if self.saved:
                    self.saved.keep(kind, total.sums, total.done, total.failed)
                if self.progress:
                    self.progress(before + total.done, steps)
        finally:
            if self.saved:
                self.saved.write()
        if total.sums is None:
            name, message = next(iter(total.failed.items()))
            raise ModelError(f"no batch could be run; the first: {_told(name, message)}")
        return total

    def _outcomes(
        self, work: Callable[[], Work], batches: Iterator[Batch], threads: int, stopped: threading.Event, done: int
    ) -> Iterator[tuple[Batch, Any]]:
        """Yield each batch with its result, in order. `done` batches were run before; if no others are left, `work` is not
        called."""
        first = next(batches, None) if done else None
        if done and first is None:
            return
        items = batches if first is None else _after(first, batches)
        if self._client is None:
            run = _outcomes_of(work)
            yield from in_order(lambda batch: (batch, run(batch)), items, threads, stopped)
        else:
            from .cluster import in_order_on

            yield from in_order_on(self._client, functools.partial(_outcomes_of, work), items, self.functions)


def _after(first: Batch, others: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from others
