"""NVFP4 and MXFP8 on arrays: check the arguments, select a kernel, run it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..arrays.arguments import array, element_type_of, flat, float32_arrays, index
from ..arrays.chunks import Result, check_sizes, is_lazy, map_chunks
from ..arrays.labels import keeps_labels
from ..block.calls import block_input
from ..block.formats import positive
from ..block.key import X_TYPES
from ..block.storage import check_shape
from ..compiling.threads import run_on_threads
from ..element_types import FLOAT32
from ..linear.calls import dequantize
from .dispatch import TABLE
from .granularity import FAULTS, SCALE, block_shape
from .key import MXFP8, NVFP4, Format, Key

# Below this many elements one thread finishes before a second one wakes up.
_PARALLEL_SIZE = 1 << 16


@keeps_labels
def nvfp4_quantize(
    x: ArrayLike, tensor_scale: ArrayLike = 1.0, *, axis: int = -1, block_size: int = 16, rechunk: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the codes and the scales of x in NVFP4, as TRT_FP4DynamicQuantize of TensorRT computes them.

    An element is code * scale of its block * `tensor_scale`. The scale of a block is its largest magnitude divided by
    6 * tensor_scale, or 1 if that is 0, clamped to 2**-9..448 and rounded to float8e4m3fn. A code is the element divided by the
    product of both scales, rounded to float4e2m1. Each operation is rounded to float32, and ties go to even. Codes saturate.
    NaN makes the scale of its block NaN, and all codes 6.

    Parameters
    ----------
    x : array_like of float32, float16 or bfloat16, any shape, strides and memory order
    tensor_scale : array_like of one float32
        NVIDIA's calibration takes the largest magnitude of a tensor, divided by 6 * 448.
    axis : int
        The axis along which x is cut into blocks, -r..r-1.
    block_size : int
        The number of elements that share a scale. It divides the length of x along `axis`.
    rechunk : bool
        True: where a chunk of a dask array ends within a block, move its end to the end of the block. False: raise
        ValueError.

    Returns
    -------
    codes : ndarray of ml_dtypes.float4_e2m1fn, of x's shape, one element a byte
    scales : ndarray of ml_dtypes.float8_e4m3fn
        Of x's shape, except that its length along `axis` is the number of blocks.

    If x is a dask array, both are lazy dask arrays; if x is a DataArray, both are DataArrays.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    codes, scales = _convert(NVFP4, x, tensor_scale, axis, block_size, rechunk=rechunk)
    return codes, scales


@keeps_labels
def nvfp4_dequantize(
    codes: ArrayLike,
    scales: ArrayLike,
    tensor_scale: ArrayLike = 1.0,
    *,
    axis: int = -1,
    block_size: int = 16,
    output_dtype: DTypeLike | str | int = "float32",
    rechunk: bool = False,
) -> NDArray[Any]:
    """Return the values of codes and scales from `nvfp4_quantize`, in float32, float16 or bfloat16: code times the product of
    both scales. The products are rounded to float32, and the result to its type.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    code_array, scale_array = array(codes, "codes", None), array(scales, "scales", None)
    element_type_of(code_array.dtype, "codes", (NVFP4.codes,))
    element_type_of(scale_array.dtype, "scales", (NVFP4.scales,))
    y = element_type_of(output_dtype, "output_dtype", X_TYPES)
    block_size = positive("block_size", index(block_size, "block_size"))
    axis = _axis(code_array, "codes", axis, block_size)
    check_shape("scales", scale_array, "codes", code_array, axis, block_size)
    factors = dequantize(scale_array, _one(tensor_scale))
    return dequantize(code_array, factors, axis=axis, block_size=block_size, output_dtype=y.name, rechunk=rechunk)


@keeps_labels
def mxfp8_quantize(
    x: ArrayLike, *, axis: int = -1, block_size: int = 32, rechunk: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the codes and the scales of x in MXFP8, as TRT_MXFP8DynamicQuantize of TensorRT computes them. `mx_dequantize`
    returns their values; its default `axis` is 1, so that it has to be given the axis.

    `mx_quantize` follows OCP's specification: its scale brings the largest element into the highest binade of the element type,
    where it may be above the largest value. Here the scale is the least power of two, from 2**-127 to 2**127, that brings the
    largest element to at most 448. It is 2**-127 for a block of zeros. NaN makes the scale of its block NaN, and all codes NaN.
    Inf saturates.

    Parameters
    ----------
    x, axis, block_size, rechunk
        As for `nvfp4_quantize`.

    Returns
    -------
    codes : ndarray of ml_dtypes.float8_e4m3fn, of x's shape
    scales : ndarray of ml_dtypes.float8_e8m0fnu
        Of x's shape, except that its length along `axis` is the number of blocks.

    If x is a dask array, both are lazy dask arrays; if x is a DataArray, both are DataArrays.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    codes, scales = _convert(MXFP8, x, 1.0, axis, block_size, rechunk=rechunk)
    return codes, scales


def quantize(form: Format, x: ArrayLike, scale: ArrayLike = 1.0, *, axis: int, block_size: int) -> tuple[NDArray[Any], ...]:
    """Return the codes and scales of x in a format."""
    return _convert(form, x, scale, axis, block_size)


def round_trip(form: Format, x: ArrayLike, scale: ArrayLike = 1.0, *, axis: int, block_size: int) -> NDArray[Any]:
    """Return x, of float32, rounded to the values of a format."""
    (y,) = _convert(form, x, scale, axis, block_size, is_round_trip=True)
    return y


def _convert(
    form: Format, x: Any, tensor_scale: Any, axis: Any, block_size: Any, *, is_round_trip: bool = False, rechunk: bool = False
) -> tuple[NDArray[Any], ...]:
    x_array, element_type = block_input(x)
    if is_round_trip:
        element_type_of(x_array.dtype, "x", (FLOAT32,))
    block_size = positive("block_size", index(block_size, "block_size"))
    key, scale = Key(form, element_type, is_round_trip), _one(tensor_scale)
    axis = _axis(x_array, "x", axis, block_size)
    of_chunk = functools.partial(_convert_chunk, key, scale, axis, block_size)
    if not is_lazy(x_array):
        return of_chunk(x_array)
    results = [Result(key.y.dtype)] + [Result(form.scales.dtype, block_size)] * (not is_round_trip)
    return map_chunks(of_chunk, x_array, results, axis=axis, block=block_size, rechunk=rechunk)


def _convert_chunk(key: Key, scale: np.float32, axis: int, block_size: int, x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    _, _, inner = block_shape(x.shape, axis, block_size)
    shape = tuple(length // block_size if i == axis else length for i, length in enumerate(x.shape))
    y, scales = np.empty(x.shape, key.y.dtype), np.empty(() if key.is_round_trip else shape, key.format.scales.dtype)
    kernel = TABLE[key]
    arguments = (flat(x, key.x), flat(y, key.y), flat(scales, key.format.scales).view(np.uint8), scale, block_size, inner)
    is_large = x.size >= _PARALLEL_SIZE
    if x.size and not (is_large and run_on_threads(lambda slices: kernel.parallel(*arguments, slices))):
        kernel.serial(*arguments)
    return (y,) if key.is_round_trip else (y, scales)


def _axis(x: Any, name: str, axis: Any, block_size: int) -> int:
    """Return the axis as a number from 0 on. Raises TypeError or ValueError if x cannot be cut into blocks along it."""
    given, axis = axis, index(axis, "axis")
    check_sizes(x, name, [axis] if -x.ndim <= axis < x.ndim else [])
    fault, axis, _ = block_shape(x.shape, axis, block_size)
    if fault:
        message = FAULTS[fault].replace("x has", f"{name} has").replace("for x", f"for {name}")
        raise ValueError(message.format(axis=given, x_shape=x.shape, block_size=block_size))
    return axis


def _one(tensor_scale: Any) -> np.float32:
    (scale,) = float32_arrays(tensor_scale=tensor_scale)
    if scale.size != 1:
        raise ValueError(FAULTS[SCALE].replace("scale", "tensor_scale", 1).format(scale_shape=scale.shape))
    return np.float32(scale.reshape(()))
