"""Write every node of the package's operators in its standard form (the families' `standard_form`): only ONNX's standard
operators, with the same bits; and which Casts need a fence.

Any execution provider runs such a model. ONNX Runtime's optimizers do not know that it quantizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, get_args

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.checker import ValidationError
from onnx.defs import SchemaError
from onnx.shape_inference import InferenceError, infer_node_outputs

from ..declaration import Builder, Shape, Tensor
from ..declaration.reasons import NotRewrittenError, faults_as_reasons, require, stays_if
from ..element_types import FLOAT16, ElementType
from .bounds import Bounds
from .graph import Graph, Operators, copy_metadata
from .nodes import GraphOperand, Node
from .nodes_for_onnx_runtime import is_run_by_onnx_runtime
from .signs_of_zeros import signs_of_zeros_are_lost

# What may be asked for, and what of this means only ONNX operators.
CHOICES: tuple[Operators, ...] = get_args(Operators)
ONNX_ONLY: tuple[Operators, ...] = ("standard", "webgpu")

WRITTEN = "written in standard operators"

# The most bytes of a constant that the inference of shapes is given.
_MAX_READ = 1 << 10

# ONNX Runtime names the Casts so that it puts around float16 nodes without a kernel of float16 (see `NodeWriter.fence`).
_INSERTED = "InsertedPrecisionFreeCast_"


def rewrite(graph: Graph) -> None:
    """Write the standard forms of all nodes of the package's operators, including ONNX's own. Nodes that ONNX Runtime or a GPU
    is to run are not changed."""
    graph.forget_inferred()
    bounds = Bounds(graph)
    nodes = [node for node in graph.nodes() if _is_to_write(graph, node)]
    while nodes:
        remaining = [node for node in nodes if not _try_to_write(graph, node, bounds)]
        # More types and shapes may follow from what was written.
        nodes = remaining if len(remaining) < len(nodes) else []
        graph.forget_inferred()


def _is_to_write(graph: Graph, node: Node) -> bool:
    if not graph.is_valid(node) or (graph.operators == "cuda" and node.operator.runs_on_gpus):
        return False
    return not (graph.qdq == "onnxruntime" and is_run_by_onnx_runtime(node, graph.meaning(node)))


def _try_to_write(graph: Graph, node: Node, bounds: Bounds) -> bool:
    try:
        _write(graph, node, bounds)
    except NotRewrittenError as error:
        graph.reasons[node] = error.reason
        return False
    return True


def _write(graph: Graph, node: Node, bounds: Bounds) -> None:
    """Replace a node by its standard form. Raise NotRewrittenError if it has no standard form."""
    inputs = [None if value is None else _Input(graph, value) for value in node.ir_node.inputs]
    builder = NodeWriter(graph, node, bounds)
    form: Callable[..., Sequence[GraphOperand]] = require(node.operator.standard_form, "it has no standard form")
    try:
        with faults_as_reasons():
            node.operator.infer([None if operand is None else builder.tensor(operand) for operand in inputs], node.attributes)
            outputs = form(builder, inputs, node.attributes)
    except NotRewrittenError:
        builder.drop()
        raise
    for old, operand in zip(node.ir_node.outputs, outputs, strict=True):
        if builder.is_to_fence_behind(operand.value, old):
            operand = builder.fence(operand)
        new = operand.value if operand.value.producer() in builder.written else builder("Identity", operand).value
        graph.copy_inferred(old, new)
        bounds.copy(old, new)
        new.name, new.type, new.shape = old.name, old.type or new.type, old.shape
        graph.replace_uses(old, new)
        copy_metadata(old, new)
    graph.remove(node, WRITTEN)


# Operators of ONNX and ONNX Runtime that multiply matrices, those that may be dropped from between two nodes, and how
# many nodes are looked at.
_PRODUCTS = ("MatMul", "FusedMatMul", "TransposeMatMul")
_DROPPED = ("Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_MAX_NODES = 16


def _is_beside(op_types: Collection[str], waiting: list[tuple[ir.Node, Callable[[ir.Node], Sequence[ir.Node]]]]) -> bool:
    """Return whether a node has one of these types: one of those that are given, or one that is reached from them through nodes
    that may be dropped, with the steps that are given. Return True if there are too many nodes to look at."""
    for _ in range(_MAX_NODES):
        if not waiting:
            return False
        other, step = waiting.pop()
        if other.op_type in op_types:
            return True
        if other.op_type in _DROPPED:
            waiting += [(each, step) for each in step(other)]
    return True


def _producers(node: ir.Node) -> list[ir.Node]:
    """Return the node that computes a node's first input, if there is one."""
    producer = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
    return [producer] if producer else []


class _Input(GraphOperand):
    """An input whose element type onnx's inference may know."""

    @property
    def element_type(self) -> ElementType | None:
        return super().element_type or self.graph.inferred_type(self.value)


class NodeWriter(Builder[GraphOperand]):
    """A writer of nodes in front of a node of a graph."""

    def __init__(self, graph: Graph, node: Node, bounds: Bounds) -> None:
        super().__init__(graph.model.opset_imports.get("", 1), is_for_webgpu=graph.operators == "webgpu")
        self._graph, self._node, self._bounds = graph, node, bounds
        self.written: list[ir.Node] = []
        self._fences: dict[ir.Value, GraphOperand] = {}

    def __call__(self, op_type: str, *inputs: Any, **attributes: Any) -> GraphOperand:
        try:
            schema = onnx.defs.get_schema(op_type, self.opset, "")
        except SchemaError:
            raise NotRewrittenError(f"opset {self.opset} has no {op_type}") from None
        values = [None if operand is None else self._value(operand) for operand in inputs]
        if op_type == "Cast" and self._is_to_fence(values[0]):
            values[0] = self.fence(inputs[0]).value
        made = ir.node(op_type, values, attributes)
        (y,) = made.outputs
        name = f"{self._node.y.name}_{op_type}"
        made.name = y.name = self._graph.unused_name(f"of_{name}" if name.startswith(_INSERTED) else name)
        try:
            self._infer(made, schema)
        except NotRewrittenError:
            for index in range(len(made.inputs)):
                made.replace_input_with(index, None)
            raise
        self._node.ir_node.prepend(made)
        self.written.append(made)
        self._bounds.add(made)
        return GraphOperand(self._graph, y)

    def fence(self, x: GraphOperand) -> GraphOperand:
        """Return x behind a node that keeps a Cast on its one side from being joined with a Cast on its other side.

        If the CPU provider has no kernel of float16 for a node, ONNX Runtime computes it in float32, between two Casts of its
        own. Then it joins neighbouring Casts, at every optimization level, also if one of them is its own and the other one is
        written in a model. So rounding to float16 is lost if a form's Cast from float16 follows such a node, or such a node
        follows a form's Cast to float16. Likewise a Cast of the model to an integer type is joined with a Cast that a form
        ends with. Two Casts that both stand in the model, one from float32 to 16 bits and one back, are not joined, so those
        within a form and those of two forms in a row are kept.

        A Concat of one input is a fence for three reasons. Only Casts that are direct neighbours are joined. No optimizer drops
        a Concat, as it does an Identity, or a Slice or Reshape that changes nothing. And it is computed in float16: the CPU
        provider has a kernel for every type, and ONNX Runtime replaces it with one of float32 only if all its neighbours are
        computed in float32 between Casts, which a Cast is not."""
        if x.value in self._fences:
            return self._fences[x.value]
        shape = self.shape(x)
        y = self("Concat", x if shape else self.unsqueeze(x, 0), axis=0)
        self._fences[x.value] = y if shape else self.squeeze(y, 0)
        return self._fences[x.value]

    def _is_to_fence(self, value: ir.Value | None) -> bool:
        """Return whether a Cast of a value needs a fence: whether the value is float16, and computed in the run by anything but
        a Cast of the model."""
        producer = value.producer() if value else None
        if producer is None or value is None or self._graph.tensor(value) is not None:
            return False
        if self._graph.inferred_type(value) is not FLOAT16:
            return False
        return producer.op_type != "Cast" or (producer.name or "").startswith(_INSERTED)

    def is_to_fence_behind(self, y: ir.Value, old: ir.Value) -> bool:
        """Return whether the result y of the form, which takes the place of the output `old`, needs a fence."""
        users = [user for user in old.consumers() if user not in self.written]
        element_type, producer = self._graph.inferred_type(y), y.producer()
        if element_type is FLOAT16:
            return not all(self._is_written_later(user) for user in users)
        if element_type is None or element_type.bits < (8 if element_type.is_integer else 16):
            return False  # ONNX Runtime joins no Casts of these types
        if producer is None or producer.op_type != "Cast" or producer not in self.written:
            return False
        return _is_beside(("Cast",), [(user, ir.Node.successors) for user in users])

    def _is_written_later(self, user: ir.Node) -> bool:
        """Return whether a user of a value is a node of the package that is written in a form too, or takes float16 itself."""
        return self._graph.node(user) is not None and (bool(user.domain) or self._graph.qdq != "onnxruntime")

    @functools.cached_property
    def is_beside_product(self) -> bool:
        """Return whether a MatMul computes the node's first input or uses its output, directly or through nodes that may be
        dropped."""
        node = self._node.ir_node
        return _is_beside(_PRODUCTS, [(other, step) for step in (ir.Node.successors, _producers) for other in step(node)])

    @functools.cached_property
    def signs_of_zeros_matter(self) -> bool:
        return not signs_of_zeros_are_lost(self._graph, self._node.y)

    def drop(self) -> None:
        """Remove the nodes that were written."""
        for node in reversed(self.written):
            self._graph.remove(node, None)

    def shape(self, x: GraphOperand) -> Shape | None:
        tensor = self._graph.tensor(x.value)
        shape = self._graph.shape(x.value) if tensor is None else tensor.shape.numpy()
        return None if shape is None else [length if isinstance(length, int) and length >= 0 else None for length in shape]

    def may_be_nan(self, x: GraphOperand) -> bool:
        return not math.isfinite(self._bounds.find(x.value))

    def tensor(self, operand: GraphOperand) -> Tensor:
        """Return the known element type and shape of an operand."""
        return Tensor(operand.element_type, self.shape(operand))

    def _value(self, operand: Any) -> ir.Value:
        if isinstance(operand, GraphOperand):
            return operand.value
        array = np.asarray(operand) if isinstance(operand, (np.ndarray, np.generic)) else np.array(operand, np.float32)
        return self._graph.shared_array(array, "constant", self._node.ir_node)

    def _infer(self, made: ir.Node, schema: onnx.defs.OpSchema) -> None:
        """Set the type and the shape of a node's output to those that onnx infers. Raise NotRewrittenError if the operator does
        not take these types in this opset."""
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for index, value in enumerate(made.inputs):
            if value is None:
                continue
            tensor = self._graph.tensor(value)
            dtype = value.dtype if tensor is None else tensor.dtype
            known = self._graph.inferred_type(value) if dtype is None else None
            number = require(known.number if known else dtype.value if dtype else None, "the type of its x is not known")
            assert value.name
            types[value.name] = helper.make_tensor_type_proto(number, self.shape(GraphOperand(self._graph, value)))
            if tensor is not None and tensor.nbytes <= _MAX_READ:
                data[value.name] = ir.serde.serialize_tensor(tensor)
            self._check_type(number, schema.inputs[min(index, len(schema.inputs) - 1)].types, made)
        if made.op_type == "Cast":
            self._check_type(made.attributes.get_int("to", 0), schema.outputs[0].types, made)
        proto = ir.serde.serialize_node(made)
        try:
            inferred = infer_node_outputs(schema, proto, types, data, opset_imports=[helper.make_opsetid("", self.opset)])
        except (InferenceError, ValidationError) as error:
            raise NotRewrittenError(f"onnx refuses {made.op_type}: {error}") from None
        (y,) = made.outputs
        assert y.name
        y_type = inferred[y.name].tensor_type
        y.type = ir.TensorType(ir.DataType(y_type.elem_type))
        if y_type.HasField("shape"):
            y.shape = ir.Shape([dim.dim_value if dim.HasField("dim_value") else None for dim in y_type.shape.dim])

    def _check_type(self, number: int, known: Collection[str], made: ir.Node) -> None:
        name = onnx.TensorProto.DataType.Name(number).lower()
        stays_if(f"tensor({name})" not in known, f"opset {self.opset} has no {made.op_type} of {name}")
