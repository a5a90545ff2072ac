"""The passes `fake_quantizers` and `clips`: nodes of other quantizers become nodes and steps of fake quantization with the same
values."""

import itertools
import re

import numpy as np
import onnx
import other_quantizers
import pytest
from onnx import helper
from onnx_models import model
from rewritten_models import assert_rewritten, assert_same_values, constant, floats, operators, pair

from quark_numba import optimize
from quark_numba.fake_quantization.key import CASTS, FORMS, ROUNDING_MODES
from quark_numba.rewriting.clips import FUSED
from quark_numba.rewriting.fake_quantizers import REWRITTEN
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled

QONNX, MCT, OPENVINO = "qonnx.custom_op.general", "mct_quantizers", "org.openvinotoolkit"
SHAPE = (2, 5, 3, 7)
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38, -3.4e38, 0.125, -0.125, 0.375, -0.375, 1e-39]
X = np.random.default_rng(30).normal(0, 3, SHAPE).astype(np.float32)
X.reshape(-1)[: len(SPECIAL)] = SPECIAL
INPUTS, FEEDS = [("x", "float32", SHAPE)], {"x": X}

# By form: an operator of a dialect, its inputs besides x, and its attributes. Scales are multiplied by shapes that broadcast.
NODES = {
    "integer": ("Quant", QONNX, {"scale": 0.25, "zero_point": 1.5, "bit_width": 5.0}, {"signed": 1, "narrow": 1}),
    "bipolar": ("BipolarQuant", QONNX, {"scale": 0.3}, {}),
    "truncation": (
        "Trunc",
        QONNX,
        {"scale": 0.01, "zero_point": 0.0, "in_bits": 12.0, "out_scale": 0.083, "out_bits": 6.0},
        {"signed": 1, "narrow": 0},
    ),
    "minifloat": (
        "FloatQuant",
        QONNX,
        {"scale": 0.07, "exponent_bits": 4.0, "mantissa_bits": 3.0, "exponent_bias": 7.0, "max_val": 448.0},
        {"has_inf": 0, "has_nan": 0, "has_subnormal": 1, "saturation": 1},
    ),
    "threshold": ("ActivationSymmetricQuantizer", MCT, {}, {"threshold": 3.7, "num_bits": 6, "signed": 1}),
    "range": (
        "WeightsUniformQuantizer",
        MCT,
        {"min_range": -1.7, "max_range": 2.9},
        {"num_bits": 5, "per_channel": 0, "channel_axis": 1, "signed": 1},
    ),
    "levels": (
        "FakeQuantize",
        OPENVINO,
        {"input_low": -1.7, "input_high": 2.9, "output_low": -1.5, "output_high": 3.0},
        {"levels": 255},
    ),
    "offset range": ("ActivationUniformQuantizer", MCT, {}, {"min_range": -1.7, "max_range": 2.9, "num_bits": 7}),
}
CASES = [
    (form, mode, shape)
    for form, mode in itertools.product(NODES, ROUNDING_MODES)
    for shape in ((), (5, 1, 1), (7,), (2, 1, 1, 1), (2, 1, 3, 1))
    if (FORMS[form].has_modes or mode == "ROUND") and ("scale" in NODES[form][2] or not shape)
]


def node(form, mode, shape, x="a", y="b"):
    """Return a node of a form, and its constants."""
    name, domain, inputs, attributes = NODES[form]
    if FORMS[form].has_modes:
        attributes = attributes | {"rounding_mode": mode}
    rng = np.random.default_rng(31)
    values = {each: value * (rng.choice([0.5, 1, 2], shape) if "scale" in each else 1) for each, value in inputs.items()}
    return helper.make_node(name, [x, *inputs], [y], domain=domain, **attributes), floats(**values)


@pytest.mark.parametrize(("form", "mode", "shape"), CASES)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_a_node_becomes_a_step(form, mode, shape):
    """Parameters of every shape that broadcasts to x. The values before and after the node are those of the model as
    written."""
    quantizer, constants = node(form, mode, shape)
    nodes = ["a = HardSwish (x)", quantizer, "y = Abs (b)"]
    before = model(nodes, INPUTS, ["y"], initializers=constants, opset=17)
    assert_rewritten(before, ["Region"], FEEDS)
    quantizer, _ = node(form, mode, shape, "x", "y")
    alone = model([quantizer], INPUTS, ["y"], initializers=constants)
    result = rewrite_model(alone)
    assert [what for _, what in result.done] == [REWRITTEN]
    assert_same_values(alone, result.model, FEEDS)


def test_every_form_is_tried():
    assert set(NODES) | {"codes", *CASTS} == set(FORMS)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"bit_width": 4.5}, "not valid: the format has .*bit_width 4.5.*; expected a bit width that is a whole number"),
        ({"bit_width": [4, 8]}, r"not valid: bit_width has shape \(2,\); expected one element"),
        ({"scale": np.ones((1, 1, 1, 1, 2))}, "not valid: its scales have more dimensions than its x"),
        ({"scale": None}, "its scale is not a constant"),
    ],
)
def test_nodes_that_stay(changed, why):
    values = {"scale": 0.25, "zero_point": 0.0, "bit_width": 4.0} | changed
    quantizer = f'y = {QONNX}.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, scale, zero_point, bit_width)'
    inputs = [*INPUTS, *([] if values["scale"] is not None else [("scale", "float32", [])])]
    constants = floats(**{name: value for name, value in values.items() if value is not None})
    result = rewrite_model(model([quantizer], inputs, ["y"], initializers=constants))
    ((_, reason),) = result.left
    assert re.match(why, reason), reason
    assert operators(result.model) == ["Quant"]


def clipped(dtype=np.int8, scale=(), bounds=(-8, 7), opset=17, zero_point=0, axis=1):
    """Return a model of a pair with a Clip between."""
    values = {"scale": np.full(scale, 0.21, np.float32), "zero_point": np.full(scale, zero_point, dtype)}
    limits = {name: np.array(each, dtype) for name, each in zip(("low", "high"), bounds, strict=True) if each is not None}
    quantize, dequantize = pair(domain="", **({"axis": axis} if scale else {}))
    dequantize.input[0] = "clipped"
    low, high = (name if name in limits else '""' for name in ("low", "high"))
    constants = [constant(name, each) for name, each in (values | limits).items()]
    nodes = [quantize, f"clipped = Clip (codes, {low}, {high})", dequantize, "z = Add (y, x)"]
    return model(nodes, INPUTS, ["z"], initializers=constants, opset=opset)


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize(
    ("dtype", "bounds", "zero_point"),
    [
        (np.int8, (-8, 7), 0),
        (np.uint8, (3, 250), 128),
        (np.int8, (None, 5), -3),
        (np.int8, (-7, None), 0),
        (np.int8, (5, -5), 0),
    ],
)
@pytest.mark.parametrize("scale", [(), (5,)])
@pytest.mark.by_default(2)
def test_clips_of_codes(dtype, bounds, zero_point, scale, opset):
    before = clipped(dtype, scale, bounds, opset, zero_point)
    result = assert_rewritten(before, ["Region"], FEEDS, qdq="float", session_qdq="float")
    assert [what for _, what in result.done if what == FUSED] == [FUSED] * 3


def test_clips_that_stay():
    """Codes with another user, bounds that are not constants, and models whose operators ONNX Runtime fuses."""
    other_user = clipped()
    other_user.graph.output.append(helper.make_tensor_value_info("codes", onnx.TensorProto.INT8, None))
    no_constant = clipped()
    no_constant.graph.initializer.remove(next(each for each in no_constant.graph.initializer if each.name == "low"))
    no_constant.graph.input.append(helper.make_tensor_value_info("low", onnx.TensorProto.INT8, []))
    for before in (other_user, no_constant):
        result = rewrite_model(before, Settings(qdq="float"))
        assert "Clip" in operators(result.model)
        assert_same_values(before, result.model, {**FEEDS, "low": np.int8(-3)}, qdq="float")
    assert "Clip" in operators(optimize(clipped(), qdq="onnxruntime"))


def test_a_clip_between_nodes_with_an_axis_that_x_lacks():
    result = rewrite_model(clipped(scale=(5,), axis=7), Settings(qdq="float"))
    assert "Clip" in operators(result.model)
    assert any("not valid: the axis of the parameters is 7" in reason for _, reason in result.left)


@pytest.mark.parametrize("path", other_quantizers.models_of("qonnx", "mct"), ids=lambda path: path.stem)
@pytest.mark.parametrize("qdq", ["auto", "float"])
@pytest.mark.by_default(1, slow=20)
def test_models_of_other_quantizers(path, qdq):
    """All values of a model stay, and its inputs, unless the initializers among them are to become constants. With
    `qdq="onnxruntime"` a model stays as it is if ONNX's own operators quantize activations in it."""
    if qdq == "float" and "qcdq" not in path.stem:
        pytest.skip("it has no operators of ONNX to take over")
    feeds, _ = other_quantizers.expectation(path)
    before = onnx.load(path)
    held = {each.name: onnx.numpy_helper.to_array(each) for each in before.graph.initializer}
    for keep in (True, False):
        result = rewrite_model(path, Settings(qdq=qdq, keep_initializers_as_inputs=keep))
        inputs = [each.name for each in (before if keep else result.model).graph.input]
        assert [each.name for each in result.model.graph.input] == inputs
        assert keep or inputs == [*feeds]
        assert_same_values(before, result.model, held | feeds, qdq=qdq)
    if "qcdq" in path.stem:
        assert rewrite_model(path, Settings(qdq="onnxruntime")).model.graph.input == before.graph.input


def test_single_steps_beside_convolutions_are_regions():
    """Only regions can lie in the layout of convolutions."""
    optimized_model = optimize(other_quantizers.MODELS / "qonnx/float_e4m3.onnx", keep_initializers_as_inputs=False)
    assert [node.op_type for node in optimized_model.graph.node if node.domain] == ["Region"] * 3


@pytest.mark.parametrize("levels", [2**24, 2**24 + 1])
def test_levels_that_are_no_float32(levels):
    """The node subtracts 1 from the whole number before it rounds."""
    limits = dict(zip("abcd", (-1e7, 1e7, -1e7, 1e7), strict=True))
    node = helper.make_node("FakeQuantize", ["x", *limits], ["y"], domain="org.openvinotoolkit", levels=levels)
    source = model([node], [("x", "float32", [9])], ["y"], initializers=floats(**limits), domains=["org.openvinotoolkit"])
    stays = "its levels cannot be a float32" in {why for _, why in rewrite_model(source).left}
    assert stays == (levels > 2**24)
