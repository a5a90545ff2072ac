"""Rewrite a Clip of codes between a quantize node and its dequantize nodes, as Brevitas writes it for fewer bits than the type
has. A Clip of constant codes is folded. Otherwise the three nodes become one node of fake quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..declaration import Affine, Dequantize, FakeQuantize, Quantize
from ..declaration.reasons import Invalid, require, stays_if
from ..element_types import FLOAT32, ElementType
from ..models.tensors import in_memory
from .constants import CONSTANT
from .fake_quantizers import write
from .graph import Graph
from .nodes import GraphOperand, Node

FUSED = "fused: quantize, Clip and dequantize in one step"

# Up to this many bits, the difference between a code and the zero point is exact in float32.
_MAX_BITS = 16


def rewrite(graph: Graph) -> None:
    graph.each(lambda node, dequantize: _rewrite(graph, node, dequantize), Dequantize)


def _rewrite(graph: Graph, node: Node, dequantize: Dequantize[GraphOperand]) -> None:
    clip = node.x.producer()
    if clip is None or clip.op_identifier() != ("", "Clip", "") or clip.attributes:
        return
    codes, value = clip.inputs[0], clip.outputs[0]
    bounds = _bounds(graph, clip, dequantize.element_type)
    if codes is None or bounds is None or value.is_graph_output():
        return
    if not all(index == 0 and graph.rewritable(user, Dequantize) for user, index in value.uses()):
        return
    array = graph.array(codes)
    if array is not None:
        clipped = in_memory(np.clip(array, *bounds).astype(array.dtype))
        value.replace_all_uses_with(graph.shared_constant(clipped, value.name, clip, value))
        graph.remove(clip, CONSTANT)
        return
    before = graph.rewritable(codes.producer(), Quantize) if graph.native_operators else None
    has_one_use = len(value.uses()) == len(codes.uses()) == 1 and not codes.is_graph_output()
    if before and has_one_use and before[0].ir_node.graph is node.ir_node.graph:
        write(graph, node, _in_one_step(graph, before[1], dequantize, bounds), FUSED)
        graph.remove(clip, FUSED)


def _bounds(graph: Graph, clip: ir.Node, codes: ElementType | None) -> tuple[int, int] | None:
    """Return the bounds of a Clip of integers; None if they are not constants of one element."""
    if codes is None or not codes.is_integer or codes.bits > _MAX_BITS:
        return None
    bounds = [int(codes.lowest), int(codes.highest)]
    for index, value in enumerate(clip.inputs[1:]):
        if value is not None:
            array = graph.array(value)
            if array is None or array.size != 1:
                return None
            bounds[index] = int(array.reshape(()))
    return bounds[0], bounds[1]


def _in_one_step(
    graph: Graph, quantize: Affine[GraphOperand], dequantize: Affine[GraphOperand], bounds: tuple[int, int]
) -> FakeQuantize[GraphOperand]:
    """Return the meaning of all three nodes. Raise NotRewrittenError if a single step would not return the same results."""
    unknown = "its scale or its zero point is not a constant"
    scale = require(quantize.scale.array, unknown)
    zeros = require(quantize.zero_point.array, unknown).astype(np.float64) if quantize.zero_point else np.zeros(scale.shape)
    is_same = quantize.has_same_parameters(dequantize) and quantize.element_type is dequantize.element_type
    stays_if(not is_same, "the dequantize node after it has other parameters")
    is_float32 = graph.inferred_type(quantize.x.value) is quantize.scale.element_type is FLOAT32
    is_float32 &= not (quantize.has_other_type or dequantize.has_other_type)
    stays_if(not is_float32 or quantize.block_size, "it computes in a type other than float32, or its scales are blocked")
    stays_if(zeros.size not in (1, scale.size), Invalid("not valid: its scale and its zero point have different shapes"))
    low, high = (bound - np.broadcast_to(zeros.reshape(-1), scale.size) for bound in bounds)
    parameters: dict[str, Any] = {"scale": scale, "low": low, "high": high}
    return FakeQuantize(quantize.x, "codes", "ROUND", parameters, quantize.axis)
