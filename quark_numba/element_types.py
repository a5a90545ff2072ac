"""The table of ONNX element types: one row each, everything else derived from it.

A row holds what cannot be computed: the name, the number in ``onnx.TensorProto.DataType`` (the same number as in ONNX
Runtime's ``ONNXTensorElementDataType`` and onnxruntime-extensions) and the numpy or ml_dtypes dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, eq=False)
class ElementType:
    """One ONNX element type. Rows are the table's own: they are compared by identity."""

    name: str
    number: int
    dtype: np.dtype[Any]

    @cached_property
    def is_integer(self) -> bool:
        return self.dtype.kind in "iu"

    @cached_property
    def bits(self) -> int:
        return int(self._info.bits)

    @cached_property
    def lowest(self) -> int | float:
        """The most negative finite value, to which quantization saturates."""
        return self._number(self._info.min)

    @cached_property
    def highest(self) -> int | float:
        """The largest finite value, to which quantization saturates."""
        return self._number(self._info.max)

    @cached_property
    def exponent_bits(self) -> int:
        """Of a float type."""
        return int(self._info.nexp)

    @cached_property
    def mantissa_bits(self) -> int:
        """Of a float type, the hidden one not counted."""
        return int(self._info.nmant)

    @cached_property
    def bias(self) -> int:
        """Of a float type's exponent."""
        return 1 - int(self._info.minexp)

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """The dtype in which kernels see the elements: float formats that Numba cannot compute with go as bit patterns."""
        if self.is_integer or self.dtype == np.float32:
            return self.dtype
        return np.dtype(f"uint{8 * self.dtype.itemsize}")

    @cached_property
    def _info(self) -> Any:
        return np.iinfo(self.dtype) if self.is_integer else ml_dtypes.finfo(self.dtype)

    def _number(self, value: Any) -> int | float:
        return int(value) if self.is_integer else float(value)


FLOAT32 = ElementType("float32", 1, np.dtype(np.float32))
UINT8 = ElementType("uint8", 2, np.dtype(np.uint8))

ELEMENT_TYPES = (
    FLOAT32,
    UINT8,
    ElementType("int8", 3, np.dtype(np.int8)),
    ElementType("uint16", 4, np.dtype(np.uint16)),
    ElementType("int16", 5, np.dtype(np.int16)),
    ElementType("int32", 6, np.dtype(np.int32)),
    ElementType("float16", 10, np.dtype(np.float16)),
    ElementType("uint32", 12, np.dtype(np.uint32)),
    ElementType("bfloat16", 16, np.dtype(ml_dtypes.bfloat16)),
)

_BY_SPECIFICATION: dict[Any, ElementType] = {
    key: row for row in ELEMENT_TYPES for key in (row.name, row.number, row.dtype, row.dtype.type)
}


def find(specification: Any) -> ElementType | None:
    """The row for a numpy dtype (in any byte order), scalar type or dtype string, a name such as "bfloat16", or a
    TensorProto number."""
    if isinstance(specification, bool) or not isinstance(specification, (int, str, type, np.dtype)):
        return None
    if specification not in _BY_SPECIFICATION and isinstance(specification, str):
        try:
            specification = np.dtype(specification)
        except TypeError:
            return None
    if isinstance(specification, np.dtype):
        specification = specification.newbyteorder("=")
    return _BY_SPECIFICATION.get(specification)
