"""The declarations of the family's operators."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration.meaning import Affine, AnyOperand, Dequantize, Quantize, RoundTrip
from ..declaration.operator import Operator, held
from ..declaration.schema import Attribute, Parameter, Shape, Tensor, shape_text
from ..declaration.standard_form import Builder
from ..element_types import UINT8, ElementType, find
from . import calls, standard_form
from .granularity import FAULTS, ZERO_POINT_SHAPE, loop_shape
from .versions import DEFAULTS, OWN_DOMAIN, VERSIONS, Version

# The names of the inputs by those of the calls' arguments, and the documentation of the schema.
_NAMES = {
    "quantize": {"x": "x", "scale": "y_scale", "zero_point": "y_zero_point"},
    "dequantize": {"x": "x", "scale": "x_scale", "zero_point": "x_zero_point"},
    "quantize_dequantize": {"x": "x", "scale": "scale", "zero_point": "zero_point"},
}
_DOCS = {
    "quantize": "y = saturate(x / y_scale + y_zero_point), with the scale and zero point of the whole tensor or of each "
    "index along `axis`. For integer types the quotient is rounded, half to even, before the zero point is added.",
    "dequantize": "y = (x - x_zero_point) * x_scale, with the scale and zero point of the whole tensor or of each index along "
    "`axis`.",
    "quantize_dequantize": "QuantizeLinear followed by DequantizeLinear with the same scale and zero point: x is rounded to "
    "the values that the type of the zero point has then. For integer types x / scale is rounded, half to even, the zero point "
    "added, the sum saturated, the zero point subtracted, and the difference multiplied by the scale.",
}
_SCALE = "A scalar, or one dimension with as many elements as x has along `axis`."
_BLOCKED_SCALE = f"{_SCALE} With `block_size`, x's shape but along `axis`, where there is one element a block."
_ZERO_POINT = {
    "quantize": "Of the shape of y_scale. Its type is that of y. Default: 0, uint8.",
    "dequantize": "Of the shape of x_scale and the type of x. Default: 0.",
    "quantize_dequantize": "Of the shape of scale, and of the quantized type.",
}
_ATTRIBUTES = {
    "axis": "The axis of a scale of one dimension or of blocks, -r..r-1 of an x of r dimensions.",
    "block_size": "How many elements along `axis` share a scale; the last block may be shorter. 0: not blocked.",
    "saturate": "0: float8 types give Inf for what is beyond their range, or NaN if they have no Inf.",
    "output_dtype": "The TensorProto number of y's type; 0: that of the zero point, or of the scale.",
    "precision": "The TensorProto number of the type in which the division is done; 0: that of the scale.",
}


def operator(version: Version, *, has_zero_point: bool = True, uint8_holds: ElementType | None = None) -> Operator:
    """Return the declaration of a version. `uint8_holds`: see ``declaration.Operator``."""
    names = _NAMES[version.operation]
    x, scale, zero_point = names.values()
    is_own, is_round_trip = version.domain == OWN_DOMAIN, version.operation == "quantize_dequantize"
    scale_variable = "T1" if version.scale_as_x else "T2"
    quantized_variable = {"quantize": "T3", "dequantize": "T1", "quantize_dequantize": "T4"}[version.operation]
    types = {"T1": version.x, scale_variable: version.scale, "T3": version.y, quantized_variable: version.quantized}
    y_variable = "T3"
    if version.operation == "dequantize" and version.y == version.scale and "output_dtype" not in version.attributes:
        y_variable = scale_variable
        del types["T3"]
    shapes = {f"{name}_shape": f"{{{own}_shape}}" for name, own in names.items()}
    given = Parameter(
        zero_point, quantized_variable, _ZERO_POINT[version.operation], "required" if is_round_trip else "optional"
    )
    doc = _DOCS[version.operation]
    if version.domain == "com.amd.quark":
        doc += f"\n\nAMD Quark's documentation, {version.name} - 1."
    return Operator(
        family="linear",
        domain=version.domain,
        name=version.name,
        since_version=version.since_version,
        operation=version.operation,
        doc=doc,
        types=types,
        inputs=(
            Parameter(x, "T1", f"What to {version.operation.replace('_', ' and ')}."),
            Parameter(scale, scale_variable, _BLOCKED_SCALE if "block_size" in version.attributes else _SCALE),
            *([given] if has_zero_point else []),
        ),
        outputs=(Parameter("y", y_variable, "Of the shape of x."),),
        # Quark omits axis where it is ignored.
        attributes=tuple(
            Attribute(name, DEFAULTS[name], _ATTRIBUTES[name], is_always_written=is_own) for name in version.attributes
        ),
        call=functools.partial(_call, version, uint8_holds),
        infer=functools.partial(_infer, version),
        faults={
            number: message.format(**names, **shapes, axis="{axis}", block_size="{block_size}")
            for number, message in FAULTS.items()
            if has_zero_point or number != ZERO_POINT_SHAPE
        },
        formats={row.name: row for row in version.quantized if held(uint8_holds, row) is row},
        select_format=functools.partial(_format_of, version, uint8_holds),
        column=scale_variable,
        meaning=functools.partial(_meaning, version, uint8_holds),
        standard_form=functools.partial(_standard_form, version, uint8_holds),
        attributes_of_shapes=_axis_of_shapes,
        uint8_holds=uint8_holds,
    )


def _call(
    version: Version,
    uint8_holds: ElementType | None,
    x: NDArray[Any],
    scale: NDArray[Any],
    zero_point: NDArray[Any] | None = None,
    *,
    output_dtype: int = 0,
    precision: int = 0,
    **attributes: int,
) -> NDArray[Any]:
    """Run the operator by the call on arrays of the same operation. The call accepts more than some versions do, so the rest is
    refused here."""
    type_name = "output_dtype" if version.operation == "dequantize" else "dtype"
    types: dict[str, Any] = {type_name: output_dtype or None} if "output_dtype" in version.attributes else {}
    if "precision" in version.attributes:
        types["precision"] = precision or None
    if not version.domain:
        attributes["opset"] = version.since_version
    elif np.ndim(scale) > 1 and np.size(scale) != 1 and not attributes.get("block_size"):
        name = _NAMES[version.operation]["scale"]
        expected = "a block_size" if "block_size" in version.attributes else "a scalar or one dimension"
        raise ValueError(f"{name} has shape {np.shape(scale)}; expected {expected}")
    if version.operation == "dequantize":
        x, scale, zero_point = (_held_codes(uint8_holds, array) for array in (x, scale, zero_point))
        if version.domain and len(version.y) == 1:
            types[type_name] = version.y[0].number
    elif uint8_holds and zero_point is None:
        types[type_name] = version.y[0].number
    call: Callable[..., NDArray[Any]] = getattr(calls, version.operation)
    try:
        return call(x, scale, zero_point, **types, **attributes)
    except (TypeError, ValueError) as error:  # which names the call's arguments
        names = _NAMES[version.operation] | {"dtype": "output_dtype"}
        raise type(error)(re.sub(r"^dtype\b|\b(scale|zero_point)\b", lambda match: names[match[0]], str(error))) from error


def _held_codes(holds: ElementType | None, array: Any) -> Any:
    return array.view(holds.dtype) if holds and array is not None and array.dtype == UINT8.dtype else array


def _infer(version: Version, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
    """Return the output y. It has x's shape, and the type that output_dtype names, or else that of the zero point or the
    scale."""
    nothing = Tensor(None, None)
    x, scale, zero_point = (inputs[i] if i < len(inputs) else None for i in range(3))
    x, scale = x or nothing, scale or nothing
    y = find(attributes.get("output_dtype", 0))
    if y is None and version.operation == "quantize":
        y = zero_point.element_type if zero_point else version.y[0]
    elif y is None:
        y = version.y[0] if len(version.y) == 1 else scale.element_type
    _check_shapes(version, x.shape, scale.shape, zero_point and zero_point.shape, attributes)
    return [Tensor(y, x.shape)]


def _check_shapes(
    version: Version, x: Shape | None, scale: Shape | None, zero_point: Shape | None, attributes: Mapping[str, Any]
) -> None:
    """Raise ValueError if the shapes, as far as they are known, do not fit."""
    if x is None or scale is None or None in scale or (zero_point is not None and None in zero_point):
        return
    axis, block_size = (attributes.get(name, DEFAULTS[name]) for name in ("axis", "block_size"))
    if block_size and None in x:
        return
    # An unknown dimension of x is replaced by a number that fits.
    fits = scale[0] if scale else 1
    zero_point = scale if zero_point is None else zero_point
    fault, _ = loop_shape([fits if size is None else size for size in x], scale, zero_point, axis, block_size)
    if fault:
        shapes = {"x_shape": shape_text(x), "scale_shape": shape_text(scale), "zero_point_shape": shape_text(zero_point)}
        raise ValueError(FAULTS[fault].format(**_NAMES[version.operation], **shapes, axis=axis, block_size=block_size))


_MEANINGS = {"quantize": Quantize, "dequantize": Dequantize, "quantize_dequantize": RoundTrip}


def _meaning(
    version: Version, uint8_holds: ElementType | None, inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]
) -> Affine[AnyOperand]:
    x, scale, zero_point = (*inputs, None)[:3]
    assert x is not None
    assert scale is not None
    output_dtype, precision = (_type_in(attributes, name) for name in ("output_dtype", "precision"))
    element_type = zero_point.element_type if zero_point is not None else None
    if version.operation == "dequantize":
        element_type, computes_in = element_type or x.element_type, output_dtype
        element_type = element_type and held(uint8_holds, element_type)
    else:
        if zero_point is None:
            element_type = output_dtype or version.y[0]
        elif element_type and output_dtype not in (None, element_type):
            raise ValueError(f"output_dtype is {output_dtype.number}, and the zero point is {element_type.name}")
        computes_in = precision
    axis, block_size, saturate = (int(attributes.get(name, DEFAULTS[name])) for name in ("axis", "block_size", "saturate"))
    make = _MEANINGS[version.operation]
    return make(x, scale, zero_point, element_type, axis, block_size, saturate != 0, computes_in)


def _standard_form(
    version: Version,
    uint8_holds: ElementType | None,
    op: Builder[AnyOperand],
    inputs: Sequence[AnyOperand],
    attributes: Mapping[str, Any],
) -> list[AnyOperand]:
    return [standard_form.write(op, _meaning(version, uint8_holds, inputs, attributes))]


def _type_in(attributes: Mapping[str, Any], name: str) -> ElementType | None:
    """Return the element type that an attribute names; None for 0."""
    number = attributes.get(name, 0)
    if not number:
        return None
    element_type = find(number)
    if element_type is None:
        raise ValueError(f"{name} is {number}; expected the number of an element type, or 0")
    return element_type


def _format_of(
    version: Version, uint8_holds: ElementType | None, types: Sequence[str | None], attributes: Mapping[str, Any]
) -> str:
    """Return the name of the quantized type: the type of the zero point, or of the codes to dequantize; "?" if unknown."""
    x, _, zero_point = (*types, None, None, None)[:3]
    if version.operation == "dequantize":
        name = zero_point or x or "?"
        return uint8_holds.name if uint8_holds and name == UINT8.name else name
    return zero_point or (version.y[0].name if len(types) < 3 else "?")


def _axis_of_shapes(x: tuple[int, ...], scale: tuple[int, ...], zero_point: tuple[int, ...] = ()) -> dict[str, int]:
    """Return the attribute axis if these shapes are valid for exactly one; nothing if the axis is ignored, so that the default
    holds. Raises ValueError if they are valid for several."""
    if scale in ((), (1,)):
        return {}
    fitting = [axis for axis, length in enumerate(x) if (length,) == scale]
    if len(fitting) > 1:
        raise ValueError(f"axis is one of {fitting} for shapes {x} and {scale}; only backend 'native' knows which")
    return {"axis": fitting[0]} if fitting else {}


OPERATORS = tuple(map(operator, VERSIONS))
