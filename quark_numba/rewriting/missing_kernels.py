"""Replace ONNX's own dequantize nodes that ONNX Runtime cannot run by the package's own."""

from __future__ import annotations

from ..declaration import Dequantize
from ..element_types import FLOAT32
from ..linear.operators import OPERATORS as LINEAR
from ..linear.versions import OWN_DOMAIN
from .graph import Graph, Left, Node
from .standard_operators import is_run_by_onnx_runtime

REPLACED = "replaced: ONNX Runtime lacks its types"

(DEQUANTIZE,) = (each for each in LINEAR if (each.domain, each.operation) == (OWN_DOMAIN, "dequantize"))


def rewrite(graph: Graph) -> None:
    if not graph.standard_ops:
        for node in graph.nodes():
            is_valid = node.is_valid and not graph.reasons.get(node, "").startswith("not valid")
            if node.is_standard and is_valid and not is_run_by_onnx_runtime(node, graph.meaning(node)):
                try:
                    _replace(graph, node)
                except Left as error:
                    graph.reasons.setdefault(node, str(error))


def _replace(graph: Graph, node: Node) -> None:
    meaning = graph.meaning(node)
    if not graph.regions:
        raise Left("ONNX Runtime lacks its types, and only the native backend has the node that would replace it")
    if not isinstance(meaning, Dequantize):
        raise Left("ONNX Runtime lacks its types; set standard_ops to run it")
    types = meaning.element_type, graph.inferred_type(meaning.scale.value)
    if meaning.has_other_type or FLOAT32 not in (meaning.computes_in, types[1]):
        raise Left("ONNX Runtime lacks its types; set standard_ops to run it")
    x, scale = DEQUANTIZE.inputs[:2]
    if types[0] not in DEQUANTIZE.types[x.variable] or types[1] not in DEQUANTIZE.types[scale.variable]:
        raise Left(f"ONNX Runtime lacks its types, and so does {DEQUANTIZE.full_name}; set standard_ops to run it")
    inputs = [each.value for each in (meaning.x, meaning.scale, meaning.zero_point) if each]
    reason = graph.reasons.get(node)
    new = graph.replace(node, DEQUANTIZE, inputs, {"axis": meaning.axis, "block_size": meaning.block_size}, REPLACED)
    if reason:
        graph.reasons[new] = reason
