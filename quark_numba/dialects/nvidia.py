"""The operators of TensorRT, which NVIDIA Model Optimizer writes: names, inputs, element types, attributes, and what they mean
in the families."""

from __future__ import annotations

from dataclasses import replace

from ..block.formats import NVIDIA_MXFP8, NVIDIA_NVFP4
from ..block.key import FLOAT8E4M3FN
from ..block.operators import quantizer
from ..declaration import Attribute, Operator
from ..element_types import FLOAT8E8M0, UINT8, ElementType, named
from ..linear.operators import LinearOperator
from ..linear.versions import Version

_DOMAIN = "trt"
_FLOATS = named("float32 float16 bfloat16")


def _quantize_linear(name: str, *, has_zero_point: bool) -> Operator:
    codes = (FLOAT8E4M3FN,)
    version = Version("quantize", _DOMAIN, name, 1, _FLOATS, _FLOATS, codes, codes, ("axis", "saturate"), scale_as_x=True)
    return LinearOperator(version, has_zero_point, FLOAT8E4M3FN).declaration


def _dequantize(name: str, codes: tuple[ElementType, ...], scale: tuple[ElementType, ...], *attributes: str) -> Version:
    return Version("dequantize", _DOMAIN, name, 1, codes, scale, codes, _FLOATS, attributes, scale_as_x=False)


def _dequantize_linear(name: str, codes: str) -> Operator:
    version = _dequantize(name, (*named(codes), UINT8), _FLOATS, "axis", "block_size")
    return LinearOperator(version, uint8_holds=FLOAT8E4M3FN).declaration


def _mxfp8_dequantize_linear(name: str) -> Operator:
    version = _dequantize(name, (FLOAT8E4M3FN,), (UINT8,), "axis", "block_size", "output_dtype")
    linear = LinearOperator(version, False, FLOAT8E8M0).declaration
    defaults = {"axis": -1, "block_size": NVIDIA_MXFP8.block_size, "output_dtype": 1}
    attributes = (Attribute(attribute.name, defaults[attribute.name], attribute.doc) for attribute in linear.attributes)
    return replace(linear, attributes=tuple(attributes))


OPERATORS = (
    _quantize_linear("QuantizeLinear", has_zero_point=True),
    _quantize_linear("TRT_FP8QuantizeLinear", has_zero_point=False),
    _dequantize_linear("DequantizeLinear", "float8e4m3fn int8 int4 uint4 float4e2m1"),
    _dequantize_linear("TRT_FP8DequantizeLinear", "float8e4m3fn"),
    quantizer(_DOMAIN, "TRT_FP4DynamicQuantize", NVIDIA_NVFP4, "scale_type"),
    quantizer(_DOMAIN, "TRT_MXFP8DynamicQuantize", NVIDIA_MXFP8, "output_dtype"),
    _mxfp8_dequantize_linear("TRT_MXFP8DequantizeLinear"),
)
