"""The only place that asks Numba to compile: flags, on-disk cache, threads, fork.

This module and those that import Numba at their top (``intrinsics``, ``kernels``, ``ort.compute``) are imported
when a first kernel is asked for, and not before.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np

JIT_ENABLED = not numba.config.DISABLE_JIT

# error_model: Python's checks for division by zero keep loops from being vectorised, and IEEE's answer is the one wanted.
# No fastmath: NaN, Inf and the sign of zero are part of the results.
_FLAGS = {"error_model": "numpy", "nogil": True}

# Taken now, when the modules that kernels are made of are read, and not at the first kernel: the source of a process that
# goes on may have been edited since.
_SOURCE_DIGEST = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
).hexdigest()[:12]

# Some slack for threads that the system puts aside.
_SLICES_PER_THREAD = 4

_pool = threading.Lock()
_pool_started = False
_pool_lost = False


# Two caches on disk, of different processes, may hold different functions under one symbol: all that tells closures of one
# name and one type apart there is a process's counter. A process that loads both then calls one for the other, unless no
# call is left, or no two functions have one name.


def inline(function: Callable[..., Any], **names: Any) -> Any:
    """Compile a function into its callers, its global names bound to `names`."""
    function = _specialise(function, function.__name__, names) if names else function
    return numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(function)


def function(template: Callable[..., Any], name: str | None = None, **names: Any) -> Any:
    """Compile a function that others call, as `name`, which stands for one binding of its global names only; it has no
    cache entry of its own."""
    bound = _specialise(template, name or template.__name__, names)
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(bound)


def kernel(template: Callable[..., Any], name: str, signature: Any, *, parallel: bool = False, **names: Any) -> Any:
    """Compile `template` under `name` with its global names bound to `names`, and keep the result on disk."""
    compiled = _cached(functools.partial(numba.njit, signature, parallel=parallel), _specialise(template, name, names))
    # Where nothing is compiled, numpy's scalars warn of what IEEE defines.
    return compiled if JIT_ENABLED else np.errstate(all="ignore")(compiled)


def c_function(template: Callable[..., Any], name: str, signature: Any, **names: Any) -> Any:
    """Like `kernel`, with the C calling convention; the address is in the attribute `address`."""
    return _cached(functools.partial(numba.cfunc, signature), _specialise(template, name, names))


def _cached(decorate: Callable[..., Any], function: FunctionType) -> Any:
    """With a cache on disk, unless neither the package's folder nor the user's can be written."""
    compile_cached = functools.partial(decorate(cache=True, **_FLAGS), function)
    compile_only = functools.partial(decorate(cache=False, **_FLAGS), function)
    try:
        return compile_cached()
    except Exception as error:
        if "cannot cache" in str(error):
            return compile_only()
        # A file in the cache may be cut short, or something else: any exception may come of reading it. An error of
        # another kind comes again.
        try:
            folder = Path(numba.njit(cache=True)(function).stats.cache_path)
            for path in folder.glob(f"*{function.__qualname__}-*"):
                path.unlink()
        except OSError:
            return compile_only()
        return compile_cached()


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


os.register_at_fork(after_in_child=_after_fork)


def _specialise(template: Callable[..., Any], name: str, names: dict[str, Any]) -> FunctionType:
    """A copy of `template` whose global names are bound to `names`.

    Globals, unlike closures, are no part of Numba's cache key, so codecs and other compiled functions may be bound. What
    was bound must show in the key all the same: it is in the name, and a digest of the package's source is too, so that
    no kernel outlives a change of the code that it was made of. One name, one cache index: processes that fill the cache
    at the same time write the same thing.
    """
    assert isinstance(template, FunctionType)
    copy = FunctionType(template.__code__, {**template.__globals__, **names}, name)
    copy.__qualname__ = f"{name}_{_SOURCE_DIGEST}"
    copy.__module__ = template.__module__
    return copy
