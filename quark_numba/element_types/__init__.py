"""The table of ONNX element types: a row for each type. All else about a type is derived from its row.

A row holds the facts that cannot be computed: the name, the number in ``onnx.TensorProto.DataType``, and the numpy or ml_dtypes
dtype.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ElementType:
    """An ONNX element type, a row of the table. Rows are compared by identity."""

    name: str
    number: int
    dtype: np.dtype[Any]

    # The code that NaN is converted to, for a float format without NaN (ONNX, "Float stored in 4 bits" and "Float stored in 6
    # bits", tables of Cast).
    nan_substitute: int | None = None

    # ONNX Runtime's ONNXTensorElementDataType, if it differs from `number`; and the first release whose CPU provider has
    # tensors of the type, or None if no release has them. Before 1.31 some of these numbers stood for other types.
    ort_number: int | None = None
    ort_release: tuple[int, int] | None = (1, 17)

    @cached_property
    def is_integer(self) -> bool:
        return self.name.startswith(("int", "uint"))

    @cached_property
    def is_signed(self) -> bool:
        return self.lowest < 0

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
        """The number of exponent bits of a float type."""
        return int(self._info.nexp)

    @cached_property
    def mantissa_bits(self) -> int:
        """The number of mantissa bits of a float type, without the hidden bit."""
        return int(self._info.nmant)

    @cached_property
    def bias(self) -> int:
        """The bias of a float type's exponent."""
        return 1 - int(self._info.minexp)

    @cached_property
    def has_negative_zero(self) -> bool:
        """Return whether the code with only the sign bit set is -0, and not NaN."""
        return bool(self.code_values[1 << (self.bits - 1)] == 0)

    @cached_property
    def has_infinity(self) -> bool:
        return bool(np.isinf(self.code_values).any())

    @cached_property
    def has_nan(self) -> bool:
        return bool(np.isnan(self.code_values).any())

    @cached_property
    def nan(self) -> int:
        """The code that NaN is converted to: a quiet NaN with a clear sign bit, the only NaN, or the substitute."""
        if self.nan_substitute is not None:
            return self.nan_substitute
        if self.has_infinity:
            return int((2 ** (self.exponent_bits + 1) - 1) << (self.mantissa_bits - 1))
        return int(np.flatnonzero(np.isnan(self.code_values))[0])

    @cached_property
    def code_values(self) -> NDArray[np.float32]:
        """The value of every code of a type of up to 16 bits."""
        codes = np.arange(2**self.bits).astype(f"uint{8 * self.dtype.itemsize}")
        return codes.view(self.dtype).astype(np.float32)

    @cached_property
    def byte_values(self) -> NDArray[np.float32]:
        """The value of every byte, for a type of fewer than 8 bits. The bits above a code are ignored."""
        return np.resize(self.code_values, 256)

    @cached_property
    def is_packed(self) -> bool:
        """Return whether ONNX Runtime's tensors hold several elements per byte. numpy's arrays hold one."""
        return self.bits in (2, 4)

    def has_tensors(self, release: tuple[int, ...] | None = None) -> bool:
        """Return whether a release of ONNX Runtime, by default the newest one, has tensors of the type."""
        return self.ort_release is not None and (release is None or release >= self.ort_release)

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """The dtype of the elements in kernels. Formats that Numba cannot compute with are passed as bit patterns."""
        if self.dtype.isbuiltin == 1 and self.dtype != np.float16:
            return self.dtype
        return np.dtype(f"uint{8 * self.dtype.itemsize}")

    @cached_property
    def _info(self) -> Any:
        return ml_dtypes.iinfo(self.dtype) if self.is_integer else ml_dtypes.finfo(self.dtype)

    def _number(self, value: Any) -> int | float:
        return int(value) if self.is_integer else float(value)


FLOAT32 = ElementType("float32", 1, np.dtype(np.float32))
UINT8 = ElementType("uint8", 2, np.dtype(np.uint8))
INT8 = ElementType("int8", 3, np.dtype(np.int8))
INT32 = ElementType("int32", 6, np.dtype(np.int32))
FLOAT16 = ElementType("float16", 10, np.dtype(np.float16))
FLOAT64 = ElementType("float64", 11, np.dtype(np.float64))
BFLOAT16 = ElementType("bfloat16", 16, np.dtype(ml_dtypes.bfloat16))
FLOAT8E8M0 = ElementType("float8e8m0", 24, np.dtype(ml_dtypes.float8_e8m0fnu), ort_number=26, ort_release=(1, 31))

ELEMENT_TYPES = (
    FLOAT32,
    UINT8,
    INT8,
    ElementType("uint16", 4, np.dtype(np.uint16)),
    ElementType("int16", 5, np.dtype(np.int16)),
    INT32,
    FLOAT16,
    FLOAT64,
    ElementType("uint32", 12, np.dtype(np.uint32)),
    BFLOAT16,
    ElementType("float8e4m3fn", 17, np.dtype(ml_dtypes.float8_e4m3fn)),
    ElementType("float8e4m3fnuz", 18, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    ElementType("float8e5m2", 19, np.dtype(ml_dtypes.float8_e5m2)),
    ElementType("float8e5m2fnuz", 20, np.dtype(ml_dtypes.float8_e5m2fnuz)),
    ElementType("uint4", 21, np.dtype(ml_dtypes.uint4)),
    ElementType("int4", 22, np.dtype(ml_dtypes.int4)),
    ElementType("float4e2m1", 23, np.dtype(ml_dtypes.float4_e2m1fn), nan_substitute=0x07, ort_release=(1, 31)),
    FLOAT8E8M0,
    ElementType("uint2", 25, np.dtype(ml_dtypes.uint2), ort_number=24, ort_release=(1, 31)),
    ElementType("int2", 26, np.dtype(ml_dtypes.int2), ort_number=25, ort_release=(1, 31)),
    ElementType("float6e2m3", 27, np.dtype(ml_dtypes.float6_e2m3fn), nan_substitute=0x20, ort_release=None),
    ElementType("float6e3m2", 28, np.dtype(ml_dtypes.float6_e3m2fn), nan_substitute=0x20, ort_release=None),
)

_BY_SPECIFICATION: dict[Any, ElementType] = {
    specification: element_type
    for element_type in ELEMENT_TYPES
    for specification in (element_type.name, element_type.number, element_type.dtype, element_type.dtype.type)
}


def find(specification: Any) -> ElementType | None:
    """Return the element type for a numpy dtype (in any byte order), a scalar type, a dtype string, a name such as "bfloat16",
    or a number of TensorProto. Return None if the table has no such type."""
    if isinstance(specification, np.dtype):
        return _BY_SPECIFICATION.get(specification) or _BY_SPECIFICATION.get(specification.newbyteorder("="))
    if isinstance(specification, bool) or not isinstance(specification, (int, np.integer, str, type)):
        return None
    if specification not in _BY_SPECIFICATION and isinstance(specification, str):
        try:
            specification = np.dtype(specification)
        except (TypeError, SyntaxError):  # of a string such as ","
            return None
    if isinstance(specification, np.dtype):
        specification = specification.newbyteorder("=")
    return _BY_SPECIFICATION.get(specification)


def checked(specification: Any, name: str, allowed: Collection[ElementType]) -> ElementType:
    """Return the element type that `find` returns, if it is in `allowed`.

    Raises
    ------
    TypeError
        If it is not. The message has `name`, the given type, and the allowed types.
    """
    element_type = find(specification)
    if element_type is None or element_type not in allowed:
        given = getattr(specification, "__name__", specification)
        raise TypeError(f"{name} has element type {given}; expected {names(allowed)}")
    return element_type


def named(text: str) -> tuple[ElementType, ...]:
    """Return the element types whose names are in a text such as "uint8 int8"."""
    return tuple(_BY_SPECIFICATION[name] for name in text.split())


def names(element_types: Iterable[ElementType]) -> str:
    """Return the names for a message, such as "uint8 or int8"."""
    return " or ".join(element_type.name for element_type in element_types)
