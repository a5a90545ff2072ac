"""A model, and the changes that passes make to it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import onnx_ir as ir
from numpy.typing import NDArray

from ..declaration import Operator
from ..models.tensors import in_memory
from .nodes import Left, Node, Nodes, full_name
from .qdq import Qdq
from .stand_ins import values

# Where integer operators have to be exact: on this processor, on all of them, or they are not used.
Integers = Literal["here", "anywhere", "nowhere"]

_CONSTANT = ("", "Constant", "")


class Graph(Nodes):
    """A model, its nodes of the package's operators, and the changes that passes make. `done` counts the changed nodes by
    operator and change."""

    def __init__(
        self,
        model: ir.Model,
        *,
        keep_quantized_weights: bool = False,
        qdq: Qdq = "float",
        regions: bool = False,
        keep_initializers_as_inputs: bool = True,
        replaced: frozenset[str] = frozenset(),
        integers: Integers = "nowhere",
    ) -> None:
        if not keep_initializers_as_inputs and model.ir_version >= 4:  # before, they have to be inputs, and are constants
            for value in [value for value in model.graph.inputs if value.is_initializer()]:
                model.graph.inputs.remove(value)
        super().__init__(model, replaced)
        self.keep_quantized_weights, self.qdq, self.regions, self.integers = keep_quantized_weights, qdq, regions, integers
        self.done: Counter[tuple[str, str]] = Counter()
        self._constants: dict[Any, ir.Value] = {}  # by graph, and by tensor or bits
        self._loose: dict[ir.Value, None] = {}  # initializers that removed nodes used, in order
        self._names: set[str | None] | None = None

    def constant(self, tensor: ir.TensorProtocol, name: str | None, before: ir.Node) -> ir.Value:
        """Return a new constant in the graph of the node `before`: an initializer or, before IR version 4, a Constant node in
        front of `before`."""
        tensor.name = name
        graph = before.graph
        assert graph
        if self.model.ir_version < 4:
            node = ir.node("Constant", [], {"value": tensor}, outputs=[ir.Value(name=name)])
            before.prepend(node)
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

    def new_constant(self, array: NDArray[Any], name: str, before: ir.Node) -> ir.Value:
        """Return a new constant, as `constant` does, with a number behind its name that makes it new."""
        return self.constant(in_memory(array), self.unused_name(name), before)

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

    def shared_array(self, array: NDArray[Any], name: str, before: ir.Node) -> ir.Value:
        """Return the constant with the bits of an array in the graph of the node `before`. If there is none yet, it is a new
        one in front of all nodes, with a number behind its name."""
        graph = before.graph
        assert graph
        key = graph, array.dtype, array.shape, array.tobytes()
        if key not in self._constants or not _exists(self._constants[key]):
            self._constants[key] = self.new_constant(array, name, next(iter(graph)))
        return self._constants[key]

    def replace(
        self, node: Node, operator: Operator, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], what: str
    ) -> Node:
        """Replace a node by one of another operator of the package, and return that."""
        new = self.put(operator, inputs, attributes, node.node)
        self.remove(node, what)
        self.find(new)
        return self._nodes[new]

    def put(self, operator: Operator, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], replaced: ir.Node) -> ir.Node:
        """Insert a node of one of the package's operators behind a node, and let it have that node's name, its output and its
        metadata. Return the new node, which has no record yet."""
        new = ir.node(operator.name, inputs, attributes, domain=operator.domain, name=replaced.name)
        parent, (old, *_), (y,) = replaced.graph, replaced.outputs, new.outputs
        assert parent
        ir.convenience.replace_nodes_and_values(parent, replaced, [], [new], [old], [y])
        copy_metadata(old, y)
        copy_metadata(replaced, new)
        self.model.opset_imports.setdefault(operator.domain, operator.since_version)
        return new

    def remove(self, node: Node | ir.Node, what: str) -> None:
        """Remove a node that nothing uses, and the constants and the package's nodes that only this node used."""
        node = node.node if isinstance(node, Node) else node
        if node.op_identifier() != _CONSTANT:
            self.done[full_name(node), what] += 1
        used = dict.fromkeys(value for value in node.inputs if value is not None)
        assert node.graph
        node.graph.remove(node, safe=True)
        for value in node.outputs:
            self._arrays.pop(value, None)
            self._computed.pop(value, None)
        for value in used:
            producer = value.producer()
            if value.is_initializer():
                self._loose[value] = None
            elif producer and (producer in self._nodes or producer.op_identifier() == _CONSTANT) and is_unused(producer):
                self.remove(producer, what)

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


def is_unused(node: ir.Node) -> bool:
    """Whether a node is in a graph that does not need it."""
    return node.graph is not None and not any(value.uses() or value.is_graph_output() for value in node.outputs)


def _exists(constant: ir.Value) -> bool:
    """Whether a constant is still in the model."""
    producer = constant.producer()
    return constant.is_initializer() if producer is None else producer.graph is not None


def copy_metadata(old: Any, new: Any) -> None:
    """Copy the doc string and the metadata from one node or value to another."""
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
