"""A kernel in its compiled variants, the dispatch tables that hold kernels, and from which size on a call on arrays uses
several threads (``linear.plans`` has its own limit)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from .lock import created_once
from .python_calls import get_or_compile
from .threads import run_on_threads

K = TypeVar("K")

# Below this cost one thread finishes before a second one wakes up. The linear family has its own limit (``linear.plans``).
_PARALLEL_COST = 1 << 16


class Kernel:
    """A kernel. Each of its variants is compiled on first use.

    Parameters
    ----------
    key : a key of the family's dispatch table
    package : str
        The importable name of the family. Its module ``kernels`` has a function for each variant. It is imported on first use
        of a variant, because it imports Numba.
    """

    def __init__(self, key: Any, package: str) -> None:
        self.key, self._package = key, package

    @created_once
    def serial(self) -> Any:
        """The variant for a call on arrays, which runs on the caller's thread. It returns False if memory runs out."""
        package, _, family = self._package.rpartition(".")
        if package != __package__.rpartition(".")[0]:  # the digest of this package does not cover it
            return self._kernels.serial_kernel(self.key)
        name = f"serial_{family}_{getattr(self.key, 'name', self.key)}"
        return get_or_compile(name, lambda: self._kernels.serial_kernel(self.key))

    @created_once
    def parallel(self) -> Any:
        """The variant for a call on large arrays, which runs on Numba's threads. They have to run (`run_on_threads`)."""
        return self._kernels.parallel_kernel(self.key)

    def run(self, cost: int, *operands: Any) -> None:
        """Run the kernel on arrays: on Numba's threads if the cost, in elements of average work, is worth it, else on this
        thread. Raise MemoryError if memory runs out."""
        if cost >= _PARALLEL_COST and run_on_threads(lambda slices: self.parallel(*operands, slices)):
            return
        if self.serial(*operands) is False:
            raise MemoryError("not enough memory for a kernel's intermediate results")

    @created_once
    def task(self) -> Any:
        """The variant for a node of a session: a C function that converts a part of a tensor, which ONNX Runtime's threads
        call."""
        return self._kernels.task_function(self.key)

    @property
    def _kernels(self) -> Any:
        return importlib.import_module(f"{self._package}.kernels")


class Table(dict[K, Kernel], Generic[K]):
    """The dispatch table of a family: a kernel for each key.

    Parameters
    ----------
    keys : iterable
    package : str
        The family, as in `Kernel`.
    """

    def __init__(self, keys: Iterable[K], package: str) -> None:
        super().__init__((key, Kernel(key, package)) for key in keys)
        self.package = package

    @property
    def kernels(self) -> Any:
        """The module ``kernels`` of the family, which imports Numba."""
        return importlib.import_module(f"{self.package}.kernels")
