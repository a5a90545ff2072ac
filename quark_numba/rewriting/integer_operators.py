"""Rewrite groups of ONNX's own 8-bit nodes, with the operators between them, into ONNX Runtime's integer operators.

ONNX Runtime would fuse such nodes itself. But it goes by what it finds in the optimised model, and also fuses float tensors
that were never 8 bits. Here an operator is rewritten only if the integer operator gives what the nodes as written give: its
sums are exact, and one float32 factor scales them. So a code differs by at most one, and only if the result is within a
thousandth of a step of the middle between two codes.

Codes connect the operators of a group. It is rewritten as a whole if that is estimated to be faster (``integer_costs``). Its
codes become uint8, because ONNX Runtime is slow with int8 activations on x86-64: int8 codes plus 128 are the same numbers with
another zero point. Codes of weights become int8 if ONNX Runtime multiplies uint8 with int8 exactly, else uint8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from .graph import Graph
from .integer_codes import MOVES
from .integer_costs import of_operator, of_quantization
from .integer_rules import RULES, Match
from .integer_writing import Writing
from .nodes import Left, Node

_FIRST_OPSET = 10


def rewrite(graph: Graph) -> None:
    version = graph.model.opset_imports.get("", 0)
    if graph.standard_ops is not None or graph.integers == "nowhere" or version < _FIRST_OPSET:
        return
    found: dict[Node, Match] = {}  # by the quantize node behind it
    for node in graph.model.graph.all_nodes():
        rule = RULES.get(node.op_type) if not node.domain else None
        if rule and (rule.domain, rule.name or node.op_type, "") not in graph.model.functions:
            try:
                operator = rule.match(graph, node)
            except Left:
                continue
            found[operator.target.quantize] = operator
    chosen = [each for group in _groups(found) if _is_faster(graph, group) for each in group]
    if chosen:
        graph.model.graph.sort()  # ONNX Runtime takes nodes in any order
        Writing(graph, chosen).run()


def _groups(found: Mapping[Node, Match]) -> Iterator[list[Match]]:
    """Yield the operators that codes connect, each group in the order of the model."""
    parents: dict[Any, Any] = {}

    def root(each: Any) -> Any:
        while parents.setdefault(each, each) is not each:
            each = parents[each]
        return each

    for operator in found.values():
        for source in operator.sources:
            if not source.is_constant:
                parents[root(source.node.x)] = root(operator.target.quantize.y)
    groups: dict[Any, list[Match]] = {}
    for operator in found.values():
        groups.setdefault(root(operator.target.quantize.y), []).append(operator)
    yield from groups.values()


def _is_faster(graph: Graph, group: Sequence[Match]) -> bool:
    total, own = 0.0, {each.node for each in group}
    made = {each.target.quantize for each in group}
    taken: dict[ir.Value, None] = {}
    for each in group:
        total += of_operator(graph, each.node, each.of_weights.name)
        taken |= dict.fromkeys(source.node.x for source in each.sources if not source.is_constant)
    # The codes that the group takes from outside, and those that it gives to float operators.
    total += sum(of_quantization(graph, value) for value in taken if graph.node(value.producer()) not in made)
    for each in group:
        behind = [user for user, _ in each.target.quantize.y.uses()]
        total += sum(of_quantization(graph, user.outputs[0]) for user in behind if not _feeds_only(user.outputs[0], own))
    return total < 0


def _feeds_only(value: ir.Value, nodes: set[ir.Node]) -> bool:
    """Whether only these nodes use a value, or what moves it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        others = [user for user, _ in each.uses() if user not in nodes]
        if each.is_graph_output() or not each.uses() or any(user.op_identifier() not in MOVES for user in others):
            return False
        waiting += [user.outputs[0] for user in others]
    return True
