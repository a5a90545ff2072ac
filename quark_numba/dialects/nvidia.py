"""The operators of TensorRT, which NVIDIA's Model Optimizer writes."""

from __future__ import annotations

from dataclasses import replace

from ..declaration import Attribute, Operator
from ..dynamic_blocks.key import FLOAT8E4M3FN, MXFP8, NVFP4
from ..dynamic_blocks.operators import quantizer
from ..element_types import FLOAT8E8M0
from ..linear.operators import operator
from ..linear.versions import dequantize, quantize

_DOMAIN = "trt"
_FLOATS = "float32 float16 bfloat16"


def _quantize_linear(name: str, *, has_zero_point: bool) -> Operator:
    version = quantize(_DOMAIN, name, 1, _FLOATS, "x", "float8e4m3fn", "axis saturate")
    return operator(version._replace(has_zero_point=has_zero_point, uint8_holds=FLOAT8E4M3FN))


def _dequantize_linear(name: str, codes: str) -> Operator:
    version = dequantize(_DOMAIN, name, 1, f"{codes} uint8", _FLOATS, _FLOATS, "axis block_size")
    return operator(version._replace(uint8_holds=FLOAT8E4M3FN))


def _mxfp8_dequantize_linear(name: str) -> Operator:
    version = dequantize(_DOMAIN, name, 1, "float8e4m3fn", "uint8", _FLOATS, "axis block_size output_dtype")
    of_linear = operator(version._replace(has_zero_point=False, uint8_holds=FLOAT8E8M0))
    defaults = {"axis": -1, "block_size": MXFP8.block_size, "output_dtype": 1}
    attributes = (Attribute(each.name, defaults[each.name], each.doc) for each in of_linear.attributes)
    return replace(of_linear, attributes=tuple(attributes))


OPERATORS = (
    _quantize_linear("QuantizeLinear", has_zero_point=True),
    _quantize_linear("TRT_FP8QuantizeLinear", has_zero_point=False),
    _dequantize_linear("DequantizeLinear", "float8e4m3fn int8 int4 uint4 float4e2m1"),
    _dequantize_linear("TRT_FP8DequantizeLinear", "float8e4m3fn"),
    quantizer(_DOMAIN, "TRT_FP4DynamicQuantize", NVFP4, "scale_type"),
    quantizer(_DOMAIN, "TRT_MXFP8DynamicQuantize", MXFP8, "output_dtype"),
    _mxfp8_dequantize_linear("TRT_MXFP8DequantizeLinear"),
)
