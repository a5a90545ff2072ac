"""Stand-ins: ONNX operators that replace this package's operators, so that onnx and ONNX Runtime can analyse the rest of a
model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir
from onnx import helper

from ..catalog import OPERATORS
from ..declaration import Operator, Tensor
from ..declaration.operator import Like
from ..element_types import FLOAT32, UINT8, ElementType, find
from ..models import protos
from .onnx_runtime import casts_to

# An operator whose output has the shape of its input. ONNX Runtime lacks it from opset 22 on, but onnx infers its shape.
_LIKE = "RandomNormalLike"

# The most bytes of an initializer whose values a skeleton contains, as shapes may depend on them.
_MAX_COPIED = 1 << 10

# The mark of new names; no name of a model has it.
_NEW = "::quark_numba"


class StandIns:
    """ONNX operators that replace this package's operators and ONNX's own quantization operators. Outputs keep
    their names and element types, but not their values. A node is left out if it is not valid, or if the element type of its
    output is unknown. `shapes` are the names of graph inputs that the stand-ins take, and that the caller has to add to the
    model.

    onnx infers the shapes of outputs from these stand-ins. They need not run."""

    def __init__(self) -> None:
        self.shapes: list[str] = []

    def nodes(self, nodes: Iterable[onnx.NodeProto], types: Mapping[str, int]) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of a graph with stand-ins, also in subgraphs. `types` are the element types of values, by name."""
        types = dict(types)
        for node in nodes:
            operator = OPERATORS.find(node.domain, node.op_type)
            if operator is None:
                yield self._with_subgraphs(node, types)
            else:
                yield from self._stand_ins_for(operator, node, types)

    def _takes(self, element_type: ElementType) -> bool:
        """Return whether stand-ins may have tensors of an element type."""
        return True

    def _like(self, x: str, y: str, name: str) -> onnx.NodeProto:
        """Return a node with the output y, of the type and the shape of x, for the value `name`."""
        return helper.make_node(_LIKE, [x], [y])

    def _unshaped(self, y: str, name: str) -> Iterator[onnx.NodeProto]:
        """Yield nodes that make y, of unknown shape and of any type that a Cast takes, for the value `name`."""
        yield helper.make_node("Constant", [], [f"{y} index"], value_int=0)
        yield helper.make_node("SequenceEmpty", [], [f"{y} sequence"])
        yield helper.make_node("SequenceAt", [f"{y} sequence", f"{y} index"], [y])

    def _stand_ins_for(self, operator: Operator, node: onnx.NodeProto, types: dict[str, int]) -> Iterator[onnx.NodeProto]:
        """Yield the stand-ins for one of the package's nodes. Add the types of its outputs to `types`."""
        has_type_of_x = operator.outputs[0].variable == operator.inputs[0].variable
        y_types, like = _infer(operator, node, types) if node.output else ([], None)
        if not y_types or (y_types[0] is None and not has_type_of_x):
            return
        y_types = [UINT8 if y_type and not self._takes(y_type) else y_type for y_type in y_types]
        outputs = [(name, y_type) for name, y_type in zip(node.output, y_types, strict=False) if y_type]
        types |= {name: y_type.number for name, y_type in outputs}
        for name, y_type in outputs:
            if name and name != node.output[0]:
                yield from self._typed(name, y_type)
        x_type = find(types.get(node.input[0], 0))
        if y_types[0] and x_type and not self._takes(x_type):
            yield from self._typed(node.output[0], y_types[0])
        else:
            yield from self._shaped(node, like, x_type, None if has_type_of_x else y_types[0])

    def _shaped(
        self, node: onnx.NodeProto, like: Like | None, x_type: ElementType | None, y_type: ElementType | None
    ) -> Iterator[onnx.NodeProto]:
        """Yield nodes that make a node's output y in the shape of x, or of the result of `like`. `y_type` is None if y has the
        type of x."""
        x, y = node.input[0], node.output[0]
        if like:
            op_type, names, attributes = like
            x = f"{y}{_NEW} like"
            yield helper.make_node(op_type, names, [x], **attributes)
        elif y_type and x_type is not FLOAT32:
            yield helper.make_node("Cast", [x], [f"{y}{_NEW} float"], to=FLOAT32.number)
            x = f"{y}{_NEW} float"
        if y_type in (None, FLOAT32):
            yield self._like(x, y, y)
        else:
            yield self._like(x, f"{y}{_NEW} shaped", y)
            yield helper.make_node("Cast", [f"{y}{_NEW} shaped"], [y], to=y_type.number)

    def _typed(self, y: str, element_type: ElementType) -> Iterator[onnx.NodeProto]:
        """Yield nodes that make y, of which only the element type is known."""
        yield from self._unshaped(f"{y}{_NEW} made", y)
        yield helper.make_node("Cast", [f"{y}{_NEW} made"], [y], to=element_type.number)

    def _with_subgraphs(self, node: onnx.NodeProto, types: Mapping[str, int]) -> onnx.NodeProto:
        if not any(protos.subgraphs(node)):
            return node
        result = onnx.NodeProto()
        result.CopyFrom(node)
        for graph in protos.subgraphs(result):
            nodes = list(self.nodes(graph.node, types))
            del graph.node[:]
            graph.node.extend(nodes)
        return result


def _infer(operator: Operator, node: onnx.NodeProto, types: Mapping[str, int]) -> tuple[list[ElementType | None], Like | None]:
    """Return the element types of a node's outputs, and the result of the operator's `like`. There are no types if the node is
    invalid."""
    inputs = [Tensor(find(types.get(name, 0)), None) if name else None for name in node.input]
    try:
        attributes = operator.values(protos.attributes_of(node))
        y_types = [tensor.element_type for tensor in operator.infer(inputs, attributes)]
        return y_types, operator.like and operator.like(node.input, attributes)
    except (TypeError, ValueError):
        return [], None


class SessionStandIns(StandIns):
    """Stand-ins that ONNX Runtime runs, and whose shapes it does not know, as it sees the package's operators. No optimizer
    looks through one, because it is a Reshape to a shape that is a graph input."""

    def _takes(self, element_type: ElementType) -> bool:
        return casts_to(element_type)

    def _like(self, x: str, y: str, name: str) -> onnx.NodeProto:
        return helper.make_node("Reshape", [x, self._shape(name)], [y])

    def _unshaped(self, y: str, name: str) -> Iterator[onnx.NodeProto]:
        yield helper.make_node("ConstantOfShape", [self._shape(name)], [y])

    def _shape(self, name: str) -> str:
        self.shapes.append(f"{name}{_NEW} shape")
        return self.shapes[-1]


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
    graph = result.graph
    graph.name = "skeleton"
    graph.input.extend(ir.serde.serialize_value(value) for value in model.graph.inputs)
    graph.output.extend(ir.serde.serialize_value(value) for value in model.graph.outputs)
    for name, value in model.graph.initializers.items():
        tensor = tensor_of(value)
        if tensor is not None and tensor.nbytes <= _MAX_COPIED:
            graph.initializer.append(ir.serde.serialize_tensor(tensor))
        elif tensor is not None and name in zeros:
            added = graph.initializer.add(name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
            if file is None:
                added.raw_data = bytes(tensor.nbytes)
            else:
                protos.refer(added, file, 0, tensor.nbytes)
        elif not value.is_graph_input():
            graph.input.append(ir.serde.serialize_value(value))
    types = {}
    for value in values_of(model.graph):
        tensor = None if value.dtype else tensor_of(value)
        dtype = tensor.dtype if tensor is not None else value.dtype
        if value.name and dtype:
            types[value.name] = dtype.value
    stand_ins = SessionStandIns() if hide_shapes else StandIns()
    graph.node.extend(stand_ins.nodes(map(ir.serde.serialize_node, model.graph), types))
    # Nodes of two branches may have the same names.
    shapes = (helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [None]) for name in dict.fromkeys(stand_ins.shapes))
    graph.input.extend(shapes)
    # Without them onnx does not know the shapes after nodes of other domains.
    known = (value for node in model.graph if hide_shapes or node.domain for value in node.outputs)
    made = (value for value in known if value.name and value.type and value.shape is not None)
    graph.value_info.extend(ir.serde.serialize_value(value) for value in made if not value.is_graph_output())
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
