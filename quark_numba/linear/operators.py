"""The declarations of the family's operators: inputs, texts of attributes, the type and shape of y, and errors (element types
and defaults of attributes are in ``versions``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..declaration.meaning import Affine, AnyOperand, Dequantize, Quantize, RoundTrip
from ..declaration.operator import Operator, code_type_of
from ..declaration.schema import Attribute, Parameter, Shape, Tensor, shape_text
from ..declaration.standard_form import Builder
from ..element_types import UINT8, ElementType, find
from . import standard_form
from .calls import make_conversion
from .conversions import planned
from .granularity import FAULTS, ZERO_POINT_SHAPE, Names, loop_shape
from .versions import DEFAULTS, OWN_DOMAIN, VERSIONS, Operation, Version


class _Common(NamedTuple):
    """The properties that all versions of an operation share."""

    names: Names
    meaning: type[Affine[Any]]
    zero_point: Parameter
    doc: str


_COMMON: dict[Operation, _Common] = {
    "quantize": _Common(
        Names("x", "y_scale", "y_zero_point", "output_dtype"),
        Quantize,
        Parameter("y_zero_point", "T3", "Of the shape of y_scale. Its type is that of y. Default: 0, uint8.", "optional"),
        "y = saturate(x / y_scale + y_zero_point), with the scale and zero point of the whole tensor or of each index along "
        "`axis`. For integer types the quotient is rounded, half to even, before the zero point is added.",
    ),
    "dequantize": _Common(
        Names("x", "x_scale", "x_zero_point", "output_dtype"),
        Dequantize,
        Parameter("x_zero_point", "T1", "Of the shape of x_scale and the type of x. Default: 0.", "optional"),
        "y = (x - x_zero_point) * x_scale, with the scale and zero point of the whole tensor or of each index along `axis`.",
    ),
    "quantize_dequantize": _Common(
        Names(),
        RoundTrip,
        Parameter("zero_point", "T4", "Of the shape of scale, and of the quantized type.", "required"),
        "QuantizeLinear followed by DequantizeLinear with the same scale and zero point: x is rounded to the values that the "
        "type of the zero point has then. For integer types x / scale is rounded, half to even, the zero point added, the sum "
        "saturated, the zero point subtracted, and the difference multiplied by the scale.",
    ),
}
_SCALE = "A scalar, or one dimension with as many elements as x has along `axis`."
_BLOCKED_SCALE = f"{_SCALE} With `block_size`, x's shape but along `axis`, where there is one element a block."
_ATTRIBUTES = {
    "axis": "The axis of a scale of one dimension or of blocks, -r..r-1 of an x of r dimensions.",
    "block_size": "How many elements along `axis` share a scale; the last block may be shorter. 0 if the scale is not blocked.",
    "saturate": "0 if float8 types give Inf for values beyond their range, or NaN if they have no Inf.",
    "output_dtype": "The TensorProto number of y's type, or 0 for the type of the zero point or the scale.",
    "precision": "The TensorProto number of the type in which the division is done, or 0 for the type of the scale.",
}


@dataclass(frozen=True)
class LinearOperator:
    """A version of one of the family's operators. Its methods are those that a declaration needs, see
    ``declaration.Operator``.

    Parameters
    ----------
    version : Version
    has_zero_point : bool
        Whether the operator has the third input.
    uint8_holds : ElementType, optional
        As in ``declaration.Operator``.
    """

    version: Version
    has_zero_point: bool = True
    uint8_holds: ElementType | None = None

    @property
    def common(self) -> _Common:
        return _COMMON[self.version.operation]

    @property
    def declaration(self) -> Operator:
        version, common, names = self.version, self.common, self.common.names
        operation, given, is_own = version.operation, version.attributes, version.domain == OWN_DOMAIN
        has_type_of_scale = operation == "dequantize" and version.y == version.scale and "output_dtype" not in given
        scale_variable = "T1" if version.scale_as_x else "T2"
        y_variable = scale_variable if has_type_of_scale else "T3"
        # Two parameters with the same variable have the same types.
        types = {"T1": version.x, scale_variable: version.scale, y_variable: version.y}
        types[common.zero_point.variable] = version.quantized
        inputs = (
            Parameter(names.x, "T1", f"What to {operation.replace('_', ' and ')}."),
            Parameter(names.scale, scale_variable, _BLOCKED_SCALE if "block_size" in given else _SCALE),
            common.zero_point,
        )
        source = f"\n\nAMD Quark's documentation, {version.name} - 1." if version.domain == "com.amd.quark" else ""
        faults = [number for number in FAULTS if self.has_zero_point or number != ZERO_POINT_SHAPE]
        texts = *(f"{{{name}_shape}}" for name in names[:3]), "{axis}", "{block_size}"
        return Operator(
            family="linear",
            domain=version.domain,
            name=version.name,
            since_version=version.since_version,
            operation=operation,
            doc=common.doc + source,
            types=types,
            inputs=inputs if self.has_zero_point else inputs[:2],
            outputs=(Parameter("y", y_variable, "Of the shape of x."),),
            # Quark omits axis where it is ignored.
            attributes=tuple(Attribute(name, DEFAULTS[name], _ATTRIBUTES[name], is_always_written=is_own) for name in given),
            call=self.call,
            infer=self.infer,
            faults={number: names.message(number, *texts) for number in faults},
            formats={each.name: each for each in version.quantized if code_type_of(each, self.uint8_holds) is each},
            select_format=self.format_of,
            column=scale_variable,
            meaning=self.meaning,
            standard_form=self.standard_form,
            attributes_of_shapes=_axis_of_shapes,
            uint8_holds=self.uint8_holds,
            runs_on_gpus=True,
        )

    def call(
        self, x: Any, scale: Any, zero_point: Any = None, *, output_dtype: int = 0, precision: int = 0, **rest: int
    ) -> Any:
        """Run the operator as the call on arrays of the same operation does. That call accepts more than some versions do, so
        the rest is refused here."""
        version, names = self.version, self.common.names
        if version.domain and np.ndim(scale) > 1 and np.size(scale) != 1 and not rest.get("block_size"):
            expected = "a block_size" if "block_size" in version.attributes else "a scalar or one dimension"
            raise ValueError(f"{names.scale} has shape {np.shape(scale)}; expected {expected}")
        dtype: int | str | None = output_dtype or None
        if version.operation == "dequantize":
            x, scale, zero_point = map(self._view_as_codes, (x, scale, zero_point))
            if version.domain and len(version.y) == 1:
                dtype = version.y[0].name
        elif self.uint8_holds and zero_point is None:
            dtype = version.y[0].name
        return self._convert(x, scale, zero_point, dtype=dtype, precision=precision or None, **rest)

    @functools.cached_property
    def _convert(self) -> Callable[..., Any]:
        """The call on arrays with the names of this operator's arguments. It keeps plans, as those for users do."""
        version = self.version
        onnx_version = None if version.domain else version
        make = functools.partial(make_conversion, self.common.names, version.operation, onnx_version)
        return planned(make, f"{version.domain}::{version.name}-{version.since_version}")

    def _view_as_codes(self, array: Any) -> Any:
        holds = self.uint8_holds
        return array.view(holds.dtype) if holds and array is not None and array.dtype == UINT8.dtype else array

    def infer(self, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        """Return the output y. It has x's shape, and the type that output_dtype names, or else that of the zero point or the
        scale."""
        nothing = Tensor(None, None)
        x, scale, zero_point = (*inputs, None, None, None)[:3]
        x, scale = x or nothing, scale or nothing
        y = find(attributes.get("output_dtype", 0))
        if y is None and self.version.operation == "quantize":
            y = zero_point.element_type if zero_point else self.version.y[0]
        elif y is None:
            y = self.version.y[0] if len(self.version.y) == 1 else scale.element_type
        self._check_shapes(x.shape, scale.shape, zero_point and zero_point.shape, attributes)
        return [Tensor(y, x.shape)]

    def _check_shapes(self, x: Shape | None, scale: Shape | None, zero_point: Shape | None, given: Mapping[str, Any]) -> None:
        """Raise ValueError if the shapes, as far as they are known, do not fit."""
        if x is None or scale is None or None in scale or (zero_point is not None and None in zero_point):
            return
        zero_point = scale if zero_point is None else zero_point
        axis, block_size = (given.get(name, DEFAULTS[name]) for name in ("axis", "block_size"))
        if block_size and None in x:
            return
        # An unknown dimension of x is replaced by a number that fits.
        fits = scale[0] if scale else 1
        fault, _ = loop_shape([fits if size is None else size for size in x], scale, zero_point, axis, block_size)
        if fault:
            texts = shape_text(x), shape_text(scale), shape_text(zero_point)
            raise ValueError(self.common.names.message(fault, *texts, axis, block_size))

    def meaning(self, inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> Affine[AnyOperand]:
        """Return the meaning of a node. Raise ValueError if an attribute is not the number of an element type, or contradicts
        the type of the zero point."""
        x, scale, *others = inputs
        zero_point = others[0] if others else None
        output_dtype, precision = (_type_in(attributes, name) for name in ("output_dtype", "precision"))
        element_type = zero_point.element_type if zero_point is not None else None
        if self.version.operation == "dequantize":
            element_type, computes_in = element_type or x.element_type, output_dtype
            element_type = element_type and code_type_of(element_type, self.uint8_holds)
        else:
            if zero_point is None:
                element_type = output_dtype or self.version.y[0]
            elif element_type and output_dtype not in (None, element_type):
                raise ValueError(f"output_dtype is {output_dtype.number}; expected the zero point's type, {element_type.name}")
            computes_in = precision
        axis, block_size, saturate = (int(attributes.get(name, DEFAULTS[name])) for name in ("axis", "block_size", "saturate"))
        return self.common.meaning(x, scale, zero_point, element_type, axis, block_size, saturate != 0, computes_in)

    def standard_form(
        self, op: Builder[AnyOperand], inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]
    ) -> list[AnyOperand]:
        return [standard_form.write(op, self.meaning(inputs, attributes))]

    def format_of(self, types: Sequence[str | None], attributes: Mapping[str, Any]) -> str:
        """Return the name of the quantized type: the type of the zero point, or of the codes to dequantize; "?" if unknown."""
        x, _, zero_point = (*types, None, None, None)[:3]
        if self.version.operation == "dequantize":
            name = zero_point or x or "?"
            return self.uint8_holds.name if self.uint8_holds and name == UINT8.name else name
        return zero_point or (self.version.y[0].name if len(types) < 3 else "?")


def _type_in(attributes: Mapping[str, Any], name: str) -> ElementType | None:
    """Return the element type that an attribute names, or None for 0."""
    number = attributes.get(name, 0)
    if not number:
        return None
    element_type = find(number)
    if element_type is None:
        raise ValueError(f"{name} is {number}; expected the number of an element type, or 0")
    return element_type


def _axis_of_shapes(x: tuple[int, ...], scale: tuple[int, ...], zero_point: tuple[int, ...] = ()) -> dict[str, int]:
    """Return the attribute axis if these shapes are valid for exactly one axis. Return nothing if the axis is ignored: then
    the default holds. Raise ValueError if the shapes are valid for several axes."""
    if scale in ((), (1,)):
        return {}
    fitting = [axis for axis, length in enumerate(x) if (length,) == scale]
    if len(fitting) > 1:
        raise ValueError(f"axis is one of {fitting} for shapes {x} and {scale}; only backend 'native' knows which")
    return {"axis": fitting[0]} if fitting else {}


OPERATORS = tuple(LinearOperator(version).declaration for version in VERSIONS)
