"""Counterparts on blocks of channels: for the nodes that ONNX Runtime's NchwcTransformer replaces, and for regions.

Each function appends the counterpart of a node. Or it raises `NotRewrittenError`, and then it has appended nothing that other
nodes could see."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..declaration.reasons import NotRewrittenError, stays_if
from ..element_types import FLOAT32
from ..region.calls import CHANNEL_AXIS
from ..region.key import ROUND_TRIP, Program, parse
from ..region.operators import OPERATORS
from .blocked_tensors import ALIGNMENT, NOT_ALIGNED, NOT_IN_BLOCKS, BlockedTensors, perm
from .blocks import NCHWC, constant_in_blocks, filter_in_blocks, padded

(REGION,) = OPERATORS

# Elementwise operators that work on blocked tensors of one shape without a change, and return 0 for 0.
_ELEMENTWISE = {("", name) for name in ("Add", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sub", "Tanh")}
_ELEMENTWISE.add(("com.microsoft", "QuickGelu"))
# Elementwise operators that work on blocked tensors too, but do not return 0 for 0.
_ELEMENTWISE_NOT_OF_ZERO = {("", name) for name in ("Clip", "HardSigmoid", "Sigmoid")}

# Pools that exist on blocks under the same name. AveragePool also exists on blocks, but adds in another order there.
_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "MaxPool")


def _conv(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    """Replace a convolution as ONNX Runtime's NchwcTransformer does, under the same conditions."""
    inputs = [name for name in node.input if name]
    if len(inputs) != len(node.input) or not 2 <= len(inputs) <= 3 or any(name not in tensors.constants for name in inputs[1:]):
        raise NotRewrittenError("its weights are not constants")
    weights = tensors.constants[inputs[1]]
    if weights.data_type != FLOAT32.number or len(weights.dims) != 4:
        raise NotRewrittenError("its weights are not float32, or do not have four dimensions")
    outer, inner, lanes = weights.dims[0], weights.dims[1], tensors.lanes
    group = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    reads_blocks = True
    if group > 1:
        is_depthwise = inner == 1 and outer == group
        if outer % ALIGNMENT or not (is_depthwise or (inner % lanes == 0 and outer % (group * lanes) == 0)):
            raise NotRewrittenError("its groups are not whole blocks")
        reads_blocks = not is_depthwise
        x = tensors.in_blocks(inputs[0], inner * group, zeros=not is_depthwise)
        group = -(-outer // lanes) * lanes if is_depthwise else group
    elif inner < lanes:  # with so few channels the convolution reads ONNX's layout
        tensors.reorder_output(inputs[0])
        x, reads_blocks = inputs[0], False
    elif inner % ALIGNMENT:
        raise NotRewrittenError(NOT_ALIGNED)
    else:
        x = tensors.in_blocks(inputs[0], inner, zeros=True)
    w = tensors.constant(inputs[1], f"filter {reads_blocks}", lambda array: filter_in_blocks(array, lanes, reads_blocks))
    bias = [tensors.constant(name, "bias", lambda array: padded(array, 0, lanes)) for name in inputs[2:]]
    copy = tensors.replace(node, [x, w, *bias], NCHWC, outer, False)
    copy.op_type = "Conv"  # a FusedConv becomes a Conv too
    for attribute in copy.attribute:
        if attribute.name == "group":
            attribute.i = group


def _pool(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    x = tensors.already_in_blocks(node.input[0])
    stays_if(len(node.output) > 1, "it has a second output, of indices")
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if attributes.get("ceil_mode", 0) or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise NotRewrittenError("it has ceil_mode or auto_pad")
    stays_if("Max" in node.op_type and not x.is_number, "its input may be NaN, which ONNX Runtime's max pool on blocks ignores")
    tensors.replace(node, [x.name], NCHWC, x.channels, x.has_zeros)


def _concat(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    operands = [tensors.already_in_blocks(name) for name in node.input]
    if helper.get_node_attr_value(node, "axis") not in (1, -3) or any(operand.channels % tensors.lanes for operand in operands):
        raise NotRewrittenError("it does not join whole blocks of channels")
    channels = sum(operand.channels for operand in operands)
    copy = tensors.replace(node, [operand.name for operand in operands], node.domain, channels, True)
    del copy.attribute[:]
    copy.attribute.append(helper.make_attribute("axis", 1))


def _elementwise(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    constants = [tensors.constants[name] for name in node.input if name in tensors.constants]
    names = [name for name in node.input if name and name not in tensors.constants]
    operands = {name: tensors.already_in_blocks(name) for name in names}
    shapes = [tensors.shapes.get(name) for name in names]
    is_known = len(names) == 1 or all(shape is not None and None not in shape for shape in shapes)
    if not names or not is_known or any(shape != shapes[0] for shape in shapes):
        raise NotRewrittenError("its inputs are not known to have one shape")
    if any(np.prod(constant.dims) != 1 or len(constant.dims) > 4 for constant in constants):
        raise NotRewrittenError("it has a constant of several elements")
    inputs = [operands[name].name if name in operands else name for name in node.input]
    returns_zeros = (node.domain, node.op_type) in _ELEMENTWISE and not constants
    has_zeros = returns_zeros and all(operand.has_zeros for operand in operands.values())
    tensors.replace(node, inputs, node.domain, operands[names[0]].channels, has_zeros)


def _transpose(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    """Replace a Transpose to channels last by a reorder to channels last."""
    x = tensors.already_in_blocks(node.input[0])
    stays_if(perm(node) != [0, 2, 3, 1], "it does not move the channels to the last axis")
    tensors.append("ReorderOutput", [x.name], node.output[0], channels=x.channels, channels_last=1)


def _resize(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    """Replace a Resize that repeats each element a whole number of times along height and width."""
    x = tensors.already_in_blocks(node.input[0])
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    modes = attributes.get("mode", b"nearest"), attributes.get("coordinate_transformation_mode"), attributes.get("nearest_mode")
    if modes != (b"nearest", b"asymmetric", b"floor") or "axes" in attributes or len(node.input) != 3:
        raise NotRewrittenError("it does not repeat elements")
    scales = numpy_helper.to_array(tensors.constants[node.input[2]]) if node.input[2] in tensors.constants else np.zeros(0)
    if scales.shape != (4,) or not (scales[:2] == 1).all() or (scales < 1).any() or (scales % 1).any():
        raise NotRewrittenError("it does not repeat elements a known, whole number of times")
    copy = tensors.replace(node, [x.name], NCHWC, x.channels, x.has_zeros)
    copy.op_type = "Upsample"
    del copy.attribute[:]
    copy.attribute.append(helper.make_attribute("scales", scales.astype(np.int64).tolist()))


def _region(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    program = parse(attributes["program"].s.decode())
    if program.block_axis not in (0, CHANNEL_AXIS):
        raise NotRewrittenError("it has blocks along an axis other than that of the channels")
    stays_if(any(axis is not None and axis < 0 for axis in program.axes), "it has scales along an axis")
    stays_if("lanes" in attributes and attributes["lanes"].i, "it is in the blocked layout already")
    roles = list(zip(node.input, program.inputs, program.axes, strict=True))
    stays_if(any(declared.element_type is not FLOAT32 for _, declared, axis in roles if axis is None), "it casts an input")
    operands = dict.fromkeys(name for name, declared, axis in roles if axis is None and not declared.is_scalar)
    channels = {name: tensors.channels(name) for name in operands}
    stays_if(not any(name in tensors.tensors and channels[name] > 1 for name in operands), NOT_IN_BLOCKS)
    counts = set(channels.values()) - {1}
    stays_if(len(counts) != 1, "its inputs have different numbers of channels")
    (count,) = counts
    added = (name for name in operands if name not in tensors.tensors and name not in tensors.constants)
    stays_if(count % ALIGNMENT and any(channels[name] > 1 for name in added), NOT_ALIGNED)
    names = {}
    for name in operands:
        if name in tensors.constants:
            names[name] = tensors.constant(name, "region", lambda array: constant_in_blocks(array, tensors.lanes))
        elif channels[name] > 1:
            names[name] = tensors.in_blocks(name, count)
        else:
            tensors.reorder_output(name)  # a tensor of one channel broadcasts
            names[name] = name
    inputs = [names[name] if axis is None and not declared.is_scalar else name for name, declared, axis in roles]
    copy = tensors.replace(node, inputs, node.domain, count, True)
    copy.attribute.append(helper.make_attribute("lanes", tensors.lanes))
    if count % tensors.lanes:
        copy.attribute.append(helper.make_attribute("channels", count))
    y = node.output[0]
    tensors.tensors[y] = tensors.tensors[y]._replace(is_number=_is_number(tensors, node, program))


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
    ("", "Transpose"): _transpose,
    **{("", name): _pool for name in _POOLS},
    **dict.fromkeys((*_ELEMENTWISE, *_ELEMENTWISE_NOT_OF_ZERO), _elementwise),
    (REGION.domain, REGION.name): _region,
}
