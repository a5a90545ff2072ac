"""The dispatch table: from the element type of x to the kernel compiled for it."""

from __future__ import annotations

from types import ModuleType

from ..compiling.kernel import Table
from ..element_types import FLOAT32


def _kernels() -> ModuleType:
    from . import kernels  # which imports Numba

    return kernels


TABLE = Table((FLOAT32,), _kernels)
