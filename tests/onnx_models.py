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


def model(nodes, inputs, outputs, *, initializers=(), domains=("com.amd.quark",)):
    """A model; `inputs` and `outputs` are names, or (name, element type, shape)."""

    def values(descriptions):
        for description in descriptions:
            name, element_type, shape = (description, "float32", None) if isinstance(description, str) else description
            yield helper.make_tensor_value_info(name, number(element_type), shape)

    graph = helper.make_graph(nodes, "graph", list(values(inputs)), list(values(outputs)), initializers)
    opsets = [helper.make_opsetid("", 21), *(helper.make_opsetid(domain, 1) for domain in domains if domain)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def one_node(operation, name, *, zero_point=True, domain="com.amd.quark", attributes=None, types=None):
    """A model of one node whose inputs are all fed. `types` overrides the element type of inputs, by input."""
    inputs = {"x": "float32" if operation == "quantize" else name, "scale": "float32", "zero_point": name} | (types or {})
    if not zero_point:
        del inputs["zero_point"]
    node = helper.make_node(OPERATORS[domain, operation], list(inputs), ["y"], domain=domain, **(attributes or {}))
    output = name if operation == "quantize" else "float32"
    return model([node], [(i, inputs[i], None) for i in inputs], [("y", output, None)], domains=[domain])


def session(source, *, backend="native", threads=2, **entries):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    for entry, value in entries.items():
        options.add_session_config_entry(f"session.{entry}", value)
    quark_numba.register(options, backend=backend)
    content = source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source)
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
