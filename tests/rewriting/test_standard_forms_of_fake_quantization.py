"""The standard forms of fake quantization, in sessions without the package: against the oracles of the dialects' operators, and
against the kernels."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import samples
from fake_quantization_nodes import QONNX, f32, random_node, values
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model, session
from oracle import assert_same_bits
from rewritten_models import floats
from standard_models import LEVELS, in_standard_operators, plain_session

from quark_numba.catalog import OPERATORS
from quark_numba.fake_quantization.key import CASTS, FORMS, ROUNDING_MODES
from quark_numba.fake_quantization.operators import FAKE_QUANTIZE
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled

# Every operator of the family, but for the package's own and those with the same kernels under older names.
OF_DIALECTS = [each for each in OPERATORS if each.family == "fake_quantization" and not each.newer_name]
OF_DIALECTS.remove(FAKE_QUANTIZE)

# Parameters of each form, some for each channel of an x of shape (2, 5, 3, 7).
CHANNELS = np.array([0.3, 2.0**-7, 1, 1e20, -0.011], f32).reshape(5, 1, 1)
POSITIVE = abs(CHANNELS)
PARAMETERS = {
    "integer": [
        {"scale": 0.25, "zero_point": 0, "bit_width": 4, "signed": 1, "narrow": 0},
        {"scale": 0.1, "zero_point": -0.0, "bit_width": 8, "signed": 0, "narrow": 1},
        {"scale": 1, "zero_point": 0, "bit_width": 2, "signed": 0, "narrow": 0},
        {"scale": 1, "zero_point": 0, "bit_width": 33, "signed": 1, "narrow": 0},
        {"scale": CHANNELS, "zero_point": 0, "bit_width": 8, "signed": 1, "narrow": 1},
        {"scale": CHANNELS, "zero_point": CHANNELS[::-1] * 0, "bit_width": 3, "signed": 1, "narrow": 0},
        {"scale": 0.3, "zero_point": 1.5, "bit_width": 64, "signed": 0, "narrow": 0},
        {"scale": CHANNELS, "zero_point": 0.3, "bit_width": 1, "signed": 1, "narrow": 0},
        {"scale": 1e-40, "zero_point": 0, "bit_width": 1, "signed": 1, "narrow": 1},
    ],
    "codes": [
        {"scale": 0.1, "low": -128, "high": 127},
        {"scale": 1, "low": 0, "high": 255},
        {"scale": CHANNELS, "low": -(2.0**31), "high": 2.0**31},
        {"scale": 0.25, "low": -0.3, "high": 0.7},
        {"scale": 1e-45, "low": -0.3, "high": 3},
        {"scale": POSITIVE, "low": np.arange(-2, 3, dtype=f32).reshape(5, 1, 1), "high": 3},
    ],
    "bipolar": [{"scale": 0.3}, {"scale": CHANNELS}, {"scale": np.array([0, -0.0, 1, -3, np.nan], f32).reshape(5, 1, 1)}],
    "truncation": [
        {"scale": 0.01, "zero_point": 0, "in_bits": 12, "out_scale": np.nan, "out_bits": 6, "signed": 1, "narrow": 0},
        {"scale": CHANNELS, "zero_point": 3, "in_bits": 8, "out_scale": CHANNELS * 4, "out_bits": 4, "signed": 0, "narrow": 0},
        {"scale": 1, "zero_point": 0, "in_bits": 8, "out_scale": 2, "out_bits": 8, "signed": 1, "narrow": 1},
    ],
    "minifloat": [
        dict(zip(FORMS["minifloat"].parameters, given, strict=True))
        for given in (
            (0.07, 4, 3, 7, 448, 0, 0, 1),
            (CHANNELS, 5, 2, 15, 57344, 1, 1, 1),
            (1, 2, 1, 1, 6, 0, 0, 1),
            (0.5, 3, 2, 3, 3.3, 0, 0, 1),
            (1, 4, 3, 7, 448, 1, 0, 0),
            (-1, 4, 3, 7, 448, 0, 1, 0),
            (1, 8, 7, 127, np.inf, 1, 0, 1),
            (0.3, 8, 10, 124, 3.5, 1, 0, 0),
            (CHANNELS, 8, 23, 127, 1e30, 0, 0, 1),
            (1, 5, 10, 15, 0, 0, 0, 1),
            (2, 6, 4, 100, 1, 0, 0, 1),
        )
    ],
    "threshold": [
        {"threshold": 3.7, "bit_width": 6, "signed": 1},
        {"threshold": 4, "bit_width": 8, "signed": 0},
        {"threshold": POSITIVE, "bit_width": 3, "signed": 0},
        {"threshold": POSITIVE, "bit_width": 16, "signed": 1},
    ],
    "range": [
        {"min": -1.7, "max": 2.9, "bit_width": 5},
        {"min": 0, "max": 4, "bit_width": 2},
        {"min": -3, "max": -1, "bit_width": 8},
        {"min": np.array([-1, 0, -3, 0.2, -1e20], f32).reshape(5, 1, 1), "max": 3, "bit_width": 4},
        {"min": -3, "max": np.array([1, 0, -1, 0.2, 1e20], f32).reshape(5, 1, 1), "bit_width": 4},
    ],
    "levels": [
        dict(zip(FORMS["levels"].parameters, given, strict=True))
        for given in (
            (-1.7, 2.9, -1.7, 2.9, 255),
            (0, 4, 0, 4, 5),
            (-1, 1, -0.3, 0.7, 16),
            (2, -2, -2, 2, 9),
            (1, 1, 0, 3, 2),
            (-POSITIVE, POSITIVE, -POSITIVE, POSITIVE, 256),
            (-0.0, POSITIVE, -0.0, POSITIVE, 256),
            (-POSITIVE, -0.0, -POSITIVE, -0.0, 16),
            (-POSITIVE, POSITIVE, -0.0, 0, 4),
        )
    ],
    "offset range": [
        {"min": -1.7, "max": 2.9, "bit_width": 7},
        {"min": 0, "max": 1, "bit_width": 4},
        {"min": -3, "max": -1, "bit_width": 8},
        {"min": -POSITIVE, "max": POSITIVE, "bit_width": 3},
    ],
    **{form: [{}] for form in CASTS},
}
SHAPE = (2, 5, 3, 7)
MODES = [
    (form, mode) for form in FORMS for mode in (ROUNDING_MODES if FORMS[form].has_modes and form != "bipolar" else ["ROUND"])
]


def x_for(seed):
    """Return numbers around the steps of the scales in PARAMETERS, special numbers and random bits."""
    rng = np.random.default_rng([seed, 31])
    x = np.concatenate([values(rng, 4 * 21, step).reshape(4, 21) for step in (1, 0.3, 0.25, 0.07, 0.01)])
    return rng.permuted(x.reshape(-1))[: np.prod(SHAPE)].reshape(SHAPE)


def own_model(form, mode, parameters, *, opset=25, shape=SHAPE, varying=()):
    """Return a model of a node of the package's own operator. The parameters in `varying` are inputs of the graph."""
    node = helper.make_node("FakeQuantize", ["x", *parameters], ["y"], domain="quark_numba", form=form, rounding_mode=mode)
    held = {name: np.asarray(value, f32) for name, value in parameters.items() if name not in varying}
    inputs = [("x", "float32", shape), *((name, "float32", np.shape(parameters[name])) for name in varying)]
    return model([node], inputs, [("y", "float32", shape)], initializers=floats(**held), opset=opset)


def of_kernel(form, mode, parameters, x):
    arrays = [np.asarray(parameters[name], f32) for name in FORMS[form].parameters]
    return FAKE_QUANTIZE.call(x, *arrays, form=form, rounding_mode=mode)


@pytest.mark.parametrize("operator", OF_DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 90), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.by_default(4)
def test_random_nodes(operator, seeds):
    """Nodes of all forms and rounding modes give the bits of the oracles, as constants of one element or of several."""
    for seed in seeds:
        node = random_node(operator.domain, operator.name, seed)
        standard = in_standard_operators(node.model(constants=True, shapes=[each.shape for each in node.inputs]))
        for level in LEVELS:
            y = plain_session(standard, level=level).run(None, node.feeds(constants=True))[0]
            assert_same_bits(y, node.expected())


@pytest.mark.parametrize("operator", OF_DIALECTS, ids=lambda each: each.name)
def test_unknown_shapes(operator):
    """Without the shape of x, nodes have the same bits."""
    for seed in range(8):
        node = random_node(operator.domain, operator.name, seed)
        result = rewrite_model(node.model(constants=True), Settings(operators="standard"))
        assert not result.left
        assert {each.domain for each in result.model.graph.node} == {""}
        assert_same_bits(plain_session(result.model).run(None, node.feeds(constants=True))[0], node.expected())


@pytest.mark.parametrize(("form", "mode"), MODES)
@pytest.mark.slow
def test_every_form_and_mode(form, mode):
    """The package's own operator, which `optimize` makes of others, has the bits of the kernels."""
    for seed, parameters in enumerate(PARAMETERS[form]):
        x = x_for(seed)
        expected = of_kernel(form, mode, parameters, x)
        standard = in_standard_operators(own_model(form, mode, parameters))
        for level in LEVELS:
            assert_same_bits(plain_session(standard, level=level).run(None, {"x": x})[0], expected)


def expected_codes(scale, low, high, x):
    with np.errstate(all="ignore"):
        code = np.rint((x / f32(scale)).astype(f32))
        code = np.fmin(np.fmax(code, f32(low)), f32(high))
        return ((code + f32(0)) * f32(scale)).astype(f32)


@pytest.mark.parametrize("parameters", PARAMETERS["codes"])
def test_codes(parameters):
    """NaN becomes the lowest code, and no code is -0."""
    x = x_for(1)
    standard = in_standard_operators(own_model("codes", "ROUND", parameters))
    for level in LEVELS:
        y = plain_session(standard, level=level).run(None, {"x": x})[0]
        assert_same_bits(y, expected_codes(**parameters, x=x))


@pytest.mark.parametrize("form", CASTS)
def test_casts(form):
    """ONNX Runtime's optimizers keep the Casts of a standard form."""
    bits = np.random.default_rng(5).integers(0, 2**32, 5000, np.uint32).view(f32)
    x = np.concatenate([samples.SPECIAL, bits[~np.isnan(bits)]])
    standard = in_standard_operators(own_model(form, "ROUND", {}, shape=[None]))
    with np.errstate(all="ignore"):
        expected = x.astype({"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[form]).astype(f32)
    for level in LEVELS:
        assert_same_bits(plain_session(standard, level=level).run(None, {"x": x})[0], expected)


# By form: the parameters that need not be constants.
VARYING = {
    "integer": ("scale", "zero_point", "bit_width"),
    "codes": ("scale", "low", "high"),
    "bipolar": ("scale",),
    "truncation": ("scale", "zero_point"),
    "minifloat": ("scale",),
    "threshold": ("threshold",),
}


@pytest.mark.parametrize("form", VARYING)
@pytest.mark.by_default(1)
def test_computed_parameters(form):
    """Scales, zero points, bounds and bit widths may be inputs of the graph."""
    for seed, (parameters, count) in enumerate(itertools.product(PARAMETERS[form], range(1, 1 + len(VARYING[form])))):
        x, varying = x_for(seed), VARYING[form][-count:]
        source = own_model(form, "ROUND", parameters, varying=varying)
        if (form == "truncation" and not np.isnan(parameters["out_scale"]).all()) or parameters.get("max_val") == np.inf:
            (left,) = rewrite_model(source, Settings(operators="standard")).left
            assert left[1].startswith(f"its {varying[0]} is not a constant")
            continue
        standard = in_standard_operators(source)
        feeds = {"x": x} | {name: np.asarray(parameters[name], f32) for name in varying}
        for level in LEVELS:
            y = plain_session(standard, level=level).run(None, feeds)[0]
            assert_same_bits(y, of_kernel(form, "ROUND", parameters, x))


@pytest.mark.parametrize("mode", ROUNDING_MODES)
@pytest.mark.slow
def test_computed_bit_widths(mode):
    """One model for all bit widths has the bits of the kernel for each."""
    powers = (2.0 ** np.arange(-3, 70)).astype(f32)
    x = np.concatenate([x_for(1).reshape(-1), powers, -powers])
    for signed, narrow in itertools.product((0, 1), (0, 1)):
        parameters = {"scale": 0.5, "zero_point": 0, "bit_width": 8, "signed": signed, "narrow": narrow}
        made = plain_session(in_standard_operators(own_model("integer", mode, parameters, shape=[None], varying=["bit_width"])))
        for bits in range(1, 65):
            y = made.run(None, {"x": x, "bit_width": np.array(bits, f32)})[0]
            assert_same_bits(y, of_kernel("integer", mode, parameters | {"bit_width": bits}, x))


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
@pytest.mark.parametrize("form", [*FORMS])
@pytest.mark.slow
def test_opsets(form, opset):
    """Each form is in the model's own opset. The model is valid there, and has the same bits."""
    parameters = PARAMETERS[form][0]
    if form == "bfloat16" and opset < 13:
        (left,) = rewrite_model(own_model(form, "ROUND", parameters, opset=opset), Settings(operators="standard")).left
        assert left[1] == f"opset {opset} has no Cast of bfloat16"
        return
    standard = in_standard_operators(own_model(form, "ROUND", parameters, opset=opset))
    assert [each.version for each in standard.opset_import if each.domain == ""] == [opset]
    y = plain_session(standard).run(None, {"x": x_for(0)})[0]
    assert_same_bits(y, of_kernel(form, "ROUND", parameters, x_for(0)))


@pytest.mark.parametrize(("form", "mode"), MODES)
@pytest.mark.by_default(2)
def test_reference_evaluator(form, mode):
    """onnx's own evaluator gives the same bits. numpy says nothing of the sign of a zero that is a bound, too."""
    for seed, parameters in enumerate(PARAMETERS[form]):
        x = x_for(seed)
        standard = in_standard_operators(own_model(form, mode, parameters))
        with np.errstate(all="ignore"):
            (y,) = ReferenceEvaluator(standard).run(None, {"x": x})
        np.testing.assert_array_equal(y, of_kernel(form, mode, parameters, x))


def test_beside_matrix_products():
    """ONNX Runtime's optimizers would fuse a scale of one element with a MatMul, which changes bits. They leave these alone,
    and additions after a MatMul."""
    rng = np.random.default_rng(8)
    x, w = rng.normal(size=(33, 20)).astype(f32), rng.normal(size=(20, 20)).astype(f32)
    for zero_point, bits in itertools.product((0.0, 1.5), (8.0, 1.0)):
        quant = helper.make_node("Quant", ["a", "s", "z", "b"], ["c"], domain=QONNX, signed=1, narrow=0, rounding_mode="ROUND")
        nodes = ["a = MatMul (x, w)", quant, "y = MatMul (c, w)"]
        outputs = [(name, "float32", (33, 20)) for name in "acy"]
        initializers = floats(w=w, s=f32(0.3), z=f32(zero_point), b=f32(bits))
        source = model(nodes, [("x", "float32", (33, 20))], outputs[2:], initializers=initializers)
        standard = in_standard_operators(source)
        for level in LEVELS:
            expected = session(source, level=level, threads=1).run(None, {"x": x})[0]
            assert_same_bits(plain_session(standard, level=level).run(None, {"x": x})[0], expected)


@pytest.mark.parametrize(
    ("form", "parameters", "varying", "why"),
    [
        ("integer", PARAMETERS["integer"][0], ["narrow"], "its narrow is not a constant"),
        ("minifloat", PARAMETERS["minifloat"][0], ["max_val"], "its max_val is not a constant"),
        ("range", {"min": 2, "max": 3, "bit_width": 4}, ["max"], "its max is not a constant"),
        (
            "minifloat",
            dict(zip(FORMS["minifloat"].parameters, (1, 1, 23, -127, 1, 0, 0, 1), strict=True)),
            [],
            "its smallest normal value is beyond float32",
        ),
        ("levels", dict(zip(FORMS["levels"].parameters, (1, -1, -0.0, 2, 4), strict=True)), [], "a limit of its y is -0"),
        (
            "integer",
            PARAMETERS["integer"][0] | {"bit_width": 4.2},
            [],
            "not valid: the format has scale 0.25, zero_point 0, bit_width 4.2, signed 1, narrow 0; "
            "expected a bit width that is a whole number from 1 to 64",
        ),
    ],
)
def test_no_form(form, parameters, varying, why):
    """A node that has no form stays, with the reason, and nothing is written."""
    result = rewrite_model(own_model(form, "ROUND", parameters, varying=varying), Settings(operators="standard"))
    assert list(result.left) == [(FAKE_QUANTIZE.full_name, why)]
    assert [each.op_type for each in result.model.graph.node] == ["FakeQuantize"]


@pytest.mark.slow
def test_last_places():
    """The three steps of `last_place` for every mantissa, at the least exponent, at others and at the highest one."""
    for exponent in (-102, -101, 0, 1, 104, 127):
        t = (np.arange(2**23, 2**24) * 2.0 ** (exponent - 23)).astype(f32)
        place = t - (t - t * f32(0.75 * 2.0**-23))
        np.testing.assert_array_equal(place, f32(2.0 ** (exponent - 23)))
