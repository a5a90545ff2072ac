"""Block floating point as it is stored (`bfp_quantize`, `bfp_dequantize`): a mantissa for each element, an exponent for each
block, and a shift for each sub-block, with their dtypes and defaults."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..arrays.arguments import array, element_type_of
from ..arrays.chunks import Cut, Result, map_chunks
from ..arrays.labels import keeps_labels
from ..element_types import BFLOAT16, FLOAT32
from .calls import attribute_values, axis_of, block_input, check_blocks, rounded_block
from .formats import bfp_format
from .granularity import Format
from .key import X_TYPES, Key

# The bias of the exponents of float32, and the biased exponent of Inf and NaN.
_BIAS, _SPECIAL = 127, 255


class BFPBlocks(NamedTuple):
    """The result of `bfp_quantize`: one array of x's shape, and two whose length along `axis` is the number of blocks or
    sub-blocks."""

    mantissas: NDArray[Any]
    """The mantissas of the elements, uint8, or uint16 for a bit_width above 16: ``bit_width - 9`` bits of magnitude, and the
    sign above them."""
    exponents: NDArray[np.uint8]
    """The exponents of the blocks, biased by 127; 255: all elements are NaN."""
    shifts: NDArray[np.uint8]
    """By how much the exponents of sub-blocks are smaller than the exponents of their blocks. "to_bfp" has one sub-block a
    block, and zeros."""


@keeps_labels
def bfp_quantize(
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
) -> BFPBlocks:
    """Return x in a block floating point format, as mantissas, exponents and shifts.

    `bfp_dequantize` turns them into the result of `bfp_quantize_dequantize`, bit for bit, except that Inf or NaN makes the
    whole block NaN with "to_bfp" too: the format cannot hold Inf and NaN.

    Parameters
    ----------
    The parameters and the errors are those of `bfp_quantize_dequantize`, except that a single element is quantized as a block
    of its own.

    Returns
    -------
    BFPBlocks. If x is a dask array, its arrays are lazy dask arrays; if x is a DataArray, they are DataArrays.
    """
    attributes = attribute_values(locals())
    x_array, _ = block_input(x)
    axis = axis_of(x_array.shape, axis)
    key, block_format = bfp_format(FLOAT32, **attributes)
    function = functools.partial(_bfp_blocks, key, block_format, axis)
    byte = np.dtype(np.uint8)
    results = [Result(_mantissa_dtype(block_format)), Result(byte, block_format.block), Result(byte, block_format.sub_block)]
    return BFPBlocks(*map_chunks(function, x_array, results, axis=axis, block=block_format.block))


@np.errstate(all="ignore")
def _bfp_blocks(key: Key, block_format: Format, axis: int, x: NDArray[Any]) -> BFPBlocks:
    values = np.ascontiguousarray(x, np.float32).reshape(x.shape)
    if key.rounds_to_bfloat16:
        values = values.astype(BFLOAT16.dtype).astype(np.float32)
    exponents = (values.view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int64)  # biased
    shared, subs = _maxima(exponents, axis, block_format.block), _maxima(exponents, axis, block_format.sub_block)
    sub_blocks = block_format.block // block_format.sub_block
    shifts = np.minimum(_spread(shared, axis, sub_blocks, subs.shape) - subs, block_format.max_shift)
    special = _spread(shared == _SPECIAL, axis, block_format.block, values.shape)
    rounded = rounded_block(key, block_format, np.where(special, np.float32(0), values), axis)
    steps = _step_exponents(shared, shifts, axis, block_format, values.shape)
    magnitudes = np.ldexp(np.abs(rounded).astype(np.float64), -steps)
    mantissas = magnitudes.astype(np.int64) | np.signbit(rounded).astype(np.int64) << (block_format.drop + 1)
    return BFPBlocks(mantissas.astype(_mantissa_dtype(block_format)), shared.astype(np.uint8), shifts.astype(np.uint8))


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
) -> NDArray[Any]:
    """Return the values of blocks that `bfp_quantize` made with these attributes, in float32, float16 or bfloat16. Raise
    TypeError or ValueError for invalid arguments."""
    attributes = attribute_values(locals())
    y = element_type_of(output_dtype, "output_dtype", X_TYPES)
    unused: dict[str, Any] = {"rounding_mode": 0, "sub_block_shift_bits": 0, "convert_to_bfloat_before_bfp": 0}
    _, block_format = bfp_format(FLOAT32, **attributes, **unused)
    if not isinstance(blocks, BFPBlocks):
        raise TypeError(f"blocks is a {type(blocks).__name__}; expected BFPBlocks")
    mantissas, exponents, shifts = arrays = [array(part, name, None) for name, part in blocks._asdict().items()]
    byte = np.dtype(np.uint8)
    for name, part, dtype in zip(BFPBlocks._fields, arrays, (_mantissa_dtype(block_format), byte, byte), strict=True):
        if part.dtype != dtype:
            raise TypeError(f"{name} has dtype {part.dtype}; expected {dtype}")
    axis = axis_of(mantissas.shape, axis)
    check_blocks("exponents", exponents, "mantissas", mantissas, axis, block_format.block)
    check_blocks("shifts", shifts, "mantissas", mantissas, axis, block_format.sub_block)
    function = functools.partial(_bfp_values, axis, block_format, y.dtype)
    axes, results = tuple(range(mantissas.ndim)), [Result(y.dtype)]
    cuts = [Cut(exponents, axes, block_format.block), Cut(shifts, axes, block_format.sub_block)]
    (values,) = map_chunks(function, mantissas, results, cuts, axis=axis, block=block_format.block, name="mantissas")
    return values


@np.errstate(all="ignore")
def _bfp_values(axis: int, block_format: Format, dtype: np.dtype[Any], *blocks: NDArray[Any]) -> NDArray[Any]:
    mantissas, exponents, shifts = blocks
    steps = _step_exponents(exponents, shifts, axis, block_format, mantissas.shape)
    magnitudes = (mantissas & (2 ** (block_format.drop + 1) - 1)).astype(np.float64)
    values = np.ldexp(np.where(mantissas >> (block_format.drop + 1) & 1, -magnitudes, magnitudes), steps)
    values = np.where(_spread(exponents == _SPECIAL, axis, block_format.block, mantissas.shape), np.nan, values)
    return values.astype(np.float32).astype(dtype)


def _mantissa_dtype(block_format: Format) -> np.dtype[Any]:
    return np.dtype(np.uint8 if block_format.drop + 2 <= 8 else np.uint16)


def _step_exponents(
    exponents: NDArray[Any], shifts: NDArray[Any], axis: int, block_format: Format, shape: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return, for each element, the exponent of the step of its sub-block. An element is a multiple of the step."""
    shared = _spread(exponents.astype(np.int64), axis, block_format.block, shape)
    return shared - _spread(shifts.astype(np.int64), axis, block_format.sub_block, shape) - _BIAS - block_format.drop


def _maxima(values: NDArray[Any], axis: int, block: int) -> NDArray[Any]:
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
