"""What selects a kernel: an operation and its element types."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..element_types import BFLOAT16, FLOAT8E8M0, FLOAT16, FLOAT32, FLOAT64, INT32, ElementType
from .versions import Operation

# What the division of quantize may be computed in. A dequantizing product always is in float32.
PRECISIONS = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)


class Key(NamedTuple):
    """The dispatch table has a kernel for each. `quantized` is the type of y for "quantize", that of x for "dequantize"; it is
    also the type of the zero point. `saturate` is the attribute of that name, and True for all but float8 types."""

    operation: Operation
    x: ElementType
    quantized: ElementType
    y: ElementType
    precision: ElementType = FLOAT32
    saturate: bool = True

    @property
    def steps(self) -> tuple[Key, Key]:
        """Of "quantize_dequantize": the keys of quantize and dequantize, one after the other."""
        quantize = Key("quantize", self.x, self.quantized, self.quantized, self.precision, self.saturate)
        return quantize, Key("dequantize", self.quantized, self.quantized, self.y)

    @property
    def scale_dtype(self) -> Any:
        """In which kernels take scales: it holds every value of the scale's type."""
        return np.float64 if self.precision is FLOAT64 else np.float32

    @property
    def zero_point_dtype(self) -> Any:
        """In which kernels take zero points: it holds every value of the quantized type."""
        return np.float64 if self.quantized.is_integer and self.quantized.bits > 16 else np.float32

    @property
    def name(self) -> str:
        """For symbols: another one for each key."""
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
    """The key for operands of these types. The precision of the division is that of the scale, "unless the `precision`
    attribute is specified" (QuantizeLinear-28), but float32 for a float8e8m0 scale, as it cannot hold a quotient, and
    float64 for an int32 scale, in which quotients of such numbers are as good as exact."""
    if operation == "dequantize":
        return Key(operation, x, quantized, y)
    if precision is None:
        precision = {FLOAT8E8M0: FLOAT32, INT32: FLOAT64}.get(scale, scale)
    return Key(operation, x, quantized, y, precision, saturate or not has_unsaturated_form(quantized))


def has_unsaturated_form(quantized: ElementType) -> bool:
    """ "It only applies for float 8 quantization" (QuantizeLinear-28, saturate)."""
    return quantized.bits == 8 and not quantized.is_integer
