"""Local functions with nodes of the package's operators, put in the place of their calls: ONNX Runtime infers no types in a
function with operators that it does not have itself, and there the passes treat their nodes as all others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ..catalog import OPERATORS
from .graph import full_name, values, values_of

INLINED = "inlined"

_Name = tuple[str, str, str]  # domain, name, overload


def inline(model: ir.Model, *, every: bool = False) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """How many calls of which functions are no more, and how many nodes of each operator are left in functions, and why. With
    `every`, of all functions, whatever is in them."""
    functions = dict(model.functions)
    used = {name: {node.op_identifier() for node in _nodes(function)} for name, function in functions.items()}
    own = {name for name, function in functions.items() if every or any(_is_own(node, functions) for node in _nodes(function))}
    wanted = _with_all_that_use(own, used)
    if not wanted:
        return Counter(), Counter()
    for name in wanted:
        for domain, version in functions[name].opset_imports.items():
            model.opset_imports.setdefault(domain, version)
    reasons = {name: reason for name in sorted(wanted) if (reason := _why_not(model, functions[name]))}
    # What is called by one that stays a function has to stay one: there may be other versions of operators in it.
    kept = _with_all_that_are_used(set(reasons), used)
    wanted -= kept
    for name in wanted:  # their tensors, which go by the names of values, are those of the caller's model
        copied = ir.serde.serialize_function(functions[name])
        functions[name] = model.functions[name] = ir.serde.deserialize_function(copied)
    done: Counter[tuple[str, str]] = Counter()

    def is_wanted(function: ir.Function) -> bool:
        """Asked once for each call."""
        if function.identifier() not in wanted:
            return False
        done[f"{function.domain or 'ai.onnx'}::{function.name}", INLINED] += 1
        return True

    for name in sorted(wanted):
        functions[name].opset_imports.update({each: model.opset_imports[each] for each in functions[name].opset_imports})
    _make_names_unique(model, [functions[name] for name in sorted(wanted)])
    for graph in (model.graph, *(function.graph for function in functions.values())):
        for node in ir.traversal.RecursiveGraphIterator(graph):
            if node.op_identifier() in wanted:
                _complete(node, functions[node.op_identifier()])
    InlinePass(is_wanted)(model)
    for name in wanted:
        model.functions.pop(name, None)  # nothing calls it
    why = "; ".join(dict.fromkeys(reasons.values()))
    return done, Counter(
        (full_name(node), f"in a function that stays: {why}")
        for name in kept
        for node in _nodes(functions[name])
        if _is_own(node, functions)
    )


def _nodes(function: ir.Function) -> Iterator[ir.Node]:
    """All nodes, also in subgraphs."""
    yield from ir.traversal.RecursiveGraphIterator(function.graph)


def _is_own(node: ir.Node, functions: dict[_Name, ir.Function]) -> bool:
    return node.op_identifier() not in functions and OPERATORS.find(node.domain, node.op_type) is not None


def _with_all_that_use(names: set[_Name], used: dict[_Name, set[_Name]]) -> set[_Name]:
    while more := {name for name, others in used.items() if name not in names and others & names}:
        names = names | more
    return names


def _with_all_that_are_used(names: set[_Name], used: dict[_Name, set[_Name]]) -> set[_Name]:
    while more := {other for name in names for other in used[name] if other in used} - names:
        names = names | more
    return names


def _why_not(model: ir.Model, function: ir.Function) -> str:
    """Why a function has to stay one; "" if it has not."""
    if len({*function.outputs}) < len(function.outputs) or not {*function.inputs}.isdisjoint(function.outputs):
        return f"{function.name} puts out one of its inputs, or one value twice"
    for node in _nodes(function):
        if any(attribute.is_ref() and attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values()):
            return f"{function.name} has a graph for an attribute"
        versions = [imports.get(node.domain, 1) for imports in (function.opset_imports, model.opset_imports)]
        if _since(node, versions[0]) != _since(node, versions[1]):
            return f"{function.name} has {full_name(node)} of opset {versions[0]}, the model of opset {versions[1]}"
    return ""


def _since(node: ir.Node, version: int) -> int:
    """The opset that brought in the version of an operator; 1 for operators that onnx does not know."""
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return 1


def _make_names_unique(model: ir.Model, functions: Iterable[ir.Function]) -> None:
    """Let names of values end with the name of their function, as no others in the model do: then the numbers that InlinePass
    puts behind them do not make the name of another, in a subgraph for instance."""
    names = {value.name for value in values(model) if value.name}
    for function in functions:
        tags = (f"/{function.name}{number or ''}" for number in itertools.count())
        tag = next(tag for tag in tags if not any(tag in name for name in names))
        for value in {*values_of(function.graph)}.difference(function.inputs):
            if value.name:
                value.name += tag
                names.add(value.name)


def _complete(call: ir.Node, function: ir.Function) -> None:
    """A call may leave out outputs: what is put in its place has them, by names of its own."""
    call.resize_outputs(max(len(function.outputs), len(call.outputs)))
    for output in call.outputs:
        output.name = output.name or None
