"""The family's declarations: the operator that `optimize` writes, a function that declares the operators of dialects, the types
of parameters, and the messages of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration import AnyOperand, Attribute, Builder, FakeQuantize, Operator, Option, Parameter, Tensor, known, shape_text
from ..element_types import FLOAT32, FLOAT64, INT32, names
from ..element_types.operands import INT64
from ..linear.versions import OWN_DOMAIN
from .calls import convert
from .granularity import first_place
from .key import FORMS, Key, select
from .standard_form import write

ROUNDING_MODE = Attribute("rounding_mode", "ROUND", "How values are rounded. Case does not matter.", "STRING")

# The type variable of numbers, and their element types: exporters write what their own language has.
_NUMBER = "N"
_NUMBERS = (FLOAT32, INT32, INT64, FLOAT64)

# The number of the fault that a format is not valid. The faults of input i are BROADCASTS, ONE_ELEMENT and NUMBER, each plus
# FAULTS * i.
VALUES = 63
FAULTS = 3
BROADCASTS, ONE_ELEMENT, NUMBER = -2, -1, 0

_Meaning = Callable[[Sequence[Any], Mapping[str, Any]], FakeQuantize[Any]]


def number(name: str, doc: str, option: Option = "required") -> Parameter:
    """Return an input that helps to describe a format. It may have any element type of numbers, whichever types the other
    inputs have. A float64 is rounded to float32."""
    return Parameter(name, _NUMBER, doc, option, is_homogeneous=False)


def operator(
    domain: str,
    name: str,
    inputs: Sequence[Parameter],
    attributes: Sequence[Attribute],
    meaning: _Meaning,
    *,
    form: str,
    doc: str,
    format_name: str = "integers",
) -> Operator:
    """Return the declaration of an operator whose nodes have a `meaning`. `inputs` are the inputs besides x. `form` is the form
    of the meaning, or "" if it depends on attributes."""
    every = (Parameter("x", "T", "What to round."), *inputs)
    faults = {VALUES: f"the format is not valid; expected {FORMS[form].expected if form else 'one that its form accepts'}"}
    for i, parameter in enumerate(inputs, 1):
        shape = f"{parameter.name} has shape {{{parameter.name}_shape}}"
        has = shape if parameter.option != "variadic" else "a parameter has another shape"
        faults[FAULTS * i + BROADCASTS] = f"{has}; expected one that broadcasts to the shape of x, {{x_shape}}"
        faults[FAULTS * i + ONE_ELEMENT] = f"{has}; expected one element"
        faults[FAULTS * i + NUMBER] = f"{parameter.name} has another element type; expected {names(_NUMBERS)}"

    def names_of(meant: FakeQuantize[Any], given: Sequence[Any]) -> dict[str, str]:
        """Return the names of the inputs, by the names that the form has for them."""
        pairs = zip(every, given, strict=False) if inputs and inputs[-1].option != "variadic" else ()
        named = {id(value): parameter.name for parameter, value in pairs if value is not None}
        return {name: named.get(id(value), name) for name, value in meant.parameters.items()}

    def call(x: NDArray[Any], *given: NDArray[Any] | None, **attributes: Any) -> NDArray[Any]:
        meant = meaning((x, *given), attributes)
        named = names_of(meant, (x, *given))
        parameters = {
            name: _rounded(value).reshape(lengths(named[name], value.shape, meant.axis, np.ndim(x)))
            if isinstance(value, np.ndarray)
            else value
            for name, value in meant.parameters.items()
        }
        return convert(key_of(meant), x, parameters, names=named)

    def infer(tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        unknown = Tensor(None, None)
        given = [tensor or unknown for tensor in tensors]
        meant = meaning(given, attributes)
        named = names_of(meant, given)
        x = given[0]
        key = key_of(meant)
        for name, value in meant.parameters.items():
            shape = value.shape if isinstance(value, Tensor) else None
            if shape is None or None in shape:
                continue
            if name in FORMS[key.form].single and any(length != 1 for length in shape):
                raise ValueError(f"{named[name]} has shape {shape_text(shape)}; expected one element")
            whole = lengths(named[name], shape, meant.axis, None if x.shape is None else len(x.shape))
            if x.shape is None:
                continue
            # An unknown dimension of x is replaced by one that fits.
            padded = [1] * (len(x.shape) - len(whole)) + [*whole]
            if first_place(known(x.shape, padded[-len(x.shape) :]), whole) < 0:
                expected = f"expected one that broadcasts to the shape of x, {shape_text(x.shape)}"
                raise ValueError(f"{named[name]} has shape {shape_text(shape)}; {expected}")
        return [Tensor(FLOAT32, x.shape)]

    def standard_form(op: Builder[AnyOperand], given: Sequence[Any], attributes: Mapping[str, Any]) -> list[AnyOperand]:
        return [write(op, meaning(given, attributes))]

    return Operator(
        family="fake_quantization",
        domain=domain,
        name=name,
        operation="fake_quantize",
        doc=doc,
        types={"T": (FLOAT32,)} | {parameter.variable: _NUMBERS for parameter in inputs if parameter.variable == _NUMBER},
        inputs=every,
        attributes=tuple(attributes),
        call=call,
        infer=infer,
        faults=faults,
        formats={format_name: None},
        meaning=meaning,
        standard_form=standard_form,
    )


def _rounded(value: NDArray[Any]) -> NDArray[Any]:
    return value.astype(np.float32) if value.dtype == FLOAT64.dtype else value


def key_of(meaning: FakeQuantize[Any]) -> Key:
    """Return the key of the kernel for a node. Raise ValueError for an unknown form or rounding mode."""
    return select(meaning.form, meaning.rounding_mode)


def lengths(name: str, shape: Sequence[Any], axis: int | str | None, rank: int | None) -> Sequence[Any]:
    """Return the shape that broadcasts to an x of this rank, for a parameter that lies along the `axis` of a FakeQuantize. If
    the rank is None, only check the shape. Raise ValueError if the shape is invalid."""
    if axis == "broadcast" or all(length == 1 for length in shape):
        return shape
    if not isinstance(axis, int) or len(shape) != 1:
        expected = "one element" if axis is None else "one element or one dimension"
        raise ValueError(f"{name} has shape {shape_text(shape)}; expected {expected}")
    if rank is None:
        return shape
    if not -rank <= axis < rank:
        raise ValueError(f"the axis of the parameters is {axis}; expected one of x, which has {rank} dimensions")
    return [*shape, *[1] * (rank - 1 - axis % rank)]


def _own(inputs: Sequence[AnyOperand], attributes: Mapping[str, Any]) -> FakeQuantize[AnyOperand]:
    x, *parameters = inputs
    form, mode = select(attributes["form"], attributes["rounding_mode"])
    names = FORMS[form].parameters
    if len(parameters) != len(names):
        raise ValueError(f"the node has {len(parameters)} parameters; expected {len(names)}: {', '.join(names)}")
    return FakeQuantize(x, form, mode, dict(zip(names, parameters, strict=True)))


FAKE_QUANTIZE = operator(
    OWN_DOMAIN,
    "FakeQuantize",
    (Parameter("parameters", "T", "Those of the form, in order. They broadcast to x.", "variadic"),),
    (Attribute("form", None, f"How the format is described: {', '.join(FORMS)}.", "STRING"), ROUNDING_MODE),
    _own,
    form="",
    doc="y is x, rounded to the values of a format that the parameters describe.",
    format_name="any",
)

OPERATORS = (FAKE_QUANTIZE,)
