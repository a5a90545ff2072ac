"""The compiled variants of a family's kernels, from its loops: for one thread, for Numba's threads and for ONNX Runtime's
threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types

from . import jit
from .array_functions import array_function

# Flat and contiguous arrays of float32.
READ, WRITTEN = types.Array(types.float32, 1, "C", readonly=True), types.Array(types.float32, 1, "C")

Loops = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]


def variants(
    loops_of: Callable[[Any], Loops],
    name_of: Callable[[Any], str],
    arguments_of: Callable[[Any], Sequence[Any]],
    *,
    allocates: bool = False,
) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the functions that compile a family's loops for a key of its dispatch table.

    `loops_of` returns three Python functions. The first one takes the operands and converts them on the caller's thread. If it
    allocates memory, it returns whether there was enough: then `allocates` is True. The second one also takes a number of
    slices, after the operands, and uses Numba's threads. The third one becomes the C function void (int64_t work, size_t index)
    that ONNX Runtime's threads call.

    `name_of` returns the part of symbols that differs from key to key, and `arguments_of` the operands' types in Numba.
    """

    def serial_kernel(key: Any) -> Any:
        result = types.boolean if allocates else types.void
        return array_function(loops_of(key)[0], f"serial_{name_of(key)}", result(*arguments_of(key)))

    def parallel_kernel(key: Any) -> Any:
        signature = types.void(*arguments_of(key), types.intp)
        return jit.parallel(loops_of(key)[1], f"parallel_{name_of(key)}", signature)

    def task_function(key: Any) -> Any:
        return jit.c_function(loops_of(key)[2], f"task_{name_of(key)}", types.void(types.int64, types.intp))

    return serial_kernel, parallel_kernel, task_function
