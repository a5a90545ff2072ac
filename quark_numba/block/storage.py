"""Block formats as they are stored: a code for each element, and the scale or exponents of each block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..arrays.arguments import array, element_type_of, index
from ..arrays.chunks import Cut, Result, check_sizes, is_lazy, map_chunks
from ..arrays.labels import keeps_labels
from ..element_types import BFLOAT16, FLOAT8E8M0, FLOAT32, ElementType
from ..linear.calls import dequantize, quantize
from .calls import axis_of, block_input, rounded_block
from .formats import INT8_FRACTION_BITS, MX_ELEMENT_TYPES, bfp_format, mx_format, mx_name, positive
from .granularity import Blocks
from .key import X_TYPES

# The bias of the exponents of float32 and float8e8m0, and the biased exponent of Inf and NaN.
_BIAS, _SPECIAL = 127, 255

# The bits of a float32 without its sign, and those of Inf. NaN has more.
_MAGNITUDE, _INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


class BFPBlocks(NamedTuple):
    """The result of `bfp_quantize`: one array of x's shape, and two whose length along `axis` is the number of blocks or
    sub-blocks."""

    mantissas: NDArray[Any]
    """The mantissas of the elements, uint8, or uint16 for a bit_width above 16: ``bit_width - 9`` bits of magnitude, and the
    sign above them."""
    exponents: NDArray[np.uint8]
    """The exponents of the blocks, biased by 127; 255: all elements are NaN."""
    shifts: NDArray[np.uint8]
    """By how much the exponents of sub-blocks are smaller than those of their blocks. "to_bfp" has one sub-block a block, and
    zeros."""


@keeps_labels
def mx_quantize(
    x: ArrayLike,
    *,
    element_dtype: str = "int8",
    axis: int = 1,
    block_size: int = 32,
    rounding_mode: int = 0,
    rechunk: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the codes and scales of x in a Microscaling format (OCP Microscaling Formats 1.0).

    `mx_dequantize` turns them into the result of `mx_quantize_dequantize`, bit for bit, except where the format cannot hold
    that result. A scale below 2**-127 becomes 2**-127. Inf and NaN become the Inf and NaN of the element type; Inf
    becomes NaN if the type has no Inf. If the type has neither, the scale becomes NaN, and so do all elements of the block.

    Parameters
    ----------
    x, element_dtype, axis, block_size, rounding_mode, rechunk
        As for `mx_quantize_dequantize`, except that a single element is quantized as a block of its own.

    Returns
    -------
    codes : ndarray of x's shape
        In float8_e5m2, float8_e4m3fn, float6_e3m2fn, float6_e2m3fn or float4_e2m1fn of ml_dtypes, one element a byte; or in
        int8, in units of 2**-6.
    scales : ndarray of ml_dtypes.float8_e8m0fnu
        Of x's shape, except that its length along `axis` is the number of blocks.

    If x is a dask array, both are lazy dask arrays; if x is a DataArray, both are DataArrays.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    element_dtype = mx_name(element_dtype)
    attributes = {"element_dtype": element_dtype, "block_size": block_size, "rounding_mode": rounding_mode}
    x_array, axis = _input(x, axis)
    key, blocks = mx_format(FLOAT32, **_integers(attributes))
    element = MX_ELEMENT_TYPES[element_dtype]
    if is_lazy(x_array):
        results = [Result(element.dtype), Result(FLOAT8E8M0.dtype, blocks.block)]
        return _of_chunks(mx_quantize, x_array, axis, blocks, results, attributes, rechunk)
    values = _values(x_array)
    largest = _maxima(values.view(np.uint32) & _MAGNITUDE, axis, blocks.block)  # the order of magnitudes is that of their bits
    is_special = np.asarray(largest >= _INFINITE)
    special, finite = None, values
    if is_special.any():
        special = ~np.isfinite(values)
        finite = np.where(special, np.float32(0), values)
        largest = _maxima(finite.view(np.uint32) & _MAGNITUDE, axis, blocks.block)
    exponents = np.asarray(largest >> np.uint32(23)).astype(np.int64)
    biased = np.maximum(exponents - (0 if element.is_integer else blocks.drop), 0)
    if element.is_integer or not element.has_nan:
        biased = np.where(is_special, _SPECIAL, biased)
    scales = np.asarray(biased).astype(np.uint8).view(FLOAT8E8M0.dtype)
    if element.is_integer:
        rounded = rounded_block(key, blocks, finite, axis).astype(np.float64)
        steps = _spread(exponents - _BIAS - INT8_FRACTION_BITS, axis, blocks.block, values.shape)
        # The lowest code times the largest scale is beyond float32.
        codes = np.maximum(np.ldexp(rounded, -steps), element.lowest)
        return np.asarray(codes).astype(element.dtype), scales
    finite_scales = np.where(biased == _SPECIAL, 0, biased).astype(np.uint8).view(FLOAT8E8M0.dtype)
    minus_zero = np.full(scales.shape, -0.0, element.dtype)  # a sum with it keeps the sign of zero
    codes = quantize(finite, finite_scales, minus_zero, axis=axis, block_size=blocks.block if values.ndim else 0)
    if special is not None and element.has_nan:
        with np.errstate(invalid="ignore"):
            codes[special] = values[special].astype(element.dtype)
    return codes, scales


@keeps_labels
def mx_dequantize(
    codes: NDArray[Any],
    scales: NDArray[Any],
    *,
    axis: int = 1,
    block_size: int = 32,
    output_dtype: DTypeLike | str | int = "float32",
    rechunk: bool = False,
) -> NDArray[Any]:
    """Return the values of codes and scales from `mx_quantize`, in float32, float16 or bfloat16: code times scale, rounded
    once.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    codes, scales = array(codes, "codes", None), array(scales, "scales", None)
    element = element_type_of(codes.dtype, "codes", tuple(MX_ELEMENT_TYPES.values()))
    element_type_of(scales.dtype, "scales", (FLOAT8E8M0,))
    y = element_type_of(output_dtype, "output_dtype", X_TYPES)
    axis, block_size = axis_of(codes.shape, axis), positive("block_size", index(block_size, "block_size"))
    check_shape("scales", scales, "codes", codes, axis, block_size)
    if is_lazy(codes, scales):
        of_chunk = functools.partial(mx_dequantize, axis=axis, block_size=block_size, output_dtype=y.name)
        return _of_codes(of_chunk, codes, "codes", axis, block_size, y.dtype, [(scales, block_size)], rechunk)
    factors = _factors(element, scales)
    return dequantize(codes, factors, axis=axis, block_size=block_size if codes.ndim else 0, output_dtype=y.name)


def mx_codes_and_factors(x: NDArray[Any], **attributes: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return codes as `mx_quantize` does, and what `dequantize` multiplies them by: a factor for each block."""
    codes, scales = mx_quantize(x, **attributes)
    return codes, _factors(MX_ELEMENT_TYPES[attributes["element_dtype"]], scales)


def _factors(element: ElementType, scales: NDArray[Any]) -> NDArray[Any]:
    return scales.astype(np.float32) * np.float32(2.0**-INT8_FRACTION_BITS) if element.is_integer else scales


@keeps_labels
def bfp_quantize(
    x: ArrayLike,
    *,
    bfp_method: str = "to_bfp",
    axis: int = 1,
    bit_width: int = 16,
    block_size: int = 8,
    rounding_mode: int = 0,
    sub_block_size: int = 2,
    sub_block_shift_bits: int = 1,
    convert_to_bfloat_before_bfp: int = 0,
    rechunk: bool = False,
) -> BFPBlocks:
    """Return x in a block floating point format, as mantissas, exponents and shifts.

    `bfp_dequantize` turns them into the result of `bfp_quantize_dequantize`, bit for bit, except that Inf or NaN makes the
    whole block NaN with "to_bfp" too: the format cannot hold Inf and NaN.

    Parameters
    ----------
    As for `bfp_quantize_dequantize`, except that a single element is quantized as a block of its own.

    Returns
    -------
    BFPBlocks. If x is a dask array, its arrays are lazy dask arrays; if x is a DataArray, they are DataArrays.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    attributes = {
        "bfp_method": bfp_method,
        "bit_width": bit_width,
        "block_size": block_size,
        "rounding_mode": rounding_mode,
        "sub_block_size": sub_block_size,
        "sub_block_shift_bits": sub_block_shift_bits,
        "convert_to_bfloat_before_bfp": convert_to_bfloat_before_bfp,
    }
    x_array, axis = _input(x, axis)
    key, blocks = bfp_format(FLOAT32, **_integers(attributes))
    dtype = _mantissa_dtype(blocks)
    if is_lazy(x_array):
        byte = np.dtype(np.uint8)
        results = [Result(dtype), Result(byte, blocks.block), Result(byte, blocks.sub_block)]
        return BFPBlocks(*_of_chunks(bfp_quantize, x_array, axis, blocks, results, attributes, rechunk))
    values = _values(x_array)
    if key.rounds_to_bfloat16:
        with np.errstate(over="ignore"):
            values = values.astype(BFLOAT16.dtype).astype(np.float32)
    exponents = _exponents(values)
    shared, subs = _maxima(exponents, axis, blocks.block), _maxima(exponents, axis, blocks.sub_block)
    sub_blocks = blocks.block // blocks.sub_block
    shifts = np.minimum(_spread(shared, axis, sub_blocks, subs.shape) - subs, blocks.max_shift)
    special = _spread(shared == _SPECIAL, axis, blocks.block, values.shape)
    rounded = rounded_block(key, blocks, np.where(special, np.float32(0), values), axis)
    steps = _step_exponents(shared, shifts, axis, blocks, values.shape)
    magnitudes = np.ldexp(np.abs(rounded).astype(np.float64), -steps)
    mantissas = magnitudes.astype(np.int64) | np.signbit(rounded).astype(np.int64) << (blocks.drop + 1)
    return BFPBlocks(mantissas.astype(dtype), shared.astype(np.uint8), shifts.astype(np.uint8))


@keeps_labels
def bfp_dequantize(
    blocks: BFPBlocks,
    *,
    bfp_method: str = "to_bfp",
    axis: int = 1,
    bit_width: int = 16,
    block_size: int = 8,
    sub_block_size: int = 2,
    output_dtype: DTypeLike | str | int = "float32",
    rechunk: bool = False,
) -> NDArray[Any]:
    """Return the values of blocks that `bfp_quantize` made with these attributes, in float32, float16 or bfloat16.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected.
    """
    y = element_type_of(output_dtype, "output_dtype", X_TYPES)
    attributes: dict[str, Any] = {
        "bfp_method": bfp_method,
        "bit_width": bit_width,
        "block_size": block_size,
        "sub_block_size": sub_block_size,
    }
    attributes |= {"rounding_mode": 0, "sub_block_shift_bits": 0, "convert_to_bfloat_before_bfp": 0}
    _, numbers = bfp_format(FLOAT32, **_integers(attributes))
    if not isinstance(blocks, BFPBlocks):
        raise TypeError(f"blocks is a {type(blocks).__name__}; expected BFPBlocks")
    mantissas, exponents, shifts = (array(each, name, None) for name, each in zip(BFPBlocks._fields, blocks, strict=True))
    wanted = _mantissa_dtype(numbers)
    for name, each, dtype in (
        ("mantissas", mantissas, wanted),
        ("exponents", exponents, np.dtype(np.uint8)),
        ("shifts", shifts, np.dtype(np.uint8)),
    ):
        if each.dtype != dtype:
            raise TypeError(f"{name} has dtype {each.dtype}; expected {dtype}")
    axis = axis_of(mantissas.shape, axis)
    check_shape("exponents", exponents, "mantissas", mantissas, axis, numbers.block)
    check_shape("shifts", shifts, "mantissas", mantissas, axis, numbers.sub_block)
    of_chunk = functools.partial(_bfp_values, axis, numbers, y.dtype)
    if is_lazy(mantissas, exponents, shifts):
        shared = [(exponents, numbers.block), (shifts, numbers.sub_block)]
        return _of_codes(of_chunk, mantissas, "mantissas", axis, numbers.block, y.dtype, shared, rechunk)
    return of_chunk(mantissas, exponents, shifts)


def _bfp_values(
    axis: int,
    numbers: Blocks,
    dtype: np.dtype[Any],
    mantissas: NDArray[Any],
    exponents: NDArray[Any],
    shifts: NDArray[Any],
) -> NDArray[Any]:
    steps = _step_exponents(exponents, shifts, axis, numbers, mantissas.shape)
    magnitudes = (mantissas & (2 ** (numbers.drop + 1) - 1)).astype(np.float64)
    values = np.ldexp(np.where(mantissas >> (numbers.drop + 1) & 1, -magnitudes, magnitudes), steps)
    values = np.where(_spread(exponents == _SPECIAL, axis, numbers.block, mantissas.shape), np.nan, values)
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(dtype)


def _input(x: Any, axis: Any) -> tuple[NDArray[Any], int]:
    x_array, _ = block_input(x)
    return x_array, axis_of(x_array.shape, axis)


def _values(x: NDArray[Any]) -> NDArray[np.float32]:
    return np.ascontiguousarray(x, np.float32).reshape(x.shape)


def _mantissa_dtype(blocks: Blocks) -> np.dtype[Any]:
    return np.dtype(np.uint8 if blocks.drop + 2 <= 8 else np.uint16)


def _of_chunks(
    call: Callable[..., Any],
    x: Any,
    axis: int,
    blocks: Blocks,
    results: list[Result],
    attributes: dict[str, Any],
    rechunk: bool,
) -> tuple[Any, ...]:
    """Return the lazy results of a call that runs on each chunk of a dask array."""
    of_chunk = functools.partial(call, axis=axis, **attributes)
    return map_chunks(of_chunk, x, results, axis=axis, block=blocks.block, rechunk=rechunk)


def _integers(attributes: dict[str, Any]) -> dict[str, Any]:
    texts = ("bfp_method", "element_dtype")
    return {name: value if name in texts else index(value, name) for name, value in attributes.items()}


def _of_codes(
    function: Callable[..., Any],
    codes: Any,
    name: str,
    axis: int,
    block: int,
    dtype: np.dtype[Any],
    shared: list[tuple[Any, int]],
    rechunk: bool,
) -> Any:
    """Return the lazy values of dask codes. `shared` holds the arrays of scales or exponents, each with the number of elements
    that share one of its values."""
    cuts = [Cut(each, tuple(range(codes.ndim)), per) for each, per in shared]
    results = [Result(dtype)]
    (values,) = map_chunks(function, codes, results, cuts, axis=axis, block=block, rechunk=rechunk, name=name)
    return values


def check_shape(name: str, values: NDArray[Any], of: str, array: NDArray[Any], axis: int, block: int) -> None:
    """Raise ValueError unless `values` has the shape of an array, but with one element a block along the axis."""
    for each, what in ((array, of), (values, name)):
        check_sizes(each, what, range(each.ndim))
    shape = array.shape
    expected = tuple(-(-length // block) if i == axis else length for i, length in enumerate(shape))
    if values.shape != expected:
        raise ValueError(f"{name} has shape {values.shape}; expected {expected} for {of} of shape {shape}")


def _exponents(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the biased exponents."""
    return (values.view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int64)


def _step_exponents(
    exponents: NDArray[Any], shifts: NDArray[Any], axis: int, blocks: Blocks, shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return, for each element, the exponent of the step of its sub-block. An element is a multiple of the step."""
    shared = _spread(exponents.astype(np.int64), axis, blocks.block, shape)
    return shared - _spread(shifts.astype(np.int64), axis, blocks.sub_block, shape) - _BIAS - blocks.drop


def _maxima(values: NDArray[Any], axis: int, block: int) -> NDArray[Any]:
    """Return the maximum of each block along the axis."""
    if values.ndim == 0:
        return values
    length = values.shape[axis]
    return np.maximum.reduceat(values, np.arange(0, length, min(block, max(length, 1))), axis)


def _spread(values: NDArray[Any], axis: int, block: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of this shape that holds, for each element, the value of its block along the axis."""
    if values.ndim == 0:
        return values
    length = shape[axis]
    return np.repeat(values, min(block, max(length, 1)), axis)[(slice(None),) * axis + (slice(length),)]
