"""Rewrite groups of ONNX's own 8-bit nodes, with the operators between them, into ONNX Runtime's integer operators.

ONNX Runtime would fuse such nodes itself, but it would also quantize float tensors that were never 8 bits. Here an operator is
rewritten only if the integer operator gives the results of the original nodes: its sums are exact, and one float32 factor
scales them. So a code differs by at most one, and only if the result is within a thousandth of a step of the middle between two
codes.

Operators that pass codes to each other form a group. A group is rewritten as a whole if that is estimated to be faster
(``costs``). The codes of activations become uint8, because ONNX Runtime is slow with int8 activations on x86-64. For
this, 128 is added to int8 codes and to their zero point. The codes of weights become int8 if ONNX Runtime multiplies uint8 by
int8 exactly, else uint8."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ...declaration.reasons import NotRewrittenError
from ...element_types import INT8, UINT8, ElementType
from ...models.tensors import mapped
from ..graph import Graph, is_unused
from ..nodes import Node
from ..renamed_operators import COUNTERPARTS
from .codes import MOVES, Codes, Source, known_codes
from .costs import operator_cost, quantization_cost
from .rules import BIAS, OPERANDS, OUTPUT, RECIPROCAL, RULES, Match, divisor_of

_log = logging.getLogger(__name__)

REWRITTEN = "rewritten: an operator of ONNX Runtime on integers"

_FIRST_OPSET = 10


def rewrite(graph: Graph) -> None:
    version = graph.model.opset_imports.get("", 0)
    if graph.qdq != "auto" or version < _FIRST_OPSET:
        return
    matches: dict[Node, Match] = {}  # by the quantize node after it
    for node in graph.model.graph.all_nodes():
        rule = RULES.get(node.op_type) if not node.domain else None
        if rule and (rule.domain, rule.name or node.op_type, "") not in graph.model.functions:
            try:
                match = rule.match(graph, node)
                matches[match.target.quantize] = match
            except NotRewrittenError as error:  # not counted as left: most operators of a float model have nothing to rewrite
                _log.debug("%s %r does not become an integer operator: %s", node.op_type, node.name, error)
    chosen = {match.node for group in _groups(matches) if _is_faster(graph, group) for match in group}
    if chosen:
        _Writer(graph, [match for match in matches.values() if match.node in chosen]).run()


def _groups(matches: Mapping[Node, Match]) -> Iterator[list[Match]]:
    """Yield groups of matches that pass codes to each other, each group in the order of the model."""
    parents: dict[Any, Any] = {}

    def root(value: Any) -> Any:
        while parents.setdefault(value, value) is not value:
            value = parents[value]
        return value

    for match in matches.values():
        for source in match.sources:
            if not source.is_constant:
                parents[root(source.node.x)] = root(match.target.quantize.y)
    groups: dict[Any, list[Match]] = {}
    for match in matches.values():
        groups.setdefault(root(match.target.quantize.y), []).append(match)
    yield from groups.values()


def _is_faster(graph: Graph, group: Sequence[Match]) -> bool:
    total = sum(operator_cost(graph, match.node, match.weights_type.name) for match in group)
    members, made = {match.node for match in group}, {match.target.quantize for match in group}
    computed = (source for match in group for source in match.sources if not source.is_constant)
    taken = dict.fromkeys(source.node.x for source in computed)
    # Add the cost of codes that enter the group from outside, and of codes that the group passes to float operators.
    total += sum(quantization_cost(graph, value) for value in taken if graph.node(value.producer()) not in made)
    for match in group:
        users = [user for user, _ in match.target.quantize.y.uses()]
        total += sum(quantization_cost(graph, user.outputs[0]) for user in users if not _feeds_only(user.outputs[0], members))
    return total < 0


def _feeds_only(value: ir.Value, nodes: set[ir.Node]) -> bool:
    """Return whether all users of a value are these nodes, directly or through nodes that only move elements of the value."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        others = [user for user, _ in value.uses() if user not in nodes]
        if value.is_graph_output() or not value.uses() or any(user.op_identifier() not in MOVES for user in others):
            return False
        waiting += [user.outputs[0] for user in others]
    return True


class _Writer:
    """A writer of integer operators for `matches`, which are in the order of the model. It records the new codes."""

    def __init__(self, graph: Graph, matches: Sequence[Match]) -> None:
        self.graph, self.matches = graph, matches
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
        """Write the integer operator, followed by a Clip of its codes if needed, in front of the quantize node. At that point
        all inputs of the operator exist, and no node uses its output yet."""
        rule, replaced, target = match.rule, match.node, match.target
        inputs = [value for part in rule.order for value in self._inputs(match, part)]
        while inputs[-1] is None:
            inputs.pop()
        written = replaced.attributes.items()
        attributes = {name: value for name, value in written if rule.attributes is None or name in rule.attributes}
        node = ir.node(rule.name or replaced.op_type, inputs, attributes, domain=rule.domain, name=replaced.name)
        node.metadata_props.update(replaced.metadata_props)
        if rule.domain:
            self.graph.model.opset_imports.setdefault(rule.domain, 1)
        codes = self._insert(node, target.quantize, target.quantize.y)
        if target.bounds:
            bounds = (np.array(bound + target.codes.shift(UINT8), np.uint8) for bound in target.bounds)
            node = ir.node("Clip", [codes, *(self._constant(match, bound, "bound") for bound in bounds)])
            codes = self._insert(node, target.quantize, target.quantize.y)
        self.made[target.quantize] = codes

    def _inputs(self, match: Match, part: str) -> Sequence[ir.Value | None]:
        """Return the inputs of the integer operator for one element of `Rule.order`."""
        types = [UINT8, match.weights_type, *[UINT8] * len(match.sources)]
        operands = (self._operand(match, *operand) for operand in zip(match.sources, types, strict=False))
        if part == OPERANDS:
            return [value for operand in operands for value in operand]
        if part == OUTPUT:
            return self._parameters(match, match.target.codes, UINT8)
        if part == BIAS:
            return [None if match.bias is None else self._constant(match, match.bias, "bias")]
        if part == RECIPROCAL:
            return self._reciprocal(match)
        return [*(value for value, *_ in operands), *match.node.inputs[len(match.sources) :]]

    def _operand(self, match: Match, source: Source, codes: ElementType) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return the codes of a source in the type `codes`, after all moves of the source, with their scale and zero point."""
        shift, value, tensor = source.codes.shift(codes), source.node.x, self.graph.tensor(source.node.x)
        quantize = self.graph.node(value.producer())
        if tensor is not None and (shift or source.codes.element_type is not codes):
            # Computed when it is read.
            computed = mapped(tensor, lambda part, *_: (part.astype(np.int16) + shift).astype(codes.dtype), codes)
            changed = self.shifted.setdefault((id(tensor), codes, shift), computed)
            value = self.graph.shared_constant(changed, self.graph.unused_name(f"{value.name}_codes"), match.node)
        elif quantize in self.made:
            value = self.made[quantize]
        elif shift:
            assert quantize
            value = self.made[quantize] = self._quantize_to_uint8(quantize)
        for move in source.moves:
            moved = ir.node(move.op_type, [value, *move.inputs[1:]], move.attributes)
            value = self._insert(moved, match.target.quantize, move.outputs[0], value.type)
        return value, *self._parameters(match, source.codes, codes)

    def _parameters(self, match: Match, codes: Codes, element_type: ElementType) -> tuple[ir.Value, ir.Value]:
        """Return the scale and the zero point of codes that are converted to `element_type`. If there is one scale, both are
        scalars, because some integer operators accept nothing else."""
        value, shape = codes.meaning.scale.value, codes.scales.shape if codes.scales.size > 1 else ()
        if codes.scales.shape != shape:
            value = self._constant(match, codes.scales.reshape(shape), "scale")
        zeros = np.full(shape, codes.zero_point + codes.shift(element_type)).astype(element_type.dtype)
        return value, self._constant(match, zeros, "zero_point")

    def _reciprocal(self, match: Match) -> list[ir.Value]:
        """Return the code 1, the reciprocal of the divisor as its scale, and the zero point 0."""
        divisor = divisor_of(self.graph, match.node)
        assert divisor
        parts = np.array(1, np.uint8), np.array(1 / divisor, np.float32), np.array(0, np.uint8)
        return [self._constant(match, part, "reciprocal") for part in parts]

    def _constant(self, match: Match, array: NDArray[Any], name: str) -> ir.Value:
        return self.graph.new_constant(array, f"{match.node.outputs[0].name}_{name}", match.target.quantize.ir_node)

    def _insert(self, node: ir.Node, before: Node, like: ir.Value, codes: ir.TypeProtocol | None = None) -> ir.Value:
        """Insert a node, and return its output. It has codes, uint8 by default, in the shape of the value `like`."""
        (y,) = node.outputs
        y.name, y.type = self.graph.unused_name(f"{like.name}_codes"), codes or ir.TensorType(ir.DataType.UINT8)
        if (shape := self.graph.shape(like)) is not None:
            y.shape = ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in shape])
        before.ir_node.prepend(node)
        return y

    def _quantize_to_uint8(self, quantize: Node) -> ir.Value:
        """Return the codes of a quantize node as uint8 instead of int8."""
        quantizer = COUNTERPARTS["quantize"]
        inputs = self._inputs_of_uint8(quantize, quantize.x)
        node = ir.node(quantizer.name, inputs, quantizer.values({}), domain=quantizer.domain)
        codes = self._insert(node, quantize, quantize.y)
        self.graph.model.opset_imports.setdefault(quantizer.domain, quantizer.since_version)
        self.graph.register(node)
        return codes

    def _inputs_of_uint8(self, node: Node, x: ir.Value) -> list[ir.Value]:
        """Return the inputs of a node whose codes become uint8 instead of int8."""
        codes = known_codes(self.graph.affine(node))
        zeros = np.full(codes.scales.shape, codes.zero_point + codes.shift(UINT8), np.uint8)
        return [x, codes.meaning.scale.value, self.graph.new_constant(zeros, f"{node.y.name}_zero_point", node.ir_node)]

    def _reconnect(self, quantize: Node, codes: ir.Value) -> None:
        """Pass the codes of an integer operator to the users of a quantize node, and remove the quantize node."""
        if self.graph.affine(quantize).element_type is INT8:
            dequantizer = COUNTERPARTS["dequantize"]
            for node in [self.graph.node(user) for user, _ in quantize.y.uses()]:
                assert node
                attributes = dequantizer.values({"axis": self.graph.affine(node).axis})
                self.graph.replace(node, dequantizer, self._inputs_of_uint8(node, codes), attributes, REWRITTEN)
        else:
            name = quantize.y.name
            self.graph.replace_uses(quantize.y, codes)
            quantize.y.name, codes.name = None, name
        if quantize.ir_node.graph:  # else it was removed with the last of its users
            self.graph.remove(quantize, REWRITTEN)
