"""Quantize and dequantize in one step: one node for a quantize node and the equal dequantize nodes behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..catalog import OPERATORS
from ..element_types import FLOAT32
from .graph import Graph, Left, Node, copy_metadata

SHARED = "dropped: another node gives the same"
FUSED = "fused: there and back in one step"

# The operator that does both.
(PAIR,) = (operator for operator in OPERATORS if operator.operation == "quantize_dequantize")


def rewrite(graph: Graph) -> None:
    zero_points: dict[Any, ir.Value] = {}
    graph.each(lambda node: _fuse(graph, node, zero_points))
    for node in graph.nodes():
        if node not in graph.reasons:
            before = graph.node(node.x.producer())
            graph.reasons[node] = graph.reasons.get(before, _ALONE) if before else _ALONE


_ALONE = "nothing beside it quantizes what it dequantizes"


def followers(graph: Graph, node: Node) -> list[Node]:
    """The dequantize nodes behind a quantize node, the first one first; each gives what one node instead of both would.

    Raises
    ------
    Left
        Where a user of its codes is another node, or one node would not give the same.
    """
    if node.y.is_graph_output():
        raise Left("its codes are an output of its graph")
    if not node.y.uses():
        raise Left("nothing uses it")
    found = sorted((_follower(graph, node, user, index) for user, index in node.y.uses()), key=lambda each: each.place)
    first, *others = found
    for other in others:
        if not _is_equal(graph, first, other) or other.y.is_graph_output():
            raise Left("several dequantize nodes, not equal, or outputs of their graph, are behind it")
    _check(graph, node, first)
    return found


def attributes(node: Node) -> dict[str, Any]:
    """Those of one node instead of a quantize node and what is behind it."""
    return {each.name: node.attributes.get(each.name, each.default) for each in PAIR.attributes}


def _fuse(graph: Graph, node: Node, zero_points: dict[Any, ir.Value]) -> None:
    if node.operation != "quantize":
        return
    first, *others = followers(graph, node)
    zero_point = node.input(2) or first.input(2)
    scale, zero_point = node.input(1), zero_point or _zero_point(graph, node, zero_points)
    for other in others:
        other.y.replace_all_uses_with(first.y)
        graph.remove(other, SHARED)
    inputs, name, of_node = [node.x, scale, zero_point], first.node.name, node.node.graph
    pair = ir.node(PAIR.name, inputs, attributes(node), domain=PAIR.domain, outputs=[ir.Value()], name=name)
    assert of_node
    ir.convenience.replace_nodes_and_values(of_node, first.node, [first.node], [pair], [first.y], list(pair.outputs))
    copy_metadata(first.y, pair.outputs[0])
    copy_metadata(first.node, pair)
    graph.done[first.full_name, FUSED] += 1
    graph.remove(node, FUSED)
    graph.model.opset_imports.setdefault(PAIR.domain, PAIR.since_version)


def _follower(graph: Graph, node: Node, user: ir.Node, index: int) -> Node:
    follower = graph.node(user)
    if follower is None or follower.operation != "dequantize" or index or user.graph is not node.node.graph:
        raise Left("its codes are used elsewhere")
    if follower in graph.reasons:
        raise Left(f"what dequantizes it is left: {graph.reasons[follower]}")
    return follower


def _is_equal(graph: Graph, one: Node, other: Node) -> bool:
    return (
        one.node.op_identifier() == other.node.op_identifier()
        and one.attributes.get("output_dtype") == other.attributes.get("output_dtype")
        and graph.same_parameters(one, other)
    )


def _check(graph: Graph, quantize: Node, dequantize: Node) -> None:
    """Raises Left where one step would not give the same."""
    quantized = graph.quantized_type(quantize)
    if not graph.same_parameters(quantize, dequantize):
        raise Left("what is behind it dequantizes with other parameters")
    if quantized is not None and quantized.name not in PAIR.formats:
        raise Left(f"{PAIR.full_name} has no {quantized.name}")
    if graph.type(quantize.input(1)) not in (None, FLOAT32):
        raise Left("its scale is not float32")
    types = (0, FLOAT32.number)
    if quantize.attributes.get("precision", 0) not in types or dequantize.attributes.get("output_dtype", 0) not in types:
        raise Left("it computes in another type than float32")
    if quantize.is_standard and not graph.type(quantize.x) is graph.type(quantize.input(1)) is FLOAT32:
        raise Left("its x and its scale are not both known to be float32")


def _zero_point(graph: Graph, node: Node, zero_points: dict[Any, ir.Value]) -> ir.Value:
    """Zeros for a node that has no zero point; one tensor for all that are alike."""
    scale, quantized, of_node = node.input(1), graph.quantized_type(node), node.node.graph
    assert scale is not None
    assert quantized
    array = graph.array(scale)
    if array is None and (scale.shape is None or not scale.shape.is_static()):
        raise Left("it has no zero point, and the shape of its scale is not known")
    shape = array.shape if array is not None else scale.shape.numpy() if scale.shape else ()
    key = of_node, quantized, shape
    if key not in zero_points:
        assert of_node
        zeros, name = np.zeros(shape, quantized.dtype), graph.unused_name(f"zero_point_{quantized.name}")
        zero_points[key] = graph.constant(zeros, name, next(iter(of_node)))
    return zero_points[key]
