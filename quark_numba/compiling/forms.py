"""The compiled forms of a family's kernels, from its templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numba import types

from . import jit


def forms(
    templates: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
    name_of: Callable[[Any], str],
    arguments_of: Callable[[Any], Sequence[Any]],
    names_of: Callable[[Any], Mapping[str, Any]] = lambda key: {},
    names_of_task: Callable[[Any], Mapping[str, Any]] | None = None,
) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the functions that compile a family's templates for a key of its dispatch table.

    The first template takes the operands and converts them on the caller's thread. The second one takes a number of slices
    after them, and uses Numba's threads. The third one becomes the C function void (int64_t work, size_t index) that ONNX
    Runtime's threads call.

    `name_of` returns what tells keys apart in symbols, `arguments_of` Numba's types of the operands. The other functions return
    what names in the templates are bound to; `names_of_task` is for the third one, if that differs.
    """
    serial, parallel, task = templates

    def serial_kernel(key: Any) -> Any:
        return jit.kernel(serial, f"serial_{name_of(key)}", types.void(*arguments_of(key)), **names_of(key))

    def parallel_kernel(key: Any) -> Any:
        signature = types.void(*arguments_of(key), types.intp)
        return jit.kernel(parallel, f"parallel_{name_of(key)}", signature, parallel=True, **names_of(key))

    def task_function(key: Any) -> Any:
        names = (names_of_task or names_of)(key)
        return jit.c_function(task, f"task_{name_of(key)}", types.void(types.int64, types.intp), **names)

    return serial_kernel, parallel_kernel, task_function
