"""The quantizers of a model: the nodes that round a tensor, which tensors are weights, the values that a tensor can have, and
the reasons why some are not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from ...declaration import Affine, BlockRoundTrip, Dequantize, FakeQuantize, Quantize
from ...declaration.reasons import NotRewrittenError
from ...element_types import FLOAT32
from ...linear.calls import quantize_dequantize
from ...linear.dispatch import TABLE
from ...linear.key import select
from ...models.tensors import array_of, is_in_memory
from ...rewriting.graph import Graph
from ...rewriting.nodes import GraphOperand, Node
from .forms import Array, Form, Linear, block_form, fake_quantization_form
from .random_nodes import random_values

Kind = Literal["activation", "weight"]


@dataclass(eq=False)
class Quantizer:
    """What rounds a tensor: one node, or a quantize node and its dequantize nodes.

    `name` is that of the tensor before rounding, and `place` its index in the order of execution of the main graph. `ys` are
    the names of the tensors after rounding, which are equal. For a weight, `floats` is the float tensor (None if the model has
    only codes), `constant` is the tensor in the model, floats or codes, `constant_rounding` turns it into the rounded tensor,
    and `dtype` is that of the rounded tensor. `clip` holds the bounds of an activation function that the float twin needs and
    the model may lack: quantization tools leave out a Relu or a Clip if the range of the codes already clips.
    """

    name: str
    kind: Kind
    form: Form
    ys: list[str]
    apply: Callable[[Array], Array]
    nodes: list[Node]
    place: int = -1
    made_by: str = "an input of the model"
    users: dict[str, str] = field(default_factory=dict)  # operators of the nodes that take the rounded tensor, by name
    clip: tuple[float, float] | None = None
    floats: ir.TensorProtocol | None = None
    constant: ir.TensorProtocol | None = None
    constant_rounding: Callable[[Array], Array] | None = None
    dtype: Any = None
    _rounded: Array | None = None

    @property
    def weight(self) -> Array:
        """The float tensor of a weight. A tensor in a file is read each time."""
        assert self.floats is not None
        return array_of(self.floats)

    @property
    def rounded(self) -> Array:
        """The rounded tensor of a weight. A tensor in a file is read and rounded each time."""
        assert self.constant is not None
        assert self.constant_rounding is not None
        if self._rounded is not None:
            return self._rounded
        rounded = self.constant_rounding(array_of(self.constant))
        if is_in_memory(self.constant):
            self._rounded = rounded
        return rounded


@dataclass
class FoundQuantizers:
    """The quantizers of a model: those of the main graph in the order of execution, those of subgraphs, and those whose tensors
    depend on random numbers. `unmatched` holds the reasons why tensors are not measured, by name."""

    quantizers: list[Quantizer] = field(default_factory=list)
    nested: list[Quantizer] = field(default_factory=list)
    random: list[Quantizer] = field(default_factory=list)
    unmatched: dict[str, str] = field(default_factory=dict)


def find_quantizers(graph: Graph) -> FoundQuantizers:
    found = FoundQuantizers()
    taken: set[Node] = set()
    place = {node: index for index, node in enumerate(graph.model.graph.all_nodes())}
    random = random_values(graph.model.graph)
    for node in sorted(graph.nodes(), key=lambda record: place.get(record.ir_node, 0)):
        if node in taken:
            continue
        try:
            quantizer = _quantizer(graph, node)
        except NotRewrittenError as reason:
            found.unmatched[node.y.name or ""] = f"{node.full_name}: {reason}"
            continue
        taken.update(quantizer.nodes)
        if node.x in random:
            found.random.append(quantizer)
            found.unmatched[quantizer.name] = random[node.x]
        elif node.ir_node.graph is graph.model.graph:
            quantizer.place = len(found.quantizers)
            found.quantizers.append(quantizer)
        else:
            found.nested.append(quantizer)
            found.unmatched[quantizer.name] = "in a subgraph: it is float in the twin, and not measured"
    return found


def label(node: ir.Node) -> str:
    """Return the name of a node, or its operator and first output if it has no name."""
    return node.name or f"{node.op_type} of {node.outputs[0].name}"


def _quantizer(graph: Graph, node: Node) -> Quantizer:
    """Return the quantizer of a node. Raise NotRewrittenError if the node cannot be measured."""
    if node in graph.reasons:
        raise NotRewrittenError(graph.reasons[node])
    meaning = graph.meaning(node)
    constant = graph.tensor(node.x)
    followers: list[Node] = []
    form: Form
    if isinstance(meaning, (BlockRoundTrip, FakeQuantize)):
        apply = graph.as_function(node)
        form = block_form(meaning, apply) if isinstance(meaning, BlockRoundTrip) else fake_quantization_form(meaning, apply)
    elif isinstance(meaning, Affine):
        if isinstance(meaning, Quantize):
            followers = _followers(graph, node)
        elif isinstance(meaning, Dequantize) and constant is None:
            raise NotRewrittenError("its codes are neither constant nor from a quantize node")
        form = Linear(meaning)
        apply = _round_trip(graph, node, meaning, followers, form)
    else:
        raise NotRewrittenError("it rounds within its computation, and is the same in the float twin")
    ys = [record.y for record in followers or [node]]
    producer = node.x.producer()
    quantizer = Quantizer(
        name=node.x.name or "",
        kind="activation" if constant is None else "weight",
        form=form,
        ys=[y.name or "" for y in ys],
        apply=apply,
        nodes=[node, *followers],
        users={label(user): user.op_type for y in ys for user, _ in y.uses()},
    )
    if constant is not None:
        quantizer.made_by, quantizer.constant = "a constant", constant
        quantizer.constant_rounding, quantizer.floats = (
            (graph.as_function(node), None) if isinstance(meaning, Dequantize) else (apply, constant)
        )
        quantizer.dtype = quantizer.rounded.dtype  # raises NotRewrittenError if the node is not valid
    elif producer:
        quantizer.made_by = label(producer)
        if producer.op_type in _BEFORE_ACTIVATIONS and isinstance(form, Linear):
            quantizer.clip = _implied_clip(form)
    return quantizer


# Operators after which a quantized model may lack an activation function.
_BEFORE_ACTIVATIONS = (
    *("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm"),
    *("InstanceNormalization", "MatMul", "Mul", "Sub"),
)


def _implied_clip(form: Linear) -> tuple[float, float] | None:
    """Return the range of the codes if it begins at 0, and so clips negative values, or else None."""
    codes = form.element_type
    zero_point = 0 if form.zero_point is None else int(form.zero_point.reshape(-1)[0])
    if not codes.is_integer or not form.is_per_tensor or zero_point != codes.lowest or codes.bits > 16:
        return None
    return 0.0, float(np.float32(codes.highest - codes.lowest) * form.scale.astype(np.float32).reshape(-1)[0])


def _followers(graph: Graph, node: Node) -> list[Node]:
    """Return the dequantize nodes downstream of a quantize node. Raise NotRewrittenError if their parameters differ or are not
    constant."""
    followers = graph.followers(node)
    meanings = [graph.affine(follower) for follower in followers]
    if not all(meanings[0].has_same_parameters(other) for other in meanings[1:]):
        raise NotRewrittenError("the dequantize nodes downstream of it differ")
    for meaning in meanings:
        Linear(meaning)  # raises NotRewrittenError
    return followers


def _round_trip(
    graph: Graph, node: Node, meaning: Affine[GraphOperand], followers: list[Node], form: Linear
) -> Callable[[Array], Array]:
    """Return a function that quantizes and dequantizes x, in one step if the result is the same."""
    zero_point = np.zeros(form.scale.shape, form.element_type.dtype) if form.zero_point is None else form.zero_point
    scale, axis, block_size, saturate = form.scale.astype(np.float32), form.axis, form.block_size, meaning.saturate

    def one_step(x: Array) -> Array:
        return quantize_dequantize(x, scale, zero_point, axis=axis, block_size=block_size, saturate=saturate)

    if isinstance(meaning, Dequantize):
        return one_step
    if not followers:
        return graph.as_function(node)
    quantize, dequantize, second = graph.as_function(node), graph.as_function(followers[0]), graph.affine(followers[0])

    def two_steps(x: Array) -> Array:
        return dequantize(quantize(x))

    in_float32 = form.scale.dtype == np.float32 and not meaning.has_other_type and not second.has_other_type
    if not in_float32 or not meaning.has_same_parameters(second):
        return two_steps

    def round_trip(x: Array) -> Array:
        return one_step(x) if x.dtype == np.float32 else two_steps(x)

    if not form.is_per_tensor or form.element_type.bits < 8:
        return round_trip
    key = select("quantize_dequantize", FLOAT32, FLOAT32, form.element_type, FLOAT32, saturate=saturate)
    parameters = scale.reshape(-1), zero_point.astype(key.zero_point_dtype).reshape(-1)

    def unchecked(x: Array) -> Array:
        """Return the round trip without checks, which take longer than the kernel with small tensors."""
        if x.dtype != np.float32 or not x.flags.c_contiguous:
            return round_trip(x)
        y = np.empty(x.shape, np.float32)
        TABLE[key].serial(x.reshape(-1), *parameters, y.reshape(-1), np.array([1, 1, x.size, 1, 0], np.int64), 0)
        return y

    return unchecked
