"""The dispatch table: from a program to the kernel compiled for it."""

from __future__ import annotations

from types import ModuleType

from ..compiling.kernel import Kernel, Table
from .key import Program


def _kernels() -> ModuleType:
    from . import kernels  # which imports Numba

    return kernels


class _Table(Table[Program]):
    """One that grows: there is no end of programs."""

    def __missing__(self, program: Program) -> Kernel:
        return self.setdefault(program, Kernel(program, _kernels))


TABLE = _Table((), _kernels)
