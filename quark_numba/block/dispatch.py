"""The dispatch table: a kernel for the element types and rules of a format."""

from __future__ import annotations

from collections.abc import Iterator

from ..compiling.kernel import Table
from .formats import MX_ELEMENT_TYPES
from .key import X_TYPES, Key


def _keys() -> Iterator[Key]:
    for x in X_TYPES:
        for element in MX_ELEMENT_TYPES.values():
            if not element.is_integer:
                yield Key(x, element, is_microexponent=False, rounds_to_bfloat16=False)
        for is_microexponent in (False, True):
            for rounds_to_bfloat16 in (False, True):
                yield Key(x, None, is_microexponent, rounds_to_bfloat16)


TABLE = Table(_keys(), __package__)
