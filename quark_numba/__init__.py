"""AMD Quark's quantization operators as Numba kernels: for numpy arrays and for ONNX Runtime sessions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import dequantize, quantize
    from .ort import get_library_path, register

__version__ = "0.1.0"
__all__ = ["__version__", "dequantize", "get_library_path", "quantize", "register"]

# Loaded when first used: numpy and ml_dtypes for the calls on arrays, onnxruntime for sessions, numba for a first kernel.
_MODULES = {"dequantize": ".api", "quantize": ".api", "get_library_path": ".ort", "register": ".ort"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
