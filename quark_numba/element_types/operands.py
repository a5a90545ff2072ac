"""int64, the element type of operands that are numbers, such as bit widths. No operator quantizes to it or from it, so that it
is no row of the table."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import ElementType, find

INT64 = ElementType("int64", 7, np.dtype(np.int64))


def find_any(specification: Any) -> ElementType | None:
    """Return the element type that `element_types.find` returns, or INT64."""
    if specification is np.int64 or (isinstance(specification, np.dtype) and specification.newbyteorder("=") == np.int64):
        return INT64
    is_int64 = isinstance(specification, (int, str)) and specification in (INT64.number, INT64.name)
    return INT64 if is_int64 else find(specification)
