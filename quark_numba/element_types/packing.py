"""Pack codes of 2, 4 and 6 bits, stored one per byte, to ONNX's packed bytes, and unpack them. The first element is in the
lowest bits (onnx.proto, ``TensorProto.raw_data``)."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..compiling.lock import created_once
from ..compiling.python_calls import get_or_compile
from . import ELEMENT_TYPES, ElementType, checked


def _regroup(from_bits: int, to_bits: int) -> Callable[[Any, Any], None]:
    def regroup(source: Any, target: Any) -> None:
        """Join the low from_bits bits of all source bytes to a stream of bits, the first in the lowest, and split the stream
        into the low to_bits bits of the target bytes. Other bits of the source are ignored. Other bits of the target are 0, and
        so are the unused bits of its last byte."""
        # A word holds a whole number of codes and a whole number of bytes: 8 bits, or 24 bits for 6-bit codes.
        bits = 24 if from_bits == 6 or to_bits == 6 else 8
        from_bytes, to_bytes = bits // from_bits, bits // to_bits
        from_mask, to_mask = np.uint32(2**from_bits - 1), np.uint32(2**to_bits - 1)
        words = min(source.size // from_bytes, target.size // to_bytes)
        for i in range(words):
            word = np.uint32(0)
            for j in range(from_bytes):
                word |= (np.uint32(source[i * from_bytes + j]) & from_mask) << np.uint32(j * from_bits)
            for j in range(to_bytes):
                target[i * to_bytes + j] = np.uint8((word >> np.uint32(j * to_bits)) & to_mask)
        word = np.uint32(0)
        for j in range(source.size - words * from_bytes):
            word |= (np.uint32(source[words * from_bytes + j]) & from_mask) << np.uint32(j * from_bits)
        for j in range(target.size - words * to_bytes):
            target[words * to_bytes + j] = np.uint8((word >> np.uint32(j * to_bits)) & to_mask)

    return regroup


@dataclass(frozen=True)
class _Packing:
    """The kernels for codes of `bits` bits. Each is compiled on first use."""

    bits: int

    @created_once
    def pack(self) -> Any:
        return _kernel(self.bits, 8)

    @created_once
    def unpack(self) -> Any:
        return _kernel(8, self.bits)


def _kernel(from_bits: int, to_bits: int) -> Any:
    return get_or_compile(f"regroup_{from_bits}_{to_bits}", lambda: _compile(from_bits, to_bits))


def _compile(from_bits: int, to_bits: int) -> Any:
    from numba import types

    from ..compiling.array_functions import array_function

    codes = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.uint8, 1, "C")
    return array_function(_regroup(from_bits, to_bits), f"regroup_{from_bits}_{to_bits}_kernel", types.void(*codes))


@functools.cache
def regroup_function(from_bits: int, to_bits: int) -> Any:
    """Return the function (source, target) of `_regroup` that compiled functions call."""
    from ..compiling import jit

    return jit.function(_regroup(from_bits, to_bits), f"regroup_{from_bits}_{to_bits}")


_PACKED = tuple(element_type for element_type in ELEMENT_TYPES if element_type.bits < 8)
_PACKINGS = {element_type.bits: _Packing(element_type.bits) for element_type in _PACKED}


def pack(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack a numpy array (see ``packed_arrays.pack``)."""
    array = np.asarray(array)
    element_type = checked(array.dtype, "array", _PACKED)
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    packed = np.empty(packed_size(codes.size, element_type), np.uint8)
    _PACKINGS[element_type.bits].pack(codes, packed)
    return packed


def unpack(packed: NDArray[np.uint8], shape: int | Sequence[int], dtype: DTypeLike | str | int) -> NDArray[Any]:
    """Unpack a numpy array (see ``packed_arrays.unpack``)."""
    element_type = checked(dtype, "dtype", _PACKED)
    shape = _shape(shape)
    if not isinstance(packed, np.ndarray):
        raise TypeError(f"packed is a {type(packed).__name__}; expected a numpy array of uint8")
    if packed.dtype != np.uint8:
        raise TypeError(f"packed has dtype {packed.dtype}; expected uint8")
    if packed.ndim != 1:
        raise ValueError(f"packed has shape {packed.shape}; expected one dimension")
    expected = packed_size(math.prod(shape), element_type)
    if packed.size != expected:
        raise ValueError(f"packed has {packed.size} bytes; expected {expected} for {element_type.name} of shape {shape}")
    codes = np.empty(math.prod(shape), np.uint8)
    _PACKINGS[element_type.bits].unpack(np.ascontiguousarray(packed), codes)
    return codes.view(element_type.dtype).reshape(shape)


def packed_size(size: int, element_type: ElementType) -> int:
    """Return the number of bytes that hold `size` elements."""
    return (size * element_type.bits + 7) // 8


def _shape(shape: Any) -> tuple[int, ...]:
    try:
        dimensions = tuple(operator.index(dimension) for dimension in (shape if np.iterable(shape) else (shape,)))
    except TypeError:
        raise TypeError(f"shape is {shape!r}; expected integers") from None
    if any(dimension < 0 for dimension in dimensions):
        raise ValueError(f"shape is {shape!r}; expected no negative dimension")
    return dimensions
