"""Batches on a cluster of dask: each worker makes once what runs them, and gives back sums."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import cloudpickle
import dask
import distributed

from ..compiling.threads import on_one_thread
from ..errors import ModelError, reraise_of_signal_handler
from .data import Batch

# Loopback: whoever connects to a scheduler can run code.
_HOST = "127.0.0.1"

# Batches on their way for each thread of a worker.
_AHEAD = 4


@contextmanager
def connected(workers: int | None, scheduler: str | None) -> Iterator[Any]:
    """A client: of so many processes of this machine, which end with the context, or of a running cluster. Raises
    ModelError."""
    with ExitStack() as stack:
        # The model is sent to the scheduler once.
        stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}))
        address: Any = scheduler
        if scheduler is None:
            address = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    host=_HOST,
                    dashboard_address=f"{_HOST}:0",
                    memory_limit=0,
                    silence_logs=logging.CRITICAL,
                )
            )
        try:
            client = distributed.Client(address, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{scheduler}: no dask scheduler answers there: {error}") from None
        yield stack.enter_context(client)


def in_order_on(
    client: Any, make: Callable[[], Callable[[Batch], Any]], batches: Iterable[Batch], functions: Iterable[Any]
) -> Iterator[tuple[Batch, Any]]:
    """Each batch with what was made of it, in order, whichever was ready first: what a function gives that `make` gives, once
    in each worker. What a worker had that dies is run again, and what kills worker after worker is a ModelError.

    Workers read files that they have, and get the others. The modules of `functions` need not be there.
    """
    name = f"quark-numba-{uuid.uuid4().hex}"
    # A task, and not scattered data, so that it can be had again if all workers die that have it.
    recipe = client.submit(bytes, _pickled(make, functions), key=f"{name}-recipe", pure=False)
    most = _AHEAD * max(1, sum(client.nthreads().values()))
    waiting: deque[tuple[Batch, Any]] = deque()
    is_shared = True

    def submit(batch: Batch, key: str) -> Any:
        return client.submit(_run, name, recipe, batch, key=f"{name}-{key}", pure=False)

    def first() -> tuple[Batch, Any]:
        nonlocal is_shared
        batch, future = waiting.popleft()
        made = _result(future)
        if not isinstance(made, str):
            return batch, made
        is_shared = False
        return batch, _result(submit(_loaded(batch), f"{batch.name}-{uuid.uuid4().hex}"))

    try:
        for number, batch in enumerate(batches):
            try:
                waiting.append((batch, submit(batch if is_shared else _loaded(batch), str(number))))
            except ModelError as error:
                waiting.append((batch, error))
            if len(waiting) > most:
                yield first()
        while waiting:
            yield first()
    finally:
        with suppress(Exception):  # of workers that are gone
            client.run(_forget, name)


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


def _loaded(batch: Batch) -> Batch:
    return dataclasses.replace(batch, feed=batch.load(), file=None, reader=None)


def _result(future: Any) -> Any:
    if isinstance(future, ModelError):
        return future
    try:
        return future.result()
    except distributed.KilledWorker:
        return ModelError("the workers that ran it died, one after the other")
    except ModelError:
        raise
    except Exception as error:
        reraise_of_signal_handler(error)
        raise ModelError(f"the cluster fails: {type(error).__name__}: {error}") from error


# In a worker.

_NOT_HERE = "this machine has not the file"

_made: dict[str, Callable[[Batch], Any]] = {}
_lock = threading.Lock()


def _run(name: str, recipe: bytes, batch: Batch) -> Any:
    if not batch.is_here:
        return _NOT_HERE
    with _lock:
        if name not in _made:
            _made[name] = cloudpickle.loads(recipe)()
    return on_one_thread(_made[name], batch)


def _forget(name: str) -> None:
    _made.pop(name, None)
