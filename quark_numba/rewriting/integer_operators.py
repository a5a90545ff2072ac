"""The nodes of ONNX's own operators that ONNX Runtime fuses with their neighbours into integer operators, and whether these are
faster than float operators between this package's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import onnx
import onnx_ir as ir

from ..catalog import OPERATORS
from ..declaration import Affine, Dequantize, Quantize
from .fusions import fused_by_onnx_runtime
from .graph import Graph, Node, Operand, values
from .protos import subgraphs

# The time that an integer operator takes beyond that of the float operator and this package's nodes around it, in nanoseconds
# for each multiplication or element, on one thread of a processor with AVX2. Only the ratios matter. They were fitted to 11
# architectures in uint8, in int8, and with activations in uint8 and weights in int8; `pytest bench` measures what follows.
_OF_MATRIX_PRODUCT = {"uint8": -0.0083, "int8": -0.0122}  # by the type of the weights
_OF_PRODUCTS = {"Conv": {"uint8": -0.004, "int8": -0.010}, "MatMul": _OF_MATRIX_PRODUCT, "Gemm": _OF_MATRIX_PRODUCT}
_OF_IMAGE = 1.6  # of each element of the output of a convolution of at most four channels, beyond the above
_OF_OUTPUT = {"MatMul": -0.7, "Gemm": -0.7, "Mul": 0.35, "Softmax": 2.9}  # of each element of the output
_OF_QUANTIZATION = 0.5  # of each element that ONNX Runtime quantizes or dequantizes between float operators

# The size of an unknown dimension that is not the first: one that images and sequences have after some layers.
_UNKNOWN = 32


def faster_on_integers(graph: Graph) -> set[Node]:
    """Return the nodes of ONNX's own operators that ONNX Runtime fuses into integer operators. Return none if the model is
    estimated to be faster without any integer operator.

    ONNX Runtime optimises the model without its large tensors, and writes the result. An operator behind a dequantize node was
    fused if its output is missing there, or has a producer of another kind. If ONNX Runtime refuses the model, all nodes that
    quantize or dequantize 8 bits count as fused."""
    nodes = {node: meaning for node in graph.nodes() if node.is_standard and isinstance(meaning := graph.meaning(node), Affine)}
    eight_bits = [node for node, meaning in nodes.items() if meaning.element_type and meaning.element_type.bits == 8]
    if not any(_is_of_activations(graph, node, nodes) for node in eight_bits):
        return set()
    _, after = fused_by_onnx_runtime(graph, graph.model.graph.initializers)
    if isinstance(after, str):
        return set(eight_bits)
    made = {name: node for node in _nodes(after.graph) for name in node.output}
    dequantized = [node for node, meaning in nodes.items() if isinstance(meaning, Dequantize)]
    users = dict.fromkeys(user for node in dequantized for user, _ in node.y.uses() if graph.node(user) not in nodes)
    fused = {user: user.outputs[0] for user in users if _is_fused(user, made)}
    sizes = _Sizes(graph)
    gain = sum(_of_operator(graph, sizes, user) for user in fused) + _OF_QUANTIZATION * sizes.quantized(after.graph)
    if not fused or gain > 0:
        return set()
    found = {node for node in dequantized if any(user in fused for user, _ in node.y.uses())}
    for y in fused.values():
        if y.name not in made:
            found |= {own for user, _ in y.uses() if (own := graph.node(user)) in nodes}
    return _with_neighbours(graph, found, nodes)


def _is_of_activations(graph: Graph, node: Node, nodes: Mapping[Node, Affine[Operand]]) -> bool:
    """Whether a node quantizes a tensor that is not constant, or dequantizes codes that no node quantized."""
    is_quantized = isinstance(nodes[node], Dequantize) and graph.node(node.x.producer()) in nodes
    return not is_quantized and not nodes[node].x.is_constant


def _is_fused(node: ir.Node, made: Mapping[str, onnx.NodeProto]) -> bool:
    y = node.outputs[0].name or ""
    return y not in made or made[y].op_type != node.op_type


class _Sizes:
    """The shapes of a model's values. An unknown dimension is taken to be 1 if it is the first, which often is that of a batch,
    and else `_UNKNOWN`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def shape(self, value: ir.Value | None) -> list[int]:
        shape = None if value is None else self.graph.shape(value)
        # Some models say -1 where a dimension is unknown.
        known = [each if isinstance(each, int) and each > 0 else None for each in shape or ()]
        return [each or (_UNKNOWN if place else 1) for place, each in enumerate(known)]

    def quantized(self, after: onnx.GraphProto) -> int:
        """Return the number of elements that nodes of the model after fusions quantize and dequantize in a run."""
        known: dict[str, int] = {each.name or "": prod(self.shape(each)) for each in values(self.graph.model)}
        constants = {each.name for each in after.initializer}
        total = 0
        for node in _nodes(after):
            operator = OPERATORS.find(node.domain, node.op_type)
            if operator and not operator.domain and node.input[0] not in constants:
                total += known.setdefault(node.output[0], known.get(node.input[0], 0))
        return total


def _of_operator(graph: Graph, sizes: _Sizes, node: ir.Node) -> float:
    """Return the time that an operator on integers takes beyond that of its float form."""
    x, weights = (*node.inputs, None)[:2]
    elements = prod(sizes.shape(node.outputs[0]))
    total = _OF_OUTPUT.get(node.op_type, 0) * elements
    of_products = _OF_PRODUCTS.get(node.op_type)
    if weights is None or of_products is None:
        return total
    meaning: Any = graph.meaning(graph.node(weights.producer()))
    codes = meaning.element_type.name if isinstance(meaning, Affine) and meaning.element_type else ""
    factor = of_products.get(codes, of_products["uint8"])
    shape = sizes.shape(weights)
    if node.op_type != "Conv":
        return total + factor * elements * (sizes.shape(x) or [1])[-1]
    is_image = len(shape) > 1 and 1 < shape[1] <= 4
    return total + elements * (factor * prod(shape[1:]) + _OF_IMAGE * is_image)


def _with_neighbours(graph: Graph, nodes: Iterable[Node], standard: Mapping[Node, Affine[Operand]]) -> set[Node]:
    """Return the nodes, and all others of ONNX's own operators that have codes in common with them."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            is_quantize = isinstance(standard[node], Quantize)
            near = [user for user, _ in node.y.uses()] if is_quantize else [node.x.producer()]
            waiting += [own for each in near if (own := graph.node(each)) and own in standard]
    return found


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and its subgraphs."""
    for node in graph.node:
        yield node
        for each in subgraphs(node):
            yield from _nodes(each)
