"""The only place that asks Numba to compile, and its flags.

This module and those that import Numba at their top (``intrinsics``, each wing's ``arithmetic`` and ``kernels``, ``ort.nodes``)
are imported when a first kernel is asked for, and not before: the import takes a fifth of a second.

No two functions that are called may have one name. The symbol of a compiled function is made of its name, its types and a
number that counts the functions of the process that compiled it. So two processes may write different functions to the
cache under one symbol, and a third that loads both would call the one for the other. Hence `inline` and `expand` leave no
call, and `function` takes a name that says what the function was made for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

from .cache import compile_cached, digest

JIT_ENABLED = not numba.config.DISABLE_JIT

# error_model: Python's checks for division by zero keep loops from being vectorised, and IEEE's answer is the one wanted.
# No fastmath: NaN, Inf and the sign of zero are part of the results.
_FLAGS = {"error_model": "numpy", "nogil": True}


# Unsigned indices: signed ones might be negative, that is, count from an array's end, which makes each access a choice.
# They may wrap around, there and back; Python's own integers need not. And no slices: each would cost more than the
# conversion of 32 elements.
unsigned = np.uintp if JIT_ENABLED else int


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
    compiled = numba.njit(parallel=parallel, **_FLAGS)(_specialise(template, name, names))
    if not JIT_ENABLED:
        # numpy's scalars warn of what IEEE defines.
        return np.errstate(all="ignore")(compiled)
    compile_cached(compiled, signature)
    compiled.disable_compile()
    return compiled


def c_function(template: Callable[..., Any], name: str, signature: Any, **names: Any) -> Any:
    """Like `kernel`, for C to call; the address is in the attribute `address`."""
    compiled = CFunc(_specialise(template, name, names), normalize_signature(signature), locals={}, options=_FLAGS)
    compile_cached(compiled)
    return compiled


def _specialise(template: Callable[..., Any], name: str, names: dict[str, Any]) -> FunctionType:
    """A copy of `template` whose global names are bound to `names`.

    The name becomes that of the file which the compiled function is kept in: it has to tell one binding from another. A digest
    of the sources that the function is made of is added to it, so that no kernel outlives a change of them. Processes that fill
    the cache at the same time then write the same thing.
    """
    assert isinstance(template, FunctionType)
    copy = FunctionType(template.__code__, {**template.__globals__, **names}, name)
    copy.__qualname__ = f"{name}_{digest(Path(template.__code__.co_filename))}"
    copy.__module__ = template.__module__
    return copy
