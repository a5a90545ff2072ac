"""The dispatch table: a kernel for each operation."""

from __future__ import annotations

from ..compiling.kernel import Table
from .key import OPERATIONS

TABLE = Table(OPERATIONS, __package__)
