"""Models in which ONNX's operators stand for the package's, so that onnx and ONNX Runtime can be asked about the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import helper

from ..catalog import OPERATORS
from ..declaration import Operator, Tensor
from ..element_types import FLOAT32, find

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
        Are not changed. Nodes of the package's operators that are not valid are left out, as are those whose output has an
        unknown element type.
    types : mapping of str to int
        Element types of values, by name.
    standard_ops : bool
        Whether there are stand-ins for ONNX's own QuantizeLinear and DequantizeLinear, too.
    hidden : list of str, optional
        If it is given, outputs have unknown shapes, as the package's operators have for ONNX Runtime, and no optimiser looks
        through a stand-in: it is a Reshape to the value of a graph input. The names of these inputs, which the model has to
        have, are appended.
    """

    for node in nodes:
        operator = OPERATORS.find(node.domain, node.op_type)
        if operator is None or not (operator.domain or standard_ops):
            yield _with_subgraphs(node, types, standard_ops, hidden)
        else:
            yield from _stand_in(operator, node, types, hidden)


def _stand_in(
    operator: Operator, node: onnx.NodeProto, types: Mapping[str, int], hidden: list[str] | None
) -> Iterator[onnx.NodeProto]:
    """The nodes for one of the package's; none for one that is not valid, or whose output's type is unknown."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    given = {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in given.items()}
    inputs = [Tensor(find(types.get(name, 0)), None) if name else None for name in node.input]
    try:
        attributes = operator.values(given)
        inferred, *_ = operator.infer(inputs, attributes)
        like = operator.like and operator.like(node.input, attributes)
    except (TypeError, ValueError):
        return
    element_type = inferred.element_type
    has_type_of_x = operator.outputs[0].variable == operator.inputs[0].variable
    if element_type is None and not has_type_of_x:
        return
    x, y = node.input[0], node.output[0]
    if like:
        op_type, names, others = like
        x = f"{y}{_NEW} like"
        yield helper.make_node(op_type, names, [x], **others)
    elif not has_type_of_x and types.get(x) != FLOAT32.number:
        yield helper.make_node("Cast", [x], [f"{y}{_NEW} float"], to=FLOAT32.number)
        x = f"{y}{_NEW} float"
    is_cast = not has_type_of_x and element_type not in (None, FLOAT32)
    shaped = f"{y}{_NEW} shaped" if is_cast else y
    if hidden is None:
        yield helper.make_node(_LIKE, [x], [shaped])
    else:
        hidden.append(f"{y}{_NEW} shape")
        yield helper.make_node("Reshape", [x, hidden[-1]], [shaped])
    if is_cast:
        assert element_type
        yield helper.make_node("Cast", [shaped], [y], to=element_type.number)


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
