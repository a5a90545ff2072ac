"""The values of float8e8m0, whose codes are exponents of two: 0 is 2**-127, and 255 is NaN. The decoder of ``codecs`` gives 0
and Inf for these two, as for the exponents of float32."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from ..compiling import jit
from ..compiling.intrinsics import array_at

_u32 = np.uint32


@jit.inline
def value_of(code: Any) -> Any:
    """Return the float32 that a code stands for."""
    bits = _u32(_u32(code) << _u32(23))
    bits = _u32(0x00400000) if bits == _u32(0) else bits
    return _u32(0x7FC00000 if bits == _u32(0x7F800000) else bits).view(np.float32)


@functools.cache
def widen_function(dtype: Any) -> Any:
    """Return the C function void (source, target, int64_t count) that converts codes to numbers of `dtype`."""

    def widen(source_address: int, target_address: int, count: int) -> None:
        source, target = array_at(source_address, count, np.uint8), array_at(target_address, count, dtype)
        for i in range(count):
            target[i] = value_of(source[i])

    signature = types.void(types.int64, types.int64, types.int64)
    return jit.c_function(widen, f"widen_exponents_{np.dtype(dtype).name}", signature)
