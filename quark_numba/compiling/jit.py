"""The compilation of kernels by Numba, and its flags. No other module calls ``njit``.

Importing Numba takes a fifth of a second. So this module and all others that import Numba at their top are imported when the
first kernel is needed, and not before.

Functions that compiled code calls must have different names. Numba makes the symbol of a compiled function from its name, its
types, and a number that counts the functions of the process. So two processes may write different functions to the cache under
one symbol, and a third process that loads both may call the wrong one. Hence `inline` and `expand` leave no calls, and
`function` takes a name that is unique to one binding."""

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

# error_model: Python's checks for division by zero prevent vectorisation, and the operators need IEEE's results anyway.
# No fastmath: NaN, Inf and the sign of zero are part of the results.
_FLAGS = {"error_model": "numpy", "nogil": True}


# The type of indices in loops. A signed index may be negative and count from the end of an array, so each access would need a
# branch. Unsigned differences may wrap around, and wrap back when they are added. Without Numba's compiler, Python's integers
# do. Loops take indices, not slices: making a slice costs more than converting 32 elements.
unsigned = np.uintp if JIT_ENABLED else int


def inline(function: Callable[..., Any], **names: Any) -> Any:
    """Return a function that is compiled into its callers, with its global names bound to `names`."""
    function = _specialise(function, function.__name__, names) if names else function
    return numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(function)


def expand(template: Callable[..., Any], **names: Any) -> Any:
    """Return a function whose code replaces each call before Numba compiles the caller, with its global names bound to `names`.
    Loops use this: they are compiled once, as part of the caller, and not a second time by themselves."""
    bound = _specialise(template, template.__name__, names)
    return numba.njit(inline="always", no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(bound)


def function(template: Callable[..., Any], name: str | None = None, **names: Any) -> Any:
    """Return a function that compiled functions call, with its global names bound to `names`. `name` must be unique to this
    binding. The function has no cache entry: it is part of its callers' entries."""
    bound = _specialise(template, name or template.__name__, names)
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_FLAGS)(bound)


def kernel(template: Callable[..., Any], name: str, signature: Any, *, parallel: bool = False, **names: Any) -> Any:
    """Compile `template` for calls from Python, with its global names bound to `names`, and keep it on disk under `name`."""
    compiled = numba.njit(parallel=parallel, **_FLAGS)(_specialise(template, name, names))
    if not JIT_ENABLED:
        # numpy's scalars warn of results that IEEE defines.
        return np.errstate(all="ignore")(compiled)
    compile_cached(compiled, signature)
    compiled.disable_compile()
    return compiled


def c_function(template: Callable[..., Any], name: str, signature: Any, **names: Any) -> Any:
    """Like `kernel`, for calls from C. The address is in the attribute `address`."""
    compiled = CFunc(_specialise(template, name, names), normalize_signature(signature), locals={}, options=_FLAGS)
    compile_cached(compiled)
    return compiled


def _specialise(template: Callable[..., Any], name: str, names: dict[str, Any]) -> FunctionType:
    """Return a copy of `template` with its global names bound to `names`.

    The compiled function's file is named after `name` and a digest of the function's sources. So `name` has to tell one binding
    from another, a changed source gives a new file, and processes that write one file at the same time write the same content.
    """
    assert isinstance(template, FunctionType)
    copy = FunctionType(template.__code__, {**template.__globals__, **names}, name, template.__defaults__)
    copy.__qualname__ = f"{name}_{digest(template.__module__)}"
    copy.__module__ = template.__module__
    return copy
