"""The pass `integers.groups`: groups of 8-bit nodes that become ONNX Runtime's integer operators, and what they compute."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import compose, helper
from onnx_models import model, parsed, session_options
from rewritten_models import assert_same_values, constant, exact_session, operators, pair

import quark_numba
from quark_numba import optimize
from quark_numba.declaration import Dequantize
from quark_numba.declaration.reasons import NotRewrittenError
from quark_numba.element_types import find
from quark_numba.models.model_files import Source
from quark_numba.ort import DISABLE_QUANT_QDQ, config_entry
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.integers import groups as integer_operators
from quark_numba.rewriting.integers.codes import known_codes
from quark_numba.rewriting.onnx_runtime import multiplies_exactly
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.session.build import get_or_build
from quark_numba.session.request import SessionRequest

pytestmark = pytest.mark.compiled

IMAGE, ROWS = (2, 6, 8, 8), (5, 24)


@pytest.fixture
def always(monkeypatch):
    """Every group is rewritten, whether that is faster or not."""
    monkeypatch.setattr(integer_operators, "_is_faster", lambda graph, group: True)


class Layers:
    """A model with quantized inputs and outputs around operators. Scales are powers of two, so that all results are exact, and
    many of them ties."""

    def __init__(self, activations="uint8", weights="int8", zero_points=(100, 37), opset=21):
        self.random = np.random.default_rng(3)
        self.activations, self.weights, self.opset = activations, weights, opset
        shift = 128 if activations == "int8" else 0
        self.zero_points = [each - shift for each in zero_points]
        self.nodes, self.constants, self.inputs = [], [], []

    def constant(self, name, values, dtype):
        self.constants.append(constant(name, values, dtype))
        return name

    def quantized(self, x, y, scale, zero_point):
        """Add a quantize and a dequantize node after x."""
        zero_point = self.constant(f"{y}_zero_point", zero_point, find(self.activations).dtype)
        self.nodes += pair(x, f"{y}_codes", y, [self.constant(f"{y}_scale", scale, np.float32), zero_point], domain="")
        return y

    def input(self, name, shape, scale=0.5):
        self.inputs.append((name, "float32", shape))
        return self.quantized(name, f"{name}_back", scale, self.zero_points[0])

    def weight(self, shape, axis=None, name="w", scales=(0.25, 0.125, 0.5), codes=None):
        if codes is None:
            codes = self.random.integers(-7, 8, shape) if "4" in self.weights else self.random.integers(-128, 128, shape)
        codes = (codes + (0 if self.weights.startswith("int") else -codes.min())).astype(find(self.weights).dtype)
        scale = np.resize(scales, shape[axis]) if axis is not None else scales[0]
        zeros = np.full(np.shape(scale), 5 if self.weights == "uint8" else 0)
        values = {"codes": (codes, codes.dtype), "scale": (scale, np.float32), "zero_point": (zeros, codes.dtype)}
        names = [self.constant(f"{name}_{key}", *value) for key, value in values.items()]
        self.nodes.append(helper.make_node("DequantizeLinear", names, [name], **({} if axis is None else {"axis": axis})))
        return name, scale

    def bias(self, scale, size):
        codes = self.random.integers(-900, 900, size)
        names = [self.constant("b_codes", codes, np.int32), self.constant("b_scale", np.float32(0.5) * scale, np.float32)]
        self.nodes.append(helper.make_node("DequantizeLinear", names, ["b"], **({"axis": 0} if np.ndim(scale) else {})))
        return "b"

    def put(self, operator, *inputs, y="v", **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [y], **attributes))
        return y

    def product(self):
        return self.put("MatMul", self.input("x", ROWS), self.weight((24, 9))[0])

    def rounded(self, x, scale, zero_point=None):
        """Return the model that gives x after a quantize and a dequantize node."""
        return self.model(self.quantized(x, "y", scale, self.zero_points[1] if zero_point is None else zero_point))

    def model(self, y):
        return model(self.nodes, self.inputs, [y], initializers=self.constants, domains=[], opset=self.opset)


def check(before, integer, integers="here"):
    """Check that a model becomes these operators, and gives what ONNX Runtime gives of it node by node."""
    own, after = (
        ("Quantize", "Dequantize", "QuantizeDequantizeLinear", "Constant"),
        rewrite_model(before, Settings(integers=integers)).model,
    )
    assert [name for name in operators(after) if name not in own] == [*integer]
    known = {each.name for each in (*after.graph.input, *after.graph.initializer)} | {""}
    for node in after.graph.node:
        assert known.issuperset(node.input)
        known.update(node.output)
    random = np.random.default_rng(4)
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in before.graph.input}
    feeds = {name: random.integers(-160, 161, shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    expected = exact_session(before, backend=None).run(None, feeds)
    for actual in (exact_session(after).run(None, feeds), quark_numba.InferenceSession(before).run(None, feeds)):
        for one, other in zip(actual, expected, strict=True):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)


ZERO_POINTS = [(100, 37), (0, 255), (129, 128)]


@pytest.mark.parametrize("zero_points", ZERO_POINTS)
@pytest.mark.parametrize("weights", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("axis", [None, 0, -4])
@pytest.mark.parametrize("group", [1, 6])
@pytest.mark.parametrize("integers", ["here", "anywhere"])
@pytest.mark.covering
def test_conv(always, integers, group, axis, activations, weights, zero_points):
    layers = Layers(activations, weights, zero_points)
    w, scale = layers.weight((12, 6 // group, 3, 3), axis)
    inputs = [layers.input("x", IMAGE), w, layers.bias(scale, 12)]
    v = layers.put("Conv", *inputs, group=group, pads=[1, 0, 2, 1], strides=[1, 2], dilations=[2, 1])
    check(layers.rounded(v, 64), ["QLinearConv"], integers=integers)


@pytest.mark.parametrize("zero_points", ZERO_POINTS)
@pytest.mark.parametrize("weights", ["int8", "uint8", "int4"])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("has_axis", [False, True])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "transB", "Transpose"])
@pytest.mark.parametrize("integers", ["here", "anywhere"])
@pytest.mark.covering
def test_products_of_matrices(always, integers, kind, has_axis, activations, weights, zero_points):
    layers = Layers(activations, weights, zero_points)
    turned = kind in ("transB", "Transpose")
    w, scale = layers.weight((9, 24) if turned else (24, 9), (0 if turned else 1) if has_axis else None)
    if kind == "Transpose":
        w = layers.put("Transpose", w, y="turned")
    inputs = [layers.input("x", ROWS), w]
    if kind in ("Gemm", "transB"):
        v = layers.put("Gemm", *inputs, layers.bias(scale, 9), transB=int(turned))
    else:
        v = layers.put("MatMul", *inputs)
    integer = ["QLinearMatMul"] if kind in ("MatMul", "Transpose") else ["QGemm"]
    check(layers.rounded(v, 32), [*["Transpose"] * (kind == "Transpose"), *integer], integers=integers)


@pytest.mark.parametrize("zero_points", ZERO_POINTS)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("kind", ["MatMul", "Add", "Mul", "Concat"])
@pytest.mark.by_default(2)
def test_two_activations(always, kind, activations, zero_points):
    """QLinearAdd and QLinearMul round ties in another way if the zero point of the output is odd, so that they are not used."""
    layers = Layers(activations, zero_points=zero_points)
    shapes = {"x": (2, 6, 8, 8), "x2": (8, 8)} if kind in ("Add", "Mul") else {"x": IMAGE, "x2": IMAGE}
    inputs = [layers.input(name, shape, scale) for (name, shape), scale in zip(shapes.items(), (0.5, 0.25), strict=True)]
    v = layers.put(kind, *inputs, **({"axis": 1} if kind == "Concat" else {}))
    of_y = {"MatMul": 32, "Add": 1, "Mul": 8, "Concat": 1}[kind]
    has_ties = kind in ("Add", "Mul") and zero_points[1] % 2
    # The smaller input is a region of its own.
    check(layers.rounded(v, of_y), ["Region", "Region"] if has_ties else [f"QLinear{kind}"])


@pytest.mark.parametrize("zero_points", ZERO_POINTS)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("divisor", "is_integer"),
    [(4, True), ([8], True), (12, False), (6.1, True), (-4, False), (0, False), ([[[[[4]]]]], False), ([4, 2] * 4, False)],
)
@pytest.mark.by_default(2)
def test_division(always, divisor, is_integer, activations, zero_points):
    """A division by a constant becomes QLinearMul with its reciprocal, unless that is inexact and there are ties."""
    layers = Layers(activations, zero_points=zero_points)
    v = layers.put("Div", layers.input("x", IMAGE), layers.constant("divisor", divisor, np.float32))
    is_integer &= divisor == 6.1 or not zero_points[1] % 2
    check(layers.rounded(v, 0.25), ["QLinearMul" if is_integer else "Region"])


@pytest.mark.parametrize("zero_points", ZERO_POINTS)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("kind", ["GlobalAveragePool", "AveragePool", "MaxPool", "Reshape", "Transpose"])
@pytest.mark.by_default(3)
def test_one_activation(always, kind, activations, zero_points):
    layers = Layers(activations, zero_points=(zero_points[0], zero_points[0]))
    inputs, attributes = [layers.input("x", IMAGE, 0.5)], {}
    if kind in ("AveragePool", "MaxPool"):
        attributes = {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}
    if kind == "Reshape":
        inputs.append(layers.constant("shape", [2, -1], np.int64))
    v = layers.put(kind, *inputs, **attributes)
    # QLinearAveragePool rounds ties in another way if the zero point of the output is odd.
    integer = "QLinearGlobalAveragePool" if kind == "GlobalAveragePool" else "QLinearAveragePool" if "Average" in kind else kind
    check(
        layers.rounded(v, 0.25 if "Average" in kind else 0.5),
        ["AveragePool"] if kind == "AveragePool" and zero_points[0] % 2 else [integer],
    )


@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("clips", "zero_point", "is_clipped"),
    [
        ([("Relu", None)], 0, False),
        ([("Relu", None)], 77, True),
        ([("Clip", (0, 6))], 0, True),
        ([("Clip", (-1e9, 6)), ("Relu", None)], 128, True),
        ([("Clip", (-9000, 9000))], 128, False),
    ],
)
@pytest.mark.by_default(5)
def test_clips_of_codes(always, clips, zero_point, is_clipped, activations):
    layers = Layers(activations, zero_points=(100, zero_point))
    v = layers.product()
    for number, (kind, bounds) in enumerate(clips):
        names = [layers.constant(f"bound{number}_{each}", each, np.float32) for each in bounds or ()]
        v = layers.put(kind, v, *names, y=f"v{number}")
    check(layers.rounded(v, 2), ["QLinearMatMul", *["Clip"] * is_clipped])


def test_a_group_of_int8_becomes_uint8(always):
    """Of the quantization nodes, only those at the borders of the group are left."""
    layers = Layers("int8")
    x = layers.input("x", IMAGE)
    y = layers.quantized(layers.put("Conv", x, layers.weight((6, 6, 1, 1))[0]), "y", 64, 0)
    t = layers.quantized(layers.put("Transpose", y, y="t0", perm=[0, 2, 3, 1]), "t", 64, 0)
    u = layers.quantized(layers.put("Mul", t, t, y="u0"), "u", 64 * 64, 12)
    z = layers.put("Softmax", u, y="z")
    before = layers.model(z)
    after = rewrite_model(before, Settings(integers="here")).model
    assert operators(after) == ["Quantize", "QLinearConv", "Transpose", "QLinearMul", "Dequantize", "Softmax"]
    assert {each.data_type for each in after.graph.initializer if "zero_point" in each.name} == {onnx.TensorProto.UINT8, 3}
    feeds = {"x": np.random.default_rng(5).integers(-64, 64, IMAGE).astype(np.float32)}
    np.testing.assert_allclose(
        quark_numba.InferenceSession(before).run(None, feeds)[0], exact_session(before).run(None, feeds)[0], 1e-6
    )


def test_codes_that_the_model_shows_keep_their_type(always):
    for name, integer in [("int8", "MatMul"), ("uint8", "QLinearMatMul")]:
        layers = Layers(name)
        layers.quantized(layers.product(), "y", 2, 3)
        before = layers.model("y")
        before.graph.output.append(helper.make_tensor_value_info("y_codes", find(name).number, None))
        check(before, [integer])


def _of_matmul(bias=(0.25, 0.125, 0.5), zero_points=None, scale=None, **attributes):
    """Return a model of a product whose parts are changed: the scale or the zero points of the weights, or the bias."""
    layers = Layers()
    w, _ = layers.weight((24, 9), 1)
    b = layers.bias(np.resize(bias, 9).astype(np.float32), 9)
    constants = {each.name: each for each in layers.constants}
    if zero_points:
        constants["w_zero_point"].CopyFrom(constant("w_zero_point", zero_points, np.int8))
    if scale:
        constants["w_scale"].CopyFrom(constant("w_scale", np.full(9, scale), np.float32))
    x = layers.input("x", ROWS[::-1] if attributes.get("transA") else ROWS)
    v = layers.put("Gemm", x, w, b, **attributes)
    return layers.rounded(v, 2, 100)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"bias": [0.5]}, "the scale of its bias is not that of its products"),
        ({"zero_points": [*range(9)]}, "its zero points differ"),
        ({"scale": 2.0**-60}, "its scale is extreme"),
        ({"alpha": 2.0}, "it scales its products"),
        ({"beta": 2.0}, "it scales its products"),
        ({"transA": 1}, "transA is set"),
    ],
    ids=str,
)
def test_what_integer_operators_do_not_give(always, caplog, changed, why):
    with caplog.at_level("DEBUG", "quark_numba.rewriting"):
        check(_of_matmul(**changed), ["Gemm"])
    assert f"does not become an integer operator: {why}" in caplog.text


class Known(NamedTuple):
    array: np.ndarray | None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"element_type": find("int16")}, "its codes are not integers of at most 8 bits"),
        ({"element_type": find("float8e4m3fn")}, "its codes are not integers of at most 8 bits"),
        ({"block_size": 2}, "its scales are blocked"),
        ({"computes_in": find("float16")}, "it computes in a type other than float32"),
        ({"scale": Known(None)}, "its scale is not constant, or empty"),
        ({"scale": Known(np.ones(2, np.float16))}, "its scale is not a scalar or vector of float32"),
        ({"scale": Known(np.ones((1, 2), np.float32))}, "its scale is not a scalar or vector of float32"),
        (
            {"zero_point": Known(np.zeros(3, np.int8))},
            "its zero points are not constant, or their shape is not that of its scale",
        ),
        ({"zero_point": Known(np.array([0, 1], np.int8))}, "its zero points differ"),
        ({"scale": Known(np.array([1, 2.0**41], np.float32))}, "its scale is extreme"),
    ],
)
def test_codes_that_integer_operators_do_not_take(changed, why):
    scale, zero_point = Known(np.ones(2, np.float32)), Known(np.zeros(2, np.int8))
    meaning = Dequantize(Known(None), scale, zero_point, find("int8"), 1, 0, True, None)
    assert known_codes(meaning).zero_point == 0
    with pytest.raises(NotRewrittenError) as caught:
        known_codes(replace(meaning, **changed))
    assert caught.value.reason == why


def test_sums_of_no_products(always):
    """ONNX Runtime's integer operators leave the memory of the output as it is."""
    for kind in ("MatMul", "Gemm"):
        layers = Layers()
        v = layers.put(kind, layers.input("x", (5, 0)), layers.weight((0, 9))[0])
        check(layers.rounded(v, 2, 100), [kind])


@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
def test_scales_along_the_other_axis(always, kind):
    """All scales are the same, but each input has one."""
    layers = Layers()
    shape, x = ((8, 6, 1, 1), IMAGE) if kind == "Conv" else ((24, 9), ROWS)
    w, scale = layers.weight(shape, axis=1 if kind == "Conv" else 0, scales=[0.25])
    v = layers.put(kind, layers.input("x", x), w, layers.bias(scale[0], 8 if kind == "Conv" else 9))
    integer = ["Region", "Conv", "Region"] if kind == "Conv" else [kind]
    check(layers.rounded(v, 64, 100), integer)


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_nodes_in_any_order(always, activations):
    """Constants are nodes in front of the quantize node that uses them; ONNX Runtime takes nodes in any order."""
    layers = Layers(activations)
    y = layers.quantized(layers.product(), "y", 2, 3)
    z = layers.quantized(layers.put("MatMul", y, layers.weight((9, 7), name="w2")[0], y="v2"), "z", 64, 3)
    before = layers.model(z)
    for name in ("y_scale", "y_zero_point", "z_scale", "z_zero_point"):
        (tensor,) = [each for each in before.graph.initializer if each.name == name]
        before.graph.initializer.remove(tensor)
        place = next(k for k, each in enumerate(before.graph.node) if name in each.input)
        before.graph.node.insert(place, helper.make_node("Constant", [], [name], value=tensor))
    before.graph.value_info.extend(onnx.shape_inference.infer_shapes(before).graph.value_info)
    kept = ["QLinearMatMul", "QLinearMatMul"]
    check(before, kept)
    for last in range(2):
        nodes = [*before.graph.node]
        nodes.insert(0, nodes.pop(-1 - last))
        del before.graph.node[:]
        before.graph.node.extend(nodes)
    check(before, kept)


def test_long_chains_of_moves(always):
    layers = Layers()
    y = layers.quantized(layers.product(), "y", 2, 3)
    for number in range(1100):
        y = layers.put("Identity", y, y=f"moved{number}")
    assert "QLinearMatMul" in operators(optimize(layers.model(y)))


def test_attributes_that_the_integer_operator_lacks(always):
    layers = Layers()
    v = layers.put("AveragePool", layers.input("x", IMAGE), kernel_shape=[2, 2], dilations=[1, 1], ceil_mode=0)
    check(layers.rounded(v, 0.5, 100), ["QLinearAveragePool"])
    layers = Layers()
    v = layers.put("Gemm", layers.input("x", ROWS), layers.weight((9, 24))[0], transB=2)
    check(layers.rounded(v, 2, 100), ["QGemm"])


def test_sums_that_do_not_fit(always):
    layers = Layers()
    v = layers.put("MatMul", layers.input("x", (1, 1 << 15)), layers.weight((1 << 15, 2))[0])
    before = layers.rounded(v, 2, 100)
    assert "QLinearMatMul" not in operators(rewrite_model(before).model)


@pytest.mark.parametrize("largest", [64, 65])
def test_weights_have_int8_where_products_are_exact(always, largest):
    """Without VNNI, ONNX Runtime adds two products of uint8 and int8 in 16 bits."""
    for integers in ("here", "anywhere"):
        layers = Layers()
        layers.weight((24, 9))
        codes = np.full((24, 9), -largest, np.int8)
        layers.constants[0].CopyFrom(constant("w_codes", codes))
        before = layers.rounded(layers.put("MatMul", layers.input("x", ROWS), "w"), 64, 100)
        after = rewrite_model(before, Settings(integers=integers)).model
        (node,) = [each for each in after.graph.node if each.op_type == "QLinearMatMul"]
        (weights,) = [each for each in after.graph.initializer if each.name == node.input[3]]
        is_exact = largest == 64 or (integers == "here" and multiplies_exactly())
        assert weights.data_type == (onnx.TensorProto.INT8 if is_exact else onnx.TensorProto.UINT8)
        check(before, ["QLinearMatMul"], integers=integers)


def test_results_differ_by_one_code_beside_ties_alone(always):
    """With any scales, integer operators and the specification differ only where the exact result is nearly a tie."""
    random = np.random.default_rng(6)
    for _ in range(20):
        layers = Layers(zero_points=(int(random.integers(256)), int(random.integers(256))))
        scale = np.float32(random.uniform(0.01, 0.1))
        w, of_w = layers.weight((24, 9), 1, scales=random.uniform(0.01, 0.1, 9))
        of_y = np.float32(random.uniform(0.05, 0.2))
        v = layers.put("MatMul", layers.input("x", (500, 24), scale), w)
        before = layers.rounded(v, of_y)
        x = random.normal(0, 2, (500, 24)).astype(np.float32)
        (y,) = exact_session(rewrite_model(before, Settings(integers="here")).model).run(None, {"x": x})
        codes = {each.name: each for each in layers.constants}
        weights = onnx.numpy_helper.to_array(codes["w_codes"]).astype(np.float64) * of_w.astype(np.float32).astype(np.float64)
        steps = (np.rint(x / scale) + layers.zero_points[0]).clip(0, 255) - layers.zero_points[0]
        exact = (steps * np.float64(scale)) @ weights / np.float64(of_y)
        expected = (np.rint(exact) + layers.zero_points[1]).clip(0, 255) - layers.zero_points[1]
        away = np.abs(np.abs(exact - np.floor(exact)) - 0.5) > 1e-3
        assert np.array_equal((y / of_y).round()[away], expected[away])
        assert np.abs((y / of_y).round() - expected).max() <= 1


# Which groups are faster.


def layers(kinds, element_type="uint8", shape=(4, 64)):
    """Return a model of layers of MatMul, Mul, Erf or Conv between pairs of quantize and dequantize nodes."""
    made, bits = Layers(element_type), find(element_type).bits
    made.zero_points, scale = [0 if element_type.startswith("int") else 2 ** (bits - 1)], 16 / 2**bits
    x = made.input("x", shape, scale)
    for number, kind in enumerate(kinds):
        inputs, attributes = [x], {"pads": [1] * 4} if kind == "Conv" else {}
        if kind in ("MatMul", "Conv"):
            codes = made.random.integers(0, 4, (shape[1], shape[1], *([3, 3] if kind == "Conv" else [])))
            inputs.append(made.weight(codes.shape, name=f"w{number}", scales=[0.01], codes=codes)[0])
        elif kind == "Mul":
            inputs.append(x)
        y = made.put(kind, *inputs, y=f"v{number}", **attributes)
        x = made.quantized(y, f"y{number}", scale, made.zero_points[0])
    return made.model((x, "float32", shape))


IMAGES = (1, 8, 12, 12)


@pytest.mark.parametrize(
    ("kinds", "element_type", "shape", "integer"),
    [
        (["MatMul"] * 3, "uint8", (4, 64), "QLinearMatMul"),
        (["MatMul"] * 3, "int8", (4, 64), "QLinearMatMul"),
        (["MatMul"] * 3, "uint16", (4, 64), ""),
        (["MatMul"] * 3, "float8e4m3fn", (4, 64), ""),
        (["Conv", "Mul", "Mul"], "uint8", IMAGES, ""),
        (["Conv", "Conv"], "uint8", (1, 64, 12, 12), "QLinearConv"),
        (["Erf", "Erf"], "uint8", (4, 64), ""),
    ],
)
@pytest.mark.by_default(1)
def test_what_is_faster_on_integers(kinds, element_type, shape, integer):
    before = layers(kinds, element_type, shape)
    after = rewrite_model(before).model
    assert operators(after).count(integer) == (len(kinds) if integer else 0)
    x = np.random.default_rng(52).normal(0, 1, shape).astype(np.float32)
    if not integer:
        assert_same_values(before, after, {"x": x}, qdq="float")


def test_groups_are_rewritten_by_themselves():
    """Products of matrices become integer operators, and 16-bit nodes beside them regions."""
    before, others = layers(["MatMul"] * 3), layers(["Mul"], "uint16")
    joined = compose.merge_models(
        before, compose.add_prefix(others, "wide_"), io_map=[(before.graph.output[0].name, "wide_x")], outputs=["wide_y0"]
    )
    kinds = operators(optimize(joined))
    assert kinds == ["Quantize", *["QLinearMatMul"] * 3, "Dequantize", "Region"]
    x = np.random.default_rng(53).normal(0, 1, (4, 64)).astype(np.float32)
    (y,), (expected,) = (each.run(None, {"x": x}) for each in (quark_numba.InferenceSession(joined), exact_session(joined)))
    np.testing.assert_allclose(y, expected, rtol=0, atol=0.0625 + 1e-3)  # a step of 8 bits


def test_unknown_shapes():
    """Some dimensions are unknown, and some models say -1 there."""
    for name in ("batch", -1):
        for kinds, shape, is_faster in [(["MatMul"] * 4, (4, 64), True), (["Conv", "Mul", "Mul"], IMAGES, False)]:
            before = layers(kinds, shape=shape)
            for dimension in (before.graph.input[0].type.tensor_type.shape.dim[index] for index in {0, len(shape) - 2} - {1}):
                dimension.Clear()
                setattr(dimension, "dim_value" if name == -1 else "dim_param", name)
            assert any(each.startswith("QLinear") for each in operators(optimize(before))) is is_faster


def test_subgraphs():
    inner = onnx.shape_inference.infer_shapes(layers(["MatMul"] * 2)).graph
    branch = helper.make_graph(inner.node, "branch", [], inner.output, inner.initializer, value_info=inner.value_info)
    same = helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, None)
    plain = helper.make_graph(parsed("same = Identity (x)"), "plain", [], [same])
    node = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=plain)
    before = model([node], [("condition", "bool", []), ("x", "float32", (4, 64))], [("y", "float32", None)], domains=[])
    after = optimize(before)
    (attribute,) = [each for each in after.graph.node[0].attribute if each.name == "then_branch"]
    assert [each.op_type for each in attribute.g.node] == ["Quantize", "QLinearMatMul", "QLinearMatMul", "Dequantize"]
    feeds = {"condition": np.array(True), "x": np.random.default_rng(54).normal(0, 1, (4, 64)).astype(np.float32)}
    (y,), (expected,) = (each.run(None, feeds) for each in (quark_numba.InferenceSession(before), exact_session(before)))
    np.testing.assert_allclose(y, expected, rtol=0, atol=0.07)


@pytest.mark.parametrize("level", ["DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"])
@pytest.mark.parametrize("disabled", [False, True])
def test_sessions_without_integer_operators(level, disabled):
    options = session_options(level)
    if disabled:
        options.add_session_config_entry(DISABLE_QUANT_QDQ, "1")
    with get_or_build(SessionRequest(None, options), Source(layers(["MatMul"]))) as made:
        has_integers = not disabled and level in ("ENABLE_EXTENDED", "ENABLE_ALL")
        assert ("QLinearMatMul" in operators(onnx.load_from_string(made.source))) is has_integers


def test_the_options_stay():
    options = onnxruntime.SessionOptions()
    quark_numba.InferenceSession(layers(["MatMul"]), options)
    assert config_entry(options, DISABLE_QUANT_QDQ) is None
