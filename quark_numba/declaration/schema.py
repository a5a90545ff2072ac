"""The schema of an operator, what ONNX knows of it: inputs, attributes and their kinds, element types, the order of overloads,
and the errors of wrong types and missing attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

from ..element_types import ElementType, names

# The kinds of attributes, by their names in ``onnx.AttributeProto.AttributeType``, and conversions to their Python types.
Kind = Literal["INT", "FLOAT", "STRING", "INTS", "FLOATS"]
_PYTHON: dict[Kind, Callable[[Any], Any]] = {
    "INT": int,
    "FLOAT": float,
    "STRING": str,
    "INTS": lambda values: [int(value) for value in values],
    "FLOATS": lambda values: [float(value) for value in values],
}

Option = Literal["required", "optional", "variadic"]

# A shape; None is an unknown dimension.
Shape = Sequence[int | None]


class Attribute(NamedTuple):
    """An attribute of an operator."""

    name: str
    default: Any = None  # None if the attribute is required
    doc: str = ""
    kind: Kind = "INT"

    # Whether models have the attribute on every node. Only then can it be read through onnxruntime-extensions.
    is_always_written: bool = True

    # The values that the attribute may have, if they are few. If empty, the operator takes any value, or checks it itself.
    values: tuple[Any, ...] = ()

    def value(self, value: Any) -> Any:
        """Return a value, which may be text, in the Python type of this kind of attribute."""
        return _PYTHON[self.kind](value)


class Parameter(NamedTuple):
    """An input or an output of an operator. Parameters with the same type variable have the same element type. A variadic
    parameter comes last and stands for any number of inputs. If a parameter is not homogeneous, each of its inputs may have any
    element type of its type variable, whichever types its other inputs have. Every node has at least one input."""

    name: str
    variable: str
    doc: str = ""
    option: Option = "required"
    is_homogeneous: bool = True


def known(shape: Shape | None, instead: Sequence[int]) -> list[int]:
    """Return a shape without unknown dimensions. `instead` provides them (1 beyond its end), or the whole shape if it is
    unknown."""
    if shape is None:
        return [*instead]
    padded = [*instead, *[1] * len(shape)]
    return [padded[i] if size is None else size for i, size in enumerate(shape)]


def shape_text(shape: Shape | None) -> str:
    """Return a shape as messages show it, with "?" for what is unknown."""
    return "?" if shape is None else "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


class Tensor(NamedTuple):
    """The element type and the shape of a tensor before the model runs, None if unknown."""

    element_type: ElementType | None
    shape: Shape | None


class Overload(NamedTuple):
    """A choice of one element type for each type variable of an operator: the element types of its homogeneous inputs and of
    its outputs."""

    inputs: tuple[ElementType, ...]
    outputs: tuple[ElementType, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Schema:
    """The schema of a version of an operator.

    Parameters
    ----------
    domain, name, since_version
        As in ONNX; `domain` is "" for ONNX's own operators.
    doc : str
        The text of the schema.
    types : mapping of type variable to element types
        The allowed element types, in the order in which ONNX Runtime is to try them.
    inputs, outputs : tuple of Parameter
    attributes : tuple of Attribute
    """

    domain: str
    name: str
    since_version: int = 1
    doc: str
    types: Mapping[str, tuple[ElementType, ...]]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...] = (Parameter("y", "T", "Of the shape of x."),)
    attributes: tuple[Attribute, ...]

    @property
    def full_name(self) -> str:
        return f"{self.domain or 'ai.onnx'}::{self.name}"

    @property
    def fewest_inputs(self) -> int:
        return max(1, sum(parameter.option == "required" for parameter in self.inputs))

    @property
    def most_inputs(self) -> int | None:
        """The largest number of inputs, or None for any number."""
        return None if self.inputs[-1].option == "variadic" else len(self.inputs)

    @property
    def takes_type(self) -> bool:
        """Return whether an attribute gives the element type of the output."""
        return len(self.outputs) == 1 and any(attribute.name == "output_dtype" for attribute in self.attributes)

    @property
    def is_homogeneous(self) -> bool:
        """Return whether all inputs that a variadic parameter stands for have the same element type."""
        return self.inputs[-1].is_homogeneous or self.inputs[-1].option != "variadic"

    def input(self, index: int) -> Parameter:
        """Return the parameter of a node's input. A variadic parameter stands for all inputs from its place on."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def overloads(self, allowed: Callable[[ElementType], bool]) -> Iterator[Overload]:
        """Yield every overload whose element types are allowed. Overloads whose output types also occur among the inputs come
        first, because ONNX Runtime takes the first match when a model does not declare an output's type."""
        alike = [parameter for parameter in self.inputs if parameter.is_homogeneous]
        used = {parameter.variable for parameter in (*alike, *self.outputs)}
        variables = [variable for variable in self.types if variable in used]
        overloads = []
        for chosen in product(*(filter(allowed, self.types[variable]) for variable in variables)):
            types = dict(zip(variables, chosen, strict=True))
            inputs, outputs = (tuple(types[parameter.variable] for parameter in side) for side in (alike, self.outputs))
            overloads.append(Overload(inputs, outputs))
        yield from sorted(overloads, key=lambda overload: not set(overload.outputs) <= set(overload.inputs))

    def check_types(self, element_types: Sequence[ElementType | str | None]) -> None:
        """Raise TypeError if an input has an element type that is not allowed. None is an unknown type, and a str the name of a
        type that the package lacks."""
        variables: dict[str, ElementType | str] = {}
        for index, element_type in enumerate(element_types):
            if element_type is None:
                continue
            parameter = self.input(index)
            allowed = self.types[parameter.variable]
            first = variables.setdefault(parameter.variable, element_type) if parameter.is_homogeneous else element_type
            if first is not element_type and not isinstance(first, str):
                allowed = (first,)
            if element_type not in allowed:
                name = element_type if isinstance(element_type, str) else element_type.name
                raise TypeError(f"{parameter.name} has element type {name}; expected {names(allowed)}")

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return values for all attributes: the given values, and the defaults of all other attributes. Raise ValueError if a
        required attribute is missing."""
        result = {}
        for attribute in self.attributes:
            value = given.get(attribute.name, attribute.default)
            if value is None:
                raise ValueError(f"attribute {attribute.name} is missing")
            result[attribute.name] = value
        return result
