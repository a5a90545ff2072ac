"""`InferenceSession`: a session of the optimized model, in one call: its arguments and defaults, and the other settings that
are tried if ONNX Runtime refuses the model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import onnxruntime

from ..checks import Qdq
from ..compiling import memory
from ..compiling.lock import IMPORTS
from ..errors import ModelError, errors_ignored, reraise_of_signal_handler
from ..ort import NO_FUSIONS, TENSORS_FOLDER, config_entry
from ..ort.native import REGISTRY
from ..ort.providers import CPU
from .artifact import Artifact
from .model_cache import ModelCache
from .request import RequestedOperators, SessionRequest
from .session_options import NOTHING_REPLACED, options_lock, options_replace_nothing

# Modules that a process does not need for a cached model are imported inside functions.
if TYPE_CHECKING:
    import onnx

    from ..compiling.helpers import Helpers

_log = logging.getLogger(__name__)

_AS_WRITTEN = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

# Part of the message if ONNX Runtime cuts a model so that two parts need each other. This happens with the OpenVINO provider
# (1.24), if one part has nodes on both sides of a node that is left to the CPU provider.
_CIRCLE = "the graph is not acyclic"


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # which has no types
    """An ``onnxruntime.InferenceSession`` of the optimized model (`optimize`), with this package's operators.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model. A model without a path has to contain all its tensors, or `sess_options` need either the files of the tensors
        in memory or the entry ``session.model_external_initializers_file_folder_path``. Models in ONNX Runtime's own format
        (.ort) run unchanged.
    sess_options : onnxruntime.SessionOptions, optional
        The operators are registered with these options. All options keep their meaning. In particular, initializers that
        were added to the options replace initializers of the model, also those in files. Files in memory replace files of
        tensors.
    qdq : "auto", "float" or "onnxruntime"
        How ONNX's own QuantizeLinear and DequantizeLinear, also those in com.microsoft, are run. This package always runs the
        nodes of other quantizers.

        - "float": this package runs them, with float operators between them. Needs ONNX Runtime 1.31 or later, unless
          `operators` is or means "standard".
        - "onnxruntime": ONNX Runtime runs them, and may fuse them with adjacent nodes into integer operators.
        - "auto": on the CPU, as "float", but groups of 8-bit nodes become integer operators of ONNX Runtime if these are
          estimated to be faster. A code may then differ by one if the exact result is almost in the middle between two codes.
          ``session.disable_quant_qdq`` = "1" and optimization levels below ORT_ENABLE_EXTENDED turn these groups off.

        In these cases "auto" means "float" or "onnxruntime":

        - "float" if `sess_options` were registered with `qdq` = "float", or if `operators` is or means "cuda".
        - With other execution providers, which may have integer operators: "onnxruntime" if ONNX Runtime can run all
          quantization nodes of the model, else "float".
        - "onnxruntime" on the CPU without the native backend.
    operators : "auto", "custom", "cuda" or "standard"
        The operators of the optimized model, as in `optimize`. "auto" means one of these:

        - "cuda" if the CUDA provider is the only one beside the CPU provider, and the machine has a driver of CUDA 12 or later.
        - "custom" for the OpenVINO provider, because it computes standard operators in its own arithmetic.
        - "standard" with other providers, because they run only ONNX's standard operators.
        - "custom" for the CPU provider alone.

        A node without a kernel for the provider and without a standard form runs on the CPU provider. A warning (`logging`)
        names such nodes.
    blocked_layout : bool
        Whether regions keep ONNX Runtime's blocked layout for convolutions, if it has one and all optimizations are on. Then
        the last bit of a result may differ, as with ONNX Runtime's own optimizations.
    keep_quantized_weights : bool
        As in `optimize`: constants stay quantized in memory, and are dequantized in every run. This also sets
        ``sess_options.enable_mem_pattern`` to False.
    keep_initializers_as_inputs : bool
        As in `optimize`. If True, initializers that are graph inputs can be fed, also by ``RunOptions.add_active_adapter``. If
        False, these initializers are constants, which is faster if all weights are graph inputs.
    temporary_folder : path, optional
        The folder for the files of a model with more than 64 MB of tensors. ONNX Runtime memory-maps these files. Default:
        Python's folder for temporary files, which the environment variable TMPDIR sets. On Windows, the files are removed after
        the session. On other systems, they are removed as soon as the session has opened them, and their disk space is free
        when the session is deleted.
    cache : bool or path, optional
        Whether to save the optimized model for later sessions, in the user's cache (True), in a folder, or not at all (False).
        By default, a model with a path is saved in the user's cache if its tensors take at most 64 MB, or the megabytes in the
        environment variable QUARK_NUMBA_CACHE_MB. It is saved once the session exists. It is not saved, without a warning, if
        the options replace its initializers, if the session logs a warning about its nodes, or if there is no folder that only
        this user can write to.

        The saved model is as large as its tensors. It is found by a digest of the original's files, the options, the processor
        and the versions. A damaged model is built again. If `cache` is given and a model cannot be saved, a warning is logged
        (`logging`), and the session runs all the same. If the saved models take more than 64 GB, or the gigabytes in the
        environment variable QUARK_NUMBA_CACHE_GB, the least recently used models are removed. ``quark-numba info`` prints the
        folder and its size.
    providers, provider_options, disabled_optimizers, enable_fallback, read_config_from_model
        As in ``onnxruntime.InferenceSession``.

    Raises
    ------
    ModelError
        If the file does not exist (MissingFileError, which is also a FileNotFoundError) or is not an ONNX model; if a tensor
        cannot be read; if the temporary folder has not enough room; if ONNX Runtime refuses a model with an operator that is
        known to run nowhere; or if `cache` cannot be a folder.
    TypeError, ValueError
        If an argument has an invalid value or type, or a name that neither this class nor ONNX Runtime knows; if `cache` is set
        for a model without a path; if `qdq` is "onnxruntime" and `sess_options` were registered with "float"; or if
        QUARK_NUMBA_COMPILE_PROCESSES, QUARK_NUMBA_CACHE_GB or QUARK_NUMBA_CACHE_MB is set in the environment, but is not a
        number.
    RuntimeError
        As in `register`. ONNX Runtime's own exceptions are raised as well.
    """

    @memory.no_garbage_collection()
    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str] | onnx.ModelProto,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Any = None,
        provider_options: Any = None,
        *,
        qdq: Qdq = "auto",
        operators: RequestedOperators = "auto",
        blocked_layout: bool = True,
        keep_quantized_weights: bool = False,
        keep_initializers_as_inputs: bool = True,
        temporary_folder: str | os.PathLike[str] | None = None,
        cache: bool | str | os.PathLike[str] | None = None,
        **ort_arguments: Any,
    ) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        request = SessionRequest(
            path_or_bytes,
            options,
            providers,
            qdq=qdq,
            operators=operators,
            blocked_layout=blocked_layout,
            keep_quantized_weights=keep_quantized_weights,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
            temporary_folder=temporary_folder,
            cache=cache,
            ort_arguments=ort_arguments,
            replaced=NOTHING_REPLACED if sess_options is None else None,
        )
        request.check()
        with _helpers(request) as helpers:
            request = request._replace(helpers=helpers).register()
            if keep_quantized_weights:
                # ONNX Runtime's memory pattern would reserve memory for the floats of all weights twice.
                options.enable_mem_pattern = False

            def create(source: Any, *chosen: Any) -> None:
                super(InferenceSession, self).__init__(source, options, *chosen, **ort_arguments)

            artifact = self._start(request, _open_kept(request) or _create_artifact(request), create, provider_options)
        if artifact.keep:
            artifact.keep()
        request = request._replace(helpers=None)
        # `set_providers` prepares the model again, so it is kept, except for a large one in memory.
        self._request: SessionRequest | None = request
        if request.path is None:
            content = request.model if isinstance(request.model, bytes) else request.model.SerializeToString()
            self._request = None if artifact.path else request._replace(model=content)
        # The path is that of the model that the user passed: optimum, for one, copies the file with this name.
        self._model_path, self._model_bytes = request.path, None

    @memory.no_garbage_collection()
    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Choose other providers, as in ``onnxruntime.InferenceSession``. The model is prepared again for these providers.

        Raises
        ------
        RuntimeError
            If the session was made from a large model in memory, which was not kept.
        """
        if self._request is None:
            raise RuntimeError("the session was made from a large model in memory, which was not kept; make a new session")
        request = self._request._replace(providers=providers).register()

        def create(source: Any, *chosen: Any) -> None:
            is_path = isinstance(source, (str, os.PathLike))
            self._model_path, self._model_bytes = (source, None) if is_path else (None, source)
            super(InferenceSession, self).set_providers(*chosen)

        try:
            self._start(request, _create_artifact(request), create, provider_options)
        finally:
            self._model_path, self._model_bytes = self._request.path, None

    def _start(
        self, request: SessionRequest, artifact: Artifact, create: Callable[..., None], provider_options: Any
    ) -> Artifact:
        """Let ONNX Runtime create its session of a model, and return the model. If a cached model has been removed meanwhile,
        the model is built again."""
        with artifact:
            try:
                _create(request, artifact, create, provider_options)
                # Windows cannot remove the files while the session maps them. Attributes are deleted in the order in which they
                # were set: this one after ONNX Runtime's session.
                self._files = artifact.files.pop_all() if os.name == "nt" else None
                return artifact
            except Exception as error:
                reraise_of_signal_handler(error)
                if not artifact.is_gone:
                    raise
        _log.warning("%s: could not cache the optimized model: it was removed while a session was created", artifact.path)
        request = request._replace(cache=False)
        return self._start(request, _create_artifact(request), create, provider_options)


def _helpers(request: SessionRequest) -> AbstractContextManager[Helpers | None]:
    """Return the processes that help to compile for a session if not even the functions of all sessions are compiled: the next
    step is to compile these, before the model is read."""
    if REGISTRY.has_functions:
        return nullcontext()
    with IMPORTS:
        from .build import helpers

    return helpers(request)


def _open_kept(request: SessionRequest) -> Artifact | None:
    """Return the cached model of a request without importing onnx. Return None if no model is cached, or if the options may
    replace initializers."""
    artifact = None
    with errors_ignored():  # if one persists, `_create_artifact` raises it
        cache = ModelCache.choose(request.cache)
        if cache and (entry := cache.find(request)):
            artifact = cache.open_or_discard(entry)
    if artifact and request.replaced is None:
        replaces_nothing = artifact.probes and options_replace_nothing(request.options, *artifact.probes)
        return artifact if replaces_nothing else None
    return artifact


def _create_artifact(request: SessionRequest) -> Artifact:
    with IMPORTS:
        from .build import create_artifact

    return create_artifact(request)


def _create(request: SessionRequest, artifact: Artifact, create: Callable[..., None], provider_options: Any) -> None:
    """Let ONNX Runtime create its session of a model. If ONNX Runtime refuses the model, try other settings
    (`_create_otherwise`). If these fail too, raise ONNX Runtime's error, or a ModelError that explains the error."""
    source = request.model if artifact.source is None else artifact.source
    with _name_folder_of_tensors(artifact.path, request.options) if artifact.path else nullcontext():
        try:
            create(source, request.providers, provider_options)
        except Exception as first:
            reraise_of_signal_handler(first)
            if _create_otherwise(request, source, create, provider_options, first):
                return
            if artifact.refusal:  # only now: a library that the user registered may run the operator
                raise ModelError(artifact.refusal) from first
            if isinstance(first, UnicodeDecodeError):  # the message of ONNX Runtime, which quotes a damaged model
                raise ModelError(f"not a valid model: {first.object.decode(errors='backslashreplace')}") from first
            raise


def _create_otherwise(
    request: SessionRequest, source: Any, create: Callable[..., None], provider_options: Any, error: Exception
) -> bool:
    """Return whether ONNX Runtime can create a session with other settings, after it refused the session with `error`. One such
    setting is the CPU provider alone: for other providers ONNX Runtime partitions the model, and two partitions may need each
    other. Another setting turns off ONNX Runtime's optimizers of quantization nodes. Raise ONNX Runtime's second error if it
    also refuses the model with the CPU provider alone."""
    if _CIRCLE in str(error) and request.providers and request.other_providers:
        _log.warning("this session runs on the CPU provider alone, as ONNX Runtime refused the model with others: %s", error)
        create(source, [CPU], None)
        return True
    if not _may_be_of_fusions(error, source, request.options):
        return False
    # The entries that turn off single optimizers are not used, as ONNX Runtime warns of each entry that is changed back.
    with options_lock:
        before = request.options.graph_optimization_level
        request.options.graph_optimization_level = _AS_WRITTEN
        try:
            create(source, request.providers, provider_options)
        except Exception as second:
            reraise_of_signal_handler(second)
            return False
        finally:
            request.options.graph_optimization_level = before
    _log.warning("ONNX Runtime optimizes nothing in this session, as it refused the model with its optimizations: %s", error)
    return True


def _may_be_of_fusions(error: Exception, source: Any, options: onnxruntime.SessionOptions) -> bool:
    """Return whether ONNX Runtime's optimizers of quantization nodes may have caused the refusal of this model."""
    is_off = options.graph_optimization_level == _AS_WRITTEN
    if is_off or all(config_entry(options, name) == value for name, value in NO_FUSIONS.items()):
        return False
    if isinstance(error, (RuntimeError, TypeError, ValueError)):  # about arguments and providers; a refused model gives others
        return False
    with IMPORTS:
        from ..models import protos
        from ..rewriting.renamed_operators import NAMES
        from .build import load

    with errors_ignored():  # it cannot be read
        model = load(source)
        return any(node.op_type in NAMES for node in protos.nodes(model.graph, *model.functions))
    return False


@contextmanager
def _name_folder_of_tensors(path: str, options: onnxruntime.SessionOptions) -> Iterator[None]:
    """A context in which ONNX Runtime opens a model that this package wrote. If the entry for the folder of tensors is set, it
    names the folder of that model meanwhile. Unused memory is returned to the system before and after."""
    with options_lock if config_entry(options, TENSORS_FOLDER) else nullcontext(), memory.released():
        folder = config_entry(options, TENSORS_FOLDER)
        try:
            if folder:
                options.add_session_config_entry(TENSORS_FOLDER, os.path.dirname(path))
            yield
        finally:
            if folder:
                options.add_session_config_entry(TENSORS_FOLDER, folder)
