"""A model, and the changes that passes make to it (constants, replaced and removed nodes, written shapes); and the settings of
rewriting, with their defaults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import onnx_ir as ir
from numpy.typing import NDArray

from ..catalog import OPERATORS
from ..checks import Qdq
from ..declaration import Operator
from ..declaration.reasons import stays_if
from ..models.tensors import in_memory
from .nodes import Inferred, Node, Nodes, full_name

# The operators in which a model is written, in this order: those of this package; those of them that the CUDA provider runs,
# and ONNX operators; only ONNX operators; only the ONNX operators that WebGPU has.
Operators = Literal["custom", "cuda", "standard", "webgpu"]


class Settings(NamedTuple):
    """How a model is rewritten.

    - `keep_quantized_weights`, `qdq`, `operators` and `keep_initializers_as_inputs` are arguments of `optimize`.
    - `native_operators`: whether operators may be written that only the native backend supports.
    - `replaced`: names of initializers that are not constants.
    - `integers`: where integer operators have to be exact, on this processor or on all; "nowhere" if they must not be used.
    - `has_other_providers`: whether the session has providers besides the CPU provider. If so, the shapes of outputs are
      written, because some providers need them."""

    keep_quantized_weights: bool = False
    qdq: Qdq = "auto"
    operators: Operators = "custom"
    native_operators: bool = True
    keep_initializers_as_inputs: bool = True
    replaced: frozenset[str] = frozenset()
    integers: Literal["here", "anywhere", "nowhere"] = "anywhere"
    has_other_providers: bool = False


DEFAULTS = Settings()

_CONSTANT = ("", "Constant", "")

_SHAPED = "its shape is written: ONNX Runtime does not infer it"


class Graph(Nodes):
    """A model, its nodes of the package's operators, and the changes that passes make. `done` counts the changed nodes by
    operator and change."""

    def __init__(self, model: ir.Model, settings: Settings) -> None:
        if not settings.keep_initializers_as_inputs and model.ir_version >= 4:  # before, they all have to be inputs
            for value in [value for value in model.graph.inputs if value.is_initializer()]:
                model.graph.inputs.remove(value)
        super().__init__(model, settings.replaced)
        self.keep_quantized_weights, self.integers = settings.keep_quantized_weights, settings.integers
        self.operators, self.native_operators = settings.operators, settings.native_operators
        self.qdq: Qdq = "float"  # what becomes of ONNX's own nodes, as `choose_qdq` answers
        self.done: Counter[tuple[str, str]] = Counter()
        self.write_error = ""  # why ONNX Runtime could not write its own optimized model
        self._constants: dict[Any, ir.Value] = {}  # by graph, and by tensor or bits
        self._loose: dict[ir.Value, None] = {}  # initializers that removed nodes used, in order
        self._removed: dict[ir.Graph, list[ir.Node]] = defaultdict(list)  # nodes that `sweep` takes out of their graphs
        # The places of values among the outputs of graphs.
        self._places: dict[ir.Graph, dict[ir.Value, list[int]]] = defaultdict(lambda: defaultdict(list))

    def add_constant(self, tensor: ir.TensorProtocol, name: str | None, before: ir.Node) -> ir.Value:
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

    def replace_by_constants(self, node: Node, tensors: Sequence[ir.TensorProtocol], what: str) -> None:
        """Replace a node by constants. Nodes with the same tensor share one. Raise NotRewrittenError if one of its outputs is
        an output of its graph."""
        stays_if(any(value.is_graph_output() for value in node.ir_node.outputs), "its output is an output of its graph")
        for value, tensor in zip(node.ir_node.outputs, tensors, strict=True):
            value.replace_all_uses_with(self.shared_constant(tensor, value.name, node.ir_node, value))
        self.remove(node, what)

    def new_constant(self, array: NDArray[Any], name: str, before: ir.Node) -> ir.Value:
        """Return a new constant, as `add_constant` does, with a number after its name that makes it new."""
        return self.add_constant(in_memory(array), self.unused_name(name), before)

    def shared_constant(
        self, tensor: ir.TensorProtocol, name: str | None, before: ir.Node, like: ir.Value | None = None
    ) -> ir.Value:
        """Return the constant with this very tensor in the graph of the node `before`. If the graph does not have it yet, make
        a constant with the metadata of the value `like`."""
        key = before.graph, id(tensor)
        if key not in self._constants or not _exists(self._constants[key]):
            self._constants[key] = self.add_constant(tensor, name, before)
            if like:
                copy_metadata(like, self._constants[key])
        return self._constants[key]

    def shared_array(self, array: NDArray[Any], name: str, before: ir.Node) -> ir.Value:
        """Return the constant with the bits of an array in the graph of the node `before`. If the graph does not have it yet,
        make a constant in front of all nodes, with a number after its name."""
        graph = before.graph
        assert graph
        key = graph, array.dtype, array.shape, array.tobytes()
        if key not in self._constants or not _exists(self._constants[key]):
            self._constants[key] = self.new_constant(array, name, next(node for node in graph if node.graph))
        return self._constants[key]

    def replace(
        self, node: Node, operator: Operator, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], what: str
    ) -> Node:
        """Replace a node by a node of another operator of the package, and return the new node."""
        new = self.put(operator, inputs, attributes, node.ir_node)
        self.remove(node, what)
        self.register(new)
        return self._nodes[new]

    def put(self, operator: Operator, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], replaced: ir.Node) -> ir.Node:
        """Insert a node of one of the package's operators after a node, and give it that node's name, its output and its
        metadata. Return the new node, which has no record yet."""
        new = ir.node(operator.name, inputs, attributes, domain=operator.domain, name=replaced.name)
        (old, *_), (y,) = replaced.outputs, new.outputs
        y.name, y.type, y.shape, y.const_value = old.name, old.type, old.shape, old.const_value
        self.replace_uses(old, y)
        replaced.append(new)
        copy_metadata(old, y)
        self.copy_inferred(old, y)
        copy_metadata(replaced, new)
        self.model.opset_imports.setdefault(operator.domain, operator.since_version)
        return new

    def replace_uses(self, old: ir.Value, new: ir.Value) -> None:
        """Replace a value by another value in all nodes that use it, and in the outputs of graphs."""
        if old.is_graph_output():
            graph = old.graph
            assert isinstance(graph, ir.Graph)
            if old not in self._places[graph]:  # onnx-ir would go over all outputs each time
                self._places[graph].clear()
                for place, value in enumerate([*graph.outputs]):
                    self._places[graph][value].append(place)
            for place in self._places[graph].pop(old):
                graph.outputs[place] = new
                self._places[graph][new].append(place)
        old.replace_all_uses_with(new)

    def remove(self, node: Node | ir.Node, what: str | None) -> None:
        """Remove an unused node, and the constants and the package's nodes that only this node used. Its graph still lists the
        node until `sweep`, but without inputs. `what` is the change to count, or None for a node that the model never
        had."""
        node = node.ir_node if isinstance(node, Node) else node
        if what is not None and node.op_identifier() != _CONSTANT:
            self.done[full_name(node), what] += 1
        used = dict.fromkeys(value for value in node.inputs if value is not None)
        assert isinstance(node.graph, ir.Graph)
        assert is_unused(node)
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        self._removed[node.graph].append(node)
        node.graph = None
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
        """Take removed nodes out of their graphs, together with initializers that only removed nodes used. This is done once
        for each pass, because it is slow: thousands of nodes may share an initializer, and `uses` makes a new list in each
        call; and to remove a node, a graph goes over all its outputs."""
        self._take_out()
        for value in self._loose:
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()) and value.graph and value.name:
                del value.graph.initializers[value.name]
        self._loose.clear()

    def _take_out(self) -> None:
        for graph, nodes in self._removed.items():
            for node in nodes:
                node.graph = graph
            graph.remove(nodes)
        self._removed.clear()

    def _infer(self, value: ir.Value) -> Inferred:
        if self._inferred is None:
            self._take_out()
        return super()._infer(value)

    def write_shapes(self) -> None:
        """Write the shapes of the outputs of the package's nodes, if onnx infers them. ONNX Runtime infers neither these shapes
        nor the shapes that depend on them. A dimension that is not a number stays unknown."""
        self.forget_inferred()
        for node in self.model.graph:
            for value in node.outputs if OPERATORS.find(node.domain, node.op_type) else ():
                element_type, shape = self.inferred_type(value), self.shape(value)
                if value.shape is None and shape is not None and element_type:
                    value.shape = ir.Shape([length if isinstance(length, int) else None for length in shape])
                    value.type = value.type or ir.TensorType(ir.DataType(element_type.number))
                    self.done[full_name(node), _SHAPED] += 1


def is_unused(node: ir.Node) -> bool:
    """Return whether a node is in a graph that does not need it."""
    return node.graph is not None and not any(value.uses() or value.is_graph_output() for value in node.outputs)


def _exists(constant: ir.Value) -> bool:
    """Return whether a constant is still in the model."""
    producer = constant.producer()
    return constant.is_initializer() if producer is None else producer.graph is not None


def copy_metadata(old: Any, new: Any) -> None:
    """Copy the doc string and the metadata from one node or value to another."""
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
