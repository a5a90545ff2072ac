"""The arithmetic of one element of x and one entry of its row: the count of thresholds that x reaches, and the nearest value.
Each written operation is rounded once, in float32.

A loop goes through the entries with ``step``, and ends with ``last``. The `numbers` of a row are three float32, see
`kernels.fill`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiling.jit import inline
from .key import COUNT, NEAREST

_f32 = np.float32


def _step_count(x: Any, y: Any, entry: Any, numbers: Any) -> Any:
    return _f32(y + _f32(1)) if x >= entry else y


def _last_count(y: Any, numbers: Any) -> Any:
    """Return out_scale * count + out_bias (QONNX, MultiThreshold-1)."""
    scale, bias, _ = numbers
    return _f32(_f32(scale * y) + bias)


def _step_nearest(x: Any, y: Any, entry: Any, numbers: Any) -> Any:
    """Return the entry if it is nearer to the scaled x than y is, an entry before it."""
    divisor, unit, _ = numbers
    v, low, high = _f32(_f32(x / divisor) * unit), -unit, _f32(unit - _f32(1))
    v = low if v < low else v
    v = high if v > high else v
    return entry if abs(_f32(v - entry)) < abs(_f32(v - y)) else y


def _last_nearest(y: Any, numbers: Any) -> Any:
    """Return entry / unit * threshold (Model Compression Toolkit, WeightsLUT...)."""
    _, unit, threshold = numbers
    return _f32(_f32(y / unit) * threshold)


# By operation.
STEP = {COUNT: inline(_step_count), NEAREST: inline(_step_nearest)}
LAST = {COUNT: inline(_last_count), NEAREST: inline(_last_nearest)}
