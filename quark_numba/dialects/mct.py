"""The operators of the Sony Model Compression Toolkit (mct_quantizers): names, attributes and their defaults, and what they
mean in the families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declaration import AnyOperand, Attribute, FakeQuantize, Operator
from ..fake_quantization.operators import number, operator
from ..tables.key import NEAREST
from ..tables.operators import operator as table_operator

_DOMAIN = "mct_quantizers"

_THRESHOLD = Attribute("threshold", None, "The bound of x.", "FLOAT")
_LEAST = Attribute("min_range", None, "The lower bound of x.", "FLOAT")
_MOST = Attribute("max_range", None, "The upper bound of x.", "FLOAT")
_NUM_BITS = Attribute("num_bits", None, "Bits of a code.")
_VERSION = Attribute("mctq_version", "", "Without effect.", "STRING", is_always_written=False)
_FOR_CHANNELS = "One element, or one for each channel."
_SIGNED = Attribute("signed", 1, "Whether codes have a sign.")
_CHANNELS = (
    Attribute("per_channel", None, "Whether there is a parameter for each index along channel_axis."),
    Attribute("channel_axis", None, "The axis of x along which the parameters lie."),
)


def _axis(attributes: Mapping[str, Any]) -> int | None:
    return int(attributes["channel_axis"]) if attributes.get("per_channel") else None


def _by_threshold(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> FakeQuantize[AnyOperand]:
    x, threshold = (*inputs, attributes.get("threshold"))[:2]
    # Weights have a sign, whatever their attribute says.
    signed = attributes["signed"] if "threshold" in attributes else 1
    parameters = {"threshold": threshold, "bit_width": attributes["num_bits"], "signed": signed}
    return FakeQuantize(x, "threshold", "ROUND", parameters, _axis(attributes))


def _by_range(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> FakeQuantize[AnyOperand]:
    x, least, most = (*inputs, attributes.get("min_range"), attributes.get("max_range"))[:3]
    form = "offset range" if "min_range" in attributes else "range"
    parameters = {"min": least, "max": most, "bit_width": attributes["num_bits"]}
    return FakeQuantize(x, form, "ROUND", parameters, _axis(attributes))


# What the operators compute.
_SIGNED_OR_NOT = "y = rint(clamp(x, low, high) / s) * s with s = threshold / 2 ** (num_bits - signed)."
_WITH_SIGN = "y = rint(clamp(x, -threshold, threshold - s) / s) * s with s = threshold / 2 ** (num_bits - 1)."
_BY_OFFSET = "y = step * rint((clamp(x, low, high) - low) / step) + low, in float64, for a grid that holds 0."
_BY_STEP = "y = rint(clamp(x, low, high) / step) * step, for a grid that holds 0."


def _activation_quantizer(name: str, form: str, attributes: Sequence[Attribute], doc: str) -> Operator:
    meaning = _by_threshold if form == "threshold" else _by_range
    return operator(_DOMAIN, name, (), (*attributes, _NUM_BITS, _VERSION), meaning, form=form, doc=doc)


def _weights_quantizer(name: str, form: str, inputs: Sequence[str], doc: str) -> Operator:
    meaning = _by_threshold if form == "threshold" else _by_range
    parameters = [number(each, _FOR_CHANNELS) for each in inputs]
    return operator(_DOMAIN, name, parameters, (_NUM_BITS, *_CHANNELS, _SIGNED, _VERSION), meaning, form=form, doc=doc)


OPERATORS = (
    _activation_quantizer("ActivationSymmetricQuantizer", "threshold", (_THRESHOLD, _SIGNED), _SIGNED_OR_NOT),
    _activation_quantizer("ActivationPOTQuantizer", "threshold", (_THRESHOLD, _SIGNED), _SIGNED_OR_NOT),
    _activation_quantizer("ActivationUniformQuantizer", "offset range", (_LEAST, _MOST), _BY_OFFSET),
    _weights_quantizer("WeightsSymmetricQuantizer", "threshold", ("threshold",), _WITH_SIGN),
    _weights_quantizer("WeightsPOTQuantizer", "threshold", ("threshold",), _WITH_SIGN),
    _weights_quantizer("WeightsUniformQuantizer", "range", ("min_range", "max_range"), _BY_STEP),
    *(
        table_operator(
            _DOMAIN,
            name,
            NEAREST,
            (
                Attribute("lut_values_bitwidth", None, "Bits of the values of lut."),
                Attribute("eps", 1e-8, "What is added to the threshold before the division.", "FLOAT"),
                *_CHANNELS,
                _NUM_BITS,
                _SIGNED,
                Attribute("input_rank", 0, "Without effect.", is_always_written=False),
                _VERSION,
            ),
            doc="y is the value of a table that is nearest to x.",
            format_name="values of a table",
        )
        for name in ("WeightsLUTSymmetricQuantizer", "WeightsLUTPOTQuantizer")
    ),
)
