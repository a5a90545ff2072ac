"""The only place that asks Numba to compile: flags, on-disk cache, threads, fork.

This module and those that import Numba at their top (``intrinsics``, each wing's ``arithmetic`` and ``kernels``,
``ort.nodes``) are imported when a first kernel is asked for, and not before: the import takes a fifth of a second.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import re
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

# Some slack for threads that the system puts aside.
_SLICES_PER_THREAD = 4

_pool = threading.Lock()
_pool_started = False
_pool_lost = False


# No two functions that are called may have one name. The symbol of a compiled function is made of its name, its types and a
# number that counts the functions of the process that compiled it. So two processes may write different functions to the
# cache under one symbol, and a third that loads both would call the one for the other. Hence `inline` leaves no call, and
# `function` takes a name that says what the function was made for.


def inline(function: Callable[..., Any], **names: Any) -> Any:
    """Compile a function into its callers, its global names bound to `names`."""
    function = _specialise(function, function.__name__, names) if names else function
    return numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(function)


def expand(template: Callable[..., Any], **names: Any) -> Any:
    """Put a function in the place of each call, before anything is compiled, its global names bound to `names`: for loops,
    so that they are compiled once and not once more in each caller."""
    bound = _specialise(template, template.__name__, names)
    return numba.njit(inline="always", no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(bound)


def function(template: Callable[..., Any], name: str | None = None, **names: Any) -> Any:
    """Compile a function that compiled functions call, as `name`, which stands for one binding of its global names only. It has
    no cache entry of its own: it is part of its callers' entries."""
    bound = _specialise(template, name or template.__name__, names)
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(bound)


def kernel(template: Callable[..., Any], name: str, signature: Any, *, parallel: bool = False, **names: Any) -> Any:
    """Compile `template` for Python to call, under `name` with its global names bound to `names`; kept on disk."""
    compiled = _cached(functools.partial(numba.njit, signature, parallel=parallel), _specialise(template, name, names))
    # Where nothing is compiled, numpy's scalars warn of what IEEE defines.
    return compiled if JIT_ENABLED else np.errstate(all="ignore")(compiled)


def c_function(template: Callable[..., Any], name: str, signature: Any, **names: Any) -> Any:
    """Like `kernel`, for C to call; the address is in the attribute `address`."""
    return _cached(functools.partial(numba.cfunc, signature), _specialise(template, name, names))


def _cached(decorate: Callable[..., Any], function: FunctionType) -> Any:
    """With a cache on disk, unless neither the package's folder nor the user's can be written."""
    compile_cached = functools.partial(decorate(cache=True, **_FLAGS), function)
    compile_only = functools.partial(decorate(cache=False, **_FLAGS), function)
    with _no_garbage_collection():
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


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Compiling makes very many objects that stay: going through them again and again takes an eighth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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


def _specialise(template: Callable[..., Any], name: str, names: dict[str, Any]) -> FunctionType:
    """A copy of `template` whose global names are bound to `names`.

    Globals, unlike closures, are no part of Numba's cache key, so that codecs and other compiled functions may be bound. What
    was bound must show in the key all the same: it is in the name. So is a digest of the sources that the function is made of,
    so that no kernel outlives a change of them. One name, one cache index: processes that fill the cache at the same time write
    the same thing.
    """
    assert isinstance(template, FunctionType)
    copy = FunctionType(template.__code__, {**template.__globals__, **names}, name)
    copy.__qualname__ = f"{name}_{_digest(Path(template.__code__.co_filename))}"
    copy.__module__ = template.__module__
    return copy


@functools.cache
def _digest(file: Path) -> str:
    """Of the sources that the functions of a file are made of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources(file))).hexdigest()[:12]


_IMPORT = re.compile(r"^ *from (\.+)([\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def sources(file: Path) -> list[Path]:
    """The files of this package that a file imports, directly or not, and itself: relative imports, wherever they stand."""
    found, waiting = {file}, [file]
    while waiting:
        importer = waiting.pop()
        for dots, module, several, one in _IMPORT.findall(importer.read_text()):
            base = importer.parents[len(dots) - 1].joinpath(*module.split("."))
            names = [name.split()[0] for name in (several or one.partition("#")[0]).split(",") if name.strip()]
            for path in (base, *(base / name for name in names)):
                for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                    if candidate.is_file() and candidate not in found:
                        found.add(candidate)
                        waiting.append(candidate)
    return sorted(found)
