"""The dispatch table: from the element type of x to a kernel."""

from __future__ import annotations

from ..compiling.kernel import Table
from ..element_types import FLOAT32

TABLE = Table((FLOAT32,), __package__)
