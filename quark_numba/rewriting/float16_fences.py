"""Keep nodes of float16 in float16 between nodes that ONNX Runtime computes in float32.

If the CPU provider has no kernel of float16 for a node, ONNX Runtime computes it in float32, between two Casts of its own. A
node with kernels of both types, all of whose neighbours are computed so, is then computed in float32 too, and the Casts are
joined: nothing is rounded to float16 in front of the node and behind it. ONNX Runtime does so with its own operators. In a
session of the model as it is written, it does so with the nodes of this package."""

from __future__ import annotations

import onnx_ir as ir

from ..declaration.reasons import NotRewrittenError
from ..element_types import FLOAT16
from .bounds import Bounds
from .graph import Graph
from .nodes import GraphOperand, Node
from .standard_forms import NodeWriter

FENCED = "computed in float16"


def rewrite(graph: Graph) -> None:
    """Put a Concat of one input in front of each such node. The CPU provider has a kernel of float16 for it, so not all
    neighbours of the node are computed in float32. The node has one, so nor are all neighbours of the Concat."""
    nodes = [node for node in graph.nodes() if node.ir_node.domain and graph.is_valid(node)]
    isolated = [(node, x) for node in nodes if (x := _isolated(graph, node)) is not None]
    if not isolated:  # as in most models: bounds would take a walk over all nodes
        return
    bounds = Bounds(graph)
    for node, x in isolated:
        writer = NodeWriter(graph, node, bounds)
        try:
            fenced = writer.fence(GraphOperand(graph, x)).value
        except NotRewrittenError as error:
            writer.drop()
            graph.reasons[node] = error.reason
            continue
        for index, value in enumerate(node.ir_node.inputs):
            if value is x:
                node.ir_node.replace_input_with(index, fenced)
        graph.copy_inferred(x, fenced)
        graph.done[node.full_name, FENCED] += 1


def _isolated(graph: Graph, node: Node) -> ir.Value | None:
    """Return an input of float16 of a node that ONNX Runtime may compute in float32: a node whose neighbours by inputs and
    outputs of float16 may all be computed so. Return None for other nodes. The package's nodes have kernels of float16."""
    inputs = [value for value in node.ir_node.inputs if value is not None and graph.inferred_type(value) is FLOAT16]
    # onnx infers no types for some of the package's operators.
    outputs = [value for value in node.ir_node.outputs if graph.inferred_type(value) in (None, FLOAT16)]
    if not inputs or not outputs or any(value.is_graph_output() for value in node.ir_node.outputs):
        return None
    neighbours = [*(value.producer() for value in inputs), *(user for value in outputs for user in value.consumers())]
    is_kept = any(graph.node(each) and each.domain and each.graph is node.ir_node.graph for each in neighbours if each)
    return None if is_kept else inputs[0]
