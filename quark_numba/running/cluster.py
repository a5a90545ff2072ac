"""Batches on a dask cluster: the connection to it, how many batches a task has, workers that die, and Ctrl-C. Each worker is
set up once and returns sums."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import signal
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

import cloudpickle
import dask
import distributed

from ..compiling.threads import on_one_thread
from ..errors import ModelError, errors_named, interrupt
from .data import Batch

# Loopback only: anyone who can connect to a scheduler can run code on its cluster.
_HOST = "127.0.0.1"

# A task costs this process about 2 ms, so it has several batches: enough to take about `_SECONDS`, but at most `_MAX_BATCHES`.
# `_AHEAD` is the number of tasks in flight for each thread of a worker.
_AHEAD, _SECONDS, _MAX_BATCHES = 4, 0.1, 64

# Ctrl-C is noticed within this number of seconds.
_PAUSE = 0.2


@contextmanager
def connected(workers: int | None, scheduler: str | None) -> Iterator[Any]:
    """Yield a client of the running cluster at the address `scheduler`, or of `workers` new processes on this machine, which
    end with the context. Raise ModelError if no scheduler answers."""
    with ExitStack() as stack:
        # dask is not to warn of a large graph: the model is sent to the scheduler only once.
        stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}))
        address: Any = scheduler
        if scheduler is None:
            with _out_of_reach_of_ctrl_c():
                cluster = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    host=_HOST,
                    dashboard_address=f"{_HOST}:0",
                    memory_limit=0,
                    silence_logs=logging.CRITICAL,
                )
            address = stack.enter_context(cluster)
        try:
            client = distributed.Client(address, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{scheduler}: no dask scheduler answers there: {error}") from None
        yield stack.enter_context(client)


@contextmanager
def _out_of_reach_of_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C (SIGINT) for the threads and processes that are started in the context, and for their descendants. A
    terminal sends it to all its processes, but this process alone is to handle it and end the others."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started inside, it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptions() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if Ctrl-C has come in the meantime. A second Ctrl-C raises at once.

    An exception that is raised at any moment may get lost. Python drops it in a finalizer, and each future has one. asyncio
    logs it and continues."""
    before = signal.getsignal(signal.SIGINT)
    if before not in (signal.default_int_handler, interrupt) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came = False

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    def handler(*arguments: Any) -> None:
        nonlocal came
        check()
        came = True

    signal.signal(signal.SIGINT, handler)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def results_in_order(
    client: Any, make: Callable[[], Callable[[Batch], Any]], batches: Iterable[Batch], functions: Iterable[Any]
) -> Iterator[tuple[Batch, Any]]:
    """Yield each batch with its result, in the order of the data. `make` is called once in each worker and returns the function
    that computes a result. If a worker dies, its batches run again. The result of a batch at which one worker after another
    dies is a ModelError.

    Workers read the files if they have them, and otherwise receive the arrays. They need not have the modules of `functions`.
    """
    name = f"quark-numba-{uuid.uuid4().hex}"
    # It is sent as a plugin, not as data: the scheduler would prefer the worker that has the data.
    with errors_named("the models and functions of this run cannot be sent to workers"):
        recipe = _Recipe(_pickled(make, functions))
    with errors_named("the cluster failed"):
        client.register_plugin(recipe, name=name)
    most = _AHEAD * max(1, sum(client.nthreads().values()))
    waiting: deque[tuple[list[Batch], Any]] = deque()
    iterator = iter(batches)
    try:
        with interruptions() as check:
            tasks = _Tasks(client, name, check)
            while group := [*itertools.islice(iterator, tasks.batches)]:
                waiting.append((group, tasks.submit(group)))
                if len(waiting) > most:
                    yield from tasks.results(*waiting.popleft())
            while waiting:
                yield from tasks.results(*waiting.popleft())
    finally:
        with suppress(Exception):  # the cluster may be gone
            client.unregister_worker_plugin(name)


class _Tasks:
    """The tasks of one run on a cluster. A task runs a group of batches. `recipe` is the name of the workers' plugin, and
    `check` raises KeyboardInterrupt after Ctrl-C."""

    def __init__(self, client: Any, recipe: str, check: Callable[[], None]) -> None:
        self.client, self.recipe, self.check = client, recipe, check
        self.workers_have_files = True  # until one does not
        self.batches = 1  # the number of batches for the next task
        self.numbers = itertools.count()

    def submit(self, group: list[Batch]) -> Any:
        """Return the future of a task that runs a group."""
        batches = group if self.workers_have_files else [*map(_loaded, group)]
        return self.client.submit(_run, self.recipe, batches, key=f"{self.recipe}-{next(self.numbers)}", pure=False)

    def results(self, group: list[Batch], future: Any) -> Iterator[tuple[Batch, Any]]:
        """Yield the batches of a group with their results, when its task is done."""
        result = _result(future, self.check)
        if result is None:
            self.workers_have_files = False
            result = _result(self.submit(group), self.check)
        if not isinstance(result, ModelError):
            seconds, sums = result
            self.batches = 1
            if self.workers_have_files and group[0].file:
                self.batches = max(1, min(_MAX_BATCHES, int(_SECONDS * len(group) / seconds)))
            yield from zip(group, sums, strict=True)
        elif len(group) == 1:
            yield group[0], result
        else:  # perhaps one batch is at fault: each runs alone
            for batch in group:
                yield from self.results([batch], self.submit([batch]))


def _pickled(make: Any, functions: Iterable[Any]) -> bytes:
    names = {getattr(function, "__module__", None) for function in functions}
    modules = {sys.modules[name] for name in names if name in sys.modules}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(make)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _loaded(batch: Batch) -> Batch | ModelError:
    try:
        return dataclasses.replace(batch, feed=batch.load(), file=None)
    except ModelError as error:
        return error


def _result(future: Any, check: Callable[[], None]) -> Any:
    """Return the result of a task. Errors of the cluster become ModelErrors. If worker after worker died, that is returned."""
    with errors_named("the cluster failed"):
        check()
        while not future.done():
            # future.result with a timeout may fail in another way if that comes while it fetches the result.
            with suppress(distributed.TimeoutError):
                future.exception(timeout=_PAUSE)
            check()
        try:
            return future.result()
        except distributed.KilledWorker:
            return ModelError("one worker after another died while it ran this batch")


# The rest runs in the workers.


class _Recipe(distributed.WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """The plugin of each worker, also of one that joins later. It unpickles and calls `make` at the first batch."""

    def __init__(self, recipe: bytes) -> None:
        self.recipe = recipe

    def setup(self, worker: Any) -> None:
        self.lock = threading.Lock()
        self.work: Callable[[Batch], Any] | None = None

    def run(self, batch: Batch) -> Any:
        with self.lock:
            if self.work is None:
                self.work = cloudpickle.loads(self.recipe)()
        return on_one_thread(self.work, batch)


def _run(name: str, group: list[Batch | ModelError]) -> Any:
    """Return the seconds that the group took and the result of each batch, or None if this machine lacks a file."""
    if not all(isinstance(batch, ModelError) or batch.is_here for batch in group):
        return None
    recipe = distributed.get_worker().plugins[name]
    start = time.perf_counter()
    sums = [batch if isinstance(batch, ModelError) else recipe.run(batch) for batch in group]
    return time.perf_counter() - start, sums
