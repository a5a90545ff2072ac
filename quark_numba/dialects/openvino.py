"""The operator of OpenVINO that NNCF and MQBench write into ONNX models, FakeQuantize: its inputs and attributes, and what it
means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declaration import AnyOperand, Attribute, FakeQuantize
from ..fake_quantization.operators import number, operator

# The limits of the levels, with their meaning.
_LIMITS = {
    "input_low": "Where the levels of x begin.",
    "input_high": "Where they end.",
    "output_low": "The value of the lowest level.",
    "output_high": "The value of the highest level.",
}

# Where the shapes are the same, as "none" asks for, they broadcast as in numpy.
_BROADCASTS = ("numpy", "none")


def _fake_quantize(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> FakeQuantize[AnyOperand]:
    x, *limits = inputs
    if attributes["auto_broadcast"].lower() not in _BROADCASTS:
        raise ValueError(f"auto_broadcast is {attributes['auto_broadcast']!r}; expected {' or '.join(map(repr, _BROADCASTS))}")
    return FakeQuantize(x, "levels", "ROUND", {**dict(zip(_LIMITS, limits, strict=True)), "levels": attributes["levels"]})


OPERATORS = (
    operator(
        "org.openvinotoolkit",
        "FakeQuantize",
        [number(name, f"{doc} It broadcasts to x.") for name, doc in _LIMITS.items()],
        (
            Attribute("levels", None, "How many levels there are, at least 2."),
            Attribute(
                "auto_broadcast", "numpy", 'How limits broadcast: "numpy", or "none".', "STRING", is_always_written=False
            ),
        ),
        _fake_quantize,
        form="levels",
        doc="y = rint((x - input_low) / (input_high - input_low) * (levels - 1)) / (levels - 1) * (output_high - output_low) + "
        "output_low, and the limits of y for x beyond those of x.",
        format_name="levels",
    ),
)
