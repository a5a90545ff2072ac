"""Registration of the operators with ONNX Runtime (`register`): the choice of the backend, the entries of session options that
`qdq` sets, and the errors and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ..checks import QDQ, Qdq, check_choices, refuse
from ..errors import MissingPackageError, NotAvailableError, missing_packages_are_named
from . import c_api
from .native import ALL_DOMAINS, FLOAT_QDQ, REGISTERED, REGISTRY, config_entry, get_library_path, release_of

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["FLOAT_QDQ", "Backend", "config_entry", "get_library_path", "register"]

# ONNX Runtime's entries that keep its optimizers from moving, fusing and dropping quantization nodes. The first does not reach
# the optimizers that the second names.
DISABLE_QUANT_QDQ = "session.disable_quant_qdq"
DISABLED_OPTIMIZERS = "optimization.disable_specified_optimizers"
NO_FUSIONS = {DISABLE_QUANT_QDQ: "1", DISABLED_OPTIMIZERS: "ClipQuantRewrite;ReluQuantRewrite"}

# ONNX Runtime's entry for the folder with the external data of a model without a path.
TENSORS_FOLDER = "session.model_external_initializers_file_folder_path"

Backend = Literal["native", "extensions"]


def register(session_options: onnxruntime.SessionOptions, *, backend: Backend | None = None, qdq: Qdq = "auto") -> Backend:
    """Register the operators of all dialects, and those that `optimize` writes, for the sessions that are created with
    `session_options`. ``quark-numba types`` lists them, all but those of ONNX's own domain.

    Parameters
    ----------
    session_options : onnxruntime.SessionOptions
    backend : "native", "extensions" or None
        "native": ONNX Runtime calls compiled kernels on its own threads and tensors.
        "extensions": onnxruntime-extensions calls Python, which calls the kernels; no float16, no bfloat16.
        None: native if it is available, else extensions, with a RuntimeWarning.
    qdq : "auto", "float" or "onnxruntime"
        Who runs ONNX's own QuantizeLinear and DequantizeLinear. "onnxruntime": ONNX Runtime. "float": this package (native
        only; ONNX Runtime 1.31 or later). "auto": as an earlier call with the same options chose; without one, ONNX Runtime.
        This package's operators have all types of opset 10 to 28. ONNX Runtime's CPU provider refuses bfloat16 and float4e2m1
        data, bfloat16, float8e8m0 and int32 scales, int32 x, `precision` and `output_dtype`. "float" also sets
        `session.disable_quant_qdq` and `optimization.disable_specified_optimizers`, unless `session_options` have these
        entries. Otherwise ONNX Runtime would fuse quantization nodes with their neighbours into integer operators, which lack
        these types. So the model computes in float, as it is written.

    Returns
    -------
    The backend that was registered, now or by an earlier call with the same options.

    Raises
    ------
    TypeError, ValueError
        If an argument is not one of the above, if `backend` differs from that of an earlier call with the same options, or if
        `qdq` is "onnxruntime" after a call with "float".
    NotAvailableError
        A RuntimeError, if the native backend is required, by name or for `qdq` = "float", and not available. The message gives
        the reason.
    ModuleNotFoundError
        If ONNX Runtime is not installed, or onnxruntime-extensions is needed and not installed.
    """
    with missing_packages_are_named():
        import onnxruntime

    if not isinstance(session_options, onnxruntime.SessionOptions):
        raise TypeError(f"session_options is a {type(session_options).__name__}; expected onnxruntime.SessionOptions")
    if not (backend is None or (isinstance(backend, str) and backend in ("native", "extensions"))):
        refuse("backend", backend, '"native", "extensions" or None', ValueError)
    check_choices(QDQ, qdq=qdq)
    registered: Backend | None = config_entry(session_options, REGISTERED)
    if registered:
        if backend not in (registered, None):
            raise ValueError(f"backend is {backend!r}, but session_options are registered with {registered!r} already")
        is_float = bool(config_entry(session_options, FLOAT_QDQ))
        if is_float and qdq == "onnxruntime":
            raise ValueError("qdq is 'onnxruntime', but session_options are registered with 'float' already")
        if is_float or qdq != "float":
            return registered
        backend = registered
    if qdq == "float":
        if backend == "extensions":
            raise ValueError("qdq is 'float', backend 'extensions'; expected 'native' or None")
        if release_of(onnxruntime.__version__) < c_api.FLOAT_QDQ_RELEASE:
            expected = ".".join(map(str, c_api.FLOAT_QDQ_RELEASE))
            raise NotAvailableError(f"qdq='float' needs ONNX Runtime {expected} or later; this is {onnxruntime.__version__}")
        backend = "native"
    path, reason = (None, "") if backend == "extensions" else REGISTRY.library
    if path:
        _set(session_options, {ALL_DOMAINS: "1"} | ({FLOAT_QDQ: "1"} | NO_FUSIONS if qdq == "float" else {}))
        session_options.register_custom_ops_library(path)
        return "native"
    if backend == "native":
        raise NotAvailableError(reason)
    _register_extensions(session_options, reason)
    return "extensions"


def _set(session_options: onnxruntime.SessionOptions, entries: Mapping[str, str]) -> None:
    """Set the configuration entries that the options lack: ONNX Runtime warns of an entry that is set twice."""
    for name, value in entries.items():
        if config_entry(session_options, name) is None:
            session_options.add_session_config_entry(name, value)


def _register_extensions(session_options: onnxruntime.SessionOptions, reason: str) -> None:
    """Register the extensions backend. `reason` says why the native one is not available, and becomes a warning. It is empty if
    the caller has chosen extensions."""
    from . import extensions

    reason = reason and f"the native backend is not available ({reason})"
    try:
        path = extensions.get_library_path()
    except MissingPackageError as error:
        raise (MissingPackageError(f"{reason}, and {error}", name=error.name) if reason else error) from None
    if reason:
        warnings.warn(f"{reason}; onnxruntime-extensions lacks {extensions.MISSING}", RuntimeWarning, stacklevel=3)
    session_options.register_custom_ops_library(path)
    session_options.add_session_config_entry(REGISTERED, "extensions")
