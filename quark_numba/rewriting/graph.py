"""Facts about a model and its quantization nodes, and the changes that passes make to it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, shape_inference

from ..catalog import OPERATORS
from ..declaration import Dequantize, DynamicQuantize, Meaning, Operator, Quantize
from ..dialects import refused
from ..element_types import ElementType, find
from ..element_types.operands import find_any
from ..errors import reraise_of_signal_handler
from ..models import model_files, tensors
from .onnx_runtime import has_operator
from .stand_ins import stand_ins

# The most bytes of an array that is kept as a copy of an initializer: scales and zero points are read often.
_MOST_KEPT = 1 << 16

# The most bytes of an initializer whose values a skeleton contains, as shapes may depend on them.
_MOST_COPIED = 1 << 10


# Tensors that were computed, by what they were computed from; with the first input, whose identity is part of the key.
Known = dict[Any, tuple[ir.TensorProtocol, Sequence[ir.TensorProtocol]]]


# Where integer operators have to be exact: on this processor, on all of them, or they are not used.
Integers = Literal["here", "anywhere", "nowhere"]


class Left(Exception):  # noqa: N818
    """A node stays as it is; the message gives the reason."""


@dataclass(eq=False)
class Node:
    """A node of one of the package's operators, with values for all its attributes."""

    node: ir.Node
    operator: Operator
    place: int  # its index among all such nodes of the model
    attributes: dict[str, Any] = field(default_factory=dict)
    is_valid: bool = True

    @property
    def full_name(self) -> str:
        return full_name(self.node)

    @property
    def is_standard(self) -> bool:
        """Whether the operator is ONNX's own. ONNX Runtime runs the node itself unless it is told otherwise."""
        return not self.operator.domain

    @property
    def x(self) -> ir.Value:
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def y(self) -> ir.Value:
        return self.node.outputs[0]


@dataclass(frozen=True)
class Operand:
    """An input of a node: the ``Operand`` that declarations take."""

    graph: Graph
    value: ir.Value

    @property
    def array(self) -> NDArray[Any] | None:
        return self.graph.array(self.value)

    @property
    def is_constant(self) -> bool:
        return self.graph.tensor(self.value) is not None

    @property
    def element_type(self) -> ElementType | None:
        known = self.graph.type(self.value)
        producer = None if known else self.graph.meaning(self.graph.node(self.value.producer()))
        is_codes = isinstance(producer, (Quantize, DynamicQuantize)) and self.value.index() == 0
        return producer.element_type if is_codes else known  # type: ignore[union-attr]

    def is_same(self, other: Operand) -> bool:
        if self.value is other.value:
            return True
        sizes = [tensor.nbytes for each in (self, other) if (tensor := each.graph.tensor(each.value))]
        if len(sizes) < 2 or sizes[0] != sizes[1]:
            return False
        one, two = self.array, other.array
        return (
            one is not None
            and two is not None
            and (one.shape, one.dtype) == (two.shape, two.dtype)
            and one.tobytes() == two.tobytes()
        )


class Graph:
    """A model, and its nodes of the package's operators, subgraphs included.

    Passes change the model through the methods below "Changes", which count the nodes: `done` counts the changed nodes by
    operator and change, `left` counts the nodes that stay by operator and reason."""

    def __init__(
        self,
        model: ir.Model,
        *,
        keep_codes: bool,
        standard_ops: bool | None,
        regions: bool,
        replaced: frozenset[str],
        integers: Integers = "nowhere",
    ) -> None:
        self.model, self.keep_codes, self.standard_ops, self.replaced = model, keep_codes, standard_ops, replaced
        self.regions, self.integers = regions, integers
        self.done: Counter[tuple[str, str]] = Counter()
        self.reasons: dict[Node, str] = {}
        self._nodes: dict[ir.Node, Node] = {}
        self._others: Counter[tuple[str, str]] = Counter()
        self._computed: dict[ir.Value, ir.TensorProtocol] = {}  # of values that were computed from constants
        self._arrays: dict[ir.Value, NDArray[Any]] = {}  # copies of small tensors
        self._constants: dict[Any, ir.Value] = {}  # made from tensors, by graph and tensor
        self._loose: dict[ir.Value, None] = {}  # initializers that removed nodes used, in order
        self._names: set[str | None] | None = None
        self._inferred: dict[ir.Value, Inferred] | None = None
        # Some exporters list weights as graph inputs, too, as IR version 3 wanted it. These become constants alone, so that a
        # session refuses to be fed with them. If every input has an initializer, these are the defaults of real inputs.
        self._inputs = [*model.graph.inputs]
        weights = [value for value in model.graph.inputs if value.is_initializer()]
        if model.ir_version >= 4 and len(weights) < len(model.graph.inputs):
            for value in weights:
                model.graph.inputs.remove(value)
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            self.find(node)

    def find(self, node: ir.Node) -> None:
        """Record a node of one of the package's operators. Count it as left instead if a local function has its name, or if it
        has wrong inputs or outputs. Count a node of another operator as left if ONNX Runtime lacks the operator."""
        operator = OPERATORS.find(node.domain, node.op_type)
        if node.op_identifier() in self.model.functions:
            if operator:
                self.leave(node, "a local function of the model has its name")
            return
        if operator is None:
            if not has_operator(node.domain, node.op_type):
                why = refused.reason(node.domain, node.op_type)
                self.leave(node, why or "neither ONNX Runtime nor this package has this operator")
            return
        inputs, outputs = len(node.inputs), len(node.outputs)
        most = operator.most_inputs or inputs
        if (
            not operator.fewest_inputs <= inputs <= most
            or None in node.inputs[: operator.fewest_inputs]
            or (outputs != len(operator.outputs))
        ):
            self.leave(node, f"not valid: it has {inputs} inputs, {outputs} outputs, or lacks one")
            return
        found = self._nodes[node] = Node(node, operator, len(self._nodes))
        self._mend_types(found)
        given = {}
        for attribute in operator.attributes:
            of_node = node.attributes.get(attribute.name)
            if of_node is None:
                continue
            if of_node.type.name == attribute.kind:
                given[attribute.name] = of_node.value
            else:
                found.is_valid = False
                self.reasons[found] = f"its attribute {attribute.name} is a {of_node.type.name}"
        try:
            found.attributes = operator.values(given)
            self.meaning(found)
        except ValueError as error:
            found.is_valid = False
            self.reasons[found] = f"not valid: {error}"

    @staticmethod
    def _mend_types(node: Node) -> None:
        """Set the types of outputs that are codes, and that the model leaves out or calls uint8."""
        for value, parameter in zip(node.node.outputs, node.operator.outputs, strict=True):
            (element_type, *others) = node.operator.types[parameter.variable]
            if element_type is node.operator.uint8_holds and not others and not value.is_graph_output():
                value.type = ir.TensorType(ir.DataType(element_type.number))

    # The nodes, and why they stay as they are.

    def each(self, step: Callable[[Node], None]) -> None:
        """Call `step` with each node that still exists and has no reason to stay as it is. If `step` raises `Left`, its message
        is the reason."""
        for node in self.nodes():
            if node.node.graph and node not in self.reasons:
                try:
                    step(node)
                except Left as error:
                    self.reasons[node] = str(error)

    def nodes(self) -> list[Node]:
        """Return the recorded nodes that still exist."""
        return [node for node in self._nodes.values() if node.node.graph]

    def node(self, node: ir.Node | None) -> Node | None:
        """Return the record of a node; None: it has none, as its operator is not one of the package's."""
        return self._nodes.get(node) if node else None

    def leave(self, node: ir.Node, why: str) -> None:
        """Count a node without a record as left."""
        self._others[full_name(node), why] += 1

    @property
    def left(self) -> Counter[tuple[str, str]]:
        """The number of nodes of each operator that stay as they are, by the reason."""
        return self._others + Counter((node.full_name, self.reasons[node]) for node in self.nodes() if node in self.reasons)

    # Values.

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

    def constants(self, node: Node) -> list[ir.TensorProtocol | None] | None:
        """Return the tensors of a node's inputs, None for an omitted input. Return None if any input is not a constant of one
        of the package's element types."""
        found = []
        for value in node.node.inputs:
            tensor = None if value is None else self.tensor(value)
            if value is not None and (tensor is None or find_any(tensor.dtype.value) is None):
                return None
            found.append(tensor)
        return found

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
        inferred = self._infer(value)
        return self.type(value) or (inferred.element_type if inferred else None)

    def shape(self, value: ir.Value) -> Shape | None:
        """Return the shape of a value, as far as it is known. A dimension is a number, a name, or None."""
        inferred = self._infer(value)
        if inferred and inferred.shape is not None:
            return inferred.shape
        return None if value.shape is None else [each if isinstance(each, int) else each.value for each in value.shape.dims]

    def _infer(self, value: ir.Value) -> Inferred | None:
        if self._inferred is None:
            self._inferred = inferred_values(self)
        return self._inferred.get(value)

    def forget_inferred(self) -> None:
        """Let types and shapes be inferred again, after nodes of other operators were written."""
        self._inferred = None

    # What nodes mean.

    def meaning(self, node: Node | None) -> Meaning[Operand] | None:
        """Return the meaning of a node with its current inputs. None: there is no node, it is not valid, or its operator has no
        meaning."""
        if node is None or not node.is_valid or node.operator.meaning is None:
            return None
        operands = [None if value is None else Operand(self, value) for value in node.node.inputs]
        return node.operator.meaning(operands, node.attributes)

    def followers(self, node: Node) -> list[Node]:
        """Return the dequantize nodes that use a quantize node's codes, in the order of the model.

        Raises
        ------
        Left
            If the codes have another user or no user, or if one of the dequantize nodes stays as it is.
        """
        if node.y.is_graph_output():
            raise Left("its codes are an output of its graph")
        if not node.y.uses():
            raise Left("nothing uses it")
        found = []
        for user, index in node.y.uses():
            follower = self.node(user)
            if user.graph is not node.node.graph:
                raise Left("its codes are used in another graph")
            if follower is None or index:
                raise Left(f"its codes are used by {full_name(user)}")
            if follower in self.reasons:
                raise Left(f"{follower.full_name} behind it stays: {self.reasons[follower]}")
            if not isinstance(self.meaning(follower), Dequantize):
                raise Left(f"its codes are used by {full_name(user)}")
            found.append(follower)
        return sorted(found, key=lambda each: each.place)

    def as_function(self, node: Node) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return a node as a function of its x. Its other inputs have to be constants. The function raises Left if x is not
        valid."""
        others = [None if value is None else self.array(value) for value in node.node.inputs[1:]]
        return lambda x: call(node, [x, *others])[0]

    # Changes.

    def constant(self, tensor: ir.TensorProtocol, name: str | None, before: ir.Node) -> ir.Value:
        """Return a new constant in the graph of the node `before`: an initializer or, before IR version 4, a Constant node in
        front of `before`."""
        tensor.name = name
        graph = before.graph
        assert graph
        if self.model.ir_version < 4:
            node = ir.node("Constant", [], {"value": tensor}, outputs=[ir.Value(name=name)])
            graph.insert_before(before, node)
            (value,) = node.outputs
        else:
            value = ir.Value(name=name, const_value=tensor)
            graph.register_initializer(value)
        value.shape, value.type = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
        return value

    def make_constant(self, node: Node, tensors: Sequence[ir.TensorProtocol], what: str) -> None:
        """Replace a node by constants. Nodes with the same tensor share one. Raise Left if one of its outputs is an output of
        its graph."""
        if any(value.is_graph_output() for value in node.node.outputs):
            raise Left("its output is an output of its graph")
        for value, tensor in zip(node.node.outputs, tensors, strict=True):
            value.replace_all_uses_with(self.shared_constant(tensor, value.name, node.node, value))
        self.remove(node, what)

    def shared_constant(
        self, tensor: ir.TensorProtocol, name: str | None, before: ir.Node, like: ir.Value | None = None
    ) -> ir.Value:
        """Return the constant with this very tensor in the graph of the node `before`. If there is none yet, it is a new one,
        with the metadata of the value `like`."""
        key = before.graph, id(tensor)
        if key not in self._constants or not _exists(self._constants[key]):
            self._constants[key] = self.constant(tensor, name, before)
            if like:
                copy_metadata(like, self._constants[key])
        return self._constants[key]

    def replace(
        self, node: Node, operator: Operator, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], what: str
    ) -> Node:
        """Replace a node by one of another operator of the package, and return that."""
        new = ir.node(operator.name, inputs, attributes, domain=operator.domain, outputs=[ir.Value()], name=node.node.name)
        of_graph = node.node.graph
        assert of_graph
        ir.convenience.replace_nodes_and_values(of_graph, node.node, [], [new], [node.y], list(new.outputs))
        copy_metadata(node.y, new.outputs[0])
        copy_metadata(node.node, new)
        self.remove(node, what)
        self.model.opset_imports.setdefault(operator.domain, operator.since_version)
        self.find(new)
        return self._nodes[new]

    def restore_inputs(self) -> None:
        """Let the model have all its inputs again, for a model that stays as it is."""
        self.model.graph.inputs[:] = self._inputs

    def remove(self, node: Node, what: str) -> None:
        """Remove a node that nothing uses, and the constants and the package's nodes that only this node used."""
        self.remove_node(node.node, what)

    def remove_node(self, node: ir.Node, what: str) -> None:
        """Remove a node of any operator, as `remove` does."""
        self.done[full_name(node), what] += 1
        self._remove(node, what)

    def _remove(self, node: ir.Node, what: str) -> None:
        inputs = [value for value in node.inputs if value is not None]
        graph = node.graph
        assert graph
        graph.remove(node, safe=True)
        for value in node.outputs:
            self._arrays.pop(value, None)
            self._computed.pop(value, None)
        self.release(inputs, what)

    def release(self, values: Sequence[ir.Value], what: str) -> None:
        """Remove the constants and the package's nodes among values that a node used which exists no more."""
        for value in dict.fromkeys(values):
            producer = value.producer()
            if value.is_initializer():
                self._loose[value] = None
            elif producer is None or producer.graph is None or value.uses() or value.is_graph_output():
                continue
            elif producer in self._nodes:
                if not any(output.uses() or output.is_graph_output() for output in producer.outputs):
                    self.remove(self._nodes[producer], what)
            elif producer.op_identifier() == ("", "Constant", ""):
                self._remove(producer, what)

    def sweep(self) -> None:
        """Remove the initializers that only removed nodes used. Nodes may share them by the thousands, and `uses` makes a list
        each time, so that this is done once for a pass."""
        for value in self._loose:
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()) and value.graph and value.name:
                del value.graph.initializers[value.name]
        self._loose.clear()

    def unused_name(self, name: str) -> str:
        """Return a name that no value of the model has: `name` and a number."""
        if self._names is None:
            self._names = {value.name for value in values(self.model)}
        unused = next(f"{name}_{i}" for i in itertools.count() if f"{name}_{i}" not in self._names)
        self._names.add(unused)
        return unused


Shape = Sequence[int | str | None]


class Inferred(NamedTuple):
    """The element type and the shape that onnx infers for a value; None: unknown."""

    element_type: ElementType | None
    shape: Shape | None


def inferred_values(graph: Graph) -> dict[ir.Value, Inferred]:
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
    graph: Graph,
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
                model_files.refer(added, file, 0, tensor.nbytes)
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
    graphs: list[Any] = [graph]
    for node in ir.traversal.RecursiveGraphIterator(graph, enter_graph=graphs.append):
        yield from (value for value in (*node.inputs, *node.outputs) if value)
    for each in graphs:
        yield from (*each.inputs, *each.initializers.values())


def _exists(constant: ir.Value) -> bool:
    """Whether a constant is still in the model."""
    producer = constant.producer()
    return constant.is_initializer() if producer is None else producer.graph is not None


def full_name(node: ir.Node) -> str:
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"


def copy_metadata(old: Any, new: Any) -> None:
    """Copy the doc string and the metadata from one node or value to another."""
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)


def call(node: Node, inputs: list[NDArray[Any] | None], **changed: int) -> tuple[NDArray[Any], ...]:
    """Return the outputs of a node for the given inputs, with some attributes changed. Raise Left if inputs or attributes are
    not valid."""
    try:
        outputs = node.operator.call(*inputs, **(node.attributes | changed))
    except (TypeError, ValueError) as error:
        reraise_of_signal_handler(error)
        raise Left(f"not valid: {error}") from None
    return outputs if isinstance(outputs, tuple) else (np.asarray(outputs),)
