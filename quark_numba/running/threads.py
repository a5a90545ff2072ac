"""Calls for the items of an iterator on several threads, with the results in the items' order. `runs` sets the number of
threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ..compiling.threads import on_one_thread

T = TypeVar("T")
R = TypeVar("R")


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
