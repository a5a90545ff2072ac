"""Estimates of the difference in time between integer operators of ONNX Runtime and float operators between this package's
nodes, which decide whether a group is rewritten."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from ..graph import Graph

# In nanoseconds for each multiplication or element, on one thread of a processor with AVX2. Only the ratios matter. They were
# fitted to 11 architectures in uint8, in int8, and with activations in uint8 and weights in int8; `pytest bench` measures the
# resulting models. On every processor the same numbers count. The processor enters through the type of the weights, which is
# int8 where ONNX Runtime's products of uint8 and int8 are exact (``rules``).
_MATRIX_PRODUCT_COSTS = {"uint8": -0.0083, "int8": -0.0122}  # by the type of the weights
_PRODUCT_COSTS = {"Conv": {"uint8": -0.004, "int8": -0.010}, "MatMul": _MATRIX_PRODUCT_COSTS, "Gemm": _MATRIX_PRODUCT_COSTS}
_IMAGE_COST = 1.6  # of each element of the output of a convolution of at most four channels, beyond the above
_OUTPUT_COSTS = {"MatMul": -0.7, "Gemm": -0.7, "Mul": 0.35, "Div": 0.35}  # of each element of the output
_QUANTIZATION_COST = 0.5  # of each element that is quantized or dequantized between float and integer operators

# The size that is assumed for an unknown dimension other than the first one: a usual size of images and sequences after some
# layers.
_UNKNOWN = 32


def operator_cost(graph: Graph, node: ir.Node, weights_type: str) -> float:
    """Return the time that an operator on integers takes beyond the time of the float operator. `weights_type` is the type of
    the codes of its second input."""
    x, weights = (*node.inputs, None)[:2]
    elements = prod(_shape(graph, node.outputs[0]))
    total = _OUTPUT_COSTS.get(node.op_type, 0) * elements
    costs = _PRODUCT_COSTS.get(node.op_type)
    if weights is None or costs is None:
        return total
    factor, shape = costs[weights_type], _shape(graph, weights)
    if node.op_type != "Conv":
        return total + factor * elements * (_shape(graph, x) or [1])[-1]
    is_image = len(shape) > 1 and 1 < shape[1] <= 4
    return total + elements * (factor * prod(shape[1:]) + _IMAGE_COST * is_image)


def quantization_cost(graph: Graph, value: ir.Value) -> float:
    """Return the time of a node that quantizes or dequantizes a value."""
    return _QUANTIZATION_COST * prod(_shape(graph, value))


def _shape(graph: Graph, value: ir.Value | None) -> list[int]:
    """Return the shape of a value. An unknown first dimension, often the batch, is taken to be 1, and any other unknown
    dimension to be `_UNKNOWN`."""
    # Some models say -1 where a dimension is unknown.
    known = [length if isinstance(length, int) and length > 0 else None for length in graph.shape(value) or ()]
    return [length or (_UNKNOWN if place else 1) for place, length in enumerate(known)]
