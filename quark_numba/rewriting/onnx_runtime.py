"""ONNX Runtime's release, its operators, and the operators that its CPU provider runs.

ONNX Runtime's list of kernels, ``get_all_opkernel_def``, ends the process in builds with other execution providers whose
libraries are missing. So this module creates small sessions to find out which operators the CPU provider runs."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

from ..declaration import Operator
from ..element_types import FLOAT32, UINT8, ElementType
from ..errors import errors_ignored

RELEASE = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def has_operator(domain: str, name: str) -> bool:
    """Return whether ONNX Runtime has any version of an operator."""
    return (_plain(domain), name) in _versions()


@functools.cache
def casts_to(element_type: ElementType) -> bool:
    """Return whether the CPU provider runs a Cast from float32 to an element type, in any version of Cast."""
    return _runs("", helper.make_node("Cast", ["x"], ["y"], to=element_type.number), [FLOAT32], element_type)


@functools.cache
def runs(operator: Operator, domain: str, codes: ElementType | None, scale: ElementType | None) -> bool:
    """Return whether the CPU provider runs ONNX's own quantize or dequantize operator in a domain, in any version, with these
    element types. None stands for uint8 as the type of codes, and for float32 as the type of the scale."""
    codes, scale, domain = codes or UINT8, scale or FLOAT32, _plain(domain)
    x, y = (scale, codes) if operator.operation == "quantize" else (codes, scale)
    node = helper.make_node(operator.name, ["x", "scale", "zero_point"], ["y"], domain=domain)
    return _runs(domain, node, [x, scale, codes], y)


@functools.cache
def multiplies_exactly() -> bool:
    """Return whether ONNX Runtime's products of uint8 and int8 are exact on this processor. On x86-64 without VNNI it adds up
    two of them in 16 bits, which saturate (its documentation of quantization, "U8S8")."""
    constants = {"x": np.full((8, 64), 255, np.uint8), "weights": np.full((64, 32), 127, np.int8)}
    node = helper.make_node("MatMulInteger", [*constants], ["y"])
    (y,) = _session("", 10, node, [], onnx.TensorProto.INT32, constants).run(None, {})
    return bool(np.all(y == 64 * 255 * 127))


def run_on_cpu(operator: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the result of an operator of ONNX, of one input and without attributes, on the CPU provider."""
    return np.asarray(_session_of(operator).run(None, {"x": x})[0])


@functools.cache
def _session_of(operator: str) -> onnxruntime.InferenceSession:
    return _session("", 13, helper.make_node(operator, ["x"], ["y"]), [FLOAT32.number], FLOAT32.number)


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


@functools.cache
def _versions() -> dict[tuple[str, str], set[int]]:
    """Return the versions of each operator of ONNX Runtime, by domain and name."""
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    for schema in onnxruntime_pybind11_state.get_all_operator_schema():
        versions[schema.domain, schema.name].add(schema.since_version)
    return dict(versions)


def _runs(domain: str, node: onnx.NodeProto, inputs: Sequence[ElementType], output: ElementType) -> bool:
    """Return whether the CPU provider runs a node in any version of its operator, the newest first."""
    for version in sorted(_versions()[domain, node.op_type], reverse=True):
        with errors_ignored():  # there is no such kernel, or the version does not have these types
            _session(domain, version, node, [element_type.number for element_type in inputs], output.number)
            return True
    return False


def _session(
    domain: str,
    version: int,
    node: onnx.NodeProto,
    inputs: Sequence[int],
    output: int,
    constants: Mapping[str, NDArray[np.generic]] = MappingProxyType({}),
) -> onnxruntime.InferenceSession:
    """Return a session of the CPU provider with one node, whose inputs are `constants` or have these types of TensorProto."""
    infos = [helper.make_tensor_value_info(name, number, None) for name, number in zip(node.input, inputs, strict=False)]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    y = helper.make_tensor_value_info("y", output, None)
    graph = helper.make_graph([node], "probe", infos, [y], initializers)
    opsets = [helper.make_opsetid(name, number) for name, number in ({"": 10} | {domain: version}).items()]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    source = helper.make_model(graph, opset_imports=opsets, ir_version=4).SerializeToString()
    return onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"])
