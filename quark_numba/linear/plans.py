"""Plans of calls on arrays: decisions that depend only on dtypes and shapes, kept for later calls that are alike; how many are
kept, and from which size on threads run."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.arguments import convert_in_order
from ..compiling.threads import run_on_threads
from ..element_types import INT32
from .dispatch import TABLE
from .granularity import Loop
from .key import Key

# Below this many elements one thread finishes before a second one wakes up.
_PARALLEL_SIZE = 1 << 17

# The plans of earlier calls, by signature, and the largest number that is kept.
plans: dict[Any, Plan] = {}
_MOST_PLANS = 4096

# Zero points of one element, as kernels take them, by their bytes, for each kind of conversion; and the largest number of a
# kind that is kept. Plans share them, so that their number does not grow with the number of plans.
_zero_points: dict[Any, dict[bytes, NDArray[Any]]] = {}
_MOST_ZERO_POINTS = 256

# Bits of the flags of numpy arrays.
_OWNS_DATA = 0x4
FLAT = 0x101  # C-contiguous and aligned
_WRITTEN = FLAT | _OWNS_DATA | 0x400  # and writeable


class Plan:
    """How arrays of certain dtypes and shapes are converted. It is decided by the first call, and kept for later calls like it.

    Parameters
    ----------
    key : Key
        The key of the kernel.
    loop : Loop
    scale_dtype : numpy dtype
    zero_point_dtype : numpy dtype, optional
        None if the call has no zero point.
    """

    def __init__(self, key: Key, loop: Loop, scale_dtype: Any, zero_point_dtype: Any) -> None:
        self.key, self.kernel, self.loop = key, TABLE[key], np.array(loop, np.int64)
        self.row = loop.inner if loop.vary else 0  # parameters that vary within a loop are repeated up to this length
        self.rounds_scale = scale_dtype.newbyteorder("=") == INT32.dtype and key.precision.bits < 32
        self.masks_high_bits = zero_point_dtype is not None and key.quantized.bits < 8
        self.zeros = np.zeros(1, key.zero_point_dtype)
        self.zero_points = _zero_points.setdefault((key.quantized, zero_point_dtype, key.zero_point_dtype), {})
        # None if an array has the dtype that the kernel takes.
        self.scale_dtype = None if scale_dtype == key.scale_dtype else np.dtype(key.scale_dtype)
        self.zero_point_dtype = None if zero_point_dtype == key.zero_point_dtype else np.dtype(key.zero_point_dtype)
        self.x_storage, self.y_storage = (None if each.storage == each.dtype else each.storage for each in (key.x, key.y))
        self.y_dtype = key.y.dtype

    def run(self, x: Any, scale: Any, zero_point: Any, out: Any) -> NDArray[Any]:
        """Return y for a C-contiguous x: `out`, or a new array."""
        if type(scale) is not np.ndarray:
            number, scale = scale, np.empty(1, np.float32)
            scale[0] = number
        if out is None:
            y = np.empty(x.shape, self.y_dtype)
            self.convert(scale, zero_point, x, y)
            return y
        if (
            type(out) is np.ndarray
            and out.flags.num & _WRITTEN == _WRITTEN
            and out.dtype == self.y_dtype
            and out.shape == x.shape
            and out is not x
            and x.flags.num & _OWNS_DATA  # then different arrays share no memory
            and scale.flags.num & _OWNS_DATA
            and out is not scale
            and (zero_point is None or (zero_point.flags.num & _OWNS_DATA and out is not zero_point))
        ):
            self.convert(scale, zero_point, x, out)
            return out
        others = (scale,) if zero_point is None else (scale, zero_point)
        return convert_in_order(functools.partial(self.convert, scale, zero_point), x, self.key.y, out, others)

    def convert(self, scale: NDArray[Any], zero_point: NDArray[Any] | None, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Write y for a C-contiguous x to a C-contiguous array."""
        if zero_point is None:
            zero_point = self.zeros
        elif zero_point.size == 1:
            known = self.zero_points.get(zero_point.tobytes())
            zero_point = self._kept(zero_point) if known is None else known
        else:
            zero_point = self._converted(zero_point) if zero_point.view(f"u{zero_point.itemsize}").any() else self.zeros
        if self.rounds_scale:
            scale = _to_odd_float32(scale.astype(np.float64))  # because the kernel rounds again
        if self.scale_dtype or scale.size > 1:
            scale = _flat(scale, self.scale_dtype)
        elif scale.ndim != 1:
            scale = scale.ravel()  # a view, in less time than `reshape` takes
        if self.row and 0 < scale.size < self.row:
            scale = np.resize(scale, self.row)
            if zero_point.size > 1:
                zero_point = np.resize(zero_point, self.row)
        if x.ndim != 1:
            x, y = x.ravel(), y.ravel()
        if self.x_storage:
            x = x.view(self.x_storage)
        if self.y_storage:
            y = y.view(self.y_storage)
        operands = x, scale, zero_point, y, self.loop
        if x.size < _PARALLEL_SIZE or not run_on_threads(lambda slices: self.kernel.parallel(*operands, slices)):
            self.kernel.serial(x, scale, zero_point, y, self.loop, 0)

    def _kept(self, zero_point: NDArray[Any]) -> NDArray[Any]:
        """Return a zero point of one element as the kernel takes it, and keep it."""
        if len(self.zero_points) >= _MOST_ZERO_POINTS:
            self.zero_points.clear()
        return self.zero_points.setdefault(zero_point.tobytes(), self._converted(zero_point))

    def _converted(self, zero_point: NDArray[Any]) -> NDArray[Any]:
        if self.masks_high_bits:
            # Ignore the bits above a code: ml_dtypes takes some of them for the sign of float4 and float6.
            zero_point = self.key.quantized.byte_values[zero_point.view(np.uint8)]
        converted = _flat(zero_point, self.zero_point_dtype)
        return converted.copy() if np.may_share_memory(converted, zero_point) else converted


def keep(signature: Any, plan: Plan) -> None:
    """Keep the plan of a call."""
    if len(plans) >= _MOST_PLANS:
        plans.clear()
    plans[signature] = plan


def _flat(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return an array as a contiguous one of one dimension, converted to `dtype` unless that is None."""
    if dtype is not None:
        array = array.astype(dtype, "C")
    elif array.size > 1 and not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array if array.ndim == 1 else array.reshape(-1)


@np.errstate(all="ignore")
def _to_odd_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the values rounded to odd: an inexact value becomes the one of its two float32 neighbours whose last bit is set.
    Rounding that to fewer bits has the same result as rounding the value itself."""
    nearest = values.astype(np.float32)
    even = (nearest != values) & (nearest.view(np.uint32) % 2 == 0)
    towards = np.where(values > nearest, np.inf, -np.inf).astype(np.float32)
    return np.where(even, np.nextafter(nearest, towards), nearest)
