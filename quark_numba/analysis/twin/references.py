"""Float weights and activation bounds that a quantized model lacks, taken from the reference: how a tensor is found there, by
its name or by the node that takes it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir
import onnxruntime

from ...element_types import find
from ...errors import reraise_of_signal_handler
from ...models import model_files
from ...models.model_files import Source
from ...ort import register
from ...rewriting.fusions import optimize_by_onnx_runtime
from ...rewriting.graph import Graph, Settings
from .quantizers import Quantizer

# The suffixes that Quark appends to a tensor's name, for its codes and for the dequantized tensor.
_SUFFIXES = ("_quantized", "_DequantizeLinear_Output")


def use_reference(graph: Graph, quantizers: list[Quantizer], reference: Source) -> None:
    """Set float values and activation bounds that the model lacks to those of the reference.

    A weight that the model holds only as codes gets the float values of a constant of the same shape. The constant has the same
    name, or it is the same input of a node with the same operator and output. It is looked up in the reference as it is, and
    then in the reference as ONNX Runtime simplifies it, with constants folded and normalizations fused into convolutions. A
    tensor whose activation function the model lacks gets the bounds of the reference's Relu or Clip with that output."""
    without_weight = [quantizer for quantizer in quantizers if quantizer.kind == "weight" and quantizer.floats is None]
    clipped = {quantizer.name: quantizer for quantizer in quantizers if quantizer.clip}
    forms = _forms(reference)
    while (without_weight or clipped) and (candidate := next(forms, None)):
        constants, inputs = _constants(candidate)
        for node in candidate.model.graph:
            bounds = _bounds(candidate, node)
            if bounds and node.outputs[0].name in clipped:
                clipped.pop(node.outputs[0].name).clip = bounds
        for quantizer in without_weight:
            assert quantizer.constant is not None
            names = {name.removesuffix(suffix) for name in (quantizer.name, *quantizer.ys) for suffix in ("", *_SUFFIXES)}
            tensors = [constants[name] for name in sorted(names) if name in constants]
            tensors += [inputs[place] for place in _places(graph, quantizer) if place in inputs]
            tensors = [tensor for tensor in tensors if tensor.shape.numpy() == quantizer.constant.shape.numpy()]
            if tensors:
                quantizer.floats = tensors[0]
        without_weight = [quantizer for quantizer in without_weight if quantizer.floats is None]


def _bounds(graph: Graph, node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a Relu or a Clip, or None for other nodes."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip" or len(node.inputs) < 2:
        return None

    def bound(index: int, default: float) -> float:
        value = node.inputs[index] if index < len(node.inputs) else None
        array = None if value is None else graph.array(value)
        return default if array is None or array.size != 1 else float(array.reshape(-1)[0])

    return bound(1, -math.inf), bound(2, math.inf)


def _forms(reference: Source) -> Iterator[Graph]:
    """Yield the reference as it is, and then as ONNX Runtime simplifies it, which reads all tensors."""
    yield Graph(reference.lazy(), Settings(keep_initializers_as_inputs=False))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    register(options)
    try:
        simplified = optimize_by_onnx_runtime(model_files.as_proto(reference.lazy()), options)
    except Exception as error:  # ONNX Runtime cannot load the reference
        reraise_of_signal_handler(error)
        return
    yield Graph(ir.from_proto(simplified), Settings(keep_initializers_as_inputs=False))


Place = tuple[str, str | None, int]


def _constants(graph: Graph) -> tuple[dict[str, ir.TensorProtocol], dict[Place, ir.TensorProtocol]]:
    """Return the constants by name, and by the operator, first output and input index of the nodes that take them."""
    constants: dict[str, ir.TensorProtocol] = {}
    inputs: dict[Place, ir.TensorProtocol] = {}
    values = [*graph.model.graph.initializers.values(), *(value for node in graph.model.graph for value in node.outputs)]
    for value in values:
        tensor = graph.tensor(value)
        if tensor is None or find(tensor.dtype.value) is None:
            continue
        constants[value.name or ""] = tensor
        for node, index in value.uses():
            output = node.outputs[0]
            inputs[node.op_type, output.name, index] = tensor
            for user, _ in output.uses():  # without it, the node's output in the quantized model has its name
                if user.op_type in ("Relu", "Clip"):
                    inputs[node.op_type, user.outputs[0].name, index] = tensor
    return constants, inputs


def _places(graph: Graph, quantizer: Quantizer) -> Iterator[Place]:
    """Yield the operator, first output and input index of each node that takes the rounded tensor."""
    for node in graph.model.graph:
        if node.outputs and node.outputs[0].name in quantizer.ys:
            for user, index in node.outputs[0].uses():
                yield user.op_type, user.outputs[0].name, index
