"""Models in which ONNX's operators stand for the package's, so that onnx and ONNX Runtime can be asked about the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import helper

from ..catalog import OPERATORS
from ..element_types import FLOAT32, UINT8
from ..region.key import parse

# Its output has the shape of its input. ONNX Runtime has none from opset 22 on, but onnx infers shapes of it.
_LIKE = "RandomNormalLike"

# At the end of a name that no model has.
_NEW = "::quark_numba"


def stand_ins(
    nodes: Iterable[onnx.NodeProto], types: Mapping[str, int], *, standard_ops: bool, hidden: list[str] | None = None
) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph, with others for those of the package's operators, also in subgraphs. Outputs keep their names,
    element types and shapes, but not their values.

    Parameters
    ----------
    nodes : onnx.NodeProto
        Are not changed. A quantize node whose zero point has an unknown element type is left out.
    types : mapping of str to int
        Element types of values, by name.
    standard_ops : bool
        Whether there are stand-ins for ONNX's own QuantizeLinear and DequantizeLinear, too.
    hidden : list of str, optional
        If it is given, outputs have unknown shapes, as the package's operators have for ONNX Runtime, and no optimiser looks
        through a stand-in: it is a Reshape to the value of a graph input. The names of these inputs, which the model has to
        have, are appended.
    """

    def like(x: str, y: str, to: int = 0) -> Iterator[onnx.NodeProto]:
        """y has the shape of x, and its element type, or another."""
        if hidden is None:
            yield helper.make_node(_LIKE, [x], [y], **({"dtype": to} if to else {}))  # type: ignore[arg-type]
            return
        if to:
            yield helper.make_node("Cast", [x], [f"{y}{_NEW} of x"], to=to)
        hidden.append(f"{y}{_NEW} shape")
        yield helper.make_node("Reshape", [f"{y}{_NEW} of x" if to else x, hidden[-1]], [y])

    for node in nodes:
        operator = OPERATORS.find(node.domain, node.op_type)
        if operator is None or not (operator.domain or standard_ops):
            yield _with_subgraphs(node, types, standard_ops, hidden)
            continue
        attributes = {each.name: each for each in node.attribute}
        x, y = node.input[0], node.output[0]
        if operator.operation == "lstm":  # the one whose y has another shape than x
            size = attributes["hidden_size"].i if "hidden_size" in attributes else 0
            yield helper.make_node("LSTM", node.input, [y], hidden_size=size, direction="bidirectional")
        elif operator.operation == "region":
            axes = parse(attributes["program"].s.decode()).axes
            operands = dict.fromkeys(name for name, axis in zip(node.input, axes, strict=True) if axis is None)
            yield helper.make_node("Sum", [*operands], [y + _NEW])
            yield from like(y + _NEW, y)
        elif operator.operation == "quantize":
            zero_point = node.input[2] if len(node.input) > 2 else ""
            output_dtype = attributes["output_dtype"].i if "output_dtype" in attributes else 0
            code_type = types.get(zero_point) if zero_point else output_dtype or UINT8.number
            if code_type:
                yield from like(x, y + _NEW, FLOAT32.number)
                yield helper.make_node("Cast", [y + _NEW], [y], to=code_type)
        elif operator.operation == "dequantize":
            output_dtype = attributes["output_dtype"].i if "output_dtype" in attributes else 0
            yield from like(x, y, output_dtype or FLOAT32.number)
        else:
            yield from like(x, y)


def _with_subgraphs(
    node: onnx.NodeProto, types: Mapping[str, int], standard_ops: bool, hidden: list[str] | None
) -> onnx.NodeProto:
    if not any(each.HasField("g") or each.graphs for each in node.attribute):
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    for attribute in result.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            before = onnx.GraphProto()
            before.CopyFrom(graph)
            del graph.node[:]
            graph.node.extend(stand_ins(before.node, types, standard_ops=standard_ops, hidden=hidden))
    return result
