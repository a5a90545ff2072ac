"""The only place that asks Numba to compile, and its flags.

This module and those that import Numba at their top (``intrinsics``, each wing's ``arithmetic`` and ``kernels``, ``ort.nodes``)
are imported when a first kernel is asked for, and not before: the import takes a fifth of a second.

No two functions that are called may have one name. The symbol of a compiled function is made of its name, its types and a
number that counts the functions of the process that compiled it. So two processes may write different functions to the
cache under one symbol, and a third that loads both would call the one for the other. Hence `inline` and `expand` leave no
call, and `function` takes a name that says what the function was made for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np

from .cache import cached, digest

JIT_ENABLED = not numba.config.DISABLE_JIT

# error_model: Python's checks for division by zero keep loops from being vectorised, and IEEE's answer is the one wanted.
# No fastmath: NaN, Inf and the sign of zero are part of the results.
_FLAGS = {"error_model": "numpy", "nogil": True}


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
    decorate = functools.partial(numba.njit, signature, parallel=parallel, **_FLAGS)
    compiled = cached(decorate, _specialise(template, name, names))
    # Where nothing is compiled, numpy's scalars warn of what IEEE defines.
    return compiled if JIT_ENABLED else np.errstate(all="ignore")(compiled)


def c_function(template: Callable[..., Any], name: str, signature: Any, **names: Any) -> Any:
    """Like `kernel`, for C to call; the address is in the attribute `address`."""
    return cached(functools.partial(numba.cfunc, signature, **_FLAGS), _specialise(template, name, names))


def _specialise(template: Callable[..., Any], name: str, names: dict[str, Any]) -> FunctionType:
    """A copy of `template` whose global names are bound to `names`.

    Globals, unlike closures, are no part of Numba's cache key, so that codecs and other compiled functions may be bound. What
    was bound must show in the key all the same: it is in the name. So is a digest of the sources that the function is made of,
    so that no kernel outlives a change of them. One name, one cache index: processes that fill the cache at the same time write
    the same thing.
    """
    assert isinstance(template, FunctionType)
    copy = FunctionType(template.__code__, {**template.__globals__, **names}, name)
    copy.__qualname__ = f"{name}_{digest(Path(template.__code__.co_filename))}"
    copy.__module__ = template.__module__
    return copy
