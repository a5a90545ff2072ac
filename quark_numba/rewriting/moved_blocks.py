"""Where the blocks of a tensor come from: the tensors, and their axes, that have each of its blocks as a whole.

A block is `block_size` neighbouring elements along an axis, whose first index is a multiple of `block_size`. The last block may
be shorter. Rounding to a block format returns a tensor unchanged if it returns each block unchanged. So it does not matter
where a block lies, but it has to stay whole, with its elements in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from .graph import Graph
from .nodes import Shape


class Blocks(NamedTuple):
    """The blocks of a value along an axis, which is counted from the first one if the rank of the value is known."""

    value: ir.Value
    axis: int


def blocks_of(graph: Graph, value: ir.Value, axis: int) -> Blocks:
    shape = graph.shape(value)
    return Blocks(value, axis % len(shape) if shape else axis)


def sources(graph: Graph, blocks: Blocks, block_size: int) -> list[Blocks] | None:
    """Return the blocks among which each of the given blocks is, unless it has only zeros. Return None if that is not proved.
    The value has to be an output of a node."""
    node = blocks.value.producer()
    assert node is not None
    if node.domain or not node.inputs or None in node.inputs[:1]:
        return None
    if node.op_type in ("Identity", "Relu"):  # Relu is no move, but keeps blocks rounded: see `is_idempotent`
        return [Blocks(x, blocks.axis) for x in node.inputs[:1] if x]
    rule = _RULES.get(node.op_type)
    shapes = [graph.shape(value) for value in node.inputs]
    y_shape = graph.shape(blocks.value)
    if rule is None or not shapes[0] or not y_shape:
        return None
    axes = rule(_Move(graph, node, shapes, y_shape, blocks, block_size))
    return None if axes is None else [Blocks(x, axis) for x, axis in zip(node.inputs, axes, strict=False) if x]


class _Move(NamedTuple):
    """A node that moves elements. The rank of its first input, and that of y, are known."""

    graph: Graph
    node: ir.Node
    shapes: Sequence[Shape | None]  # of the inputs
    y_shape: Shape
    blocks: Blocks  # of y
    size: int  # of a block

    @property
    def axis(self) -> int:
        return self.blocks.axis

    @property
    def x_shape(self) -> Shape:
        return self.shapes[0] or []

    def attribute(self, name: str, default: int) -> int:
        return int(self.node.attributes.get_int(name, default))

    def numbers(self, index: int) -> list[int] | None:
        """Return the elements of a constant input of one dimension, or None if the input is not a constant."""
        array = self.graph.array(self.node.inputs[index]) if index < len(self.node.inputs) else None
        return None if array is None else array.reshape(-1).tolist()

    def is_whole(self, length: Any) -> bool:
        return isinstance(length, int) and length % self.size == 0


# The rules return the axis of each input whose blocks y has, or None.


def _concat(move: _Move) -> list[int] | None:
    """Concat: along the axis of the blocks, all inputs but the last one have whole blocks."""
    axis = move.attribute("axis", 0) % len(move.y_shape)
    lengths = [shape[axis] if shape else None for shape in move.shapes[:-1]]
    return [move.axis] * len(move.shapes) if axis != move.axis or all(map(move.is_whole, lengths)) else None


def _split(move: _Move) -> list[int] | None:
    """Split: along the axis of the blocks, all outputs but the last one have whole blocks."""
    axis = move.attribute("axis", 0) % len(move.y_shape)
    shapes = [move.graph.shape(y) for y in move.node.outputs[:-1]]
    are_whole = all(shape and move.is_whole(shape[axis]) for shape in shapes)
    return [move.axis] if axis != move.axis or are_whole else None


def _slice(move: _Move) -> list[int] | None:
    """Slice: along the axis of the blocks it begins with a block, and ends with one or at the end of x."""
    starts, ends = move.numbers(1), move.numbers(2)
    if starts is None or ends is None:
        return None
    axes, steps = (move.numbers(k) if len(move.shapes) > k and move.node.inputs[k] else [] for k in (3, 4))
    if axes is None or steps is None:
        return None
    rank, length = len(move.x_shape), move.x_shape[move.axis]
    axes, steps = [axis % rank for axis in axes] or [*range(len(starts))], steps or [1] * len(starts)
    if move.axis not in axes:
        return [move.axis]
    place = axes.index(move.axis)
    start, end, step = starts[place], ends[place], steps[place]
    if isinstance(length, int):
        start, end = (min(each + length if each < 0 else each, length) for each in (start, end))
    ends_with_x = end == length if isinstance(length, int) else end >= 2**31 - 1
    is_whole = min(start, end) >= 0 and start % move.size == 0 and (ends_with_x or end % move.size == 0)
    return [move.axis] if step == 1 and is_whole else None


def _gather(move: _Move) -> list[int] | None:
    """Gather along another axis. Its indices take the place of that axis."""
    indices, axis = move.shapes[1], move.attribute("axis", 0) % len(move.x_shape)
    if indices is None or axis <= move.axis < axis + len(indices):
        return None
    return [move.axis if move.axis < axis else move.axis - len(indices) + 1]


def _transpose(move: _Move) -> list[int] | None:
    perm = move.node.attributes.get_ints("perm", range(len(move.y_shape))[::-1])
    return [perm[move.axis]]


def _reshape(move: _Move) -> list[int] | None:
    """Reshape and the like: the axes behind that of the blocks have as many elements in x as in y. So does that axis itself, or
    it has whole blocks in both."""
    length, inner = move.y_shape[move.axis], move.y_shape[move.axis + 1 :]
    for axis, x_length in enumerate(move.x_shape):
        is_same = _is_known(x_length) and x_length == length
        if _have_same_size(move.x_shape[axis + 1 :], inner) and (is_same or all(map(move.is_whole, (x_length, length)))):
            return [axis]
    return None


def _have_same_size(one: Shape, other: Shape) -> bool:
    if one == other and all(map(_is_known, one)):
        return True
    return all(isinstance(length, int) for length in (*one, *other)) and math.prod(one) == math.prod(other)  # type: ignore[arg-type]


def _is_known(length: Any) -> bool:
    return length is not None


def _expand(move: _Move) -> list[int] | None:
    """Expand, and Resize to the nearest elements: not along the axis of the blocks."""
    axis = move.axis - len(move.y_shape) + len(move.x_shape)
    length = move.x_shape[axis] if axis >= 0 else None
    return [axis] if _is_known(length) and length == move.y_shape[move.axis] else None


def _resize(move: _Move) -> list[int] | None:
    modes = move.node.attributes
    is_nearest = modes.get_string("mode", "nearest") == "nearest"
    extrapolates = modes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return _expand(move) if is_nearest and not extrapolates else None


def _tile(move: _Move) -> list[int] | None:
    """Tile: along the axis of the blocks only if x has whole blocks."""
    repeats = move.numbers(1)
    is_once = repeats is not None and repeats[move.axis] == 1
    return [move.axis] if is_once or move.is_whole(move.x_shape[move.axis]) else None


def _pad(move: _Move) -> list[int] | None:
    """Pad with zeros, which round to zeros. Along the axis of the blocks there are whole blocks in front of x, and x has whole
    blocks if there are zeros behind it: beside a NaN, zeros in a block may become NaN."""
    pads, value = move.numbers(1), next(iter(move.node.inputs[2:]), None)
    array = move.graph.array(value)
    has_zeros = value is None or (array is not None and not any(array.tobytes()))
    if pads is None or not has_zeros or move.node.attributes.get_string("mode", "constant") != "constant" or move.shapes[3:]:
        return None
    begin, end = pads[move.axis], pads[move.axis + len(move.x_shape)]
    is_whole = begin % move.size == 0 and (end == 0 or move.is_whole(move.x_shape[move.axis]))
    return [move.axis] if min(pads) >= 0 and is_whole else None


_RULES: dict[str, Callable[[_Move], list[int] | None]] = {
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
