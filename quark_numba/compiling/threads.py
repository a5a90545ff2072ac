"""Numba's threads, for calls on large arrays."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba

# Some slack for threads that the system puts aside.
_SLICES_PER_THREAD = 4

_pool = threading.Lock()
_pool_started = False
_pool_lost = False


def run_on_threads(parallel: Callable[[int], None]) -> bool:
    """Call `parallel` with the number of slices for Numba's threads, unless that is one thread, or it may not use them now.

    It may not where another thread has the pool: two teams at a time would only be in each other's way, and Numba's
    workqueue layer ends a process that tries. Nor in a forked child of a process that had a pool: pools do not survive a
    fork, and OpenMP ends a child that touches one.
    """
    global _pool_started
    number = 1 if _pool_lost else int(numba.get_num_threads())
    if number == 1 or not _pool.acquire(blocking=False):
        return False
    try:
        _pool_started = True
        parallel(number * _SLICES_PER_THREAD)
    finally:
        _pool.release()
    return True


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the kernels that this thread calls inside the context on this thread."""
    number = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        yield
    finally:
        numba.set_num_threads(number)


def _after_fork() -> None:
    global _pool_lost
    _pool_lost = _pool_started


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
