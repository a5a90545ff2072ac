"""Drop quantize nodes that give back the codes that a dequantize node before them was given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..element_types import FLOAT32, ElementType
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
    is_valid = zero_point is None or zero_point.size == scale.size
    if not (is_valid and _is_exact(graph, node, before, scale)) and not _comes_back(node, before, quantized, scale, zero_point):
        return
    node.y.replace_all_uses_with(before.x)
    graph.remove(node, ROUND_TRIP)


def _is_exact(graph: Graph, node: Node, before: Node, scale: NDArray[Any]) -> bool:
    """Whether every code comes back for certain. The difference n of a code and the zero point is an integer below 2^16. With
    such scales n * scale neither overflows nor gets subnormal, nor does the quotient of that by the scale. Each of the two has
    an error of at most 2^-24 of it, so that the quotient is off n by less than 2^-7, and is rounded to n."""
    if not graph.type(node.input(1)) is graph.type(before.input(1)) is FLOAT32:
        return False
    if any(each.attributes.get(name, 0) not in (0, FLOAT32.number) for each in (node, before) for name in _TYPES):
        return False
    magnitudes = np.abs(scale)
    return bool(np.all((magnitudes >= 2.0**-126) & (magnitudes <= 2.0**110)))


# Attributes that may name another type than float32 for what is computed.
_TYPES = ("precision", "output_dtype")


def _comes_back(node: Node, before: Node, quantized: ElementType, scale: NDArray[Any], zero_point: NDArray[Any] | None) -> bool:
    """Whether every code does, when it is tried."""
    codes = np.arange(2**quantized.bits).astype(f"u{quantized.dtype.itemsize}").view(quantized.dtype)
    x, scale = np.tile(codes, (scale.size, 1)), scale.reshape(-1)
    zeros = None if zero_point is None else zero_point.reshape(-1)
    (floats,) = call(before, [x, scale, zeros], axis=0)
    (back,) = call(node, [floats, scale, zeros], axis=0)
    return back.dtype == quantized.dtype and back.tobytes() == x.tobytes()
