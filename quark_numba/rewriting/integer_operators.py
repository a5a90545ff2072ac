"""Rewrite groups of ONNX's own 8-bit nodes, with the operators between them, into ONNX Runtime's integer operators.

ONNX Runtime would fuse such nodes itself. But it goes by what it finds in the optimised model, and also fuses float tensors
that were never 8 bits. Here an operator is rewritten only if the integer operator gives what the nodes as written give: its
sums are exact, and one float32 factor scales them. So a code differs by at most one, and only if the result is within a
thousandth of a step of the middle between two codes.

Codes connect the operators of a group. It is rewritten as a whole if that is estimated to be faster (``integer_costs``). Its
codes become uint8, because ONNX Runtime is slow with int8 activations on x86-64: int8 codes plus 128 are the same numbers with
another zero point. Codes of weights become int8 if ONNX Runtime multiplies uint8 with int8 exactly, else uint8."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..declaration import Affine, Dequantize, Quantize
from ..element_types import FLOAT32, INT8, INT32, UINT8, ElementType
from ..models.tensors import ComputedTensor, Rows, in_memory, opened, unit_of
from .graph import Graph
from .integer_costs import of_operator, of_quantization
from .nodes import Left, Node, Operand
from .onnx_runtime import multiplies_exactly
from .own_operators import OWN

REWRITTEN = "rewritten: an operator of ONNX Runtime on integers"

_MICROSOFT = "com.microsoft"
_FIRST_OPSET = 10

# Scales between these, and their products and quotients, are normal numbers of float32.
_LEAST_SCALE, _LARGEST_SCALE = 2.0**-40, 2.0**40

# The most products of two codes in a sum, of which each is at most 255 * 255. The sum and a bias fit int32.
_MOST_PRODUCTS, _LARGEST_BIAS = 1 << 14, 1 << 30

# A bias of so many steps of the output. Its scale is the product of two scales but for a rounding, 2^-23 of it at most.
_MOST_BIAS_STEPS = 1 << 12

# A product of codes of uint8 and int8 is at most 255 * 64 then, and the sum of two of them fits 16 bits.
_NARROW = 64

# The most elements of an average, times the quotient of scales: 64 * 255 * 2^-24 < 1/1000 is off by the additions of floats.
_MOST_POOLED = 64

# QLinearAdd multiplies codes and zero points by the quotients of scales, and adds up. With quotients of at most 4, no product
# is beyond 1,020 and no sum beyond 4,335. So all roundings together are off by less than 2^14 * 2^-24 < 1/1000.
_LARGEST_QUOTIENT = 4.0

# Sums and products of codes, up to 2^20 in float64, that are nearer to a tie count as ties.
_OF_TIE = 2.0**-30


@dataclass(frozen=True)
class _Source:
    """What an operator's input dequantizes, possibly moved: a dequantize node, and the nodes between it and the operator."""

    node: Node
    meaning: Affine[Operand]
    moves: tuple[ir.Node, ...]  # the first behind the dequantize node

    @property
    def codes(self) -> ElementType:
        assert self.meaning.element_type
        return self.meaning.element_type

    @property
    def is_constant(self) -> bool:
        return self.meaning.x.is_constant


@dataclass(frozen=True)
class _Operator:
    """An operator that can run on integers.

    `sources` are the inputs that it dequantizes. In the integer operator their codes are uint8, and those of the second input
    have the type `of_weights`. Behind it there are `clips`, nodes that only clip, and `quantize`, whose meaning is `meaning`.
    `bounds` are the codes to which the clips clip; None: all codes occur. `bias` is int32."""

    node: ir.Node
    rule: _Rule
    sources: tuple[_Source, ...]
    of_weights: ElementType
    clips: tuple[ir.Node, ...]
    quantize: Node
    meaning: Affine[Operand]
    bounds: tuple[int, int] | None = None
    bias: ir.TensorProtocol | None = None


def rewrite(graph: Graph) -> None:
    version = graph.model.opset_imports.get("", 0)
    if graph.standard_ops is not None or graph.integers == "nowhere" or version < _FIRST_OPSET:
        return
    found: dict[Node, _Operator] = {}  # by the quantize node behind it
    for node in graph.model.graph.all_nodes():
        rule = _RULES.get(node.op_type) if not node.domain else None
        if rule and (rule.domain, rule.name or node.op_type, "") not in graph.model.functions:
            try:
                operator = rule.match(graph, node)
            except Left:
                continue
            found[operator.quantize] = operator
    chosen = [each for group in _groups(found) if _is_faster(graph, group) for each in group]
    if chosen:
        graph.model.graph.sort()  # ONNX Runtime takes nodes in any order
        _Rewriting(graph, chosen).run()


# What can be rewritten.


def _source(graph: Graph, value: ir.Value | None) -> _Source:
    """Return what a value dequantizes. Raise Left if it is anything else, or not known well enough."""
    moves: list[ir.Node] = []
    producer = None if value is None else value.producer()
    while producer is not None and producer.op_identifier() in _MOVES and producer.inputs[0] is not None:
        moves.insert(0, producer)
        producer = producer.inputs[0].producer()
    node = graph.node(producer)
    meaning = graph.meaning(node)
    if node is None or node in graph.reasons or not node.is_standard or not isinstance(meaning, Dequantize):
        raise Left("an input is not dequantized")
    _check_parameters(meaning)
    quantize = graph.node(node.x.producer())
    if quantize and quantize.operator.operation == "quantize" and graph.tensor(quantize.x) is not None:
        raise Left("its codes are those of a float constant")
    if meaning.element_type is INT8 and not meaning.x.is_constant:
        # Only what is quantized in the model can be quantized to uint8 instead.
        before = graph.meaning(quantize)
        if quantize is None or quantize in graph.reasons or not isinstance(before, Quantize):
            raise Left("its codes are not quantized in the model")
        _check_quantize(graph, quantize, before)
    return _Source(node, meaning, tuple(moves))


def _check_parameters(meaning: Affine[Operand]) -> None:
    """Raise Left unless a node has constant parameters that integer operators take."""
    codes, scale, zero_point = meaning.element_type, meaning.scale.array, None
    if codes is None or not codes.is_integer or codes.bits > 8 or meaning.block_size or meaning.has_other_type:
        raise Left("its codes are not of 8 bits")
    if scale is None or scale.dtype != FLOAT32.dtype or scale.ndim > 1 or not scale.size:
        raise Left("its scale is not known")
    if meaning.zero_point is not None:
        zero_point = meaning.zero_point.array
        if zero_point is None or zero_point.shape != scale.shape or np.any(zero_point != zero_point.reshape(-1)[0]):
            raise Left("its zero points are not known, or differ")
    if not np.all((scale >= _LEAST_SCALE) & (scale <= _LARGEST_SCALE)):
        raise Left("its scale is extreme")


def _check_quantize(graph: Graph, node: Node, meaning: Affine[Operand]) -> None:
    """Raise Left unless a node quantizes float32 to 8 bits with one scale. Only dequantize nodes may use int8 codes."""
    _check_parameters(meaning)
    assert meaning.element_type
    if not node.is_standard or meaning.element_type.bits != 8 or meaning.scale.array is None or meaning.scale.array.size != 1:
        raise Left("it quantizes to other codes")
    if graph.inferred_type(node.x) is not FLOAT32:
        raise Left("its x is not known to be float32")
    if meaning.element_type is INT8:
        for user, index in node.y.uses():
            after = graph.node(user)
            of_after = graph.meaning(after)
            is_left = after is None or not after.is_standard or after in graph.reasons
            if is_left or index or not isinstance(of_after, Dequantize):
                raise Left("its codes have other users")
            _check_parameters(of_after)
        if node.y.is_graph_output():
            raise Left("its codes are an output of its graph")


def _behind(graph: Graph, node: ir.Node) -> tuple[tuple[ir.Node, ...], Node, Affine[Operand], tuple[int, int] | None]:
    """Return the nodes that clip the output of a node, the quantize node behind them with its meaning, and the codes to which
    they clip its own; None: all codes may occur. Raise Left if the output has other users."""
    clips: list[ir.Node] = []
    low, high = -math.inf, math.inf
    value = node.outputs[0]
    while True:
        uses = [*value.uses()]
        if len(uses) != 1 or value.is_graph_output() or uses[0][0].graph is not node.graph or uses[0][1]:
            raise Left("its output is not quantized alone")
        user = uses[0][0]
        if (bounds := _clip_bounds(graph, user)) is None:
            break
        clips.append(user)
        low, high = (min(max(each, bounds[0]), bounds[1]) for each in (low, high))
        value = user.outputs[0]
    quantize = graph.node(user)
    meaning = graph.meaning(quantize)
    if quantize is None or quantize in graph.reasons or not isinstance(meaning, Quantize):
        raise Left("its output is not quantized")
    _check_quantize(graph, quantize, meaning)
    # Quantizing is monotonic, so that clipping first gives what clipping the codes gives.
    codes = meaning.element_type
    assert codes
    steps = np.rint(np.array([low, high], np.float32) / _scale_of(meaning))
    first, last = (int(each) for each in np.clip(steps + _zero_point_of(meaning), codes.lowest, codes.highest))
    return tuple(clips), quantize, meaning, None if (first, last) == (codes.lowest, codes.highest) else (first, last)


def _clip_bounds(graph: Graph, node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a node that clips; None: it does something else."""
    if node.op_identifier() == ("", "Relu", ""):
        return 0.0, math.inf
    if node.op_identifier() != ("", "Clip", ""):
        return None
    found = [node.attributes.get_float("min", -math.inf), node.attributes.get_float("max", math.inf)]
    for index, value in enumerate(node.inputs[1:3]):
        array = None if value is None else graph.array(value)
        if value is not None:
            if array is None or array.size != 1 or array.dtype != np.float32 or np.isnan(array).any():
                return None
            found[index] = float(array.reshape(()))
    return (found[0], found[1]) if found[0] <= found[1] else None


def _groups(found: Mapping[Node, _Operator]) -> Iterator[list[_Operator]]:
    """Yield the operators that codes connect, each group in the order of the model."""
    parents: dict[Any, Any] = {}

    def root(each: Any) -> Any:
        while parents.setdefault(each, each) is not each:
            each = parents[each]
        return each

    for operator in found.values():
        for source in operator.sources:
            if not source.is_constant:
                parents[root(source.meaning.x.value)] = root(operator.quantize.y)
    groups: dict[Any, list[_Operator]] = {}
    for operator in found.values():
        groups.setdefault(root(operator.quantize.y), []).append(operator)
    yield from groups.values()


def _is_faster(graph: Graph, group: Sequence[_Operator]) -> bool:
    total, own = 0.0, {each.node for each in group}
    made = {each.quantize for each in group}
    taken: dict[ir.Value, None] = {}
    for each in group:
        total += of_operator(graph, each.node, each.of_weights.name)
        taken |= dict.fromkeys(source.meaning.x.value for source in each.sources if not source.is_constant)
    # The codes that the group takes from outside, and those that it gives to float operators.
    total += sum(of_quantization(graph, value) for value in taken if graph.node(value.producer()) not in made)
    for each in group:
        behind = [user for user, _ in each.quantize.y.uses()]
        total += sum(of_quantization(graph, user.outputs[0]) for user in behind if not _feeds_only(user.outputs[0], own))
    return total < 0


def _feeds_only(value: ir.Value, nodes: set[ir.Node]) -> bool:
    """Whether only these nodes use a value, or what moves it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        others = [user for user, _ in each.uses() if user not in nodes]
        if each.is_graph_output() or not each.uses() or any(user.op_identifier() not in _MOVES for user in others):
            return False
        waiting += [user.outputs[0] for user in others]
    return True


def _type_of_weights(graph: Graph, source: _Source) -> ElementType:
    """Return the type that the codes of weights have in an integer operator."""
    if not source.is_constant:
        return UINT8
    if graph.integers == "here" and multiplies_exactly():
        return INT8
    array = graph.array(source.meaning.x.value) if source.codes.is_signed else None
    is_narrow = array is not None and array.size > 0 and np.abs(array.astype(np.int16)).max() <= _NARROW
    return INT8 if is_narrow and abs(_zero_point_of(source.meaning)) <= _NARROW else UINT8


# The rules.


@dataclass(frozen=True)
class _Rule:
    """How operators of one name are matched and written.

    Parameters
    ----------
    domain, name : str
        The integer operator. Without a name it is the operator itself, which takes codes as well.
    inputs : int, optional
        How many inputs are dequantized; None: all.
    check : callable
        Raises Left if an operator that matched otherwise is not rewritten.
    order : str
        The order of the inputs. x: codes, scale and zero point of each input; y: scale and zero point of the output; b: the
        bias, which is the operator's third input; d: the reciprocal of the divisor, as the code 1 with a scale; codes: codes
        alone, and all other inputs.
    attributes : tuple of str, optional
        The attributes that the integer operator has; None: all.
    has_weights : bool
        Whether the first input is multiplied with the second one, which may have several scales.
    """

    domain: str
    name: str
    inputs: int | None
    check: Callable[[Graph, _Operator], None]
    order: str = "x y"
    attributes: tuple[str, ...] | None = ()
    has_weights: bool = False

    def match(self, graph: Graph, node: ir.Node) -> _Operator:
        count = len(node.inputs) if self.inputs is None else self.inputs
        if not 0 < count <= len(node.inputs) or len(node.outputs) != 1:
            raise Left("it has other inputs or outputs")
        sources = tuple(_source(graph, value) for value in node.inputs[:count])
        clips, quantize, meaning, bounds = _behind(graph, node)
        if bounds and graph.model.opset_imports[""] < 12:
            raise Left("Clip has no codes")
        if any(source.codes.bits != 8 and not source.is_constant for source in sources):
            raise Left("an input has codes of fewer bits")
        if all(source.is_constant for source in sources):
            raise Left("it is a constant")
        if any(_scales_of(source.meaning).size != 1 for source in sources[: 1 if self.has_weights else None]):
            raise Left("an input has several scales")
        of_weights = _type_of_weights(graph, sources[1]) if self.has_weights else UINT8
        operator = _Operator(node, self, sources, of_weights, clips, quantize, meaning, bounds)
        self.check(graph, operator)
        bias = node.inputs[count] if "b" in self.order.split() and len(node.inputs) > count else None
        return replace(operator, bias=_bias(graph, bias, operator)) if bias else operator


def _bias(graph: Graph, value: ir.Value, operator: _Operator) -> ir.TensorProtocol:
    """Return the int32 codes of a bias. Raise Left unless they have the scale of the products, but for a rounding of it."""
    node = graph.node(value.producer())
    meaning = graph.meaning(node)
    if not isinstance(meaning, Dequantize) or meaning.element_type is not INT32 or not meaning.is_symmetric:
        raise Left("its bias is not dequantized from int32")
    codes, scale = graph.array(meaning.x.value), meaning.scale.array
    if codes is None or scale is None or meaning.has_other_type or scale.dtype != FLOAT32.dtype or meaning.block_size:
        raise Left("its bias is not constant")
    of_x, of_weights = (_scales_of(source.meaning).astype(np.float64).reshape(-1) for source in operator.sources)
    products, of_y = of_x * of_weights, _scale_of(operator.meaning)
    if codes.ndim != 1 or products.size not in (1, codes.size) or scale.size not in (1, codes.size):
        raise Left("its bias has another shape")
    if not np.allclose(scale.reshape(-1), products, 2.0**-23, 0):
        raise Left("its bias has another scale than its products")
    magnitudes = np.abs(codes.astype(np.float64))
    if np.any(magnitudes > _LARGEST_BIAS) or (codes.size and np.any(magnitudes * products > _MOST_BIAS_STEPS * of_y)):
        raise Left("its bias is too large")
    return in_memory(codes)


def _weights_shape(graph: Graph, source: _Source, along: int | None = None) -> list[int]:
    """Return the shape of weights behind their moves. Raise Left unless they are constant, with one scale or, if `along` is an
    axis, one for each index along it."""
    tensor = graph.tensor(source.meaning.x.value)
    if tensor is None or any(move.op_type != "Transpose" for move in source.moves):
        raise Left("its weights are not constant")
    shape = [*tensor.shape.numpy()]
    axes = [*range(len(shape))]
    for move in source.moves:
        perm = move.attributes.get_ints("perm") or range(len(shape))[::-1]
        shape, axes = ([each[place] for place in perm] for each in (shape, axes))
    scales = _scales_of(source.meaning)
    if scales.size != 1:
        is_along = along is not None and len(shape) > along and axes[along] == source.meaning.axis % len(axes)
        if along is None or not is_along or scales.size != shape[along]:
            raise Left("its scales lie along another axis")
    return shape


def _check_products(products: Any) -> None:
    """Raise Left unless the sums of so many products fit int32. Without a product there is no sum: ONNX Runtime's integer
    operators leave the memory of the output as it is then."""
    if not isinstance(products, int) or not 1 <= products <= _MOST_PRODUCTS:
        raise Left("the number of its products is not known, or too large, or 0")


def _check_conv(graph: Graph, operator: _Operator) -> None:
    shape = _weights_shape(graph, operator.sources[1], along=0)
    _check_products(math.prod(shape[1:]) if len(shape) >= 3 else None)


def _check_gemm(graph: Graph, operator: _Operator) -> None:
    attributes = operator.node.attributes
    turned = bool(attributes.get_int("transB"))
    shape = _weights_shape(graph, operator.sources[1], along=1 - turned)
    has_bias = len(operator.node.inputs) > 2 and operator.node.inputs[2] is not None
    if attributes.get_float("alpha", 1.0) != 1 or (has_bias and attributes.get_float("beta", 1.0) != 1):
        raise Left("it scales its products")
    if attributes.get_int("transA") or len(shape) != 2:
        raise Left("its first input is turned")
    _check_products(shape[turned])


def _check_matmul(graph: Graph, operator: _Operator) -> None:
    b = operator.sources[1]
    if b.is_constant:
        shape = _weights_shape(graph, b, along=1)
        _check_products(shape[0] if len(shape) == 2 else None)
    else:
        a = operator.node.inputs[0]
        of_a = graph.shape(a) if a else None
        _check_products(of_a[-1] if of_a and _scales_of(b.meaning).size == 1 else None)


def _check_binary(graph: Graph, operator: _Operator) -> None:
    """Raise Left unless QLinearAdd or QLinearMul gives the codes of the specification for all pairs of codes, but for those
    beside ties."""
    a, b = operator.sources
    of_y = float(_scale_of(operator.meaning))
    steps = [np.arange(256.0) - (_zero_point_of(each.meaning) + 128 * each.codes.is_signed) for each in (a, b)]
    scales = [float(_scale_of(each.meaning)) for each in (a, b)]
    if operator.node.op_type == "Add":
        quotients = [each / of_y for each in scales]
        if max(quotients) > _LARGEST_QUOTIENT:
            raise Left("its scale is too small for the sum")
        exact = steps[0][:, None] * quotients[0] + steps[1] * quotients[1]
    else:
        exact = steps[0][:, None] * steps[1] * (scales[0] * scales[1] / of_y)
    if max(abs(float(exact.min())), abs(float(exact.max()))) > 2.0**20:
        raise Left("its scale is too small")
    _check_ties(operator, exact)


def _check_division(graph: Graph, operator: _Operator) -> None:
    """Raise Left unless the divisor is a constant, with whose reciprocal QLinearMul gives the codes of the specification, but
    for those beside ties."""
    (source,), divisor = operator.sources, _divisor(graph, operator.node)
    if divisor is None or not _LEAST_SCALE <= divisor <= _LARGEST_SCALE:
        raise Left("its divisor is not a constant, or extreme")
    steps = np.arange(256.0) - (_zero_point_of(source.meaning) + 128 * source.codes.is_signed)
    exact = steps * (float(_scale_of(source.meaning)) / divisor / float(_scale_of(operator.meaning)))
    if np.abs(exact).max() > 2.0**20:
        raise Left("its scale is too small")
    # The reciprocal of a power of two is exact.
    _check_ties(operator, exact, needs_none=math.frexp(divisor)[0] != 0.5)


def _divisor(graph: Graph, node: ir.Node) -> float | None:
    """Return the only element of what a node divides by; None: it is not known, or adds dimensions to x."""
    x, value = node.inputs[:2]
    array = None if value is None else graph.array(value)
    shape = None if x is None else graph.shape(x)
    if array is None or array.size != 1 or array.dtype != FLOAT32.dtype or (array.ndim and array.ndim > len(shape or ())):
        return None
    return float(array.reshape(()))


def _check_ties(operator: _Operator, exact: NDArray[np.float64], needs_none: bool = False) -> None:
    """Raise Left if two codes may be equally near to a result, and there may be none, or the operator adds an odd zero point
    before it rounds half to even. Then it takes the other code. `exact` are all results, in steps of the output."""
    if (needs_none or _zero_point_of(operator.meaning) % 2) and np.any(np.abs(exact - np.floor(exact) - 0.5) < _OF_TIE):
        raise Left("two codes may be equally near")


def _check_pool(graph: Graph, operator: _Operator) -> None:
    given = operator.node.attributes
    if operator.node.op_type == "AveragePool" and (
        given.get_int("ceil_mode") or set(given.get_ints("dilations", [1])) != {1} or "auto_pad" in given
    ):
        raise Left("it pads or skips elements")
    shape = graph.shape(operator.node.inputs[0]) if operator.node.inputs[0] else None
    if shape is None or len(shape) < 3:
        raise Left("the rank of its x is not known")
    sizes: Any = given.get_ints("kernel_shape") if operator.node.op_type == "AveragePool" else shape[2:]
    if not sizes or not all(isinstance(each, int) and each > 0 for each in sizes) or math.prod(sizes) > _MOST_PRODUCTS:
        raise Left("the number of its elements is not known, or too large")
    if operator.node.op_type == "AveragePool":
        # QLinearAveragePool adds floats.
        most, quotient = math.prod(sizes), float(_scale_of(operator.sources[0].meaning)) / float(_scale_of(operator.meaning))
        if most * max(1.0, quotient) > _MOST_POOLED:
            raise Left("its sums are too large")
        sums = np.arange(-255 * most, 255 * most + 1) * quotient
        for count in range(1, most + 1):  # at the edges there are fewer elements
            _check_ties(operator, sums / count)


def _check_same_codes(graph: Graph, operator: _Operator) -> None:
    """Raise Left unless inputs and output have one scale and one zero point."""
    for source in operator.sources:
        if _scale_of(source.meaning) != _scale_of(operator.meaning):
            raise Left("it quantizes with another scale")
        if (_zero_point_of(source.meaning), source.codes) != (_zero_point_of(operator.meaning), operator.meaning.element_type):
            raise Left("it quantizes with another zero point")


def _check_max_pool(graph: Graph, operator: _Operator) -> None:
    _check_same_codes(graph, operator)
    if graph.model.opset_imports[""] < 12:
        raise Left("MaxPool has no codes")


def _check_nothing(graph: Graph, operator: _Operator) -> None:
    """Every operator that matches is rewritten."""


def _scales_of(meaning: Affine[Operand]) -> NDArray[Any]:
    scales = meaning.scale.array
    assert scales is not None
    return scales


def _scale_of(meaning: Affine[Operand]) -> np.float32:
    """Return the only scale of a node."""
    return np.float32(_scales_of(meaning).reshape(()))


def _zero_point_of(meaning: Affine[Operand]) -> int:
    zero_point = None if meaning.zero_point is None else meaning.zero_point.array
    return 0 if zero_point is None else int(zero_point.reshape(-1)[0])


# Operators of ONNX whose output has only elements of their first input, and whose other inputs do not depend on it.
_MOVES = {("", name, "") for name in ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")}

_OF_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_OF_POOL = ("count_include_pad", "kernel_shape", "pads", "strides")
_RULES = {
    "Conv": _Rule("", "QLinearConv", 2, _check_conv, "x y b", _OF_CONV, has_weights=True),
    "MatMul": _Rule("", "QLinearMatMul", 2, _check_matmul, has_weights=True),
    "Gemm": _Rule(_MICROSOFT, "QGemm", 2, _check_gemm, "x b y", ("transB",), has_weights=True),
    "Add": _Rule(_MICROSOFT, "QLinearAdd", 2, _check_binary),
    "Mul": _Rule(_MICROSOFT, "QLinearMul", 2, _check_binary),
    "Div": _Rule(_MICROSOFT, "QLinearMul", 1, _check_division, "x d y"),
    "AveragePool": _Rule(_MICROSOFT, "QLinearAveragePool", 1, _check_pool, attributes=_OF_POOL),
    "GlobalAveragePool": _Rule(_MICROSOFT, "QLinearGlobalAveragePool", 1, _check_pool),
    "Concat": _Rule(_MICROSOFT, "QLinearConcat", None, _check_nothing, "y x", ("axis",)),
    "MaxPool": _Rule("", "", 1, _check_max_pool, "codes", None),
    **{name: _Rule("", "", 1, _check_same_codes, "codes", None) for _, name, _ in _MOVES},
}


class _Rewriting:
    """The change of a graph: the operators that are rewritten, and the codes that are made on the way."""

    def __init__(self, graph: Graph, operators: Sequence[_Operator]) -> None:
        self.graph = graph
        places = {node: place for place, node in enumerate(graph.model.graph.all_nodes())}
        self.operators = sorted(operators, key=lambda each: places[each.node])
        self.made: dict[Node, ir.Value] = {}  # by the quantize node that gave the codes before
        self.shifted: dict[Any, ir.TensorProtocol] = {}  # by the tensor of codes, the type and the shift

    def run(self) -> None:
        for operator in self.operators:
            self._write(operator)
        for quantize, codes in self.made.items():
            self._reconnect(quantize, codes)
        for operator in self.operators:
            for node in (*reversed(operator.clips), operator.node):
                self.graph.remove(node, REWRITTEN)
            for source in operator.sources:
                for move in reversed(source.moves):
                    if move.graph and not move.outputs[0].uses() and not move.outputs[0].is_graph_output():
                        self.graph.remove(move, REWRITTEN)
        self.graph.forget_inferred()

    def _write(self, operator: _Operator) -> None:
        """Write the integer operator, with a Clip of its codes if that is needed, in front of the quantize node: there all its
        inputs exist, and nothing uses its output yet."""
        rule, of_node, meaning = operator.rule, operator.node, operator.meaning
        types = [UINT8, operator.of_weights, *[UINT8] * len(operator.sources)]
        operands = [self._operand(operator, *each) for each in zip(operator.sources, types, strict=False)]
        shift = 128 * (meaning.element_type is INT8)
        parts: dict[str, list[ir.Value | None]] = {
            "x": [value for operand in operands for value in operand],
            "y": [*self._parameters(operator, meaning, _zero_point_of(meaning) + shift, UINT8)] if "y" in rule.order else [],
            "b": [self._constant(operator, operator.bias, "bias") if operator.bias is not None else None],
            "d": self._reciprocal(operator) if "d" in rule.order.split() else [],
            "codes": [*(value for value, *_ in operands), *of_node.inputs[len(operands) :]],
        }
        inputs = [value for part in rule.order.split() for value in parts[part]]
        while inputs[-1] is None:
            inputs.pop()
        node = ir.node(rule.name or of_node.op_type, inputs, domain=rule.domain, name=of_node.name)
        given = of_node.attributes
        node.attributes.update({name: given[name] for name in given if rule.attributes is None or name in rule.attributes})
        node.metadata_props.update(of_node.metadata_props)
        if rule.domain:
            self.graph.model.opset_imports.setdefault(rule.domain, 1)
        self._insert(operator.quantize.node, node, None, operator.quantize.y)
        if operator.bounds:
            bounds = (in_memory(np.array(each + shift, np.uint8)) for each in operator.bounds)
            node = ir.node("Clip", [node.outputs[0], *(self._constant(operator, each, "bound") for each in bounds)])
            self._insert(operator.quantize.node, node, None, operator.quantize.y)
        self.made[operator.quantize] = node.outputs[0]

    def _operand(self, operator: _Operator, source: _Source, codes: ElementType) -> tuple[ir.Value, ir.Value, ir.Value]:
        shift = 128 * (source.codes.is_signed - codes.is_signed)
        tensor = self.graph.tensor(source.meaning.x.value)
        quantize = self.graph.node(source.node.x.producer())
        if tensor is not None and (shift or source.codes is not codes):
            changed = self.shifted.setdefault((id(tensor), codes, shift), _shifted(tensor, codes, shift))
            value = self.graph.shared_constant(changed, self.graph.unused_name(f"{source.node.x.name}_codes"), operator.node)
        elif quantize in self.made:
            value = self.made[quantize]
        elif shift:
            assert quantize
            value = self.made[quantize] = self._quantized_anew(quantize)
        else:
            value = source.node.x
        for move in source.moves:
            moved = ir.node(move.op_type, [value, *move.inputs[1:]])
            moved.attributes.update(move.attributes)
            self._insert(operator.quantize.node, moved, value, move.outputs[0])
            value = moved.outputs[0]
        return value, *self._parameters(operator, source.meaning, _zero_point_of(source.meaning) + shift, codes)

    def _parameters(
        self, operator: _Operator, meaning: Affine[Operand], zero_point: int, codes: ElementType
    ) -> tuple[ir.Value, ir.Value]:
        """Return a scale and a zero point. Some integer operators take only scalars if there is one."""
        scales, value = _scales_of(meaning), meaning.scale.value
        shape = scales.shape if scales.size > 1 else ()
        if scales.shape != shape:
            value = self._constant(operator, in_memory(scales.reshape(shape)), "scale")
        zeros = in_memory(np.full(shape, zero_point).astype(codes.dtype))
        return value, self._constant(operator, zeros, "zero_point")

    def _reciprocal(self, operator: _Operator) -> list[ir.Value | None]:
        """Return the code 1, the reciprocal of the divisor as its scale, and the zero point 0."""
        divisor = _divisor(self.graph, operator.node)
        assert divisor
        parts = np.array(1, np.uint8), np.array(1 / divisor, np.float32), np.array(0, np.uint8)
        return [self._constant(operator, in_memory(each), "reciprocal") for each in parts]

    def _constant(self, operator: _Operator, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        return self.graph.constant(
            tensor, self.graph.unused_name(f"{operator.node.outputs[0].name}_{name}"), operator.quantize.node
        )

    def _insert(self, before: ir.Node, node: ir.Node, like: ir.Value | None, shape_of: ir.Value) -> None:
        """Insert a node whose output has codes of the type of `like`, uint8 by default, and the shape of another value."""
        y, graph = node.outputs[0], before.graph
        assert graph
        y.name = self.graph.unused_name(f"{shape_of.name}_codes")
        y.type = like.type if like is not None and like.type else ir.TensorType(ir.DataType.UINT8)
        if (shape := self.graph.shape(shape_of)) is not None:
            y.shape = ir.Shape([None if isinstance(each, int) and each < 0 else each for each in shape])
        graph.insert_before(before, node)

    def _quantized_anew(self, quantize: Node) -> ir.Value:
        """Return codes of uint8 in the place of int8."""
        meaning = self.graph.meaning(quantize)
        assert isinstance(meaning, Affine)
        own, of_graph = OWN["quantize"], quantize.node.graph
        assert of_graph
        inputs = [quantize.x, meaning.scale.value, self._zero_point(quantize, meaning)]
        node = ir.node(own.name, inputs, own.values({}), domain=own.domain)
        self._insert(quantize.node, node, None, quantize.y)
        self.graph.model.opset_imports.setdefault(own.domain, own.since_version)
        self.graph.find(node)
        return node.outputs[0]

    def _zero_point(self, node: Node, meaning: Affine[Operand]) -> ir.Value:
        """Return the zero points that a node of int8 needs for the same numbers in uint8."""
        zero_point = in_memory(np.full(_scales_of(meaning).shape, _zero_point_of(meaning) + 128, np.uint8))
        return self.graph.constant(zero_point, self.graph.unused_name(f"{node.y.name}_zero_point"), node.node)

    def _reconnect(self, quantize: Node, codes: ir.Value) -> None:
        """Let the users of a quantize node take the codes of an integer operator, and remove the node."""
        meaning = self.graph.meaning(quantize)
        assert isinstance(meaning, Affine)
        if meaning.element_type is INT8:
            own = OWN["dequantize"]
            for user, _ in quantize.y.uses():
                node = self.graph.node(user)
                after = self.graph.meaning(node)
                assert node is not None
                assert isinstance(after, Affine)
                inputs = [codes, after.scale.value, self._zero_point(node, after)]
                self.graph.replace(node, own, inputs, own.values({"axis": after.axis}), REWRITTEN)
        else:
            name = quantize.y.name
            quantize.y.replace_all_uses_with(codes, replace_graph_outputs=True)
            quantize.y.name, codes.name = None, name
        if quantize.node.graph:  # else it was removed with the last of its users
            self.graph.remove(quantize, REWRITTEN)


def _shifted(tensor: ir.TensorProtocol, codes: ElementType, shift: int) -> ir.TensorProtocol:
    """Return codes plus a number, in another type, which are computed when they are read."""

    @contextmanager
    def open_rows() -> Iterator[Rows]:
        with opened(tensor) as rows:
            yield lambda start, stop: (rows(start, stop).astype(np.int16) + shift).astype(codes.dtype)

    return ComputedTensor(open_rows, codes, tensor.shape.numpy(), unit_of(tensor))
