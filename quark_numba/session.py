"""A session of an optimised model, in one call."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import onnx
import onnxruntime
from onnx import helper

from .blocked_layout import blocked
from .catalog import OPERATORS
from .errors import ModelError, reraise_of_signal_handler
from .ort import entry, register
from .rewriting import model_files
from .rewriting.optimize import optimized

# ONNX Runtime's entry for the folder in which tensors of a model without a path lie.
_TENSORS_FOLDER = "session.model_external_initializers_file_folder_path"


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # which has no types
    """An ``onnxruntime.InferenceSession`` of the optimised model (`optimize`), with this package's operators.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model. One without a path has all tensors in it, unless `sess_options` have the entry
        ``session.model_external_initializers_file_folder_path``. Models in ONNX Runtime's own format (.ort) run as they are.
    sess_options : onnxruntime.SessionOptions, optional
        The operators are registered with these. An initializer that was added to them keeps its meaning.
    standard_ops : bool
        As in `register` and `optimize`.
    blocked_layout : bool
        Whether to keep the layout that ONNX Runtime has for convolutions through regions, where it has one and all
        optimisations are on. Results are then as those of ONNX Runtime's own optimisations: a last bit may be another.
    providers, provider_options, named
        As in ``onnxruntime.InferenceSession``.

    Raises
    ------
    ModelError
        If it is not an ONNX model, or a tensor cannot be read.
    RuntimeError
        As `register`. And whatever ONNX Runtime raises: if there is no such file, for instance.
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
            # Lives as long as the session, which may read the files in it again. Attributes go in the order in which they came:
            # this one after ONNX Runtime's session, as Windows lets nobody remove files that it reads.
            self._folder = folder.pop_all()


def _is_for_onnx_runtime_alone(source: Any, options: onnxruntime.SessionOptions) -> bool:
    """Whether it is in ONNX Runtime's own format, or no file."""
    if entry(options, "session.load_model_format") == "ORT":
        return True
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"  # the identifier of its flatbuffers
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source).endswith(".ort") or not os.path.exists(source)
    return False


def _optimised(
    source: Any, options: onnxruntime.SessionOptions, standard_ops: bool, regions: bool
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """And the initializers for which `options` have others."""
    model = _model(source, entry(options, _TENSORS_FOLDER))
    model_files.check_is_whole(model)
    replaced = _replaced_initializers(model, options)
    if _is_optimised(model):
        return model, replaced
    return optimized(model, standard_ops=standard_ops, regions=regions, replaced=replaced).model, replaced


def _is_optimised(model: onnx.ModelProto) -> bool:
    """Whether there is nothing for `optimize` to look at: no node of the package's operators but regions, nor a function or a
    graph in a node, where one may be."""
    if model.functions or not model.HasField("graph"):
        return False
    for node in model.graph.node:
        operator = OPERATORS.find(node.domain, node.op_type)
        if (operator and operator.operation != "region") or any(each.HasField("g") or each.graphs for each in node.attribute):
            return False
    return True


def _model(source: Any, folder: str | None) -> onnx.ModelProto:
    if isinstance(source, (str, os.PathLike)):
        return model_files.load(source)
    if isinstance(source, bytes):
        try:
            source = onnx.load_from_string(source)
        except Exception as error:
            reraise_of_signal_handler(error)
            raise ModelError(f"not an ONNX model: {error}") from None
    elif not isinstance(source, onnx.ModelProto):
        raise TypeError(f"path_or_bytes is a {type(source).__name__}; expected a path, bytes or onnx.ModelProto")
    if folder:
        model = onnx.ModelProto()
        model.CopyFrom(source)
        model_files.load_tensors(model, folder)
        return model
    return source


def _replaced_initializers(model: onnx.ModelProto, options: onnxruntime.SessionOptions) -> frozenset[str]:
    """The initializers of the model for which `options` have others (``SessionOptions.add_initializer``). There is no asking
    for them: a session of a model that puts out its initializers, which are empty, shows which are not."""
    # Names that are no UTF-8 come as bytes.
    types = {
        each.name: each.data_type
        for each in model.graph.initializer
        if 0 < each.data_type <= onnx.TensorProto.BFLOAT16 and isinstance(each.name, str)
    }
    names = list(types)
    # ONNX Runtime has no session of the one provider that this package is for then.
    if not names or entry(options, "session.disable_cpu_ep_fallback") == "1":
        return frozenset()
    graph = helper.make_graph(
        [],
        "initializers",
        [],
        [helper.make_tensor_value_info(name, types[name], None) for name in names],
        [onnx.TensorProto(name=name, data_type=types[name], dims=[0]) for name in names],
    )
    probe = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options, ["CPUExecutionProvider"])
    if options.enable_profiling:
        os.remove(session.end_profiling())
    found = session.run_with_ort_values(names, {})
    return frozenset(name for name, value in zip(names, found, strict=True) if value.shape() != [0])
