"""The quantized tensors of a model, with the nodes that round them and the values that they can have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ...block.granularity import Blocks, block_shape
from ...block.operators import FORMATS as BLOCK_FORMATS
from ...declaration import Affine, BlockRoundTrip, Dequantize, FakeQuantize, Quantize
from ...element_types import FLOAT32, ElementType, find
from ...fake_quantization.key import FORMS
from ...linear.calls import quantize_dequantize
from ...linear.dispatch import TABLE
from ...linear.key import select
from ...models import model_files
from ...models.tensors import array_of, is_in_memory
from ...rewriting.graph import Graph
from ...rewriting.nodes import Left, Node, Operand

Kind = Literal["activation", "weight"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Linear:
    """Scales and zero points: of the whole tensor, of each index along an axis, or of each block along it."""

    element_type: ElementType
    scale: Array
    zero_point: Array | None
    axis: int
    block_size: int

    @cached_property
    def is_per_tensor(self) -> bool:
        return self.scale.size == 1

    def spread(self, parameter: Array, shape: tuple[int, ...]) -> Array:
        """Return a parameter in float64, in a form that broadcasts to `shape`."""
        values = parameter.astype(np.float64)
        if values.size == 1:
            return values.reshape(())
        if self.block_size:
            axis = self.axis % len(shape)
            return np.repeat(values, self.block_size, axis)[(slice(None),) * axis + (slice(shape[axis]),)]
        return values.reshape([-1 if axis == self.axis % len(shape) else 1 for axis in range(len(shape))])

    def codes(self, x: Array) -> Array:
        """Return x / scale + zero point in float64, not rounded."""
        zero_point = 0.0 if self.zero_point is None else self.spread(self.zero_point, x.shape)
        with np.errstate(all="ignore"):
            return x.astype(np.float64) / self.spread(self.scale, x.shape) + zero_point

    @property
    def code_limits(self) -> tuple[float, float]:
        """The limits beyond which codes saturate: the range of the type, and for integers half a step more on each side."""
        half = 0.5 if self.element_type.is_integer else 0.0
        return self.element_type.lowest - half, self.element_type.highest + half

    @cached_property
    def only(self) -> tuple[float, float]:
        """The scale and the zero point, if there is only one scale."""
        zero_point = 0.0 if self.zero_point is None else float(self.zero_point.astype(np.float64).reshape(-1)[0])
        return float(self.scale.reshape(-1)[0]), zero_point

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The limits beyond which values of x saturate, if there is only one scale."""
        scale, zero_point = self.only
        ends = [(code - zero_point) * scale for code in self.code_limits]
        return min(ends), max(ends)

    def code_range(self, least: float, largest: float) -> tuple[float, float]:
        """Return the range of the codes of values from `least` to `largest`, if there is only one scale."""
        scale, zero_point = self.only
        if scale == 0:
            return -math.inf, math.inf
        ends = [least / scale + zero_point, largest / scale + zero_point]
        return min(ends), max(ends)

    def grid(self, most: int) -> Array | None:
        """Return all values that x can become. None: several scales, more than 16 bits, or more values than `most`."""
        if not self.is_per_tensor or self.element_type.bits > 16 or 2**self.element_type.bits > most:
            return None
        scale, zero_point = self.only
        with np.errstate(invalid="ignore"):  # numpy warns about codes that are signalling NaNs
            values = (self.element_type.code_values.astype(np.float64) - zero_point) * scale
        return np.unique(values[np.isfinite(values)])


@dataclass(frozen=True)
class Block:
    """A block format along an axis."""

    blocks: Blocks
    is_whole: bool  # elements are whole numbers of steps
    axis: int

    def layout(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return (length, inner) of the shape (outer, length, inner) in which the kernels see x."""
        _, length, inner = block_shape(shape, self.axis, self.blocks.block)
        return length, inner


@dataclass(frozen=True)
class Values:
    """The values that x can become, of a format without codes. `limits` are the limits beyond which values of x saturate, if
    they are the same for all elements (`is_per_tensor`)."""

    bits: float
    apply: Callable[[Array], Array]
    limits: tuple[float, float]

    @property
    def is_per_tensor(self) -> bool:
        return self.limits[0] < self.limits[1]

    def grid(self, most: int) -> Array | None:
        """Return all values that x can become. None: there are no limits, or more values than `most`."""
        if not self.is_per_tensor or 2**self.bits > most:
            return None
        return np.unique(self.apply(np.linspace(*self.limits, 1 << 16, dtype=np.float32)).astype(np.float64))


@dataclass(eq=False)
class Quantizer:
    """A quantized tensor, and the nodes that round it: one node, or a quantize node and its dequantize nodes.

    `x` is the name of the tensor before rounding. `ys` are the names of the tensors after rounding, which are equal. For a
    weight, `floats` is the float tensor (None if the model has only codes), `constant` is the tensor in the model, floats or
    codes, `of_constant` turns it into the rounded tensor, and `dtype` is that of the rounded tensor. `clip` holds
    the bounds of an activation function that the float twin needs and the model may lack: quantization tools leave out a Relu
    or a Clip if the range of the codes already clips.
    """

    name: str
    kind: Kind
    type: str
    parameters: dict[str, Any]
    bits: float  # of an element, with its share of a block's scale or exponent
    x: str
    ys: list[str]
    apply: Callable[[Array], Array]
    form: Linear | Block | Values
    nodes: list[ir.Node]
    made_by: str = "an input of the model"
    users: dict[str, str] = field(default_factory=dict)  # operators of the nodes that take the rounded tensor, by name
    clip: tuple[float, float] | None = None
    floats: ir.TensorProtocol | None = None
    constant: ir.TensorProtocol | None = None
    of_constant: Callable[[Array], Array] | None = None
    dtype: Any = None
    _rounded: Array | None = None

    @property
    def weight(self) -> Array:
        """The float tensor of a weight. One that is in a file is read each time."""
        assert self.floats is not None
        return array_of(self.floats)

    @property
    def rounded(self) -> Array:
        """The rounded tensor of a weight. One that is in a file is read and rounded each time."""
        assert self.constant is not None
        assert self.of_constant is not None
        if self._rounded is not None:
            return self._rounded
        rounded = self.of_constant(array_of(self.constant))
        if is_in_memory(self.constant):
            self._rounded = rounded
        return rounded


@dataclass
class Found:
    """The quantized tensors of a model: those of the main graph in the order of execution, and those of subgraphs. `unmatched`
    holds the reasons why tensors are not measured, by name."""

    quantizers: list[Quantizer] = field(default_factory=list)
    nested: list[Quantizer] = field(default_factory=list)
    unmatched: dict[str, str] = field(default_factory=dict)


@dataclass
class Twin:
    """The float twin, with sorted nodes. Each quantizer is replaced by a node that passes x on: ``Identity``, ``Cast``, or
    ``Clip``. `kept` holds nodes with subgraphs as they are in the quantized model, by index, if any subgraph quantizes.

    If the model has only codes of a weight, the twin has the reference's float values. If the reference lacks these too, the
    twin has the dequantized values, and the weight is in `found.unmatched`."""

    lazy: ir.Model
    found: Found
    kept: dict[int, onnx.NodeProto]
    folder: str = ""  # of tensors in files

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The twin as onnx holds it. Tensors that are not in memory have only their types and shapes, and their places in
        files."""
        return model_files.without_elements(self.lazy)

    @property
    def quantizers(self) -> list[Quantizer]:
        return self.found.quantizers


def find_quantizers(graph: Graph) -> Found:
    found = Found()
    taken: set[ir.Node] = set()
    place = {node: index for index, node in enumerate(ir.traversal.RecursiveGraphIterator(graph.model.graph))}
    for node in sorted(graph.nodes(), key=lambda each: place.get(each.node, 0)):
        if node.node in taken:
            continue
        try:
            quantizer = _quantizer(graph, node)
        except Left as reason:
            found.unmatched[node.y.name or ""] = f"{node.full_name}: {reason}"
            continue
        taken.update(quantizer.nodes)
        if node.node.graph is graph.model.graph:
            found.quantizers.append(quantizer)
        else:
            found.nested.append(quantizer)
            found.unmatched[quantizer.name] = "in a subgraph: it is float in the twin, and not measured"
    return found


def label(node: ir.Node) -> str:
    """Return the name of a node; its operator and first output if it has no name."""
    return node.name or f"{node.op_type} of {node.outputs[0].name}"


def _quantizer(graph: Graph, node: Node) -> Quantizer:
    """Return the quantizer of a node. Raise Left if the node cannot be measured."""
    if node in graph.reasons:
        raise Left(graph.reasons[node])
    meaning = graph.meaning(node)
    constant = graph.tensor(node.x)
    followers = []
    parameters: dict[str, Any]
    form: Linear | Block | Values
    if isinstance(meaning, BlockRoundTrip):
        type_name, parameters, bits = meaning.format, {"axis": meaning.axis, "block_size": meaning.block_size}, meaning.bits
        apply = graph.as_function(node)
        form = _block(meaning) if meaning.operator in BLOCK_FORMATS else Values(bits, apply, _NO_LIMITS)
    elif isinstance(meaning, FakeQuantize):
        given = _given(meaning)
        apply, parameters = graph.as_function(node), {name: _range(each) for name, each in given.items()}
        type_name, bits = _type_of(meaning, given)
        form = Values(bits, apply, _limits(apply) if all(each.size == 1 for each in given.values()) else _NO_LIMITS)
    elif isinstance(meaning, Affine):
        if isinstance(meaning, Quantize):
            followers = _followers(graph, node)
        elif isinstance(meaning, Dequantize) and constant is None:
            raise Left("its codes are neither constant nor from a quantize node")
        form = _linear(meaning)
        type_name, parameters = form.element_type.name, _parameters(form)
        of_scale = find(form.scale.dtype)
        assert of_scale
        bits = form.element_type.bits + (of_scale.bits / form.block_size if form.block_size else 0)
        apply = _round_trip(graph, node, meaning, followers, form)
    else:
        raise Left("it rounds within its computation, and is the same in the float twin")
    ys = [each.y for each in followers or [node]]
    producer = node.x.producer()
    made = Quantizer(
        name=node.x.name or "",
        kind="activation" if constant is None else "weight",
        type=type_name,
        parameters=parameters,
        bits=bits,
        x=node.x.name or "",
        ys=[y.name or "" for y in ys],
        apply=apply,
        form=form,
        nodes=[node.node, *(each.node for each in followers)],
        users={label(user): user.op_type for y in ys for user, _ in y.uses()},
    )
    if constant is not None:
        made.made_by, made.constant = "a constant", constant
        made.of_constant, made.floats = (
            (graph.as_function(node), None) if isinstance(meaning, Dequantize) else (apply, constant)
        )
        made.dtype = made.rounded.dtype  # raises Left if the node is not valid
    elif producer:
        made.made_by = label(producer)
        if producer.op_type in _BEFORE_ACTIVATIONS and isinstance(form, Linear):
            made.clip = _implied_clip(form)
    return made


# Operators after which a quantized model may lack an activation function.
_BEFORE_ACTIVATIONS = (
    *("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm"),
    *("InstanceNormalization", "MatMul", "Mul", "Sub"),
)


def _implied_clip(form: Linear) -> tuple[float, float] | None:
    """Return the range of the codes if it begins at 0, and so clips negative values; None otherwise."""
    codes = form.element_type
    zero_point = 0 if form.zero_point is None else int(form.zero_point.reshape(-1)[0])
    if not codes.is_integer or not form.is_per_tensor or zero_point != codes.lowest or codes.bits > 16:
        return None
    return 0.0, float(np.float32(codes.highest - codes.lowest) * form.scale.astype(np.float32).reshape(-1)[0])


def _followers(graph: Graph, node: Node) -> list[Node]:
    """Return the dequantize nodes downstream of a quantize node. Raise Left if their parameters differ or are not constant."""
    followers = graph.followers(node)
    parameters = [_affine(graph, each) for each in followers]
    if not all(parameters[0].has_same_parameters(each) for each in parameters[1:]):
        raise Left("the dequantize nodes downstream of it differ")
    for each in parameters:
        _linear(each)  # raises Left
    return followers


def _affine(graph: Graph, node: Node) -> Affine[Operand]:
    meaning = graph.meaning(node)
    assert isinstance(meaning, Affine)
    return meaning


def _linear(meaning: Affine[Operand]) -> Linear:
    scale, zero_point = meaning.scale.array, meaning.zero_point.array if meaning.zero_point else None
    if scale is None or (meaning.zero_point and zero_point is None):
        raise Left("its scale or its zero point is not a constant")
    if meaning.element_type is None:
        raise Left("its type is not known")
    return Linear(meaning.element_type, scale, zero_point, meaning.axis, meaning.block_size)


def _round_trip(
    graph: Graph, node: Node, meaning: Affine[Operand], followers: list[Node], form: Linear
) -> Callable[[Array], Array]:
    """Return a function that quantizes and dequantizes x, in one step if the result is the same."""
    if isinstance(meaning, Dequantize):
        return lambda x: quantize_dequantize(
            x,
            form.scale.astype(np.float32),
            form.zero_point,
            axis=form.axis,
            block_size=form.block_size,
            dtype=None if form.zero_point is not None else form.element_type.name,
        )
    if not followers:
        return graph.as_function(node)
    quantize, dequantize, behind = graph.as_function(node), graph.as_function(followers[0]), _affine(graph, followers[0])

    def two_steps(x: Array) -> Array:
        return dequantize(quantize(x))

    in_float32 = form.scale.dtype == np.float32 and not meaning.has_other_type and not behind.has_other_type
    if not in_float32 or not meaning.has_same_parameters(behind):
        return two_steps
    zero_point = form.zero_point
    if zero_point is None:
        zero_point = np.zeros(form.scale.shape, form.element_type.dtype)
    scale, axis, block_size, saturate = form.scale, form.axis, form.block_size, meaning.saturate

    def one_step(x: Array) -> Array:
        if x.dtype != np.float32:
            return two_steps(x)
        return quantize_dequantize(x, scale, zero_point, axis=axis, block_size=block_size, saturate=saturate)

    return _at_once(form, zero_point, saturate, one_step) if form.is_per_tensor else one_step


def _at_once(form: Linear, zero_point: Array, saturate: bool, in_general: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return `in_general` without its checks, for one scale. With small tensors the checks take longer than the kernel."""
    key = select("quantize_dequantize", FLOAT32, FLOAT32, form.element_type, FLOAT32, saturate=saturate)
    scale, zero = form.scale.astype(np.float32).reshape(-1), zero_point.astype(key.zero_point_dtype).reshape(-1)
    if form.element_type.bits < 8:
        return in_general

    def apply(x: Array) -> Array:
        if x.dtype != np.float32 or not x.flags.c_contiguous:
            return in_general(x)
        y = np.empty(x.shape, np.float32)
        TABLE[key].serial(x.reshape(-1), scale, zero, y.reshape(-1), np.array([1, 1, x.size, 1, 0], np.int64), 0)
        return y

    return apply


def _parameters(form: Linear) -> dict[str, Any]:
    """Return the parameters as reports show them: a scale and a zero point, or their ranges if there are several."""
    parameters: dict[str, Any] = {"scale": _range(form.scale)}
    if form.zero_point is not None and form.zero_point.astype(np.float64).any():
        parameters["zero_point"] = _range(form.zero_point)
    if not form.is_per_tensor:
        parameters["axis"] = form.axis
    if form.block_size:
        parameters["block_size"] = form.block_size
    return parameters


def _range(values: Array) -> float | list[float]:
    floats = values.astype(np.float64)
    lowest, highest = float(floats.min()), float(floats.max())
    return lowest if floats.size == 1 else [lowest, highest]


def _given(meaning: FakeQuantize[Operand]) -> dict[str, Array]:
    """Return the parameters of a format. Raise Left if one of them is not a constant."""
    arrays = {}
    for name in FORMS[meaning.form].parameters:
        given = meaning.parameters[name]
        array = given.array if isinstance(given, Operand) else np.asarray(given)
        if array is None:
            raise Left(f"its {name} is not a constant")
        arrays[name] = array
    return arrays


def _type_of(meaning: FakeQuantize[Operand], given: dict[str, Array]) -> tuple[str, float]:
    """Return the name of a format, and the bits of an element."""
    numbers = {name: float(each.reshape(-1)[0]) for name, each in given.items()}
    if "mantissa_bits" in numbers:
        exponent, mantissa = numbers["exponent_bits"], numbers["mantissa_bits"]
        return f"e{exponent:g}m{mantissa:g}", 1 + exponent + mantissa
    bits = numbers.get("bit_width", numbers.get("out_bits", 1.0))
    return ("int" if numbers.get("signed", 1) else "uint") + f"{bits:g}", bits


# A value beyond what models hold, which all formats can divide by their scales.
_LARGE = np.float32(2.0**100)

_NO_LIMITS = (math.inf, -math.inf)


def _limits(apply: Callable[[Array], Array]) -> tuple[float, float]:
    """Return the limits beyond which x saturates: half a step beyond the values at the ends. The values between half a step
    before an end and the end itself are rounded to it, so that they show how long half a step is."""
    found = []
    for sign in (-1, 1):
        end = float(apply(np.array([sign * _LARGE], np.float32))[0])
        if not math.isfinite(end):
            return _NO_LIMITS
        within, beyond = 0.0, end
        for _ in range(40):
            middle = (within + beyond) / 2
            is_end = float(apply(np.array([middle], np.float32))[0]) == end
            within, beyond = (within, middle) if is_end else (middle, beyond)
        found.append(end + (end - beyond))
    return found[0], found[1]


def _block(meaning: BlockRoundTrip[Operand]) -> Block:
    of_format = {name: value for name, value in meaning.attributes.items() if name != "axis"}
    key, blocks = BLOCK_FORMATS[meaning.operator](FLOAT32, **of_format)
    return Block(blocks, key.element is None, meaning.axis)
