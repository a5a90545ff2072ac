"""Build the model that a session runs, or take it from a cache: the warnings of slow nodes, the errors of models that cannot
run, and which models are left to ONNX Runtime. Building a model reads it, rewrites it, and converts regions to the blocked
layout. A large model is written to files."""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime

from ..compiling.helpers import Helpers
from ..dialects import refused
from ..errors import errors_ignored, errors_named
from ..models import model_files, protos
from ..models.file_states import State, state_of
from ..models.files import check_exists, check_is_regular, named_in_utf8
from ..models.temporary import recover, temporary_folder
from ..ort import DISABLE_QUANT_QDQ, TENSORS_FOLDER, ahead, config_entry
from ..rewriting import channels_last, constants, optimize
from ..rewriting.graph import Settings
from ..rewriting.onnx_runtime import RELEASE
from ..rewriting.optimize import RewrittenModel, rewrite_model
from . import initializers
from .artifact import Artifact
from .blocked.counterparts import REGION
from .blocked.layout import has_regions, lay_out
from .model_cache import ModelCache, small
from .request import SessionRequest

_log = logging.getLogger(__name__)

# The warning if nodes are not folded because their initializers are graph inputs.
_COMPUTED = (
    "every run computes nodes whose inputs are all initializers (%d), as sessions may be fed with some of these; "
    "if yours are not, keep_initializers_as_inputs=False makes the session faster"
)

# The warning if nodes remain custom operators in a session with other execution providers than the CPU provider.
_ON_THE_CPU = "these nodes run on the CPU provider, as they cannot be written in ONNX's standard operators: %s"

# How the reasons begin for which regions are not in the blocked layout.
_NOT_IN_BLOCKS = "not in the blocked layout"

# An operator that names files beside the model. ONNX Runtime finds these files only from the path of the model.
_WITH_FILES = ("com.microsoft", "EPContext")

# From this release on, ONNX Runtime uses the entry for the folder of tensors also if a model has a path.
_FOLDER_FOR_PATHS = (1, 28)


def create_artifact(request: SessionRequest) -> Artifact:
    """Return the model to give to ONNX Runtime for this request. Log a warning if nodes of the model make the session
    slow. Raise ModelError if the model cannot be used, and ValueError if `cache` is set for a model without a path."""
    state = None if request.path is None else _check_file(request.path)
    if _is_for_onnx_runtime_alone(request):
        return Artifact(None, ExitStack())
    model = load(request.model)
    if any((node.domain, node.op_type) == _WITH_FILES for node in protos.nodes(model.graph)):
        return Artifact(model.SerializeToString() if model is request.model else None, ExitStack())
    if request.replaced is None:
        request = request._replace(replaced=initializers.find_replacements(model, request.options, request.providers))
    replaced = request.replacements
    source = _open(request, model, state)
    is_kept = request.cache is not False and not replaced.names and not replaced.from_memory
    probes = (initializers.make_probe(model), initializers.make_probe_of_a_file()) if is_kept else ()
    refusals = _find_refusals(model)
    del model
    artifact = get_or_build(request, source, probes)
    if artifact.source is None and request.path is not None:
        named_in_utf8(request.path)
    if _warn(request, artifact.left):
        artifact = artifact._replace(keep=None)  # the next session warns again
    left = {name for name, _ in artifact.left}
    rewritten = {name for name in refusals if channels_last.is_channels_last(*name.split("::"))} - left
    return artifact._replace(refusal=next((why for name, why in refusals.items() if name not in rewritten), ""))


def _check_file(path: str) -> State:
    """Return the state of the file of a model. A file that a killed process moved aside is first put back. Raise ModelError if
    there is no such file, or if it is not regular."""
    recover(path)
    check_exists(path)
    check_is_regular(path, "as models are read more than once")
    return state_of(path)


def load(source: Any) -> onnx.ModelProto:
    """Return the model of an argument `path_or_bytes`: a ModelProto itself, or the model read from a path or from bytes.
    External data is not read."""
    if isinstance(source, (str, os.PathLike)):
        return model_files.load(source)
    if isinstance(source, bytes):
        with errors_named("not an ONNX model"):
            source = onnx.load_from_string(source)
    elif not isinstance(source, onnx.ModelProto):
        raise TypeError(f"path_or_bytes is a {type(source).__name__}; expected a path, bytes or onnx.ModelProto")
    return source


def _is_for_onnx_runtime_alone(request: SessionRequest) -> bool:
    """Return whether the model is in ONNX Runtime's own format, or a path without a file."""
    if config_entry(request.options, "session.load_model_format") == "ORT":
        return True
    if isinstance(request.model, bytes):
        return request.model[4:8] == b"ORTM"  # the identifier of ONNX Runtime's flatbuffers
    return request.path is not None and (request.path.endswith(".ort") or not os.path.exists(request.path))


def _open(request: SessionRequest, model: onnx.ModelProto, state: State | None) -> model_files.Source:
    """Return the source of a model. Tensors are read from the folder that the options name if ONNX Runtime would use this
    folder. In that case, a ModelProto of the caller is copied, because tensors are read into the model."""
    folder = config_entry(request.options, TENSORS_FOLDER) or None
    if request.path is not None and RELEASE < _FOLDER_FOR_PATHS:
        folder = None
    elif folder and model is request.model:
        model = onnx.ModelProto()
        model.CopyFrom(request.model)
    return model_files.Source(model, folder, request.path, request.replacements.in_files, state)


def _find_refusals(model: onnx.ModelProto) -> dict[str, str]:
    """Return the operators of a model that only `optimize` may make runnable. Each operator is mapped to the reason why a model
    with such a node cannot run."""
    refusals = {}
    for node in protos.nodes(model.graph, *model.functions):
        if why := refused.reason(node.domain, node.op_type):
            name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
            refusals[name] = f"node {node.name or node.output[0]!r} is a {name}, which cannot run: {why}"
    return refusals


def _warn(request: SessionRequest, left: Mapping[tuple[str, str], int]) -> bool:
    """Log a warning for each kind of slow node. Return whether there is one."""
    if inputs := sum(count for (_, why), count in left.items() if why == constants.INPUT):
        _log.warning(_COMPUTED, inputs)
    written = request.written_operators
    nodes = "" if written == "custom" else optimize.not_standard_as_text(left, written)
    if nodes:
        _log.warning(_ON_THE_CPU, nodes)
    return bool(inputs or nodes)


def get_or_build(request: SessionRequest, source: model_files.Source, probes: tuple[bytes, ...] = ()) -> Artifact:
    """Return the model that sessions of the request run, from the cache if the request has one. The source drops its reference
    to the original model. `probes` are stored with the result. Raise ValueError if `cache` is set for a model without a
    path."""

    def build(place: Path | None) -> Artifact:
        made = _build(request, source if place else source.reread(), place or request.temporary_folder)
        return made._replace(probes=probes)

    if source.path is None and request.cache not in (None, False):
        raise ValueError("cache is set, but the model has no path; expected the path of a model")
    is_by_default, is_in_memory = request.cache is None, source.size <= model_files.MAX_IN_MEMORY
    may_keep = source.path is not None and not (is_by_default and (not 0 < small() >= source.size or not probes))
    if source.path is not None and may_keep and (cache := ModelCache.choose(request.cache)):
        files = [source.path, *source.named_files]
        if is_by_default and is_in_memory:
            entry, original = cache.entry(request, files), os.path.abspath(source.path)
            made = cache.open_or_discard(entry) or _build(request, source, request.temporary_folder)._replace(probes=probes)
            artifact = made if made.path else made._replace(keep=functools.partial(cache.add, entry, made, original))
        else:
            artifact = cache.get_or_create(request, files, build)
    else:
        artifact = _build(request, source, request.temporary_folder)
    source.forget()
    return artifact


def _build(request: SessionRequest, source: model_files.Source, folder: str | os.PathLike[str] | None) -> Artifact:
    """Return a newly built model. Any files of the model are written to a temporary folder in `folder`."""
    settings, in_one_file = _settings(request, source), request.replacements.from_memory
    is_custom = request.is_native and request.written_operators == "custom"
    uses_blocks = is_custom and request.blocked_layout and not request.replacements.names
    own_helpers: AbstractContextManager[Helpers | None] = nullcontext(request.helpers)
    if is_custom and not request.helpers:
        own_helpers = ahead.helpers(source.proto)
    with ExitStack() as files:
        with own_helpers as helpers:
            if settings:
                rewritten = rewrite_model(source, settings)
            else:
                rewritten = RewrittenModel(source, source.proto, Counter(), Counter())
            if not rewritten.done and source.path and not (uses_blocks and has_regions(rewritten.lazy_model)):
                source.check()
                return Artifact(None, ExitStack(), left=rewritten.left)  # ONNX Runtime reads the model's own file
            if not settings:
                rewritten.lazy_model = source.whole()
            left, why_not_kept, blocked_regions = rewritten.left, rewritten.write_error, 0
            proto, path = _to_proto(rewritten.lazy_model, in_one_file, folder, files)
            source.check()
            source.forget()
            del rewritten
            if uses_blocks:  # which may need fewer regions
                made = lay_out(proto, request, path)
                left = left + Counter({(REGION.full_name, f"{_NOT_IN_BLOCKS}: {why}"): n for why, n in made.left_out.items()})
                # A model that was built without ONNX Runtime's own optimized model is slower, and must not be cached.
                why_not_kept, blocked_regions = why_not_kept or made.write_error, made.in_layout
                if made.model:
                    proto, path = made.model, path and _exchange(path, made.model)
            if helpers:
                ahead.finish(helpers, proto)
        if in_one_file:  # ONNX Runtime would look for other files in memory
            content: bytes | str = model_files.in_one_file(proto)
        else:
            content = path or files.enter_context(model_files.session_source(proto, folder))
        return Artifact(content, files.pop_all(), blocked_regions, left, why_not_kept)


def _settings(request: SessionRequest, source: model_files.Source) -> Settings | None:
    """Return the settings with which the model of a request is rewritten, or None if there is nothing to rewrite."""
    written, has_other_providers = request.written_operators, bool(request.other_providers)
    needs_rewriting = written != "custom" or has_other_providers or optimize.has_nodes_to_rewrite(source.proto)
    # A large model that does not run from its own file is written to another one, as every rewritten large model is.
    if not needs_rewriting and not (source.is_large and (source.path is None or has_regions(source.proto))):
        return None
    levels = onnxruntime.GraphOptimizationLevel
    is_basic = request.options.graph_optimization_level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC)
    return Settings(
        qdq="float" if request.takes_all_qdq else request.qdq,
        operators=written,
        keep_quantized_weights=request.keep_quantized_weights,
        native_operators=request.is_native,
        keep_initializers_as_inputs=request.keep_initializers_as_inputs,
        replaced=request.replacements.names,
        # A user who turns off ONNX Runtime's integer operators does not want ours either.
        integers="nowhere" if is_basic or config_entry(request.options, DISABLE_QUANT_QDQ) == "1" else "here",
        has_other_providers=has_other_providers,
    )


def helpers(request: SessionRequest) -> AbstractContextManager[Helpers | None]:
    """Return the processes that help to compile for a session, whose model has not been read yet."""
    if request.written_operators == "custom":
        with errors_ignored():  # `create_artifact` raises them
            return ahead.helpers(load(request.model))
    return nullcontext()


def _to_proto(
    model: model_files.Model, in_one_file: bool, folder: str | os.PathLike[str] | None, files: ExitStack
) -> tuple[onnx.ModelProto, str | None]:
    """Return a model with its tensors read and computed. A large model is written to a temporary folder in `folder`, which
    exists until `files` is closed: to the returned path, and its tensors to a second file."""
    if isinstance(model, ir.Model) and model_files.is_large(model) and not in_one_file:
        path = os.path.join(files.enter_context(temporary_folder(folder)), "model.onnx")
        return model_files.write_apart(model, path), path
    return model_files.as_proto(model), None


def _exchange(path: str, proto: onnx.ModelProto) -> str:
    """Replace the model at `path` by a model in the blocked layout, and return the path of the new model. Its tensors are
    already in the same folder."""
    folder = os.path.dirname(path)
    for written in (path, f"{path}.data", os.path.join(folder, "optimized.onnx")):
        os.remove(written)
    path = os.path.join(folder, "blocked.onnx")
    Path(path).write_bytes(proto.SerializeToString())
    return path
