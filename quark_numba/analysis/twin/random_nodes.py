"""Nodes that draw random numbers: which operators do, the values that depend on them, and the reason why these are not
compared. These values differ between two runs, with or without quantization."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ...models import protos
from ...models.model_files import Source

# ONNX's operators that draw random numbers. With a seed they do so as well, because each run continues where the previous one
# ended.
DRAWING = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

# The index of the input of Dropout that says whether it is in training mode. If this input is missing, Dropout passes its first
# input on.
_TRAINING_MODE = 2


def random_values(graph: ir.Graph) -> dict[ir.Value, str]:
    """Return the values of a graph that depend on a node that draws random numbers, with the reason. The nodes have to be
    sorted. Values within subgraphs are not returned."""
    reasons: dict[ir.Value, str] = {}
    for node in graph:
        subgraphs = [*_subgraphs(node)]
        nodes = [node, *(inner for subgraph in subgraphs for inner in subgraph.all_nodes())]
        drawing = next(filter(_draws, nodes), None)
        taken = [*(user.inputs for user in nodes), *(subgraph.outputs for subgraph in subgraphs)]
        reason = next((reasons[value] for values in taken for value in values if value in reasons), None)
        if drawing is not None:
            name = drawing.name or f"of {drawing.outputs[0].name}"
            reason = f"downstream of {drawing.op_type} {name}, which draws random numbers: two runs differ"
        if reason:
            reasons.update(dict.fromkeys(node.outputs, reason))
    return reasons


def random_outputs(model: Source, reference: Source | None, chosen: Sequence[str]) -> dict[str, str]:
    """Return which of the chosen outputs depend on random numbers, in the model or in the reference, with the reasons. The
    outputs of the reference are paired by position."""
    names = [output.name for output in model.proto.graph.output]
    reasons: dict[str, str] = {}
    for source, whose in ((model, ""), (reference, "the reference's is ")):
        if source and any(node.op_type in (*DRAWING, "Dropout") for node in protos.nodes(source.proto.graph)):
            graph = source.lazy().graph
            graph.sort()
            values = random_values(graph)
            for name, value in zip(names, graph.outputs, strict=False):
                if name in chosen and value in values:
                    reasons.setdefault(name, whose + values[value])
    return reasons


def _draws(node: ir.Node) -> bool:
    if node.domain:
        return False
    if node.op_type != "Dropout" or len(node.inputs) <= _TRAINING_MODE:
        return node.op_type in DRAWING
    mode = node.inputs[_TRAINING_MODE]
    if mode is None:
        return False
    constant = ir.convenience.get_const_tensor(mode)
    return constant is None or bool(constant.numpy().any())


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()
