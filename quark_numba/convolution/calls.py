"""A convolution of codes on arrays, in numpy, and the valid values of its attributes: the limits of scales, and the errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .granularity import FAULTS, FAULTS_OF_TABLE, Window, fault_of, fault_of_table


def check_attributes(attributes: Mapping[str, Any]) -> Window:
    """Return the Window of a node. Raise ValueError if an attribute is invalid."""
    expected = {"kernel_shape": (2, 1), "strides": (2, 1), "dilations": (2, 1), "pads": (4, 0)}
    for name, (count, least) in expected.items():
        values = attributes[name]
        if len(values) != count or min(values) < least or max(values) >= 1 << 31:
            raise ValueError(f"{name} is {[*values]}; expected {count} numbers, {least} or more")
    for of in ("x", "y"):
        scale, zero_point = attributes.get(f"{of}_scale", 1.0), attributes.get(f"{of}_zero_point", 0)
        if not 2.0**-100 <= scale <= 2.0**100 or math.frexp(scale)[0] != 0.5:
            raise ValueError(f"{of}_scale is {scale}; expected a power of two from 2**-100 to 2**100")
        if not 0 <= zero_point <= 255:
            raise ValueError(f"{of}_zero_point is {zero_point}; expected 0..255")
    if attributes["group"] < 1:
        raise ValueError(f"group is {attributes['group']}; expected 1 or more")
    return Window(*(tuple(attributes[name]) for name in expected))


def check_shapes(window: Window, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> None:
    """Raise ValueError unless the shapes of the inputs fit together."""
    fault = fault_of(window, attributes["group"], attributes["lanes"], *shapes)
    if fault:
        texts = {f"{name}_shape": [*shape] for name, shape in zip(("x", "w", "scale", "bias"), shapes, strict=True)}
        kernel = {"kernel_rows": window.kernel[0], "kernel_columns": window.kernel[1]}
        raise ValueError(FAULTS[fault].format(**texts, **kernel, lanes=attributes["lanes"]))


def convolve_codes(
    x: NDArray[Any], w: NDArray[np.int8], scale: NDArray[np.float32], bias: NDArray[np.float32], **attributes: Any
) -> NDArray[np.float32]:
    """Return the result of the operator `IntegerConv` for arrays in the blocked layout. Raise ValueError if an attribute or a
    shape is invalid."""
    window = check_attributes(attributes)
    check_shapes(window, attributes, [array.shape for array in (x, w, scale, bias)])
    lanes, group, (outer, inner) = attributes["lanes"], attributes["group"], w.shape[:2]
    zero_point = attributes["x_zero_point"]
    codes = _codes(x, attributes["x_scale"], zero_point) if x.dtype == np.float32 else x
    codes = _without_blocks(codes.astype(np.int64), lanes)[:, : inner * group] - zero_point
    top, left, bottom, right = window.pads
    codes = np.pad(codes, ((0, 0), (0, 0), (top, bottom), (left, right)))
    parts = codes.reshape(len(x), group, inner, *codes.shape[2:])
    weights = w.reshape(group, outer // group, inner, *w.shape[2:]).astype(np.int64)
    reach = [(length - 1) * dilation + 1 for length, dilation in zip(window.kernel, window.dilations, strict=True)]
    (down, right), (below, beside) = window.strides, window.dilations
    taken = sliding_window_view(parts, reach, (3, 4))[:, :, :, ::down, ::right, ::below, ::beside]
    places = np.ndindex(*window.kernel)
    sums: Any = sum(np.einsum("gok,ngkhw->ngohw", weights[..., i, j], taken[..., i, j]) for i, j in places)
    y = sums.reshape(len(x), outer, *sums.shape[3:]).astype(np.float32) * scale.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)
    return _in_blocks(np.maximum(y, np.float32(0)) if attributes["relu"] else y, lanes)


def convolve_to_codes(
    x: NDArray[Any],
    w: NDArray[np.int8],
    scale: NDArray[np.float32],
    bias: NDArray[np.float32],
    table: NDArray[np.uint8],
    **attributes: Any,
) -> NDArray[np.uint8]:
    """Return the result of the operator `IntegerConvToCodes` for arrays in the blocked layout. Raise ValueError if an attribute
    or a shape is invalid."""
    y = convolve_codes(x, w, scale, bias, **attributes)
    check_table(table.shape)
    return np.asarray(table[_codes(y, attributes["y_scale"], attributes["y_zero_point"])])


def check_table(shape: Sequence[int]) -> None:
    """Raise ValueError unless a table has this shape."""
    if fault := fault_of_table(shape):
        raise ValueError(FAULTS_OF_TABLE[fault].format(table_shape=[*shape]))


def _codes(x: NDArray[np.float32], scale: float, zero_point: int) -> NDArray[np.uint8]:
    """Return saturate(round(x / scale) + zero_point). NaN has the code 0."""
    with np.errstate(all="ignore"):
        steps = np.nan_to_num(np.rint(x / np.float32(scale)) + np.float32(zero_point), nan=0)
    return np.clip(steps, 0, 255).astype(np.uint8)


def _without_blocks(x: NDArray[Any], lanes: int) -> NDArray[Any]:
    n, channels, h, w = x.shape
    return x.reshape(n, channels // lanes, h, w, lanes).transpose(0, 1, 4, 2, 3).reshape(x.shape)


def _in_blocks(x: NDArray[np.float32], lanes: int) -> NDArray[np.float32]:
    """Return an image in the blocked layout, with channels of zeros up to a whole block."""
    x = np.pad(x, ((0, 0), (0, -x.shape[1] % lanes), (0, 0), (0, 0)))
    n, channels, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, channels // lanes, lanes, h, w).transpose(0, 1, 3, 4, 2)).reshape(x.shape)
