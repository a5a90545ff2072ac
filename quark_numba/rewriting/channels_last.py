"""Rewrite QONNX's nodes whose tensors have their channels on the last axis into ONNX's own nodes between Transposes.

QONNX makes these nodes from ONNX's nodes of the same names and attributes, and runs them between Transposes (qonnx 1.0,
``custom_op/channels_last/base_wrapped_op.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from ..dialects.qonnx import CHANNELS_LAST
from .graph import is_unused
from .nodes import Values, full_name

REWRITTEN = "rewritten: ONNX's own operator between Transposes"

_TRANSPOSE = ("", "Transpose", "")

# The operators, each with the number of its leading inputs that have the channels on the last axis.
_COUNTS = {"Conv": 2, "MaxPool": 1, "BatchNormalization": 1}


def is_channels_last(domain: str, name: str) -> bool:
    """Return whether a domain and a name are those of a QONNX operator with channels on the last axis."""
    return domain == CHANNELS_LAST and name in _COUNTS


def rewrite(model: ir.Model) -> Counter[tuple[str, str]]:
    """Rewrite these nodes of a sorted model, and count them. A node is not rewritten if it has several outputs, or if the rank
    of its x is not known."""
    done: Counter[tuple[str, str]] = Counter()
    known = Values(model, frozenset())
    for node in [node for node in model.graph.all_nodes() if is_channels_last(node.domain, node.op_type)]:
        # QONNX gives its domain the version that ONNX's has.
        model.opset_imports.setdefault("", model.opset_imports.get(CHANNELS_LAST, 1))
        is_call = node.op_identifier() in model.functions
        is_whole = len(node.outputs) == 1 and bool(node.inputs) and node.inputs[0] is not None
        rank = _rank(node, known) if is_whole and not is_call else None
        if rank is None or rank < 2:
            continue
        done[full_name(node), REWRITTEN] += 1
        befores = {value.producer() for value in node.inputs if value}
        _replace(node, rank, known)
        known.forget_inferred()
        for before in befores:  # a Transpose that this one undoes
            if before and before.graph and before.op_identifier() == _TRANSPOSE and is_unused(before):
                before.graph.remove(before, safe=True)
    return done


def _rank(node: ir.Node, known: Values) -> int | None:
    """Return the rank of the x of a node, or None if it is not known."""
    (x, *others), kernel = node.inputs, node.attributes.get("kernel_shape")
    if kernel is not None and kernel.type.name == "INTS" and not kernel.is_ref():
        return len(kernel.value) + 2
    weights = others[0] if node.op_type == "Conv" and others else None
    for value in (weights, x, *node.outputs):
        if value is not None and value.shape is not None:
            return len(value.shape)
    shape = known.shape(x)
    return None if shape is None else len(shape)


def _replace(node: ir.Node, rank: int, known: Values) -> None:
    axes = [*range(rank)]
    (y,), first, last = node.outputs, [0, rank - 1, *axes[1:-1]], [0, *axes[2:], 1]
    made: list[ir.Node] = []

    def transposed(x: ir.Value | None, permutation: Sequence[int], undone: Sequence[int]) -> ir.Value | None:
        """Return a value with its axes permuted. If this undoes a Transpose, return the input of that Transpose."""
        before = x.producer() if x else None
        if before is not None and before.op_identifier() == _TRANSPOSE:
            permuted = before.attributes.get("perm")
            if permuted is not None and list(permuted.value) == undone and before.inputs[0]:
                return before.inputs[0]
        made.append(ir.node("Transpose", [x], {"perm": ir.AttrInt64s("perm", permutation)}))
        return made[-1].outputs[0]

    inputs = list(node.inputs)
    if rank > 2:
        for index in range(min(_COUNTS[node.op_type], len(inputs))):
            inputs[index] = transposed(inputs[index], first, last)
    made.append(ir.node(node.op_type, inputs, node.attributes, name=node.name))
    if rank > 2:
        transposed(made[-1].outputs[0], last, first)
    for each in made[:-1]:
        each.outputs[0].name = known.unused_name(f"{y.name}_channels_first")
        each.outputs[0].type = y.type
    made[-1].outputs[0].shape = y.shape or ir.Shape([None] * rank)  # the next node may need the rank
    assert node.graph
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], made, [y], made[-1].outputs)
