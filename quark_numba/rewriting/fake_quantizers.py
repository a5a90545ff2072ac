"""Rewrite nodes of fake quantization, by any of their names, into this package's operator, whose parameters are all inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration import FakeQuantize
from ..declaration.reasons import faults_as_reasons, require, stays_if
from ..fake_quantization.calls import check_single, prepare
from ..fake_quantization.key import FORMS
from ..fake_quantization.operators import FAKE_QUANTIZE, key_of, lengths
from .graph import Graph
from .nodes import GraphOperand, Node

REWRITTEN = f"rewritten: {FAKE_QUANTIZE.full_name}"
ALONE = "no elementwise node is next to it"


def rewrite(graph: Graph) -> None:
    if graph.native_operators:
        graph.each(lambda node, meaning: _rewrite(graph, node, meaning), FakeQuantize)


def _rewrite(graph: Graph, node: Node, meaning: FakeQuantize[GraphOperand]) -> None:
    stays_if(node.operator is FAKE_QUANTIZE, ALONE)
    write(graph, node, meaning, REWRITTEN)


def write(graph: Graph, node: Node, meaning: FakeQuantize[GraphOperand], what: str) -> None:
    """Replace a node by this package's operator with this meaning. Raise NotRewrittenError as `parameters` does."""
    arrays, attributes = parameters(graph, meaning)
    names = FORMS[meaning.form].parameters
    values = [graph.shared_array(array, name, node.ir_node) for array, name in zip(arrays, names, strict=True)]
    made = graph.replace(node, FAKE_QUANTIZE, [meaning.x.value, *values], attributes, what)
    graph.reasons[made] = ALONE


def array_of(meaning: FakeQuantize[GraphOperand], name: str) -> NDArray[Any]:
    """Return a parameter. Raise NotRewrittenError if it is not a constant."""
    parameter = meaning.parameters[name]
    array = parameter.array if isinstance(parameter, GraphOperand) else np.asarray(parameter)
    return require(array, f"its {name} is not a constant")


def parameters(graph: Graph, meaning: FakeQuantize[GraphOperand]) -> tuple[list[NDArray[np.float32]], dict[str, str]]:
    """Return the parameters in their order, in shapes that broadcast to x, and the attributes of this package's operator. Raise
    NotRewrittenError if the parameters are unknown or invalid."""
    shape, arrays = graph.shape(meaning.x.value), []
    with faults_as_reasons():
        key = key_of(meaning)
        names = FORMS[key.form].parameters
        for name in names:
            array = array_of(meaning, name)
            if array.size == 1:
                array = array.reshape(())  # of any rank, and x need not have it
            else:
                rank = len(require(shape, "it has several scales, and the rank of its x is not known"))
                array = array.reshape(lengths(name, array.shape, meaning.axis, rank))
            arrays.append(array.astype(np.float32))
            is_exact = array.dtype.kind not in "iu" or np.all(arrays[-1].astype(np.float64) == array)
            stays_if(not is_exact, f"its {name} cannot be a float32")
        if shape is not None and max((array.ndim for array in arrays), default=0) > len(shape):
            raise ValueError("its scales have more dimensions than its x")
        attributes = {"form": key.form, "rounding_mode": key.rounding_mode}
        for name, array in zip(names, arrays, strict=True):
            check_single(key, name, array.shape, name)
        if key.form != "codes":  # "codes" takes any numbers; checking them would compile a kernel
            prepare(key, arrays, np.broadcast_shapes(*(array.shape for array in arrays)), {name: name for name in names})
    return arrays, attributes
