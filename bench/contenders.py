"""Who is measured: for each contender, the element types that it has and how to make a call that only computes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import helper

import quark_numba
from quark_numba.dispatch import TABLE
from quark_numba.element_types import ElementType
from quark_numba.ort import extensions

THREADS = 2
SCALE = np.array(0.05, np.float32)

QUANTIZED = tuple(dict.fromkeys(key.quantized for key in TABLE))


@dataclass(frozen=True)
class Contender:
    """`prepare(operation, element type, x)` returns what is to be timed."""

    name: str
    has: Callable[[ElementType], bool]
    prepare: Callable[[str, ElementType, np.ndarray], Callable[[], object]]


def _session(prefix: str, domain: str, backend: str | None):
    def prepare(operation, row, x):
        float_number, number = 1, row.number
        types = {"x": float_number if operation == "quantize" else number, "scale": float_number, "zero_point": number}
        node = helper.make_node(prefix + operation.capitalize() + "Linear", list(types), ["y"], domain=domain)
        graph = helper.make_graph(
            [node],
            "one_node",
            [helper.make_tensor_value_info(name, number, None) for name, number in types.items()],
            [helper.make_tensor_value_info("y", number if operation == "quantize" else float_number, None)],
        )
        opsets = [helper.make_opsetid("", 21)] + ([helper.make_opsetid(domain, 1)] if domain else [])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if backend:
            quark_numba.register(options, backend=backend)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        arrays = {"x": x, "scale": SCALE, "zero_point": np.zeros((), row.dtype)}
        for name, array in arrays.items():
            bits = array.view(row.storage) if array.dtype.kind == "V" else array
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, types[name])
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y")
        return lambda: session.run_with_iobinding(binding)

    return prepare


def _direct(operation, row, x):
    convert = getattr(quark_numba, operation)
    zero_point = np.zeros((), row.dtype)
    out = convert(x, SCALE, zero_point)
    return lambda: convert(x, SCALE, zero_point, out=out)


CONTENDERS = (
    Contender("onnxruntime", lambda row: row.is_integer and row.bits < 32, _session("", "", None)),
    Contender("native session", lambda row: True, _session("Extended", "com.amd.quark", "native")),
    Contender("extensions session", extensions.carries, _session("Extended", "com.amd.quark", "extensions")),
    Contender("direct call", lambda row: True, _direct),
)
