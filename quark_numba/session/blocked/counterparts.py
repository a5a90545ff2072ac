"""Counterparts on blocks of channels: for the nodes that ONNX Runtime's NchwcTransformer replaces, and for regions, with the
reasons why a node has none.

Each function appends the counterpart of a node, or raises `NotRewrittenError` without appending anything that other nodes could
use."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...declaration.reasons import NotRewrittenError, stays_if
from ...element_types import FLOAT32
from ...models.protos import attributes_of
from ...region.calls import CHANNEL_AXIS
from ...region.granularity import OPERAND
from ...region.key import Program, parse
from ...region.operators import OPERATORS
from ...region.step_operators import ROUND_TRIP
from .arrays import NCHWC, constant_in_blocks, filter_in_blocks, padded
from .codes import convolve_codes, look_up
from .tensors import ALIGNMENT, NOT_ALIGNED, BlockedTensors, NotInBlocksError

(REGION,) = OPERATORS

_log = logging.getLogger(__name__)

# Elementwise operators that work on blocked tensors of one shape without a change, and return 0 for 0.
_ELEMENTWISE = {("", name) for name in ("Add", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sub", "Tanh")}
_ELEMENTWISE.add(("com.microsoft", "QuickGelu"))
# Elementwise operators that work on blocked tensors too, but do not return 0 for 0.
_ELEMENTWISE_NOT_OF_ZERO = {("", name) for name in ("Clip", "HardSigmoid", "Sigmoid")}

# The axis of channels, as attributes say it.
_CHANNELS = (1, -3)

# Pools that exist on blocks under the same name. AveragePool also exists on blocks, but adds in another order there.
_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "MaxPool")


# The most rows or columns of an image that is enlarged around the centers of pixels.
_MOST_PIXELS = 1 << 11


def _set_attributes(node: onnx.NodeProto, **attributes: Any) -> None:
    """Set these attributes of a node, and leave its other attributes unchanged."""
    for attribute in [each for each in node.attribute if each.name in attributes]:
        node.attribute.remove(attribute)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())


def _conv(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    """Replace a convolution by one of codes, or else as ONNX Runtime's NchwcTransformer does, under the same conditions."""
    try:
        convolve_codes(tensors, node)
        return
    except NotRewrittenError as error:
        _log.debug("Conv %r is not computed on codes: %s", node.name, error)
    x, w, *bias = node.input
    outer, inner, *_ = tensors.dims_of_weights(node)
    lanes = tensors.lanes
    group = attributes_of(node).get("group", 1)
    is_depthwise = inner == 1 and outer == group > 1
    reads_blocks = not is_depthwise
    if group > 1:
        are_blocks = is_depthwise or (inner % lanes == 0 and outer % (group * lanes) == 0)
        stays_if(outer % ALIGNMENT or not are_blocks, "its groups are not whole blocks")
        x = tensors.in_blocks(x, inner * group, zeros=reads_blocks)
        group = -(-outer // lanes) * lanes if is_depthwise else group
    elif inner < lanes:  # with so few channels the convolution reads ONNX's layout
        tensors.reorder_output(x)
        reads_blocks = False
    else:
        stays_if(inner % ALIGNMENT, NOT_ALIGNED)
        x = tensors.in_blocks(x, inner, zeros=True)
    w = tensors.constant(w, f"filter {reads_blocks}", lambda array: filter_in_blocks(array, lanes, reads_blocks))
    bias = [tensors.constant(name, "bias", lambda array: padded(array, 0, lanes)) for name in bias]
    copy = tensors.replace(node, [x, w, *bias], NCHWC, outer, False)
    copy.op_type = "Conv"  # a FusedConv becomes a Conv too
    _set_attributes(copy, group=group)


def _pool(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    x = tensors.already_in_blocks(node.input[0])
    stays_if(len(node.output) > 1, "it has a second output, of indices")
    attributes = attributes_of(node)
    has_auto_pad = attributes.get("auto_pad", "NOTSET") != "NOTSET"
    stays_if(attributes.get("ceil_mode") or has_auto_pad, "it has ceil_mode or auto_pad")
    is_number = x.is_number or node.input[0] in tensors.grids
    stays_if("Max" in node.op_type and not is_number, "its input may be NaN, which ONNX Runtime's max pool on blocks ignores")
    tensors.replace(node, [x.name], NCHWC, x.channels, x.has_zeros)
    tensors.offer_codes(node.output[0])


def _move_blocks(
    tensors: BlockedTensors, node: onnx.NodeProto, operands: Sequence[str], rest: Sequence[str], channels: Sequence[int]
) -> onnx.NodeProto:
    """Return the counterpart of a node that moves whole blocks of channels of its first inputs, the operands. `rest` are its
    other inputs, and `channels` the number of channels of each output. It moves codes if one operand has codes, and all others
    can be quantized to codes alike."""
    codes = [tensors.codes.get(name) or tensors.offered.get(name) for name in operands]
    has_codes = node.output[0] in tensors.grids and all(codes) and any(name in tensors.codes for name in operands)
    names = [code if has_codes and code else tensors.tensors[name].name for name, code in zip(operands, codes, strict=True)]
    copy = tensors.replace(node, [*names, *rest], node.domain, channels, True)
    if has_codes:
        for output, moved, count in zip(node.output, copy.output, channels, strict=True):
            tensors.keep_codes(output, moved, count)
    return copy


def _concat(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    operands = [tensors.already_in_blocks(name) for name in node.input]
    are_whole = all(operand.channels % tensors.lanes == 0 for operand in operands)
    joins_channels = attributes_of(node)["axis"] in _CHANNELS
    stays_if(not (are_whole and joins_channels), "it does not join whole blocks of channels")
    copy = _move_blocks(tensors, node, node.input, [], [sum(operand.channels for operand in operands)])
    _set_attributes(copy, axis=1)


def _split(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    x, *rest = node.input
    tensors.already_in_blocks(x)
    attributes = attributes_of(node)
    stays_if(attributes.get("axis", 0) not in _CHANNELS, "it does not split channels")
    constant = tensors.constants.get(rest[0]) if rest else None
    lengths: list[int] = (attributes.get("split") or []) if constant is None else numpy_helper.to_array(constant).tolist()
    stays_if(not lengths or any(length % tensors.lanes for length in lengths), "it does not split between blocks of channels")
    _set_attributes(_move_blocks(tensors, node, [x], rest, lengths), axis=1)


def _slice(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    x, *rest = node.input
    channels = tensors.already_in_blocks(x).channels
    parameters = [numpy_helper.to_array(tensors.constants[name]) for name in rest if name in tensors.constants]
    stays_if(len(parameters) not in (3, 4) or len(parameters) != len(rest), "it does not take a known part")
    (start, *others), (end, *_), (axis, *_), *steps = (parameter.tolist() for parameter in parameters)
    stays_if(others or axis not in _CHANNELS or steps not in ([], [[1]]), "it does not take consecutive channels")
    first, last, _ = slice(start, end).indices(channels)
    stays_if(first % tensors.lanes or last % tensors.lanes or first >= last, "it does not take whole blocks of channels")
    names = [tensors.add_constant(np.array([number])) for number in (first, last, 1)]
    _move_blocks(tensors, node, [x], names, [last - first])


def _elementwise(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    constants = [tensors.constants[name] for name in node.input if name in tensors.constants]
    names = [name for name in node.input if name and name not in tensors.constants]
    operands = {name: tensors.already_in_blocks(name) for name in names}
    shapes = [tensors.shapes.get(name) for name in names]
    is_known = len(names) == 1 or all(shape is not None and None not in shape for shape in shapes)
    are_equal = bool(names) and all(shape == shapes[0] for shape in shapes)
    stays_if(not (is_known and are_equal), "its inputs are not known to have one shape")
    are_scalars = all(np.prod(constant.dims) == 1 and len(constant.dims) <= 4 for constant in constants)
    stays_if(not are_scalars, "it has a constant of several elements")
    inputs = [operands[name].name if name in operands else name for name in node.input]
    returns_zeros = (node.domain, node.op_type) in _ELEMENTWISE and not constants
    has_zeros = returns_zeros and all(operand.has_zeros for operand in operands.values())
    tensors.replace(node, inputs, node.domain, operands[names[0]].channels, has_zeros)


def _transpose(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    """Replace a Transpose to channels last by a reorder to channels last."""
    x = tensors.already_in_blocks(node.input[0])
    stays_if(attributes_of(node).get("perm") != [0, 2, 3, 1], "it does not move the channels to the last axis")
    tensors.append("ReorderOutput", [x.name], node.output[0], channels=x.channels, channels_last=1)


def _resize(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    """Replace a Resize that repeats each element a whole number of times along height and width."""
    x = tensors.already_in_blocks(node.input[0])
    attributes = attributes_of(node)
    given = ("mode", "nearest"), ("coordinate_transformation_mode", "half_pixel"), ("nearest_mode", "round_prefer_floor")
    mode, coordinates, rounding = (attributes.get(*each) for each in given)
    is_asymmetric = (coordinates, rounding) == ("asymmetric", "floor")
    is_centered = coordinates == "half_pixel" and rounding in ("round_prefer_floor", "round_prefer_ceil")
    repeats = mode == "nearest" and (is_asymmetric or is_centered) and "axes" not in attributes and len(node.input) == 3
    stays_if(not repeats, "it does not repeat elements")
    scales = numpy_helper.to_array(tensors.constants[node.input[2]]) if node.input[2] in tensors.constants else np.zeros(0)
    are_whole = scales.shape == (4,) and (scales[:2] == 1).all() and (scales >= 1).all() and (scales % 1 == 0).all()
    stays_if(not are_whole, "it does not repeat elements a known, whole number of times")
    if is_centered:
        # Pixel i of y takes the pixel of x nearest to (i + 1/2) / scale - 1/2. That is less than 1/2 from i // scale, by at
        # least 1 / (2 * scale) > 2^-6. The rounding errors of float32 are smaller if all numbers are below 2^16.
        lengths = [*(tensors.shapes.get(node.input[0]) or [])[2:]]
        is_small = len(lengths) == 2 and all(length and length <= _MOST_PIXELS for length in lengths) and scales.max() < 32
        stays_if(not is_small, "its images are not known to be small")
    copy = tensors.replace(node, [x.name], NCHWC, x.channels, x.has_zeros)
    copy.op_type = "Upsample"
    del copy.attribute[:]
    _set_attributes(copy, scales=scales.astype(np.int64).tolist())
    tensors.offer_codes(node.output[0])


def _region(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    attributes = attributes_of(node)
    program = parse(attributes["program"])
    stays_if(attributes.get("lanes"), "it is in the blocked layout already")
    try:
        look_up(tensors, node, program)
        return
    except NotRewrittenError as error:
        _log.debug("Region %r is not part of a convolution of codes: %s", node.name, error)
    _check_program(program)
    # The other inputs are scales, zero points and scalars, which have no layout.
    has_layout = [
        role == OPERAND and not declared.is_scalar for declared, role in zip(program.inputs, program.roles, strict=True)
    ]
    operands = [*dict.fromkeys(itertools.compress(node.input, has_layout))]
    channels = _common_channels(tensors, operands)
    in_blocks = {name: _operand_in_blocks(tensors, name, channels) for name in operands}
    inputs = [in_blocks[name] if yes else name for name, yes in zip(node.input, has_layout, strict=True)]
    copy = tensors.replace(node, inputs, node.domain, channels, True)
    padding = {"channels": channels} if channels % tensors.lanes else {}
    _set_attributes(copy, lanes=tensors.lanes, **padding)
    y = node.output[0]
    tensors.tensors[y] = tensors.tensors[y]._replace(is_number=_is_number(tensors, node, program))
    tensors.offer_codes(y)


def _check_program(program: Program) -> None:
    """Raise NotRewrittenError unless a region with this program can work on blocks."""
    stays_if(program.block_axis not in (0, CHANNEL_AXIS), "it has blocks along an axis other than that of the channels")
    stays_if(any(role < 0 for role in program.roles), "it has scales along an axis")
    types = {declared.element_type for declared, role in zip(program.inputs, program.roles, strict=True) if role == OPERAND}
    stays_if(types - {FLOAT32}, "it casts an input")


def _common_channels(tensors: BlockedTensors, operands: Sequence[str]) -> int:
    """Return the common number of channels of a region's inputs with more than one channel. Raise NotRewrittenError if the
    inputs differ in this number or it is not known, if no such input is in blocks, or if ONNX Runtime cannot reorder one."""
    several = {name: channels for name in operands if (channels := tensors.channels(name)) != 1}
    if several.keys().isdisjoint(tensors.tensors):
        raise NotInBlocksError
    stays_if(len({*several.values()}) > 1, "its inputs have different numbers of channels")
    channels = next(iter(several.values()))
    reordered = several.keys() - tensors.tensors.keys() - tensors.constants.keys()
    stays_if(reordered and channels % ALIGNMENT, NOT_ALIGNED)
    return channels


def _operand_in_blocks(tensors: BlockedTensors, name: str, channels: int) -> str:
    """Return the name of a region's input in blocks. An input with one channel broadcasts, and remains in ONNX's layout."""
    if name in tensors.constants:
        return tensors.constant(name, "region", lambda array: constant_in_blocks(array, tensors.lanes))
    if tensors.channels(name) == 1:
        tensors.reorder_output(name)
        return name
    return tensors.in_blocks(name, channels)


def _is_number(tensors: BlockedTensors, node: onnx.NodeProto, program: Program) -> bool:
    """Return whether a region never returns NaN. That is so if its last step returns integers times finite scales, because NaN
    becomes the lowest integer."""
    last = program.steps[-1]
    if last.operator != ROUND_TRIP:
        return False
    _, scale, zero_point = last.present
    name = node.input[scale]
    is_finite = name in tensors.constants and bool(np.isfinite(numpy_helper.to_array(tensors.constants[name])).all())
    return is_finite and program.inputs[zero_point].element_type.is_integer


# The functions that write a node's counterpart on blocks, by domain and op_type.
HANDLERS: dict[tuple[str, str], Callable[[BlockedTensors, onnx.NodeProto], None]] = {
    ("", "Conv"): _conv,
    ("com.microsoft", "FusedConv"): _conv,
    ("", "Concat"): _concat,
    ("", "Resize"): _resize,
    ("", "Slice"): _slice,
    ("", "Split"): _split,
    ("", "Transpose"): _transpose,
    **{("", name): _pool for name in _POOLS},
    **dict.fromkeys((*_ELEMENTWISE, *_ELEMENTWISE_NOT_OF_ZERO), _elementwise),
    (REGION.domain, REGION.name): _region,
}
