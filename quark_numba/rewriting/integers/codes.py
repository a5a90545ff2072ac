"""The codes around an operator that may run on integers: the codes of its inputs, the codes of its output, the limits of their
scales, and the reasons why some do not fit."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ...declaration import Affine, Dequantize, Quantize
from ...declaration.reasons import require, stays_if
from ...element_types import FLOAT32, INT8, UINT8, ElementType
from ..graph import Graph
from ..nodes import GraphOperand, Node

# Scales between these, and their products and quotients, are normal numbers of float32.
LEAST_SCALE, LARGEST_SCALE = 2.0**-40, 2.0**40

# Operators of ONNX whose output has only elements of their first input, and whose other inputs do not depend on it.
MOVES = {("", name, "") for name in ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")}


class Codes(NamedTuple):
    """The codes that a node returns or dequantizes. All scales are constants, and there is one zero point."""

    meaning: Affine[GraphOperand]
    element_type: ElementType
    scales: NDArray[np.float32]
    zero_point: int

    @property
    def scale(self) -> np.float32:
        """The only scale."""
        return np.float32(self.scales.reshape(()))

    def shift(self, element_type: ElementType) -> int:
        """Return the number that is added to the codes and to the zero point when they become uint8 or int8."""
        return 128 * (self.element_type.is_signed - element_type.is_signed)

    @property
    def unscaled_values(self) -> NDArray[np.float64]:
        """The values of all codes of uint8, divided by the scale: the codes less the zero point."""
        return np.arange(256.0) - (self.zero_point + self.shift(UINT8))


class Source(NamedTuple):
    """The source of an operator's input: a dequantize node, and the nodes between it and the operator, which only move
    elements."""

    node: Node
    codes: Codes
    moves: tuple[ir.Node, ...]  # the first one after the dequantize node

    @property
    def is_constant(self) -> bool:
        return self.codes.meaning.x.is_constant


class Target(NamedTuple):
    """The quantization of an operator's output. `clips` are nodes that only clip the output, and `quantize` is the node after
    them. `bounds` are the codes to which the clips clip, or None if all codes occur."""

    clips: tuple[ir.Node, ...]
    quantize: Node
    codes: Codes
    bounds: tuple[int, int] | None


def source_of(graph: Graph, value: ir.Value | None) -> Source:
    """Return the Source of a value. Raise NotRewrittenError if the value is not dequantized, or if too little is
    known about the value."""
    moves: list[ir.Node] = []
    producer = None if value is None else value.producer()
    while producer is not None and producer.op_identifier() in MOVES and producer.inputs[0] is not None:
        moves.insert(0, producer)
        producer = producer.inputs[0].producer()
    node, meaning = require(graph.rewritable(producer, Dequantize), "an input is not dequantized")
    stays_if(not node.is_standard, "an input is not dequantized")
    codes, before = known_codes(meaning), graph.meaning(graph.node(node.x.producer()))
    is_of_constant = isinstance(before, Quantize) and before.x.is_constant
    stays_if(is_of_constant, "its codes are those of a float constant")
    if meaning.element_type is INT8 and not meaning.x.is_constant:
        # Only a value that the model itself quantizes can be quantized to uint8 instead.
        _quantized(graph, node.x.producer(), "its codes are not quantized in the model")
    return Source(node, codes, tuple(moves))


def known_codes(meaning: Affine[GraphOperand]) -> Codes:
    """Return the codes of a node. Raise NotRewrittenError unless it has constant parameters that integer operators take."""
    unfit = "its codes are not integers of at most 8 bits"
    codes = require(meaning.element_type, unfit)
    stays_if(not codes.is_integer or codes.bits > 8, unfit)
    stays_if(meaning.block_size, "its scales are blocked")
    stays_if(meaning.has_other_type, "it computes in a type other than float32")
    unfit = "its scale is not constant, or empty"
    scale, zero_point = require(meaning.scale.array, unfit), 0
    stays_if(not scale.size, unfit)
    stays_if(scale.dtype != FLOAT32.dtype or scale.ndim > 1, "its scale is not a scalar or vector of float32")
    if meaning.zero_point is not None:
        unfit = "its zero points are not constant, or their shape is not that of its scale"
        zeros = require(meaning.zero_point.array, unfit)
        stays_if(zeros.shape != scale.shape, unfit)
        zero_point = int(zeros.reshape(-1)[0])
        stays_if(np.any(zeros != zeros.reshape(-1)[0]), "its zero points differ")
    stays_if(not np.all((scale >= LEAST_SCALE) & (scale <= LARGEST_SCALE)), "its scale is extreme")
    return Codes(meaning, codes, scale, zero_point)


def _quantized(graph: Graph, producer: ir.Node | None, otherwise: str) -> tuple[Node, Codes]:
    """Return a quantize node and its codes. Raise NotRewrittenError unless it quantizes float32 to 8 bits with one scale; if it
    is not a quantize node, `otherwise` is the reason. Only dequantize nodes may use int8 codes."""
    node, meaning = require(graph.rewritable(producer, Quantize), otherwise)
    codes = known_codes(meaning)
    stays_if(not node.is_standard, "it is quantized by an operator other than QuantizeLinear")
    stays_if(codes.element_type.bits != 8, "it is not quantized to 8 bits")
    stays_if(codes.scales.size != 1, "it is quantized with several scales")
    stays_if(graph.inferred_type(node.x) is not FLOAT32, "its x is not known to be float32")
    if codes.element_type is INT8:
        for user, index in node.y.uses():
            after, dequantize = require(graph.rewritable(user, Dequantize), "its codes have other users")
            stays_if(index or not after.is_standard, "its codes have other users")
            known_codes(dequantize)
        stays_if(node.y.is_graph_output(), "its codes are an output of its graph")
    return node, codes


def target_of(graph: Graph, node: ir.Node) -> Target:
    """Return the Target of a node. Raise NotRewrittenError if the output has other users."""
    clips: list[ir.Node] = []
    low, high = -math.inf, math.inf
    value = node.outputs[0]
    while True:
        uses = [*value.uses()]
        has_one_use = len(uses) == 1 and uses[0].idx == 0 and uses[0].node.graph is node.graph
        stays_if(not has_one_use or value.is_graph_output(), "its output is used by something other than one quantize node")
        user = uses[0].node
        if (bounds := _clip_bounds(graph, user)) is None:
            break
        clips.append(user)
        low, high = (min(max(bound, bounds[0]), bounds[1]) for bound in (low, high))
        value = user.outputs[0]
    quantize, codes = _quantized(graph, user, "its output is not quantized")
    # Quantizing is monotonic, so clipping before it has the same result as clipping the codes.
    limits = codes.element_type.lowest, codes.element_type.highest
    steps = np.rint(np.array([low, high], np.float32) / codes.scale)
    first, last = (int(bound) for bound in np.clip(steps + codes.zero_point, *limits))
    return Target(tuple(clips), quantize, codes, None if (first, last) == limits else (first, last))


def _clip_bounds(graph: Graph, node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a node that clips, or None if the node does not clip."""
    if node.op_identifier() == ("", "Relu", ""):
        return 0.0, math.inf
    if node.op_identifier() != ("", "Clip", ""):
        return None
    bounds = [node.attributes.get_float("min", -math.inf), node.attributes.get_float("max", math.inf)]
    for index, value in enumerate(node.inputs[1:3]):
        if value is not None:
            array = graph.array(value)
            if array is None or array.size != 1 or array.dtype != np.float32 or np.isnan(array).any():
                return None
            bounds[index] = float(array.reshape(()))
    return (bounds[0], bounds[1]) if bounds[0] <= bounds[1] else None
