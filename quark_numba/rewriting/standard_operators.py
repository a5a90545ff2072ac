"""Choose the nodes of ONNX's own operators, and of com.microsoft's, that stay as they are for ONNX Runtime to run."""

from __future__ import annotations

from ..declaration import Affine, Dequantize, DynamicQuantize, Meaning, Quantize
from ..element_types import FLOAT32
from .graph import Graph, Node, Operand
from .integer_operators import faster_on_integers
from .onnx_runtime import has_kernels

LEFT_ON_INTEGERS = "ONNX Runtime runs it on integers, in operators of its own, which is faster"


def rewrite(graph: Graph) -> None:
    """With `standard_ops`, leave none of these nodes. If it is None, leave those that ONNX Runtime fuses into integer
    operators, if the model is faster with them.

    Without `standard_ops`, leave all these nodes if they quantize activations anywhere in the model. Otherwise leave only
    nodes with types for which ONNX Runtime's results may differ from the specification's. Nodes that ONNX Runtime cannot run
    are none of these, and neither are nodes that compute scales for those alone."""
    if graph.standard_ops:
        return
    if graph.standard_ops is None:
        if graph.integer_operators:
            graph.reasons |= dict.fromkeys(faster_on_integers(graph), LEFT_ON_INTEGERS)
        return
    standard = [node for node in graph.nodes() if node.is_standard]
    meanings = {node: graph.meaning(node) for node in standard if node not in graph.reasons}
    missing = {node for node, meaning in meanings.items() if not is_run_by_onnx_runtime(node, meaning)}
    meanings = {node: each for node, each in meanings.items() if node not in missing and not _is_scale_of(graph, node, missing)}
    is_integer_model = any(
        isinstance(meaning, Dequantize) and _is_onnx_runtimes(graph, meaning.x) for meaning in meanings.values()
    )
    for node, meaning in meanings.items():
        assert isinstance(meaning, Affine)
        if is_integer_model:
            graph.reasons[node] = "ONNX Runtime may fuse it with its neighbours into an integer operator"
        elif _may_differ(meaning):
            graph.reasons[node] = "ONNX Runtime's result may differ from the specification's"


def needs_registration(graph: Graph) -> bool:
    """Whether the model has nodes of ONNX's own operators that ONNX Runtime cannot run by the specification."""
    for node in graph.nodes():
        meaning = graph.meaning(node) if node.is_standard else None
        if isinstance(meaning, Affine) and (_may_differ(meaning) or not is_run_by_onnx_runtime(node, meaning)):
            return True
    return False


def _may_differ(meaning: Affine[Operand]) -> bool:
    """Whether ONNX Runtime's result of one of ONNX's own nodes may differ from the specification's."""
    codes = meaning.element_type
    if codes is None or not codes.is_integer or codes.bits < 4 or meaning.scale.element_type is not FLOAT32:
        return True
    return codes.bits == 32 and not meaning.is_symmetric


def is_run_by_onnx_runtime(node: Node, meaning: Meaning[Operand] | None) -> bool:
    """Whether ONNX Runtime has kernels for the types of one of ONNX's own nodes, as far as they are known."""
    assert isinstance(meaning, Affine)
    known = [each for each in (meaning.element_type, meaning.scale.element_type) if each]
    return has_kernels(node.node.domain, node.node.op_type, [each.name for each in known])


def _is_scale_of(graph: Graph, node: Node, missing: set[Node]) -> bool:
    users = node.y.uses()
    return bool(users) and not node.y.is_graph_output() and all(index and graph.node(user) in missing for user, index in users)


def _is_onnx_runtimes(graph: Graph, codes: Operand) -> bool:
    """Whether codes come neither from a constant nor from a quantize operator other than ONNX's own."""
    producer = graph.node(codes.value.producer())
    quantize = graph.meaning(producer)
    if isinstance(quantize, DynamicQuantize):
        return False
    if producer is None or not isinstance(quantize, Quantize):
        return not codes.is_constant
    return producer.is_standard and not quantize.x.is_constant
