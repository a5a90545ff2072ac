"""The declaration of an operator: its types, inputs and attributes, how it is computed, and what its nodes mean.

Registration with ONNX Runtime, schemas, the reference evaluator, the optimiser, the command and the tables of the documentation
read the declarations. None of them knows an operator by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from .element_types import FLOAT32, UINT8, ElementType, names

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


@dataclass(frozen=True)
class Attribute:
    """An attribute of an operator."""

    name: str
    default: Any = None  # None: the attribute is required
    doc: str = ""
    kind: Kind = "INT"

    # Whether models have the attribute on every node. Only then can it be read through onnxruntime-extensions.
    is_always_written: bool = True

    # The values that the attribute may have, if they are few; empty: the operator takes any, or says which.
    values: tuple[Any, ...] = ()

    def value(self, given: Any) -> Any:
        """Return `given`, which may be text, in the Python type of this kind of attribute."""
        return _PYTHON[self.kind](given)


@dataclass(frozen=True)
class Parameter:
    """An input or an output of an operator. Parameters with the same type variable have the same element type. A variadic
    parameter comes last and stands for one or more inputs or outputs. If it is not homogeneous, their element types may
    differ."""

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
    return [padded[i] if each is None else each for i, each in enumerate(shape)]


def shape_text(shape: Shape | None) -> str:
    """Return a shape as messages show it, with "?" for what is unknown."""
    return "?" if shape is None else "[" + ", ".join("?" if each is None else str(each) for each in shape) + "]"


class Tensor(NamedTuple):
    """The element type and the shape of a tensor before the model runs; None: unknown."""

    element_type: ElementType | None
    shape: Shape | None


class Overload(NamedTuple):
    """A choice of one element type for each type variable of an operator: the element types of its homogeneous inputs and of
    its outputs."""

    inputs: tuple[ElementType, ...]
    outputs: tuple[ElementType, ...]


def held(uint8_holds: ElementType | None, element_type: ElementType) -> ElementType:
    """Return the element type of the codes in a tensor, if tensors of uint8 hold those of `uint8_holds`."""
    return uint8_holds if uint8_holds and element_type is UINT8 else element_type


class Operand(Protocol):
    """An input of a node, as far as it is known before the model runs."""

    @property
    def array(self) -> NDArray[Any] | None:
        """The value of a constant; None: not a constant."""

    @property
    def element_type(self) -> ElementType | None:
        """The element type; None: unknown."""

    def is_same(self, other: Any) -> bool:
        """Whether another operand has the same value in every run."""


AnyOperand = TypeVar("AnyOperand", bound=Operand)


@dataclass(frozen=True)
class Affine(Generic[AnyOperand]):
    """A node that quantizes or dequantizes with a scale and a zero point.

    Parameters
    ----------
    x, scale, zero_point : Operand
        Inputs of the node. An omitted zero point is 0.
    element_type : ElementType, optional
        The element type of the codes; None: unknown.
    axis, block_size : int
        The granularity, if there are several scales: one for each index along `axis`, or one for each block along it if
        `block_size` is not 0.
    saturate : bool
        Whether rounding to a float8 type saturates.
    computes_in : ElementType, optional
        The float type in which the quotient is computed, or the product returned; None: the type of the scale.
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
        """Whether the node names a type other than float32 to compute in."""
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
    """y = (x - zero_point) * scale; x contains codes."""


class RoundTrip(Affine[AnyOperand]):
    """Quantize, then Dequantize with the same parameters."""


class StoredForm(NamedTuple):
    """How a block format is stored: ``of(x)`` returns the codes of a float32 array x, and the scales of its blocks.

    DequantizeLinear with the same axis and block_size turns them into the result of the round trip, except for elements that
    the format cannot hold."""

    element_type: ElementType  # of the codes
    of: Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


@dataclass(frozen=True)
class BlockRoundTrip(Generic[AnyOperand]):
    """A node that rounds x to a block format, in which the elements of a block along an axis share an exponent.

    Parameters
    ----------
    x : Operand
    operator : str
        The newest name of the operator.
    attributes : mapping
        Values for all attributes of that operator.
    format : str
        The name of the format, for example "mx9", "bfp16" or "mxfp8_e4m3".
    bits : float
        The number of bits of an element, with its share of the block's exponent.
    stored : StoredForm, optional
        How the format is stored as codes and scales; None: in another way.
    """

    x: AnyOperand
    operator: str
    attributes: Mapping[str, Any]
    format: str
    bits: float
    stored: StoredForm | None = None

    @property
    def axis(self) -> int:
        return int(self.attributes["axis"])

    @property
    def block_size(self) -> int:
        return int(self.attributes["block_size"])


@dataclass(frozen=True)
class DynamicQuantize(Generic[AnyOperand]):
    """A node that quantizes blocks along an axis with scales that it computes. Its outputs are the codes and the scales.

    Parameters
    ----------
    x : Operand
    scale : Operand, optional
        One scale for the whole tensor, by which those of the blocks are to be multiplied. None: there is none.
    element_type : ElementType
        The element type of the codes.
    axis, block_size : int
    round_trip : str
        The name of the package's own operator that quantizes and dequantizes in one step, with inputs x and scale and
        attributes axis and block_size.
    """

    x: AnyOperand
    scale: AnyOperand | None
    element_type: ElementType
    axis: int
    block_size: int
    round_trip: str


@dataclass(frozen=True)
class FakeQuantize(Generic[AnyOperand]):
    """A node that rounds x to the values of a format, in floats alone.

    Parameters
    ----------
    x : Operand
    form, rounding_mode : str
        The wing's names for the way in which the format is described, and for the rounding.
    parameters : mapping
        What describes the format, by the names of the form: operands, or numbers.
    axis : int, optional
        The axis of x along which operands lie, which have one dimension then, or one element. None: each operand has one
        element. "broadcast": they broadcast to x as in numpy.
    """

    x: AnyOperand
    form: str
    rounding_mode: str
    parameters: Mapping[str, AnyOperand | float]
    axis: int | Literal["broadcast"] | None = "broadcast"


Meaning = Affine[AnyOperand] | BlockRoundTrip[AnyOperand] | DynamicQuantize[AnyOperand] | FakeQuantize[AnyOperand]


@dataclass(frozen=True, eq=False)
class Operator:
    """A version of an operator.

    Parameters
    ----------
    wing : str
        The package of the operator. ``ort/nodes`` has a module of the same name, with the compute function.
    domain, name, since_version
        As in ONNX; `domain` is "" for ONNX's own operators.
    operation : str
        The wing's name for the computation. Operators with the same computation have the same `operation`.
    doc : str
        The text of the schema.
    types : mapping of type variable to element types
        The allowed element types, in the order in which ONNX Runtime is to try them.
    inputs, outputs : tuple of Parameter
    attributes : tuple of Attribute
    call : callable
        ``call(*inputs, **attributes)`` with arrays, None for an omitted input, and values for all attributes. Returns an array,
        or a tuple of arrays if there are several outputs. Raises TypeError or ValueError.
    infer : callable
        ``infer(inputs, attributes)`` with a ``Tensor`` for each input, None for an omitted input, and values for all
        attributes. Returns a ``Tensor`` for each output. Raises ValueError for invalid attributes and shapes.
    faults : mapping of number to message
        The messages of the errors that a run may find. In a message, ``{NAME_shape}`` stands for the shape of the input NAME,
        and ``{NAME}`` for the value of the attribute NAME, an INT.
    formats : mapping of name to element type
        The number formats that the operator quantizes to or from, each with the element type of the tensors that hold it; None
        if no tensor does.
    format_of : callable
        ``format_of(types, attributes)`` with the name of each input's element type, None if it is unknown or the input is
        omitted, and the attributes of a node. Returns the name of the node's format, "?" if it is unknown.
    column : str
        The type variable that the tables of the documentation have columns for. Their rows are formats.
    meaning : callable, optional
        ``meaning(inputs, attributes)`` with an ``Operand`` for each input, None for an omitted input, and values for all
        attributes. Returns the meaning of a node: ``Quantize``, ``Dequantize``, ``RoundTrip``, ``BlockRoundTrip``,
        ``DynamicQuantize`` or ``FakeQuantize``. Raises ValueError for invalid attributes. None: the nodes round inside their
        computation.
    like : callable, optional
        ``like(inputs, attributes)`` with the names of a node's inputs, and values for all attributes. Returns an operator of
        ONNX (name, inputs, attributes) whose output has the shape of y. None: y has the shape of the first input.
    attributes_of_shapes : callable, optional
        ``attributes_of_shapes(*shapes of inputs)``. Returns the attributes that follow from the shapes, among the attributes
        that are not always written.
    newer_name : str
        The name of the same operator in newer models, which the tables list instead; "": `name` is the newest name.
    uint8_holds : ElementType, optional
        The element type whose codes the operator finds in tensors of uint8. Models from before ONNX had the type write it so.
        None: uint8 is what it says.
    is_pure : bool
        Whether the same inputs always give the same outputs, so that a node whose inputs are constants can be folded.
    is_checked_at_load : bool
        Whether sessions call `infer` when they load a node, with the types and shapes known by then. This takes some time, so
        operators with hundreds of nodes in a model are checked in the run instead.
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
    uint8_holds: ElementType | None = None
    is_pure: bool = True
    is_checked_at_load: bool = False

    def renamed(self, domain: str, name: str) -> Operator:
        """Return the same operator as older models name it."""
        return replace(self, domain=domain, name=name, newer_name=self.name)

    @property
    def newest_name(self) -> str:
        return self.newer_name or self.name

    @property
    def full_name(self) -> str:
        return f"{self.domain or 'ai.onnx'}::{self.name}"

    @property
    def fewest_inputs(self) -> int:
        return sum(parameter.option != "optional" for parameter in self.inputs)

    @property
    def most_inputs(self) -> int | None:
        """The largest number of inputs; None: any number."""
        return None if self.inputs[-1].option == "variadic" else len(self.inputs)

    @property
    def takes_type(self) -> bool:
        """Whether an attribute gives the element type of the output."""
        return len(self.outputs) == 1 and any(each.name == "output_dtype" for each in self.attributes)

    def held(self, overload: Overload) -> Overload:
        """Return an overload with the element types of the codes in its tensors."""
        return Overload(*(tuple(held(self.uint8_holds, each) for each in types) for types in overload))

    def input(self, index: int) -> Parameter:
        """Return the parameter of a node's input. A variadic parameter stands for all inputs from its place on."""
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
        """Raise TypeError if an input has an element type that is not allowed. None is an unknown type."""
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
        """Return values for all attributes: the given values, and defaults for the others. Raise ValueError if a required
        attribute is missing."""
        result = {}
        for attribute in self.attributes:
            value = given.get(attribute.name, attribute.default)
            if value is None:
                raise ValueError(f"attribute {attribute.name} is missing")
            result[attribute.name] = value
        return result

    def fault(self, number: int, shapes: Sequence[Any], attributes: Mapping[str, Any]) -> str:
        """Return the message of a fault. `shapes` are the shapes of the inputs, in the form that the message is to show."""
        names = [f"{parameter.name}_shape" for parameter in self.inputs]
        return self.faults[number].format(**dict(zip(names, shapes, strict=False)), **attributes)
