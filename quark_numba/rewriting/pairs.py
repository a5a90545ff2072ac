"""Fuse a quantize node and the equal dequantize nodes after it into one node that does both in one step, and the reasons why
some are not fused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..declaration import Affine, Quantize
from ..declaration.reasons import require, stays_if
from ..element_types import FLOAT32
from ..linear.operators import OPERATORS as LINEAR
from .graph import Graph
from .nodes import GraphOperand, Node

SHARED = "dropped: another node computes the same"
FUSED = "fused: quantize and dequantize in one step"
_ALONE = "no matching quantize or dequantize node is next to it"

(PAIR,) = (operator for operator in LINEAR if operator.operation == "quantize_dequantize")


def rewrite(graph: Graph) -> None:
    graph.each(lambda node, quantize: _fuse(graph, node, quantize), Quantize)
    for node in graph.nodes():
        if node.operator is not PAIR and node not in graph.reasons:
            before = graph.node(node.x.producer())
            graph.reasons[node] = graph.reasons.get(before, _ALONE) if before else _ALONE


def fusible_followers(graph: Graph, node: Node, quantize: Quantize[GraphOperand]) -> list[Node]:
    """Return the dequantize nodes after a quantize node, in the order of the model, if one fused node can replace them all.
    Raise NotRewrittenError as `Graph.followers` does, or if a fused node would return another result."""
    followers = graph.followers(node)
    first, *others = followers
    dequantize = graph.affine(first)
    for other in others:
        meaning = graph.affine(other)
        is_equal = first.ir_node.op_identifier() == other.ir_node.op_identifier()
        is_equal &= dequantize.computes_in is meaning.computes_in and dequantize.has_same_parameters(meaning)
        reason = "the dequantize nodes downstream of it differ, or are outputs of their graph"
        stays_if(not is_equal or other.y.is_graph_output(), reason)
    _check(graph, node, quantize, dequantize)
    return followers


def attributes(meaning: Affine[GraphOperand]) -> dict[str, Any]:
    """Return the attributes of the node that a quantize node and its dequantize nodes are fused into."""
    return {"axis": meaning.axis, "block_size": meaning.block_size, "saturate": int(meaning.saturate)}


def _fuse(graph: Graph, node: Node, quantize: Quantize[GraphOperand]) -> None:
    first, *others = fusible_followers(graph, node, quantize)
    zero_point = quantize.zero_point or graph.affine(first).zero_point
    operand = zero_point.value if zero_point else zeros(graph, node, quantize)
    for other in others:
        other.y.replace_all_uses_with(first.y)
        graph.remove(other, SHARED)
    graph.replace(first, PAIR, [quantize.x.value, quantize.scale.value, operand], attributes(quantize), FUSED)


def _check(graph: Graph, node: Node, quantize: Quantize[GraphOperand], dequantize: Affine[GraphOperand]) -> None:
    """Raise NotRewrittenError if a single step would not return the same results as two."""
    codes, scale = quantize.element_type, quantize.scale.element_type
    stays_if(not quantize.has_same_parameters(dequantize), "the dequantize node after it has other parameters")
    stays_if(codes and codes.name not in PAIR.formats, f"{PAIR.full_name} has no {codes and codes.name}")
    stays_if(scale not in (None, FLOAT32), "its scale is not float32")
    stays_if(quantize.has_other_type or dequantize.has_other_type, "it computes in a type other than float32")
    is_float32 = not node.is_standard or graph.inferred_type(quantize.x.value) is scale is FLOAT32
    stays_if(not is_float32, "its x and its scale are not both known to be float32")


def zeros(graph: Graph, node: Node, quantize: Quantize[GraphOperand]) -> ir.Value:
    """Return zeros for a node without a zero point. Raise NotRewrittenError if their shape is not known."""
    codes, array = quantize.element_type, quantize.scale.array
    assert codes
    unknown = "it has no zero point, and the shape of its scale is not known"
    shape: Any = require(graph.shape(quantize.scale.value) if array is None else array.shape, unknown)
    stays_if(not all(isinstance(length, int) and length >= 0 for length in shape), unknown)
    return graph.shared_array(np.zeros(shape, codes.dtype), f"zero_point_{codes.name}", node.ir_node)
