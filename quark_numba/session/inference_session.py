"""`InferenceSession`: a session of the optimised model, in one call."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import onnxruntime

from ..compiling import memory
from ..errors import ModelError, reraise_of_signal_handler
from ..ort import DISABLE_QUANT_QDQ, DISABLED_OPTIMIZERS, NO_FUSIONS, TENSORS_FOLDER, entry, kept_kernels, register
from . import started

# What is imported inside of functions is not needed by a process that finds its model kept.
if TYPE_CHECKING:
    import onnx

_log = logging.getLogger(__name__)


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
    standard_ops : bool, optional
        As in `optimize`, but integer operators need to be exact on this processor alone. False also holds for None if the
        session has other execution providers than the CPU's. With `sess_options` registered with `standard_ops`, None is True.
    blocked_layout : bool
        Whether regions keep ONNX Runtime's blocked layout for convolutions, if it has one and all optimisations are on. Then
        the last bit of a result may differ, as with ONNX Runtime's own optimisations.
    keep_codes : bool
        As in `optimize`: constants stay quantized in memory, and are dequantized in every run. This also sets
        ``sess_options.enable_mem_pattern`` to False.
    temporary_folder : path, optional
        Where the files of a model with more than 64 MB of tensors are written, from which ONNX Runtime maps them. Default:
        Python's folder for temporary files, which the environment variable TMPDIR sets. Except on Windows the files are
        removed as soon as the session has opened them; their room on the disk is free when the session is gone.
    cache : bool or path
        Whether to keep the optimised model for later sessions, in the user's cache (True) or in a folder. The kept model is as
        large as its tensors. It is found by a digest of the original's files, the options, the processor and the versions. A
        damaged one is made again. One that cannot be kept gives a warning (`logging`), and the session runs without. The models
        used least recently are removed beyond 64 GB, or the gigabytes in the environment variable QUARK_NUMBA_CACHE_GB.
        ``quark-numba info`` prints the folder and its size.
    providers, provider_options, named
        As in ``onnxruntime.InferenceSession``.

    Raises
    ------
    ModelError
        If it is not an ONNX model, a tensor cannot be read, or the temporary folder has not enough room; or if ONNX Runtime
        refuses it, and it has an operator that is known to run nowhere; or if `cache` cannot be a folder; or if
        QUARK_NUMBA_COMPILE_PROCESSES or QUARK_NUMBA_CACHE_GB is set in the environment, but is no number.
    TypeError, ValueError
        If `cache` is no path, or set for a model without a path.
    RuntimeError
        As in `register`. ONNX Runtime's own exceptions are raised as well, for instance if the file does not exist.
    """

    @memory.no_garbage_collection()
    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str] | onnx.ModelProto,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Any = None,
        provider_options: Any = None,
        *,
        standard_ops: bool | None = None,
        blocked_layout: bool = True,
        keep_codes: bool = False,
        temporary_folder: str | os.PathLike[str] | None = None,
        cache: bool | str | os.PathLike[str] = False,
        **named: Any,
    ) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        how: dict[str, Any] = {
            "standard_ops": standard_ops,
            "blocked_layout": blocked_layout,
            "keep_codes": keep_codes,
            **named,
        }
        of_kept = path_or_bytes, sess_options, providers, cache, how
        self._options = options
        probes: list[bytes] = []  # of the model, for `started.keep`

        def make(providers: Any) -> contextlib.AbstractContextManager[Any]:
            is_native = backend == "native"
            rest = {"is_native": is_native, "folder": temporary_folder, "cache": cache, **how}
            return _source(path_or_bytes, options, providers, probes, **rest)

        with contextlib.ExitStack() as files:
            # Kept kernels come first: registering would compile them.
            found = files.enter_context(started.opened(*of_kept)) if cache else None
            backend = register(options, standard_ops=bool(standard_ops))
            if keep_codes:
                # A plan of memory would set aside room for the floats of all weights twice.
                options.enable_mem_pattern = False
            source = found or files.enter_context(make(providers))
            self._has_files = source != path_or_bytes and isinstance(source, str)
            of_files = _of_files(source, options) if self._has_files else contextlib.nullcontext()
            with of_files, kept_kernels.recording() as recorded:
                _create(
                    options,
                    lambda: super(InferenceSession, self).__init__(source, options, providers, provider_options, **named),
                )
            if backend == "native" and probes:
                started.keep(path_or_bytes, options, providers, cache, how, recorded, probes[0])
            # It would keep a model in memory, which only the files of a path are made from again.
            self._make = make if self._has_files and isinstance(path_or_bytes, (str, os.PathLike)) else None
            # Windows cannot remove the files while the session maps them. Attributes are deleted in the order in which they
            # were set: this one after ONNX Runtime's session.
            self._files = files.pop_all() if os.name == "nt" else None

    @memory.no_garbage_collection()
    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As in ``onnxruntime.InferenceSession``. The files of a large model are written again.

        Raises
        ------
        RuntimeError
            If the session was made from a large model in memory, which it does not keep.
        """

        def create() -> None:
            super(InferenceSession, self).set_providers(providers, provider_options)

        if not self._has_files:
            _create(self._options, create)
            return
        if self._make is None:
            raise RuntimeError("the session was made from a large model in memory, and does not keep it; make a new session")
        with contextlib.ExitStack() as files:
            self._model_path = files.enter_context(self._make(providers))
            with _of_files(self._model_path, self._options):
                _create(self._options, create)
            self._files = files.pop_all() if os.name == "nt" else None


def _create(options: onnxruntime.SessionOptions, create: Callable[[], None]) -> None:
    """Create ONNX Runtime's session, without its fusions of quantization nodes if it refuses the model with them: it refuses
    some models only for what it makes of these. Raise the first refusal if it refuses the model in any case."""
    try:
        create()
    except Exception as error:
        reraise_of_signal_handler(error)
        refusal = error
    else:
        return
    before = {name: entry(options, name) for name in NO_FUSIONS}
    if before == NO_FUSIONS:
        raise refusal
    for name, value in NO_FUSIONS.items():
        others = before[name] if name == DISABLED_OPTIMIZERS else None
        options.add_session_config_entry(name, ";".join(filter(None, [value, others])))
    try:
        create()
    except Exception as error:
        reraise_of_signal_handler(error)
        raise refusal from None
    finally:
        for name, default in ((DISABLE_QUANT_QDQ, "0"), (DISABLED_OPTIMIZERS, "")):
            options.add_session_config_entry(name, before[name] or default)
    _log.warning("ONNX Runtime fuses no quantization nodes in this session, as it refused the model with them: %s", refusal)


@contextlib.contextmanager
def _of_files(path: str, options: onnxruntime.SessionOptions) -> Iterator[None]:
    """While ONNX Runtime opens a model of this package, let the entry for the folder of tensors, if it is set, name that of the
    model. Return unused memory to the system before and after."""
    folder = entry(options, TENSORS_FOLDER)
    try:
        if folder:
            options.add_session_config_entry(TENSORS_FOLDER, os.path.dirname(path))
        with memory.released():
            yield
    finally:
        if folder:
            options.add_session_config_entry(TENSORS_FOLDER, folder)


@contextlib.contextmanager
def _source(source: Any, options: onnxruntime.SessionOptions, providers: Any, probes: list[bytes], **how: Any) -> Iterator[Any]:
    """Yield what ONNX Runtime makes the session from: the source itself, bytes, or a path that exists within the context. Add
    the model's probe to `probes` if the model may be kept."""
    import onnx

    from ..models import model_files
    from ..models.file_states import state_of
    from . import initializers
    from .prepared import prepared

    if _is_for_onnx_runtime_alone(source, options):
        yield source
        return
    is_path = isinstance(source, (str, os.PathLike))
    state = state_of(source) if is_path else None
    model, folder, path = _model(source), entry(options, TENSORS_FOLDER), None
    outside = initializers.in_place_of_files(model, options)
    if is_path:
        folder, path = os.path.dirname(os.path.abspath(source)), source
    elif folder and model is source:
        model = onnx.ModelProto()
        model.CopyFrom(source)
    read = model_files.Source(model, folder or None, path, outside, state)
    replaced = initializers.replaced(model, options, outside)
    if how["cache"] and not replaced:
        probes[:] = [initializers.probe_of_all(model)]
    refusal = _refusal(model.graph) or next(filter(None, map(_refusal, model.functions)), "")
    del model
    with prepared(read, options, providers, replaced=replaced, **how) as made:
        del read
        try:
            yield source if made.source is None else made.source
        except Exception as error:
            reraise_of_signal_handler(error)
            # Only now: a library that the user registered may run the operator.
            if refusal:
                raise ModelError(refusal) from error
            if isinstance(error, UnicodeDecodeError):  # the message of ONNX Runtime, which quotes a damaged model
                raise ModelError(f"not a valid model: {error.object.decode(errors='backslashreplace')}") from error
            raise


def _is_for_onnx_runtime_alone(source: Any, options: onnxruntime.SessionOptions) -> bool:
    """Whether the source is in ONNX Runtime's own format, or a path without a file."""
    if entry(options, "session.load_model_format") == "ORT":
        return True
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"  # the identifier of ONNX Runtime's flatbuffers
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source).endswith(".ort") or not os.path.exists(source)
    return False


def _refusal(graph: onnx.GraphProto | onnx.FunctionProto) -> str:
    """Return why a model with this graph cannot run, if an operator is the reason; "": no reason is known."""
    from ..dialects import refused

    for node in graph.node:
        why = refused.reason(node.domain, node.op_type)
        if why:
            return f"node {node.name or node.output[0]!r} is a {node.domain}::{node.op_type}, which cannot run: {why}"
        for attribute in node.attribute:
            for subgraph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                found = _refusal(subgraph)
                if found:
                    return found
    return ""


def _model(source: Any) -> onnx.ModelProto:
    """Return the model of the source. External data stays in its files."""
    import onnx

    from ..models import model_files

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
