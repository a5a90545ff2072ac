"""Rewrite nodes of fake quantization, by any of their names, into this package's operator, whose parameters are all inputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..declaration import FakeQuantize
from ..fake_quantization.key import FORMS
from ..fake_quantization.operators import FAKE_QUANTIZE, key_of, lengths
from .graph import Graph
from .nodes import Left, Node, Operand

REWRITTEN = f"rewritten: {FAKE_QUANTIZE.full_name}"
ALONE = "no elementwise node is next to it"


def rewrite(graph: Graph) -> None:
    if graph.regions:
        graph.each(lambda node, meaning: _rewrite(graph, node, meaning), FakeQuantize)


def _rewrite(graph: Graph, node: Node, meaning: FakeQuantize[Operand]) -> None:
    """Raise Left if a parameter is not a constant, or not valid."""
    if node.operator is FAKE_QUANTIZE:
        return
    try:
        arrays, attributes = parameters(graph, node, meaning)
    except ValueError as error:
        raise Left(f"not valid: {error}") from None
    parent = node.node.graph
    assert parent
    names = FORMS[meaning.form].parameters
    values = [graph.shared_array(array, name, parent) for array, name in zip(arrays, names, strict=True)]
    made = graph.replace(node, FAKE_QUANTIZE, [node.x, *values], attributes, REWRITTEN)
    graph.reasons[made] = ALONE


def parameters(graph: Graph, node: Node, meaning: FakeQuantize[Operand]) -> tuple[list[NDArray[np.float32]], dict[str, str]]:
    """Return the parameters in their order, in shapes that broadcast to x, and the attributes of this package's operator. Raise
    ValueError if they are not valid, and Left if they are not known."""
    key, shape = key_of(meaning), graph.shape(node.x)
    arrays, ranks = [], [0]
    for name in FORMS[key.form].parameters:
        given = meaning.parameters[name]
        array = given.array if isinstance(given, Operand) else np.asarray(given)
        if array is None:
            raise Left(f"its {name} is not a constant")
        array = array.astype(np.float32)
        if array.size == 1:
            array = array.reshape(())  # of any rank, and x need not have it
        elif shape is None:
            raise Left("it has several scales, and the rank of its x is not known")
        else:
            array = array.reshape(lengths(name, array.shape, meaning.axis, len(shape)))
            ranks.append(array.ndim)
        arrays.append(array)
    if shape is not None and max(ranks) > len(shape):
        raise ValueError("its scales have more dimensions than its x")
    attributes = {"form": key.form, "rounding_mode": key.rounding_mode}
    # Whether the parameters are valid shows for an x of the shape to which they broadcast.
    FAKE_QUANTIZE.call(np.zeros(np.broadcast_shapes(*(array.shape for array in arrays)), np.float32), *arrays, **attributes)
    return arrays, attributes
