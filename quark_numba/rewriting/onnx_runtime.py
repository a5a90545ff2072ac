"""ONNX Runtime's release, and what its CPU provider has, from its own lists."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

RELEASE = tuple(map(int, onnxruntime.__version__.split(".")[:2]))

# Names of element types in the lists that differ from the package's.
_NAMES = {"float32": "float", "float64": "double"}


def has_operator(domain: str, name: str) -> bool:
    """Whether ONNX Runtime has any version of an operator."""
    return (_plain(domain), name) in _operators()


def has_kernels(domain: str, name: str, types: Iterable[str]) -> bool:
    """Whether the CPU provider has kernels of an operator that take or return each of these element types, given by name."""
    strings = {f"tensor({_NAMES.get(type_name, type_name)})" for type_name in types}
    return strings <= _types_of_kernels()[_plain(domain), name]


@functools.cache
def multiplies_exactly() -> bool:
    """Whether ONNX Runtime's products of uint8 and int8 are exact on this processor. On x86-64 without VNNI it adds up two of
    them in 16 bits, which saturate (its documentation of quantization, "U8S8")."""
    x, weights = np.full((8, 64), 255, np.uint8), np.full((64, 32), 127, np.int8)
    value = helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    constants = [numpy_helper.from_array(x, "x"), numpy_helper.from_array(weights, "weights")]
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "weights"], ["y"])], "probe", [], [value], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    (y,) = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, {})
    return bool(np.all(y == 64 * 255 * 127))


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


@functools.cache
def _operators() -> frozenset[tuple[str, str]]:
    return frozenset((schema.domain, schema.name) for schema in onnxruntime_pybind11_state.get_all_operator_schema())


@functools.cache
def _types_of_kernels() -> dict[tuple[str, str], set[str]]:
    types: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kernel in onnxruntime_pybind11_state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            types[kernel.domain, kernel.op_name].update(*kernel.type_constraints.values())
    return types
