"""Stand-ins: ONNX's operators in the place of the package's, so that onnx and ONNX Runtime can be asked about the rest of a
model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir
from onnx import helper

from ..catalog import OPERATORS
from ..declaration import Operator, Tensor
from ..element_types import FLOAT32, UINT8, ElementType, find
from ..models import protos
from .onnx_runtime import casts_to

# An operator whose output has the shape of its input. ONNX Runtime lacks it from opset 22 on, but onnx infers its shape.
_LIKE = "RandomNormalLike"

# The most bytes of an initializer whose values a skeleton contains, as shapes may depend on them.
_MOST_COPIED = 1 << 10

# The mark of new names; no name of a model has it.
_NEW = "::quark_numba"


def stand_ins(
    nodes: Iterable[onnx.NodeProto], types: Mapping[str, int], *, hidden: list[str] | None = None
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, with stand-ins for nodes of the package's operators, ONNX's own among them, also in
    subgraphs. Outputs keep their names, element types and shapes, but not their values. A node of the package's operators is
    left out if it is not valid, or if the element type of its output is unknown. `types` are the element types of values, by
    name.

    With a list `hidden`, outputs have unknown shapes, as ONNX Runtime sees the package's operators. No optimiser looks through
    a stand-in, because it is a Reshape to a shape that is a graph input. The names of these graph inputs are appended to the
    list, and the caller has to add the inputs to the model."""
    types = dict(types)
    for node in nodes:
        operator = OPERATORS.find(node.domain, node.op_type)
        if operator is None:
            yield _with_subgraphs(node, types, hidden)
        else:
            yield from _stand_in(operator, node, types, hidden)


def _stand_in(
    operator: Operator, node: onnx.NodeProto, types: dict[str, int], hidden: list[str] | None
) -> Iterator[onnx.NodeProto]:
    """Yield the stand-ins for one of the package's nodes; none if it is not valid or the type of its output is unknown. Add the
    types of its outputs to `types`."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    given = {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in given.items()}
    inputs = [Tensor(find(types.get(name, 0)), None) if name else None for name in node.input]
    if not node.output:
        return
    try:
        attributes = operator.values(given)
        inferred, *more = operator.infer(inputs, attributes)
        like = operator.like and operator.like(node.input, attributes)
    except (TypeError, ValueError):
        return
    element_type = inferred.element_type
    has_type_of_x = operator.outputs[0].variable == operator.inputs[0].variable
    if element_type is None and not has_type_of_x:
        return
    y_types = [tensor.element_type for tensor in (inferred, *more)]
    if hidden is not None:  # ONNX Runtime runs the stand-ins, and has no Cast to all types
        y_types = [UINT8 if y_type and not casts_to(y_type) else y_type for y_type in y_types]
    element_type, *more_types = y_types
    types |= {name: y_type.number for name, y_type in zip(node.output, y_types, strict=False) if y_type}
    for name, y_type in zip(node.output[1:], more_types, strict=False):
        if name and y_type:
            yield from _of_unknown_shape(name, y_type, hidden)
    x, y = node.input[0], node.output[0]
    x_type = find(types.get(x, 0))
    if hidden is not None and element_type and x_type and not casts_to(x_type):
        yield from _of_unknown_shape(y, element_type, hidden)
        return
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


def _of_unknown_shape(y: str, element_type: ElementType, hidden: list[str] | None) -> Iterator[onnx.NodeProto]:
    """Yield nodes that make y, of which only the element type is known. Without `hidden` they need not run."""
    made = f"{y}{_NEW} made"
    if hidden is None:
        yield helper.make_node("Constant", [], [f"{made} at"], value_int=0)
        yield helper.make_node("SequenceEmpty", [], [f"{made} of"])
        yield helper.make_node("SequenceAt", [f"{made} of", f"{made} at"], [made])
    else:
        hidden.append(f"{y}{_NEW} shape")
        yield helper.make_node("ConstantOfShape", [hidden[-1]], [made])
    yield helper.make_node("Cast", [made], [y], to=element_type.number)


def _with_subgraphs(node: onnx.NodeProto, types: Mapping[str, int], hidden: list[str] | None) -> onnx.NodeProto:
    if not any(protos.subgraphs(node)):
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    for graph in protos.subgraphs(result):
        nodes = list(stand_ins(graph.node, types, hidden=hidden))
        del graph.node[:]
        graph.node.extend(nodes)
    return result


def skeleton(
    model: ir.Model,
    tensor_of: Callable[[ir.Value], ir.TensorProtocol | None],
    zeros: frozenset[str] = frozenset(),
    *,
    hide_shapes: bool = False,
    file: str | None = None,
) -> onnx.ModelProto:
    """Return the main graph of a model with stand-ins for the package's nodes, and without the values of large initializers.
    `tensor_of` returns the tensor of a value if that is a constant. Large initializers named in `zeros` are 0, the others
    become graph inputs. With `hide_shapes`, no more shapes are known than ONNX Runtime knows in the model. With `file`, the
    zeros are in the file of that name."""
    result = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    result.opset_import.extend(helper.make_opsetid(*opset) for opset in model.opset_imports.items())
    to = result.graph
    to.name = "skeleton"
    to.input.extend(ir.serde.serialize_value(value) for value in model.graph.inputs)
    to.output.extend(ir.serde.serialize_value(value) for value in model.graph.outputs)
    for name, value in model.graph.initializers.items():
        tensor = tensor_of(value)
        if tensor is not None and tensor.nbytes <= _MOST_COPIED:
            to.initializer.append(ir.serde.serialize_tensor(tensor))
        elif tensor is not None and name in zeros:
            added = to.initializer.add(name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
            if file is None:
                added.raw_data = bytes(tensor.nbytes)
            else:
                protos.refer(added, file, 0, tensor.nbytes)
        elif not value.is_graph_input():
            to.input.append(ir.serde.serialize_value(value))
    types = {}
    for value in values_of(model.graph):
        tensor = None if value.dtype else tensor_of(value)
        dtype = tensor.dtype if tensor is not None else value.dtype
        if value.name and dtype:
            types[value.name] = dtype.value
    nodes = map(ir.serde.serialize_node, model.graph)
    hidden: list[str] = []
    to.node.extend(stand_ins(nodes, types, hidden=hidden if hide_shapes else None))
    # Nodes of two branches may have the same names.
    to.input.extend(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [None]) for name in dict.fromkeys(hidden))
    # Without them onnx does not know the shapes behind nodes of other domains.
    known = (value for node in model.graph if hide_shapes or node.domain for value in node.outputs)
    made = (value for value in known if value.name and value.type and value.shape is not None)
    to.value_info.extend(ir.serde.serialize_value(value) for value in made if not value.is_graph_output())
    return result


def values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield all values of a model, local functions included."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield from values_of(graph)


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield all values of a graph and its subgraphs."""
    for node in graph.all_nodes():
        yield from (value for value in (*node.inputs, *node.outputs) if value)
    for scope in (graph, *graph.subgraphs()):
        yield from (*scope.inputs, *scope.initializers.values())
