"""Compute nodes of which all inputs are constants: what they put out becomes a constant."""

from __future__ import annotations

from .graph import Graph, Left, Node, call

CONSTANT = "computed: a constant"
CODES = "quantized: constant codes"


def rewrite(graph: Graph) -> None:
    graph.each(lambda node: _compute(graph, node))


def _compute(graph: Graph, node: Node) -> None:
    inputs = graph.arrays(node) if node.operator.is_pure else None
    if inputs is None:
        if node.operation not in ("quantize", "dequantize"):
            raise Left("one step already, of what is no constant")
        return
    outputs = call(node, inputs)
    for value, array in zip(node.node.outputs, outputs, strict=True):
        graph.remember(value, array)
    if node.operation == "quantize":
        return  # what dequantizes the codes is computed, too, and then this goes
    if graph.keep_codes and node.operation == "dequantize":
        quantize = graph.node(node.x.producer())
        if quantize:
            codes = graph.array(node.x)
            assert codes is not None
            graph.make_constant(quantize, (codes,), CODES)
        raise Left("its codes are kept")
    graph.make_constant(node, outputs, CONSTANT)
