"""The float twin of a quantized model: the same graph without its quantization nodes, what stands in their place (Identity,
Cast or Clip), and the errors of models without a twin."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir

from ...declaration import Tensor
from ...element_types import FLOAT32, find
from ...errors import errors_named
from ...models import model_files
from ...models.genai_folders import decoder_at
from ...models.model_files import Source
from ...models.protos import subgraphs, used_names
from ...models.tensors import ComputedTensor, in_memory, is_in_memory, opened
from ...rewriting import casts, channels_last, constants, dynamic_pairs, functions
from ...rewriting.graph import Graph, Settings
from ...rewriting.nodes import Node
from .forms import Array
from .quantizers import FoundQuantizers, Quantizer, find_quantizers
from .references import use_reference

Model = onnx.ModelProto | str | os.PathLike[str]

# A quantized model, and the float model if that is given.
Pair = tuple[Source, Source | None]


def load_pair(model: Model, reference: Model | None, *, whole: bool) -> Pair:
    return load(model, whole=whole), None if reference is None else load(reference, "reference", whole=whole)


@dataclass
class Twin:
    """The float twin, with sorted nodes. Each quantizer is replaced by a node that passes x on: ``Identity``, ``Cast``, or
    ``Clip``. `kept` holds nodes with subgraphs as they are in the quantized model, by index, if any subgraph quantizes.

    If the model has only codes of a weight, the twin has the reference's float values. If the reference lacks these too, the
    twin has the dequantized values, and the weight is in `found.unmatched`."""

    lazy: ir.Model
    found: FoundQuantizers
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


def load(model: Model, name: str = "model", *, whole: bool = False) -> Source:
    """Return the model, with local functions inlined; of a folder of ONNX Runtime GenAI, the decoder. Large tensors of a large
    model stay in their files, unless it has to be `whole`. Raise ModelError if the model cannot be used, and TypeError if it is
    neither a model nor a path."""
    source = Source.from_argument(decoder_at(model), name)
    if whole or not source.is_large:
        content = source.whole()
        source.check()
        source = Source(content)
    if source.proto.functions:
        with errors_named("not a valid model"):
            intermediate = source.lazy()
            functions.inline(intermediate, every=True)
            source.proto = model_files.serialized(intermediate)
    return source


def check(*sources: Source | None) -> None:
    """Raise ModelError if the file of a model, or one with tensors of it, was changed since it was first read."""
    for source in sources:
        if source is not None:
            source.check()


def make_twin(model: Source, reference: Source | None = None) -> Twin:
    """Return the float twin. Raise ModelError if the model is not valid."""
    with errors_named("not a valid model"):
        graph = _graph(model)
        found = find_quantizers(graph)
        kept: dict[int, onnx.NodeProto] = {}
        if found.nested:
            inner = _graph(model)
            _bypass(inner, find_quantizers(inner).quantizers)
            whole = model_files.without_elements(inner.model).graph.node
            kept = {index: node for index, node in enumerate(whole) if any(True for _ in subgraphs(node))}
        codes = [quantizer for quantizer in found.quantizers if quantizer.kind == "weight" and quantizer.floats is None]
        if reference is not None:
            use_reference(graph, found.quantizers, reference)
        _bypass(graph, [*found.quantizers, *found.nested, *found.random])
        for quantizer in codes:
            if quantizer.floats is None:
                why = "and the reference has no tensor for it" if reference is not None else "and there is no reference"
                found.unmatched[quantizer.name] = f"the model holds only its codes, {why}"
            _set_weight(graph, quantizer)
        used = {name for node in kept.values() for name in used_names(node)}
        initializers = graph.model.graph.initializers
        for name, value in list(initializers.items()):
            if not (name in used or value.uses() or value.is_graph_output() or value.is_graph_input()):
                del initializers[name]
    if not (found.quantizers or found.nested or found.unmatched):
        what = "the model has no quantization nodes: its float model is the model itself, and no tensor is measured"
        warnings.warn(what, stacklevel=2)
    return Twin(graph.model, found, kept, model.folder)


def _graph(source: Source) -> Graph:
    intermediate = source.lazy()
    intermediate.graph.sort()
    channels_last.rewrite(intermediate)
    graph = Graph(intermediate, Settings(keep_initializers_as_inputs=False))
    constants.fold_scales(graph)
    dynamic_pairs.rewrite(graph)
    casts.fuse(graph)
    graph.sweep()
    return graph


def _bypass(graph: Graph, quantizers: list[Quantizer]) -> None:
    """Replace the nodes of each quantizer by a node that passes x on."""
    for quantizer in quantizers:
        first, *others = quantizer.nodes
        x = first.x
        for last in others or [first]:
            passing, node = _passing(graph, x, last, quantizer), last.ir_node
            assert node.graph
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], [passing], [last.y], passing.outputs)
        if others and first.ir_node.graph:
            first.ir_node.graph.remove(first.ir_node, safe=True)


def _passing(graph: Graph, x: ir.Value, last: Node, quantizer: Quantizer) -> ir.Node:
    types = [Tensor(None if value is None else graph.type(value), None) for value in last.ir_node.inputs]
    (inferred,) = last.operator.infer([*types], last.attributes)
    type_of_y, type_of_x = inferred.element_type or FLOAT32, graph.type(x)
    name = f"{last.y.name}/{quantizer.form.type}"
    if quantizer.clip:
        bounds = [graph.new_constant(np.array(end, np.float32), name, last.ir_node) for end in quantizer.clip]
        return ir.node("Clip", [x, *bounds], name=name)
    if quantizer.kind == "weight" or type_of_x in (type_of_y, None):
        return ir.node("Identity", [x], name=name)
    return ir.node("Cast", [x], {"to": type_of_y.number}, name=name)


def _set_weight(graph: Graph, quantizer: Quantizer) -> None:
    """Replace the codes of a weight by a float tensor."""
    assert quantizer.constant is not None

    def floats() -> Array:
        return quantizer.rounded if quantizer.floats is None else quantizer.weight.astype(quantizer.dtype)

    element_type = find(quantizer.dtype)
    assert element_type
    if is_in_memory(quantizer.constant):
        tensor = in_memory(floats())
    else:
        tensor = ComputedTensor(lambda: opened(in_memory(floats())), element_type, quantizer.constant.shape.numpy())
    for node in list(graph.model.graph):
        if node.outputs and node.outputs[0].name in quantizer.ys:
            node.replace_input_with(0, graph.add_constant(tensor, graph.unused_name(f"{quantizer.name}_float"), node))
