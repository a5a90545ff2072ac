"""Registration of the operators with ONNX Runtime."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal

from .native import REGISTERED, NotAvailableError, get_library_path

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Backend", "get_library_path", "register"]

Backend = Literal["native", "extensions"]


def register(session_options: onnxruntime.SessionOptions, *, backend: Backend | None = None) -> Backend:
    """Make Quark's operators known to the sessions that are created with `session_options`.

    The operators are ExtendedQuantizeLinear and ExtendedDequantizeLinear of com.amd.quark, version 1, and the same under
    their older names, VitisQuantizeLinear and VitisDequantizeLinear of com.vai.quantize.

    Parameters
    ----------
    session_options : onnxruntime.SessionOptions
    backend : "native", "extensions" or None
        "native": compiled kernels, called by ONNX Runtime on its own threads, on its own tensors.
        "extensions": onnxruntime-extensions calls Python, which calls the kernels; no float16, no bfloat16.
        None: native where it is available, else extensions, with a RuntimeWarning.

    Returns
    -------
    The backend that was taken, or that these options have from an earlier call.

    Raises
    ------
    TypeError, ValueError
        For an argument that is none of these, or a backend other than that of an earlier call.
    RuntimeError
        If `backend` is "native" and that is not available here; the message says why.
    """
    import onnxruntime

    if not isinstance(session_options, onnxruntime.SessionOptions):
        raise TypeError(f"session_options is a {type(session_options).__name__}; expected onnxruntime.SessionOptions")
    if backend not in ("native", "extensions", None):
        raise ValueError(f'backend is {backend!r}; expected "native", "extensions" or None')
    try:
        registered: Backend = session_options.get_session_config_entry(REGISTERED)
    except RuntimeError:  # no such entry
        pass
    else:
        if backend not in (registered, None):
            raise ValueError(f"backend is {backend!r}, but session_options are registered with {registered!r} already")
        return registered
    if backend != "extensions":
        try:
            session_options.register_custom_ops_library(get_library_path())
            return "native"
        except NotAvailableError as error:
            if backend == "native":
                raise
            reason = str(error)
    from . import extensions

    if backend is None:
        message = f"the native way is not available ({reason}); onnxruntime-extensions lacks {extensions.MISSING}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    session_options.register_custom_ops_library(extensions.get_library_path())
    session_options.add_session_config_entry(REGISTERED, "extensions")
    return "extensions"
