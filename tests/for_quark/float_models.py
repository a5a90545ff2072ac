"""Float models to quantize: the text-line classifier of tests/models, and attention with dense layers."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from paths import MODELS as FOLDER


def text_line_classifier():
    with np.load(FOLDER / "textline_cls_expected.npz") as arrays:
        x = arrays["x"]
    return onnx.load(FOLDER / "textline_cls_float.onnx"), [{"x": each[None]} for each in x[:3]]


def dense_layers():
    random = np.random.default_rng(0)
    weights = {name: random.normal(0, 0.2, shape) for name, shape in SHAPES.items()}
    weights |= {"scale": random.normal(1, 0.1, 32), "root": np.array(2**0.5), "half": np.array(0.5), "one": np.array(1.0)}
    nodes = [
        helper.make_node("MatMul", ["x", "w_query"], ["query"]),
        helper.make_node("MatMul", ["x", "w_key"], ["key"]),
        helper.make_node("MatMul", ["x", "w_value"], ["value"]),
        helper.make_node("Transpose", ["key"], ["key_t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query", "key_t"], ["products"]),
        helper.make_node("Softmax", ["products"], ["shares"]),
        helper.make_node("MatMul", ["shares", "value"], ["mixed"]),
        helper.make_node("Add", ["x", "mixed"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "scale", "bias"], ["normal"]),
        helper.make_node("MatMul", ["normal", "w_up"], ["up"]),
        helper.make_node("Add", ["up", "b_up"], ["h"]),
        helper.make_node("Div", ["h", "root"], ["h1"]),
        helper.make_node("Erf", ["h1"], ["h2"]),
        helper.make_node("Add", ["h2", "one"], ["h3"]),
        helper.make_node("Mul", ["h", "h3"], ["h4"]),
        helper.make_node("Mul", ["h4", "half"], ["gelu"]),
        helper.make_node("ReduceMean", ["gelu", "axes"], ["mean"], keepdims=0),
        helper.make_node("Gemm", ["mean", "w_down", "b_down"], ["y"], transB=1),
    ]
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    initializers.append(numpy_helper.from_array(np.array([1]), "axes"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "dense_layers", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model, [{"x": random.normal(0, 1, (1, 16, 32)).astype(np.float32)} for _ in range(3)]


SHAPES = {
    "w_query": (32, 32),
    "w_key": (32, 32),
    "w_value": (32, 32),
    "bias": (32,),
    "w_up": (32, 64),
    "b_up": (64,),
    "w_down": (10, 64),
    "b_down": (10,),
}


def models():
    """Return the models and batches of inputs, by name."""
    return {"classifier": text_line_classifier(), "dense": dense_layers()}
