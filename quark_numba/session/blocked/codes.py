"""Convolutions of codes on blocks of channels: which convolutions become such, from how many multiplications on, and the
reasons why others do not.

A float32 convolution of 8-bit codes times a power of two by weights of that kind is exact if its sums stay below 2^24. So it
can be computed on codes, with the same bits. On processors that multiply four codes and add the products in one instruction,
that takes a third of the time."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from ...convolution.operators import OPERATORS
from ...declaration.reasons import require, stays_if
from ...models.protos import attributes_of
from ...region.calls import run_region
from ...region.key import Program
from .grids import exact_conv, grid_of_step
from .tensors import ALIGNMENT, NOT_ALIGNED, BlockedTensors

_CONV, _CONV_TO_CODES = OPERATORS

# The fewest multiplications for each element of x, with which a convolution of codes is faster. On a Xeon with AVX-512, an
# element is encoded in 0.25 ns, and a multiplication takes 0.004 ns instead of 0.012.
_FEWEST_PRODUCTS = 24

_WINDOW = {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]}


def convolve_codes(tensors: BlockedTensors, node: onnx.NodeProto) -> None:
    """Replace a convolution by `IntegerConv`. Raise NotRewrittenError unless that gives the same bits, and is faster."""
    x = node.input[0]
    grid = require(tensors.grids.get(x), "its input is not known to be 8-bit codes times a power of two")
    attributes = attributes_of(node)
    activation = attributes.get("activation", "")
    stays_if(activation not in ("", "Relu"), "it has an activation other than Relu")
    stays_if(attributes.get("auto_pad", "NOTSET") != "NOTSET", "it has auto_pad")
    outer, inner, *kernel = tensors.dims_of_weights(node)
    group, lanes = attributes.get("group", 1), tensors.lanes
    window = {name: [*attributes.get(name, default)] for name, default in _WINDOW.items()}
    stays_if(min(window["pads"]) < 0, "it has negative pads")
    if group > 1:
        stays_if(inner % lanes or outer % (group * lanes), "its groups are not whole blocks")
    else:
        stays_if(inner % ALIGNMENT, NOT_ALIGNED)
        stays_if(inner < lanes, "its input is not in blocks, as it has too few channels")
    products = outer // group * math.prod(kernel)
    is_small = x not in tensors.codes and products < _FEWEST_PRODUCTS * math.prod(window["strides"])
    stays_if(is_small, "it has too few multiplications")
    stays_if(not _has_dot_products(lanes), "the processor has no instruction that adds products of four codes")
    bias = tensors.array(node.input[2]) if len(node.input) > 2 else np.zeros(outer, np.float32)
    exact = exact_conv(grid, tensors.array(node.input[1]), bias)
    inputs = [tensors.codes.get(x) or tensors.in_blocks(x, inner * group)]
    inputs += [tensors.add_constant(array) for array in (exact.codes, exact.scales, bias)]
    copy = tensors.replace(node, inputs, _CONV.domain, outer, True)
    copy.op_type = _CONV.name
    del copy.attribute[:]
    values = {
        "lanes": lanes,
        "kernel_shape": kernel,
        "x_scale": grid.scale,
        "x_zero_point": grid.zero_point,
        **window,
        "group": group,
        "relu": int(bool(activation)),
    }
    copy.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
    tensors.convolutions[node.output[0]] = copy


def look_up(tensors: BlockedTensors, node: onnx.NodeProto, program: Program) -> None:
    """Let a convolution of codes return the codes of a region's result. The convolution has no other user, and the region first
    rounds its result to a grid. So what follows is a function of 256 codes, which becomes a table. Raise NotRewrittenError if
    there is no such convolution, or if the processor is slow at looking up codes."""
    streams = program.streams
    conv = tensors.convolutions.get(node.input[streams[0]]) if len(streams) == 1 else None
    conv, x = require(conv, "its input is not the result of one"), node.input[streams[0]]
    stays_if(tensors.uses[x] != 1, "another node uses the result of the convolution")
    others = [name for number, name in enumerate(node.input) if number != streams[0]]
    stays_if(any(tensors.number(name) is None for name in others), "it has inputs that are not constants")
    uses = [step for step in program.steps if streams[0] in step.operands]
    rounds_first = len(uses) == 1 and uses[0].operands.count(streams[0]) == 1
    given = grid_of_step(program, uses[0], node.input, tensors.number) if rounds_first else None
    given = require(given, "it does not round its input to 8-bit codes times a power of two")
    result = require(tensors.grids.get(node.output[0]), "its result is not 8-bit codes times a power of two")
    stays_if(not _has_lookup(), "the processor has no instruction that looks up codes")
    numbers = (np.arange(256) - given.zero_point).astype(np.float32) * np.float32(given.scale)
    inputs = [numbers if name == x else tensors.array(name) for name in node.input]
    table = run_region(*inputs, program=program.text) / np.float32(result.scale) + np.float32(result.zero_point)
    conv.op_type = _CONV_TO_CODES.name
    conv.input.append(tensors.add_constant(table.astype(np.uint8)))
    values = {"y_scale": given.scale, "y_zero_point": given.zero_point}
    conv.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
    channels = tensors.tensors.pop(x).channels
    tensors.keep_codes(node.output[0], conv.output[0], channels)


def _has_dot_products(lanes: int) -> bool:
    from ...convolution.vectors import HAS_DOT_PRODUCTS  # which imports Numba

    return HAS_DOT_PRODUCTS.get(lanes, False)


def _has_lookup() -> bool:
    from ...convolution.vectors import HAS_LOOKUP

    return HAS_LOOKUP
