"""All versions of the family's operators, each with its element types and attributes."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

from ..element_types import ElementType, named

Operation = Literal["quantize", "dequantize", "quantize_dequantize"]
Role = Literal["x", "scale", "quantized", "y"]

# The domain of the operators that `optimize` writes.
OWN_DOMAIN = "quark_numba"

# The attributes, each with the value that an omitted attribute has.
DEFAULTS = {"axis": 1, "saturate": 1, "block_size": 0, "output_dtype": 0, "precision": 0}


class Version(NamedTuple):
    """A version of an operator. `x`, `scale` and `y` are the element types of these tensors. `quantized` are the element
    types of the zero point; they are also the types of y for "quantize" and of x for "dequantize"."""

    operation: Operation
    domain: str
    name: str
    since_version: int
    x: tuple[ElementType, ...]
    scale: tuple[ElementType, ...]
    quantized: tuple[ElementType, ...]
    y: tuple[ElementType, ...]
    attributes: tuple[str, ...]
    scale_as_x: bool  # whether the scale must have the type of x


def _quantize(domain: str, name: str, since_version: int, x: str, scale: str, y: str, attributes: str) -> Version:
    scales, codes = named(x if scale == "x" else scale), named(y)
    return Version(
        "quantize", domain, name, since_version, named(x), scales, codes, codes, tuple(attributes.split()), scale == "x"
    )


def _dequantize(domain: str, name: str, since_version: int, x: str, scale: str, y: str, attributes: str) -> Version:
    codes = named(x)
    return Version(
        "dequantize", domain, name, since_version, codes, named(scale), codes, named(y), tuple(attributes.split()), False
    )


_onnx_quantize = functools.partial(_quantize, "", "QuantizeLinear")
_onnx_dequantize = functools.partial(_dequantize, "", "DequantizeLinear")

# The types of codes, by the opset that adds them.
_OPSET_10 = "uint8 int8"
_OPSET_19 = f"{_OPSET_10} float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz"
_OPSET_21 = f"{_OPSET_19} uint16 int16 uint4 int4"
_OPSET_23 = f"{_OPSET_21} float4e2m1"
_OPSET_25 = f"{_OPSET_23} uint2 int2"
_OPSET_28 = f"{_OPSET_25} float6e2m3 float6e3m2"
_FULL = "float32 float16 bfloat16"
_INPUTS = f"{_FULL} int32"
_EXTENDED = "uint8 int8 uint16 int16 uint32 int32 float16 bfloat16"

_QUANTIZE_28 = (_INPUTS, f"{_INPUTS} float8e8m0", _OPSET_28, "axis saturate block_size output_dtype precision")
_DEQUANTIZE_28 = (f"{_OPSET_28} int32", f"{_FULL} float8e8m0", _FULL, "axis block_size output_dtype")

VERSIONS = (
    _onnx_quantize(10, "float32 int32", "float32", _OPSET_10, ""),
    _onnx_quantize(13, "float32 int32", "float32", _OPSET_10, "axis"),
    _onnx_quantize(19, _INPUTS, "x", _OPSET_19, "axis saturate"),
    _onnx_quantize(21, _INPUTS, "x", _OPSET_21, "axis saturate block_size output_dtype"),
    _onnx_quantize(23, _INPUTS, _INPUTS, _OPSET_23, "axis saturate block_size output_dtype precision"),
    _onnx_quantize(24, _INPUTS, f"{_INPUTS} float8e8m0", _OPSET_23, "axis saturate block_size output_dtype precision"),
    _onnx_quantize(25, _INPUTS, f"{_INPUTS} float8e8m0", _OPSET_25, "axis saturate block_size output_dtype precision"),
    _onnx_quantize(28, *_QUANTIZE_28),
    _onnx_dequantize(10, f"{_OPSET_10} int32", "float32", "float32", ""),
    _onnx_dequantize(13, f"{_OPSET_10} int32", "float32", "float32", "axis"),
    _onnx_dequantize(19, f"{_OPSET_19} int32", _FULL, _FULL, "axis"),
    _onnx_dequantize(21, f"{_OPSET_21} int32", _FULL, _FULL, "axis block_size"),
    _onnx_dequantize(23, f"{_OPSET_23} int32", _FULL, _FULL, "axis block_size output_dtype"),
    _onnx_dequantize(24, f"{_OPSET_23} int32", f"{_FULL} float8e8m0", _FULL, "axis block_size output_dtype"),
    _onnx_dequantize(25, f"{_OPSET_25} int32", f"{_FULL} float8e8m0", _FULL, "axis block_size output_dtype"),
    _onnx_dequantize(28, *_DEQUANTIZE_28),
    _quantize("com.amd.quark", "ExtendedQuantizeLinear", 1, "float32", "float32", _EXTENDED, "axis"),
    _dequantize("com.amd.quark", "ExtendedDequantizeLinear", 1, _EXTENDED, "float32", "float32", "axis"),
    # What `optimize` writes. The first two are ONNX's newest versions under names that ONNX Runtime's optimizers do not know.
    # These look for nodes named QuantizeLinear and DequantizeLinear, in any domain.
    _quantize(OWN_DOMAIN, "Quantize", 1, *_QUANTIZE_28),
    _dequantize(OWN_DOMAIN, "Dequantize", 1, *_DEQUANTIZE_28),
    Version(
        operation="quantize_dequantize",
        domain=OWN_DOMAIN,
        name="QuantizeDequantizeLinear",
        since_version=1,
        x=named("float32"),
        scale=named("float32"),
        quantized=named(f"{_OPSET_28} uint32 int32 float16 bfloat16"),
        y=named("float32"),
        attributes=("axis", "block_size", "saturate"),
        scale_as_x=False,
    ),
)

# The newest opset of ONNX that the table covers.
LATEST_OPSET = 28


@functools.cache
def version_of_opset(operation: Operation, opset: int) -> Version | None:
    """Return the version of QuantizeLinear or DequantizeLinear in an opset of ONNX, or None if the opset is unknown."""
    versions = [version for version in VERSIONS if version.operation == operation and not version.domain]
    known = [version for version in versions if version.since_version <= opset <= LATEST_OPSET]
    return known[-1] if known else None


@functools.cache
def types(operation: Operation, role: Role) -> tuple[ElementType, ...]:
    """Return the element types that any version has for a role."""
    versions = [version for version in VERSIONS if version.operation == operation]
    return tuple(dict.fromkeys(element_type for version in versions for element_type in getattr(version, role)))
