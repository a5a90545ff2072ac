"""The compiled forms of a kernel, and tables of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Generic, TypeVar

from .lock import created_once

K = TypeVar("K")


class Kernel:
    """The forms of the kernel that a key selects, each compiled when it is first asked for.

    Parameters
    ----------
    key : a key of the wing's dispatch table
    load : a function that imports the wing's module ``kernels``, which has a function for each form. It is called when a first
        form is asked for, as that module imports Numba.
    """

    def __init__(self, key: Any, load: Callable[[], ModuleType]) -> None:
        self.key, self._load = key, load

    @created_once
    def serial(self) -> Any:
        """For a call on arrays: on the caller's thread."""
        return self._load().serial_kernel(self.key)

    @created_once
    def parallel(self) -> Any:
        """For a call on large arrays: on Numba's threads."""
        return self._load().parallel_kernel(self.key)

    @created_once
    def task(self) -> Any:
        """For a node of a session: a C function that converts a part of its tensors, on the threads of ONNX Runtime."""
        return self._load().task_function(self.key)


class Table(dict[K, Kernel], Generic[K]):
    """The dispatch table of a wing: a kernel for each key.

    Raises
    ------
    ValueError
        If a key comes twice.
    """

    def __init__(self, keys: Iterable[K], load: Callable[[], ModuleType]) -> None:
        super().__init__()
        for key in keys:
            if key in self:
                raise ValueError(f"two kernels for {key}")
            self[key] = Kernel(key, load)
