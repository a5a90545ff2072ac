"""Conversion of arrays to and from ``onnx.TensorProto``, for every element type of the table, and the errors of tensors that
are not valid.

``onnx.numpy_helper`` is not enough: a version of onnx lacks the types that later versions added. Before 1.19 it does not return
ml_dtypes, and does not read bfloat16 from ``raw_data``. The layout (onnx.proto, ``TensorProto``) is the same in all versions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from ..checks import refuse
from ..errors import reason_of
from . import FLOAT32, FLOAT64, ElementType, external_data, find
from .operands import check_has_no_mask
from .packing import pack, packed_size, unpack


def to_tensor_proto(array: NDArray[Any], name: str = "") -> onnx.TensorProto:
    """Return a tensor that holds the elements of `array` in ``raw_data``.

    Parameters
    ----------
    array : ndarray of any shape, strides, memory and byte order
        Types of 2, 4 and 6 bits, which have one element a byte in ml_dtypes, are packed. Types that the package does not use,
        such as int64 and strings, are converted by ``onnx.numpy_helper.from_array``.
    name : str
        The name of the tensor.

    Raises
    ------
    TypeError, ValueError
        Raised by onnx if it has no element type for the array's dtype. A masked array is refused.
    """
    if not isinstance(name, str):
        refuse("name", name, "a str")
    array = np.asanyarray(array)
    check_has_no_mask(array, "array")
    array = np.asarray(array)
    # For types that numpy lacks, onnx before 1.19 has structured dtypes, whose field has the type's name.
    element_type = None if array.dtype.names else find(array.dtype)
    if element_type is None:
        return numpy_helper.from_array(array, name)
    return onnx.TensorProto(data_type=element_type.number, dims=array.shape, name=name, raw_data=to_bytes(array).tobytes())


def to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the elements of an array of one of the package's types as bytes, as ``raw_data`` holds them. The memory may be
    the array's."""
    element_type = find(array.dtype)
    assert element_type
    if element_type.bits < 8:
        return pack(array)
    bits = np.require(array, element_type.dtype, ["C"]).reshape(-1).view(f"u{element_type.dtype.itemsize}")
    return bits.astype(bits.dtype.newbyteorder("<"), copy=False).view(np.uint8)


def from_bytes(content: NDArray[np.uint8], number: int, shape: Sequence[int]) -> NDArray[Any]:
    """Return the elements in the bytes of ``raw_data``, for the number of a TensorProto's type. The memory may be that of the
    bytes. The number of bytes has to be right."""
    element_type = find(number)
    if element_type is None:
        return numpy_helper.to_array(onnx.TensorProto(data_type=number, dims=shape, raw_data=content.tobytes()))
    if element_type.bits < 8:
        return unpack(content, shape, element_type.dtype)
    bits = np.dtype(f"u{element_type.dtype.itemsize}")
    return content.view(bits.newbyteorder("<")).astype(bits, copy=False).view(element_type.dtype).reshape(shape)


def from_tensor_proto(tensor: onnx.TensorProto, base_dir: str = "") -> NDArray[Any]:
    """Return the elements of `tensor` as a new array of the shape ``dims``, in C order.

    Parameters
    ----------
    tensor : onnx.TensorProto
        Its elements may be in ``raw_data``, in the field of its type, or in a file (``external_data``). Types that the package
        does not use, such as int64 and strings, are converted by ``onnx.numpy_helper.to_array``.
    base_dir : str
        The folder of the model, to find the file of external data.

    Raises
    ------
    TypeError, ValueError
        If an argument has an invalid type or value, if the number of elements does not fit the dims, or if the file cannot be
        read.
    """
    if not isinstance(tensor, onnx.TensorProto):
        raise TypeError(f"tensor is a {type(tensor).__name__}; expected onnx.TensorProto")
    if not isinstance(base_dir, (str, os.PathLike)):
        refuse("base_dir", base_dir, "a path")
    if tensor.data_type not in onnx.TensorProto.DataType.values() and not find(tensor.data_type):
        known = "a number of onnx.TensorProto.DataType"
        raise TypeError(f"tensor {tensor.name!r} has data_type {tensor.data_type}; expected {known}")
    if uses_external_data(tensor):
        try:
            with external_data.opened(external_data.place_of(tensor).location, base_dir) as file:
                content = external_data.read_from(file, tensor)
        except (OSError, ValueError) as error:
            raise ValueError(f"tensor {tensor.name!r}: {reason_of(error)}") from None
        tensor = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=content)
    element_type = find(tensor.data_type)
    if element_type is None:
        return numpy_helper.to_array(tensor)
    if any(dimension < 0 for dimension in tensor.dims):
        raise ValueError(f"tensor {tensor.name!r} has dims {tuple(tensor.dims)}; expected no negative dimension")
    if tensor.HasField("segment"):
        raise ValueError(f"tensor {tensor.name!r} is a segment; expected a whole tensor")
    size = math.prod(tensor.dims)
    if not tensor.HasField("raw_data"):
        codes = _typed_data(tensor, element_type)
        if not element_type.is_packed:
            _check(tensor, codes.size, size, "elements")
            return codes.view(element_type.dtype).reshape(tensor.dims)
    else:
        codes = np.frombuffer(tensor.raw_data, np.uint8)
        if element_type.bits >= 8:
            _check(tensor, codes.size, size * element_type.dtype.itemsize, "bytes")
            return from_bytes(codes.copy(), element_type.number, tensor.dims)
    _check(tensor, codes.size, packed_size(size, element_type), "bytes")
    return unpack(codes, tensor.dims, element_type.dtype)


def _typed_data(tensor: onnx.TensorProto, element_type: ElementType) -> NDArray[Any]:
    """Return the codes in the field of the type: one an element, or packed bytes for types of 2 and 4 bits."""
    if element_type in (FLOAT32, FLOAT64):
        return np.array(tensor.float_data if element_type is FLOAT32 else tensor.double_data, element_type.dtype)
    values = np.array(tensor.uint64_data, np.uint64) if element_type.name == "uint32" else np.array(tensor.int32_data, np.int64)
    width = 8 * element_type.dtype.itemsize
    if np.any((values < -(1 << width - 1)) | (values >= 1 << width)):
        raise ValueError(f"tensor {tensor.name!r} has elements that {element_type.name} lacks")
    codes: NDArray[Any] = values.astype(f"u{element_type.dtype.itemsize}")
    return codes & np.uint8(2**element_type.bits - 1) if element_type.bits == 6 else codes


def _check(tensor: onnx.TensorProto, given: int, expected: int, what: str) -> None:
    if given != expected:
        raise ValueError(f"tensor {tensor.name!r} has {given} {what}; expected {expected} for dims {tuple(tensor.dims)}")
