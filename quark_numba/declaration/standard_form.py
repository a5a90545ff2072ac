"""The standard form of a node: nodes of ONNX's standard operators that compute the same, with every bit, and the `Builder` of
such nodes, whose operators depend on the opset.

A family says in its `standard_form` what its operators compute, with a `Builder`, which writes the nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..element_types import ElementType
from .meaning import AnyOperand
from .reasons import require, stays_if
from .schema import Shape

# The inputs of nodes: operands, or constants.
Given = Any

# Beyond the end of each axis.
_END = 2**63 - 1


class Builder(ABC, Generic[AnyOperand]):
    """Writes nodes of ONNX's standard operators in front of the node whose standard form they are.

    ``op("Add", x, 1.0)`` writes a node, and returns its output. An input is an operand, an array, a Python float, which is a
    float32, or None, which is left out. So all constants that are not arrays are float32.

    Parameters
    ----------
    opset : int
        The model's version of ONNX's operators.
    is_for_webgpu : bool
        Whether the model is written for WebGPU in ONNX Runtime Web. It has no Cast to bfloat16, to float8 or to float64, and
        to float16 only on some devices; and its Clip does not keep NaN.
    """

    def __init__(self, opset: int, is_for_webgpu: bool = False) -> None:
        self.opset, self.is_for_webgpu = opset, is_for_webgpu

    @abstractmethod
    def __call__(self, op_type: str, *inputs: Given, **attributes: Any) -> AnyOperand:
        """Write a node with one output, and return that. Raise NotRewrittenError if the opset has no such operator."""

    @abstractmethod
    def shape(self, x: AnyOperand) -> Shape | None:
        """Return the shape of an operand, as far as it is known before the model runs; an unknown dimension is None."""

    @abstractmethod
    def may_be_nan(self, x: AnyOperand) -> bool:
        """Return whether it is not proved that no element of an operand is NaN."""

    @property
    @abstractmethod
    def is_beside_product(self) -> bool:
        """Return whether a MatMul is next to the node: ONNX Runtime may fuse a factor or divisor of one element into it."""

    @property
    @abstractmethod
    def signs_of_zeros_matter(self) -> bool:
        """Return whether 0 and -0 in the node's output may make a difference."""

    def rank(self, x: AnyOperand) -> int:
        """Return the number of dimensions. Raise NotRewrittenError if it is not known."""
        return len(require(self.shape(x), "the rank of its x is not known"))

    # Operators whose form depends on the opset, or on what is given.

    def cast(self, x: AnyOperand, to: ElementType, **attributes: int) -> AnyOperand:
        return x if x.element_type is to else self("Cast", x, to=to.number, **attributes)

    def clip(self, x: AnyOperand, low: NDArray[Any] | float, high: NDArray[Any] | float) -> AnyOperand:
        """Return x between constant bounds of x's type, which broadcast to x. NaN stays."""
        if np.size(low) == np.size(high) == 1 and not (self.is_for_webgpu and self.may_be_nan(x)):
            if self.opset < 11:
                return self("Clip", x, min=float(np.reshape(low, ())), max=float(np.reshape(high, ())))
            return self("Clip", x, *(bound.reshape(()) if isinstance(bound, np.ndarray) else bound for bound in (low, high)))
        return self("Min", self("Max", x, low), high)

    def reduce(self, op_type: str, x: AnyOperand, *axes: int) -> AnyOperand:
        """Write ReduceMax, ReduceMin or ReduceSum along axes, which stay, with the length 1."""
        if self.opset < (13 if op_type == "ReduceSum" else 18):
            return self(op_type, x, axes=axes, keepdims=1)
        return self(op_type, x, int64s(*axes), keepdims=1)

    def reshape(self, x: AnyOperand, shape: Sequence[int]) -> AnyOperand:
        """Return x in another shape. As in ONNX, 0 stands for the dimension that x has, and one -1 for what is left."""
        return self("Reshape", x, int64s(*shape))

    def unsqueeze(self, x: AnyOperand, *axes: int) -> AnyOperand:
        """Return x with dimensions of length 1 at these axes of the result."""
        return self("Unsqueeze", x, axes=axes) if self.opset < 13 else self("Unsqueeze", x, int64s(*axes))

    def squeeze(self, x: AnyOperand, *axes: int) -> AnyOperand:
        """Return x without these axes, whose lengths are 1."""
        return self("Squeeze", x, axes=axes) if self.opset < 13 else self("Squeeze", x, int64s(*axes))

    def along(self, given: Given, x: AnyOperand, axis: int) -> Given:
        """Return parameters, one for each index along an axis of x, in a shape that broadcasts to x. An operand may also be one
        parameter for all of x."""
        shape = self.shape(x)
        if shape is None and axis >= 0:
            return self("Reshape", given, self.concat(int64s(-1), self.ones(self.slice(self("Shape", x), axis + 1))))
        if shape is not None and not len(shape):
            return given.reshape(()) if is_constant(given) else self.reshape(given, ())
        ones = [1] * (-1 - axis if shape is None else len(shape) - 1 - axis % len(shape))
        return given.reshape([*given.shape, *ones]) if is_constant(given) else self.reshape(given, [-1, *ones])

    # Shapes that are computed in the run.

    def length(self, x: AnyOperand, axis: int) -> AnyOperand:
        """Return the length of an axis, as a tensor of one element."""
        return self("Gather", self("Shape", x), int64s(axis), axis=0)

    def slice(self, x: AnyOperand, first: int, last: int = _END) -> AnyOperand:
        """Return the elements of x, which has one dimension, from the index `first` to before `last`."""
        return self("Slice", x, int64s(first), int64s(last), int64s(0))

    def concat(self, *parts: Given) -> AnyOperand:
        """Return tensors of one dimension as one. Arrays without elements are left out."""
        return self("Concat", *(part for part in parts if not is_constant(part) or part.size), axis=0)

    def ones(self, dims: AnyOperand) -> AnyOperand:
        """Return as many ones as a shape has dimensions."""
        return self("Expand", int64s(1), self("Shape", dims))

    def like(self, y: AnyOperand, x: AnyOperand) -> AnyOperand:
        """Return y in the shape of x, which has as many elements."""
        return self("Reshape", y, self("Shape", x), **({"allowzero": 1} if self.opset >= 14 else {}))

    # Arithmetic.

    def without_nan(self, x: AnyOperand, instead: Given) -> AnyOperand:
        """Return x with a constant in place of NaN. ONNX Runtime's Where gives 0 for a -0 in its second input, which is the
        constant here. In its third input -0 stays."""
        return self("Where", self("IsNaN", x), instead, x) if self.may_be_nan(x) else x

    def with_positive_zero(self, x: AnyOperand) -> AnyOperand:
        """Return x with 0 in place of -0.

        ONNX Runtime's optimizers drop an addition of a zero of one element, and a subtraction of it. They keep an addition of
        several zeros, and a subtraction from zero. 0 - (0 - x) is x, except that 0 - 0 and 0 - -0 are 0."""
        shape = self._shape_of_several(x)
        return self("Sub", 0.0, self("Sub", 0.0, x)) if shape is None else self("Add", x, np.zeros(shape, np.float32))

    def factor(self, x: AnyOperand, number: NDArray[Any]) -> Given:
        """Return a constant factor or divisor of x in a form that stays beside a MatMul. ONNX Runtime would multiply the sums
        of products with a constant of one element, or with its inverse, and not round x / number or x * number by itself.

        It does not do so with several elements. If no dimension of x is known to be more than 1, the number becomes the result
        of a computation of one element, which depends on x: no size is -1, but ONNX Runtime does not compute sizes before the
        run."""
        if number.size != 1 or not self.is_beside_product:
            return number
        shape = self._shape_of_several(x)
        if shape is not None:
            return np.full(shape, number.reshape(()))
        return self("Where", self("Equal", self("Size", x), int64s(-1)[0]), np.ones((), number.dtype), number.reshape(()))

    def plus(self, x: AnyOperand, number: Given) -> AnyOperand:
        """Return x + number, float32, for an operand or a constant array. x + -0 is x, and x + 0 is not for an x of -0.

        It is written as a subtraction, as ONNX Runtime's optimizers fuse an Add with a Conv or MatMul in front of it."""
        if not is_constant(number):
            return self("Add", x, number)
        bits = np.asarray(number, np.float32).view(np.uint32)
        if bool(np.all(bits == 1 << 31)):
            return x
        return self("Sub", x, -number) if bool(np.any(bits)) else self.with_positive_zero(x)

    def at_least(self, x: AnyOperand, bound: Given) -> AnyOperand:
        """Return whether x >= bound, float32, for an operand or a constant array."""
        if self.opset >= 12:
            return self("GreaterOrEqual", x, bound)
        stays_if(not is_constant(bound) or np.any(np.isneginf(bound)), f"opset {self.opset} has no GreaterOrEqual")
        return self("Greater", x, np.nextafter(bound, np.float32(-np.inf)))

    def quotient(self, x: AnyOperand, divisor: Given) -> AnyOperand:
        """Return x / divisor, float32, for an operand or a constant array."""
        if not is_constant(divisor):
            return self("Div", x, divisor)
        if bool(np.all(divisor == 1)):
            return x
        divisor = np.asarray(divisor)
        if is_power_of_two(divisor):
            return self("Mul", x, self.factor(x, np.asarray(1 / divisor)))
        return self("Div", x, self.factor(x, divisor))

    def product(self, x: AnyOperand, factor: Given) -> AnyOperand:
        """Return x * factor, float32, for an operand or a constant array."""
        if not is_constant(factor):
            return self("Mul", x, factor)
        return x if bool(np.all(factor == 1)) else self("Mul", x, self.factor(x, np.asarray(factor)))

    def _shape_of_several(self, x: AnyOperand) -> Sequence[int] | None:
        """Return a shape of more than one element that broadcasts to x, or None if no dimension of x is known to be more than
        1."""
        shape = self.shape(x) or ()
        several = [(length, len(shape) - 1 - i) for i, length in enumerate(shape) if length is not None and length > 1]
        return (several[-1][0], *[1] * several[-1][1]) if several else None


def is_constant(operand: Given) -> TypeGuard[NDArray[Any]]:
    """Return whether an input is an array, or a number of numpy: what its operators return for arrays of one element."""
    return isinstance(operand, (np.ndarray, np.generic))


def int64s(*numbers: int) -> NDArray[np.int64]:
    """Return the numbers as an input of an operator that takes a shape or axes."""
    return np.array(numbers, np.int64)


def one(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array whose elements have the same bits as one element without a shape."""
    first = array.reshape(-1)[:1]
    return first.reshape(()) if array.size and array.tobytes() == array.size * first.tobytes() else array


def is_power_of_two(scale: NDArray[Any]) -> bool:
    """Return whether dividing float32 by these numbers gives the same bits as multiplying with their inverses."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    exact = (np.abs(np.frexp(scale)[0]) == 0.5) & np.isfinite(inverse) & (np.abs(inverse) >= np.finfo(np.float32).tiny)
    return scale.dtype == np.float32 and bool(np.all(exact & (np.abs(scale) >= np.finfo(np.float32).tiny)))
