"""Keep constants in block formats as codes and scales, with a node that dequantizes them, instead of as floats, and the reasons
why some are not kept so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..compiling.threads import on_one_thread
from ..declaration import BlockRoundTrip
from ..declaration.reasons import require, stays_if
from ..element_types import FLOAT32, find
from ..element_types.tensors import to_bytes
from ..models.tensors import in_memory, mapped, opened, row_axis, spans
from .graph import Graph
from .nodes import GraphOperand, Node, call
from .onnx_runtime import RELEASE
from .renamed_operators import COUNTERPARTS

STORED = "quantized: constant codes and scales"

_DEQUANTIZE = COUNTERPARTS["dequantize"]

# Computed tensors, by the inputs and attributes that they were computed from. The first input is stored as well, because its
# identity is part of the key.
Known = dict[Any, tuple[ir.TensorProtocol, Sequence[ir.TensorProtocol]]]


def store(graph: Graph, node: Node, meaning: BlockRoundTrip[GraphOperand], known: Known) -> Node:
    """Replace a round trip of a constant by a node that dequantizes constant codes, and return that node. Raise
    NotRewrittenError if that would change a bit."""
    stays_if(not graph.native_operators, "only the native backend has the node that dequantizes")
    unfit = "its input is not a constant of several elements, or its output is an output of its graph"
    x = require(graph.tensor(node.x), unfit)
    stays_if(x.size <= 1 or node.y.is_graph_output(), unfit)
    has_gather = any((user.op_type, index) == ("Gather", 0) for user, index in node.y.uses())
    stays_if(has_gather, "a Gather takes rows of it, for which a run would dequantize all")
    key = STORED, node.operator, repr(node.attributes), id(x)
    if key not in known:
        known[key] = x, _codes_and_scales(node, x, meaning)
    _, (codes, scales) = known[key]
    inputs = [
        graph.shared_constant(tensor, graph.unused_name(f"{node.y.name}_{what}"), node.ir_node)
        for tensor, what in ((codes, "codes"), (scales, "scale"))
    ]
    return graph.replace(node, _DEQUANTIZE, inputs, _attributes(meaning, len(codes.shape)), STORED)


def _attributes(meaning: BlockRoundTrip[GraphOperand], rank: int) -> Mapping[str, int]:
    axis = meaning.axis % rank if rank > 1 else 0
    return {"axis": axis, "block_size": meaning.block_size, "output_dtype": FLOAT32.number}


def _codes_and_scales(
    node: Node, x: ir.TensorProtocol, meaning: BlockRoundTrip[GraphOperand]
) -> tuple[ir.TensorProtocol, ir.TensorProtocol]:
    """Return the codes and the scales of a constant. The codes are computed here to compare the results, and again when they
    are read, so that they need not fit into memory."""
    attributes, unknown = _attributes(meaning, len(x.shape)), "ONNX Runtime has no tensors of its codes"
    stored = require(meaning.stored, unknown)
    stays_if(not stored.element_type.has_tensors(RELEASE), unknown)
    along = row_axis(x.shape.numpy())
    unit = attributes["block_size"] if along == attributes["axis"] else 1
    codes, scales = mapped(x, lambda part, *_: on_one_thread(stored.convert, part)[0], stored.element_type, unit), []
    with opened(x) as read:
        for part in (read(*span) for span in spans(codes)):
            part_codes, part_scales = on_one_thread(stored.convert, part)
            scale_type = find(part_scales.dtype)
            stays_if(scale_type is None or not scale_type.has_tensors(RELEASE), "ONNX Runtime has no tensors of its scales")
            y = on_one_thread(_DEQUANTIZE.call, part_codes, part_scales, **attributes)
            (expected,) = on_one_thread(call, node, [part])
            has_nan = np.isnan(part_scales.astype(np.float32)).any()  # a product with it may have any sign
            is_same = not has_nan and np.array_equal(to_bytes(y), to_bytes(expected))
            stays_if(not is_same, "its codes and scales cannot hold all elements")
            scales.append(part_scales)
    block_scales = in_memory(np.concatenate(scales, along))
    stays_if(codes.nbytes + block_scales.nbytes >= 4 * x.size, "its codes and scales take more room than floats")
    return codes, block_scales
