"""The declarations of the operators of instance normalization: inputs, and the attribute epsilon, whose default is that of
`calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declaration import Attribute, Operator, Parameter, Tensor, known, shape_text
from ..element_types import FLOAT32
from .calls import EPSILON, extended_instance_normalization
from .granularity import FAULTS, instance_shape
from .standard_form import write

# More elements than any x has channels: stands for an unknown shape of scale or bias.
_MANY = 1 << 62


def _infer(inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
    x, scale, bias = (tensor.shape if tensor else None for tensor in inputs)
    fault, _, _, _ = instance_shape(known(x, (0, 0)), known(scale, (_MANY,)), known(bias, (_MANY,)))
    if fault:
        shapes = {"x_shape": shape_text(x), "scale_shape": shape_text(scale), "bias_shape": shape_text(bias)}
        raise ValueError(FAULTS[fault].format(**shapes))
    return [Tensor(FLOAT32, x)]


OPERATORS = (
    Operator(
        family="normalization",
        domain="com.amd.quark",
        name="ExtendedInstanceNormalization",
        operation="normalize",
        doc="y is x, normalized instance by instance, as a unit that computes in bfloat16 does it. See "
        "quark_numba.extended_instance_normalization.",
        types={"T": (FLOAT32,)},
        inputs=(
            Parameter("x", "T", "Of shape [N, C, D1, ..., Dk]."),
            Parameter("scale", "T", "C elements, or more."),
            Parameter("bias", "T", "C elements, or more."),
        ),
        attributes=(Attribute("epsilon", EPSILON, "What is added to the variance.", "FLOAT"),),
        call=extended_instance_normalization,
        infer=_infer,
        standard_form=write,
        faults=FAULTS,
        formats={"bfloat16": None},
        is_checked_at_load=True,
    ),
)
