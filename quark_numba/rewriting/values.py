"""What is known of the values of a model: constants, element types and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, shape_inference

from ..element_types import ElementType, find
from ..element_types.operands import find_any
from ..errors import reraise_of_signal_handler
from ..models import protos, tensors
from .stand_ins import stand_ins

# The most bytes of an array that is kept as a copy of an initializer: scales and zero points are read often.
_MOST_KEPT = 1 << 16

# The most bytes of an initializer whose values a skeleton contains, as shapes may depend on them.
_MOST_COPIED = 1 << 10

Shape = Sequence[int | str | None]


class Inferred(NamedTuple):
    """The element type and the shape that onnx infers for a value; None: unknown."""

    element_type: ElementType | None = None
    shape: Shape | None = None


class Values:
    """The values of a model. Initializers named in `replaced` are not constants."""

    def __init__(self, model: ir.Model, replaced: frozenset[str]) -> None:
        self.model, self.replaced = model, replaced
        self._computed: dict[ir.Value, ir.TensorProtocol] = {}  # of values that were computed from constants
        self._arrays: dict[ir.Value, NDArray[Any]] = {}  # copies of small tensors
        self._inferred: dict[ir.Value, Inferred] | None = None

    def tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the tensor of a constant, which may be read or computed only when it is used; None: not a constant. From IR
        version 4 on, an initializer that is also a graph input is only the default of that input. An initializer that will be
        replaced has no value yet."""
        if value in self._computed:
            return self._computed[value]
        is_input = (value.is_graph_input() and self.model.ir_version >= 4) or value.name in self.replaced
        return None if is_input else ir.convenience.get_const_tensor(value)

    def array(self, value: ir.Value) -> NDArray[Any] | None:
        """Return the value of a constant; None: not a constant, or not of one of the package's element types. A large one is
        read anew each time."""
        if value not in self._arrays:
            tensor = self.tensor(value)
            if tensor is None or find_any(tensor.dtype.value) is None:
                return None
            array = tensors.array_of(tensor)
            if array.nbytes > _MOST_KEPT:
                return array
            self._arrays[value] = array
        return self._arrays[value]

    def remember(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        """Record the tensor that a value was found to be, although its node still exists."""
        self._computed[value] = tensor

    def type(self, value: ir.Value | None) -> ElementType | None:
        if value is None:
            return None
        tensor = self.tensor(value)
        return find(tensor.dtype.value) if tensor is not None else find(value.dtype.value) if value.dtype else None

    def inferred_type(self, value: ir.Value) -> ElementType | None:
        """Return the element type of a value, also if only onnx's inference knows it."""
        return self.type(value) or self._infer(value).element_type

    def shape(self, value: ir.Value) -> Shape | None:
        """Return the shape of a value, as far as it is known. A dimension is a number, a name, or None."""
        inferred = self._infer(value).shape
        if inferred is not None or value.shape is None:
            return inferred
        return [each if isinstance(each, int) else each.value for each in value.shape.dims]

    def _infer(self, value: ir.Value) -> Inferred:
        if self._inferred is None:
            self._inferred = inferred_values(self)
        return self._inferred.get(value, Inferred())

    def forget_inferred(self) -> None:
        """Let types and shapes be inferred again, after nodes of other operators were written."""
        self._inferred = None


def inferred_values(graph: Values) -> dict[ir.Value, Inferred]:
    """Return what onnx infers for the values of the main graph; nothing if onnx fails."""
    try:
        copy = skeleton(graph)
        inferred = shape_inference.infer_shapes(copy, data_prop=True).graph
    except Exception as error:  # a model that is not valid may raise anything
        reraise_of_signal_handler(error)
        return {}
    found, values = {}, {value.name: value for node in graph.model.graph for value in node.outputs}
    values |= {value.name: value for value in graph.model.graph.inputs}
    for info in (*inferred.value_info, *inferred.input, *inferred.output):
        if info.name not in values:
            continue
        tensor_type = info.type.tensor_type
        dimensions = [
            each.dim_value if each.HasField("dim_value") else each.dim_param or None for each in tensor_type.shape.dim
        ]
        found[values[info.name]] = Inferred(find(tensor_type.elem_type), dimensions if tensor_type.HasField("shape") else None)
    return found


def skeleton(
    graph: Values,
    zeros: frozenset[str] = frozenset(),
    *,
    hide_shapes: bool = False,
    file: str | None = None,
) -> onnx.ModelProto:
    """Return the main graph with stand-ins for the package's nodes, and without the values of large initializers. Large
    initializers named in `zeros` are 0, the others become graph inputs. With `hide_shapes`, no more shapes are known than
    ONNX Runtime knows in the model. With `file`, the zeros are in the file of that name."""
    model = graph.model
    result = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    result.opset_import.extend(helper.make_opsetid(*each) for each in model.opset_imports.items())
    to = result.graph
    to.name = "skeleton"
    to.input.extend(ir.serde.serialize_value(value) for value in model.graph.inputs)
    to.output.extend(ir.serde.serialize_value(value) for value in model.graph.outputs)
    for name, value in model.graph.initializers.items():
        tensor = graph.tensor(value)
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
        tensor = None if value.dtype else graph.tensor(value)
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
    for each in (graph, *graph.subgraphs()):
        yield from (*each.inputs, *each.initializers.values())
