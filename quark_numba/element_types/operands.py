"""What operands may be beside arrays of the table's types: numbers in int64, such as bit widths, to or from which no operator
quantizes. Masked arrays they may not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.ma  # numpy and Numba would import it in the first call, for which a fork does not wait

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
