"""Drop a round trip if all elements of x are values that it returns: they come from an equal round trip or are constants, even
if nodes in between have moved, chosen or clipped them.

For integers, block formats and Casts, the second round trip returns the bits of its x. A float type with a scale may round a
small negative number to -0, which the second round trip turns into 0. So it is dropped only where no sign of a zero matters.

A block format is also dropped if x is a Cast of booleans: 0 and 1 are values of the format.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..declaration import BlockRoundTrip, FakeQuantize, RoundTrip
from ..declaration.reasons import NotRewrittenError
from ..element_types import FLOAT32
from ..fake_quantization.operators import FAKE_QUANTIZE
from . import moved_elements
from .graph import Graph
from .moved_elements import Format, Place
from .nodes import GraphOperand, Node, call
from .pairs import PAIR
from .returned_values import Values, values_of
from .signs_of_zeros import signs_of_zeros_are_lost

REPEATED = "dropped: an equal one rounded its x already"
BOOLEANS = "dropped: it returns booleans as they are"

# ONNX's operators whose results are booleans, whatever their inputs are.
_BOOLEAN = ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")

# Larger constants are not compared with the values of a format.
_LARGE = 1 << 24

# What a round trip returns: the values of elements, or blocks.
_Returned = Values | BlockRoundTrip[GraphOperand]


def rewrite(graph: Graph) -> None:
    rounded: dict[Place, _Returned] = {}
    for node in graph.nodes():
        meaning = graph.meaning(node)
        if not isinstance(meaning, (RoundTrip, BlockRoundTrip, FakeQuantize)) or not _may_replace(node.x, node.y):
            continue
        if node.operator not in (PAIR, FAKE_QUANTIZE) and graph.inferred_type(node.x) is not FLOAT32:
            continue
        returned = _returned(graph, node.ir_node)
        if isinstance(returned, BlockRoundTrip) and _is_boolean(node.x) and _keeps_booleans(node, returned):
            reason = BOOLEANS
        elif returned is None or not _is_idempotent(returned) or not _is_rounded(graph, node.x, returned, rounded):
            continue
        else:
            reason = REPEATED
        if isinstance(returned, BlockRoundTrip) or returned.returns_bits or signs_of_zeros_are_lost(graph, node.y):
            if node.y.is_graph_output():  # keeps its name and what the model declares of it
                node.x.name, node.x.type, node.x.shape = node.y.name, node.y.type, node.y.shape
            graph.replace_uses(node.y, node.x)
            graph.remove(node, reason)


def _is_boolean(x: ir.Value) -> bool:
    """Return whether x is a Cast of booleans."""
    cast = x.producer()
    source = cast.inputs[0] if cast and not cast.domain and cast.op_type == "Cast" else None
    if source is None:
        return False
    producer = source.producer()
    is_logical = producer is not None and not producer.domain and producer.op_type in _BOOLEAN
    return is_logical or source.dtype is ir.DataType.BOOL


def _keeps_booleans(node: Node, round_trip: BlockRoundTrip[GraphOperand]) -> bool:
    """Return whether a node returns 0 and 1 unchanged. A result depends only on the element and on the largest elements of its
    block and sub-block, which are 0 or 1 too. So a block with both, one of zeros and one of ones have all the cases."""
    size = max(2, round_trip.block_size)
    x = np.zeros(3 * size, np.float32)
    x[0] = x[2 * size :] = 1
    try:
        (y,) = call(node, [x], axis=0)
    except NotRewrittenError:  # the node is not valid
        return False
    return y.tobytes() == x.tobytes()


def _may_replace(x: ir.Value, y: ir.Value) -> bool:
    """Return whether x may take y's place. An output of a graph is a result of one of its nodes, and has one name."""
    return not y.is_graph_output() or (x.producer() is not None and x.graph is y.graph and not x.is_graph_output())


def _is_idempotent(returned: _Returned) -> bool:
    return not isinstance(returned, BlockRoundTrip) or returned.is_idempotent


def _returned(graph: Graph, node: ir.Node) -> _Returned | None:
    meaning = graph.meaning(graph.node(node))
    return meaning if isinstance(meaning, BlockRoundTrip) else values_of(meaning)


def _is_rounded(graph: Graph, x: ir.Value, returned: _Returned, rounded: dict[Place, _Returned]) -> bool:
    """Return whether all elements of x are values that a round trip returns, and in a block format also together in their
    blocks. `rounded` maps the places for which that is known to such values. This function adds the places that it finds, so
    that long chains are not walked from each of their nodes."""
    is_block = isinstance(returned, BlockRoundTrip)
    form = returned.format if isinstance(returned, Values) else Format(returned.block_size, False, True, True)
    first = moved_elements.place_of(graph, x, returned.axis)
    waiting, seen = [first], {first}
    while waiting:
        place = waiting.pop()
        value = place.value
        if place in rounded and _include(returned, rounded[place]):
            continue
        producer = value.producer()
        if producer is None or graph.tensor(value) is not None:
            if not _has_constant(graph, place, returned):
                return False
            continue
        before = _returned(graph, producer)
        if before is not None:
            if not _include(returned, before) or moved_elements.place_of(graph, value, before.axis) != place:
                return False
            if is_block and value is not x and not _has_several_elements(graph, value):
                return False  # the operator returns one element as it is
            continue
        if producer.domain or graph.node(producer):
            return False
        found = moved_elements.sources(graph, place, form)
        if found is None:
            return False
        waiting += [each for each in found if each not in seen]
        seen.update(found)
    rounded.update(dict.fromkeys(seen, returned))
    return True


def _include(returned: _Returned, other: _Returned) -> bool:
    """Return whether a round trip returns all values of another one, along whatever axes."""
    if isinstance(returned, BlockRoundTrip):
        return isinstance(other, BlockRoundTrip) and other.is_equal(returned)
    return isinstance(other, Values) and returned.include(other)


def _has_several_elements(graph: Graph, value: ir.Value) -> bool:
    return any(isinstance(length, int) and length > 1 for length in graph.shape(value) or ())


def _has_constant(graph: Graph, place: Place, returned: _Returned) -> bool:
    """Return whether a value is a constant whose elements a round trip returns as they are. Blocks of constants are not looked
    at: that would need a kernel, and compiling it takes longer than a round trip saves."""
    tensor = graph.tensor(place.value)
    if isinstance(returned, BlockRoundTrip) or tensor is None or tensor.nbytes > _LARGE:
        return False
    array = graph.array(place.value)
    return array is not None and returned.has_all(array, place.axis)
