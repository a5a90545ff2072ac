"""Numba's threads, for calls on large arrays."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .lock import created

T = TypeVar("T")

# Some slack for threads that the system puts aside.
_SLICES_PER_THREAD = 4

_pool_lock = threading.Lock()
_pool_lost = False


class _Thread(threading.local):
    """State of each thread."""

    is_alone = False


_this_thread = _Thread()


def run_on_threads(parallel: Callable[[int], None]) -> bool:
    """Call `parallel` with the number of slices for Numba's threads, unless that is one thread, or it may not use them now.

    It may not where another thread has the pool: two teams at a time would only be in each other's way, and Numba's
    workqueue layer ends a process that tries. Nor in a forked child of a process that had a pool: pools do not survive a
    fork, and OpenMP ends a child that touches one.
    """
    if _pool_lost or _this_thread.is_alone:
        return False
    # `with` takes and gives back the lock so that no signal handler gets in between.
    if _number_of_threads() == 1 or _pool_lock.locked():
        return False
    with _pool_lock:
        parallel(_number_of_threads() * _SLICES_PER_THREAD)
    return True


def _number_of_threads() -> int:
    """Of Numba's, for this thread, which Numba lets set it. What Numba asks for it takes a lock of processes, which a signal
    handler that raises would leave taken: so that is asked once, where there are no signal handlers."""
    if not _has_pool():
        created(_start_pool)
    module: Any = sys.modules["numba.np.ufunc.parallel"]
    return int(getattr(module, "_get_num_threads", module.get_num_threads)())


def _start_pool() -> None:
    import numba

    numba.get_num_threads()


def on_one_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """What `function` returns, with the kernels that it calls kept on this thread."""
    before = _this_thread.is_alone
    _this_thread.is_alone = True
    try:
        return function(*arguments, **named)
    finally:
        _this_thread.is_alone = before


def _has_pool() -> bool:
    """Whether Numba has started its pool, whatever asked it to. It has no public name for that."""
    module = sys.modules.get("numba.np.ufunc.parallel")
    return module is not None and getattr(module, "_is_initialized", True)


def _after_fork() -> None:
    global _pool_lost, _pool_lock
    _pool_lost = _pool_lost or _has_pool()
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)

# A fork before this module was there shows in the threads: those of a pool are gone.
_TASKS = Path("/proc/self/task")
if _has_pool() and _TASKS.is_dir():
    _pool_lost = len(list(_TASKS.iterdir())) < sys.modules["numba"].config.NUMBA_NUM_THREADS
