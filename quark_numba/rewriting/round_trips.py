"""Drop a quantize node after a dequantize node with the same parameters if the two return every code unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration import Affine, Dequantize, Quantize
from ..element_types import FLOAT32, ElementType
from .graph import Graph
from .nodes import GraphOperand, Node, call

ROUND_TRIP = "dropped: it returns the codes that were dequantized"

# The most codes that are tried to show that quantizing undoes dequantizing.
_MAX_CODES = 1 << 24


def rewrite(graph: Graph) -> None:
    graph.each(lambda node, quantize: _drop(graph, node, quantize), Quantize)


def _drop(graph: Graph, node: Node, after: Quantize[GraphOperand]) -> None:
    producer = graph.node(node.x.producer())
    before = graph.meaning(producer)
    if not producer or not isinstance(before, Dequantize) or node.y.is_graph_output():
        return
    codes, scale, zero_point = after.element_type, after.scale.array, after.zero_points
    if codes is None or codes is not before.element_type or scale is None:
        return
    if not after.has_same_parameters(before) or (after.zero_point and zero_point is None):
        return
    # Float types turn -0 into 0.
    if after.block_size or not codes.is_integer or codes.bits > 16 or scale.size << codes.bits > _MAX_CODES:
        return
    is_valid = zero_point is None or zero_point.size == scale.size
    if not (is_valid and is_exact(after, before, scale)) and not _keeps_all(node, producer, codes, scale, zero_point):
        return
    node.y.replace_all_uses_with(before.x.value)
    graph.remove(node, ROUND_TRIP)


def is_exact(after: Affine[GraphOperand], before: Affine[GraphOperand], scale: NDArray[Any]) -> bool:
    """Return whether it is proved that every code of up to 16 bits is returned unchanged. The proof: the difference n of a code
    and the zero point is an integer below 2^16. With scales from 2^-126 to 2^110, neither n * scale nor its quotient by the
    scale overflows or gets subnormal. Product and quotient have a relative error of at most 2^-24. So the quotient is off n by
    less than 2^-7, and is rounded to n."""
    if not after.scale.element_type is before.scale.element_type is FLOAT32 or after.has_other_type or before.has_other_type:
        return False
    magnitudes = np.abs(scale)
    return bool(np.all((magnitudes >= 2.0**-126) & (magnitudes <= 2.0**110)))


def _keeps_all(node: Node, before: Node, quantized: ElementType, scale: NDArray[Any], zero_point: NDArray[Any] | None) -> bool:
    """Return whether all codes are returned unchanged. Each code is tested."""
    codes = np.arange(2**quantized.bits).astype(f"u{quantized.dtype.itemsize}").view(quantized.dtype)
    x, scale = np.tile(codes, (scale.size, 1)), scale.reshape(-1)
    zeros = None if zero_point is None else zero_point.reshape(-1)
    (floats,) = call(before, [x, scale, zeros], axis=0)
    (back,) = call(node, [floats, scale, zeros], axis=0)
    return back.dtype == quantized.dtype and back.tobytes() == x.tobytes()
