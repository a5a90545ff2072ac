"""Tensors that are read, computed and written some rows at a time, so that a model may be larger than memory, and how many rows
that is.

The rows of a tensor lie along its first axis that has more than one index: they follow each other in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..element_types import FLOAT32, ElementType
from ..element_types.tensors import from_bytes, to_bytes, to_tensor_proto
from ..errors import ModelError, errors_named, file_error

# The bytes of a part in float32: few enough to stay in a processor's cache until they are written.
_PART = 1 << 21

# Parts of a type of less than 8 bits are written to whole bytes if their numbers of rows are multiples of this.
_ALIGNED_ROWS = 8

# ``rows(start, stop)`` returns rows of a tensor, as an array of its rank.
Rows = Callable[[int, int], NDArray[Any]]


class ComputedTensor(ir.LazyTensor):  # type: ignore[misc, unused-ignore]
    """A tensor that is computed when it is read. ``open_rows()`` returns a context manager, whose value is the function that
    returns rows. Rows can be computed apart if their numbers are multiples of `unit`."""

    def __init__(
        self,
        open_rows: Callable[[], AbstractContextManager[Rows]],
        element_type: ElementType,
        shape: Sequence[int],
        unit: int = 1,
    ) -> None:
        super().__init__(self._whole, ir.DataType(element_type.number), ir.Shape(shape))
        self.open_rows, self.unit = open_rows, unit

    def _whole(self) -> ir.TensorProtocol:
        return in_memory(array_of(self), self.name)


def in_memory(array: NDArray[Any], name: str | None = None) -> ir.TensorProtocol:
    """Return a tensor with the elements of an array. Large float32 arrays are not copied."""
    if array.dtype == FLOAT32.dtype and array.flags.c_contiguous:
        return ir.Tensor(array, name=name)
    return ir.serde.deserialize_tensor(to_tensor_proto(array, name or ""))


def mapped(
    tensor: ir.TensorProtocol,
    function: Callable[..., NDArray[Any]],
    element_type: ElementType,
    unit: int = 1,
    parameters: Sequence[ir.TensorProtocol | None] = (),
) -> ComputedTensor:
    """Return the tensor of the same shape whose rows are ``function(rows, start, stop, *parameters)`` of those of another one.
    The parameters are arrays, which are in memory only while the tensor is read."""

    @contextmanager
    def open_rows() -> Iterator[Rows]:
        arrays = [None if parameter is None else array_of(parameter) for parameter in parameters]
        with opened(tensor) as rows:
            yield lambda start, stop: function(rows(start, stop), start, stop, *arrays)

    return ComputedTensor(open_rows, element_type, tensor.shape.numpy(), math.lcm(unit, unit_of(tensor)))


def row_axis(shape: Sequence[int]) -> int:
    """Return the axis of the rows; 0 if no axis has more than one index."""
    return next((axis for axis, length in enumerate(shape) if length > 1), 0)


@contextmanager
def opened(tensor: ir.TensorProtocol) -> Iterator[Rows]:
    """Yield the function that returns rows of a tensor. Raise ModelError if a file cannot be read or is too short."""
    if isinstance(tensor, ComputedTensor):
        with tensor.open_rows() as rows:
            yield rows
    elif isinstance(tensor, ir.ExternalTensor):
        with _file_of(tensor) as file:
            yield lambda start, stop: _read(file, tensor, start, stop)
    else:
        array = _elements(tensor)
        index = (slice(None),) * row_axis(array.shape)
        yield lambda start, stop: array[(*index, slice(start, stop))] if array.ndim else array


def _file_of(tensor: ir.ExternalTensor) -> Any:
    try:
        return open(tensor.path, "rb")
    except OSError as error:
        raise file_error(f"tensor {tensor.name}: {tensor.path}", error) from None


def _elements(tensor: ir.TensorProtocol) -> NDArray[Any]:
    with errors_named(f"tensor {tensor.name}", with_type=False):  # bytes may not fit the shape
        return np.asarray(tensor.numpy())


def _read(file: Any, tensor: ir.ExternalTensor, start: int, stop: int) -> NDArray[Any]:
    shape, bits = tensor.shape.numpy(), tensor.dtype.bitwidth
    lengths = tuple(stop - start if axis == row_axis(shape) else length for axis, length in enumerate(shape))
    size = math.prod(lengths)
    first = start * (size // max(1, stop - start))
    before = first % 8 if bits < 8 else 0  # elements of less than a byte are read from the start of a byte on
    content = np.empty(-(-(before + size) * bits // 8), np.uint8)
    file.seek((tensor.offset or 0) + (first - before) * bits // 8)
    _fill(content, file, tensor)
    return from_bytes(content, tensor.dtype.value, (before + size,))[before:].reshape(lengths)


def _fill(content: NDArray[np.uint8], file: Any, tensor: ir.ExternalTensor) -> None:
    if file.readinto(content) < content.size:
        raise ModelError(f"tensor {tensor.name}: {tensor.path} is truncated")


def spans(tensor: ir.TensorProtocol) -> Iterator[tuple[int, int]]:
    """Yield the first row of each part, and the row after its last one. All parts but the only one have several rows."""
    shape = tensor.shape.numpy()
    rows = shape[row_axis(shape)] if shape else 1
    unit = math.lcm(unit_of(tensor), _ALIGNED_ROWS) if tensor.dtype.bitwidth < 8 else max(unit_of(tensor), 2)
    # As many elements as a part of floats has: most others are computed from floats.
    step = max(1, _PART * rows // max(1, 4 * tensor.size * unit)) * unit
    start = 0
    while start < rows:
        stop = start + step if rows - start >= 2 * step else rows
        yield start, stop
        start = stop


def unit_of(tensor: ir.TensorProtocol) -> int:
    """Return the number of rows that have to be read together, or a multiple of it."""
    return tensor.unit if isinstance(tensor, ComputedTensor) else 1


def is_in_memory(tensor: ir.TensorProtocol) -> bool:
    """Return whether the elements of a tensor need not be read from a file, or computed."""
    return not isinstance(tensor, (ComputedTensor, ir.ExternalTensor))


def array_of(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return the elements of a tensor, which may be a view of the tensor's memory. Raise ModelError if they cannot be read."""
    if is_in_memory(tensor):
        return _elements(tensor)
    shape = tensor.shape.numpy()
    before = (slice(None),) * row_axis(shape)
    with opened(tensor) as rows:
        array = None
        for start, stop in spans(tensor):
            part = rows(start, stop)
            if part.shape == shape:
                return part
            array = np.empty(shape, part.dtype) if array is None else array
            array[(*before, slice(start, stop))] = part
        return rows(0, 0) if array is None else array


def write_to(tensor: ir.TensorProtocol, file: Any) -> None:
    """Write the bytes of a tensor, as in ``raw_data``, to a file."""
    if isinstance(tensor, ComputedTensor):
        with opened(tensor) as rows:
            for start, stop in spans(tensor):
                file.write(to_bytes(rows(start, stop)))
    elif isinstance(tensor, ir.ExternalTensor):
        with _file_of(tensor) as source:
            source.seek(tensor.offset or 0)
            for start in range(0, tensor.nbytes, _PART):
                content = np.empty(min(_PART, tensor.nbytes - start), np.uint8)
                _fill(content, source, tensor)
                file.write(content)
    else:
        file.write(tensor.tobytes())
