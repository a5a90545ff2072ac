"""The kernels of this family for GPUs."""

from __future__ import annotations

import functools
from typing import Any

from ..compiling import jit
from ..compiling.device import DeviceKernel
from ..compiling.intrinsics import array_at
from ..element_types import FLOAT32
from ..linear.device import of_elements
from .arithmetic import converter
from .kernels import numbers_function
from .key import Key, count_numbers, dtype_of


@functools.cache
def kernel(key: Key) -> DeviceKernel:
    """Return the kernel of a key of the dispatch table. In its record, `scale` is the address of the numbers of all rows, in
    the order of ``kernels``, `scales` is the number of rows, and the loop is Loop(rows, 1, inner, rows, False)."""
    numbers_of, count, dtype = numbers_function(key), count_numbers(key), dtype_of(key)

    def numbers_at(work: Any, row: Any) -> Any:
        return numbers_of(array_at(work.scale, work.scales * count, dtype), work.scales, row)

    return of_elements(__name__, key.name, FLOAT32, FLOAT32, converter(key), jit.inline(numbers_at))
