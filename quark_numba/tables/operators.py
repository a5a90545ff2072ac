"""A function that declares the operators of dialects, with the texts of their inputs and the checks of shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declaration import Attribute, Operator, Parameter, Tensor, shape_text
from ..element_types import FLOAT32
from .calls import FAULTS, INPUTS, convert, rule
from .granularity import shape_of
from .standard_form import write

_DOCS = {
    "x": "What is compared.",
    "thresholds": "Of shape [C, n] for C channels, or [1, n] for all. They need not be in order.",
    "lut": "The values, in units of threshold / 2 ** (lut_values_bitwidth - 1).",
    "threshold": "One element, or one for each index along channel_axis.",
}


def operator(
    domain: str, name: str, operation: str, attributes: Sequence[Attribute], *, doc: str, format_name: str
) -> Operator:
    """Return the declaration of an operator. Among its attributes are those that `calls.rule` reads for the operation."""

    def infer(tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        applied = rule(operation, attributes)
        shapes = [tensor.shape if tensor else None for tensor in tensors]
        x, table, last = shapes[0], shapes[1], shapes[-1]
        if x is not None and table is not None and last is not None:
            # An unknown number of rows is replaced by 1, which always fits, and an unknown dimension of x by one that fits.
            known = [[1 if length is None else length for length in shape] for shape in (table, last)]
            rows = shape_of(applied.is_nearest, applied.axis, (), *known)[2]
            x_shape = [rows if length is None else length for length in x]
            fault, axis, *_ = shape_of(applied.is_nearest, applied.axis, x_shape, *known)
            if fault:
                raise ValueError(applied.message(fault, axis, [*map(shape_text, shapes)]))
        return [Tensor(FLOAT32, x)]

    return Operator(
        family="tables",
        domain=domain,
        name=name,
        operation=operation,
        doc=doc,
        types={"T": (FLOAT32,)},
        inputs=tuple(Parameter(name, "T", _DOCS[name]) for name in INPUTS[operation]),
        attributes=tuple(attributes),
        call=lambda *arrays, **attributes: convert(rule(operation, attributes), *arrays),
        infer=infer,
        faults=FAULTS[operation],
        formats={format_name: None},
        standard_form=lambda op, inputs, attributes: [write(op, operation, inputs, attributes)],
    )
