"""The operators of QONNX, which Brevitas and QKeras write for AMD FINN and hls4ml: domains, older ones among them, names,
inputs, and attributes with their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declaration import AnyOperand, Attribute, FakeQuantize, Operator, Parameter
from ..fake_quantization.key import FORMS
from ..fake_quantization.operators import ROUNDING_MODE, number, operator
from ..tables.key import COUNT
from ..tables.operators import operator as table_operator

_DOMAIN = "qonnx.custom_op.general"

# The domain of ONNX's operators on tensors with their channels on the last axis, which `optimize` rewrites to ONNX's.
CHANNELS_LAST = "qonnx.custom_op.channels_last"

# The domains of older models.
_OLDER_DOMAINS = ("onnx.brevitas", "finn.custom_op.general", "finn")

_SIGNED = Attribute("signed", 1, "Whether codes have a sign.")
_NARROW = Attribute("narrow", 0, "Whether the lowest code of signed formats, or the highest code of others, is left out.")
_ONE = "One element."
_BROADCAST = "It broadcasts to x."


def _quantizer(name: str, form: str, inputs: Sequence[Parameter], attributes: Sequence[Attribute], **others: str) -> Operator:
    """Return an operator whose inputs and attributes are named like the parameters of the form."""

    def meaning(given: Sequence[AnyOperand], values: Mapping[str, Any]) -> FakeQuantize[AnyOperand]:
        x, *operands = given
        named = {**values, **{each.name: operand for each, operand in zip(inputs, operands, strict=True)}}
        parameters = {parameter: named[parameter] for parameter in FORMS[form].parameters}
        return FakeQuantize(x, form, values.get("rounding_mode", "ROUND"), parameters)

    return operator(_DOMAIN, name, inputs, attributes, meaning, form=form, **others)


def _integer_quantizer(name: str) -> Operator:
    zero_point = number("zero_point", f"{_BROADCAST} Added before rounding.")
    inputs = number("scale", _BROADCAST), zero_point, number("bit_width", _ONE)
    doc = "y = (round(clamp(x / scale + zero_point)) - zero_point) * scale. See quark_numba.fake_quantize."
    return _quantizer(name, "integer", inputs, (_SIGNED, _NARROW, ROUNDING_MODE), doc=doc)


_BIPOLAR_QUANT = _quantizer(
    "BipolarQuant",
    "bipolar",
    (number("scale", _BROADCAST),),
    (),
    doc="y = scale where x >= 0, else -scale.",
    format_name="bipolar",
)


def _trunc(inputs: Sequence[AnyOperand | None], attributes: Mapping[str, Any]) -> FakeQuantize[Any]:
    """Return the meaning of Trunc. The number of inputs determines the version: version 1 has no out_scale."""
    x, scale, zero_point, in_bits, fifth, sixth = (*inputs, None)[:6]
    out_scale, out_bits = (float("nan"), fifth) if sixth is None else (fifth, sixth)
    operands = {"scale": scale, "zero_point": zero_point, "in_bits": in_bits, "out_scale": out_scale, "out_bits": out_bits}
    flags = {name: attributes[name] for name in ("signed", "narrow")}
    return FakeQuantize(x, "truncation", attributes["rounding_mode"], operands | flags)


_TRUNC = operator(
    _DOMAIN,
    "Trunc",
    (
        number("scale", _BROADCAST),
        number("zero_point", _BROADCAST),
        number("in_bits", _ONE),
        number("out_scale", "Of the result; it broadcasts to x. Version 1 lacks it, and has out_bits here."),
        number("out_bits", _ONE, "optional"),
    ),
    (Attribute("rounding_mode", "FLOOR", ROUNDING_MODE.doc, "STRING"), _SIGNED, _NARROW),
    _trunc,
    form="truncation",
    doc="y is x with fewer binary places: by in_bits - out_bits in version 1, and by out_scale / scale in version 2.",
)


_FLOAT_QUANT = _quantizer(
    "FloatQuant",
    "minifloat",
    (
        number("scale", _BROADCAST),
        *(number(name, _ONE) for name in ("exponent_bits", "mantissa_bits", "exponent_bias", "max_val")),
    ),
    (
        Attribute("has_inf", 0, "Whether values beyond the largest one become Inf, without saturation."),
        Attribute("has_nan", 0, "Whether they become NaN, without saturation and Inf."),
        Attribute("has_subnormal", 1, "Without effect: there are subnormals."),
        Attribute("saturation", 1, "Whether they become the largest value."),
        ROUNDING_MODE,
    ),
    doc="y is x rounded to a float format of any widths. See quark_numba.minifloat_quantize_dequantize.",
    format_name="minifloats",
)

_MULTI_THRESHOLD = table_operator(
    _DOMAIN,
    "MultiThreshold",
    COUNT,
    (
        Attribute("out_scale", 1.0, "The factor of the count.", "FLOAT"),
        Attribute("out_bias", 0.0, "What is added to the product.", "FLOAT"),
        Attribute("data_layout", "", "Letters of the axes of x. Default: NC, NWC, NCHW, or channels along axis 1.", "STRING"),
        Attribute("out_dtype", "", "Without effect.", "STRING", is_always_written=False),
    ),
    doc="y = out_scale * n + out_bias, where n is the number of a channel's thresholds that x reaches.",
    format_name="counts",
)

_OWN = (_integer_quantizer("Quant"), _integer_quantizer("IntQuant"), _BIPOLAR_QUANT, _TRUNC, _FLOAT_QUANT, _MULTI_THRESHOLD)

# All domains in which models have these operators.
DOMAINS = (_DOMAIN, *_OLDER_DOMAINS)

OPERATORS = (*_OWN, *(base.renamed(domain, base.name) for domain in _OLDER_DOMAINS for base in _OWN))
