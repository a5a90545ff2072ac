"""The dispatch table: a kernel for each format, element type and kind of result."""

from __future__ import annotations

from collections.abc import Iterator

from ..block.key import X_TYPES
from ..compiling.kernel import Table
from .key import FORMATS, Key


def _keys() -> Iterator[Key]:
    for each in FORMATS:
        for x in X_TYPES:
            yield Key(each, x, is_round_trip=False)
        yield Key(each, X_TYPES[0], is_round_trip=True)


TABLE = Table(_keys(), __package__)
