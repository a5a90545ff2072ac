"""Drop quantize nodes that give back the codes that a dequantize node before them was given."""

from __future__ import annotations

import numpy as np

from .graph import Graph, Node, call

ROUND_TRIP = "dropped: gives back what was dequantized"

# As many codes are tried at most for the proof that quantizing undoes dequantizing.
_MOST_CODES = 1 << 24


def rewrite(graph: Graph) -> None:
    graph.each(lambda node: _drop(graph, node))


def _drop(graph: Graph, node: Node) -> None:
    before = graph.node(node.x.producer())
    if node.operation != "quantize" or before is None or before.operation != "dequantize" or node.y.is_graph_output():
        return
    quantized, scale, zero_point = graph.quantized_type(node), graph.input_array(node, 1), graph.input_array(node, 2)
    if quantized is None or quantized is not graph.quantized_type(before) or scale is None:
        return
    if not graph.same_parameters(node, before) or (node.input(2) is not None and zero_point is None):
        return
    # Float types give 0 for -0.
    if node.attributes.get("block_size", 0) or not quantized.is_integer or quantized.bits > 16:
        return
    if scale.size << quantized.bits > _MOST_CODES:
        return
    codes = np.arange(2**quantized.bits).astype(f"u{quantized.dtype.itemsize}").view(quantized.dtype)
    x, scale = np.tile(codes, (scale.size, 1)), scale.reshape(-1)
    zeros = None if zero_point is None else zero_point.reshape(-1)
    (floats,) = call(before, [x, scale, zeros], axis=0)
    (back,) = call(node, [floats, scale, zeros], axis=0)
    if back.dtype != quantized.dtype or back.tobytes() != x.tobytes():
        return
    node.y.replace_all_uses_with(before.x)
    graph.remove(node, ROUND_TRIP)
