"""Where the elements of a tensor come from, with a rule for each operator that only moves elements, such as Slice, Pad,
Transpose and Reshape: the tensors that have them, rounded to the same format.

What has to stay together depends on the format (`Format`):

- With one scale for the whole tensor each element is rounded by itself. So it may lie anywhere.
- With a scale for each index along an axis, each element has to keep its index along that axis.
- A block is `block_size` neighbouring elements along an axis, whose first index is a multiple of `block_size`. The last block
  may be shorter. Rounding to a block format returns a tensor unchanged if it returns each block unchanged. So it does not
  matter where a block lies, but it has to stay whole, with its elements in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from .graph import Graph
from .nodes import Shape
from .signs_of_zeros import MOVE_ALL, MOVE_FIRST


class Place(NamedTuple):
    """A value, and the axis of its scales or blocks. The axis is counted from the first one if the rank of the value is known.
    With the axis None, each element has to be a value of the format wherever it lies, so with each of the scales."""

    value: ir.Value
    axis: int | None


class Format(NamedTuple):
    """What the rules need to know of a format."""

    block_size: int = 0  # 0 without blocks
    is_finite: bool = False  # it has neither Inf nor NaN
    has_negatives: bool = False  # -y is a value of the format for each of its values y
    has_magnitudes: bool = False  # abs(y) is one


def place_of(graph: Graph, value: ir.Value, axis: int | None) -> Place:
    shape = graph.shape(value)
    return Place(value, axis % len(shape) if shape and axis is not None else axis)


def sources(graph: Graph, place: Place, form: Format) -> list[Place] | None:
    """Return the places where the given elements are, unless they are zeros. Return None if that is not proved. The value has
    to be an output of a node."""
    node = place.value.producer()
    assert node is not None
    takes = _TAKES.get(node.op_type, range(len(node.inputs)))
    if node.domain or not node.inputs or node.inputs[takes[0]] is None:
        return None
    # Relu is no move, but 0 is a value of each format. It keeps blocks rounded: see `is_idempotent`.
    if node.op_type in ("Identity", "Relu"):
        axes: _Axes = [place.axis]
    elif place.axis is None and node.op_type in (*MOVE_FIRST, *MOVE_ALL):
        axes = [None] * (len(takes) if node.op_type in MOVE_ALL else 1)
    else:
        rule = _RULES.get(node.op_type) or (None if form.block_size else _RULES_OF_ELEMENTS.get(node.op_type))
        shapes, y_shape = [graph.shape(value) for value in node.inputs], graph.shape(place.value)
        if rule is None or (place.axis is not None and not (shapes[takes[0]] and y_shape)):
            return None
        axes = rule(_Move(graph, node, takes, shapes, y_shape or [], place, form))
    if axes is None:
        return None
    taken = (node.inputs[k] if k < len(node.inputs) else None for k in takes)
    return [Place(x, axis) for x, axis in zip(taken, axes, strict=False) if x]


class _Move(NamedTuple):
    """A node that moves elements. If the elements have an axis, the rank of its first input, and that of y, are known."""

    graph: Graph
    node: ir.Node
    takes: Sequence[int]  # the indices of the inputs that elements may come from
    shapes: Sequence[Shape | None]  # of the inputs
    y_shape: Shape
    place: Place  # in y
    form: Format

    @property
    def axis(self) -> int:
        assert self.place.axis is not None
        return self.place.axis

    @property
    def is_anywhere(self) -> bool:
        return self.place.axis is None

    @property
    def x_shape(self) -> Shape:
        return self.shapes[0] or []

    def attribute(self, name: str, default: int) -> int:
        return int(self.node.attributes.get_int(name, default))

    def numbers(self, index: int) -> list[Any] | None:
        """Return the elements of a constant input of one dimension, or None if the input is not a constant."""
        array = self.graph.array(self.node.inputs[index]) if index < len(self.node.inputs) else None
        return None if array is None else array.reshape(-1).tolist()

    def is_whole(self, length: Any) -> bool:
        """Return whether elements keep their places in blocks if their index changes by this length. Without blocks, they have
        to keep their index."""
        return isinstance(length, int) and (length % self.form.block_size if self.form.block_size else length) == 0


# The rules return the axis of each input that has the elements of y, or None.

_Axes = Sequence[int | None] | None


def _concat(move: _Move) -> _Axes:
    """Concat: along the axis of the blocks, all inputs but the last one have whole blocks."""
    axis = move.attribute("axis", 0) % len(move.y_shape)
    lengths = [shape[axis] if shape else None for shape in move.shapes[:-1]]
    return [move.axis] * len(move.shapes) if axis != move.axis or all(map(move.is_whole, lengths)) else None


def _split(move: _Move) -> _Axes:
    """Split: along the axis of the blocks, all outputs but the last one have whole blocks."""
    axis = move.attribute("axis", 0) % len(move.y_shape)
    shapes = [move.graph.shape(y) for y in move.node.outputs[:-1]]
    are_whole = all(shape and move.is_whole(shape[axis]) for shape in shapes)
    return [move.axis] if axis != move.axis or are_whole else None


def _slice(move: _Move) -> _Axes:
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
    is_whole = min(start, end) >= 0 and move.is_whole(start) and (ends_with_x or move.is_whole(end))
    return [move.axis] if step == 1 and is_whole else None


def _gather(move: _Move) -> _Axes:
    """Gather along another axis. Its indices take the place of that axis."""
    indices, axis = move.shapes[1], move.attribute("axis", 0) % len(move.x_shape)
    if indices is None or axis <= move.axis < axis + len(indices):
        return None
    return [move.axis if move.axis < axis else move.axis - len(indices) + 1]


def _transpose(move: _Move) -> _Axes:
    """Transpose: the axis goes along, and the elements along it stay in their order."""
    perm = move.node.attributes.get_ints("perm", range(len(move.y_shape))[::-1])
    return [perm[move.axis]]


def _reshape(move: _Move) -> _Axes:
    """Reshape and the like: the axes behind that of the blocks have as many elements in x as in y. So does that axis itself, or
    it has whole blocks in both."""
    length, inner = move.y_shape[move.axis], move.y_shape[move.axis + 1 :]
    for axis, x_length in enumerate(move.x_shape):
        is_same = x_length is not None and x_length == length
        if _have_same_size(move.x_shape[axis + 1 :], inner) and (is_same or all(map(move.is_whole, (x_length, length)))):
            return [axis]
    return None


def _have_same_size(one: Shape, other: Shape) -> bool:
    if one == other and None not in one:
        return True
    return all(isinstance(length, int) for length in (*one, *other)) and math.prod(one) == math.prod(other)  # type: ignore[arg-type]


def _expand(move: _Move) -> _Axes:
    """Expand: not along the axis of the blocks."""
    axis = move.axis - len(move.y_shape) + len(move.x_shape)
    length = move.x_shape[axis] if axis >= 0 else None
    return [axis] if length is not None and length == move.y_shape[move.axis] else None


def _resize(move: _Move) -> _Axes:
    """Resize to the nearest elements: not along the axis of the blocks. There the scale is 1, also if it follows from two equal
    lengths. With another scale and equal lengths, elements may still move."""
    modes = move.node.attributes
    is_nearest = modes.get_string("mode", "nearest") == "nearest"
    extrapolates = modes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if not is_nearest or extrapolates:
        return None
    if move.is_anywhere:
        return [None]
    if "axes" in modes or "keep_aspect_ratio_policy" in modes:
        return None
    is_short = len(move.node.inputs) == 2  # before opset 11
    index = 1 if is_short else 2
    scales = move.numbers(index)
    has_sizes = len(move.node.inputs) > 3 and move.node.inputs[3] is not None
    is_once = has_sizes or (scales is not None and len(scales) == len(move.x_shape) and scales[move.axis] == 1)
    return _expand(move) if is_once else None


def _tile(move: _Move) -> _Axes:
    """Tile: along the axis of the blocks only if x has whole blocks."""
    repeats = move.numbers(1)
    is_once = repeats is not None and repeats[move.axis] == 1
    return [move.axis] if is_once or move.is_whole(move.x_shape[move.axis]) else None


def _pad(move: _Move) -> _Axes:
    """Pad with zeros, which round to zeros. Along the axis of the blocks there are whole blocks in front of x, and x has whole
    blocks if there are zeros behind it: beside a NaN, zeros in a block may become NaN. Without blocks, x may also be padded
    with another value of the format, or with its own elements, but not along the axis of its scales."""
    if "value" in move.node.attributes or move.shapes[3:]:
        return None
    if move.is_anywhere:
        return [None, None]
    pads, value = move.numbers(1), next(iter(move.node.inputs[2:]), None)
    if pads is None:
        return None
    begin, end = pads[move.axis], pads[move.axis + len(move.x_shape)]
    if not move.form.block_size:
        return None if begin or end else [move.axis, None]
    array = move.graph.array(value)
    has_zeros = value is None or (array is not None and not any(array.tobytes()))
    has_zeros &= move.node.attributes.get_string("mode", "constant") == "constant"
    is_whole = move.is_whole(begin) and (end == 0 or move.is_whole(move.x_shape[move.axis]))
    return [move.axis] if has_zeros and min(pads) >= 0 and is_whole else None


# Rules for formats without blocks. In a block, another value of the block may need a larger step.


def _choice(move: _Move) -> _Axes:
    """Max, Min, Where and Clip: each element of y is one of an input, or NaN if the input has NaN. The inputs broadcast to y.
    An input with one element along the axis of scales is met by all scales."""
    inputs = move.node.inputs
    has_bounds = len(inputs) == 3 and None not in inputs
    if move.node.op_type == "Clip" and (move.node.attributes or not (has_bounds or move.form.is_finite)):
        return None  # a Clip without a bound makes Inf finite
    if move.is_anywhere:
        return [None] * len(move.takes)
    axes: list[int | None] = []
    for shape in (move.shapes[index] for index in move.takes):
        axis = move.axis - len(move.y_shape) + len(shape or ())
        if shape is None or axis < 0 or shape[axis] == 1:
            axes.append(None)
        elif shape[axis] is not None and shape[axis] == move.y_shape[move.axis]:
            axes.append(axis)
        else:
            return None
    return axes


def _scatter(move: _Move) -> _Axes:
    """ScatterElements and ScatterND: an element of y is one of x or of the updates."""
    return [None, None] if move.is_anywhere and move.node.attributes.get_string("reduction", "none") == "none" else None


def _max_pool(move: _Move) -> _Axes:
    """MaxPool: an element of y is one of its channel. ONNX Runtime gives the lowest float32 for a window that has only NaN,
    -Inf or pads. Pads are less than the window, so without dilations each window has an element of x, unless x has none."""
    attributes, lengths = move.node.attributes, (move.graph.shape(move.node.inputs[0]) or [])[2:]
    has_elements = bool(lengths) and all(isinstance(length, int) and length > 0 for length in lengths)
    is_plain = not attributes.get_int("ceil_mode", 0) and set(attributes.get_ints("dilations", [1])) == {1}
    is_in_channel = move.is_anywhere or move.axis < 2
    return [move.place.axis] if has_elements and is_plain and is_in_channel and move.form.is_finite else None


_Rule = Callable[[_Move], _Axes]
_RULES: dict[str, _Rule] = {
    # The format has the magnitude, or the negative, of each of its values, and in a block all magnitudes stay.
    "Abs": lambda move: [move.place.axis] if move.form.has_magnitudes else None,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Neg": lambda move: [move.place.axis] if move.form.has_negatives else None,
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
_RULES_OF_ELEMENTS: dict[str, _Rule] = {
    "Clip": _choice,
    "GlobalMaxPool": _max_pool,
    "Max": _choice,
    "MaxPool": _max_pool,
    "Min": _choice,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    # Some elements become 0, which is a value of each format.
    **dict.fromkeys(("ThresholdedRelu", "Trilu"), lambda move: [move.place.axis]),
    "Where": _choice,
}

# The inputs that the elements of y come from, if these are not all inputs, or the first ones.
_TAKES = {"Pad": (0, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2), "Where": (1, 2)}
