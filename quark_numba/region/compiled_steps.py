"""A round trip on an array by the compiled function of a region, as sessions run it. The function is compiled in a third of
the time of the linear family's kernel for arrays, and the regions of a model often need it anyway."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiling.cache import find_record, keep_record, load_function, reference_of
from ..compiling.lock import created_cache
from ..element_types import FLOAT32, find
from .dispatch import TABLE
from .key import ZERO_POINTS, Input, Program, Step
from .step_operators import ROUND_TRIP

# A program: (the address of the addresses of the inputs' elements, the address of y, the number of elements).
_PROGRAM = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)

_FLAT: Any = ("C", "A")  # contiguous and aligned

_Compiled = tuple[Callable[[int, int, int], None], Any]


def round_trip(
    x: NDArray[Any] | None, scale: NDArray[Any] | None, zero_point: NDArray[Any] | None, *, saturate: bool
) -> NDArray[np.float32] | None:
    """Return what `quantize_dequantize` returns for types of 8 and 16 bits, and a scale and a zero point of one element. Return
    None in other cases, and if nothing is compiled."""
    if x is None or scale is None or zero_point is None or not x.dtype == scale.dtype == FLOAT32.dtype:
        return None
    codes = find(zero_point.dtype)
    if codes not in ZERO_POINTS or codes is None or codes.bits not in (8, 16):
        return None
    if scale.shape != zero_point.shape or scale.shape not in ((), (1,)):
        return None
    inputs = Input(FLOAT32, False), Input(FLOAT32, True), Input(codes, True)
    step = Step(ROUND_TRIP, (0, 1, 2), (("axis", 0), ("saturate", int(saturate))))
    compiled = _compile(Program(inputs, (step,)))
    if compiled is None:
        return None
    run, zero_point_dtype = compiled
    operands = [np.require(x, None, _FLAT), np.require(scale, None, _FLAT), zero_point.astype(zero_point_dtype)]
    y, addresses = np.empty(x.shape, np.float32), np.array([each.ctypes.data for each in operands], np.int64)
    run(addresses.ctypes.data, y.ctypes.data, x.size)
    return y


@created_cache
def _compile(program: Program) -> _Compiled | None:
    """Return the function of a program, and the dtype of its zero point. Return None if nothing is compiled."""
    name = f"{program.name}_on_arrays"
    with suppress(LookupError, OSError, ValueError):
        if kept := find_record(name):
            return _PROGRAM(load_function(kept["function"])), np.dtype(kept["zero_point"])
    from ..compiling.jit import JIT_ENABLED  # which imports Numba

    if not JIT_ENABLED:
        return None
    from .arithmetic import input_dtypes

    address, zero_point_dtype = TABLE[program].task.address, input_dtypes(program)[2]
    with suppress(LookupError):
        keep_record(name, {"function": reference_of(address), "zero_point": zero_point_dtype.name})
    return _PROGRAM(address), zero_point_dtype
