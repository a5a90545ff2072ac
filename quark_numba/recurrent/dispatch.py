"""The dispatch table: a kernel for the element type of x."""

from __future__ import annotations

from ..compiling.kernel import Table
from ..element_types import FLOAT32

TABLE = Table((FLOAT32,), __package__)
