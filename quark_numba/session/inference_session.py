"""`InferenceSession`: a session of the optimised model, in one call."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime

from ..checks import check_choices, check_flags, check_paths, refuse
from ..compiling import memory
from ..compiling.lock import IMPORTS
from ..errors import ModelError, errors_named, reraise_of_signal_handler
from ..ort import NO_FUSIONS, TENSORS_FOLDER, Backend, entry, kept_kernels, native, register
from ..ort.providers import CPU
from ..rewriting.qdq import Qdq, check
from . import kept, started
from .options import CHOICES, Operators, changing, operators_of, runs_on_cpu_alone

# What is imported inside of functions is not needed by a process that finds its model kept.
if TYPE_CHECKING:
    import onnx

_log = logging.getLogger(__name__)

_AS_WRITTEN = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

# The arguments that ONNX Runtime takes by name alone.
_OF_ONNX_RUNTIME = {"disabled_optimizers", "enable_fallback", "read_config_from_model"}

# The message if initializers that are graph inputs keep nodes from being folded.
_COMPUTED = (
    "every run computes nodes whose inputs are all initializers (%d), as sessions may be fed with some of these; "
    "if nobody does, keep_initializers_as_inputs=False makes the session faster"
)

# The message if nodes stay custom operators in a session with other providers.
_ON_THE_CPU = "these nodes run on the CPU's provider, as they cannot be written in ONNX's standard operators: %s"

# Part of the message if ONNX Runtime cuts a model so that two parts need each other. OpenVINO's provider (1.24) may have such a
# part on both sides of a node that it leaves to the CPU's.
_CIRCLE = "the graph is not acyclic"

# An operator that names files beside the model, which only the model's own path leads to.
_WITH_FILES = ("com.microsoft", "EPContext")

# The release of ONNX Runtime from which on the entry for the folder of tensors also holds for models with a path.
_FOLDER_FOR_PATHS = (1, 28)


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # which has no types
    """An ``onnxruntime.InferenceSession`` of the optimised model (`optimize`), with this package's operators.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model. A model without a path has to contain all its tensors, unless `sess_options` have their files in memory, or
        the entry ``session.model_external_initializers_file_folder_path``. Models in ONNX Runtime's own format (.ort) run as
        they are.
    sess_options : onnxruntime.SessionOptions, optional
        The operators are registered with these options. What they mean is kept, so that initializers that are added to them,
        also in the place of files, and files in memory replace those of the model.
    qdq : "auto", "float" or "onnxruntime"
        As in `optimize`, but integer operators need to be exact on this processor alone. "auto" is "float" if `sess_options`
        were registered with `standard_ops`. If the session has other execution providers than the CPU's, and ONNX Runtime runs
        the model by itself, "auto" is "onnxruntime": a provider may have integer operators of its own.
    operators : "auto", "custom", "cuda" or "standard"
        In which operators the model is written, as in `optimize`. "auto": "cuda" if CUDA's provider is the only one beside the
        CPU's, and the machine has a driver of CUDA 12 or later; "standard" with other providers, as these run ONNX's standard
        operators alone; else "custom". OpenVINO's provider gets "custom", as it computes standard operators in its own
        arithmetic. A node that has no kernel there and no form in standard operators stays as it is, and runs on the CPU's
        provider; a warning (`logging`) names such nodes.
    blocked_layout : bool
        Whether regions keep ONNX Runtime's blocked layout for convolutions, if it has one and all optimisations are on. Then
        the last bit of a result may differ, as with ONNX Runtime's own optimisations.
    keep_quantized_weights : bool
        As in `optimize`: constants stay quantized in memory, and are dequantized in every run. This also sets
        ``sess_options.enable_mem_pattern`` to False.
    keep_initializers_as_inputs : bool
        As in `optimize`. Initializers that are graph inputs can be fed, also by ``RunOptions.add_active_adapter``. Without,
        they are constants, which is faster if all weights are among them.
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
    providers, provider_options, disabled_optimizers, enable_fallback, read_config_from_model
        As in ``onnxruntime.InferenceSession``.

    Raises
    ------
    ModelError
        If there is no such file (MissingFileError, which is a FileNotFoundError, too), if it is not an ONNX model, a tensor
        cannot be read, or the temporary folder has not enough room; or if ONNX Runtime refuses it, and it has an operator that
        is known to run nowhere; or if `cache` cannot be a folder.
    TypeError, ValueError
        If an argument is none of the above, or has a name that neither this class nor ONNX Runtime knows; if `cache` is set
        for a model without a path; or if QUARK_NUMBA_COMPILE_PROCESSES or QUARK_NUMBA_CACHE_GB is set in the environment, but
        is no number.
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
        operators: Operators = "auto",
        blocked_layout: bool = True,
        keep_quantized_weights: bool = False,
        keep_initializers_as_inputs: bool = True,
        temporary_folder: str | os.PathLike[str] | None = None,
        cache: bool | str | os.PathLike[str] = False,
        **named: Any,
    ) -> None:
        check(qdq)
        check_choices(CHOICES, operators=operators)
        unknown = ", ".join(sorted({*named} - _OF_ONNX_RUNTIME))
        if unknown:  # ONNX Runtime would ignore it
            raise TypeError(f"InferenceSession has no argument {unknown}")
        check_flags(
            blocked_layout=blocked_layout,
            keep_quantized_weights=keep_quantized_weights,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
        )
        check_paths(temporary_folder=temporary_folder)
        if cache == "":
            kept.folder_of(cache)
        if sess_options is not None and not isinstance(sess_options, onnxruntime.SessionOptions):
            refuse("sess_options", sess_options, "onnxruntime.SessionOptions")
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        how: dict[str, Any] = {
            "qdq": qdq,
            "operators": operators,
            "blocked_layout": blocked_layout,
            "keep_quantized_weights": keep_quantized_weights,
            "keep_initializers_as_inputs": keep_initializers_as_inputs,
            **named,
        }
        entry_of_session = functools.partial(started.entry_of, path_or_bytes, sess_options, providers, cache, how)
        self._options, self._how = options, how
        self._given = path_or_bytes if isinstance(path_or_bytes, (str, os.PathLike)) else None
        self._path = None if self._given is None else os.fspath(self._given)
        with ExitStack() as files:
            # Kept kernels come first: registering would compile them.
            kept_path = started.opened(entry_of_session, sess_options, files) if cache else None
            backend = self._register(providers)
            if keep_quantized_weights:
                # A plan of memory would set aside room for the floats of all weights twice.
                options.enable_mem_pattern = False
            rest: dict[str, Any] = {"is_native": backend == "native", "folder": temporary_folder, "cache": cache, **how}
            make = functools.partial(_prepared, path_or_bytes, options, **rest)
            model = _Model(kept_path) if kept_path else make(files, providers)

            def create(*chosen: Any) -> None:
                super(InferenceSession, self).__init__(model.source, options, *chosen, **named)

            with kept_kernels.recording() as recorded:
                try:
                    self._create(model, files, create, providers, provider_options)
                except Exception as error:
                    reraise_of_signal_handler(error)
                    if not cache or not self._is_written(model) or os.path.exists(model.source):
                        raise
                    _log.warning("%s: a model cannot be kept: it was removed while a session was created", model.source)
                    model = make(files, providers, cache=False)
                    self._create(model, files, create, providers, provider_options)
            # For other providers the model is made anew. A large one in memory is not kept for that.
            self._make: Callable[..., _Model] | None = make
            if self._given is None:
                is_large = self._is_written(model)
                self._make = None if is_large else functools.partial(_prepared, _in_bytes(path_or_bytes), options, **rest)
            # The path is that of the user's model: optimum, for one, copies the file with this name.
            self._model_path, self._model_bytes = self._path, None
            if backend == "native" and model.probes:
                started.keep(entry_of_session, recorded, model.probes)

    @memory.no_garbage_collection()
    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As in ``onnxruntime.InferenceSession``. The model is made anew, for these providers.

        Raises
        ------
        RuntimeError
            If the session was made from a large model in memory, which it does not keep.
        """
        with ExitStack() as files:
            if self._make is None:
                raise RuntimeError(
                    "the session was made from a large model in memory, and does not keep it; make a new session"
                )
            self._register(providers)
            model = self._make(files, providers)
            is_path = isinstance(model.source, (str, os.PathLike))
            self._model_path, self._model_bytes = (model.source, None) if is_path else (None, model.source)
            try:
                self._create(model, files, super().set_providers, providers, provider_options)
            finally:
                self._model_path, self._model_bytes = self._path, None

    def _register(self, providers: Any) -> Backend:
        """Register the operators with the options of a session with these providers, and return the backend."""
        is_standard = operators_of(self._how["operators"], self._options, providers) == "standard"
        return register(self._options, standard_ops=not is_standard and self._how["qdq"] == "float")

    def _is_written(self, model: _Model) -> bool:
        """Whether the source of a model is a file of this package, and not the model that the caller gave."""
        return isinstance(model.source, str) and model.source is not self._given

    def _create(self, model: _Model, files: ExitStack, create: Callable[..., None], *chosen: Any) -> None:
        """Let ONNX Runtime create its session of a model, with the chosen providers and their options. It may refuse the model
        only for how it cuts it for another provider than the CPU's, or for what its optimisers make of quantization nodes. Then
        let it try again without these. Raise its error if it refuses that, too."""
        with _of_files(model.source, self._options) if self._is_written(model) else nullcontext():
            try:
                create(*chosen)
            except Exception as first:
                reraise_of_signal_handler(first)
                again = functools.partial(create, *chosen)
                if _CIRCLE in str(first) and chosen[0] and not runs_on_cpu_alone(self._options, chosen[0]):
                    _log.warning(
                        "this session runs on the CPU's provider alone, as ONNX Runtime refused the model with others: %s",
                        first,
                    )
                    create([CPU], None)
                elif _may_be_of_fusions(first, model.source, self._options) and _is_created_as_written(self._options, again):
                    what = "ONNX Runtime optimises nothing in this session, as it refused the model with its optimisations: %s"
                    _log.warning(what, first)
                elif model.refusal:  # only now: a library that the user registered may run the operator
                    raise ModelError(model.refusal) from first
                elif isinstance(first, UnicodeDecodeError):  # the message of ONNX Runtime, which quotes a damaged model
                    raise ModelError(f"not a valid model: {first.object.decode(errors='backslashreplace')}") from first
                else:
                    raise
        # Windows cannot remove the files while the session maps them. Attributes are deleted in the order in which they were
        # set: this one after ONNX Runtime's session.
        self._files = files.pop_all() if os.name == "nt" else None


class _Model(NamedTuple):
    """What ONNX Runtime makes a session from: the caller's own, bytes, or a path.

    `probes` are for `started.keep`, empty if the model is not kept. `refusal` is why the model cannot run if ONNX Runtime
    refuses it; "": no reason is known."""

    source: Any
    probes: tuple[bytes, ...] = ()
    refusal: str = ""


def _may_be_of_fusions(error: Exception, source: Any, options: onnxruntime.SessionOptions) -> bool:
    """Whether ONNX Runtime's optimisers of quantization nodes may be why a session of this model was refused."""
    is_off = options.graph_optimization_level == _AS_WRITTEN
    if is_off or all(entry(options, name) == value for name, value in NO_FUSIONS.items()):
        return False
    if isinstance(error, (RuntimeError, TypeError, ValueError)):  # of arguments and providers: ONNX Runtime's own are others
        return False
    try:
        model = _model(source)
    except Exception as unreadable:
        reraise_of_signal_handler(unreadable)
        return False
    from ..models import protos
    from ..rewriting.own_operators import NAMES

    return any(node.op_type in NAMES for node in protos.nodes(model.graph, *model.functions))


def _is_created_as_written(options: onnxruntime.SessionOptions, create: Callable[[], None]) -> bool:
    """Whether ONNX Runtime creates the session without optimisers. The entries of the options that turn off a few of them will
    not do: ONNX Runtime warns of each entry that is changed back."""
    with changing:
        before = options.graph_optimization_level
        options.graph_optimization_level = _AS_WRITTEN
        try:
            create()
        except Exception as error:
            reraise_of_signal_handler(error)
            return False
        finally:
            options.graph_optimization_level = before
    return True


@contextmanager
def _of_files(path: str, options: onnxruntime.SessionOptions) -> Iterator[None]:
    """While ONNX Runtime opens a model of this package, let the entry for the folder of tensors, if it is set, name that of the
    model. Return unused memory to the system before and after."""
    with changing if entry(options, TENSORS_FOLDER) else nullcontext(), memory.released():
        folder = entry(options, TENSORS_FOLDER)
        try:
            if folder:
                options.add_session_config_entry(TENSORS_FOLDER, os.path.dirname(path))
            yield
        finally:
            if folder:
                options.add_session_config_entry(TENSORS_FOLDER, folder)


def _prepared(source: Any, options: onnxruntime.SessionOptions, files: ExitStack, providers: Any, /, **how: Any) -> _Model:
    """Return what ONNX Runtime makes the session from. A path exists until `files` are closed."""
    with IMPORTS:
        import onnx

        from ..models import model_files, protos
        from ..models.file_states import state_of
        from ..models.files import check_exists, check_is_regular, named_in_utf8
        from ..models.temporary import recover
        from ..rewriting import constants, optimize
        from . import initializers
        from .prepared import prepared

    is_path = isinstance(source, (str, os.PathLike))
    if is_path:
        recover(source)
        check_exists(source)
        check_is_regular(source, "as models are read more than once")
    if _is_for_onnx_runtime_alone(source, options):
        return _Model(source)
    state = state_of(source) if is_path else None
    model, folder = _model(source), entry(options, TENSORS_FOLDER) or None
    if is_path and native.release_of(onnxruntime.__version__) < _FOLDER_FOR_PATHS:
        folder = None
    elif folder and model is source:
        model = onnx.ModelProto()
        model.CopyFrom(source)
    if any((node.domain, node.op_type) == _WITH_FILES for node in protos.nodes(model.graph)):
        return _Model(source if is_path or isinstance(source, bytes) else source.SerializeToString())
    replaced = initializers.replacements(model, options, providers)
    read = model_files.Source(model, folder, source if is_path else None, replaced.in_files, state)
    is_kept = how["cache"] and not replaced.names and not replaced.from_memory
    probes = (initializers.probe_of_all(model), initializers.probe_of_a_file()) if is_kept else ()
    refusals = dict(_refusal(node) for node in protos.nodes(model.graph, *model.functions))
    del model
    made = files.enter_context(prepared(read, options, providers, replaced=replaced, **how))
    if made.source is None and is_path:
        named_in_utf8(source)
    if inputs := sum(count for (_, why), count in made.left.items() if why == constants.INPUT):
        _log.warning(_COMPUTED, inputs)
    written_in = operators_of(how["operators"], options, providers, is_native=how["is_native"])
    if written_in != "custom" and (nodes := optimize.not_standard_as_text(made.left, written_in)):
        _log.warning(_ON_THE_CPU, nodes)
    left = {name for name, _ in made.left}
    refused = (why for (name, is_rewritten), why in refusals.items() if why and (name in left or not is_rewritten))
    return _Model(source if made.source is None else made.source, probes, next(refused, ""))


def _is_for_onnx_runtime_alone(source: Any, options: onnxruntime.SessionOptions) -> bool:
    """Whether the source is in ONNX Runtime's own format, or a path without a file."""
    if entry(options, "session.load_model_format") == "ORT":
        return True
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"  # the identifier of ONNX Runtime's flatbuffers
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source).endswith(".ort") or not os.path.exists(source)
    return False


def _refusal(node: onnx.NodeProto) -> tuple[tuple[str, bool], str]:
    """Return the operator of a node and whether `optimize` rewrites it where it can; and why a model with the node as it is
    cannot run, "" if no reason is known."""
    with IMPORTS:
        from ..dialects import refused
        from ..rewriting import channels_last

    name, why = f"{node.domain or 'ai.onnx'}::{node.op_type}", refused.reason(node.domain, node.op_type)
    text = f"node {node.name or node.output[0]!r} is a {name}, which cannot run: {why}" if why else ""
    return (name, channels_last.is_one(node.domain, node.op_type)), text


def _in_bytes(source: Any) -> bytes:
    """Return a model that is a ModelProto, or bytes already."""
    content: bytes = source if isinstance(source, bytes) else source.SerializeToString()
    return content


def _model(source: Any) -> onnx.ModelProto:
    """Return the model of the source. External data stays in its files."""
    with IMPORTS:
        import onnx

        from ..models import model_files

    if isinstance(source, (str, os.PathLike)):
        return model_files.load(source, external_data=False)
    if isinstance(source, bytes):
        with errors_named("not an ONNX model"):
            source = onnx.load_from_string(source)
    elif not isinstance(source, onnx.ModelProto):
        raise TypeError(f"path_or_bytes is a {type(source).__name__}; expected a path, bytes or onnx.ModelProto")
    return source
