"""The declaration of an operator: its types, inputs and attributes, how it is computed, and what its nodes mean.

Registration with ONNX Runtime, schemas, the reference evaluator, the optimiser, the command and the tables of the documentation
read it, and know no operator by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from .element_types import FLOAT32, ElementType, names

# The names that ``onnx.AttributeProto.AttributeType`` has for them, and what Python has.
Kind = Literal["INT", "FLOAT", "STRING", "INTS", "FLOATS"]
_PYTHON: dict[Kind, Callable[[Any], Any]] = {
    "INT": int,
    "FLOAT": float,
    "STRING": str,
    "INTS": lambda values: [int(value) for value in values],
    "FLOATS": lambda values: [float(value) for value in values],
}

Option = Literal["required", "optional", "variadic"]

# A shape of which a dimension may be unknown.
Shape = Sequence[int | None]


@dataclass(frozen=True)
class Attribute:
    """An attribute of an operator."""

    name: str
    default: Any = None  # None: the attribute is required
    doc: str = ""
    kind: Kind = "INT"

    # Whether those who write models write it on every node. Through onnxruntime-extensions an attribute can be read only then.
    is_always_written: bool = True

    def value(self, given: Any) -> Any:
        """`given` as Python has this kind of attribute; an attribute may come as text."""
        return _PYTHON[self.kind](given)


@dataclass(frozen=True)
class Parameter:
    """An input or an output. Those with the same type variable have the same element type. A variadic one stands for one or
    more and comes last; if it is not homogeneous, each of these may have another element type."""

    name: str
    variable: str
    doc: str = ""
    option: Option = "required"
    is_homogeneous: bool = True


def known(shape: Shape | None, instead: Sequence[int]) -> list[int]:
    """A shape without what is not known: numbers of `instead` stand for it, or all of these for the whole."""
    if shape is None:
        return [*instead]
    padded = [*instead, *[1] * len(shape)]
    return [padded[i] if each is None else each for i, each in enumerate(shape)]


def shape_text(shape: Shape | None) -> str:
    """The shape as messages print it."""
    return "?" if shape is None else "[" + ", ".join("?" if each is None else str(each) for each in shape) + "]"


class Tensor(NamedTuple):
    """The element type and shape of a tensor, as far as they are known before the model runs."""

    element_type: ElementType | None
    shape: Shape | None


class Overload(NamedTuple):
    """An operator with one element type for each type variable: those of its outputs, and of its inputs but for one that is not
    homogeneous."""

    inputs: tuple[ElementType, ...]
    outputs: tuple[ElementType, ...]


class Operand(Protocol):
    """An input of a node, as far as it is known before the model runs."""

    @property
    def array(self) -> NDArray[Any] | None:
        """The value of a constant; None: no constant."""

    @property
    def element_type(self) -> ElementType | None:
        """None: unknown."""

    def is_same(self, other: Any) -> bool:
        """Whether another operand has the same value in every run."""


AnyOperand = TypeVar("AnyOperand", bound=Operand)


@dataclass(frozen=True)
class Affine(Generic[AnyOperand]):
    """A node that quantizes or dequantizes with a scale and a zero point.

    Parameters
    ----------
    x, scale, zero_point : Operand
        Inputs of the node. A zero point that is left out is 0.
    element_type : ElementType, optional
        The type of the codes; None: unknown.
    axis, block_size : int
        Which elements share a scale, if there are several: those of an index along the axis, or of a block if `block_size` is
        not 0.
    saturate : bool
        Whether a float8 type saturates.
    computes_in : ElementType, optional
        The float type in which the quotient is computed, or the product returned; None: the scale's.
    """

    x: AnyOperand
    scale: AnyOperand
    zero_point: AnyOperand | None
    element_type: ElementType | None
    axis: int
    block_size: int
    saturate: bool = True
    computes_in: ElementType | None = None

    @property
    def has_other_type(self) -> bool:
        """Whether the node asks for another type than float32 to compute in."""
        return self.computes_in not in (None, FLOAT32)

    @property
    def is_symmetric(self) -> bool:
        """Whether the zero point is known to be 0."""
        array = None if self.zero_point is None else self.zero_point.array
        return self.zero_point is None or (array is not None and not any(array.tobytes()))

    def has_same_parameters(self, other: Affine[AnyOperand]) -> bool:
        """Whether scale, zero point and granularity are the same in every run."""
        scale = self.scale.array
        is_one_scale = scale is not None and scale.size == 1
        if (self.axis != other.axis and not is_one_scale) or self.block_size != other.block_size:
            return False
        if not self.scale.is_same(other.scale):
            return False
        if self.zero_point is not None and other.zero_point is not None:
            return self.zero_point.is_same(other.zero_point)
        if self.zero_point is other.zero_point:
            return True
        return self.element_type is other.element_type and self.is_symmetric and other.is_symmetric


class Quantize(Affine[AnyOperand]):
    """codes = saturate(round(x / scale) + zero_point)."""


class Dequantize(Affine[AnyOperand]):
    """y = (x - zero_point) * scale, where x are codes."""


class RoundTrip(Affine[AnyOperand]):
    """Quantize, then Dequantize with the same parameters."""


@dataclass(frozen=True)
class BlockRoundTrip(Generic[AnyOperand]):
    """A node that rounds x to a format whose elements share exponents, block by block along an axis.

    Parameters
    ----------
    x : Operand
    operator : str
        The newest name of the operator.
    attributes : mapping
        Values for all attributes of that operator.
    format : str
        The name that the format goes by: "mx9", "bfp16", "mxfp8_e4m3".
    bits : float
        What an element takes, with its share of the block's exponent.
    """

    x: AnyOperand
    operator: str
    attributes: Mapping[str, Any]
    format: str
    bits: float

    @property
    def axis(self) -> int:
        return int(self.attributes["axis"])

    @property
    def block_size(self) -> int:
        return int(self.attributes["block_size"])


Meaning = Affine[AnyOperand] | BlockRoundTrip[AnyOperand]


@dataclass(frozen=True, eq=False)
class Operator:
    """A version of an operator.

    Parameters
    ----------
    wing : str
        The package that it belongs to; ``ort/nodes`` has a module of that name, with its compute function.
    domain, name, since_version
        As in ONNX; `domain` is "" for ONNX's own.
    operation : str
        The wing's word for what the operator computes. Operators that compute the same have the same word.
    doc : str
        For the schema.
    types : mapping of type variable to element types
        In the order in which ONNX Runtime is to try them.
    inputs, outputs : tuple of Parameter
    attributes : tuple of Attribute
    call : callable
        ``call(*inputs, **attributes)`` with arrays, None for an optional input that is left out, and values for all attributes.
        Returns an array, or a tuple of arrays if there are several outputs. Raises TypeError or ValueError.
    infer : callable
        ``infer(inputs, attributes)`` with a ``Tensor`` for each input, None for one that is left out, and values for all
        attributes. Returns a ``Tensor`` for each output. Raises ValueError for attributes and shapes that cannot be.
    faults : mapping of number to message
        What a run may find wrong. In a message, ``{NAME_shape}`` stands for the shape of the input NAME, and ``{NAME}`` for the
        value of the attribute NAME, an INT.
    formats : mapping of name to element type
        The number formats that it quantizes to or from, and the type of the tensors that hold these; None where none does.
    format_of : callable
        ``format_of(types, attributes)`` with the name of an element type for each input, None where it is unknown or the input
        is left out, and the attributes that a node has. Returns the name of the node's format, "?" if it is unknown.
    column : str
        The type variable that the tables of the documentation have columns for, beside a row for each format.
    meaning : callable, optional
        ``meaning(inputs, attributes)`` with an ``Operand`` for each input, None for one that is left out, and values for all
        attributes. Returns what a node means: ``Quantize``, ``Dequantize``, ``RoundTrip`` or ``BlockRoundTrip``. Raises
        ValueError for attributes that cannot be. None: the nodes round inside of what they compute.
    like : callable, optional
        ``like(inputs, attributes)`` with the names of a node's inputs, and values for all attributes. Returns an operator of
        ONNX (name, inputs, attributes) whose output has the shape of y. None: y has the shape of the first input.
    attributes_of_shapes : callable, optional
        ``attributes_of_shapes(*shapes of inputs)`` returns what the shapes tell of attributes that are not always written.
    newer_name : str
        The name of the same operator in newer models, which the tables list instead; "": this is the newest.
    is_pure : bool
        Whether the same inputs always give the same outputs, so that a node of constants is a constant.
    is_checked_at_load : bool
        Whether sessions call `infer` when they load a node, with what is known of its inputs then. It takes some time, which
        operators of hundreds of nodes a model leave to the run.
    """

    wing: str
    domain: str
    name: str
    since_version: int
    operation: str
    doc: str
    types: Mapping[str, tuple[ElementType, ...]]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]
    call: Callable[..., Any]
    infer: Callable[[Sequence[Tensor | None], Mapping[str, Any]], list[Tensor]]
    faults: Mapping[int, str]
    formats: Mapping[str, ElementType | None]
    format_of: Callable[[Sequence[str | None], Mapping[str, Any]], str]
    column: str
    meaning: Callable[[Sequence[Any], Mapping[str, Any]], Meaning[Any]] | None = None
    like: Callable[[Sequence[str], Mapping[str, Any]], tuple[str, Sequence[str], Mapping[str, Any]]] | None = None
    attributes_of_shapes: Callable[..., dict[str, Any]] | None = None
    newer_name: str = ""
    is_pure: bool = True
    is_checked_at_load: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.domain or 'ai.onnx'}::{self.name}"

    @property
    def fewest_inputs(self) -> int:
        return sum(parameter.option != "optional" for parameter in self.inputs)

    @property
    def most_inputs(self) -> int | None:
        """None: any number."""
        return None if self.inputs[-1].option == "variadic" else len(self.inputs)

    def input(self, index: int) -> Parameter:
        """The parameter of a node's input. A variadic parameter stands for all inputs from its place on."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def overloads(self, allowed: Callable[[ElementType], bool]) -> Iterator[Overload]:
        """Yield every overload whose element types are allowed. Overloads whose output types also occur among the inputs come
        first, because ONNX Runtime takes the first match when a model does not declare an output's type."""
        alike = [parameter for parameter in self.inputs if parameter.is_homogeneous]
        used = {parameter.variable for parameter in (*alike, *self.outputs)}
        variables = [variable for variable in self.types if variable in used]
        found = []
        for chosen in product(*(filter(allowed, self.types[variable]) for variable in variables)):
            types = dict(zip(variables, chosen, strict=True))
            inputs, outputs = (tuple(types[parameter.variable] for parameter in each) for each in (alike, self.outputs))
            found.append(Overload(inputs, outputs))
        yield from sorted(found, key=lambda overload: not set(overload.outputs) <= set(overload.inputs))

    def check_types(self, element_types: Sequence[ElementType | None]) -> None:
        """Raises TypeError if an input has another element type than it may have; None: unknown."""
        variables: dict[str, ElementType] = {}
        for index, element_type in enumerate(element_types):
            if element_type is None:
                continue
            parameter = self.input(index)
            allowed = self.types[parameter.variable]
            if parameter.is_homogeneous and variables.setdefault(parameter.variable, element_type) is not element_type:
                allowed = (variables[parameter.variable],)
            if element_type not in allowed:
                raise TypeError(f"{parameter.name} has element type {element_type.name}; expected {names(allowed)}")

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values for all attributes: those that a node has, or their defaults. Raises ValueError if a required one is
        missing."""
        result = {}
        for attribute in self.attributes:
            value = given.get(attribute.name, attribute.default)
            if value is None:
                raise ValueError(f"attribute {attribute.name} is missing")
            result[attribute.name] = value
        return result

    def fault(self, number: int, shapes: Sequence[Any], attributes: Mapping[str, Any]) -> str:
        """The message of a fault; `shapes` are those of the inputs, in the form that the message is to have."""
        names = [f"{parameter.name}_shape" for parameter in self.inputs]
        return self.faults[number].format(**dict(zip(names, shapes, strict=False)), **attributes)
