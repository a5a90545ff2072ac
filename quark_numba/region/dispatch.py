"""The dispatch table: from a program to a kernel."""

from __future__ import annotations

from ..compiling.kernel import Kernel, Table
from .key import Program


class _Table(Table[Program]):
    """A table that grows: a program gets its kernel when it is first looked up, since there is no end of programs."""

    def __missing__(self, program: Program) -> Kernel:
        return self.setdefault(program, Kernel(program, self.package))


TABLE = _Table((), __package__)
