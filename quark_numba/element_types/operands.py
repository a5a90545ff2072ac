"""Operands that are not arrays of the table's types: int64 numbers, such as bit widths, which no operator quantizes, are
allowed; masked arrays are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.ma  # numpy and Numba would import this in the first call, and a fork does not wait for that import

from . import ElementType, find

INT64 = ElementType("int64", 7, np.dtype(np.int64))


def find_any(specification: Any) -> ElementType | None:
    """Return the element type that `element_types.find` returns, or INT64."""
    if specification is np.int64 or (isinstance(specification, np.dtype) and specification.newbyteorder("=") == np.int64):
        return INT64
    is_int64 = isinstance(specification, (int, str)) and specification in (INT64.number, INT64.name)
    return INT64 if is_int64 else find(specification)


def check_has_no_mask(value: Any, name: str) -> None:
    """Raise TypeError for a masked array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, and its mask would be lost; expected an array: write {name}.filled(...)")
