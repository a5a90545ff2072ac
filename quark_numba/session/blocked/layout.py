"""Keep ONNX Runtime's blocked layout for convolutions through regions: when a model is laid out so, and the reasons why a
model, a session or a node is not.

ONNX Runtime runs convolutions on tensors in the layout (N, C / b, H, W, b), in blocks of b = 8 or 16 channels (NCHWc). It
reorders a tensor to ONNX's layout before every node that has no implementation on blocks known to ONNX Runtime. Regions do work
on blocks. So this module replaces ONNX Runtime's own NchwcTransformer, and includes regions. First ONNX Runtime does all its
other optimizations and writes the model. Then each node whose inputs are in blocks is replaced by its counterpart on blocks, if
the counterpart is known to compute the same result.

In the resulting model, a tensor in blocks has the shape (N, C rounded up to b, H, W). The model is valid for this processor and
for one session.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, NamedTuple

import onnx
import onnxruntime
from onnx import helper

from ...declaration.reasons import NotRewrittenError, stays_if
from ...errors import WriteError, errors_named
from ...models import model_files
from ...models.protos import used_names
from ...ort import DISABLED_OPTIMIZERS, config_entry, register
from ...ort.native import NEVER_RUNS
from ...rewriting.fusions import optimize_by_onnx_runtime
from ..request import SessionRequest
from ..session_options import ENTRIES
from .arrays import NCHWC, find_lanes
from .counterparts import HANDLERS, REGION
from .tensors import DEQUANTIZE, QUANTIZE, BlockedTensors


class BlockedModel(NamedTuple):
    """The result of `lay_out`, in this order: the model for the session, or None if the model does not change; the number of
    regions in the blocked layout; the numbers of other regions, by reason; the reason why ONNX Runtime's optimized model could
    not be written, or ""."""

    model: onnx.ModelProto | None
    in_layout: int
    left_out: Counter[str]
    write_error: str = ""


def lay_out(model: onnx.ModelProto, request: SessionRequest, path: str | None = None) -> BlockedModel:
    """Return the model with regions in the blocked layout, for a session of the request. If the model has tensors in files,
    `path` is the path of the model, and the tensors of the result are in the same folder."""
    operators = Counter((node.domain, node.op_type) for node in model.graph.node)
    regions = operators[REGION.domain, REGION.name]
    if not regions:
        return BlockedModel(None, 0, Counter())
    try:
        stays_if(not operators["", "Conv"], "the model has no convolution")
        lanes = _find_lanes_for(request)
        optimized = _optimize(path or model, request)
    except NotRewrittenError as error:
        write_error = str(error.__cause__) if isinstance(error.__cause__, WriteError) else ""
        return BlockedModel(None, 0, Counter({str(error): regions}), write_error)
    tensors = BlockedTensors(optimized, lanes, path and os.path.dirname(path))
    in_layout, left_out = 0, Counter[str]()
    for node in optimized.graph.node:
        kind = ("" if node.domain == "ai.onnx" else node.domain), node.op_type
        is_region = kind == (REGION.domain, REGION.name)
        try:
            stays_if(kind not in HANDLERS, "the operator has no counterpart on blocks")
            HANDLERS[kind](tensors, node)
            in_layout += is_region
        except NotRewrittenError as error:
            reason = tensors.append_unchanged(node, error)
            left_out.update([reason] * is_region)
    for output in optimized.graph.output:
        tensors.reorder_output(output.name)
    return BlockedModel(_write(optimized, tensors, model) if in_layout else None, in_layout, left_out)


def has_regions(model: model_files.Model) -> bool:
    """Return whether the main graph has regions."""
    nodes: Any = model.graph.node if isinstance(model, onnx.ModelProto) else model.graph
    return any((node.domain, node.op_type) == (REGION.domain, REGION.name) for node in nodes)


def _find_lanes_for(request: SessionRequest) -> int:
    """Return the number of lanes (`find_lanes`). Raise NotRewrittenError unless ONNX Runtime would lay out this session's
    tensors in blocks."""
    options = request.options
    stays_if(request.other_providers, "the session has other execution providers than CPUExecutionProvider")
    is_all = options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    stays_if(not is_all, "graph_optimization_level is not ORT_ENABLE_ALL")
    stays_if(options.optimized_model_filepath, "optimized_model_filepath is set")
    disabled = [*(request.ort_arguments.get("disabled_optimizers") or ())]
    disabled += (config_entry(options, DISABLED_OPTIMIZERS) or "").split(";")
    stays_if("NchwcTransformer" in disabled, "NchwcTransformer is disabled")
    with errors_named("ONNX Runtime laid out no convolution", NotRewrittenError):
        lanes = find_lanes()
    stays_if(lanes == 1, "ONNX Runtime has no blocked layout on this processor")
    return lanes


def _optimize(model: onnx.ModelProto | str, request: SessionRequest) -> onnx.ModelProto:
    """Return the model as ONNX Runtime optimizes it before it lays out tensors, with the shapes that ONNX Runtime knows. If
    `model` is a path, large tensors of the result are written to a file beside it."""
    options = onnxruntime.SessionOptions()  # so that other sessions do not see the changes
    for name in ENTRIES:
        value = config_entry(request.options, name)
        if value is not None:
            options.add_session_config_entry(name, value)
    options.add_session_config_entry(NEVER_RUNS, "1")
    register(options, backend="native", qdq="float" if request.takes_all_qdq else "auto")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    # If the model is not valid, the session reports why.
    with errors_named("ONNX Runtime did not write the optimized model", NotRewrittenError):
        return optimize_by_onnx_runtime(model, options, **request.ort_arguments)


def _write(optimized: onnx.ModelProto, tensors: BlockedTensors, source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the optimized model with the rewritten nodes, and with the inputs, outputs and metadata of the source."""
    graph = optimized.graph
    used = {proto.name for proto in graph.output}
    nodes = []
    for node in reversed(tensors.nodes):
        # A Transpose may have become part of a reorder, and of codes and numbers only one may be used.
        may_be_unused = (node.domain, node.op_type) in (("", "Transpose"), QUANTIZE, DEQUANTIZE)
        if not may_be_unused or not used.isdisjoint(node.output):
            nodes.append(node)
            used.update(used_names(node))
    nodes = onnx.GraphProto(node=reversed(nodes)).node  # copies, as the next line deletes the originals
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    made = {name for node in nodes for name in node.output}
    inputs = source.graph.input
    defaults = {value.name for value in inputs} if source.ir_version >= 4 else set()  # before, all constants are inputs
    for values, is_kept in ((graph.value_info, made), (graph.initializer, used | defaults)):
        for index in reversed(range(len(values))):  # in place: the weights are large
            if values[index].name not in is_kept:
                del values[index]
    graph.initializer.extend(proto for proto in tensors.new_constants if proto.name in used)
    lost = {proto.name for proto in source.graph.initializer} - {proto.name for proto in graph.initializer}
    graph.input.extend(value for value in inputs if value.name not in lost)
    graph.output.extend(source.graph.output)
    graph.name, graph.doc_string = source.graph.name, source.graph.doc_string
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        optimized.ClearField(name)
        if source.HasField(name):
            setattr(optimized, name, getattr(source, name))
    del optimized.metadata_props[:]
    optimized.metadata_props.extend(source.metadata_props)
    if NCHWC not in {proto.domain for proto in optimized.opset_import}:
        optimized.opset_import.append(helper.make_opsetid(NCHWC, 1))
    return optimized
