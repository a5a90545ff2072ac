"""Microscaling formats and NVFP4 as they are stored (`mx_quantize`, `nvfp4_quantize` and back): a code for each element, and a
scale for each block, with the defaults."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..arrays.arguments import array, element_type_of, flat, float32_arrays, index
from ..arrays.chunks import Cut, Result, map_chunks
from ..arrays.labels import keeps_labels
from ..element_types import FLOAT8E8M0, INT8, ElementType
from ..linear.calls import dequantize
from .calls import ONE, attribute_values, axis_of, block_input, check_blocks, loop_of, shape_of_blocks
from .dispatch import TABLE
from .formats import INT8_FRACTION_BITS, MX_ELEMENT_TYPES, NVIDIA_NVFP4, mx_codes_format, positive
from .granularity import FAULTS, SCALE, Format
from .key import FLOAT4E2M1, FLOAT8E4M3FN, X_TYPES, Key


@keeps_labels
def mx_quantize(
    x: ArrayLike,
    *,
    element_dtype: str = "int8",
    axis: int = 1,
    block_size: int = 32,
    rounding_mode: str | int = "half_away",
    scale_rule: str = "floor",
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the codes and scales of x in a Microscaling format (OCP Microscaling Formats 1.0).

    With `scale_rule` "floor", `mx_dequantize` turns them into the result of `mx_quantize_dequantize`, bit for bit, except where
    the format cannot hold that result. A scale below 2**-127 becomes 2**-127. Inf and NaN become the Inf and NaN of the element
    type; Inf becomes NaN if the type has no Inf. If the type has neither, the scale becomes NaN, and so do all elements of the
    block.

    Parameters
    ----------
    x, element_dtype, axis, block_size, rounding_mode
        As for `mx_quantize_dequantize`, except that a single element is quantized as a block of its own.
    scale_rule : "floor", "ceil", "even" or "rceil"
        How the scale follows from the largest magnitude m of a block, by the names of torchao's ScaleCalculationMode and, but
        for "rceil", of Quark's scale_calculation_mode. 2**emax is the largest power of two of the element type, 1 for "int8".

        - "floor", as OCP specifies it: 2**(floor(log2(m)) - emax). An element may be above the largest value.
        - "ceil": 2**(ceil(log2(m)) - emax).
        - "even": as "floor", after m was rounded to the mantissa bits of the element type, halves upward; for "int8" to 8
          bits, as in Quark.
        - "rceil": the least power of two with m / scale at most the largest value. With "fp8_e4m3" this is the MXFP8 that
          TRT_MXFP8DynamicQuantize of TensorRT computes.

        Scales are from 2**-127, which a block of zeros has, to 2**127. With all but "floor", NaN makes the scale of its block
        NaN, and Inf saturates.

    Returns
    -------
    codes : ndarray of x's shape
        In float8_e5m2, float8_e4m3fn, float6_e3m2fn, float6_e2m3fn or float4_e2m1fn of ml_dtypes, one element a byte; or in
        int8, in units of 2**-6. If the scale is NaN, its codes may have any value.
    scales : ndarray of ml_dtypes.float8_e8m0fnu
        Of the shape of x, except that its length along `axis` is the number of blocks.

    If x is a dask array, both are lazy dask arrays; if x is a DataArray, both are DataArrays.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    attributes = attribute_values(locals())
    x_array, element_type = block_input(x)
    key, block_format = mx_codes_format(element_type, scale_rule=scale_rule, **attributes)
    return codes_and_scales(key, block_format, x_array, axis)


@keeps_labels
def mx_dequantize(
    codes: NDArray[Any],
    scales: NDArray[Any],
    *,
    axis: int = 1,
    block_size: int = 32,
    output_dtype: DTypeLike | str | int = "float32",
) -> NDArray[Any]:
    """Return the values of codes and scales from `mx_quantize`, in float32, float16 or bfloat16: code times scale, rounded
    once. Raise TypeError or ValueError if an argument is invalid."""
    return _values(codes, scales, None, tuple(MX_ELEMENT_TYPES.values()), axis, block_size, output_dtype)


@keeps_labels
def nvfp4_quantize(
    x: ArrayLike, tensor_scale: ArrayLike = 1.0, *, axis: int = 1, block_size: int = 16
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the codes and the scales of x in NVFP4, as TRT_FP4DynamicQuantize of TensorRT computes them.

    An element is code * scale of its block * `tensor_scale`. The scale of a block is its largest magnitude divided by 6 *
    tensor_scale, or 1 if that is 0, clamped to 2**-9..448 and rounded to float8e4m3fn. A code is the element divided by the
    product of both scales, rounded to float4e2m1. Each operation is rounded to float32, and ties go to even. Codes saturate.
    NaN makes the scale of its block NaN, and all codes 6.

    Parameters
    ----------
    x, axis, block_size
        These parameters, the shapes of the results and the errors are those of `mx_quantize`. TensorRT cuts blocks along the
        last axis.
    tensor_scale : array_like of one float32
        The calibration of NVIDIA takes the largest magnitude of a tensor, divided by 6 * 448.

    Returns
    -------
    codes : ndarray of ml_dtypes.float4_e2m1fn, one element a byte
    scales : ndarray of ml_dtypes.float8_e4m3fn
    """
    x_array, element_type = block_input(x)
    block_size = positive("block_size", index(block_size, "block_size"))
    key, block_format = NVIDIA_NVFP4.format(element_type, block_size, has_codes=True)
    return codes_and_scales(key, block_format, x_array, axis, one(tensor_scale))


@keeps_labels
def nvfp4_dequantize(
    codes: ArrayLike,
    scales: ArrayLike,
    tensor_scale: ArrayLike = 1.0,
    *,
    axis: int = 1,
    block_size: int = 16,
    output_dtype: DTypeLike | str | int = "float32",
) -> NDArray[Any]:
    """Return the values of codes and scales from `nvfp4_quantize`, in float32, float16 or bfloat16: code times the product of
    both scales. The products are rounded to float32, and the result to its type. Raise TypeError or ValueError if an argument
    is invalid."""
    return _values(codes, scales, one(tensor_scale), (FLOAT4E2M1,), axis, block_size, output_dtype)


def codes_and_scales(
    key: Key, block_format: Format, x: NDArray[Any], axis: Any, tensor_scale: np.float32 = ONE
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the codes and scales of an array of numpy or dask, for a key with codes."""
    axis = axis_of(x.shape, axis)
    function = functools.partial(_quantize_chunk, key, block_format, tensor_scale, axis)
    results = [Result(key.y.dtype), Result(key.scales.dtype, block_format.block)]
    codes, scales = map_chunks(function, x, results, axis=axis, block=block_format.block)
    return codes, scales


def _quantize_chunk(
    key: Key, block_format: Format, tensor_scale: np.float32, axis: int, x: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    codes = np.empty(x.shape, key.y.dtype)
    scales = np.empty(shape_of_blocks(x.shape, axis, block_format.block), key.scales.dtype)
    arrays = flat(x, key.x), flat(codes, key.y), flat(scales, key.scales).view(np.uint8)
    TABLE[key].run(x.size, *arrays, tensor_scale, block_format, loop_of(x.shape, axis, block_format))
    return codes, scales


def _values(
    codes: Any,
    scales: Any,
    tensor_scale: np.float32 | None,
    code_types: tuple[ElementType, ...],
    axis: Any,
    block_size: Any,
    output_dtype: Any,
) -> NDArray[Any]:
    """Return the values of codes and scales, and of the scale of the tensor if the format has one."""
    codes, scales = array(codes, "codes", None), array(scales, "scales", None)
    element = element_type_of(codes.dtype, "codes", code_types)
    element_type_of(scales.dtype, "scales", (FLOAT8E8M0 if tensor_scale is None else FLOAT8E4M3FN,))
    y = element_type_of(output_dtype, "output_dtype", X_TYPES)
    axis, block_size = axis_of(codes.shape, axis), positive("block_size", index(block_size, "block_size"))
    check_blocks("scales", scales, "codes", codes, axis, block_size)

    options = {"axis": axis, "block_size": block_size if codes.ndim else 0, "output_dtype": y.name}
    function = functools.partial(_dequantize_chunk, element, tensor_scale, options)
    cuts = [Cut(scales, tuple(range(codes.ndim)), block_size)]
    (values,) = map_chunks(function, codes, [Result(y.dtype)], cuts, axis=axis, block=block_size, name="codes")
    return values


def _dequantize_chunk(
    element: ElementType, tensor_scale: np.float32 | None, options: dict[str, Any], codes: NDArray[Any], scales: NDArray[Any]
) -> NDArray[Any]:
    factors = _factors(element, scales) if tensor_scale is None else dequantize(scales, tensor_scale)
    return dequantize(codes, factors, **options)


def mx_codes_and_factors(x: NDArray[Any], **attributes: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return codes as `mx_quantize` does, and what `dequantize` multiplies them by: a factor for each block."""
    codes, scales = mx_quantize(x, **attributes)
    return codes, _factors(MX_ELEMENT_TYPES[attributes["element_dtype"]], scales)


def _factors(element: ElementType, scales: NDArray[Any]) -> NDArray[Any]:
    return scales.astype(np.float32) * np.float32(2.0**-INT8_FRACTION_BITS) if element is INT8 else scales


def one(tensor_scale: Any) -> np.float32:
    """Return the scale of a tensor as a float32. Raise TypeError or ValueError if it is invalid."""
    (scale,) = float32_arrays(tensor_scale=tensor_scale)
    if scale.size != 1:
        raise ValueError(f"tensor_{FAULTS[SCALE].format(scale_shape=scale.shape)}")
    return np.float32(scale.reshape(()))
