"""The operators that sessions get: one declarative list, read by both ways of registration and by the command."""

from __future__ import annotations

from typing import NamedTuple

from ..dispatch import TABLE, Key, Operation


class Operator(NamedTuple):
    """An ONNX operator: inputs x, scale and, optionally, a zero point; attribute axis, 1 if it is left out."""

    domain: str
    name: str
    operation: Operation

    @property
    def overloads(self) -> list[Key]:
        """One a quantized element type. The first decides the output of a QuantizeLinear without a zero point: uint8."""
        return [key for key in TABLE if key.operation == self.operation]

    @property
    def input_names(self) -> tuple[str, str, str]:
        return ("x", "y_scale", "y_zero_point") if self.operation == "quantize" else ("x", "x_scale", "x_zero_point")


DEFAULT_AXIS = 1

# com.vai.quantize holds the names of older models.
OPERATORS = (
    Operator("com.amd.quark", "ExtendedQuantizeLinear", "quantize"),
    Operator("com.amd.quark", "ExtendedDequantizeLinear", "dequantize"),
    Operator("com.vai.quantize", "VitisQuantizeLinear", "quantize"),
    Operator("com.vai.quantize", "VitisDequantizeLinear", "dequantize"),
)
