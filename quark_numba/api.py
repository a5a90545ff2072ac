"""`quantize` and `dequantize` on arrays: check the arguments, select a kernel, run it."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import element_types
from .dispatch import TABLE, Key, Operation
from .element_types import FLOAT32, UINT8, ElementType
from .granularity import FAULTS, loop_shape

# Below this many elements one thread is done before a second has woken up.
_PARALLEL_SIZE = 1 << 16

# Slices a thread: some slack for threads that the system puts aside.
_SLICES_PER_THREAD = 4


def quantize(
    x: ArrayLike,
    y_scale: ArrayLike,
    y_zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    output_dtype: DTypeLike | str | int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Quantize: y = saturate(x / y_scale + y_zero_point), as ExtendedQuantizeLinear-1 of com.amd.quark.

    x / y_scale is computed in float32. For integer types it is rounded, half to even, before the zero point is added; NaN
    gives the lowest value. float16 and bfloat16 are rounded to nearest, ties to even; NaN stays NaN. Everything else
    beyond the type's finite range, infinities included, saturates.

    Parameters
    ----------
    x : array_like of float32, any shape, strides and memory order
    y_scale : array_like of float32
        One element: per tensor. One dimension: per axis, as many elements as x has along `axis`.
    y_zero_point : array_like, optional
        Same shape as `y_scale`. Its dtype is the output's. Default: 0.
    axis : int
        The axis of a per-axis `y_scale`, -r..r-1. Without meaning per tensor.
    output_dtype : numpy dtype, name such as "bfloat16", or TensorProto number, optional
        The output's type where there is no zero point, or one without a dtype such as a Python int. Default: uint8. One
        of uint8, int8, uint16, int16, uint32, int32, float16, bfloat16.
    out : ndarray, optional
        Where to write the result: x's shape, the output's dtype.

    Returns
    -------
    ndarray of x's shape: `out`, or a new array in the memory order of x.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it is and what was expected. Nothing has been written then.
    """
    x_array = _array(x, "x", FLOAT32)
    scale = _array(y_scale, "y_scale", FLOAT32)
    quantized = UINT8
    if output_dtype is not None:
        quantized = _element_type(output_dtype, "output_dtype", _types("quantize", "y"))
    zero_point = None
    if y_zero_point is not None:
        zero_point = _array(y_zero_point, "y_zero_point", quantized)
        allowed = _types("quantize", "y") if output_dtype is None else (quantized,)
        quantized = _element_type(zero_point.dtype, "y_zero_point", allowed)
    key = Key(
        "quantize",
        _element_type(x_array.dtype, "x", _types("quantize", "x")),
        _element_type(scale.dtype, "y_scale", _types("quantize", "scale")),
        quantized,
    )
    return _convert(key, x_array, scale, zero_point, axis, out, scale_name="y_scale", zero_point_name="y_zero_point")


def dequantize(
    x: ArrayLike,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike | None = None,
    *,
    axis: int = 1,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Dequantize: y = (x - x_zero_point) * x_scale, as ExtendedDequantizeLinear-1 of com.amd.quark.

    The difference is exact for integers, then rounded to float32; the product is computed in float32.

    Parameters
    ----------
    x : array_like of uint8, int8, uint16, int16, uint32, int32, float16 or bfloat16, any shape, strides and memory order
    x_scale : array_like of float32
        One element: per tensor. One dimension: per axis, as many elements as x has along `axis`.
    x_zero_point : array_like of x's dtype, optional
        Same shape as `x_scale`. Default: 0.
    axis : int
        The axis of a per-axis `x_scale`, -r..r-1. Without meaning per tensor.
    out : ndarray of float32, optional
        Where to write the result: x's shape.

    Returns
    -------
    ndarray of float32 of x's shape: `out`, or a new array in the memory order of x.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it is and what was expected. Nothing has been written then.
    """
    x_array = _array(x, "x", None)
    quantized = _element_type(x_array.dtype, "x", _types("dequantize", "x"))
    scale = _array(x_scale, "x_scale", FLOAT32)
    zero_point = None
    if x_zero_point is not None:
        zero_point = _array(x_zero_point, "x_zero_point", quantized)
        _element_type(zero_point.dtype, "x_zero_point", (quantized,))
    key = Key("dequantize", quantized, _element_type(scale.dtype, "x_scale", _types("dequantize", "scale")), FLOAT32)
    return _convert(key, x_array, scale, zero_point, axis, out, scale_name="x_scale", zero_point_name="x_zero_point")


def _convert(
    key: Key,
    x: NDArray[Any],
    scale: NDArray[Any],
    zero_point: NDArray[Any] | None,
    axis: int,
    out: NDArray[Any] | None,
    *,
    scale_name: str,
    zero_point_name: str,
) -> NDArray[Any]:
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(f"axis is {axis!r}; expected an integer") from None
    if zero_point is None:
        zero_point = np.zeros(scale.shape, key.quantized.dtype)
    fault, length, inner = loop_shape(x.shape, scale.shape, zero_point.shape, axis)
    if fault:
        raise ValueError(
            FAULTS[fault].format(
                x="x",
                x_shape=x.shape,
                scale=scale_name,
                scale_shape=scale.shape,
                zero_point=zero_point_name,
                zero_point_shape=zero_point.shape,
                axis=axis,
            )
        )
    if out is not None:
        _check_out(out, x.shape, key.y)

    # A Fortran-ordered array is the C-ordered one of reversed shape, and so is its result.
    result = np.empty_like(x, key.y.dtype, order="F" if x.flags.fnc else "C") if out is None else np.asarray(out)
    x_rows, y_rows = x, result
    if x.flags.fnc:
        x_rows, y_rows = x.T, result.T
        _, length, inner = loop_shape(x_rows.shape, scale.shape, zero_point.shape, ~axis)
    y = y_rows
    if not y.flags.carray or any(np.may_share_memory(y, array) for array in (x, scale, zero_point)):
        y = np.empty(y.shape, key.y.dtype)
    _run(key, _flat(x_rows, key.x), _flat(scale, key.scale), _flat(zero_point, key.quantized), _flat(y, key.y), length, inner)
    if y is not y_rows:
        y_rows[...] = y
    return result if out is None else out


def _run(key: Key, x: Any, scale: Any, zero_point: Any, y: Any, length: int, inner: int) -> None:
    kernel = TABLE[key]
    if x.size >= _PARALLEL_SIZE:
        from . import jit

        with jit.threads() as threads:
            if threads > 1:
                kernel.parallel(x, scale, zero_point, y, length, inner, threads * _SLICES_PER_THREAD)
                return
    kernel.serial(x, scale, zero_point, y, length, inner, 0, x.size)


def _flat(array: NDArray[Any], row: ElementType) -> NDArray[Any]:
    """The array as the kernels take it: flat, contiguous, aligned, native byte order, storage dtype; copied if it must."""
    return np.require(array, row.dtype, ["C", "A"]).reshape(-1).view(row.storage)


def _array(value: Any, name: str, default: ElementType | None) -> NDArray[Any]:
    """`value` as an array. What has no dtype of its own, a Python number or list, becomes one of `default`."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not an array: {error}") from None
    if default is None or isinstance(value, np.generic) or not isinstance(value, (int, float, list, tuple)):
        return array
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {array.dtype}; expected numbers of {default.name}")
    with np.errstate(all="ignore"):
        cast = array.astype(default.dtype)
    if not np.array_equal(cast, array) if default.is_integer else np.any(np.isinf(cast) & np.isfinite(array)):
        raise ValueError(f"{name} is {value}; expected {default.name}, {default.lowest}..{default.highest}")
    return cast


@functools.cache
def _types(operation: Operation, operand: str) -> tuple[ElementType, ...]:
    return tuple(dict.fromkeys(getattr(key, operand) for key in TABLE if key.operation == operation))


def _element_type(specification: Any, name: str, allowed: tuple[ElementType, ...]) -> ElementType:
    row = element_types.find(specification)
    if row is None or row not in allowed:
        expected = " or ".join(allowed_row.name for allowed_row in allowed)
        given = getattr(specification, "__name__", specification)
        raise TypeError(f"{name} has element type {given}; expected {expected}")
    return row


def _check_out(out: Any, shape: tuple[int, ...], row: ElementType) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; expected a numpy array")
    if out.dtype != row.dtype:
        raise TypeError(f"out has dtype {out.dtype}; expected {row.name}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; expected the shape of x, {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; expected a writeable array")
