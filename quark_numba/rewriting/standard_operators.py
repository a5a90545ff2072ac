"""Leave ONNX's own operators, and those of com.microsoft, that are ONNX Runtime's to run."""

from __future__ import annotations

import onnx_ir as ir

from ..element_types import FLOAT32
from .graph import Graph


def rewrite(graph: Graph) -> None:
    """All of them, if they quantize activations anywhere in the model; and those of types in which ONNX Runtime's results may
    differ from the specification's."""
    standard = [node for node in graph.nodes() if node.is_standard]
    if graph.standard_ops:
        standard = [node for node in standard if node.node.domain]
    is_integer_model = any(node.operation == "dequantize" and _is_onnx_runtimes(graph, node.x) for node in standard)
    for node in standard:
        quantized, scale = graph.quantized_type(node), graph.type(node.input(1))
        wraps = quantized is not None and quantized.bits == 32 and not graph.is_zero(node.input(2))
        if is_integer_model:
            graph.reasons[node] = "ONNX Runtime may fuse it with its neighbours into an integer operator"
        elif wraps or quantized is None or not quantized.is_integer or quantized.bits < 4 or scale is not FLOAT32:
            graph.reasons[node] = "ONNX Runtime's result may differ from the specification's"


def _is_onnx_runtimes(graph: Graph, codes: ir.Value) -> bool:
    """Whether codes come neither from a constant nor from a quantize node of this package."""
    quantize = graph.node(codes.producer())
    if quantize is None or quantize.operation != "quantize":
        return graph.array(codes) is None
    return quantize.is_standard and graph.array(quantize.x) is None
