"""`pack` and `unpack` of arrays of any library. Of numpy's it is the work of ``packing``, which kernels are made of, too."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..element_types import ElementType, find, packing
from ..element_types.packing import packed_size
from .chunks import Result, check_sizes, is_lazy, map_chunks
from .labels import unlabelled


def pack(array: NDArray[Any], *, rechunk: bool = False) -> NDArray[np.uint8]:
    """Pack elements as ONNX does: the first one in the lowest bits of the first byte (onnx.proto, TensorProto.raw_data).

    Parameters
    ----------
    array : array of uint4, int4, uint2, int2, float4e2m1, float6e2m3 or float6e3m2 as in ml_dtypes, one element a byte
        Any shape, strides and memory order; elements are taken in C order. The higher bits of a byte do not count.
    rechunk : bool
        Whether chunks of a dask array that end within a byte are to end with it. Default: they are refused.

    Returns
    -------
    uint8 ndarray of one dimension: 2, 4 or, of 6-bit types, 4/3 elements a byte; what is left of the last byte is 0. Of a dask
    array one, lazily.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it is and what was expected.
    """
    array = unlabelled(array)
    if not is_lazy(array):
        return packing.pack(array)
    lazy: Any = array
    packing.pack(lazy._meta)  # for its dtype
    bits = _known(lazy.dtype).bits
    (packed,) = map_chunks(
        packing.pack,
        lazy.reshape(-1),
        [Result(np.dtype(np.uint8), Fraction(8, bits))],
        block=math.lcm(8, bits) // bits,
        rechunk=rechunk,
        name="array",
    )
    return packed


def unpack(
    packed: NDArray[np.uint8], shape: int | Sequence[int], dtype: DTypeLike | str | int, *, rechunk: bool = False
) -> NDArray[Any]:
    """Unpack what `pack` gives, and ONNX's packed tensors hold.

    Parameters
    ----------
    packed : uint8 ndarray of one dimension
        As many bytes as elements of that shape and type need. What is left of the last one does not count.
    shape : int or sequence of int
    dtype : numpy dtype, name such as "int4", or TensorProto number
        Of uint4, int4, uint2, int2, float4e2m1, float6e2m3 or float6e3m2.
    rechunk : bool
        Whether chunks of a dask array that end within an element are to end with it. Default: they are refused.

    Returns
    -------
    ndarray of that shape in C order, of the type's dtype in ml_dtypes, one element a byte. Of a dask array one, lazily.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it is and what was expected.
    """
    packed = unlabelled(packed)
    if not is_lazy(packed):
        return packing.unpack(packed, shape, dtype)
    packing.unpack(np.empty(0, packed.dtype), 0, dtype)  # for the types
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
        rechunk=rechunk,
        name="packed",
    )
    return elements[: math.prod(shape)].reshape(shape)


def _known(dtype: Any) -> ElementType:
    """The element type of a dtype that was checked."""
    found = find(dtype)
    assert found
    return found


def _unpack_chunk(name: str, packed: NDArray[np.uint8]) -> NDArray[Any]:
    """All that the bytes may hold: what is left of the last one, too."""
    element_type = _known(name)
    size = -(-packed.size * 8 // element_type.bits)
    whole = np.zeros(packed_size(size, element_type), np.uint8)
    whole[: packed.size] = packed
    return packing.unpack(whole, size, name)
