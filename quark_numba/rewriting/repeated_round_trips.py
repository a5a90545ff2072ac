"""Drop a round trip if all elements of x come from an equal round trip, even if nodes in between have moved or clipped them.

For integers and block formats, the second round trip returns the bits of its x. A float type may round a small negative number
to -0, which the second round trip turns into 0. So it is dropped only where no sign of a zero matters.

A block format is also dropped if x is a Cast of booleans: 0 and 1 are values of the format.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..declaration import BlockRoundTrip, RoundTrip
from ..declaration.reasons import NotRewrittenError
from ..element_types import BFLOAT16, FLOAT32
from . import moved_blocks
from .graph import Graph
from .nodes import GraphOperand, Node, call
from .round_trips import is_exact
from .signs_of_zeros import MOVE_ALL, MOVE_FIRST, signs_of_zeros_are_lost

REPEATED = "dropped: an equal one rounded its x already"
BOOLEANS = "dropped: it returns booleans as they are"

# ONNX's operators whose results are booleans, whatever their inputs are.
_BOOLEAN = ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")

_RoundTrip = RoundTrip[GraphOperand] | BlockRoundTrip[GraphOperand]


# A value, and the axis of its blocks, or None if the round trip is not to a block format.
_Rounded = tuple[ir.Value, int | None]


def rewrite(graph: Graph) -> None:
    rounded: dict[_Rounded, _RoundTrip] = {}
    for node in graph.nodes():
        round_trip = graph.meaning(node)
        if not isinstance(round_trip, (RoundTrip, BlockRoundTrip)) or not _may_replace(node.x, node.y):
            continue
        is_boolean = isinstance(round_trip, BlockRoundTrip) and _is_boolean(node.x) and _keeps_booleans(node, round_trip)
        if not (is_boolean or (_is_idempotent(round_trip) and _is_rounded(graph, node.x, round_trip, rounded))):
            continue
        if isinstance(round_trip, BlockRoundTrip):
            is_same = graph.inferred_type(node.x) is FLOAT32
        else:
            codes = round_trip.element_type
            is_same = bool(codes and codes.is_integer) or signs_of_zeros_are_lost(graph, node.y)
        if is_same:
            if node.y.is_graph_output():  # keeps its name and what the model declares of it
                node.x.name, node.x.type, node.x.shape = node.y.name, node.y.type, node.y.shape
            graph.replace_uses(node.y, node.x)
            graph.remove(node, BOOLEANS if is_boolean else REPEATED)


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
    block and sub-block, which are 0 or 1 too. So one block has all the cases."""
    x = np.zeros(max(2, round_trip.block_size), np.float32)
    x[0] = 1
    try:
        (y,) = call(node, [x], axis=0)
    except NotRewrittenError:  # the node is not valid
        return False
    return y.tobytes() == x.tobytes()


def _may_replace(x: ir.Value, y: ir.Value) -> bool:
    """Return whether x may take y's place. An output of a graph is a result of one of its nodes, and has one name."""
    return not y.is_graph_output() or (x.producer() is not None and x.graph is y.graph and not x.is_graph_output())


def _is_idempotent(round_trip: _RoundTrip) -> bool:
    """Return whether a round trip is proved to return its own results unchanged, as numbers. A block format declares it.

    - Integers of up to 16 bits: see `is_exact`.
    - Integers of 32 bits: the quotient is rounded to a whole number that float32 has, and saturates at two such numbers
      (``linear.arithmetic``). A power of two times such a number is exact, and so is the quotient of the result.
    - Float types, with zero point 0: a code is exact in float32, and so are its product with a power of two and the quotient of
      the result. bfloat16 has float32's exponents, so its scale has to be 1."""
    if isinstance(round_trip, BlockRoundTrip):
        return round_trip.is_idempotent
    codes, scale = round_trip.element_type, round_trip.scale.array
    if codes is None or scale is None or scale.size != 1 or scale.dtype != np.float32 or round_trip.has_other_type:
        return False
    value = float(scale.reshape(()))
    if codes.is_integer and codes.bits <= 16:
        return value > 0 and is_exact(round_trip, round_trip, scale)
    is_power_of_two = value > 0 and math.frexp(value)[0] == 0.5 and 2.0**-60 <= value <= 2.0**60
    if codes.is_integer:
        return is_power_of_two
    return is_power_of_two and round_trip.is_symmetric and (codes is not BFLOAT16 or value == 1)


def _is_rounded(graph: Graph, x: ir.Value, round_trip: _RoundTrip, rounded: dict[_Rounded, _RoundTrip]) -> bool:
    """Return whether all elements of x are results of equal round trips, and in a block format also together in their blocks.
    `rounded` maps the values for which that is known to such a round trip. This function adds the values that it finds, so that
    long chains are not walked from each of their nodes."""
    first = _place(graph, x, round_trip)
    waiting, seen = [first], {first}
    while waiting:
        value, _ = place = waiting.pop()
        if place in rounded and _is_equal(rounded[place], round_trip):
            continue
        producer = value.producer()
        if producer is None:
            return False
        before = graph.meaning(graph.node(producer))
        if isinstance(before, (RoundTrip, BlockRoundTrip)):
            if not _is_equal(before, round_trip) or _place(graph, value, before) != place:
                return False
            if isinstance(before, BlockRoundTrip) and value is not x and not _has_several_elements(graph, value):
                return False  # the operator returns one element as it is
            continue
        if producer.domain or graph.node(producer):
            return False
        found = _sources(graph, producer, place, round_trip)
        if found is None:
            return False
        waiting += found - seen
        seen |= found
    rounded.update(dict.fromkeys(seen, round_trip))
    return True


def _place(graph: Graph, value: ir.Value, round_trip: _RoundTrip) -> _Rounded:
    """Return a value, the x or y of a round trip, with the axis of its blocks."""
    return moved_blocks.blocks_of(graph, value, round_trip.axis) if isinstance(round_trip, BlockRoundTrip) else (value, None)


def _has_several_elements(graph: Graph, value: ir.Value) -> bool:
    return any(isinstance(length, int) and length > 1 for length in graph.shape(value) or ())


def _sources(graph: Graph, node: ir.Node, place: _Rounded, round_trip: _RoundTrip) -> set[_Rounded] | None:
    """Return the values whose rounding makes an output of a node rounded, or None if the output may not be rounded. In a block
    format, elements of a block have to stay together."""
    value, axis = place
    if isinstance(round_trip, BlockRoundTrip):
        assert axis is not None
        blocks = moved_blocks.sources(graph, moved_blocks.Blocks(value, axis), round_trip.block_size)
        return None if blocks is None else set(blocks)
    values = node.inputs[:1] if node.op_type in MOVE_FIRST or _keeps_rounded(graph, node, round_trip) else ()
    values = node.inputs if node.op_type in MOVE_ALL else values
    return {(each, None) for each in values if each} if values and None not in values else None


def _is_equal(before: _RoundTrip, round_trip: _RoundTrip) -> bool:
    """Return whether two round trips give the same bits for the same blocks, along whatever axes."""
    if isinstance(before, BlockRoundTrip):
        return before.is_equal(round_trip)
    if isinstance(round_trip, BlockRoundTrip):
        return False
    is_same_type = before.element_type is round_trip.element_type and before.saturate == round_trip.saturate
    return is_same_type and not before.has_other_type and round_trip.has_same_parameters(before)


def _keeps_rounded(graph: Graph, node: ir.Node, round_trip: RoundTrip[GraphOperand]) -> bool:
    """Return whether a node returns elements of its first input or constants that the round trip returns as they are."""
    if node.op_type == "Relu":
        return _keeps_number(round_trip, np.zeros((), np.float32))
    if node.op_type != "Clip" or node.attributes or len(node.inputs) != 3:
        return False
    bounds = [graph.array(value) for value in node.inputs[1:]]
    return all(bound is not None and bound.size == 1 and _keeps_number(round_trip, bound) for bound in bounds)


def _keeps_number(round_trip: RoundTrip[GraphOperand], number: NDArray[Any]) -> bool:
    """Return whether an idempotent round trip returns a float32 number unchanged. It is False for -0."""
    codes, scale, zero_point = round_trip.element_type, round_trip.scale.array, round_trip.zero_point
    assert codes
    assert scale is not None
    value, offset = number.astype(np.float64).item(), zero_point.array if zero_point else np.zeros(1)
    if number.dtype != np.float32 or not math.isfinite(value) or offset is None or (value == 0 and math.copysign(1, value) < 0):
        return False
    quotient = value / float(scale.reshape(()))
    if not codes.is_integer:
        return codes.lowest <= quotient <= codes.highest and float(np.float32(quotient).astype(codes.dtype)) == quotient
    least, most = (float(bound) - float(offset.reshape(-1)[0]) for bound in (codes.lowest, codes.highest))
    whole = np.float32(round(quotient))
    return bool(least <= whole <= most and whole * np.float32(scale.reshape(())) == number)
