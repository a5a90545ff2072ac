"""The family's declarations: the operator that `optimize` writes, and a function that declares those of dialects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declaration import AnyOperand, Attribute, FakeQuantize, Operator, Parameter, Tensor, shape_text
from ..element_types import FLOAT32, INT32
from ..element_types.operands import INT64
from ..linear.versions import OWN_DOMAIN
from .calls import convert
from .granularity import first_place
from .key import FORMS, Key, select

ROUNDING_MODE = Attribute("rounding_mode", "ROUND", "How values are rounded. Case does not matter.", "STRING")

# The element types of numbers: of inputs whose type variable is not that of x.
_NUMBERS = (FLOAT32, INT32, INT64)

# The number of the fault that a format is not valid. Input i has the faults 2 i - 1, it does not broadcast, and 2 i, it has
# several elements.
VALUES = 63

_Meaning = Callable[[Sequence[Any], Mapping[str, Any]], FakeQuantize[Any]]


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
    """Return the declaration of an operator whose nodes have a `meaning`. `inputs` are those besides x. `form` is the meaning's
    form, or "" if it depends on attributes."""
    every = (Parameter("x", "T", "What to round."), *inputs)
    faults = {VALUES: f"the format is not valid; expected {FORMS[form].expected if form else 'one that its form accepts'}"}
    for number, parameter in enumerate(inputs, 1):
        shape = f"{parameter.name} has shape {{{parameter.name}_shape}}"
        has = shape if parameter.option != "variadic" else "a parameter has another shape"
        faults[2 * number - 1] = f"{has}; expected one that broadcasts to the shape of x, {{x_shape}}"
        faults[2 * number] = f"{has}; expected one element"

    def names_of(meant: FakeQuantize[Any], given: Sequence[Any]) -> dict[str, str]:
        """The names of the inputs, by the form's names for them."""
        pairs = zip(every, given, strict=False) if inputs and inputs[-1].option != "variadic" else ()
        named = {id(value): parameter.name for parameter, value in pairs if value is not None}
        return {name: named.get(id(value), name) for name, value in meant.parameters.items()}

    def call(x: NDArray[Any], *given: NDArray[Any] | None, **attributes: Any) -> NDArray[Any]:
        meant = meaning((x, *given), attributes)
        names = names_of(meant, (x, *given))
        parameters = {
            name: np.reshape(value, lengths(names[name], value.shape, meant.axis, np.ndim(x)))
            if isinstance(value, np.ndarray)
            else value
            for name, value in meant.parameters.items()
        }
        return convert(key_of(meant), x, parameters, names=names)

    def infer(tensors: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> list[Tensor]:
        unknown = Tensor(None, None)
        known = [tensor or unknown for tensor in tensors]
        meant = meaning(known, attributes)
        names = names_of(meant, known)
        x = known[0]
        key = key_of(meant)
        for name, value in meant.parameters.items():
            shape = value.shape if isinstance(value, Tensor) else None
            if shape is None or None in shape:
                continue
            if name in FORMS[key.form].single and any(length != 1 for length in shape):
                raise ValueError(f"{names[name]} has shape {shape_text(shape)}; expected one element")
            whole = lengths(names[name], shape, meant.axis, None if x.shape is None else len(x.shape))
            if x.shape is None:
                continue
            # An unknown dimension of x is replaced by one that fits.
            padded = [1] * (len(x.shape) - len(whole)) + [*whole]
            pairs = zip(x.shape, padded[-len(x.shape) :], strict=False)
            fitting = [fits if length is None else length for length, fits in pairs]
            if first_place(fitting, whole) < 0:
                expected = f"expected one that broadcasts to the shape of x, {shape_text(x.shape)}"
                raise ValueError(f"{names[name]} has shape {shape_text(shape)}; {expected}")
        return [Tensor(FLOAT32, x.shape)]

    return Operator(
        family="fake_quantization",
        domain=domain,
        name=name,
        operation="fake_quantize",
        doc=doc,
        types={"T": (FLOAT32,)} | {parameter.variable: _NUMBERS for parameter in inputs if parameter.variable != "T"},
        inputs=every,
        attributes=tuple(attributes),
        call=call,
        infer=infer,
        faults=faults,
        formats={format_name: None},
        meaning=meaning,
    )


def key_of(meaning: FakeQuantize[Any]) -> Key:
    """Return the key of the kernel for a node. Raises ValueError for an unknown form or rounding mode."""
    return select(meaning.form, meaning.rounding_mode)


def lengths(name: str, shape: Sequence[Any], axis: int | str | None, rank: int | None) -> Sequence[Any]:
    """Return the shape that broadcasts to an x of this rank, for a parameter that lies along the `axis` of a FakeQuantize. If
    the rank is None, only check the shape. Raise ValueError for a wrong shape."""
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
    form = attributes["form"]
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    names = FORMS[form].parameters
    if len(parameters) != len(names):
        raise ValueError(f"the node has {len(parameters)} parameters; expected {len(names)}: {', '.join(names)}")
    return FakeQuantize(x, form, attributes["rounding_mode"], dict(zip(names, parameters, strict=True)))


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
