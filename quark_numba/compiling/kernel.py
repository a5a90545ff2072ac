"""A kernel in its compiled forms, and the dispatch table that holds kernels."""

from __future__ import annotations

import importlib
from typing import Any

from .lock import created_once
from .threads import run_on_threads

# Below this cost one thread finishes before a second one wakes up.
_PARALLEL_COST = 1 << 16


class Kernel:
    """A kernel. Each of its forms is compiled on first use.

    Parameters
    ----------
    family : str
        Its module ``kernels`` has a function for each form. It is imported on first use of a form, because it imports Numba.
    key : a key of the family
    """

    def __init__(self, family: str, key: Any) -> None:
        self.family, self.key = family, key

    @created_once
    def serial(self) -> Any:
        """The form for a call on arrays, which runs on the caller's thread."""
        return self._kernels.serial_kernel(self.key)

    @created_once
    def parallel(self) -> Any:
        """The form for a call on large arrays, which runs on Numba's threads."""
        return self._kernels.parallel_kernel(self.key)

    def run(self, cost: int, *operands: Any) -> None:
        """Run the kernel on arrays: on Numba's threads if the cost, in elements of average work, is worth it."""
        if cost < _PARALLEL_COST or not run_on_threads(lambda slices: self.parallel(*operands, slices)):
            self.serial(*operands)

    @created_once
    def task(self) -> Any:
        """The form for a node of a session: a C function that converts a part of a tensor. ONNX Runtime's threads call it."""
        return self._kernels.task_function(self.key)

    @property
    def _kernels(self) -> Any:
        return importlib.import_module(f"..{self.family}.kernels", __package__)


# The dispatch table, by family and key.
_table: dict[tuple[str, Any], Kernel] = {}


def kernel_of(family: str, key: Any) -> Kernel:
    """Return the kernel of a family for a key, the same one in each call."""
    return _table.get((family, key)) or _table.setdefault((family, key), Kernel(family, key))
