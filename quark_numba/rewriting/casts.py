"""Rewrite a Cast from float32 to bfloat16 or float16, together with the Casts back, into one node.

ONNX Runtime runs such Casts as they are written, with ties to even and without saturation. Quark writes BF16 models for AMD's
processors in this form (``BF16QDQToCast``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ..element_types import FLOAT32, ElementType, find, named
from ..fake_quantization.key import CASTS
from ..fake_quantization.operators import FAKE_QUANTIZE
from ..linear.operators import OPERATORS as LINEAR
from ..models.tensors import mapped
from .constants import CODES
from .graph import Graph, is_unused
from .pairs import SHARED

FUSED = f"fused: {FAKE_QUANTIZE.full_name}"

_CAST = ("", "Cast", "")

(_DEQUANTIZE,) = (each for each in LINEAR if each.operation == "dequantize" and each.formats.keys() >= {*CASTS})

TYPES = named(" ".join(CASTS))
_NUMBERS = {element_type.number for element_type in TYPES}

# Attributes of Cast that do not concern these types.
_OTHERS = {"saturate", "round_mode"}

# ONNX Runtime drops a Cast with such a name together with a Cast that undoes it.
_DROPPED = "InsertedPrecisionFreeCast_"


def is_to_16_bits(node: onnx.NodeProto) -> bool:
    """Return whether a node is a Cast to one of the types."""
    is_cast = (node.domain, node.op_type) == _CAST[:2]
    return is_cast and any(attribute.name == "to" and attribute.i in _NUMBERS for attribute in node.attribute)


def rewrite(graph: Graph) -> None:
    """Rewrite these Casts. They are not rewritten if ONNX Runtime is to run the quantization nodes itself (`qdq`), or if
    regions are not allowed. Regions run the nodes that replace the Casts."""
    if graph.native_operators and graph.qdq != "onnxruntime":
        fuse(graph)


def fuse(graph: Graph) -> None:
    """Rewrite these Casts. A Cast to 16 bits is kept if another node uses its result. With `keep_quantized_weights` a constant
    is stored in 16 bits, and dequantized with the scale 1."""
    rounded: dict[tuple[ir.Value, ir.Graph | None], ir.Value] = {}
    kept: dict[tuple[int, ElementType], ir.TensorProtocol] = {}  # by the constants' tensors
    for back, cast, element_type in list(_pairs(graph)):
        (x,), (codes,), (y,) = cast.inputs, cast.outputs, back.outputs
        assert x is not None
        if graph.inferred_type(x) is not FLOAT32:
            continue
        tensor = graph.tensor(x) if graph.keep_quantized_weights else None
        if (codes, back.graph) in rounded and not y.is_graph_output():
            y.replace_all_uses_with(rounded[codes, back.graph])
            graph.remove(back, SHARED)
        else:
            if tensor is None:
                made = graph.put(FAKE_QUANTIZE, [x], {"form": element_type.name, "rounding_mode": "ROUND"}, back)
            else:
                codes_tensor = kept.setdefault((id(tensor), element_type), _cast(tensor, element_type))
                constant = graph.shared_constant(codes_tensor, graph.unused_name(f"{y.name}_codes"), back)
                scale = graph.shared_array(np.array(1, np.float32), "scale", back)
                made = graph.put(_DEQUANTIZE, [constant, scale], _DEQUANTIZE.values({}), back)
            graph.remove(back, FUSED if tensor is None else CODES)
            graph.register(made)
            rounded.setdefault((codes, made.graph), made.outputs[0])
        if is_unused(cast):
            graph.remove(cast, FUSED if tensor is None else CODES)


def _cast(tensor: ir.TensorProtocol, element_type: ElementType) -> ir.TensorProtocol:
    """Return a tensor of float32, cast when it is read."""

    def cast(rows: NDArray[Any], *_: Any) -> NDArray[Any]:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return rows.astype(element_type.dtype)

    return mapped(tensor, cast, element_type)


def _pairs(graph: Graph) -> Iterator[tuple[ir.Node, ir.Node, ElementType]]:
    """Yield each Cast to float32 of the result of a Cast to one of the types, with that first Cast and the type."""
    for node in graph.model.graph.all_nodes():
        before = node.inputs[0].producer() if target(node) is FLOAT32 and node.inputs[0] else None
        element_type = target(before) if before else None
        if before and element_type in TYPES:
            yield node, before, element_type


def target(node: ir.Node) -> ElementType | None:
    """Return the element type that a Cast converts to, or None if the node is something else or ONNX Runtime may drop it."""
    to = node.attributes.get("to")
    if node.op_identifier() != _CAST or to is None or set(node.attributes) - {"to"} - _OTHERS:
        return None
    is_whole = len(node.inputs) == len(node.outputs) == 1 and node.inputs[0] is not None and to.type.name == "INT"
    return find(to.value) if is_whole and not to.is_ref() and not (node.name or "").startswith(_DROPPED) else None
