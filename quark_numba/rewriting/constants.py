"""Fold constants: replace each node whose inputs are all constants by its outputs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration import Dequantize, Quantize
from . import pairs
from .graph import Graph, Left, Node, Operand, call

CONSTANT = "folded: a constant"
CODES = "quantized: constant codes"


def rewrite(graph: Graph) -> None:
    graph.each(lambda node: _compute(graph, node))


def _compute(graph: Graph, node: Node) -> None:
    meaning = graph.meaning(node)
    known = graph.array(node.y) if isinstance(meaning, Dequantize) else None
    if known is not None:
        graph.make_constant(node, (known,), CONSTANT)
        return
    inputs = graph.arrays(node) if node.operator.is_pure else None
    if inputs is None:
        if not isinstance(meaning, (Quantize, Dequantize)):
            raise Left("it is one step already, and its inputs are not all constants")
        return
    if isinstance(meaning, Quantize):
        if not graph.keep_codes:
            with suppress(Left):
                _there_and_back(graph, node, meaning)
                return
        _remember(graph, node, call(node, inputs))
        return  # the dequantize nodes are folded, too, and this node is removed with them
    outputs = call(node, inputs)
    _remember(graph, node, outputs)
    if graph.keep_codes and isinstance(meaning, Dequantize):
        quantize = graph.node(node.x.producer())
        if quantize:
            codes = graph.array(node.x)
            assert codes is not None
            graph.make_constant(quantize, (codes,), CODES)
        raise Left("its codes are kept")
    graph.make_constant(node, outputs, CONSTANT)


def _remember(graph: Graph, node: Node, outputs: tuple[NDArray[Any], ...]) -> None:
    for value, array in zip(node.node.outputs, outputs, strict=True):
        graph.remember(value, array)


def _there_and_back(graph: Graph, node: Node, quantize: Quantize[Operand]) -> None:
    """Compute the outputs of a quantize node's dequantize nodes in one step. One kernel instead of two takes half the time if
    the kernels are not compiled yet. Raise Left if one step would return something else."""
    followers = pairs.fusible_followers(graph, node, quantize)
    x, scale, codes = quantize.x.array, quantize.scale.array, quantize.element_type
    assert x is not None
    assert scale is not None
    assert codes
    # A node that is not valid has to stay. Computing the node alone gives the reason.
    if not x.dtype == scale.dtype == np.float32 or not all(codes.name in each.operator.formats for each in (node, *followers)):
        raise Left("its types are not those of the operator that does both")
    zeros = quantize.zero_point.array if quantize.zero_point else np.zeros(scale.shape, codes.dtype)
    (y,) = call(replace(node, operator=pairs.PAIR, attributes=pairs.attributes(quantize)), [x, scale, zeros])
    for follower in followers:
        graph.remember(follower.y, y)
