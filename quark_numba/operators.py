"""The operators, version by version: which element types and attributes each has.

One table, which direct calls, the schemas, the sessions and the command all read.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

from .element_types import ELEMENT_TYPES, ElementType

Operation = Literal["quantize", "dequantize", "quantize_dequantize"]
Operand = Literal["x", "scale", "y", "via"]

INPUT_NAMES: dict[Operation, tuple[str, str, str]] = {
    "quantize": ("x", "y_scale", "y_zero_point"),
    "dequantize": ("x", "x_scale", "x_zero_point"),
    "quantize_dequantize": ("x", "scale", "zero_point"),
}

# The operand that has the quantized type.
QUANTIZED: dict[Operation, Operand] = {"quantize": "y", "dequantize": "x", "quantize_dequantize": "via"}

# The attributes, and the value that stands for leaving one out.
DEFAULTS = {"axis": 1, "saturate": 1, "block_size": 0, "output_dtype": 0, "precision": 0}


class OperatorVersion(NamedTuple):
    """A version of an operator. Its inputs are x, a scale and, optionally, a zero point of the quantized type. What goes to a
    quantized type and back names that in `via`, and needs the zero point, which is all that tells it."""

    operation: Operation
    domain: str
    name: str
    since_version: int
    x: tuple[ElementType, ...]
    scale: tuple[ElementType, ...]
    y: tuple[ElementType, ...]
    attributes: tuple[str, ...]
    # Of quantize: whether the scale must have the type of x.
    scale_as_x: bool
    via: tuple[ElementType, ...] = ()

    @property
    def quantized(self) -> tuple[ElementType, ...]:
        return getattr(self, QUANTIZED[self.operation])

    @property
    def full_name(self) -> str:
        return f"{self.domain or 'ai.onnx'}::{self.name}"


_ROWS = {row.name: row for row in ELEMENT_TYPES}


def _version(
    operation: Operation, domain: str, name: str, since_version: int, x: str, scale: str, y: str, attributes: str, via: str = ""
) -> OperatorVersion:
    def rows(names: str) -> tuple[ElementType, ...]:
        return tuple(_ROWS[name] for name in names.split())

    scales = rows(x if scale == "x" else scale)
    return OperatorVersion(
        operation, domain, name, since_version, rows(x), scales, rows(y), tuple(attributes.split()), scale == "x", rows(via)
    )


_quantize = functools.partial(_version, "quantize", "", "QuantizeLinear")
_dequantize = functools.partial(_version, "dequantize", "", "DequantizeLinear")

_10 = "uint8 int8"
_19 = f"{_10} float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz"
_21 = f"{_19} uint16 int16 uint4 int4"
_23 = f"{_21} float4e2m1"
_25 = f"{_23} uint2 int2"
_28 = f"{_25} float6e2m3 float6e3m2"
_FULL = "float32 float16 bfloat16"
_EXTENDED = "uint8 int8 uint16 int16 uint32 int32 float16 bfloat16"

OPERATOR_VERSIONS = (
    _quantize(10, "float32 int32", "float32", _10, ""),
    _quantize(13, "float32 int32", "float32", _10, "axis"),
    _quantize(19, f"{_FULL} int32", "x", _19, "axis saturate"),
    _quantize(21, f"{_FULL} int32", "x", _21, "axis saturate block_size output_dtype"),
    _quantize(23, f"{_FULL} int32", f"{_FULL} int32", _23, "axis saturate block_size output_dtype precision"),
    _quantize(24, f"{_FULL} int32", f"{_FULL} int32 float8e8m0", _23, "axis saturate block_size output_dtype precision"),
    _quantize(25, f"{_FULL} int32", f"{_FULL} int32 float8e8m0", _25, "axis saturate block_size output_dtype precision"),
    _quantize(28, f"{_FULL} int32", f"{_FULL} int32 float8e8m0", _28, "axis saturate block_size output_dtype precision"),
    _dequantize(10, f"{_10} int32", "float32", "float32", ""),
    _dequantize(13, f"{_10} int32", "float32", "float32", "axis"),
    _dequantize(19, f"{_19} int32", _FULL, _FULL, "axis"),
    _dequantize(21, f"{_21} int32", _FULL, _FULL, "axis block_size"),
    _dequantize(23, f"{_23} int32", _FULL, _FULL, "axis block_size output_dtype"),
    _dequantize(24, f"{_23} int32", f"{_FULL} float8e8m0", _FULL, "axis block_size output_dtype"),
    _dequantize(25, f"{_25} int32", f"{_FULL} float8e8m0", _FULL, "axis block_size output_dtype"),
    _dequantize(28, f"{_28} int32", f"{_FULL} float8e8m0", _FULL, "axis block_size output_dtype"),
    _version("quantize", "com.amd.quark", "ExtendedQuantizeLinear", 1, "float32", "float32", _EXTENDED, "axis"),
    _version("dequantize", "com.amd.quark", "ExtendedDequantizeLinear", 1, _EXTENDED, "float32", "float32", "axis"),
    # The names of older models.
    _version("quantize", "com.vai.quantize", "VitisQuantizeLinear", 1, "float32", "float32", _EXTENDED, "axis"),
    _version("dequantize", "com.vai.quantize", "VitisDequantizeLinear", 1, _EXTENDED, "float32", "float32", "axis"),
    # What `optimize` writes.
    _version(
        "quantize_dequantize",
        "quark_numba",
        "QuantizeDequantizeLinear",
        1,
        "float32",
        "float32",
        "float32",
        "axis block_size saturate",
        f"{_28} uint32 int32 float16 bfloat16",
    ),
)

# Names of operators that quantize, of this package or not.
QUANTIZATION = re.compile(r"(Quantize|Dequantize)(Linear|Dequantize)$|FixNeuron$")


@functools.cache
def operator_version(operation: Operation, opset: int) -> OperatorVersion | None:
    """The version of QuantizeLinear or DequantizeLinear that ONNX's opset has, if it is one that is known."""
    versions = [version for version in OPERATOR_VERSIONS if version.operation == operation and not version.domain]
    known = [version for version in versions if version.since_version <= opset <= LATEST_OPSET]
    return known[-1] if known else None


# The newest opset that has been looked at.
LATEST_OPSET = 28


@functools.cache
def types(operation: Operation, operand: Operand) -> tuple[ElementType, ...]:
    """What any version takes for the operand."""
    versions = [version for version in OPERATOR_VERSIONS if version.operation == operation]
    return tuple(dict.fromkeys(row for version in versions for row in getattr(version, operand)))


@functools.cache
def newest_versions(domain: str) -> tuple[OperatorVersion, ...]:
    """The newest version of each operator in a domain; it takes all that the older ones do."""
    return tuple({version.name: version for version in OPERATOR_VERSIONS if version.domain == domain}.values())
