"""Nodes of onnx, with the graphs in them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def used_names(node: onnx.NodeProto) -> Iterator[str]:
    """The names of the values that a node takes, and that its subgraphs take from outside of them."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        inner = {each.name for each in (*graph.input, *graph.initializer)}
        for each in graph.node:
            yield from (name for name in used_names(each) if name not in inner)
            inner.update(each.output)
        yield from (each.name for each in graph.output if each.name not in inner)
