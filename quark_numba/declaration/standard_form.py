"""The standard form of a node: nodes of ONNX's standard operators that compute the same, with every bit.

A family says in its `standard_form` what its operators compute, with a `Builder`, which writes the nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from ..element_types import ElementType
from .meaning import AnyOperand
from .schema import Shape

# The inputs of nodes: operands, or constants.
Given = Any


class NoStandardForm(Exception):  # noqa: N818
    """A node cannot be written in ONNX's standard operators; the message gives the reason."""


class Builder(ABC, Generic[AnyOperand]):
    """Writes nodes of ONNX's standard operators in front of the node whose standard form they are.

    ``op("Add", x, 1.0)`` writes a node, and returns its output. An input is an operand, an array, a Python float, which is a
    float32, or None, which is left out. So all constants that are no arrays are float32.

    Parameters
    ----------
    opset : int
        The model's version of ONNX's operators.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset

    @abstractmethod
    def __call__(self, op_type: str, *inputs: Given, **attributes: Any) -> AnyOperand:
        """Write a node with one output, and return that. Raise NoStandardForm if the opset has no such operator."""

    @abstractmethod
    def shape(self, x: AnyOperand) -> Shape | None:
        """Return the shape of an operand, as far as it is known before the model runs; an unknown dimension is None."""

    @abstractmethod
    def may_be_nan(self, x: AnyOperand) -> bool:
        """Whether it is not proved that no element of an operand is NaN."""

    @abstractmethod
    def casts_to(self, element_type: ElementType) -> bool:
        """Whether the opset, and what the model is written for, have Casts to an element type and back."""

    def rank(self, x: AnyOperand) -> int:
        """Return the number of dimensions. Raise NoStandardForm if it is not known."""
        shape = self.shape(x)
        if shape is None:
            raise NoStandardForm("the rank of its x is not known")
        return len(shape)

    # Operators whose form depends on the opset, or on what is given.

    def cast(self, x: AnyOperand, to: ElementType, **attributes: int) -> AnyOperand:
        return x if x.element_type is to else self("Cast", x, to=to.number, **attributes)

    def clip(self, x: AnyOperand, low: NDArray[Any] | float, high: NDArray[Any] | float) -> AnyOperand:
        """Return x between constant bounds of x's type, which broadcast to x. NaN stays."""
        if np.size(low) == np.size(high) == 1:
            if self.opset < 11:
                return self("Clip", x, min=float(np.reshape(low, ())), max=float(np.reshape(high, ())))
            return self("Clip", x, *(bound.reshape(()) if isinstance(bound, np.ndarray) else bound for bound in (low, high)))
        return self("Min", self("Max", x, low), high)

    def reduce_max(self, x: AnyOperand, axis: int) -> AnyOperand:
        """Return the largest elements along an axis, which stays, with the length 1."""
        if self.opset < 18:
            return self("ReduceMax", x, axes=[axis], keepdims=1)
        return self("ReduceMax", x, int64s(axis), keepdims=1)

    def reshape(self, x: AnyOperand, shape: Sequence[int]) -> AnyOperand:
        """Return x in another shape. As in ONNX, 0 stands for the dimension that x has, and one -1 for what is left."""
        return self("Reshape", x, int64s(*shape))

    # Arithmetic.

    def without_nan(self, x: AnyOperand, instead: Given) -> AnyOperand:
        """Return x with a constant in the place of NaN."""
        return self("Where", self("IsNaN", x), instead, x) if self.may_be_nan(x) else x

    def with_positive_zero(self, x: AnyOperand) -> AnyOperand:
        """Return x with 0 in the place of -0.

        ONNX Runtime's optimisers drop an addition of a zero of one element, and a subtraction of it. They keep an addition of
        several zeros, and a subtraction from zero. 0 - (0 - x) is x, except that 0 - 0 and 0 - -0 are 0."""
        several = next((i for i, length in enumerate(self.shape(x) or ()) if length is not None and length > 1), None)
        if several is None:
            return self("Sub", 0.0, self("Sub", 0.0, x))
        shape = self.shape(x)
        assert shape is not None
        return self("Add", x, np.zeros([shape[several], *[1] * (len(shape) - several - 1)], np.float32))


def int64s(*numbers: int) -> NDArray[np.int64]:
    """Return the numbers as an input of an operator that takes a shape or axes."""
    return np.array(numbers, np.int64)


def along(array: NDArray[Any], rank: int, axis: int) -> NDArray[Any]:
    """Return parameters, one for each index along an axis, in a shape that broadcasts to x. One element has no shape."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape([*array.shape, *[1] * (rank - 1 - axis % rank)])


def is_power_of_two(scale: NDArray[Any]) -> bool:
    """Whether dividing float32 by these numbers gives the same bits as multiplying with their inverses."""
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / scale
    exact = (np.abs(np.frexp(scale)[0]) == 0.5) & np.isfinite(inverse) & (np.abs(inverse) >= np.finfo(np.float32).tiny)
    return scale.dtype == np.float32 and bool(np.all(exact & (np.abs(scale) >= np.finfo(np.float32).tiny)))
