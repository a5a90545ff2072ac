"""`InferenceSession`: a session of the optimised model, in one call."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import onnx
import onnxruntime

from ..catalog import OPERATORS
from ..errors import ModelError, reraise_of_signal_handler
from ..ort import entry, register
from ..rewriting import model_files
from ..rewriting.optimize import optimized
from . import initializers
from .blocked_layout import blocked

# ONNX Runtime's entry for the folder with the external data of a model without a path.
_TENSORS_FOLDER = "session.model_external_initializers_file_folder_path"


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # which has no types
    """An ``onnxruntime.InferenceSession`` of the optimised model (`optimize`), with this package's operators.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model. A model without a path has to contain all its tensors, unless `sess_options` have the entry
        ``session.model_external_initializers_file_folder_path``. Models in ONNX Runtime's own format (.ort) run as they are.
    sess_options : onnxruntime.SessionOptions, optional
        The operators are registered with these options. Initializers that were added to the options, also in the place of
        files, keep their meaning.
    standard_ops : bool
        As in `register` and `optimize`.
    blocked_layout : bool
        Whether regions keep ONNX Runtime's blocked layout for convolutions, if it has one and all optimisations are on. Then
        the last bit of a result may differ, as with ONNX Runtime's own optimisations.
    providers, provider_options, named
        As in ``onnxruntime.InferenceSession``.

    Raises
    ------
    ModelError
        If it is not an ONNX model, or a tensor cannot be read.
    RuntimeError
        As in `register`. ONNX Runtime's own exceptions are raised as well, for instance if the file does not exist.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str] | onnx.ModelProto,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Any = None,
        provider_options: Any = None,
        *,
        standard_ops: bool = False,
        blocked_layout: bool = True,
        **named: Any,
    ) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        backend = register(options, standard_ops=standard_ops)
        source: Any = path_or_bytes
        with contextlib.ExitStack() as folder:
            if not _is_for_onnx_runtime_alone(source, options):
                model, replaced = _optimised(source, options, standard_ops, backend == "native")
                if blocked_layout and backend == "native" and not replaced:
                    model = blocked(model, options, providers, standard_ops=standard_ops, **named).model or model
                source = folder.enter_context(model_files.session_source(model))
            super().__init__(source, options, providers, provider_options, **named)
            # The folder lives as long as the session, which may read its files again. Attributes are deleted in the order in
            # which they were set: this one after ONNX Runtime's session, because Windows cannot remove files that it reads.
            self._folder = folder.pop_all()


def _is_for_onnx_runtime_alone(source: Any, options: onnxruntime.SessionOptions) -> bool:
    """Whether the source is in ONNX Runtime's own format, or a path without a file."""
    if entry(options, "session.load_model_format") == "ORT":
        return True
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"  # the identifier of ONNX Runtime's flatbuffers
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source).endswith(".ort") or not os.path.exists(source)
    return False


def _optimised(
    source: Any, options: onnxruntime.SessionOptions, standard_ops: bool, regions: bool
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """Return the optimised model, and the initializers that `options` replace."""
    model = _model(source)
    outside = initializers.in_place_of_files(model, options)
    model = _with_tensors(model, source, entry(options, _TENSORS_FOLDER), outside)
    replaced = initializers.replaced(model, options, outside)
    if _is_optimised(model):
        return model, replaced
    return optimized(model, standard_ops=standard_ops, regions=regions, replaced=replaced).model, replaced


def _is_optimised(model: onnx.ModelProto) -> bool:
    """Whether `optimize` has nothing to rewrite: the model has no node of the package's operators except regions, and no
    function or subgraph that may contain one."""
    if model.functions or not model.HasField("graph"):
        return False
    for node in model.graph.node:
        operator = OPERATORS.find(node.domain, node.op_type)
        if (operator and operator.operation != "region") or any(each.HasField("g") or each.graphs for each in node.attribute):
            return False
    return True


def _model(source: Any) -> onnx.ModelProto:
    """Return the model of the source. External data stays in its files."""
    if isinstance(source, (str, os.PathLike)):
        return model_files.load(source, external_data=False)
    if isinstance(source, bytes):
        try:
            source = onnx.load_from_string(source)
        except Exception as error:
            reraise_of_signal_handler(error)
            raise ModelError(f"not an ONNX model: {error}") from None
    elif not isinstance(source, onnx.ModelProto):
        raise TypeError(f"path_or_bytes is a {type(source).__name__}; expected a path, bytes or onnx.ModelProto")
    return source


def _with_tensors(model: onnx.ModelProto, source: Any, folder: str | None, outside: frozenset[str]) -> onnx.ModelProto:
    """Return the model with all tensors in it, except for the initializers in `outside`."""
    if isinstance(source, (str, os.PathLike)):
        model_files.load_tensors(model, os.path.dirname(os.path.abspath(source)), os.fspath(source), outside)
    elif folder:
        if model is source:
            model = onnx.ModelProto()
            model.CopyFrom(source)
        model_files.load_tensors(model, folder, leave=outside)
    else:
        model_files.check_is_whole(model, outside)
    return model
