"""What a node means, whichever operator it has: the kinds of meanings, such as a round trip with its scale and zero point;
rewriting and analysis read this alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from ..element_types import FLOAT32, ElementType


class Operand(Protocol):
    """An input of a node, as far as it is known before the model runs."""

    @property
    def array(self) -> NDArray[Any] | None:
        """The value of a constant, or None if it is not a constant."""

    @property
    def element_type(self) -> ElementType | None:
        """The element type, or None if it is unknown."""

    def is_same(self, other: Any) -> bool:
        """Return whether another operand has the same value in every run."""


AnyOperand = TypeVar("AnyOperand", bound=Operand)


@dataclass(frozen=True)
class Affine(Generic[AnyOperand]):
    """A node that quantizes or dequantizes with a scale and a zero point.

    Parameters
    ----------
    x, scale, zero_point : Operand
        Inputs of the node. An omitted zero point is 0.
    element_type : ElementType, optional
        The element type of the codes. None if it is unknown.
    axis, block_size : int
        The granularity, if there are several scales: one for each index along `axis`, or one for each block along it if
        `block_size` is not 0.
    saturate : bool
        Whether rounding to a float8 type saturates.
    computes_in : ElementType, optional
        The float type in which the quotient is computed, or the product returned. None for the type of the scale.
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
        """Return whether the node names a type other than float32 to compute in."""
        return self.computes_in not in (None, FLOAT32)

    @property
    def zero_points(self) -> NDArray[Any] | None:
        """The value of the zero point, or None if it is omitted or not a constant."""
        return None if self.zero_point is None else self.zero_point.array

    @property
    def is_symmetric(self) -> bool:
        """Return whether the zero point is known to be 0."""
        return self.zero_point is None or (self.zero_points is not None and not any(self.zero_points.tobytes()))

    def has_same_parameters(self, other: Affine[AnyOperand]) -> bool:
        """Return whether scale, zero point and granularity are the same in every run."""
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
    """How a block format is stored: ``convert(x)`` returns the codes of a float32 array x, and the scales of its blocks.

    DequantizeLinear with the same axis and block_size turns them into the result of the round trip, except for elements that
    the format cannot hold."""

    element_type: ElementType  # of the codes
    convert: Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


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
        How the format is stored as codes and scales. None if it is not stored so.
    is_idempotent : bool
        Whether float32 results come back from an equal node as they are, also if some of them became 0 or changed their signs.
    """

    x: AnyOperand
    operator: str
    attributes: Mapping[str, Any]
    format: str
    bits: float
    stored: StoredForm | None = None
    is_idempotent: bool = False

    @property
    def axis(self) -> int:
        return int(self.attributes["axis"])

    @property
    def block_size(self) -> int:
        return int(self.attributes["block_size"])

    def is_equal(self, other: Meaning[AnyOperand]) -> bool:
        """Return whether a node rounds to the same format, along whatever axis."""
        if not isinstance(other, BlockRoundTrip) or self.operator != other.operator:
            return False
        return {**self.attributes, "axis": 0} == {**other.attributes, "axis": 0}


@dataclass(frozen=True)
class DynamicQuantize(Generic[AnyOperand]):
    """A node that quantizes blocks along an axis with scales that it computes. Its outputs are the codes and the scales.

    Parameters
    ----------
    x : Operand
    scale : Operand, optional
        One scale for the whole tensor, by which the scales of the blocks are to be multiplied.
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
        The family's names for the way in which the format is described, and for the rounding.
    parameters : mapping
        What describes the format, by the names of the form: operands, or numbers.
    axis : int, optional
        The axis of x along which operands lie, which have one dimension then, or one element. None if each operand has one
        element, "broadcast" if they broadcast to x as in numpy.
    """

    x: AnyOperand
    form: str
    rounding_mode: str
    parameters: Mapping[str, AnyOperand | float]
    axis: int | Literal["broadcast"] | None = "broadcast"


Meaning = Affine[AnyOperand] | BlockRoundTrip[AnyOperand] | DynamicQuantize[AnyOperand] | FakeQuantize[AnyOperand]
