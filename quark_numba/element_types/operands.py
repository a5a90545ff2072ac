"""What operands may be beside arrays of the table's types: numbers in int64 or float64, such as bit widths and scales. No
operator quantizes to or from these types. Masked arrays they may not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.ma  # numpy and Numba would import it in the first call, for which a fork does not wait

from . import ElementType, find

INT64 = ElementType("int64", 7, np.dtype(np.int64))
FLOAT64 = ElementType("float64", 11, np.dtype(np.float64))


def find_any(specification: Any) -> ElementType | None:
    """Return the element type that `element_types.find` returns, or INT64 or FLOAT64."""
    for row in (INT64, FLOAT64):
        if specification is row.dtype.type or (
            isinstance(specification, np.dtype) and specification.newbyteorder("=") == row.dtype
        ):
            return row
        if isinstance(specification, (int, str)) and specification in (row.number, row.name):
            return row
    return find(specification)


def check_has_no_mask(value: Any, name: str) -> None:
    """Raise TypeError for a masked array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, and its mask would be lost; expected an array: write {name}.filled(...)")
