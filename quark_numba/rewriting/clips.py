"""Rewrite a Clip of codes between a quantize node and its dequantize nodes, as Brevitas writes it for fewer bits than the type
has: a Clip of constant codes is folded; otherwise the three nodes become one node of fake quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ..declaration import Affine, Dequantize, FakeQuantize, Quantize
from ..declaration.reasons import Invalid, NotRewrittenError, stays_if
from ..element_types import FLOAT32, ElementType
from ..models.tensors import in_memory
from .constants import CONSTANT
from .fake_quantizers import write
from .graph import Graph
from .nodes import Node, Operand

FUSED = "fused: quantize, Clip and dequantize in one step"

# Up to this many bits, the difference between a code and the zero point is exact in float32.
_MAX_BITS = 16


def rewrite(graph: Graph) -> None:
    graph.each(lambda node, dequantize: _rewrite(graph, node, dequantize), Dequantize)


def _rewrite(graph: Graph, node: Node, dequantize: Dequantize[Operand]) -> None:
    clip = node.x.producer()
    if clip is None or clip.op_identifier() != ("", "Clip", "") or clip.attributes:
        return
    codes, value = clip.inputs[0], clip.outputs[0]
    bounds = _bounds(graph, clip, dequantize.element_type)
    if codes is None or bounds is None or value.is_graph_output():
        return
    followers = [graph.node(user) if not index else None for user, index in value.uses()]
    if not all(child and child not in graph.reasons and isinstance(graph.meaning(child), Dequantize) for child in followers):
        return
    array = graph.array(codes)
    if array is not None:
        clipped = in_memory(np.clip(array, *bounds).astype(array.dtype))
        value.replace_all_uses_with(graph.shared_constant(clipped, value.name, clip, value))
        graph.remove(clip, CONSTANT)
        return
    before = graph.node(codes.producer())
    quantize = graph.meaning(before)
    if before is None or before in graph.reasons or not isinstance(quantize, Quantize) or not graph.regions:
        return
    if (
        len(followers) != 1
        or len(codes.uses()) != 1
        or codes.is_graph_output()
        or before.ir_node.graph is not node.ir_node.graph
    ):
        return
    write(graph, node, _in_one_step(graph, quantize, dequantize, bounds), FUSED)
    graph.remove(clip, FUSED)


def _bounds(graph: Graph, clip: ir.Node, codes: ElementType | None) -> tuple[int, int] | None:
    """Return the bounds of a Clip of integers; None if they are not constants of one element."""
    if codes is None or not codes.is_integer or codes.bits > _MAX_BITS:
        return None
    bounds = []
    for index, missing in ((1, codes.lowest), (2, codes.highest)):
        value = clip.inputs[index] if index < len(clip.inputs) else None
        array = None if value is None else graph.array(value)
        if value is not None and (array is None or array.size != 1):
            return None
        bounds.append(int(missing) if array is None else int(array.reshape(())))
    return bounds[0], bounds[1]


def _in_one_step(
    graph: Graph, quantize: Affine[Operand], dequantize: Affine[Operand], bounds: tuple[int, int]
) -> FakeQuantize[Operand]:
    """Return the meaning of all three nodes. Raise NotRewrittenError if a single step would not return the same results."""
    scale, zero_point = quantize.scale.array, quantize.zero_point.array if quantize.zero_point else None
    if scale is None or (quantize.zero_point and zero_point is None):
        raise NotRewrittenError("its scale or its zero point is not a constant")
    if not quantize.has_same_parameters(dequantize) or quantize.element_type is not dequantize.element_type:
        raise NotRewrittenError("the dequantize node after it has other parameters")
    types = graph.inferred_type(quantize.x.value), quantize.scale.element_type
    if types != (FLOAT32, FLOAT32) or quantize.has_other_type or dequantize.has_other_type or quantize.block_size:
        raise NotRewrittenError("it computes in a type other than float32, or its scales are blocked")
    zeros = np.zeros(scale.shape) if zero_point is None else zero_point.astype(np.float64)
    stays_if(zeros.size not in (1, scale.size), Invalid("not valid: its scale and its zero point have different shapes"))
    low, high = (bound - np.broadcast_to(zeros.reshape(-1), scale.size) for bound in bounds)
    parameters: dict[str, Any] = {"scale": scale, "low": low, "high": high}
    return FakeQuantize(quantize.x, "codes", "ROUND", parameters, quantize.axis)
