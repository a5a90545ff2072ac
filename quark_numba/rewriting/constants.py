"""Fold constants: replace each node whose inputs are all constants by its outputs; which keep their codes, and which are
computed only when the model is written.

Nodes are visited in the order of the model. A quantize node is visited before its dequantize nodes, and is not replaced at
first. The graph only remembers its result: the round trip as one kernel computes it, or the codes if there is no such kernel.
Each dequantize node then finds its own result in the graph, and becomes a constant. After the last dequantize node, the
quantize node is unused, and is removed.

Equal nodes on one constant are computed once. Large outputs are computed when the model is written, some rows at a time, on one
thread. One thread computes 2 to 10 GB of floats a second, which is faster than reading and writing. More threads would wait in
a loop between the groups of rows, and take several times the processor time of the computation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..compiling.threads import on_one_thread
from ..declaration import Affine, BlockRoundTrip, Dequantize, DynamicQuantize, FakeQuantize, Meaning, Quantize, Tensor
from ..declaration.reasons import Invalid, NotRewrittenError, faults_as_reasons, stays_if
from ..element_types import FLOAT32, find
from ..fake_quantization.operators import FAKE_QUANTIZE
from ..models.tensors import ComputedTensor, array_of, in_memory, mapped, opened, row_axis, spans
from ..region import compiled_steps
from . import block_codes, fake_quantizers, pairs
from .block_codes import Known
from .graph import Graph
from .nodes import GraphOperand, Node, call

CONSTANT = "folded: a constant"
INPUT = "an initializer that it takes is a graph input; it is folded with keep_initializers_as_inputs=False"
CODES = "quantized: constant codes"
KEPT = "its codes are kept"

_Meaning = Meaning[GraphOperand] | None
_Inputs = Sequence[ir.TensorProtocol | None]  # None: omitted

# Outputs of more bytes are computed when they are read.
_LARGE = 1 << 16


def rewrite(graph: Graph) -> None:
    folding = _Folding(graph)
    for node in graph.nodes():
        inputs = [value for value in node.ir_node.inputs if value is not None]
        defaults = [value for value in inputs if graph.is_default(value)]
        if defaults and all(value in defaults or graph.tensor(value) is not None for value in inputs):
            graph.count_left(node.ir_node, INPUT)
    graph.each(folding.fold)


def fold_scales(graph: Graph) -> None:
    """Fold the nodes that only compute scales or zero points of other nodes."""
    folding = _Folding(graph)
    graph.each(lambda node, meaning: folding.fold(node, meaning) if _is_scale(graph, node) else None)


def _is_scale(graph: Graph, node: Node) -> bool:
    """Return whether a node only computes parameters of other nodes, such as scales. Such a node is folded to floats, even if
    the other nodes keep their codes."""
    uses = node.y.uses()
    return bool(uses) and all(index > 0 and graph.meaning(graph.node(user)) for user, index in uses)


class _Folding:
    """The folding of a graph's nodes, with the results so far: equal nodes on one constant are computed once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: Known = {}

    def fold(self, node: Node, meaning: _Meaning) -> None:
        """Fold a node if its inputs are constants. Raise NotRewrittenError if the node is not folded."""
        inputs = self.graph.constant_inputs(node)
        remembered = self.graph.tensor(node.y) if isinstance(meaning, Dequantize) else None
        if remembered is not None:
            self.graph.replace_by_constants(node, (remembered,), CONSTANT)
        elif inputs is None:
            may_be_fused = isinstance(meaning, (Quantize, Dequantize, DynamicQuantize, FakeQuantize))
            stays_if(not may_be_fused, "it is one step already, and not all of its inputs are constants")
        elif isinstance(meaning, Quantize):
            try:
                self._remember_round_trip(node, meaning)
            except NotRewrittenError:
                self._remember_outputs(node, inputs, meaning)
        else:
            outputs = self._remember_outputs(node, inputs, meaning)
            if not (self.graph.keep_quantized_weights and self._keep_codes(node, outputs, meaning)):
                self.graph.replace_by_constants(node, outputs, CONSTANT)

    def _keep_codes(self, node: Node, outputs: Sequence[ir.TensorProtocol], meaning: _Meaning) -> bool:
        """Return whether a node has been replaced by a node that dequantizes stored codes. Raise NotRewrittenError if the node
        itself is such a dequantize node, and is not replaced."""
        if isinstance(meaning, BlockRoundTrip):
            with suppress(NotRewrittenError):
                kept = block_codes.store(self.graph, node, meaning, self._known)
                self.graph.remember(kept.y, *outputs)  # removed with the last folded node that uses it
                self.graph.reasons[kept] = KEPT
                return True
        if isinstance(meaning, Dequantize) and not _is_scale(self.graph, node):
            if quantize := self.graph.node(node.x.producer()):
                codes = self.graph.tensor(node.x)
                assert codes is not None
                self.graph.replace_by_constants(quantize, (codes,), CODES)
            raise NotRewrittenError(KEPT)
        return False

    def _remember_round_trip(self, node: Node, quantize: Quantize[GraphOperand]) -> None:
        """Compute the common result of all dequantize nodes of a quantize node in one step. One step needs one kernel instead
        of two, which takes half the time if kernels are not compiled yet. Raise NotRewrittenError if one step would give a
        different result, or if the codes are kept."""
        stays_if(self.graph.keep_quantized_weights, KEPT)
        followers = pairs.fusible_followers(self.graph, node, quantize)
        x, scale, codes = self.graph.tensor(quantize.x.value), quantize.scale.array, quantize.element_type
        assert x is not None
        assert scale is not None
        assert codes
        # An invalid node must not be replaced. Computing this node alone gives the reason.
        is_float32 = x.dtype == ir.DataType.FLOAT and scale.dtype == np.float32
        has_codes = all(codes.name in record.operator.formats for record in (node, *followers))
        stays_if(not (is_float32 and has_codes), "its types are not those of the operator that does both")
        zero_point = quantize.zero_point and self.graph.tensor(quantize.zero_point.value)
        zeros = zero_point or in_memory(np.zeros(scale.shape, codes.dtype))
        pair = replace(node, operator=pairs.PAIR, attributes=pairs.attributes(quantize))
        (y,) = self._compute(pair, [x, self.graph.tensor(quantize.scale.value), zeros], quantize)
        for follower in followers:
            self.graph.remember(follower.y, y)

    def _remember_outputs(self, node: Node, inputs: _Inputs, meaning: _Meaning) -> Sequence[ir.TensorProtocol]:
        outputs = self._compute(node, inputs, meaning)
        for value, tensor in zip(node.ir_node.outputs, outputs, strict=True):
            self.graph.remember(value, tensor)
        return outputs

    def _compute(self, node: Node, inputs: _Inputs, meaning: _Meaning) -> Sequence[ir.TensorProtocol]:
        """Return the outputs of a node for constant inputs. Raise NotRewrittenError if the node is not valid."""
        x, *others = inputs
        assert x is not None
        digests = (tensor and hashlib.sha256(array_of(tensor).tobytes()).digest() for tensor in others)
        types = (tensor and (tensor.dtype, tensor.shape.numpy()) for tensor in others)
        key = node.operator, repr(node.attributes), id(x), *digests, *types
        if key not in self._known:
            y = _lazy_output(self.graph, node, x, others, meaning)
            arrays = () if y else _call(node, [None if tensor is None else array_of(tensor) for tensor in inputs])
            self._known[key] = x, [y] if y else [in_memory(array) for array in arrays]
        return self._known[key][1]


def _call(node: Node, inputs: list[NDArray[Any] | None]) -> tuple[NDArray[Any], ...]:
    """Return what `call` returns. If it compiles, compile as little as possible."""
    if node.operator is pairs.PAIR and not node.attributes["block_size"]:
        y = compiled_steps.round_trip(*inputs, saturate=bool(node.attributes["saturate"]))
        if y is not None:
            return (y,)
    return call(node, inputs)


def _lazy_output(graph: Graph, node: Node, x: ir.TensorProtocol, others: _Inputs, meaning: _Meaning) -> ComputedTensor | None:
    """Return the output of a node as a tensor that is computed when it is read. Return None if the output is small, or if its
    rows cannot be computed one by one. Raise NotRewrittenError if the node is not valid."""
    shape = x.shape.numpy()
    if x.size * 4 <= _LARGE:  # a float has at most 4 bytes
        return None
    if isinstance(meaning, FakeQuantize):
        return _lazy_fake_quantization(graph, node, x, meaning)
    if not isinstance(meaning, (Affine, BlockRoundTrip)):
        return None
    axis, block = meaning.axis % len(shape) if len(shape) > 1 else 0, meaning.block_size
    if not block and any(tensor is not None and len(tensor.shape) > 1 and tensor.size > 1 for tensor in others):
        return None
    known = [None if tensor is None else Tensor(find(tensor.dtype.value), tensor.shape.numpy()) for tensor in (x, *others)]
    with faults_as_reasons():
        (inferred,) = node.operator.infer(known, node.attributes)
    element_type = inferred.element_type
    if element_type is None:
        return None
    # A part of x is a range of indices along its axis `along`. Its parameters are a range of indices along their
    # `parameter_axis`, which is counted from the end. Each index stands for `unit` indices of x. If `parameter_axis` is None,
    # all parameters belong to each part. With blocks, parameters have the axes of x, with one element for each block along
    # `axis`. Without blocks, parameters have the axis `axis` alone.
    along = row_axis(shape)
    unit = block if block and along == axis else 1
    parameter_axis = along - len(shape) if block else -1 if along == axis else None

    def rows_of_y(part: NDArray[Any], start: int, stop: int, *parameters: NDArray[Any] | None) -> NDArray[Any]:
        operands = (_rows(parameter, parameter_axis, start // unit, -(-stop // unit)) for parameter in parameters)
        return on_one_thread(_call, node, [part, *operands])[0]

    y = mapped(x, rows_of_y, element_type, unit, others)
    # The node may be invalid because of types or shapes, which the first rows show, or because of values of the parameters.
    with opened(y) as rows:
        first = rows(0, min(next(spans(y))[1], max(y.unit, 2)))
    _check_parameters(node, x, others, axis)
    return y if find(first.dtype) is element_type else None


def _check_parameters(node: Node, x: ir.TensorProtocol, others: _Inputs, axis: int) -> None:
    """Raise NotRewrittenError if values of the parameters are not valid. The node is called with zeros instead of x, with
    all indices along `axis` and one index along each other axis."""
    x_type, shape = find(x.dtype.value), x.shape.numpy()
    assert x_type
    zeros = np.zeros([length if dimension == axis else 1 for dimension, length in enumerate(shape)], x_type.dtype)
    call(node, [zeros, *(_first_of_other_axes(parameter, axis, len(shape)) for parameter in others)])


def _lazy_fake_quantization(
    graph: Graph, node: Node, x: ir.TensorProtocol, meaning: FakeQuantize[GraphOperand]
) -> ComputedTensor:
    """Return the output of a node of fake quantization, whose parameters broadcast to x, as `_lazy_output` does."""
    shape = x.shape.numpy()
    arrays, attributes = fake_quantizers.parameters(graph, meaning)
    fits = np.broadcast_shapes(shape, *(array.shape for array in arrays)) == tuple(shape)
    stays_if(not fits, Invalid("not valid: a parameter does not broadcast to x"))
    counterpart, along = replace(node, operator=FAKE_QUANTIZE, attributes=attributes), row_axis(shape) - len(shape)

    def rows_of_y(part: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        return on_one_thread(call, counterpart, [part, *(_rows(array, along, start, stop) for array in arrays)])[0]

    return mapped(x, rows_of_y, FLOAT32)


def _rows(parameter: NDArray[Any] | None, axis: int | None, start: int, stop: int) -> NDArray[Any] | None:
    """Return some rows of a parameter, along an axis that is counted from the end. Return the whole parameter if it has no such
    axis."""
    if parameter is None or axis is None or parameter.ndim < -axis or parameter.shape[axis] == 1:
        return parameter
    index: tuple[Any, ...] = (..., slice(start, stop), *[slice(None)] * (-axis - 1))
    return parameter[index]


def _first_of_other_axes(tensor: ir.TensorProtocol | None, axis: int, rank: int) -> NDArray[Any] | None:
    """Return a parameter with all indices along `axis`, and the first index along each other axis."""
    array = None if tensor is None else array_of(tensor)
    if array is None or array.ndim != rank or array.ndim < 2:
        return array
    return array[tuple(slice(None) if dimension == axis else slice(1) for dimension in range(rank))]
