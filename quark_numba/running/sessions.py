"""Sessions of models, which are left unchanged, and their runs: the options of sessions, missing inputs, and outputs of types
that numpy lacks. Errors of ONNX Runtime become ModelErrors."""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from ..catalog import OPERATORS
from ..checks import Qdq
from ..element_types import find
from ..errors import ModelError, errors_named
from ..models import model_files, protos
from ..models.files import named_in_utf8
from ..ort import DISABLE_QUANT_QDQ, TENSORS_FOLDER, register
from ..ort.providers import beside_cpu, operators_for, providers_of
from ..rewriting.graph import Settings
from ..rewriting.optimize import rewrite_model

Arrays = Mapping[str, NDArray[Any]]


def create_session(
    source: bytes | str | os.PathLike[str],
    name: str,
    *,
    has_own_operators: bool,
    threads: int = 0,
    qdq: Qdq = "auto",
    fuses_integers: bool = False,
    profile: str = "",
    is_part: bool = False,
    folder: str = "",
    providers: Sequence[str] | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session of a model, with the package's operators if the model has them or `qdq` is "float".

    `name` is the model's name in messages. `threads` = 0 leaves the number of threads to ONNX Runtime. `profile` is the
    beginning of the paths of profile files, "" for no files. `is_part` is True for one of hundreds of sessions of parts of a
    model: it keeps no memory, and has no optimizations. `folder` has the tensors in files of a model without a path.
    `fuses_integers` says whether ONNX Runtime may fuse its own quantization nodes into integer operators although the model has
    operators of the package. `providers` are names as in ``providers_of``.

    Raise ModelError, also if a provider does not start because its libraries are missing, for example. ONNX Runtime would
    continue with the others.
    """
    chosen = providers_of(providers)
    options = onnxruntime.SessionOptions()
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors come as exceptions
    # Idle threads that spin would take the processors from the session that is running.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if is_part:
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder:
        options.add_session_config_entry(TENSORS_FOLDER, folder)
    if has_own_operators and not fuses_integers:
        # ONNX Runtime's rewriting of quantized models does not know the package's operators. It moves 32-bit zero points into
        # its own operators, which lack these types.
        options.add_session_config_entry(DISABLE_QUANT_QDQ, "1")
    if has_own_operators or qdq == "float":
        register(options, qdq=qdq)
    content = source if isinstance(source, bytes) else named_in_utf8(source)
    with errors_named(name, with_type=False):
        session = onnxruntime.InferenceSession(content, options, providers=chosen, disable_fallback=True)
    if failed := [each for each in chosen if each not in session.get_providers()]:
        raise ModelError(f"{name}: {', '.join(failed)} did not start; libraries or devices that it needs may be missing")
    return session


def session_of(
    model: model_files.Source | model_files.Model, name: str, *, threads: int = 0, providers: Sequence[str] | None = None
) -> onnxruntime.InferenceSession:
    """Return a session of a model, with the package's operators if the model has them. For other execution providers than the
    CPU provider, the model is prepared as for ``InferenceSession``. ONNX Runtime maps large tensors from files; computed ones
    are written to files first, and the model may lose them. Raise ModelError."""
    if others := beside_cpu(providers_of(providers)):
        in_memory = model_files.as_proto(model) if isinstance(model, ir.Model) else model
        settings = Settings(operators=operators_for(others), has_other_providers=True)
        model = rewrite_model(in_memory, settings).lazy_model
    content, folder = (model.proto, model.folder) if isinstance(model, model_files.Source) else (model, "")
    nodes: Any = content.graph.all_nodes() if isinstance(content, ir.Model) else protos.nodes(content.graph, *content.functions)
    has_own_operators = any(node.domain and node.domain in OPERATORS.domains for node in nodes)
    options: dict[str, Any] = {"threads": threads, "folder": folder, "providers": providers}
    with model_files.session_source(content) as source:
        return create_session(source, name, has_own_operators=has_own_operators, **options)


def run(session: onnxruntime.InferenceSession, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return the outputs by name. `inputs` may have more arrays than the session takes. Raise ModelError."""
    names = [node_arg.name for node_arg in session.get_outputs()]
    with _logged_errors() as errors, errors_named("the model does not run", with_type=False):
        outputs = results(session, names, feeds(session, inputs))
    if errors:
        raise ModelError(f"the model does not run: {errors[0]}")
    return dict(zip(names, outputs, strict=True))


def feeds(session: onnxruntime.InferenceSession, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of `inputs` that the session takes. Raise ModelError if one is missing."""
    names = [node_arg.name for node_arg in session.get_inputs()]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise ModelError(f"the reference has an input {missing[0]}; the model has {', '.join(inputs)}")
    return {name: inputs[name] for name in names}


def results(session: onnxruntime.InferenceSession, outputs: list[str], feeds: Arrays) -> list[Any]:
    """Return the outputs of a session, also of one with types that numpy lacks."""
    if any(output.type.startswith("tensor(") and dtype_of(output.type) is None for output in session.get_outputs()):
        return run_on_values(session, outputs, feeds)
    return session.run(outputs, feeds)


def run_on_values(session: onnxruntime.InferenceSession, outputs: list[str], feeds: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of a session with types that numpy lacks."""
    values = {name: _ort_value(value) for name, value in feeds.items()}
    return [_array(value) for value in session.run_with_ort_values(outputs, values)]


def _ort_value(value: Any) -> Any:
    if isinstance(value, onnxruntime.OrtValue):
        return value
    element_type = find(value.dtype)
    array = np.ascontiguousarray(value).reshape(value.shape)
    if element_type is None or element_type.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    made = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), element_type.ort_number or element_type.number)
    ctypes.memmove(made.data_ptr(), array.ctypes.data, array.nbytes)
    return made


def _array(value: Any) -> Any:
    """Return the value as an array, if numpy or ml_dtypes has its type. Return anything else unchanged, for instance a sequence
    or elements of less than a byte."""
    element_type = find(value.element_type()) if value.is_tensor() else None
    if element_type is None:
        return value
    if element_type.dtype.isbuiltin == 1:
        return value.numpy()
    if element_type.bits < 8:
        return value
    size = math.prod(value.shape()) * element_type.dtype.itemsize
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), element_type.dtype).reshape(value.shape())


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """Yield a list of the errors that the package's operators log in the context. With onnxruntime-extensions they can report
    an error in no other way."""
    messages: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(__package__.partition(".")[0])
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def dtype_of(type_name: str) -> np.dtype[Any] | None:
    """Return the numpy dtype of one of ONNX Runtime's types, such as tensor(float); None if numpy has none."""
    element_type = type_name.removeprefix("tensor(").removesuffix(")")
    if element_type == "string":
        return np.dtype(np.str_)
    try:
        dtype = np.dtype({"float": "float32", "double": "float64"}.get(element_type, element_type))
    except TypeError:
        return None
    return dtype if dtype.kind in "fiub" and dtype.isbuiltin == 1 else None
