"""Small models of one node, and sessions whose inputs and outputs are arrays of any element type."""

import ctypes
import importlib
import math
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, defs, helper, shape_inference
from text_graphs import text_nodes

import quark_numba
from quark_numba.element_types import find

# Whether schemas declared in Python have inference functions, as from onnx 1.19 on. Before that, only element types are
# inferred, from the type variables, and no shapes.
INFERS = hasattr(defs.OpSchema, "set_type_and_shape_inference_function")
infers = pytest.mark.skipif(not INFERS, reason="schemas from Python have no inference functions before onnx 1.19")

RELEASE = tuple(map(int, onnxruntime.__version__.split(".")[:2]))

OPERATORS = {
    ("", "quantize"): "QuantizeLinear",
    ("", "dequantize"): "DequantizeLinear",
    ("com.amd.quark", "quantize"): "ExtendedQuantizeLinear",
    ("com.amd.quark", "dequantize"): "ExtendedDequantizeLinear",
    ("com.vai.quantize", "quantize"): "VitisQuantizeLinear",
    ("com.vai.quantize", "dequantize"): "VitisDequantizeLinear",
    ("quark_numba", "quantize_dequantize"): "QuantizeDequantizeLinear",
}


def number(name):
    row = find(name)
    return row.number if row else TensorProto.DataType.Value(name.upper())


def node_tests():
    """Return onnx's own tests of QuantizeLinear and DequantizeLinear as parameters. Importing their modules raises warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("quantizelinear", "dequantizelinear"):
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    cases = sys.modules["onnx.backend.test.case.node"]._NodeTestCases
    return [pytest.param(case, id=case.name) for case in cases if case.model.graph.node[0].op_type in OPERATORS.values()]


def model(nodes, inputs, outputs, *, initializers=(), domains=None, opset=21):
    """Return a model. `nodes` are nodes, or texts as in `parsed`. `inputs` and `outputs` are names, or (name, element type,
    shape). The default `domains` are com.amd.quark and those of the nodes."""

    def values(descriptions):
        for description in descriptions:
            name, element_type, shape = (description, "float32", None) if isinstance(description, str) else description
            yield helper.make_tensor_value_info(name, number(element_type), shape)

    nodes = parsed(*nodes)
    if domains is None:
        domains = dict.fromkeys(["com.amd.quark", *(node.domain for node in nodes)])
    graph = helper.make_graph(nodes, "graph", list(values(inputs)), list(values(outputs)), initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains if domain)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def parsed(*nodes):
    """Return nodes, of which some may be given as texts (see ``text_graphs``): "y = Clip (x, low, high)"."""
    return [node for given in nodes for node in (text_nodes(given) if isinstance(given, str) else [given])]


def one_node(operation, name, *, zero_point=True, domain="com.amd.quark", attributes=None, types=None, shapes=None, opset=21):
    """Return a model of one node whose inputs are all inputs of the graph. `types` overrides element types and `shapes`
    declares shapes, by the name of an input or output."""
    types = {"x": name if operation == "dequantize" else "float32", "scale": "float32", "zero_point": name} | (types or {})
    types = {"y": name if operation == "quantize" else "float32"} | types
    shapes = shapes or {}
    inputs = ["x", "scale", "zero_point"][: 2 + zero_point]
    node = helper.make_node(OPERATORS[domain, operation], inputs, ["y"], domain=domain, **(attributes or {}))
    values = {value: (value, types[value], shapes.get(value)) for value in types}
    return model([node], [values[i] for i in inputs], [values["y"]], domains=[domain], opset=opset)


def session_options(level="ENABLE_ALL", threads=0, spins=False, **entries):
    """Return options of sessions that log nothing. With `threads` = 0 there are as many as processors. With `spins`, waiting
    threads spin, as by default in ONNX Runtime, which keeps a processor busy for longer than a small model runs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    for entry, value in {"intra_op.allow_spinning": str(int(spins)), **entries}.items():
        options.add_session_config_entry(f"session.{entry}", value)
    return options


def session(source, *, backend="native", qdq="auto", threads=2, **named):
    """Return a session, without the package's operators if `backend` is None. `named` is as in `session_options`."""
    if backend == "extensions":
        pytest.importorskip("onnxruntime_extensions")
    options = session_options(threads=threads, **named)
    if backend:
        quark_numba.register(options, backend=backend, qdq=qdq)
    content = source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source)
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], disable_fallback=True)


def assert_inference_refuses(source, message, **options):
    """Assert that the inference of a model's types and shapes raises an error with this message."""
    quark_numba.register_schemas()
    with pytest.raises(shape_inference.InferenceError, match=message):
        shape_inference.infer_shapes(source, **options)


def feeds_of(made, size):
    """Return random inputs of a session of any model, whose open dimensions get this size."""
    rng = np.random.default_rng(0)
    shapes = {each: [length if isinstance(length, int) else size for length in each.shape] for each in made.get_inputs()}
    return {
        each.name: rng.normal(size=shape).astype(np.float32) if each.type == "tensor(float)" else rng.integers(0, 9, shape)
        for each, shape in shapes.items()
    }


def run(one_node_session, **feeds):
    """Return the output y for arrays fed by name. They may be of any element type, most of which ONNX Runtime's numpy interface
    lacks."""
    values = {name: ort_value(np.array(array, order="C")) for name, array in feeds.items()}
    (y,) = one_node_session.run_with_ort_values(["y"], values)
    return array_of(y)


def array_of(value):
    """Return the array of an OrtValue of any element type."""
    return array_at(value.data_ptr(), find(value.element_type()), value.shape())


def array_at(address, row, shape):
    """Return the array of a tensor at an address."""
    size = math.prod(shape)
    codes = np.frombuffer(ctypes.string_at(address, -(-size * row.bits // 8)), np.uint8)
    if row.bits < 8:
        codes = np.stack([codes >> shift for shift in range(0, 8, row.bits)], axis=-1).reshape(-1) & (2**row.bits - 1)
        codes = codes[:size]
    return codes.view(row.dtype).reshape(shape)


def ort_value(array):
    """Return the OrtValue of an array of any element type."""
    row = find(array.dtype)
    codes = array.reshape(-1).view(np.uint8)
    if row.bits < 8:
        per_byte = 8 // row.bits
        codes = np.pad(codes & (2**row.bits - 1), (0, -codes.size % per_byte)).reshape(-1, per_byte)
        codes = np.bitwise_or.reduce(codes << np.arange(0, 8, row.bits, dtype=np.uint8), axis=1, dtype=np.uint8)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), row.number)
    ctypes.memmove(value.data_ptr(), codes.ctypes.data, codes.nbytes)
    return value
