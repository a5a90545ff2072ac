"""The dispatch table: a kernel for each key."""

from __future__ import annotations

from ..compiling.kernel import Table
from .key import KEYS

TABLE = Table(KEYS, __package__)
