"""The package's nodes in a model: which of them are not valid (wrong numbers of inputs, attributes of a wrong type), their
meanings, and the reasons why some are not rewritten; types and shapes of values."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import shape_inference

from ..catalog import OPERATORS
from ..declaration import Affine, Dequantize, DynamicQuantize, Meaning, Operator, Quantize
from ..declaration.reasons import Invalid, NotRewrittenError, faults_as_reasons, require, stays_if
from ..dialects import refused
from ..element_types import ElementType, find
from ..element_types.operands import find_any
from ..errors import counted, errors_ignored
from ..models import protos, tensors
from . import stand_ins
from .onnx_runtime import has_operator

# The largest array, in bytes, that is cached as a copy of an initializer: scales and zero points are read often.
_MAX_KEPT = 1 << 16

Shape = Sequence[int | str | None]

M = TypeVar("M")  # a kind of meaning


class Inferred(NamedTuple):
    """The element type and the shape that onnx infers for a value, None if unknown."""

    element_type: ElementType | None = None
    shape: Shape | None = None


class Values:
    """The values of a model. Initializers named in `replaced` are not constants."""

    def __init__(self, model: ir.Model, replaced: frozenset[str]) -> None:
        self.model, self.replaced = model, replaced
        self._computed: dict[ir.Value, ir.TensorProtocol] = {}  # of values that were computed from constants
        self._arrays: dict[ir.Value, NDArray[Any]] = {}  # copies of small tensors
        self._inferred: dict[ir.Value, Inferred] | None = None
        self._names: set[str | None] | None = None

    # These functions accept None for an omitted input, about which nothing is known.

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of a constant, or None if the value is not a constant. The tensor may be read or computed only when
        it is used. An initializer that will be replaced is not a constant."""
        if value is None:
            return None
        if value in self._computed:
            return self._computed[value]
        with suppress(ValueError):  # a node Constant that is not valid
            is_known = not (self.is_default(value) or value.name in self.replaced)
            return ir.convenience.get_const_tensor(value) if is_known else None
        return None

    def is_default(self, value: ir.Value) -> bool:
        """Return whether a value is an initializer that is also a graph input. From IR version 4 on, sessions may feed such a
        value."""
        return value.is_graph_input() and value.is_initializer() and self.model.ir_version >= 4

    def array(self, value: ir.Value | None) -> NDArray[Any] | None:
        """Return the array of a constant, or None if the value is not a constant or has a type that the package lacks. A large
        array is read again each time."""
        if value in self._arrays:
            return self._arrays[value]
        tensor = self.tensor(value)
        if value is None or tensor is None or find_any(tensor.dtype.value) is None:
            return None
        array = tensors.array_of(tensor)
        if array.nbytes <= _MAX_KEPT:
            self._arrays[value] = array
        return array

    def remember(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        """Record the tensor of a value whose node still exists."""
        self._computed[value] = tensor

    def type(self, value: ir.Value | None) -> ElementType | None:
        known = self.tensor(value) or value
        return find(known.dtype.value) if known is not None and known.dtype else None

    def inferred_type(self, value: ir.Value) -> ElementType | None:
        """Return the element type of a value, from the model or from onnx's inference."""
        inferred = self._infer(value)  # at the first call, of the whole model
        return self.type(value) or inferred.element_type

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the shape of a value, as far as it is known. A dimension is a number, a name, or None."""
        if value is None:
            return None
        inferred = self._infer(value).shape
        if inferred is not None or value.shape is None:
            return inferred
        return [dim if isinstance(dim, int) else dim.value for dim in value.shape.dims]

    def _infer(self, value: ir.Value) -> Inferred:
        """Return the type and shape that onnx infers for a value. Both are unknown if onnx fails."""
        if self._inferred is None:
            self._inferred = {}
            with errors_ignored():  # a model that is not valid may raise anything
                inferred = shape_inference.infer_shapes(stand_ins.skeleton(self.model, self.tensor), data_prop=True).graph
                self._record_inferred(self.model.graph, inferred, self._inferred)
        return self._inferred.get(value, Inferred())

    def _record_inferred(self, graph: ir.Graph, inferred: onnx.GraphProto, record: dict[ir.Value, Inferred]) -> None:
        """Record the types and shapes that onnx inferred for the values of a graph and its subgraphs."""
        values = {value.name: value for value in (*(y for node in graph for y in node.outputs), *graph.inputs)}
        for info in (*inferred.value_info, *inferred.input, *inferred.output):
            tensor_type = info.type.tensor_type
            dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor_type.shape.dim]
            if info.name in values:
                known = Inferred(find(tensor_type.elem_type), dims if tensor_type.HasField("shape") else None)
                record[values[info.name]] = known
        with_subgraphs = {node.output[0]: node for node in inferred.node if node.output and any(protos.subgraphs(node))}
        for node in graph if with_subgraphs else ():
            proto = with_subgraphs.get(node.outputs[0].name or "") if node.outputs else None
            for attribute in proto.attribute if proto else ():
                ir_attribute = node.attributes.get(attribute.name)
                if attribute.HasField("g") and ir_attribute and ir_attribute.type == ir.AttributeType.GRAPH:
                    self._record_inferred(ir_attribute.value, attribute.g, record)

    def copy_inferred(self, old: ir.Value, new: ir.Value) -> None:
        """Copy the inferred type and shape of a value to the value that replaces it."""
        if self._inferred is not None and old in self._inferred:
            self._inferred[new] = self._inferred[old]

    def forget_inferred(self) -> None:
        """Forget the inferred types and shapes, after nodes of other operators were written. They are inferred again on use."""
        self._inferred = None

    def unused_name(self, name: str) -> str:
        """Return a name that no value of the model has: `name` and a number."""
        if self._names is None:
            self._names = {value.name for value in stand_ins.values(self.model)}
        unused = next(f"{name}_{i}" for i in itertools.count() if f"{name}_{i}" not in self._names)
        self._names.add(unused)
        return unused


@dataclass(eq=False)
class Node:
    """A node of one of the package's operators, with values for all its attributes."""

    ir_node: ir.Node
    operator: Operator
    index: int  # its index among all such nodes of the model
    attributes: dict[str, Any] = field(default_factory=dict)
    is_valid: bool = True

    @property
    def full_name(self) -> str:
        return full_name(self.ir_node)

    @property
    def is_standard(self) -> bool:
        """Return whether the operator is ONNX's own. ONNX Runtime runs the node itself unless it is told otherwise."""
        return not self.operator.domain

    @property
    def x(self) -> ir.Value:
        value = self.ir_node.inputs[0]
        assert value is not None
        return value

    @property
    def y(self) -> ir.Value:
        return self.ir_node.outputs[0]


@dataclass(frozen=True)
class GraphOperand:
    """An input of a node: the ``Operand`` that declarations take."""

    graph: Nodes
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

    def is_same(self, other: GraphOperand) -> bool:
        if self.value is other.value:
            return True
        sizes = [tensor.nbytes for operand in (self, other) if (tensor := operand.graph.tensor(operand.value))]
        if len(sizes) < 2 or sizes[0] != sizes[1]:
            return False
        one, two = self.array, other.array
        return one is not None and two is not None and have_same_bits(one, two)


def have_same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same shape, type and bits."""
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


class Nodes(Values):
    """The nodes of the package's operators, those of subgraphs included.

    `reasons` has the reason why a node is not rewritten, and `left` counts such nodes by operator and reason."""

    def __init__(self, model: ir.Model, replaced: frozenset[str]) -> None:
        super().__init__(model, replaced)
        self.reasons: dict[Node, str] = {}
        self._nodes: dict[ir.Node, Node] = {}
        self._others: Counter[tuple[str, str]] = Counter()
        for node in model.graph.all_nodes():
            self.register(node)

    def register(self, node: ir.Node) -> None:
        """Record a node of one of the package's operators. Count it as left instead if a local function has its name, or if it
        has wrong inputs or outputs. Count a node of another operator as left if ONNX Runtime lacks the operator."""
        operator = OPERATORS.find(node.domain, node.op_type)
        inputs, outputs = len(node.inputs), len(node.outputs)
        if node.op_identifier() in self.model.functions:
            if operator:
                self.count_left(node, "a local function of the model has its name")
        elif operator is None:
            if not has_operator(node.domain, node.op_type):
                why = refused.reason(node.domain, node.op_type)
                self.count_left(node, why or "neither ONNX Runtime nor this package has this operator")
        elif not operator.fewest_inputs <= inputs <= (operator.most_inputs or inputs) or outputs != len(operator.outputs):
            numbers = f"{counted(inputs, 'input')} and {counted(outputs, 'output')}"
            self.count_left(node, f"not valid: it has {numbers}, a wrong number")
        elif None in node.inputs[: operator.fewest_inputs]:
            self.count_left(node, "not valid: a required input is omitted")
        else:
            self._record(Node(node, operator, len(self._nodes)))

    def _record(self, node: Node) -> None:
        self._nodes[node.ir_node] = node
        for value, parameter in zip(node.ir_node.outputs, node.operator.outputs, strict=True):
            (element_type, *others) = node.operator.types[parameter.variable]
            # The model may leave the type of codes out, or call it uint8.
            if element_type is node.operator.uint8_holds and not others and not value.is_graph_output():
                value.type = ir.TensorType(ir.DataType(element_type.number))
        kinds = {attribute.name: attribute.kind for attribute in node.operator.attributes}
        given = {name: attribute for name, attribute in node.ir_node.attributes.items() if name in kinds}
        try:
            for name, attribute in given.items():
                if attribute.type.name != kinds[name]:
                    raise ValueError(f"attribute {name} is a {attribute.type.name}; expected {kinds[name]}")
            node.attributes = node.operator.values({name: attribute.value for name, attribute in given.items()})
            self.meaning(node)
        except ValueError as error:
            node.is_valid, self.reasons[node] = False, Invalid(f"not valid: {error}")

    # The nodes, and the reasons why some are not rewritten.

    def each(self, step: Callable[[Node, Any], None], kind: type = object) -> None:
        """Call ``step(node, meaning)`` for each node that still exists, has no recorded reason, and has a meaning of this kind.
        If `step` raises `NotRewrittenError`, the message is recorded as the node's reason."""
        for node in self.nodes():
            if node.ir_node.graph and node not in self.reasons and isinstance(meaning := self.meaning(node), kind):
                try:
                    step(node, meaning)
                except NotRewrittenError as error:
                    self.reasons[node] = error.reason

    def nodes(self) -> list[Node]:
        """Return the recorded nodes that still exist."""
        return [node for node in self._nodes.values() if node.ir_node.graph]

    def is_valid(self, node: Node) -> bool:
        """Return whether no fault of a node is known."""
        return node.is_valid and not isinstance(self.reasons.get(node), Invalid)

    def node(self, node: ir.Node | None) -> Node | None:
        """Return the record of a node, or None if the package does not have its operator."""
        return self._nodes.get(node) if node else None

    def count_left(self, node: ir.Node, why: str) -> None:
        """Count a node without a record as left."""
        self._others[full_name(node), why] += 1

    @property
    def left(self) -> Counter[tuple[str, str]]:
        """The numbers of nodes that are not rewritten, by operator and reason."""
        return self._others + Counter((node.full_name, self.reasons[node]) for node in self.nodes() if node in self.reasons)

    # The meanings of nodes.

    def constant_inputs(self, node: Node) -> list[ir.TensorProtocol | None] | None:
        """Return the tensors of a node's inputs, with None for an omitted one. Return None if any input is not a constant, or
        has a type that the package lacks."""
        tensors = [self.tensor(value) for value in node.ir_node.inputs]
        for value, tensor in zip(node.ir_node.inputs, tensors, strict=True):
            if value is not None and (tensor is None or find_any(tensor.dtype.value) is None):
                return None
        return tensors

    def meaning(self, node: Node | None) -> Meaning[GraphOperand] | None:
        """Return the meaning of a node with its current inputs. Return None if there is no node, it is not valid, or its
        operator has no meaning."""
        if node is None or not node.is_valid or node.operator.meaning is None:
            return None
        operands = [None if value is None else GraphOperand(self, value) for value in node.ir_node.inputs]
        return node.operator.meaning(operands, node.attributes)

    def rewritable(self, node: ir.Node | None, kind: type[M]) -> tuple[Node, M] | None:
        """Return the record and the meaning of a node. Return None if it has no meaning of this kind, or must not be
        rewritten."""
        record = self.node(node)
        meaning = self.meaning(record)
        return (record, meaning) if record and record not in self.reasons and isinstance(meaning, kind) else None

    def affine(self, node: Node) -> Affine[GraphOperand]:
        """Return the meaning of a node that is known to quantize or dequantize with a scale."""
        meaning = self.meaning(node)
        assert isinstance(meaning, Affine)
        return meaning

    def followers(self, node: Node, value: ir.Value | None = None, index: int = 0, what: str = "its codes") -> list[Node]:
        """Return the dequantize nodes that use a quantize node's codes, in the order of the model. With another value,
        return the dequantize nodes with this value as their input `index`. Messages call the value `what`. Raise
        NotRewrittenError if the codes have another user or no user, or if one of the dequantize nodes stays as it is."""
        value = value or node.y
        stays_if(value.is_graph_output(), f"{what} are an output of its graph")
        stays_if(not value.uses(), f"nothing uses {what}")
        followers = []
        for user, position in value.uses():
            stays_if(user.graph is not node.ir_node.graph, f"{what} are used in another graph")
            other_use = f"{what} are used by {full_name(user)}"
            follower = require(self.node(user) if position == index else None, other_use)
            stays_if(follower in self.reasons, f"{follower.full_name} after it stays: {self.reasons.get(follower)}")
            stays_if(not isinstance(self.meaning(follower), Dequantize), other_use)
            followers.append(follower)
        return sorted(followers, key=lambda follower: follower.index)

    def as_function(self, node: Node) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return a node as a function of its x. Its other inputs have to be constants. The function raises NotRewrittenError if
        x is not valid."""
        others = [self.array(value) for value in node.ir_node.inputs[1:]]
        return lambda x: call(node, [x, *others])[0]


def full_name(node: ir.Node) -> str:
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"


def call(node: Node, inputs: list[NDArray[Any] | None], **changed: int) -> tuple[NDArray[Any], ...]:
    """Return the outputs of a node for the given inputs, with some attributes changed. Raise NotRewrittenError if inputs or
    attributes are not valid."""
    with faults_as_reasons():
        outputs = node.operator.call(*inputs, **(node.attributes | changed))
    return outputs if isinstance(outputs, tuple) else (np.asarray(outputs),)
