"""Compute nodes of which all inputs are constants: what they put out becomes a constant."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import pairs
from .graph import Graph, Left, Node, call

CONSTANT = "computed: a constant"
CODES = "quantized: constant codes"


def rewrite(graph: Graph) -> None:
    graph.each(lambda node: _compute(graph, node))


def _compute(graph: Graph, node: Node) -> None:
    known = graph.array(node.y) if node.operation == "dequantize" else None
    if known is not None:
        graph.make_constant(node, (known,), CONSTANT)
        return
    inputs = graph.arrays(node) if node.operator.is_pure else None
    if inputs is None:
        if node.operation not in ("quantize", "dequantize"):
            raise Left("one step already, of what is no constant")
        return
    if node.operation == "quantize" and not graph.keep_codes:
        with suppress(Left):
            _there_and_back(graph, node, inputs)
            return
    outputs = call(node, inputs)
    for value, array in zip(node.node.outputs, outputs, strict=True):
        graph.remember(value, array)
    if node.operation == "quantize":
        return  # what dequantizes the codes is computed, too, and then this goes
    if graph.keep_codes and node.operation == "dequantize":
        quantize = graph.node(node.x.producer())
        if quantize:
            codes = graph.array(node.x)
            assert codes is not None
            graph.make_constant(quantize, (codes,), CODES)
        raise Left("its codes are kept")
    graph.make_constant(node, outputs, CONSTANT)


def _there_and_back(graph: Graph, node: Node, inputs: list[NDArray[Any] | None]) -> None:
    """Compute what the nodes behind a quantize node dequantize, in one step: by one kernel instead of two, which takes half the
    time where they are not compiled yet. Raises Left where that is not the same."""
    followers = pairs.followers(graph, node)
    x, scale, zero_point = (*inputs, None)[:3]
    quantized = graph.quantized_type(node)
    assert x is not None
    assert scale is not None
    assert quantized
    # What is not valid has to stay, and computing it as it is tells why.
    has_types = x.dtype == scale.dtype == np.float32 and node.attributes.get("output_dtype", 0) in (0, quantized.number)
    if not (has_types and all(quantized.name in each.operator.formats for each in (node, *followers))):
        raise Left("other types")
    zeros = np.zeros(scale.shape, quantized.dtype) if zero_point is None else zero_point
    (y,) = call(replace(node, operator=pairs.PAIR, attributes=pairs.attributes(node)), [x, scale, zeros])
    for follower in followers:
        graph.remember(follower.y, y)
