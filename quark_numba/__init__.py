"""AMD Quark's quantization operators as Numba kernels: for numpy arrays and for ONNX Runtime sessions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import dequantize, quantize, quantize_dequantize
    from .block_api import bfp_quantize_dequantize, mx_quantize_dequantize
    from .block_storage import BFPBlocks, bfp_dequantize, bfp_quantize, mx_dequantize, mx_quantize
    from .errors import ModelError
    from .onnx_ops.reference import reference_ops
    from .onnx_ops.schemas import register_schemas
    from .optimization import optimize
    from .ort import get_library_path, register
    from .ort.session import InferenceSession
    from .packing import pack, unpack
    from .tensors import from_tensor_proto, to_tensor_proto

__version__ = "0.1.0"
__all__ = [
    "BFPBlocks",
    "InferenceSession",
    "ModelError",
    "__version__",
    "bfp_dequantize",
    "bfp_quantize",
    "bfp_quantize_dequantize",
    "dequantize",
    "from_tensor_proto",
    "get_library_path",
    "mx_dequantize",
    "mx_quantize",
    "mx_quantize_dequantize",
    "optimize",
    "pack",
    "quantize",
    "quantize_dequantize",
    "reference_ops",
    "register",
    "register_schemas",
    "to_tensor_proto",
    "unpack",
]

# Loaded when first used: numpy and ml_dtypes for the calls on arrays, onnx for its tools, onnxruntime for sessions, numba for
# a first kernel.
_MODULES = {
    "BFPBlocks": ".block_storage",
    "InferenceSession": ".ort.session",
    "ModelError": ".errors",
    "bfp_dequantize": ".block_storage",
    "bfp_quantize": ".block_storage",
    "bfp_quantize_dequantize": ".block_api",
    "dequantize": ".api",
    "from_tensor_proto": ".tensors",
    "get_library_path": ".ort",
    "mx_dequantize": ".block_storage",
    "mx_quantize": ".block_storage",
    "mx_quantize_dequantize": ".block_api",
    "optimize": ".optimization",
    "pack": ".packing",
    "quantize": ".api",
    "quantize_dequantize": ".api",
    "reference_ops": ".onnx_ops.reference",
    "register": ".ort",
    "register_schemas": ".onnx_ops.schemas",
    "to_tensor_proto": ".tensors",
    "unpack": ".packing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
