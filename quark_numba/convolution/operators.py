"""The declarations of `IntegerConv` and `IntegerConvToCodes`: inputs, and attributes with their texts and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..declaration import Attribute, Operator, Parameter, Tensor, known
from ..element_types import FLOAT32, INT8, UINT8
from ..linear.versions import OWN_DOMAIN
from .calls import check_attributes, check_shapes, check_table, convolve_codes, convolve_to_codes
from .granularity import FAULTS, FAULTS_OF_TABLE, output_length
from .key import LANES


def _infer_codes(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
    table = inputs[4].shape if inputs[4] else None
    check_table(known(table, (256,)))
    return [Tensor(UINT8, tensor.shape) for tensor in _infer(inputs, attributes)]


def _infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
    window, lanes, group = check_attributes(attributes), attributes["lanes"], attributes["group"]
    x, w, scale, bias = (tensor.shape if tensor else None for tensor in inputs[:4])
    inner = (w[1] if w and len(w) == 4 else None) or lanes
    outer = (w[0] if w and len(w) == 4 else None) or lanes * group
    # Where a dimension is not known, one that fits stands for it.
    fitting = -(-inner // lanes) * lanes if group == 1 else inner * group
    large = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(window.kernel, window.dilations, strict=True)]
    stand_ins = (1, fitting, *large), (outer, inner, *window.kernel), (outer,), (outer,)
    shapes = [known(shape, instead) for shape, instead in zip((x, w, scale, bias), stand_ins, strict=True)]
    check_shapes(window, attributes, shapes)
    if x is None:
        return [Tensor(FLOAT32, None)]
    lengths = [None if x[2 + axis] is None else output_length(window, axis, shapes[0][2 + axis]) for axis in range(2)]
    channels = None if not w or w[0] is None else -(-w[0] // lanes) * lanes
    return [Tensor(FLOAT32, [x[0], channels, *lengths])]


_LAYOUT = "In the layout of x. Channels are added up to a whole block"

_CONV = Operator(
    family="convolution",
    domain=OWN_DOMAIN,
    name="IntegerConv",
    operation="convolve",
    doc="A convolution of 8-bit codes in ONNX Runtime's blocked layout: y = sum((code(x) - x_zero_point) * w) * scale + "
    "bias. The codes of float32 are saturate(round(x / x_scale) + x_zero_point).",
    types={"T1": (FLOAT32, UINT8), "T2": (INT8,), "T3": (FLOAT32,)},
    inputs=(
        Parameter("x", "T1", "Of shape (N, C, H, W), in memory (N, C / lanes, H, W, lanes). uint8 is codes."),
        Parameter("w", "T2", "The weights, as ONNX's Conv has them: (M, C / group, rows, columns)."),
        Parameter("scale", "T3", "Of shape (M,)."),
        Parameter("bias", "T3", "Of shape (M,)."),
    ),
    outputs=(Parameter("y", "T3", f"{_LAYOUT}; they are 0."),),
    attributes=(
        Attribute("lanes", 16, "The channels of a block.", values=LANES),
        Attribute("kernel_shape", None, "As in ONNX's Conv.", "INTS"),
        Attribute("x_scale", 1.0, "The scale of the codes, a power of two.", "FLOAT"),
        Attribute("x_zero_point", 0, "The zero point of the codes."),
        Attribute("strides", [1, 1], "As in ONNX's Conv.", "INTS"),
        Attribute("dilations", [1, 1], "As in ONNX's Conv.", "INTS"),
        Attribute("pads", [0, 0, 0, 0], "As in ONNX's Conv.", "INTS"),
        Attribute("group", 1, "As in ONNX's Conv. With several groups, each has whole blocks of channels."),
        Attribute("relu", 0, "Whether results below 0 become 0.", values=(0, 1)),
    ),
    call=convolve_codes,
    infer=_infer,
    faults=FAULTS,
    formats={"uint8": UINT8},
    column="T3",
)
OPERATORS = (
    _CONV,
    replace(
        _CONV,
        name="IntegerConvToCodes",
        operation="convolve_to_codes",
        doc="An IntegerConv whose results v become codes of a function of codes: y = table[saturate(round(v / y_scale) + "
        "y_zero_point)].",
        types={**_CONV.types, "T4": (UINT8,)},
        inputs=(*_CONV.inputs, Parameter("table", "T4", "Of shape (256,).")),
        outputs=(Parameter("y", "T4", f"{_LAYOUT}; they have the code of 0."),),
        attributes=(
            *_CONV.attributes,
            Attribute("y_scale", 1.0, "A power of two.", "FLOAT"),
            Attribute("y_zero_point", 0, "0..255."),
        ),
        call=convolve_to_codes,
        infer=_infer_codes,
        faults=FAULTS | FAULTS_OF_TABLE,
        column="T4",
    ),
)
