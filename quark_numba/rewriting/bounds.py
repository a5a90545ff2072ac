"""Proved bounds of the magnitudes of a value's elements, with a rule for each operator of ONNX that has one, and the largest
bound that counts. Elements with a bound are neither NaN nor Inf.

A bound has to hold for any order of additions, for rounded products, and for algorithms that split products, such as
Winograd's. So a bound counts only if it is far below the largest float32, and sums and products in float16 have none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..declaration import BlockRoundTrip, Dequantize, FakeQuantize, RoundTrip
from ..element_types import FLOAT16, FLOAT32, find
from .graph import Graph
from .nodes import GraphOperand
from .signs_of_zeros import MOVE_FIRST

_MAX_BOUND = 2.0**100

# Larger constants are not read for a bound.
_LARGE = 1 << 24


class Bounds:
    """The bounds of the values of a graph. An unknown bound is math.inf."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: dict[ir.Value, float] = {}
        self._constants: dict[tuple[ir.Value, Any], float] = {}
        for node in graph.model.graph.all_nodes():
            self.add(node)

    def find(self, value: ir.Value) -> float:
        """Return the bound of a value."""
        return self._known[value] if value in self._known else self.reduce_constant(value, _largest)

    def copy(self, old: ir.Value, new: ir.Value) -> None:
        """Copy the bound of a value to the value that replaces it."""
        self._known[new] = self.find(old)

    def add(self, node: ir.Node) -> None:
        """Record the bounds of a node's outputs."""
        bound = self._bound(node)
        for value in node.outputs:
            self._known[value] = bound if bound <= _MAX_BOUND else math.inf

    def reduce_constant(self, value: ir.Value, reduce: Callable[[NDArray[Any]], float]) -> float:
        """Return the result of a function for the value of a constant in float64, or math.inf if the value is not a
        constant."""
        tensor = self.graph.tensor(value)
        if tensor is None or tensor.nbytes > _LARGE or find(tensor.dtype.value) is None:
            return math.inf
        if (value, reduce) not in self._constants:
            array = self.graph.array(value)
            with np.errstate(invalid="ignore"):  # signalling NaN
                result = reduce(array.astype(np.float64)) if array is not None and array.size else math.inf
            self._constants[value, reduce] = result if math.isfinite(result) else math.inf
        return self._constants[value, reduce]

    def _bound(self, node: ir.Node) -> float:
        meaning = self.graph.meaning(self.graph.node(node))
        if isinstance(meaning, BlockRoundTrip) and len(node.inputs) > 1:
            return math.inf  # a scale of the tensor may make NaN
        if meaning is not None:
            bound = _bound_of_meaning(self, meaning)
            return math.inf if FLOAT16.highest / 2 < bound < math.inf and self._may_be_float16(node) else bound
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        if rule is None or not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
            return math.inf
        bound = rule(self, node, *(0.0 if value is None else self.find(value) for value in node.inputs))
        is_unsafe = node.op_type in _MAY_OVERFLOW and math.isfinite(bound) and self._may_be_float16(node)
        return math.inf if is_unsafe else bound

    def _may_be_float16(self, node: ir.Node) -> bool:
        (y, *_) = node.outputs
        return (self.graph.type(y) or self.graph.inferred_type(y)) in (None, FLOAT16)


def _bound_of_meaning(bounds: Bounds, meaning: Any) -> float:
    """Return the bound of the result of one of the package's nodes."""
    if isinstance(meaning, BlockRoundTrip):
        return _rounded(2 * bounds.find(meaning.x.value))  # at most the next power of two
    if isinstance(meaning, FakeQuantize):
        if meaning.form != "codes":
            return math.inf
        scale, low, high = (bounds.find(each.value) for each in meaning.parameters.values() if isinstance(each, GraphOperand))
        return _rounded(max(low, high) * scale)
    if not isinstance(meaning, (RoundTrip, Dequantize)) or meaning.element_type is None:
        return math.inf
    codes, scale = meaning.element_type, bounds.find(meaning.scale.value)
    if codes.is_integer:  # NaN becomes a code, and a difference of two codes has one bit more
        return 2.0 ** (codes.bits + 1) * scale
    is_rounded = isinstance(meaning, RoundTrip) and meaning.saturate and meaning.is_symmetric
    is_rounded &= math.isfinite(bounds.reduce_constant(meaning.scale.value, _largest_inverse))  # 0 / 0 is NaN
    # Rounding to float types of few bits may enlarge a quotient by half, and by a step of the subnormal codes, at most 1.
    return _rounded(2 * bounds.find(meaning.x.value) + scale) if is_rounded else math.inf


# The bounds of ONNX's operators. A rule takes the bounds, the node, and the bounds of its inputs.


def _rounded(bound: float) -> float:
    """Return the bound of rounded results, also of sums that are rounded many times. Subnormal float16 numbers are 2**-24
    apart."""
    return 1.01 * bound + 2.0**-24


def _largest(array: NDArray[Any]) -> float:
    return float(np.max(np.abs(array)))


def _largest_inverse(array: NDArray[Any]) -> float:
    least = float(np.min(np.abs(array)))
    return 1 / least if least > 0 else math.inf


def _sum_of_columns(array: NDArray[Any]) -> float:
    """Return the largest sum of magnitudes along the last axis but one."""
    return float(np.max(np.sum(np.abs(array), axis=-2))) if array.ndim > 1 else float(np.sum(np.abs(array)))


def _sum_of_rows(array: NDArray[Any]) -> float:
    """Return the largest sum of magnitudes for an index along the first axis."""
    return float(np.max(np.sum(np.abs(array), axis=tuple(range(1, array.ndim)))))


def _pool(bounds: Bounds, node: ir.Node, x: float, *others: float) -> float:
    """Return the bound of a pool. With ceil_mode, a window may contain only padding."""
    return math.inf if node.attributes.get_int("ceil_mode", 0) else _rounded(x)


def _clip(bounds: Bounds, node: ir.Node, x: float, *limits: float) -> float:
    """Return the bound of a Clip. NaN passes a Clip, so x needs a bound. The limits may exclude 0; either may be missing."""
    given = [limit for limit, value in zip(limits, node.inputs[1:], strict=True) if value is not None]
    given += [abs(node.attributes.get_float(name, 0.0)) for name in ("min", "max") if name in node.attributes]
    return math.inf if math.isinf(x) else max(given) if len(given) == 2 else max([x, *given])


def _cast(bounds: Bounds, node: ir.Node, x: float, *others: float) -> float:
    to = find(node.attributes.get_int("to", 0))
    if to is FLOAT16:
        return min(_rounded(x), float(to.highest)) if x <= to.highest else math.inf
    return _rounded(x) if to and not to.is_integer and to.exponent_bits == FLOAT32.exponent_bits else math.inf


def _pad(bounds: Bounds, node: ir.Node, x: float, pads: float = 0.0, value: float | None = None, *others: float) -> float:
    return max(x, value) if value is not None else math.inf if "value" in node.attributes else x


def _product(bounds: Bounds, node: ir.Node, a: float, b: float, *others: float) -> float:
    return _rounded(a * b) if math.isfinite(a) and math.isfinite(b) else math.inf


def _quotient(bounds: Bounds, node: ir.Node, a: float, b: float, *others: float) -> float:
    inverse = bounds.reduce_constant(node.inputs[1], _largest_inverse) if node.inputs[1] else math.inf
    return _rounded(a * inverse) if math.isfinite(a) and math.isfinite(inverse) else math.inf


def _products(bounds: Bounds, node: ir.Node, x: float, weight: float, bias: float = 0.0, *others: float) -> float:
    """Return the bound of Conv, Gemm or MatMul: sums of products with a constant, and a bias."""
    weights = node.inputs[1]
    has_rows = node.op_type == "Conv" or node.attributes.get_int("transB", 0) != 0
    reduce = _sum_of_rows if has_rows else _sum_of_columns
    sums = bounds.reduce_constant(weights, reduce) if weights else math.inf
    if not math.isfinite(sums) or not math.isfinite(x):
        return math.inf
    factors = [abs(node.attributes.get_float(name, 1.0)) for name in ("alpha", "beta")]
    return _rounded(max(factors[0], 1) * sums * x + max(factors[1], 1) * bias)


# Operators that may compute numbers of a larger magnitude than all operands.
_MAY_OVERFLOW = ("Add", "AveragePool", "Conv", "Div", "Gemm", "MatMul", "Mul", "Round", "Sub", "Sum")

# Operators whose outputs have only elements of their first input, elements of smaller or equal magnitude, and 0.
_BOUNDED_BY_FIRST = (*MOVE_FIRST, "Abs", "HardSwish", "Neg", "Relu", "Trilu")
_AT_MOST_1 = ("Erf", "HardSigmoid", "Sigmoid", "Softmax", "Softsign", "Tanh")
_RULES: Mapping[str, Callable[..., float]] = {
    **{name: lambda bounds, node, x, *others: x for name in _BOUNDED_BY_FIRST},
    **{name: lambda bounds, node, x, *others: _rounded(1.0) if math.isfinite(x) else math.inf for name in _AT_MOST_1},
    **{name: lambda bounds, node, *terms: _rounded(sum(terms)) for name in ("Add", "Sub", "Sum")},
    **{name: lambda bounds, node, *inputs: max(inputs) for name in ("Concat", "Max", "Min")},
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("Conv", "Gemm", "MatMul"), _products),
    "Cast": _cast,
    "Clip": _clip,
    "Div": _quotient,
    "Mul": _product,
    "Pad": _pad,
    "Round": lambda bounds, node, x, *others: x + 1,
    "Where": lambda bounds, node, condition, *branches: max(branches),
}
