"""Fuse a node that computes scales of blocks and quantizes them, and the nodes that dequantize its codes, into one."""

from __future__ import annotations

import onnx_ir as ir

from ..catalog import OPERATORS
from ..declaration import Dequantize, DynamicQuantize
from ..declaration.reasons import NotRewrittenError, require, stays_if
from ..element_types import FLOAT32
from ..linear.versions import OWN_DOMAIN
from .graph import Graph
from .nodes import Node, Operand, have_same_bits
from .pairs import FUSED, SHARED


def rewrite(graph: Graph) -> None:
    graph.each(lambda node, quantize: _fuse(graph, node, quantize), DynamicQuantize)


def _fuse(graph: Graph, node: Node, quantize: DynamicQuantize[Operand]) -> None:
    def users(value: ir.Value, index: int) -> list[Node]:
        return graph.followers(node, value, index, "its codes or scales", "its codes or its scales")

    codes, scales = node.ir_node.outputs
    factors = [scales]
    if quantize.scale:
        factors = []
        for first in users(scales, 0):
            meaning = _dequantize(graph, first)
            if meaning.block_size or not _is_same_number(meaning.scale, quantize.scale):
                raise NotRewrittenError(f"{first.full_name} after its scales has another scale")
            factors.append(first.y)
    followers = users(codes, 0)
    if {*followers} != {user for value in factors for user in users(value, 1)}:
        raise NotRewrittenError("its codes and its scales have different users")
    first, *others = followers
    for follower in followers:
        meaning = _dequantize(graph, follower)
        if (meaning.block_size, _axis(graph, node, meaning.axis)) != (quantize.block_size, _axis(graph, node, quantize.axis)):
            raise NotRewrittenError(f"{follower.full_name} after it has other blocks")
    stays_if(graph.inferred_type(node.x) is not FLOAT32, "its x is not known to be float32")
    if any(other.y.is_graph_output() for other in others):
        raise NotRewrittenError("the dequantize nodes downstream of it are outputs of their graph")
    operator = OPERATORS.find(OWN_DOMAIN, quantize.round_trip)
    assert operator
    for other in others:
        other.y.replace_all_uses_with(first.y)
        graph.remove(other, SHARED)
    inputs = [quantize.x.value, *([quantize.scale.value] if quantize.scale else [])]
    graph.replace(first, operator, inputs, {"axis": quantize.axis, "block_size": quantize.block_size}, FUSED)


def _dequantize(graph: Graph, node: Node) -> Dequantize[Operand]:
    """Return the meaning of a dequantize node. Raise NotRewrittenError unless it returns float32, and has no zero point."""
    meaning = graph.meaning(node)
    assert isinstance(meaning, Dequantize)
    stays_if(not meaning.is_symmetric, f"{node.full_name} after it has a zero point")
    if FLOAT32 not in (meaning.computes_in, graph.inferred_type(node.y), meaning.scale.element_type) or meaning.has_other_type:
        raise NotRewrittenError(f"{node.full_name} after it is not known to return float32")
    return meaning


def _axis(graph: Graph, node: Node, axis: int) -> int:
    """Return an axis of x as a negative number. Raise NotRewrittenError if that is not possible."""
    return axis - len(require(graph.shape(node.x) if axis >= 0 else (), "the rank of its x is not known"))


def _is_same_number(one: Operand, other: Operand) -> bool:
    """Return whether two scales of one element are the same. One may be a scalar, and the other have a dimension."""
    if one.is_same(other):
        return True
    numbers = one.array, other.array
    if numbers[0] is None or numbers[1] is None or numbers[0].size != 1:
        return False
    return have_same_bits(numbers[0].reshape(-1), numbers[1].reshape(-1))
