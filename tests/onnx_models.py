"""Small models of one node, and sessions that take and give arrays of any element type."""

import ctypes

import numpy as np
import onnx
import onnxruntime
import oracle
from onnx import TensorProto, helper

import quark_numba

OPERATORS = {
    ("", "quantize"): "QuantizeLinear",
    ("", "dequantize"): "DequantizeLinear",
    ("com.amd.quark", "quantize"): "ExtendedQuantizeLinear",
    ("com.amd.quark", "dequantize"): "ExtendedDequantizeLinear",
    ("com.vai.quantize", "quantize"): "VitisQuantizeLinear",
    ("com.vai.quantize", "dequantize"): "VitisDequantizeLinear",
}


def number(name):
    return {"float32": TensorProto.FLOAT}.get(name) or TensorProto.DataType.Value(name.upper())


def one_node(operation, name, *, zero_point=True, domain="com.amd.quark", attributes=None, types=None, output=None):
    """A model of one node whose inputs are all fed. `types` overrides the element type of inputs, by input."""
    inputs = {"x": "float32" if operation == "quantize" else name, "scale": "float32", "zero_point": name} | (types or {})
    if not zero_point:
        del inputs["zero_point"]
    node = helper.make_node(OPERATORS[domain, operation], list(inputs), ["y"], domain=domain, **(attributes or {}))
    output = output or (name if operation == "quantize" else "float32")
    graph = helper.make_graph(
        [node],
        "one_node",
        [helper.make_tensor_value_info(i, number(element_type), None) for i, element_type in inputs.items()],
        [helper.make_tensor_value_info("y", number(output), None)],
    )
    opsets = [helper.make_opsetid("", 21)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session(model, *, backend="native", threads=2, **entries):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    for entry, value in entries.items():
        options.add_session_config_entry(f"session.{entry}", value)
    quark_numba.register(options, backend=backend)
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], disable_fallback=True)


def run(one_node_session, **feeds):
    """The output y for arrays fed by name; bfloat16, which ONNX Runtime's numpy interface lacks, included."""
    values = {}
    for name, array in feeds.items():
        array = np.array(array, order="C")
        bits = array.view(np.uint16) if array.dtype == oracle.dtype("bfloat16") else array
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number(array.dtype.name))
    (y,) = one_node_session.run_with_ort_values(["y"], values)
    name = TensorProto.DataType.Name(y.element_type()).lower()
    dtype = np.dtype(np.float32) if name == "float" else oracle.dtype(name)
    count = int(np.prod(y.shape(), dtype=np.int64))
    content = ctypes.string_at(y.data_ptr(), count * dtype.itemsize) if count else b""
    return np.frombuffer(content, dtype).reshape(y.shape())
