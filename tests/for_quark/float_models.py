"""Float models to quantize: the text-line classifier of tests/models, and attention with dense layers."""

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser
from paths import MODELS as FOLDER


def text_line_classifier():
    with np.load(FOLDER / "textline_cls_expected.npz") as arrays:
        x = arrays["x"]
    return onnx.load(FOLDER / "textline_cls_float.onnx"), [{"x": each[None]} for each in x[:3]]


DENSE_LAYERS = """dense_layers (float[1, 16, 32] x) => (float[1, 10] y) {
    query = MatMul (x, w_query)  key = MatMul (x, w_key)  value = MatMul (x, w_value)
    key_t = Transpose <perm = [0, 2, 1]> (key)  products = MatMul (query, key_t)  shares = Softmax (products)
    mixed = MatMul (shares, value)  sum = Add (x, mixed)  normal = LayerNormalization (sum, scale, bias)
    up = MatMul (normal, w_up)  h = Add (up, b_up)
    h1 = Div (h, root)  h2 = Erf (h1)  h3 = Add (h2, one)  h4 = Mul (h, h3)  gelu = Mul (h4, half)
    mean = ReduceMean <keepdims = 0> (gelu, axes)  y = Gemm <transB = 1> (mean, w_down, b_down)
}"""


def dense_layers():
    random = np.random.default_rng(0)
    weights = {name: random.normal(0, 0.2, shape) for name, shape in SHAPES.items()}
    weights |= {"scale": random.normal(1, 0.1, 32), "root": np.array(2**0.5), "half": np.array(0.5), "one": np.array(1.0)}
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    initializers.append(numpy_helper.from_array(np.array([1]), "axes"))
    graph = parser.parse_graph(DENSE_LAYERS)
    graph.initializer.extend(initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model, [{"x": random.normal(0, 1, (1, 16, 32)).astype(np.float32)} for _ in range(3)]


SHAPES = {"w_query": (32, 32), "w_key": (32, 32), "w_value": (32, 32), "bias": (32,)}
SHAPES |= {"w_up": (32, 64), "b_up": (64,), "w_down": (10, 64), "b_down": (10,)}


def models():
    """Return the models and batches of inputs, by name."""
    return {"classifier": text_line_classifier(), "dense": dense_layers()}
