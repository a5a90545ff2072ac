"""If codes are kept, gather rows of codes instead of rows of floats.

A dequantize node after a Gather computes only the rows that were gathered, and not a whole table of embeddings. Each element is
computed from its own code, so the bits are the same."""

from __future__ import annotations

import onnx_ir as ir

from ..element_types import BFLOAT16, FLOAT16, find
from .constants import KEPT
from .graph import Graph, copy_metadata
from .nodes import Node

MOVED = "moved: after the Gather of its rows"


def rewrite(graph: Graph) -> None:
    if graph.keep_quantized_weights:
        for node in graph.nodes():
            if graph.reasons.get(node) == KEPT:
                _move(graph, node)


def _has_gather(graph: Graph, number: int) -> bool:
    """Return whether Gather of the model's opset takes an element type, given by its number. ONNX Runtime's Gather does not
    take packed types."""
    codes = find(number)
    if codes is None or codes.bits < 8:
        return False
    return codes.is_integer or codes is FLOAT16 or (codes is BFLOAT16 and graph.model.opset_imports.get("", 0) >= 13)


def _move(graph: Graph, node: Node) -> None:
    uses = node.y.uses()
    if len(uses) != 1 or node.y.is_graph_output():
        return
    ((gather, index),) = uses
    meaning, codes = graph.affine(node), graph.tensor(node.x)
    assert codes is not None
    is_plain = gather.op_identifier() == ("", "Gather", "") and gather.graph is node.ir_node.graph and index == 0
    if not is_plain or len(gather.inputs) != 2 or not _has_gather(graph, codes.dtype.value) or meaning.block_size:
        return
    along = gather.attributes.get_int("axis", 0) % max(1, len(codes.shape))
    attributes = dict(node.ir_node.attributes)
    scale = graph.tensor(meaning.scale.value)
    assert scale is not None
    if scale.size != 1:
        axis = meaning.axis % len(codes.shape)
        if axis <= along:
            return
        # Counted from the end, the axis is the same after the Gather, whatever the rank of the indices.
        attributes["axis"] = ir.AttrInt64("axis", axis - len(codes.shape))
    rows = ir.Value(name=graph.unused_name(f"{node.x.name}_rows"), type=ir.TensorType(codes.dtype))
    code_gather = ir.node("Gather", [node.x, gather.inputs[1]], gather.attributes, outputs=[rows], name=gather.name)
    inputs, replaced = [rows, *node.ir_node.inputs[1:]], node.ir_node
    follower = ir.node(replaced.op_type, inputs, attributes, domain=replaced.domain, name=replaced.name)
    for old, new in ((gather, code_gather), (node.ir_node, follower), (gather.outputs[0], follower.outputs[0])):
        copy_metadata(old, new)
    parent, nodes = replaced.graph, [code_gather, follower]
    assert parent
    ir.convenience.replace_nodes_and_values(parent, gather, [gather], nodes, gather.outputs, follower.outputs)
    graph.remove(node, MOVED)
    graph.register(follower)
    if moved := graph.node(follower):
        graph.reasons[moved] = KEPT
