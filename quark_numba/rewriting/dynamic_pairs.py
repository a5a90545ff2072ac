"""Fuse a node that computes scales of blocks and quantizes the blocks with the nodes that dequantize its codes."""

from __future__ import annotations

import onnx_ir as ir

from ..catalog import OPERATORS
from ..declaration import Dequantize, DynamicQuantize
from ..declaration.reasons import require, stays_if
from ..element_types import FLOAT32
from ..linear.versions import OWN_DOMAIN
from .graph import Graph
from .nodes import GraphOperand, Node, have_same_bits
from .pairs import FUSED, SHARED


def rewrite(graph: Graph) -> None:
    graph.each(lambda node, quantize: _fuse(graph, node, quantize), DynamicQuantize)


def _fuse(graph: Graph, node: Node, quantize: DynamicQuantize[GraphOperand]) -> None:
    def users(value: ir.Value, index: int) -> list[Node]:
        return graph.followers(node, value, index, "its codes or scales")

    codes, scales = node.ir_node.outputs
    factors = [scales]
    if quantize.scale:
        factors = []
        for first in users(scales, 0):
            meaning = _dequantize(graph, first)
            is_same = not meaning.block_size and _is_same_number(meaning.scale, quantize.scale)
            stays_if(not is_same, f"{first.full_name} after its scales has another scale")
            factors.append(first.y)
    followers = users(codes, 0)
    users_of_scales = {user for value in factors for user in users(value, 1)}
    stays_if({*followers} != users_of_scales, "its codes and its scales have different users")
    first, *others = followers
    for follower in followers:
        meaning = _dequantize(graph, follower)
        has_same_axis = _axis(graph, node, meaning.axis) == _axis(graph, node, quantize.axis)
        is_same = has_same_axis and meaning.block_size == quantize.block_size
        stays_if(not is_same, f"{follower.full_name} after it has other blocks")
    stays_if(graph.inferred_type(node.x) is not FLOAT32, "its x is not known to be float32")
    are_outputs = any(other.y.is_graph_output() for other in others)
    stays_if(are_outputs, "the dequantize nodes downstream of it are outputs of their graph")
    operator = OPERATORS.find(OWN_DOMAIN, quantize.round_trip)
    assert operator
    for other in others:
        other.y.replace_all_uses_with(first.y)
        graph.remove(other, SHARED)
    inputs = [quantize.x.value, *([quantize.scale.value] if quantize.scale else [])]
    graph.replace(first, operator, inputs, {"axis": quantize.axis, "block_size": quantize.block_size}, FUSED)


def _dequantize(graph: Graph, node: Node) -> Dequantize[GraphOperand]:
    """Return the meaning of a dequantize node. Raise NotRewrittenError unless it returns float32, and has no zero point."""
    meaning = graph.meaning(node)
    assert isinstance(meaning, Dequantize)
    stays_if(not meaning.is_symmetric, f"{node.full_name} after it has a zero point")
    is_float32 = FLOAT32 in (meaning.computes_in, graph.inferred_type(node.y), meaning.scale.element_type)
    is_float32 &= not meaning.has_other_type
    stays_if(not is_float32, f"{node.full_name} after it is not known to return float32")
    return meaning


def _axis(graph: Graph, node: Node, axis: int) -> int:
    """Return an axis of x as a negative number. Raise NotRewrittenError if the rank of x is needed and not known."""
    return axis - len(require(graph.shape(node.x) if axis >= 0 else (), "the rank of its x is not known"))


def _is_same_number(one: GraphOperand, other: GraphOperand) -> bool:
    """Return whether two scales of one element are the same. One may be a scalar, and the other have a dimension."""
    if one.is_same(other):
        return True
    a, b = one.array, other.array
    return a is not None and b is not None and a.size == 1 and have_same_bits(a.reshape(-1), b.reshape(-1))
