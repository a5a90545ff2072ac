"""Choose the nodes of ONNX's own operators, and of com.microsoft's, that stay as they are for ONNX Runtime to run."""

from __future__ import annotations

from ..declaration import Affine, Dequantize, Quantize
from ..element_types import FLOAT32
from .graph import Graph, Operand


def rewrite(graph: Graph) -> None:
    """Without `standard_ops`, leave all these nodes if they quantize activations anywhere in the model. Otherwise leave only
    nodes with types for which ONNX Runtime's results may differ from the specification's."""
    if graph.standard_ops:
        return
    standard = [node for node in graph.nodes() if node.is_standard]
    meanings = {node: graph.meaning(node) for node in standard if node not in graph.reasons}
    is_integer_model = any(
        isinstance(meaning, Dequantize) and _is_onnx_runtimes(graph, meaning.x) for meaning in meanings.values()
    )
    for node, meaning in meanings.items():
        assert isinstance(meaning, Affine)
        codes = meaning.element_type
        wraps = codes is not None and codes.bits == 32 and not meaning.is_symmetric
        if is_integer_model:
            graph.reasons[node] = "ONNX Runtime may fuse it with its neighbours into an integer operator"
        elif wraps or codes is None or not codes.is_integer or codes.bits < 4 or meaning.scale.element_type is not FLOAT32:
            graph.reasons[node] = "ONNX Runtime's result may differ from the specification's"


def _is_onnx_runtimes(graph: Graph, codes: Operand) -> bool:
    """Whether codes come neither from a constant nor from a quantize operator other than ONNX's own."""
    producer = graph.node(codes.value.producer())
    quantize = graph.meaning(producer)
    if producer is None or not isinstance(quantize, Quantize):
        return not codes.is_constant
    return producer.is_standard and not quantize.x.is_constant
