"""AMD Quark's quantization operators as Numba kernels, for numpy arrays and for ONNX Runtime sessions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import lazy_sympy
from .compiling.lock import IMPORTS  # at once, as its fork hooks have to be there before other threads import anything
from .errors import (
    EnvironmentVariableError,
    MissingFileError,
    MissingPackageError,
    ModelError,
    NotAvailableError,
    WriteError,
    missing_packages_are_named,
)
from .version import __version__

if TYPE_CHECKING:
    from .analysis.analyze import analyze
    from .analysis.evaluate import evaluate
    from .analysis.results import Analysis, Evaluation
    from .arrays.packed_arrays import pack, unpack
    from .block.bfp_storage import BFPBlocks, bfp_dequantize, bfp_quantize
    from .block.calls import bfp_quantize_dequantize, mx_quantize_dequantize
    from .block.storage import mx_dequantize, mx_quantize, nvfp4_dequantize, nvfp4_quantize
    from .element_types.tensors import from_tensor_proto, to_tensor_proto
    from .fake_quantization.calls import fake_quantize, minifloat_quantize_dequantize
    from .library.build import build_library
    from .linear.calls import dequantize, quantize, quantize_dequantize
    from .normalization.calls import extended_instance_normalization
    from .onnx_tools.evaluator import reference_ops
    from .onnx_tools.schemas import register_schemas
    from .ort import get_library_path, register
    from .recurrent.calls import extended_lstm
    from .rewriting.optimize import optimize
    from .running.data import Data, RandomData
    from .running.decoding import Decoding
    from .running.runs import Execution
    from .session.inference_session import InferenceSession

__all__ = [
    "Analysis",
    "BFPBlocks",
    "Data",
    "Decoding",
    "EnvironmentVariableError",
    "Evaluation",
    "Execution",
    "InferenceSession",
    "MissingFileError",
    "MissingPackageError",
    "ModelError",
    "NotAvailableError",
    "RandomData",
    "WriteError",
    "__version__",
    "analyze",
    "bfp_dequantize",
    "bfp_quantize",
    "bfp_quantize_dequantize",
    "build_library",
    "dequantize",
    "evaluate",
    "extended_instance_normalization",
    "extended_lstm",
    "fake_quantize",
    "from_tensor_proto",
    "get_library_path",
    "minifloat_quantize_dequantize",
    "mx_dequantize",
    "mx_quantize",
    "mx_quantize_dequantize",
    "nvfp4_dequantize",
    "nvfp4_quantize",
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

# The other names, by module. They are imported on first use, so that a user loads only the libraries needed: numpy and
# ml_dtypes for the calls on arrays, onnx for models, onnxruntime for sessions, and numba for the first kernel.
_NAMES = {
    ".analysis.analyze": ("analyze",),
    ".analysis.evaluate": ("evaluate",),
    ".analysis.results": ("Analysis", "Evaluation"),
    ".arrays.packed_arrays": ("pack", "unpack"),
    ".block.bfp_storage": ("BFPBlocks", "bfp_dequantize", "bfp_quantize"),
    ".block.calls": ("bfp_quantize_dequantize", "mx_quantize_dequantize"),
    ".block.storage": ("mx_dequantize", "mx_quantize", "nvfp4_dequantize", "nvfp4_quantize"),
    ".element_types.tensors": ("from_tensor_proto", "to_tensor_proto"),
    ".fake_quantization.calls": ("fake_quantize", "minifloat_quantize_dequantize"),
    ".library.build": ("build_library",),
    ".linear.calls": ("dequantize", "quantize", "quantize_dequantize"),
    ".normalization.calls": ("extended_instance_normalization",),
    ".onnx_tools.evaluator": ("reference_ops",),
    ".onnx_tools.schemas": ("register_schemas",),
    ".ort": ("get_library_path", "register"),
    ".recurrent.calls": ("extended_lstm",),
    ".rewriting.optimize": ("optimize",),
    ".running.data": ("Data", "RandomData"),
    ".running.decoding": ("Decoding",),
    ".running.runs": ("Execution",),
    ".session.inference_session": ("InferenceSession",),
}


lazy_sympy.install()


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _NAMES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with IMPORTS, missing_packages_are_named():
        value = globals()[name] = getattr(importlib.import_module(module, __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
