"""Inline local functions with nodes that passes rewrite, and the reasons why some functions stay.

ONNX Runtime infers no types in a function with operators that are not its own. The passes treat inlined nodes like
all others."""

from __future__ import annotations

import bisect
import graphlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from ..catalog import OPERATORS
from ..errors import ModelError
from . import casts, channels_last
from .nodes import full_name
from .stand_ins import values, values_of

INLINED = "inlined"

# The number of functions that InlinePass gets at once. It compares each of them with every other one.
_AT_ONCE = 500

_Name = tuple[str, str, str]  # domain, name, overload


def inline(model: ir.Model, *, every: bool = False) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Inline functions of the model. Return how many calls of each function were inlined, and how many nodes of each operator
    stay in functions, with the reason. With `every`, inline all functions, whatever they contain."""
    functions = dict(model.functions)
    used = {
        name: functions.keys() & {node.op_identifier() for node in function.all_nodes()} for name, function in functions.items()
    }
    users: dict[_Name, set[_Name]] = {name: set() for name in used}
    for user, names in used.items():
        for name in names:
            users[name].add(user)
    affected = {
        name for name, function in functions.items() if every or any(_begins(node, functions) for node in function.all_nodes())
    }
    wanted = _reached(affected, users)
    if not wanted:
        return Counter(), Counter()
    for name in wanted:
        for domain, version in functions[name].opset_imports.items():
            model.opset_imports.setdefault(domain, version)
    reasons = {name: reason for name in sorted(wanted) if (reason := _why_not(model, functions[name]))}
    # Functions that a remaining function calls have to stay as well: they may contain other versions of operators.
    kept = _reached(set(reasons), used)
    wanted -= kept
    done = _inline(model, functions, _callees_first({name: used[name] & wanted for name in sorted(wanted)})[::-1])
    why = "; ".join(dict.fromkeys(reasons.values()))
    return done, Counter(
        (full_name(node), f"in a function that stays: {why}")
        for name in kept
        for node in functions[name].all_nodes()
        if _begins(node, functions)
    )


def _inline(model: ir.Model, functions: dict[_Name, ir.Function], callers_first: Sequence[_Name]) -> Counter[tuple[str, str]]:
    """Inline functions of the model. Return how many calls of each were inlined."""
    for name in callers_first:  # copies: renaming a value renames its tensor, and the caller's model has the same tensors
        copied = ir.serde.serialize_function(functions[name])
        function = functions[name] = model.functions[name] = ir.serde.deserialize_function(copied)
        function.opset_imports.update({domain: model.opset_imports[domain] for domain in function.opset_imports})
    wanted = {name: functions[name] for name in sorted(callers_first)}
    _make_names_unique(model, wanted.values())
    for graph in (model.graph, *(function.graph for function in functions.values())):
        for node in graph.all_nodes():
            if node.op_identifier() in wanted:
                # The inlined nodes need the outputs that a call omits, as values without names, and name them.
                node.resize_outputs(max(len(wanted[node.op_identifier()].outputs), len(node.outputs)))
                for output in node.outputs:
                    output.name = output.name or None
    done: Counter[tuple[str, str]] = Counter()

    def accept(function: ir.Function) -> bool:
        """Return whether to inline a call, and count it. InlinePass asks once for each call."""
        if function.identifier() not in wanted:
            return False
        done[f"{function.domain or 'ai.onnx'}::{function.name}", INLINED] += 1
        return True

    others = {name: function for name, function in model.functions.items() if name not in wanted}
    for start in range(0, len(callers_first), _AT_ONCE):
        model.functions.clear()
        model.functions.update((name, functions[name]) for name in callers_first[start : start + _AT_ONCE])
        InlinePass(accept)(model)
    model.functions.clear()
    model.functions.update(others)
    return done


def _begins(node: ir.Node, functions: dict[_Name, ir.Function]) -> bool:
    """Return whether a pass may begin with a node."""
    if node.op_identifier() in functions:
        return False
    is_operator = OPERATORS.find(node.domain, node.op_type) is not None
    return is_operator or casts.target(node) in casts.TYPES or channels_last.is_channels_last(node.domain, node.op_type)


def _reached(names: set[_Name], others: Mapping[_Name, set[_Name]]) -> set[_Name]:
    """Return these names and all names that are reached from them through `others`."""
    reached, waiting = set[_Name](), [*names]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += others[name]
    return reached


def _callees_first(used: Mapping[_Name, set[_Name]]) -> list[_Name]:
    try:
        return [*graphlib.TopologicalSorter(used).static_order()]
    except graphlib.CycleError as error:
        names = " -> ".join(name for _, name, _ in error.args[1])
        raise ModelError(f"not a valid model: local functions call themselves: {names}") from None


def _why_not(model: ir.Model, function: ir.Function) -> str:
    """Return the reason why a function cannot be inlined; "" if it can."""
    if len({*function.outputs}) < len(function.outputs) or not {*function.inputs}.isdisjoint(function.outputs):
        return f"{function.name} returns one of its inputs, or one value twice"
    for node in function.all_nodes():
        if any(attribute.is_ref() and attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values()):
            return f"{function.name} takes a graph as an attribute"
        versions = [imports.get(node.domain, 1) for imports in (function.opset_imports, model.opset_imports)]
        if _since(node, versions[0]) != _since(node, versions[1]):
            return f"{function.name} has {full_name(node)} of opset {versions[0]}, the model of opset {versions[1]}"
    return ""


def _since(node: ir.Node, version: int) -> int:
    """Return the opset that introduced the version of a node's operator; 1 for operators that onnx does not know."""
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return 1


def _make_names_unique(model: ir.Model, functions: Iterable[ir.Function]) -> None:
    """Append the function's name to the name of each value, in a form that no other name in the model contains. Otherwise the
    numbers that InlinePass appends could make the name of another value, for instance in a subgraph. Append it to the names of
    nodes, too: if many nodes have the same name, InlinePass tries one number after the other."""
    ends = sorted(end for value in values(model) for end in _ends(value.name))
    for function in functions:
        tags = (f"/{function.name}{number or ''}" for number in itertools.count())
        tag = next(tag for tag in tags if not _begins_any(tag, ends))
        for value in {*values_of(function.graph)}.difference(function.inputs):
            if value.name:
                value.name += tag
                for end in _ends(value.name):
                    bisect.insort(ends, end)
        for node in function.all_nodes():
            node.name = f"{node.name or 'node'}{tag}"


def _begins_any(text: str, texts: Sequence[str]) -> bool:
    """Return whether any of the sorted texts begins with a text."""
    place = bisect.bisect_left(texts, text)
    return place < len(texts) and texts[place].startswith(text)


def _ends(name: str | None) -> Iterator[str]:
    """Yield the end of a name from each of its slashes on."""
    return ((name or "")[i:] for i, character in enumerate(name or "") if character == "/")
