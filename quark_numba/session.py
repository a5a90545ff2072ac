"""A session of an optimised model, in one call."""

from __future__ import annotations

import os
from typing import Any

import onnx
import onnxruntime

from .errors import ModelError
from .ort import register
from .rewriting import model_files
from .rewriting.optimize import optimize


def InferenceSession(  # noqa: N802
    path_or_bytes: str | bytes | os.PathLike[str] | onnx.ModelProto,
    sess_options: onnxruntime.SessionOptions | None = None,
    *arguments: Any,
    standard_ops: bool = False,
    **named: Any,
) -> onnxruntime.InferenceSession:
    """An ordinary ``onnxruntime.InferenceSession`` of the optimised model (`optimize`), with this package's operators.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model; as bytes, or as a ModelProto, without files beside it.
    sess_options : onnxruntime.SessionOptions, optional
        The operators are registered with these.
    standard_ops : bool
        As in `register` and `optimize`.
    arguments, named
        All others of ``onnxruntime.InferenceSession``.

    Raises
    ------
    ModelError
        If there is no model.
    RuntimeError
        As `register`. And whatever ONNX Runtime raises.
    """
    options = onnxruntime.SessionOptions() if sess_options is None else sess_options
    model: Any = path_or_bytes
    if isinstance(model, bytes):
        try:
            model = onnx.load_from_string(model)
        except Exception as error:
            raise ModelError(f"not an ONNX model: {error}") from None
    register(options, standard_ops=standard_ops)
    with model_files.session_source(optimize(model, standard_ops=standard_ops)) as source:
        return onnxruntime.InferenceSession(source, options, *arguments, **named)
