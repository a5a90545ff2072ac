"""Batches on a cluster of dask: each worker makes once what runs them, and gives back sums."""

from __future__ import annotations

import dataclasses
import functools
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
from ..errors import ModelError, reraise_of_signal_handler
from .data import Batch

# Loopback: whoever connects to a scheduler can run code.
_HOST = "127.0.0.1"

# Tasks on their way for each thread of a worker; how long one is to take, at least, and of how many batches it is, at most: a
# task costs this process some 2 ms.
_AHEAD, _SECONDS, _MOST = 4, 0.1, 64

# Seconds in which Ctrl-C is noticed.
_PAUSE = 0.2


@contextmanager
def connected(workers: int | None, scheduler: str | None) -> Iterator[Any]:
    """A client: of so many processes of this machine, which end with the context, or of a running cluster. Raises
    ModelError."""
    with ExitStack() as stack:
        # The model is sent to the scheduler once.
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
    """For the threads and processes that are started inside, and those that these start: a terminal sends it to all its
    processes, of which this one ends the others."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which would let it through again when it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptions() -> Iterator[Callable[[], None]]:
    """A function that raises KeyboardInterrupt if Ctrl-C came since. Raised at any moment, it would be dropped where Python
    runs a finalizer, as each future has one, or logged by asyncio, which goes on. A second Ctrl-C does not wait."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came = False

    def handler(*arguments: Any) -> None:
        nonlocal came
        if came:
            signal.default_int_handler(*arguments)
        came = True

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def in_order_on(
    client: Any, make: Callable[[], Callable[[Batch], Any]], batches: Iterable[Batch], functions: Iterable[Any]
) -> Iterator[tuple[Batch, Any]]:
    """Each batch with what was made of it, in order, whichever was ready first: what a function gives that `make` gives, once
    in each worker. What a worker had that dies is run again, and what kills worker after worker is a ModelError.

    Workers read files that they have, and get the others. The modules of `functions` need not be there.
    """
    name = f"quark-numba-{uuid.uuid4().hex}"
    # A plugin, and not data: the scheduler would prefer the worker that has them.
    recipe = _Recipe(_pickled(make, functions))
    _told(lambda: client.register_plugin(recipe, name=name))
    most = _AHEAD * max(1, sum(client.nthreads().values()))
    waiting: deque[tuple[list[Batch], Any]] = deque()
    is_shared, size = True, 1  # whether workers find the files; how many batches a task has
    numbers = itertools.count()

    def submit(group: list[Batch]) -> Any:
        given = group if is_shared else [*map(_loaded, group)]
        return client.submit(_run, name, given, key=f"{name}-{next(numbers)}", pure=False)

    def first() -> Iterator[tuple[Batch, Any]]:
        nonlocal is_shared, size
        group, future = waiting.popleft()
        found = _result(future, check)
        if found == _NOT_HERE:
            is_shared = False
            found = _result(submit(group), check)
        if isinstance(found, ModelError):  # of one of them, or so it seems
            alone = [found] if len(group) == 1 else [_result(submit([each]), check) for each in group]
            yield from zip(group, [each if isinstance(each, ModelError) else each[1][0] for each in alone], strict=True)
            return
        seconds, made = found
        size = max(1, min(_MOST, int(_SECONDS * len(group) / seconds))) if is_shared and group[0].file else 1
        yield from zip(group, made, strict=True)

    iterator = iter(batches)
    try:
        with interruptions() as check:
            while group := [*itertools.islice(iterator, size)]:
                waiting.append((group, submit(group)))
                if len(waiting) > most:
                    yield from first()
            while waiting:
                yield from first()
    finally:
        with suppress(Exception):  # of a cluster that is gone
            client.unregister_worker_plugin(name)


def _pickled(make: Any, functions: Iterable[Any]) -> bytes:
    modules = {sys.modules[each.__module__] for each in functions if getattr(each, "__module__", None) in sys.modules}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        content: bytes = cloudpickle.dumps(make)
        return content
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _loaded(batch: Batch) -> Batch | ModelError:
    try:
        return dataclasses.replace(batch, feed=batch.load(), file=None, reader=None)
    except ModelError as error:
        return error


def _result(future: Any, check: Callable[[], None]) -> Any:
    while True:
        check()
        try:
            # A time out of the task's own is no reason to wait on.
            return _told(functools.partial(future.result, timeout=None if future.done() else _PAUSE))
        except distributed.TimeoutError as error:
            if future.done() and future.status == "error":
                raise ModelError(f"the cluster fails: {type(error).__name__}: {error}") from error
        except distributed.KilledWorker:
            return ModelError("the workers that ran it died, one after the other")


def _told(action: Callable[[], Any]) -> Any:
    """What it returns, with what goes wrong in the cluster as a ModelError."""
    try:
        return action()
    except (ModelError, distributed.KilledWorker, distributed.TimeoutError):
        raise
    except Exception as error:
        reraise_of_signal_handler(error)
        raise ModelError(f"the cluster fails: {type(error).__name__}: {error}") from error


# In a worker.

_NOT_HERE = "this machine has not the file"


class _Recipe(distributed.WorkerPlugin):  # type: ignore[misc]  # which has no types
    """In each worker, those that come later too. What it makes is made when the first batch comes."""

    def __init__(self, recipe: bytes) -> None:
        self.recipe = recipe

    def setup(self, worker: Any) -> None:
        self.lock = threading.Lock()
        self.made: Callable[[Batch], Any] | None = None

    def run(self, batch: Batch) -> Any:
        with self.lock:
            if self.made is None:
                self.made = cloudpickle.loads(self.recipe)()
        return on_one_thread(self.made, batch)


def _run(name: str, group: list[Batch | ModelError]) -> Any:
    """The seconds that it took, and what was made of each batch; or that one is not here."""
    if not all(isinstance(each, ModelError) or each.is_here for each in group):
        return _NOT_HERE
    recipe = distributed.get_worker().plugins[name]
    start = time.perf_counter()
    made = [each if isinstance(each, ModelError) else recipe.run(each) for each in group]
    return time.perf_counter() - start, made
