"""The declarations of the operators, for dialects to name, and those that `optimize` writes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ..block.key import X_TYPES
from ..declaration import (
    AnyOperand,
    Attribute,
    BlockRoundTrip,
    DynamicQuantize,
    Operator,
    Parameter,
    Shape,
    Tensor,
    known,
    shape_text,
)
from ..element_types import FLOAT8E8M0, FLOAT32, UINT8, ElementType
from ..linear.versions import OWN_DOMAIN
from . import calls
from .granularity import AXIS, FAULTS, LENGTH, SCALE, block_shape
from .key import FORMATS, MXFP8, NVFP4, Format

_AXIS = "The axis along which blocks are cut, -r..r-1."
_BLOCK_SIZE = "Elements that share a scale. It divides the length of x along `axis`."
_SCALE = Parameter("scale", "S", "One element: the scale of the whole tensor.")

_DOCS = {
    NVFP4: "The scale s of a block is float8e4m3fn(max|x| / (6 * scale)), clamped to 2**-9..448, and 1 for a block of zeros. "
    "A code is float4e2m1(x / (s * scale)). See quark_numba.nvfp4_quantize.",
    MXFP8: "The scale s of a block is the least power of two with max|x| <= 448 * s. A code is float8e4m3fn(x / s). See "
    "quark_numba.mxfp8_quantize.",
}


def quantizer(domain: str, name: str, form: Format, type_attribute: str) -> Operator:
    """Return the declaration of an operator with codes and scales as outputs. The attribute `type_attribute` has the number of
    a type that is always the same."""
    scales = _tensor_type(form.scales)
    number = {"scale_type": scales, "output_dtype": form.codes}[type_attribute]
    infer = functools.partial(_infer, form, type_attribute, number)
    return Operator(
        wing="dynamic_blocks",
        domain=domain,
        name=name,
        since_version=1,
        operation="quantize_dynamically",
        doc=f"x, quantized block by block along `axis`. {_DOCS[form]}",
        types={"T": X_TYPES, **({"S": (FLOAT32,)} if form.has_tensor_scale else {}), "C": (form.codes,), "B": (scales,)},
        inputs=_inputs(form),
        outputs=(
            Parameter("y", "C", "The codes, of the shape of x."),
            Parameter("y_scale", "B", "The scales, of x's shape but along `axis`, where there is one element a block."),
        ),
        attributes=(*_attributes(form), Attribute(type_attribute, number.number, f"{number.number}, which is {number.name}.")),
        call=functools.partial(_call, form, infer),
        infer=infer,
        faults=_faults(form),
        formats={form.name: form.codes},
        format_of=lambda types, attributes: form.name,
        column="T",
        meaning=functools.partial(_meaning, form, infer),
    )


def _round_trip(form: Format) -> Operator:
    name = f"{form.name.upper()}QuantizeDequantize"
    infer = functools.partial(_infer, form, "", None)

    def meaning(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> BlockRoundTrip[AnyOperand]:
        infer([None] * len(inputs), attributes)
        bits = form.codes.bits + form.scales.bits / int(attributes["block_size"])
        return BlockRoundTrip(inputs[0], name, attributes, form.name, bits)

    def call(x: NDArray[Any], scale: Any = 1.0, **attributes: int) -> NDArray[Any]:
        return calls.round_trip(form, x, scale, **attributes)

    return Operator(
        wing="dynamic_blocks",
        domain=OWN_DOMAIN,
        name=name,
        since_version=1,
        operation="round_dynamically",
        doc=f"x, rounded block by block along `axis`: code * s, and all products are rounded to float32. {_DOCS[form]}",
        types={"T": (FLOAT32,), **({"S": (FLOAT32,)} if form.has_tensor_scale else {})},
        inputs=_inputs(form),
        outputs=(Parameter("y", "T", "Of the shape of x."),),
        attributes=_attributes(form),
        call=call,
        infer=lambda inputs, attributes: infer(inputs, attributes)[:1],
        faults=_faults(form),
        formats={form.name: None},
        format_of=lambda types, attributes: form.name,
        column="T",
        meaning=meaning,
    )


def _inputs(form: Format) -> tuple[Parameter, ...]:
    x = Parameter("x", "T", "What to quantize.")
    return (x, _SCALE) if form.has_tensor_scale else (x,)


def _attributes(form: Format) -> tuple[Attribute, ...]:
    return Attribute("axis", -1, _AXIS), Attribute("block_size", form.block_size, _BLOCK_SIZE)


def _faults(form: Format) -> dict[int, str]:
    return {number: text for number, text in FAULTS.items() if number != SCALE or form.has_tensor_scale}


def _tensor_type(scales: ElementType) -> ElementType:
    """Return the type of tensors with these scales: powers of two are exponents of uint8."""
    return UINT8 if scales is FLOAT8E8M0 else scales


def _call(form: Format, infer: Any, x: NDArray[Any], scale: Any = 1.0, **attributes: int) -> tuple[NDArray[Any], ...]:
    infer([None, None], attributes)
    codes, scales = calls.quantize(form, x, scale, axis=attributes["axis"], block_size=attributes["block_size"])
    return codes, scales.view(_tensor_type(form.scales).dtype)


def _infer(
    form: Format,
    type_attribute: str,
    number: ElementType | None,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any],
) -> list[Tensor]:
    """Return the outputs. Raise ValueError for wrong attributes and shapes, as far as they are known. A round trip has x's
    type, and no scales."""
    axis, block_size = (int(attributes[name]) for name in ("axis", "block_size"))
    if not 0 < block_size < 2**63:
        raise ValueError(f"block_size is {block_size}; expected a positive integer")
    if number and attributes[type_attribute] != number.number:
        raise ValueError(f"{type_attribute} is {attributes[type_attribute]}; expected {number.number} ({number.name})")
    x = inputs[0] or Tensor(None, None)
    scale = inputs[1] if len(inputs) > 1 else None
    if scale and scale.shape is not None and any(each not in (None, 1) for each in scale.shape):
        raise ValueError(FAULTS[SCALE].format(scale_shape=shape_text(scale.shape)))
    codes, scales = form.codes if number else x.element_type, _tensor_type(form.scales)
    if x.shape is None:
        return [Tensor(codes, None), Tensor(scales, None)]
    # Any length that is whole blocks stands for one that is not known.
    fault, axis, _ = block_shape(known(x.shape, [block_size] * len(x.shape)), axis, block_size)
    if fault in (AXIS, LENGTH):
        shown = {"axis": attributes["axis"], "block_size": block_size, "x_shape": shape_text(x.shape)}
        raise ValueError(FAULTS[fault].format(**shown))
    of_blocks: Shape = [
        length // block_size if i == axis and length is not None else length for i, length in enumerate(x.shape)
    ]
    return [Tensor(codes, x.shape), Tensor(scales, of_blocks)]


def _meaning(
    form: Format, infer: Any, inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]
) -> DynamicQuantize[AnyOperand]:
    infer([None] * len(inputs), attributes)
    x, scale = (*inputs, None)[:2]
    return DynamicQuantize(
        x=x,  # type: ignore[arg-type]
        scale=scale,
        element_type=form.codes,
        axis=int(attributes["axis"]),
        block_size=int(attributes["block_size"]),
        round_trip=f"{form.name.upper()}QuantizeDequantize",
    )


OPERATORS = tuple(map(_round_trip, FORMATS))
