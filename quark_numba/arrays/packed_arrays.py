"""`pack` and `unpack` for arrays of any library, those of dask among them: their arguments, shapes and errors. For numpy arrays
they call ``packing``, which kernels use, too."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..element_types import ElementType, find, packing
from ..element_types.operands import check_has_no_mask
from ..element_types.packing import packed_size
from .arguments import array as array_of
from .chunks import Result, check_is_of_numpy, check_sizes, is_lazy, map_chunks
from .labels import unlabelled


def pack(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack elements as ONNX does: the first one in the lowest bits of the first byte (onnx.proto, TensorProto.raw_data).

    Parameters
    ----------
    array : array of uint4, int4, uint2, int2, float4e2m1, float6e2m3 or float6e3m2 as in ml_dtypes, one element per byte
        Any shape, strides and memory order; elements are taken in C order. The higher bits of a byte are ignored.

    Returns
    -------
    uint8 ndarray of one dimension, with 2, 4 or, for 6-bit types, 4/3 elements per byte. Unused bits of the last byte are 0. If
    `array` is a dask array, a lazy dask array.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a chunk of a dask array ends within a packed byte. The message names the argument and says
        what it is and what was expected.
    """
    array = array_of(array, "array", None)
    if not is_lazy(array):
        return packing.pack(array)
    lazy: Any = array
    packing.pack(lazy._meta)  # checks the dtype
    bits = _known(lazy.dtype).bits
    if not lazy.size:  # dask's reshape fails at this, and at empty chunks among others
        import dask.array as da

        return da.empty(0, dtype=np.uint8)
    lazy = lazy.rechunk(tuple(tuple(filter(None, sizes)) or (0,) for sizes in lazy.chunks))
    (packed,) = map_chunks(
        packing.pack,
        lazy.reshape(-1),
        [Result(np.dtype(np.uint8), Fraction(8, bits))],
        block=math.lcm(8, bits) // bits,
        name="array.reshape(-1)",
    )
    return packed


def unpack(packed: NDArray[np.uint8], shape: int | Sequence[int], dtype: DTypeLike | str | int) -> NDArray[Any]:
    """Unpack elements from the bytes that `pack` returns, which are also those of ONNX's packed tensors.

    Parameters
    ----------
    packed : uint8 ndarray of one dimension
        Exactly the bytes that elements of that shape and type need. Unused bits of the last byte are ignored.
    shape : int or sequence of int
    dtype : numpy dtype, name such as "int4", or TensorProto number
        One of uint4, int4, uint2, int2, float4e2m1, float6e2m3 or float6e3m2.

    Returns
    -------
    ndarray of that shape in C order, with the type's dtype in ml_dtypes, one element per byte. If `packed` is a dask array, a
    lazy dask array.

    Raises
    ------
    TypeError, ValueError
        As in `pack`.
    """
    packed = unlabelled(packed)
    check_has_no_mask(packed, "packed")
    if not is_lazy(packed):
        return packing.unpack(packed, shape, dtype)
    check_is_of_numpy(packed, "packed")
    packing.unpack(np.empty(0, packed.dtype), 0, dtype)  # checks the dtypes
    shape, element_type = np.broadcast_shapes(shape), _known(dtype)
    check_sizes(packed, "packed", range(packed.ndim))
    expected = (packed_size(math.prod(shape), element_type),)
    if packed.shape != expected:
        raise ValueError(f"packed has shape {packed.shape}; expected {expected} for {element_type.name} of shape {shape}")
    (elements,) = map_chunks(
        functools.partial(_unpack_chunk, element_type.name),
        packed,
        [Result(element_type.dtype, Fraction(element_type.bits, 8))],
        block=math.lcm(8, element_type.bits) // 8,
        name="packed",
    )
    return elements[: math.prod(shape)].reshape(shape)


def _known(dtype: Any) -> ElementType:
    """Return the element type of a dtype that has been checked."""
    element_type = find(dtype)
    assert element_type
    return element_type


def _unpack_chunk(name: str, packed: NDArray[np.uint8]) -> NDArray[Any]:
    """Return all elements that the bytes may have, including any in the unused bits of the last byte."""
    element_type = _known(name)
    size = -(-packed.size * 8 // element_type.bits)
    whole = np.zeros(packed_size(size, element_type), np.uint8)
    whole[: packed.size] = packed
    return packing.unpack(whole, size, name)
