"""The contenders: which cases each has, and how to prepare a call that only computes."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numba
import numpy as np
import onnx
import onnxruntime
from cases import STANDARD_TYPES, Case, arrays
from labels import COPY, DIRECT_CALL, DROP_IN, ONNX_RUNTIMES_OPERATOR, QUARK
from measuring import session_options
from onnx.reference import ReferenceEvaluator
from onnx_models import one_node, ort_value, session

import quark_numba
from quark_numba.ort import extensions

ONNX_RUNTIMES_OPSET = 25
PEER_LIBRARY = os.environ.get("QUARK_NUMBA_PEER_LIBRARY")


@dataclass(frozen=True)
class Contender:
    """`prepare` returns the function to time. `has` tells whether the contender has a case."""

    name: str
    has: Callable[[Case], bool]
    prepare: Callable[[Case], Callable[[], object]]


def _model(case: Case, domain: str):
    attributes = {name: value for name, value in case.attributes.items() if name == "axis" or not domain}
    return one_node(case.operation, case.element_type.name, domain=domain, opset=ONNX_RUNTIMES_OPSET, attributes=attributes)


def _bound(case: Case, domain: str, register: Callable[[onnxruntime.SessionOptions], object]) -> Callable[[], object]:
    feeds = dict(zip(("x", "scale", "zero_point"), arrays(case), strict=True))
    return bound_session(_model(case, domain), feeds, case.threads, register)


def bound_session(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], threads: int, register: Callable[[onnxruntime.SessionOptions], object]
) -> Callable[[], object]:
    """Return a run of the model. Its tensors are bound, so nothing is copied."""
    options = session_options(threads)
    register(options)
    content = model.SerializeToString()
    bound = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], disable_fallback=True)
    binding = bound.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort_value(array))
    binding.bind_output("y")
    return lambda: bound.run_with_iobinding(binding)


def _native(case: Case) -> Callable[[], object]:
    domain = "com.amd.quark" if case.is_extended else ""
    return _bound(
        case, domain, lambda options: quark_numba.register(options, backend="native", qdq="auto" if domain else "float")
    )


def _native_per_tensor(case: Case) -> Callable[[], object]:
    return _native(replace(case, scale_shape=(), block_size=0))


def _has_native(case: Case) -> bool:
    return case.element_type.has_tensors()


def _extensions(case: Case) -> Callable[[], object]:
    return _bound(case, "com.amd.quark", lambda options: quark_numba.register(options, backend="extensions"))


def _onnxruntime(case: Case) -> Callable[[], object]:
    return _bound(case, "", lambda options: None)


@lru_cache
def _onnxruntime_has(operation: str, name: str) -> bool:
    """Return whether ONNX Runtime's CPU provider has the case, found by loading the model."""
    try:
        session(one_node(operation, name, domain="", opset=ONNX_RUNTIMES_OPSET), backend=None)
    except Exception:
        return False
    return True


def _peer(case: Case) -> Callable[[], object]:
    return _bound(case, "com.amd.quark", lambda options: options.register_custom_ops_library(PEER_LIBRARY))


def _direct(case: Case) -> Callable[[], object]:
    numba.set_num_threads(case.threads)
    convert = getattr(quark_numba, case.operation)
    x, scale, zero_point = arrays(case)
    out = convert(x, scale, zero_point, **case.attributes)
    return lambda: convert(x, scale, zero_point, **case.attributes, out=out)


def _reference(case: Case) -> Callable[[], object]:
    evaluator = ReferenceEvaluator(_model(case, ""))
    feeds = dict(zip(("x", "scale", "zero_point"), arrays(case), strict=True))
    return lambda: evaluator.run(None, feeds)


def _has_reference(case: Case) -> bool:
    return case.element_type in STANDARD_TYPES and case.element_type.has_tensors() and case.size <= 1 << 20


def _numpy(case: Case) -> Callable[[], object]:
    """Return the case as one writes it with numpy and the casts of ml_dtypes, per tensor."""
    x, scale, zero_point = arrays(case)
    element_type = case.element_type
    wide = np.float64 if element_type.bits == 32 else np.float32
    if case.operation == "dequantize":
        return lambda: (x.astype(wide) - zero_point.astype(wide)).astype(np.float32) * scale
    dtype, lowest, highest = element_type.dtype, element_type.lowest, element_type.highest
    if element_type.is_integer:
        zero = zero_point.astype(wide)
        return lambda: np.clip(np.rint(x / scale) + zero, lowest, highest).astype(dtype)
    return lambda: np.clip(x / scale, lowest, highest).astype(dtype)


# PyTorch's nearest operation: its quantized tensors, or a division and a cast.
_TORCH_QUANTIZED = {"uint8": "quint8", "int8": "qint8", "int32": "qint32"}
_TORCH_CAST = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}


def _torch(case: Case) -> Callable[[], object]:
    import torch

    torch.set_num_threads(case.threads)
    x, scale, _ = arrays(case)
    scale = float(scale)
    name = case.element_type.name
    if name in _TORCH_QUANTIZED:
        dtype = getattr(torch, _TORCH_QUANTIZED[name])
        if case.operation == "quantize":
            tensor = torch.from_numpy(x)
            return lambda: torch.quantize_per_tensor(tensor, scale, 0, dtype)
        values = torch.from_numpy(x.astype(np.float32)) * scale
        return torch.quantize_per_tensor(values, scale, 0, dtype).dequantize
    dtype = getattr(torch, _TORCH_CAST[name])
    if case.operation == "quantize":
        tensor = torch.from_numpy(x)
        return lambda: (tensor / scale).to(dtype)
    tensor = torch.from_numpy(x.view(f"u{x.dtype.itemsize}")).view(dtype)
    return lambda: tensor.to(torch.float32) * scale


def _has_torch(case: Case) -> bool:
    names = {**_TORCH_QUANTIZED, **_TORCH_CAST}
    return bool(importlib.util.find_spec("torch")) and case.element_type.name in names and not case.scale_shape


@numba.njit(parallel=True, nogil=True)
def _copy_slices(source, target, slices):
    for i in numba.prange(slices):
        start, stop = i * source.size // slices, (i + 1) * source.size // slices
        target[start:stop] = source[start:stop]


def _copy(case: Case) -> Callable[[], object]:
    """Return a copy that reads as many bytes as the case's x has, and writes as many as y has."""
    element_type = case.element_type
    bits = 32 + (element_type.bits if element_type.is_packed else element_type.dtype.itemsize * 8)
    return copy_call(case.size * bits // 16, case.threads)


def copy_call(nbytes: int, threads: int) -> Callable[[], object]:
    numba.set_num_threads(threads)
    source = np.ones(nbytes, np.uint8)
    target = np.zeros_like(source)
    return lambda: _copy_slices(source, target, 4 * threads)


CONTENDERS = (
    Contender(ONNX_RUNTIMES_OPERATOR, lambda case: _onnxruntime_has(case.operation, case.element_type.name), _onnxruntime),
    Contender(DROP_IN, _has_native, _native),
    Contender(f"{DROP_IN}/per_tensor", lambda case: bool(case.scale_shape) and _has_native(case), _native_per_tensor),
    Contender(f"{DROP_IN}/extensions", lambda case: case.is_extended and extensions.carries(case.element_type), _extensions),
    Contender(DIRECT_CALL, lambda case: True, _direct),
    Contender("reference_evaluator", _has_reference, _reference),
    Contender("numpy", lambda case: not case.scale_shape, _numpy),
    Contender("pytorch", _has_torch, _torch),
    Contender(QUARK, lambda case: bool(PEER_LIBRARY) and case.is_extended, _peer),
    Contender(COPY, lambda case: case.size >= 1 << 20, _copy),
)
