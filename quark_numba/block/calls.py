"""Quark's block formats on arrays (`bfp_quantize_dequantize`, `mx_quantize_dequantize`): the defaults of arguments and
attributes, the check of the arguments, and the run of the kernel."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays.arguments import array, check_no_output, convert_in_order, element_type_of, flat, index
from ..arrays.chunks import Result, check_sizes, is_lazy, map_chunks
from ..arrays.labels import keeps_labels
from ..element_types import FLOAT32, ElementType
from .dispatch import TABLE
from .formats import bfp_format, element_dtype_name, mx_format, rounding_mode_number
from .granularity import FAULTS, BlockLoop, Format, block_shape
from .key import X_TYPES, Key

# The scale of the tensor, for formats without one.
ONE = np.float32(1)


@keeps_labels
def bfp_quantize_dequantize(
    x: ArrayLike,
    *,
    bfp_method: str = "to_bfp",
    axis: int = 1,
    bit_width: int = 16,
    block_size: int = 8,
    rounding_mode: str | int = "half_away",
    sub_block_size: int = 2,
    sub_block_shift_bits: int = 1,
    convert_to_bfloat_before_bfp: int = 0,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return x rounded to a block floating point format, as BFPQuantizeDequantize-1 of com.amd.quark rounds it.

    The elements of a block share the exponent of the largest one. Each element keeps a sign and ``bit_width - 9`` bits. A
    result of zero has the sign of x.

    Parameters
    ----------
    x : array_like of float32, float16 or bfloat16, any shape, strides and memory order
        An array of one element is returned as it is.
    bfp_method : "to_bfp", or "to_bfp_prime", also spelled "to_bfp_prime_shared"
        "to_bfp": Inf and NaN stay as they are and do not affect their block. "to_bfp_prime" (MicroeXponents, arXiv
        2302.08007): sub-blocks of smaller elements have smaller exponents; every element of a block that holds Inf or NaN
        becomes NaN, and subnormal elements become zero.
    axis : int
        The axis along which x is cut into blocks, -r..r-1. A one-dimensional x is cut along its only axis, whatever `axis` is.
    bit_width : int
        10..24: the sign, 8 bits of the shared exponent, and the bits of the magnitude.
    block_size : int
        The number of elements that share an exponent. The last block along the axis may be shorter.
    rounding_mode : "half_away", "half_upward" or "half_even"
        How ties are rounded: away from zero, upward, or to even. Or the number in Quark's models: 0, 1 or 2.
    sub_block_size, sub_block_shift_bits : int
        Only for "to_bfp_prime". The number of elements of a sub-block, a divisor of `block_size`; and the number of bits,
        0..8, that store by how much the exponent of a sub-block is smaller than that of its block.
    convert_to_bfloat_before_bfp : int
        1: round x to bfloat16 first.
    out : ndarray, optional
        Where to write the result: x's shape and dtype.

    Returns
    -------
    ndarray of x's shape and dtype: `out`, or a new array in the memory order of x. float16 and bfloat16 are computed in
    float32. If x is a dask array, a lazy dask array; if x is a DataArray, a DataArray.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected. Nothing has been written then.
    """
    attributes = attribute_values(locals())
    x_array, element_type = block_input(x)
    key, block_format = bfp_format(element_type, **attributes)
    return convert(key, block_format, x_array, axis, out)


@keeps_labels
def mx_quantize_dequantize(
    x: ArrayLike,
    *,
    element_dtype: str = "int8",
    axis: int = 1,
    block_size: int = 32,
    rounding_mode: str | int = "half_away",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return x rounded to a Microscaling format, as MXQuantizeDequantize-1 of com.amd.quark rounds it (OCP Microscaling
    Formats 1.0).

    Each block of elements has a scale: the power of two that brings its largest element into the highest binade of the element
    type. An element is divided by the scale, rounded to the element type, saturated, and multiplied by the scale. Inf and NaN
    stay as they are and do not affect their block. A result of zero has the sign of x, except for int8, which has no -0.

    Parameters
    ----------
    x : array_like of float32, float16 or bfloat16, any shape, strides and memory order
        An array of one element is returned as it is.
    element_dtype : "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1" or "int8"
        Or another name of one of these types, such as "float8e4m3fn", or its dtype of ml_dtypes. int8 has 6 fraction bits.
    block_size : int
        The number of elements that share a scale. The last block along the axis may be shorter.
    rounding_mode : "half_away", "half_upward" or "half_even"
        How ties are rounded to int8, as in `bfp_quantize_dequantize`. Float types round ties to even.
    axis, out
        As in `bfp_quantize_dequantize`.

    Returns
    -------
    ndarray of x's shape and dtype, as from `bfp_quantize_dequantize`

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected. Nothing has been written then.
    """
    attributes = attribute_values(locals())
    x_array, element_type = block_input(x)
    key, block_format = mx_format(element_type, **attributes)
    return convert(key, block_format, x_array, axis, out)


_INTEGERS = ("bit_width", "block_size", "sub_block_size", "sub_block_shift_bits", "convert_to_bfloat_before_bfp")
_CHOICES = {"bfp_method": lambda text: text, "element_dtype": element_dtype_name, "rounding_mode": rounding_mode_number}


def attribute_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those attributes of a node, apart from the axis, whose names are among the arguments of a call."""
    integers = {name: index(arguments[name], name) for name in _INTEGERS if name in arguments}
    return integers | {name: convert(arguments[name]) for name, convert in _CHOICES.items() if name in arguments}


def block_input(x: Any) -> tuple[NDArray[Any], ElementType]:
    """Return `x` as an array of numpy or dask, and its element type, which is one that block formats accept."""
    x_array = array(x, "x", FLOAT32)
    return x_array, element_type_of(x_array.dtype, "x", X_TYPES)


def axis_of(shape: tuple[int, ...], axis: Any) -> int:
    """Return the axis along which blocks are cut, as a number from 0 on. Raise TypeError or ValueError if `axis` is invalid."""
    axis = index(axis, "axis")
    fault, _, _ = block_shape(shape, axis, 1)
    if fault:
        raise ValueError(FAULTS[fault].format(axis=axis, x_shape=shape))
    return axis % len(shape) if len(shape) > 1 else 0


def loop_of(shape: tuple[int, ...], axis: int, block_format: Format) -> BlockLoop:
    _, length, inner = block_shape(shape, axis, block_format.block)
    return BlockLoop(length, inner)


def convert(
    key: Key,
    block_format: Format,
    x: NDArray[Any],
    axis: Any,
    out: NDArray[Any] | None,
    tensor_scale: np.float32 = ONE,
) -> NDArray[Any]:
    """Return x rounded to a format, in `out` if there is one."""
    axis = axis_of(x.shape, axis)
    if is_lazy(x):
        check_no_output(out)
        return _convert_chunks(key, block_format, x, axis, tensor_scale)
    loop = loop_of(x.T.shape, ~axis, block_format) if x.flags.fnc else loop_of(x.shape, axis, block_format)

    def round_blocks(x: NDArray[Any], y: NDArray[Any]) -> None:
        TABLE[key].run(x.size, flat(x, key.x), flat(y, key.x), np.empty(0, np.uint8), tensor_scale, block_format, loop)

    return convert_in_order(round_blocks, x, key.x, out)


def _convert_chunks(key: Key, block_format: Format, x: Any, axis: int, tensor_scale: np.float32) -> Any:
    function = functools.partial(rounded_block, key, block_format, axis=axis, tensor_scale=tensor_scale)
    if x.npartitions == 1 or x.size == 1:
        function = functools.partial(convert, key, block_format, axis=axis, out=None, tensor_scale=tensor_scale)
    elif not any(length > 1 for length in x.shape):  # a shape with at most one element
        check_sizes(x, "x", range(x.ndim))
    (y,) = map_chunks(function, x, [Result(key.x.dtype)], axis=axis, block=block_format.block)
    return y


def rounded_block(key: Key, block_format: Format, x: NDArray[Any], axis: int, tensor_scale: np.float32 = ONE) -> NDArray[Any]:
    """Return x, a part of an array, rounded. A single element is rounded as a block of its own, although the public calls
    return an array of one element as it is."""
    if x.size != 1:
        return convert(key, block_format, x, axis, None, tensor_scale=tensor_scale)
    pair = np.append(x, x.dtype.type(0))
    return convert(key, block_format, pair, 0, None, tensor_scale=tensor_scale)[:1].reshape(x.shape)


def check_blocks(name: str, values: NDArray[Any], of: str, array: NDArray[Any], axis: int, block: int) -> None:
    """Raise ValueError unless `values` has the shape of an array, but with one element a block along the axis."""
    for checked, what in ((array, of), (values, name)):
        check_sizes(checked, what, range(checked.ndim))
    expected = shape_of_blocks(array.shape, axis, block)
    if values.shape != expected:
        raise ValueError(f"{name} has shape {values.shape}; expected {expected} for {of} of shape {array.shape}")


def shape_of_blocks(shape: tuple[int, ...], axis: int, block: int) -> tuple[int, ...]:
    return tuple(-(-length // block) if i == axis else length for i, length in enumerate(shape))
