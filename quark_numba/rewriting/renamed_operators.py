"""Rename nodes of ONNX's own QuantizeLinear and DequantizeLinear, so that ONNX Runtime's optimizers leave them alone.

ONNX Runtime's optimizers recognize these nodes by their names, in any domain. If other nodes have been rewritten, the
optimizers make changes that they would not make in the original model. They quantize folded weights again, turn a dequantize
node and a MatMul into a product that quantizes the other input, or crash the process. The operators are the same under both
names, so inputs and attributes do not change."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ..catalog import OPERATORS
from ..declaration import Operator, Quantize
from ..declaration.reasons import NotRewrittenError
from ..element_types import UINT8
from ..linear.operators import OPERATORS as LINEAR
from ..linear.versions import OWN_DOMAIN
from .graph import Graph
from .nodes import GraphOperand, Node
from .nodes_for_onnx_runtime import is_run_by_onnx_runtime
from .onnx_runtime import casts_to
from .pairs import zeros

RENAMED = "renamed: this package runs it"

# The names, in any domain, by which ONNX Runtime's optimizers know quantization nodes.
NAMES = ("QuantizeLinear", "DequantizeLinear")
_ONLY_NATIVE = "ONNX Runtime lacks its types, and only the native backend has the node that would replace it"

# The package's counterparts of ONNX's own operators, by operation.
COUNTERPARTS: Mapping[str, Operator] = {operator.operation: operator for operator in LINEAR if operator.domain == OWN_DOMAIN}


def rewrite(graph: Graph) -> None:
    """Rename all these nodes, and with `qdq` = "onnxruntime" only those that ONNX Runtime cannot run. TensorRT's nodes of the
    same names are renamed if their tensors have the type of the codes."""
    for node in graph.nodes():
        if not graph.is_valid(node) or node.operator.name not in NAMES or _is_held(graph, node):
            continue
        is_run = is_run_by_onnx_runtime(node, graph.meaning(node))
        if is_run and graph.qdq == "onnxruntime":
            continue
        if not graph.native_operators:
            if node.is_standard and not is_run:
                graph.reasons[node] = _ONLY_NATIVE
            continue
        reason = graph.reasons.get(node)
        inputs = [value for value in node.ir_node.inputs if value is not None]  # only the last input may be omitted
        meaning = graph.meaning(node)
        if isinstance(meaning, Quantize) and len(inputs) == 2 and meaning.element_type is not UINT8:
            # A session infers the type of the codes from the zero point, and from the attribute only if it knows x's shape.
            try:
                inputs.append(zeros(graph, node, meaning))
            except NotRewrittenError:
                inputs += _computed_zeros(graph, node, meaning)
        new = graph.replace(node, COUNTERPARTS[node.operator.operation], inputs, node.attributes, RENAMED)
        if reason:
            graph.reasons[new] = reason
    if graph.native_operators and graph.qdq != "onnxruntime":
        for function in graph.model.functions.values():
            _rename(function)


def _computed_zeros(graph: Graph, node: Node, meaning: Quantize[GraphOperand]) -> list[ir.Value]:
    """Return zeros in the shape of a scale that is known only in a run, or [] if ONNX Runtime cannot compute the zeros."""
    codes = meaning.element_type
    if codes is None or not casts_to(codes):
        return []
    value = meaning.scale.value
    steps = {"Shape": ir.DataType.INT64, "ConstantOfShape": ir.DataType.FLOAT, "Cast": ir.DataType(codes.number)}
    for name, dtype in steps.items():
        attributes = {"to": codes.number} if name == "Cast" else {}
        made = ir.node(name, [value], attributes)
        (value,) = made.outputs
        value.name, value.type = graph.unused_name(f"{node.y.name}_zero_point"), ir.TensorType(dtype)
        node.ir_node.prepend(made)
    return [value]


def _is_held(graph: Graph, node: Node) -> bool:
    """Return whether the codes of a node may be in a tensor of another type, or of a graph output that is declared so."""
    codes = node.y if node.operator.operation == "quantize" else node.x
    return node.operator.uint8_holds is not None and (codes.is_graph_output() or graph.type(codes) in (None, UINT8))


def _rename(function: ir.Function) -> None:
    """Rename the nodes of a local function. Its attributes may refer to those of a call."""
    for node in function.all_nodes():
        operator = OPERATORS.find(node.domain, node.op_type)
        if operator and not operator.domain:
            counterpart = COUNTERPARTS[operator.operation]
            node.domain, node.op_type = counterpart.domain, counterpart.name
            for attribute in counterpart.attributes:
                node.attributes.setdefault(attribute.name, ir.AttrInt64(attribute.name, attribute.default))
            function.opset_imports.setdefault(counterpart.domain, counterpart.since_version)
