"""Keys of the dispatch table: an operation and its element types."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..element_types import BFLOAT16, FLOAT8E8M0, FLOAT16, FLOAT32, FLOAT64, INT32, ElementType
from .versions import Operation

# The types in which the division of quantize may be computed. The product of dequantize is always in float32.
PRECISIONS = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)


class Key(NamedTuple):
    """A key of the dispatch table, which has a kernel for each key. `quantized` is the type of the zero point; it is also the
    type of y for "quantize" and of x for "dequantize". `saturate` is the attribute of that name, and True except for float8
    types."""

    operation: Operation
    x: ElementType
    quantized: ElementType
    y: ElementType
    precision: ElementType = FLOAT32
    saturate: bool = True

    @property
    def steps(self) -> tuple[Key, Key]:
        """The keys of the two steps of "quantize_dequantize": quantize, then dequantize."""
        quantize = Key("quantize", self.x, self.quantized, self.quantized, self.precision, self.saturate)
        return quantize, Key("dequantize", self.quantized, self.quantized, self.y)

    @property
    def scale_dtype(self) -> Any:
        """The dtype of scales in kernels. It holds every value of the scale's type."""
        return np.float64 if self.precision is FLOAT64 else np.float32

    @property
    def zero_point_dtype(self) -> Any:
        """The dtype of zero points in kernels. It holds every value of the quantized type."""
        return np.float64 if self.quantized.is_integer and self.quantized.bits > 16 else np.float32

    @property
    def converts_to_words(self) -> bool:
        """Return whether the conversion of an element returns the code as an int32, because y's codes have one byte. Vectors of
        words are packed to bytes faster than LLVM does it for each (see ``vectors.narrow``)."""
        return self.operation == "quantize" and self.y.storage.itemsize == 1

    @property
    def name(self) -> str:
        """A name for symbols and files, unique to the key."""
        types = f"{self.x.name}_{self.quantized.name}_{self.y.name}_{self.precision.name}"
        return f"{self.operation}_{types}{'' if self.saturate else '_unsaturated'}"


def select(
    operation: Operation,
    x: ElementType,
    scale: ElementType,
    quantized: ElementType,
    y: ElementType,
    *,
    saturate: bool = True,
    precision: ElementType | None = None,
) -> Key:
    """Return the key for operands of these types. The division has the precision of the scale "unless the `precision`
    attribute is specified" (QuantizeLinear-28). Two types of scales cannot hold a quotient: float8e8m0 scales divide in
    float32, and int32 scales in float64, in which quotients of 32-bit integers are as good as exact."""
    if operation == "dequantize":
        return Key(operation, x, quantized, y)
    if precision is None:
        precision = {FLOAT8E8M0: FLOAT32, INT32: FLOAT64}.get(scale, scale)
    return Key(operation, x, quantized, y, precision, saturate or not has_unsaturated_form(quantized))


def has_unsaturated_form(quantized: ElementType) -> bool:
    """Return whether `saturate` = 0 has a meaning: "It only applies for float 8 quantization" (QuantizeLinear-28, saturate)."""
    return quantized.bits == 8 and not quantized.is_integer
