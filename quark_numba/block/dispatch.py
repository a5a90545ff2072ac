"""The dispatch table: a kernel for the element types and rules of a format."""

from __future__ import annotations

from collections.abc import Iterator

from ..compiling.kernel import Table
from ..element_types import FLOAT32
from .formats import MX_ELEMENT_TYPES, SCALE_RULES
from .key import FLOAT4E2M1, FLOAT8E4M3FN, FLOOR, MICROEXPONENT, NVFP4, RCEIL, X_TYPES, Key


def _keys() -> Iterator[Key]:
    elements = [None if element.is_integer else element for element in MX_ELEMENT_TYPES.values()]
    for x in X_TYPES:
        for element in elements:
            if element:
                yield Key(x, element, FLOOR)
            for rule in SCALE_RULES:
                yield Key(x, element, rule, has_codes=True)
        for rule in (FLOOR, MICROEXPONENT):
            for rounds_to_bfloat16 in (False, True):
                yield Key(x, None, rule, rounds_to_bfloat16)
        yield Key(x, FLOAT4E2M1, NVFP4, has_codes=True)
    yield Key(FLOAT32, FLOAT8E4M3FN, RCEIL)
    yield Key(FLOAT32, FLOAT4E2M1, NVFP4)


TABLE = Table(_keys(), __package__)
