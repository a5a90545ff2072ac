"""Numba's threads, for calls on large arrays: the slices of work for each, the most threads that a caller may ask for, the
number of processors, and what a fork changes."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .lock import allocate_lock, run_in_creation

T = TypeVar("T")

# The largest number of threads, and of worker processes, that a caller may ask for.
MOST_THREADS = 1024

# There are more slices than threads, so that a suspended thread does not hold up the others.
_SLICES_PER_THREAD = 4

_pool_lock = allocate_lock()
_pool_lost = False


# `is_alone`: whether the kernels that this thread calls run on it alone.
_this_thread = threading.local()


def run_on_threads(parallel: Callable[[int], None]) -> bool:
    """Call `parallel` with the number of slices for Numba's threads and return True. Return False if the pool has only one
    thread or cannot be used now.

    It cannot be used while another thread uses it: two teams would slow each other down, and Numba's workqueue layer aborts
    the process. It cannot be used in a forked child of a process that had a pool either: pools do not survive a fork, and
    OpenMP aborts a child that uses one.
    """
    if _pool_lost or getattr(_this_thread, "is_alone", False):
        return False
    # `with` acquires and releases the lock so that no signal handler runs in between.
    if _number_of_threads() == 1 or _pool_lock.locked():
        return False
    with _pool_lock:
        parallel(_number_of_threads() * _SLICES_PER_THREAD)
    return True


def number_of_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _number_of_threads() -> int:
    """Return the number of Numba threads that this thread uses. It may have set the number itself."""
    start_pool()
    module: Any = sys.modules["numba.np.ufunc.parallel"]
    return int(getattr(module, "_get_num_threads", module.get_num_threads)())


def start_pool() -> None:
    """Start Numba's threads, unless they run.

    Numba does this under a lock that processes share, and a signal handler that raises would leave it locked. So it is done on
    a thread that runs no signal handlers. TBB is started before, on this thread, because it warns at each fork by a thread
    other than the one that started it. Compiling or loading a parallel function starts Numba's threads, too.
    """
    if not _has_pool():
        start_tbb = run_in_creation(_tbb_starter)
        if start_tbb:
            start_tbb(sys.modules["numba"].config.NUMBA_NUM_THREADS)
        run_in_creation(sys.modules["numba"].get_num_threads)


def _tbb_starter() -> Callable[[int], None] | None:
    """Return the C function that starts TBB's threads unless they run, or None if Numba uses another layer."""
    from numba import config
    from numba.np.ufunc import parallel

    layer, (first, *_) = str(config.THREADING_LAYER).lower(), config.THREADING_LAYER_PRIORITY
    if layer not in ("tbb", "safe", "threadsafe", "forksafe") and (layer, first) != ("default", "tbb"):
        return None
    try:
        parallel._check_tbb_version_compatible()
        from numba.np.ufunc import tbbpool  # type: ignore[attr-defined]  # a module in C
    except ImportError:
        return None
    starter: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_int)(tbbpool.launch_threads)
    return starter


def on_one_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call `function` and return its result. The kernels that it calls run on this thread alone."""
    before = getattr(_this_thread, "is_alone", False)
    _this_thread.is_alone = True
    try:
        return function(*arguments, **named)
    finally:
        _this_thread.is_alone = before


def _has_pool() -> bool:
    """Return whether Numba has started its pool, for this package or for another user. There is no public API for this."""
    module = sys.modules.get("numba.np.ufunc.parallel")
    return module is not None and getattr(module, "_is_initialized", True)


def _after_fork() -> None:
    global _pool_lost, _pool_lock
    _pool_lost = _pool_lost or _has_pool()
    _pool_lock = allocate_lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)

# A fork before the import of this module is found by counting threads, because the child lacks the threads of the pool.
_TASKS = Path("/proc/self/task")
if _has_pool() and _TASKS.is_dir():
    _pool_lost = len(list(_TASKS.iterdir())) < sys.modules["numba"].config.NUMBA_NUM_THREADS
