"""The dispatch table: a kernel for each program."""

from __future__ import annotations

from ..compiling.kernel import Kernel, Table
from .key import Program


class _Table(Table[Program]):
    """A table that creates the kernel of a program when the program is first looked up: the number of programs is unlimited."""

    def __missing__(self, program: Program) -> Kernel:
        return self.setdefault(program, Kernel(program, self.package))


TABLE = _Table((), __package__)
