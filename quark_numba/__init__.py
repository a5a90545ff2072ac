"""AMD Quark's quantization operators as Numba kernels, for numpy arrays and for ONNX Runtime sessions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .compiling.lock import IMPORTS  # at once, as its fork hooks have to be there before other threads import anything
from .errors import missing_packages_are_named
from .version import __version__

if TYPE_CHECKING:
    from .analysis.analyze import Analysis, analyze
    from .analysis.evaluate import Evaluation, evaluate
    from .arrays.packed_arrays import pack, unpack
    from .block.bfp_storage import BFPBlocks, bfp_dequantize, bfp_quantize
    from .block.calls import bfp_quantize_dequantize, mx_quantize_dequantize
    from .block.storage import mx_dequantize, mx_quantize, nvfp4_dequantize, nvfp4_quantize
    from .element_types.tensors import from_tensor_proto, to_tensor_proto
    from .errors import ModelError
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
    from .running.runs import Execution
    from .session.inference_session import InferenceSession

__all__ = [
    "Analysis",
    "BFPBlocks",
    "Data",
    "Evaluation",
    "Execution",
    "InferenceSession",
    "ModelError",
    "RandomData",
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

# Names are imported on first use, so that a user loads only the libraries needed: numpy and ml_dtypes for the calls on arrays,
# onnx for models, onnxruntime for sessions, and numba for the first kernel.
_MODULES = {
    "Analysis": ".analysis.analyze",
    "BFPBlocks": ".block.bfp_storage",
    "Data": ".running.data",
    "Evaluation": ".analysis.evaluate",
    "Execution": ".running.runs",
    "InferenceSession": ".session.inference_session",
    "ModelError": ".errors",
    "RandomData": ".running.data",
    "analyze": ".analysis.analyze",
    "bfp_dequantize": ".block.bfp_storage",
    "bfp_quantize": ".block.bfp_storage",
    "bfp_quantize_dequantize": ".block.calls",
    "build_library": ".library.build",
    "dequantize": ".linear.calls",
    "evaluate": ".analysis.evaluate",
    "extended_instance_normalization": ".normalization.calls",
    "extended_lstm": ".recurrent.calls",
    "fake_quantize": ".fake_quantization.calls",
    "from_tensor_proto": ".element_types.tensors",
    "get_library_path": ".ort",
    "minifloat_quantize_dequantize": ".fake_quantization.calls",
    "mx_dequantize": ".block.storage",
    "mx_quantize": ".block.storage",
    "mx_quantize_dequantize": ".block.calls",
    "nvfp4_dequantize": ".block.storage",
    "nvfp4_quantize": ".block.storage",
    "optimize": ".rewriting.optimize",
    "pack": ".arrays.packed_arrays",
    "quantize": ".linear.calls",
    "quantize_dequantize": ".linear.calls",
    "reference_ops": ".onnx_tools.evaluator",
    "register": ".ort",
    "register_schemas": ".onnx_tools.schemas",
    "to_tensor_proto": ".element_types.tensors",
    "unpack": ".arrays.packed_arrays",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with IMPORTS, missing_packages_are_named():
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
