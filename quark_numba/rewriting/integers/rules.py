"""The rules by which operators between 8-bit nodes become integer operators of ONNX Runtime: their limits, the proofs that the
results do not change, and the reasons why an operator stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ...declaration import Dequantize
from ...declaration.reasons import require, stays_if
from ...element_types import FLOAT32, INT8, INT32, UINT8, ElementType
from ..graph import Graph
from ..onnx_runtime import multiplies_exactly
from .codes import LARGEST_SCALE, LEAST_SCALE, MOVES, Source, Target, source_of, target_of

_MICROSOFT = "com.microsoft"

# The most products in a sum. A product of two codes is at most 255 * 255, so the sum and a bias fit int32.
_MAX_PRODUCTS, _MAX_BIAS = 1 << 14, 1 << 30

# The largest bias, in steps of the output. The scale of the bias is the product of two scales, with a relative rounding error
# of up to 2^-23.
_MAX_BIAS_STEPS = 1 << 12

# The largest magnitude of a weight for which the sum of two products, of at most 255 * 64 each, fits 16 bits.
_NARROW = 64

# The most elements of an average, times the quotient of scales. The float additions have an error of at most
# 64 * 255 * 2^-24 < 1/1000.
_MAX_POOLED = 64

# QLinearAdd multiplies codes and zero points by the quotients of scales, and adds the products. With quotients of at most 4, a
# product is at most 1,020, and a sum at most 4,335. So the total rounding error is below 2^14 * 2^-24 < 1/1000.
_MAX_QUOTIENT = 4.0

# Sums and products of codes are at most 2^20, and are computed in float64. A result that is nearer to a tie counts as a tie.
_TIE_DISTANCE = 2.0**-30


class Match(NamedTuple):
    """An operator that can run on integers.

    `sources` are its dequantized inputs. In the integer operator, codes of the second input have the type `weights_type`, and
    codes of other inputs are uint8."""

    node: ir.Node
    rule: Rule
    sources: tuple[Source, ...]
    weights_type: ElementType
    target: Target
    bias: NDArray[np.int32] | None = None


# Inputs of integer operators, see `Rule`.
OPERANDS, OUTPUT, BIAS, RECIPROCAL, CODES = "operands", "output", "bias", "reciprocal", "codes"


class Rule(NamedTuple):
    """A rule for operators of one name: how they are matched, and how the integer operator is written.

    - `domain` and `name` are the name of the integer operator. If `name` is empty, the operator also accepts codes, and is not
      replaced.
    - `inputs` is the number of dequantized inputs, None for all.
    - `check` raises NotRewrittenError if an operator that meets all other conditions must not be rewritten.
    - `attributes` are the attributes that the integer operator has, None for all.
    - `has_weights` says whether the first input is multiplied by the second input, which may have several scales.
    - `order` is the order of the inputs of the integer operator. OPERANDS: the codes, scale and zero point of each input.
      OUTPUT: the scale and zero point of the output. BIAS: the operator's third input. RECIPROCAL: the reciprocal of the
      divisor, as the code 1 with a scale. CODES: the codes of each input, without parameters, and all other inputs."""

    domain: str
    name: str
    inputs: int | None
    check: Callable[[Graph, Match], None] | None
    order: tuple[str, ...] = (OPERANDS, OUTPUT)
    attributes: tuple[str, ...] | None = ()
    has_weights: bool = False

    def match(self, graph: Graph, node: ir.Node) -> Match:
        count = len(node.inputs) if self.inputs is None else self.inputs
        stays_if(not 0 < count <= len(node.inputs) or len(node.outputs) != 1, "it has other inputs or outputs")
        sources = tuple(source_of(graph, value) for value in node.inputs[:count])
        target = target_of(graph, node)
        stays_if(target.bounds and graph.model.opset_imports[""] < 12, "Clip has no codes")
        computed = [source for source in sources if not source.is_constant]
        stays_if(any(source.codes.element_type.bits != 8 for source in computed), "an input has codes of fewer bits")
        stays_if(not computed, "it is a constant")
        with_one_scale = sources[:1] if self.has_weights else sources
        stays_if(any(source.codes.scales.size != 1 for source in with_one_scale), "an input has several scales")
        weights_type = _type_of_weights(graph, sources[1]) if self.has_weights else UINT8
        match = Match(node, self, sources, weights_type, target)
        if self.check:
            self.check(graph, match)
        bias = node.inputs[count] if BIAS in self.order and len(node.inputs) > count else None
        return match._replace(bias=_bias(graph, bias, match)) if bias else match


def _type_of_weights(graph: Graph, source: Source) -> ElementType:
    """Return the type that the codes of weights have in an integer operator."""
    if not source.is_constant:
        return UINT8
    if graph.integers == "here" and multiplies_exactly():
        return INT8
    array = graph.array(source.node.x) if source.codes.element_type.is_signed else None
    is_narrow = array is not None and array.size > 0 and np.abs(array.astype(np.int16)).max() <= _NARROW
    return INT8 if is_narrow and abs(source.codes.zero_point) <= _NARROW else UINT8


def _bias(graph: Graph, value: ir.Value, match: Match) -> NDArray[np.int32]:
    """Return the int32 codes of a bias. Raise NotRewrittenError unless the scale of the bias equals the scale of the
    products, within a rounding error."""
    other = "its bias is not dequantized from int32"
    _, meaning = require(graph.rewritable(value.producer(), Dequantize), other)
    stays_if(meaning.element_type is not INT32 or not meaning.is_symmetric, other)
    unknown = "its bias is not constant"
    codes, scale = require(graph.array(meaning.x.value), unknown), require(meaning.scale.array, unknown)
    stays_if(meaning.has_other_type or scale.dtype != FLOAT32.dtype, "its bias is dequantized in a type other than float32")
    stays_if(meaning.block_size, "its bias has blocked scales")
    x_scales, weight_scales = (source.codes.scales.astype(np.float64).reshape(-1) for source in match.sources)
    products, y_scale = x_scales * weight_scales, match.target.codes.scale
    fits = codes.ndim == 1 and {products.size, scale.size} <= {1, codes.size}
    stays_if(not fits, "its bias has another shape")
    stays_if(not np.allclose(scale.reshape(-1), products, 2.0**-23, 0), "the scale of its bias is not that of its products")
    magnitudes = np.abs(codes.astype(np.float64))
    is_large = np.any(magnitudes > _MAX_BIAS) or np.any(magnitudes * products > _MAX_BIAS_STEPS * y_scale)
    stays_if(is_large, "its bias is too large")
    return codes


def _weights_shape(graph: Graph, source: Source, along: int) -> list[int]:
    """Return the shape of weights after the nodes that transpose them. Raise NotRewrittenError unless the weights are constant,
    with one scale or with one scale for each index along the axis `along`."""
    tensor = require(graph.tensor(source.node.x), "its weights are not constant")
    stays_if(any(move.op_type != "Transpose" for move in source.moves), "its weights are moved by a node other than Transpose")
    shape = [*tensor.shape.numpy()]
    axes = [*range(len(shape))]
    for move in source.moves:
        perm = move.attributes.get_ints("perm") or range(len(shape))[::-1]
        shape, axes = ([numbers[place] for place in perm] for numbers in (shape, axes))
    scales = source.codes.scales
    if scales.size != 1:
        is_along = len(shape) > along and axes[along] == source.codes.meaning.axis % len(axes)
        stays_if(not is_along or scales.size != shape[along], "its scales lie along another axis")
    return shape


def _check_products(products: Any) -> None:
    """Raise NotRewrittenError unless the sum of this number of products fits int32. A sum of 0 products is also refused,
    because ONNX Runtime's integer operators do not write their output for it."""
    fits = isinstance(products, int) and 1 <= products <= _MAX_PRODUCTS
    stays_if(not fits, "the number of its products is not known, or too large, or 0")


def _check_conv(graph: Graph, match: Match) -> None:
    shape = _weights_shape(graph, match.sources[1], along=0)
    _check_products(math.prod(shape[1:]) if len(shape) >= 3 else None)


def _check_gemm(graph: Graph, match: Match) -> None:
    attributes = match.node.attributes
    turned = bool(attributes.get_int("transB"))
    shape = _weights_shape(graph, match.sources[1], along=1 - turned)
    has_bias = len(match.node.inputs) > 2 and match.node.inputs[2] is not None
    factors = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0) if has_bias else 1.0
    stays_if(factors != (1, 1), "it scales its products")
    stays_if(attributes.get_int("transA"), "transA is set")
    _check_products(shape[turned] if len(shape) == 2 else None)


def _check_matmul(graph: Graph, match: Match) -> None:
    b = match.sources[1]
    if b.is_constant:
        shape = _weights_shape(graph, b, along=1)
        _check_products(shape[0] if len(shape) == 2 else None)
    else:
        a_shape = graph.shape(match.node.inputs[0])
        _check_products(a_shape[-1] if a_shape and b.codes.scales.size == 1 else None)


def _check_binary(graph: Graph, match: Match) -> None:
    """Raise NotRewrittenError unless QLinearAdd or QLinearMul gives the codes of the specification for all pairs of codes. If a
    result is nearly a tie, either of the two nearest codes is accepted."""
    a, b = match.sources
    y_scale = float(match.target.codes.scale)
    scales = [float(source.codes.scale) for source in (a, b)]
    if match.node.op_type == "Add":
        quotients = [scale / y_scale for scale in scales]
        stays_if(max(quotients) > _MAX_QUOTIENT, "its scale is too small for the sum")
        exact = a.codes.unscaled_values[:, None] * quotients[0] + b.codes.unscaled_values * quotients[1]
    else:
        exact = a.codes.unscaled_values[:, None] * b.codes.unscaled_values * (scales[0] * scales[1] / y_scale)
    stays_if(max(abs(float(exact.min())), abs(float(exact.max()))) > 2.0**20, "its scale is too small")
    _check_ties(match, exact)


def _check_division(graph: Graph, match: Match) -> None:
    """Raise NotRewrittenError unless the divisor is a constant, and QLinearMul with its reciprocal gives the codes of the
    specification. If a result is nearly a tie, either of the two nearest codes is accepted."""
    (source,), reason = match.sources, "its divisor is not a constant, or extreme"
    divisor = require(divisor_of(graph, match.node), reason)
    stays_if(not LEAST_SCALE <= divisor <= LARGEST_SCALE, reason)
    exact = source.codes.unscaled_values * (float(source.codes.scale) / divisor / float(match.target.codes.scale))
    stays_if(np.abs(exact).max() > 2.0**20, "its scale is too small")
    # The reciprocal of a power of two is exact.
    _check_ties(match, exact, refuses_ties=math.frexp(divisor)[0] != 0.5)


def divisor_of(graph: Graph, node: ir.Node) -> float | None:
    """Return the divisor of a node if it is one known float32 number, or None. Also return None if it adds dimensions to x."""
    shape, array = graph.shape(node.inputs[0]), graph.array(node.inputs[1])
    if array is None or array.size != 1 or array.dtype != FLOAT32.dtype or (array.ndim and array.ndim > len(shape or ())):
        return None
    return float(array.reshape(()))


def _check_ties(match: Match, exact: NDArray[np.float64], refuses_ties: bool = False) -> None:
    """Raise NotRewrittenError if a result may be a tie, and either `refuses_ties` is set or the zero point is odd. The operator
    adds the zero point before it rounds half to even, so an odd zero point reverses the direction in which ties are rounded.
    `exact` are all results, in steps of the output."""
    if refuses_ties or match.target.codes.zero_point % 2:
        stays_if(np.any(np.abs(exact - np.floor(exact) - 0.5) < _TIE_DISTANCE), "two codes may be equally near")


def _check_average_pool(graph: Graph, match: Match) -> None:
    values = match.node.attributes
    is_plain = not values.get_int("ceil_mode") and set(values.get_ints("dilations", [1])) == {1} and "auto_pad" not in values
    stays_if(not is_plain, "it pads or skips elements")
    kernel: Any = values.get_ints("kernel_shape", ())
    _check_global_pool(graph, match, kernel)
    # QLinearAveragePool adds in floating point.
    most = math.prod(kernel)
    quotient = float(match.sources[0].codes.scale) / float(match.target.codes.scale)
    stays_if(most * max(1.0, quotient) > _MAX_POOLED, "its sums are too large")
    sums = np.arange(-255 * most, 255 * most + 1) * quotient
    for count in range(1, most + 1):  # at the edges there are fewer elements
        _check_ties(match, sums / count)


def _check_global_pool(graph: Graph, match: Match, kernel: Sequence[int] | None = None) -> None:
    """Raise NotRewrittenError unless the number of elements of a pool is known, and not too large. Without `kernel`, a pool has
    all elements of a channel."""
    unknown = "the rank of its x is not known"
    shape = require(graph.shape(match.node.inputs[0]), unknown)
    stays_if(len(shape) < 3, unknown)
    sizes: Any = shape[2:] if kernel is None else kernel
    is_known = bool(sizes) and all(isinstance(size, int) and size > 0 for size in sizes)
    stays_if(not is_known or math.prod(sizes) > _MAX_PRODUCTS, "the number of its elements is not known, or too large")


def _check_same_codes(graph: Graph, match: Match) -> None:
    """Raise NotRewrittenError unless all inputs have the scale and the zero point of the output."""
    for source in match.sources:
        one, other = source.codes, match.target.codes
        stays_if(one.scale != other.scale, "it quantizes with another scale")
        is_equal = (one.zero_point, one.element_type) == (other.zero_point, other.element_type)
        stays_if(not is_equal, "it quantizes with another zero point")


def _check_max_pool(graph: Graph, match: Match) -> None:
    _check_same_codes(graph, match)
    stays_if(graph.model.opset_imports[""] < 12, "MaxPool has no codes")


_CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL_ATTRIBUTES = ("count_include_pad", "kernel_shape", "pads", "strides")
RULES = {
    "Conv": Rule("", "QLinearConv", 2, _check_conv, (OPERANDS, OUTPUT, BIAS), _CONV_ATTRIBUTES, has_weights=True),
    "MatMul": Rule("", "QLinearMatMul", 2, _check_matmul, has_weights=True),
    "Gemm": Rule(_MICROSOFT, "QGemm", 2, _check_gemm, (OPERANDS, BIAS, OUTPUT), ("transB",), has_weights=True),
    "Add": Rule(_MICROSOFT, "QLinearAdd", 2, _check_binary),
    "Mul": Rule(_MICROSOFT, "QLinearMul", 2, _check_binary),
    "Div": Rule(_MICROSOFT, "QLinearMul", 1, _check_division, (OPERANDS, RECIPROCAL, OUTPUT)),
    "AveragePool": Rule(_MICROSOFT, "QLinearAveragePool", 1, _check_average_pool, attributes=_POOL_ATTRIBUTES),
    "GlobalAveragePool": Rule(_MICROSOFT, "QLinearGlobalAveragePool", 1, _check_global_pool),
    "Concat": Rule(_MICROSOFT, "QLinearConcat", None, None, (OUTPUT, OPERANDS), ("axis",)),
    "MaxPool": Rule("", "", 1, _check_max_pool, (CODES,), None),
    **{name: Rule("", "", 1, _check_same_codes, (CODES,), None) for _, name, _ in MOVES},
}
