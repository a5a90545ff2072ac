"""Who is measured: for each contender, the element types that it has and how to make a call that only computes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx_models import number, one_node

import quark_numba
from quark_numba.element_types import ElementType
from quark_numba.ort import extensions

THREADS = 2
SCALE = np.array(0.05, np.float32)


@dataclass(frozen=True)
class Contender:
    """`prepare(operation, element type, x)` returns what is to be timed."""

    name: str
    has: Callable[[ElementType], bool]
    prepare: Callable[[str, ElementType, np.ndarray], Callable[[], object]]


def _session(domain: str, backend: str | None):
    def prepare(operation, row, x):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if backend:
            quark_numba.register(options, backend=backend)
        model = one_node(operation, row.name, domain=domain).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        arrays = {"x": x, "scale": SCALE, "zero_point": np.zeros((), row.dtype)}
        for name, array in arrays.items():
            bits = array.view(row.storage) if array.dtype.kind == "V" else array
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number(array.dtype.name))
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
    Contender("onnxruntime", lambda row: row.is_integer and row.bits < 32, _session("", None)),
    Contender("native session", lambda row: True, _session("com.amd.quark", "native")),
    Contender("extensions session", extensions.carries, _session("com.amd.quark", "extensions")),
    Contender("direct call", lambda row: True, _direct),
)
