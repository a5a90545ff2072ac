"""Choose the quantization nodes of ONNX's own operators and of com.microsoft's that are not rewritten, because ONNX Runtime is
to run them."""

from __future__ import annotations

from ..declaration import Affine, Dequantize, DynamicQuantize, Meaning, Quantize
from ..element_types import FLOAT32
from .graph import Graph
from .nodes import GraphOperand, Node
from .onnx_runtime import runs

_FUSED = "ONNX Runtime may fuse it with its neighbours into an integer operator"
_BESIDE = "ONNX Runtime may fuse ONNX's own nodes beside it into integer operators"


def leave_all(graph: Graph) -> bool:
    """Return whether no node may be rewritten, and record the reason for each node. This is so if ONNX Runtime is to run ONNX's
    own nodes, and these quantize activations.

    ONNX Runtime fuses such nodes with the nodes around them, and quantizes float tensors there. So all other nodes must not
    change either. Only nodes that ONNX Runtime cannot run are renamed."""
    if graph.qdq != "onnxruntime":
        return False
    missing, meanings = _nodes(graph)
    if not any(isinstance(meaning, Dequantize) and _is_onnx_runtimes(graph, meaning.x) for meaning in meanings.values()):
        return False
    others = [node for node in graph.nodes() if node not in graph.reasons and node not in missing]
    graph.reasons |= {node: _FUSED if node in meanings else _BESIDE for node in others}
    return True


def runs_all(graph: Graph) -> bool:
    """Return whether ONNX Runtime runs all nodes of the package's operators by itself."""
    return all(is_run_by_onnx_runtime(node, graph.meaning(node)) for node in graph.nodes() if node.is_valid)


def rewrite(graph: Graph) -> None:
    """With `qdq` = "onnxruntime", do not rewrite nodes with types for which the results of ONNX Runtime may differ from the
    specification. Two kinds of node are still rewritten: nodes that ONNX Runtime cannot run, and nodes that compute scales only
    for such nodes."""
    if graph.qdq == "onnxruntime":
        for node, meaning in _nodes(graph)[1].items():
            if _may_differ(meaning):
                graph.reasons[node] = "ONNX Runtime's result may differ from the specification's"


def _nodes(graph: Graph) -> tuple[set[Node], dict[Node, Affine[GraphOperand]]]:
    """Return the nodes of ONNX's own operators that ONNX Runtime cannot run, and the nodes that it can run, with their
    meanings. Nodes that only compute scales of nodes that ONNX Runtime cannot run are in neither result."""
    nodes = [node for node in graph.nodes() if node.is_standard and node not in graph.reasons]
    meanings = {node: meaning for node in nodes if isinstance(meaning := graph.meaning(node), Affine)}
    missing = {node for node, meaning in meanings.items() if not is_run_by_onnx_runtime(node, meaning)}
    scales = {node for node in meanings if node not in missing and _is_scale_of(graph, node, missing)}
    return missing, {node: meaning for node, meaning in meanings.items() if node not in missing | scales}


def _may_differ(meaning: Affine[GraphOperand]) -> bool:
    """Return whether the result of ONNX Runtime for one of ONNX's own nodes may differ from the specification."""
    codes = meaning.element_type
    if codes is None or not codes.is_integer or codes.bits < 4 or meaning.scale.element_type is not FLOAT32:
        return True
    return codes.bits == 32 and not meaning.is_symmetric


def is_run_by_onnx_runtime(node: Node, meaning: Meaning[GraphOperand] | None) -> bool:
    """Return whether a node is one of ONNX's own, and ONNX Runtime runs it for its known types."""
    if not (node.is_standard and isinstance(meaning, Affine)):
        return False
    return runs(node.operator, node.ir_node.domain, meaning.element_type, meaning.scale.element_type)


def _is_scale_of(graph: Graph, node: Node, missing: set[Node]) -> bool:
    users = node.y.uses()
    return bool(users) and not node.y.is_graph_output() and all(index and graph.node(user) in missing for user, index in users)


def _is_onnx_runtimes(graph: Graph, codes: GraphOperand) -> bool:
    """Return whether codes are not constant. If a quantize node produces them, it also has to be one of ONNX's own."""
    producer = graph.node(codes.value.producer())
    quantize = graph.meaning(producer)
    if isinstance(quantize, DynamicQuantize):
        return False
    if producer is None or not isinstance(quantize, Quantize):
        return not codes.is_constant
    return producer.is_standard and not quantize.x.is_constant
