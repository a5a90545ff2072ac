"""The compilation of kernels by Numba, and its flags. No other module calls ``njit``.

Importing Numba takes a fifth of a second. So this module, and every other module that imports Numba at its top, is imported
only when the first kernel is needed.

A kernel that depends on a key of a dispatch table is defined within a function, whose variables have what depends on the key::

    def kernel(key):
        decode, has_bias = decoder(key), key.has_bias

        def run(x, y):
            for i in range(x.size):
                y[i] = decode(x[i])
                if has_bias:
                    y[i] += 1

        return array_function(run, f"run_{key.name}", signature)

Numba takes these variables as constants, so conditions on them are decided at compile time. The cache does not look at them: it
knows a kernel by its name and the sources of its module (see `_named`), so the name has to tell one key from another.

Functions that compiled code calls must have different names. Numba makes the symbol of a compiled function from its name, its
types, and a number that counts the functions of the process. So two processes may write different functions to the cache under
one symbol, and a third process that loads both may call the wrong one. Hence `inline` and `expand` leave no calls, and
`function` takes a name that no other function has."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

from .cache import compile_cached, digest

JIT_ENABLED = not numba.config.DISABLE_JIT

# error_model: Python's checks for division by zero prevent vectorization, and the operators need IEEE's results anyway.
# No fastmath: NaN, Inf and the sign of zero are part of the results.
_FLAGS = {"error_model": "numpy", "nogil": True}


# The type of indices in loops. A signed index may be negative and count from the end of an array, so each access would need a
# branch. Unsigned differences may wrap around, and wrap back when they are added. Without Numba's compiler, Python's integers
# do. Loops take indices, not slices: making a slice costs more than converting 32 elements.
unsigned = np.uintp if JIT_ENABLED else int


def inline(function: Callable[..., Any], **calls: Any) -> Any:
    """Return a function that is compiled into its callers. `calls` is as in `function`."""
    named = _named(function, function.__name__, calls) if calls else function
    return numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(named)


def expand(function: Callable[..., Any]) -> Any:
    """Return a function whose code replaces each call before Numba compiles the caller. Loops use this: they are compiled once,
    as part of the caller, and not a second time by themselves."""
    return numba.njit(inline="always", no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(function)


def function(function: Callable[..., Any], name: str | None = None, **calls: Any) -> Any:
    """Return a function that compiled functions call. `name` must be unique. The function has no cache entry: it is part of its
    callers' entries. `calls` maps names of Python functions in its module to the compiled functions that it calls instead.
    Modules that do without Numba need this."""
    named = _named(function, name or function.__name__, calls)
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(named)


def interpreted(function: Callable[..., Any]) -> Any:
    """Return `function` as Python runs it if NUMBA_DISABLE_JIT is set. numpy's scalars warn of results that IEEE defines."""
    return np.errstate(all="ignore")(function)


def parallel(function: Callable[..., Any], name: str, signature: Any) -> Any:
    """Compile `function` for calls from Python on Numba's threads, and keep it on disk under `name`."""
    if not JIT_ENABLED:
        return interpreted(function)
    compiled = numba.njit(parallel=True, **_FLAGS)(_named(function, name))
    compile_cached(compiled, signature)
    compiled.disable_compile()
    return compiled


def c_function(function: Callable[..., Any], name: str, signature: Any) -> Any:
    """Compile `function` for calls from C, and keep it on disk under `name`. The address is in the attribute `address`."""
    compiled = CFunc(_named(function, name), normalize_signature(signature), locals={}, options=_FLAGS)
    compile_cached(compiled)
    return compiled


def _named(function: Callable[..., Any], name: str, calls: dict[str, Any] | None = None) -> FunctionType:
    """Return a copy of `function` with another name, which calls other functions in place of those of its module.

    The compiled function's file is named after `name` and a digest of the function's sources. So `name` has to tell one kernel
    from another, a changed source gives a new file, and processes that write one file at the same time write the same content.
    """
    assert isinstance(function, FunctionType)
    names = function.__globals__
    if calls:
        assert all(callable(names[called]) for called in calls)
        names = {**names, **calls}
    copy = FunctionType(function.__code__, names, name, function.__defaults__, function.__closure__)
    copy.__qualname__ = f"{name}_{digest(function.__module__)}"
    copy.__module__ = function.__module__
    return copy
