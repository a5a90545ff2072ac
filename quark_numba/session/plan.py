"""How to prepare a model for ONNX Runtime."""

from __future__ import annotations

from typing import NamedTuple

import onnx
import onnxruntime

from ..models import model_files, protos
from ..ort import DISABLE_QUANT_QDQ, config_entry
from ..rewriting.graph import Settings
from ..rewriting.optimize import begins_rewriting
from .blocked.layout import has_regions
from .request import SessionRequest


class PreparationPlan(NamedTuple):
    """The steps that prepare a model.

    - `settings`: those of ``rewrite_model`` for this model, or None if there is nothing to rewrite.
    - `uses_blocks`: whether the model's regions are to be in the blocked layout.
    - `compiles_ahead`: whether other processes compile the kernels while the model is rewritten.
    - `in_one_file`: whether the model and its tensors have to be in one file."""

    settings: Settings | None
    uses_blocks: bool
    compiles_ahead: bool
    in_one_file: bool


def make_plan(request: SessionRequest, source: model_files.Source) -> PreparationPlan:
    """Return the steps that prepare a model for the sessions of a request."""
    replaced, is_native, written = request.replacements, request.is_native, request.written_operators
    is_custom, has_other_providers = written == "custom", bool(request.other_providers)
    levels = onnxruntime.GraphOptimizationLevel
    is_basic = request.options.graph_optimization_level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC)
    settings = Settings(
        qdq="float" if request.takes_all_qdq else request.qdq,
        operators=written,
        keep_quantized_weights=request.keep_quantized_weights,
        native_operators=is_native,
        keep_initializers_as_inputs=request.keep_initializers_as_inputs,
        replaced=replaced.names,
        # A user who turns off ONNX Runtime's integer operators does not want ours either.
        integers="nowhere" if is_basic or config_entry(request.options, DISABLE_QUANT_QDQ) == "1" else "here",
        has_other_providers=has_other_providers,
    )
    needs_rewriting = not is_custom or has_other_providers or has_nodes_to_rewrite(source.proto)
    # A large model that does not run from its own file is written to another one, as every rewritten large model is.
    needs_rewriting |= source.is_large and (source.path is None or has_regions(source.proto))
    return PreparationPlan(
        settings if needs_rewriting else None,
        uses_blocks=request.blocked_layout and is_native and is_custom and not replaced.names,
        compiles_ahead=is_native and is_custom,
        in_one_file=replaced.from_memory,  # ONNX Runtime would look for other files in memory
    )


def has_nodes_to_rewrite(model: onnx.ModelProto) -> bool:
    """Return whether `optimize` may rewrite a node: whether a pass begins with a node of the model, of its subgraphs or of its
    functions. Return True also for a model without a graph, because `optimize` refuses it."""
    return not model.HasField("graph") or any(map(begins_rewriting, protos.nodes(model.graph, *model.functions)))
