"""Write integer operators of ONNX Runtime in the place of float operators and the 8-bit nodes around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..declaration import Affine
from ..element_types import INT8, UINT8, ElementType
from ..models.tensors import mapped
from .graph import Graph, is_unused
from .integer_codes import Codes, Source, known_codes
from .integer_rules import Match, divisor_of
from .nodes import Node
from .own_operators import OWN

REWRITTEN = "rewritten: an operator of ONNX Runtime on integers"


class Writing:
    """The change of a graph: the operators that are rewritten, and the codes that are made on the way."""

    def __init__(self, graph: Graph, matches: Sequence[Match]) -> None:
        self.graph = graph
        places = {node: place for place, node in enumerate(graph.model.graph.all_nodes())}
        self.matches = sorted(matches, key=lambda match: places[match.node])
        self.made: dict[Node, ir.Value] = {}  # by the quantize node that gave the codes before
        self.shifted: dict[Any, ir.TensorProtocol] = {}  # by the tensor of codes, the type and the shift

    def run(self) -> None:
        for match in self.matches:
            self._write(match)
        for quantize, codes in self.made.items():
            self._reconnect(quantize, codes)
        for match in self.matches:
            for node in (*reversed(match.target.clips), match.node):
                self.graph.remove(node, REWRITTEN)
            for source in match.sources:
                for move in filter(is_unused, reversed(source.moves)):
                    self.graph.remove(move, REWRITTEN)
        self.graph.forget_inferred()

    def _write(self, match: Match) -> None:
        """Write the integer operator, with a Clip of its codes if that is needed, in front of the quantize node: there all its
        inputs exist, and nothing uses its output yet."""
        rule, replaced, target = match.rule, match.node, match.target
        types = [UINT8, match.of_weights, *[UINT8] * len(match.sources)]
        operands = [self._operand(match, *each) for each in zip(match.sources, types, strict=False)]
        order = rule.order.split()
        parts: dict[str, list[ir.Value | None]] = {
            "x": [value for operand in operands for value in operand],
            "y": [*self._parameters(match, target.codes, UINT8)] if "y" in order else [],
            "b": [self._constant(match, match.bias, "bias") if match.bias is not None else None],
            "d": self._reciprocal(match) if "d" in order else [],
            "codes": [*(value for value, *_ in operands), *replaced.inputs[len(operands) :]],
        }
        inputs = [value for part in order for value in parts[part]]
        while inputs[-1] is None:
            inputs.pop()
        node = ir.node(rule.name or replaced.op_type, inputs, domain=rule.domain, name=replaced.name)
        given = replaced.attributes
        node.attributes.update({name: given[name] for name in given if rule.attributes is None or name in rule.attributes})
        node.metadata_props.update(replaced.metadata_props)
        if rule.domain:
            self.graph.model.opset_imports.setdefault(rule.domain, 1)
        codes = self._insert(node, target.quantize, target.quantize.y)
        if target.bounds:
            bounds = (np.array(each + target.codes.shift(UINT8), np.uint8) for each in target.bounds)
            node = ir.node("Clip", [codes, *(self._constant(match, each, "bound") for each in bounds)])
            codes = self._insert(node, target.quantize, target.quantize.y)
        self.made[target.quantize] = codes

    def _operand(self, match: Match, source: Source, codes: ElementType) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return codes of a type that a source dequantizes, where the operator takes them, with scale and zero point."""
        shift, value, tensor = source.codes.shift(codes), source.node.x, self.graph.tensor(source.node.x)
        quantize = self.graph.node(value.producer())
        if tensor is not None and (shift or source.codes.element_type is not codes):
            changed = self.shifted.setdefault((id(tensor), codes, shift), _shifted(tensor, codes, shift))
            value = self.graph.shared_constant(changed, self.graph.unused_name(f"{value.name}_codes"), match.node)
        elif quantize in self.made:
            value = self.made[quantize]
        elif shift:
            assert quantize
            value = self.made[quantize] = self._quantized_anew(quantize)
        for move in source.moves:
            moved = ir.node(move.op_type, [value, *move.inputs[1:]])
            moved.attributes.update(move.attributes)
            value = self._insert(moved, match.target.quantize, move.outputs[0], value.type)
        return value, *self._parameters(match, source.codes, codes)

    def _parameters(self, match: Match, codes: Codes, element_type: ElementType) -> tuple[ir.Value, ir.Value]:
        """Return scale and zero point of codes that become another type. Some integer operators take only scalars if there is
        one scale."""
        value, shape = codes.meaning.scale.value, codes.scales.shape if codes.scales.size > 1 else ()
        if codes.scales.shape != shape:
            value = self._constant(match, codes.scales.reshape(shape), "scale")
        zeros = np.full(shape, codes.zero_point + codes.shift(element_type)).astype(element_type.dtype)
        return value, self._constant(match, zeros, "zero_point")

    def _reciprocal(self, match: Match) -> list[ir.Value | None]:
        """Return the code 1, the reciprocal of the divisor as its scale, and the zero point 0."""
        divisor = divisor_of(self.graph, match.node)
        assert divisor
        parts = np.array(1, np.uint8), np.array(1 / divisor, np.float32), np.array(0, np.uint8)
        return [self._constant(match, each, "reciprocal") for each in parts]

    def _constant(self, match: Match, array: NDArray[Any], name: str) -> ir.Value:
        return self.graph.new_constant(array, f"{match.node.outputs[0].name}_{name}", match.target.quantize.node)

    def _insert(self, node: ir.Node, before: Node, like: ir.Value, codes: ir.TypeProtocol | None = None) -> ir.Value:
        """Insert a node, and return its output: codes, uint8 by default, in the shape of another value."""
        (y,) = node.outputs
        y.name, y.type = self.graph.unused_name(f"{like.name}_codes"), codes or ir.TensorType(ir.DataType.UINT8)
        if (shape := self.graph.shape(like)) is not None:
            y.shape = ir.Shape([None if isinstance(each, int) and each < 0 else each for each in shape])
        before.node.prepend(node)
        return y

    def _quantized_anew(self, quantize: Node) -> ir.Value:
        """Return codes of uint8 in the place of int8."""
        own = OWN["quantize"]
        node = ir.node(own.name, self._inputs(quantize, quantize.x), own.values({}), domain=own.domain)
        codes = self._insert(node, quantize, quantize.y)
        self.graph.model.opset_imports.setdefault(own.domain, own.since_version)
        self.graph.find(node)
        return codes

    def _inputs(self, node: Node, x: ir.Value) -> list[ir.Value]:
        """Return the inputs of a node that has codes of uint8 in the place of int8."""
        meaning = self.graph.meaning(node)
        assert isinstance(meaning, Affine)
        codes = known_codes(meaning)
        zeros = np.full(codes.scales.shape, codes.zero_point + codes.shift(UINT8), np.uint8)
        return [x, meaning.scale.value, self.graph.new_constant(zeros, f"{node.y.name}_zero_point", node.node)]

    def _reconnect(self, quantize: Node, codes: ir.Value) -> None:
        """Let the users of a quantize node take the codes of an integer operator, and remove the node."""
        meaning = self.graph.meaning(quantize)
        assert isinstance(meaning, Affine)
        if meaning.element_type is INT8:
            own = OWN["dequantize"]
            for node in [self.graph.node(user) for user, _ in quantize.y.uses()]:
                assert node
                dequantize = self.graph.meaning(node)
                assert isinstance(dequantize, Affine)
                self.graph.replace(node, own, self._inputs(node, codes), own.values({"axis": dequantize.axis}), REWRITTEN)
        else:
            name = quantize.y.name
            quantize.y.replace_all_uses_with(codes, replace_graph_outputs=True)
            quantize.y.name, codes.name = None, name
        if quantize.node.graph:  # else it was removed with the last of its users
            self.graph.remove(quantize, REWRITTEN)


def _shifted(tensor: ir.TensorProtocol, codes: ElementType, shift: int) -> ir.TensorProtocol:
    """Return codes plus a number, in another type, which are computed when they are read."""
    return mapped(tensor, lambda part, *_: (part.astype(np.int16) + shift).astype(codes.dtype), codes)
