"""Models in ONNX's standard operators: the nodes of the linear family against the oracle, and what holds for all families."""

import collections
import itertools
import re

import numpy as np
import onnx
import oracle
import pytest
import samples
import textline
from granularities import cell, granularities, key_id
from marks import batches
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator
from onnx_models import model, run, session
from rewritten_models import constant, operators, pair, scale_and_zero_point
from standard_models import LEVELS, findings, in_standard_operators, plain_session

import quark_numba
from quark_numba import ModelError
from quark_numba.element_types import find
from quark_numba.linear.dispatch import TABLE
from quark_numba.models import protos
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.onnx_runtime import casts_to
from quark_numba.rewriting.optimize import rewrite_model

OPSET = 25
OWN = {"quantize": "Quantize", "dequantize": "Dequantize", "quantize_dequantize": "QuantizeDequantizeLinear"}


def node_model(key, x_shape, scale, zero_point, are_constants, opset=OPSET, **attributes):
    """Return a model of one node of the package. The scale and the zero point are constants, or inputs of the graph."""
    parameters = {"scale": scale} | ({} if zero_point is None else {"zero_point": zero_point})
    if key.operation == "quantize":
        attributes |= {"precision": key.precision.number, "output_dtype": key.y.number}
    elif key.operation == "dequantize":
        attributes["output_dtype"] = key.y.number
    if key.operation != "dequantize":
        attributes["saturate"] = int(key.saturate)
    node = helper.make_node(OWN[key.operation], ["x", *parameters], ["y"], domain="quark_numba", **attributes)
    inputs = [("x", key.x.name, x_shape)]
    if not are_constants:
        inputs += [(name, find(array.dtype).name, array.shape) for name, array in parameters.items()]
    initializers = [constant(name, array) for name, array in parameters.items()] if are_constants else []
    return model([node], inputs, [("y", key.y.name, x_shape)], initializers=initializers, opset=opset), parameters


def expected(key, x, scale, zero_point):
    name = key.quantized.name
    if key.operation == "dequantize":
        return oracle.dequantize(x, scale, zero_point, name, key.y.name)
    codes = oracle.quantize(x, scale, zero_point, name, precision=key.precision.name, saturate=key.saturate)
    return codes if key.operation == "quantize" else oracle.dequantize(codes, scale, zero_point, name)


def reason(key, are_constants=True, opset=OPSET):
    """Return why nodes of a key have no form. ONNX has no Cast of 6 bits up to this opset."""
    if key.operation == "quantize" and key.precision.name == "float64" and not key.quantized.is_integer:
        return f"a float64 would be rounded to {key.quantized.name} twice"
    if key.operation == "quantize" and key.x.name == "int32" and key.precision.bits == 16:
        return f"an int32 would be rounded to {key.precision.name} twice"
    if key.quantized.bits == 6 and (key.operation != "quantize_dequantize" or not are_constants):
        return f"opset {opset} has no Cast of {key.quantized.name}"
    return None


def assert_right(key, source, x, scale, zero_point, spread, are_constants, levels=LEVELS):
    """Assert that the standard form gives the bits of the oracle."""
    why = reason(key, are_constants)
    if why:
        assert list(rewrite_model(source, Settings(operators="standard")).left) == [(f"quark_numba::{OWN[key.operation]}", why)]
        return
    standard = in_standard_operators(source)
    is_cast = key.operation != "quantize_dequantize" or not are_constants
    if is_cast and not (casts_to(key.quantized) and casts_to(key.x)):
        return  # ONNX Runtime lacks it
    feeds = {"x": x} | ({} if are_constants else {"scale": scale} | ({} if zero_point is None else {"zero_point": zero_point}))
    for level in levels:
        y = run(plain_session(standard, level=level), **feeds)
        oracle.assert_same_bits(y, expected(key, x, *spread))


@pytest.mark.parametrize("key", TABLE, ids=key_id)
@pytest.mark.covering
@pytest.mark.by_default(5)
def test_every_type(key):
    """One scale and zero point, on inputs that are hard for the type."""
    name, quick = key.quantized.name, LEVELS[:1]
    scales = np.array([0.1, 2.0**-7, 1, -3.0, 1e-30, 1e30, 0, np.inf, np.nan], np.float32)
    with np.errstate(over="ignore", under="ignore"):
        scales = scales.astype(oracle.dtype(scale_type(key)))
    for scale, zero_point in zip(scales, itertools.cycle([None, *samples.zero_points(name)])):
        scale = np.asarray(scale)
        if zero_point is None and key.operation != "dequantize":
            zero_point = samples.zero_points(name)[0]
        size = abs(float(scale)) if 0 < abs(float(scale)) < 1e20 else 1.0
        x = samples.inputs(key.x.name, name, size, 0 if zero_point is None else zero_point)
        source, _ = node_model(key, [None], scale, zero_point, True)
        assert_right(key, source, x, scale, zero_point, (scale, zero_point), True, LEVELS if float(scale) == 1 else quick)
        if reason(key):
            break


def scale_type(key):
    """The type of the scales that are tried: the one that the division is done in, if there is one."""
    return "float32" if key.operation == "dequantize" or key.precision.name == "float64" else key.precision.name


@pytest.mark.parametrize("key", [key for key in TABLE if key.x.name == "float32" or key.y.name == "float32"], ids=key_id)
@pytest.mark.parametrize("are_constants", [True, False], ids=["constants", "computed"])
@granularities
@pytest.mark.covering("exhaustive")
def test_granularities(key, granularity, are_constants):
    name = key.quantized.name
    x_shape, (scale, zero_point), spread, attributes = cell(granularity, scale_type(key), name, True)
    x = np.random.default_rng(7).choice(samples.inputs(key.x.name, name, 0.5, 0), x_shape)
    source, _ = node_model(key, x_shape, scale, zero_point, are_constants, **attributes)
    assert_right(key, source, x, scale, zero_point, spread, are_constants)


ROUND_TRIPS = [key for key in TABLE if key.operation == "quantize_dequantize" and key.x.name == key.y.name == "float32"]


@pytest.mark.parametrize("key", [key for key in ROUND_TRIPS if reason(key) is None], ids=key_id)
@pytest.mark.by_default(1)
def test_reference_evaluator(key):
    """onnx's ReferenceEvaluator computes the same from the standard form."""
    name = key.quantized.name
    for scale, zero_point in zip((0.1, 2.0**-7, 1, -3.0), itertools.cycle(samples.zero_points(name))):
        scale = np.array(scale, np.float32)
        x = samples.inputs("float32", name, abs(float(scale)), zero_point)
        source, _ = node_model(key, x.shape, scale, zero_point, True)
        with np.errstate(all="ignore"):
            (y,) = ReferenceEvaluator(in_standard_operators(source)).run(None, {"x": x})
        oracle.assert_same_bits(y, expected(key, x, scale, zero_point))


SATURATED = [key for key in TABLE if key.operation == "quantize_dequantize" and not key.quantized.is_integer and key.saturate]


@pytest.mark.parametrize("key", SATURATED, ids=key_id)
@pytest.mark.by_default(2)
def test_floats_for_webgpu(key):
    """The form has neither a Cast nor a Clip, which might lose NaN."""
    name = key.quantized.name
    for scale, number in [(1, 0), (0.1, 0), (-3, -1), (1e30, 0), (np.inf, 0), (np.nan, 0)]:
        scale, zero_point = np.array(scale, np.float32), samples.zero_points(name)[number]
        x = samples.inputs("float32", name, float(scale) if 0 < scale < 1e20 else 1.0, zero_point)
        source, _ = node_model(key, [None], scale, zero_point, True)
        standard = in_standard_operators(source, operators="webgpu")
        assert {"Cast", "Clip"}.isdisjoint(operators(standard))
        for level in LEVELS:
            oracle.assert_same_bits(run(plain_session(standard, level=level), x=x), expected(key, x, scale, zero_point))


def test_a_scale_of_zero_makes_nan():
    """0 / 0 is NaN in a float type, which becomes the lowest code after it."""
    nodes = [*pair("x", "a", "b", ("one", "i")), *pair("b", "c", "d", ("zero", "z")), *pair("d", "e", "y", ("one", "i"))]
    parameters = [constant("zero", 0, np.float32), constant("z", 0, oracle.dtype("bfloat16"))]
    parameters += [constant("one", 1, np.float32), constant("i", 0, np.int8)]
    source = model(nodes, [("x", "float32", [3])], [("y", "float32", [3])], initializers=parameters)
    y = run(plain_session(in_standard_operators(source)), x=np.float32([-3, 0, 3]))
    np.testing.assert_array_equal(y, np.float32([0, -128, 0]))


# Whole models.

MODELS_OF_LINEAR = ("bf16", "fp16", "i32", "u32", "a8w8")


@pytest.mark.parametrize("variant", MODELS_OF_LINEAR)
@pytest.mark.compiled
@pytest.mark.by_default(1)
def test_real_models(variant):
    source = onnx.load(textline.path_of(variant))
    standard = in_standard_operators(source)
    drop_in = session(source, qdq="float", threads=1, level="DISABLE_ALL")
    results = [made.run(None, {"x": textline.X}) for made in (plain_session(standard), drop_in)]
    oracle.assert_same_bits(results[0][0], results[1][0])


def test_numbers_need_no_rule_for_nan():
    """Only the first node has an input that may be NaN: what follows is bounded."""
    counts = collections.Counter(operators(in_standard_operators(onnx.load(textline.path_of("u32")))))
    assert counts["Round"] == 148
    assert counts["IsNaN"] == counts["Where"] == 11  # the input, and ten means over any number of elements


@pytest.mark.parametrize("graphs", ["sessions", "qdq", "dialects", "blocks"])
@batches(default=(0, 2, 2), slow=(2, 50, 12), exhaustive=(50, 1550, 100))
@pytest.mark.compiled
@pytest.mark.slow
def test_generated_graphs(graphs, seeds):
    """``python tests/support/standard_models.py`` does the same. A graph may have a node without a form, if its types are not
    known, or the opset lacks them."""
    found = [(seed, texts) for seed in seeds if (texts := findings(graphs, seed))]
    assert not [(seed, texts) for seed, texts in found if not all(re.search(NO_FORM, text) for text in texts)]
    assert len(found) <= 1 + len(seeds) // 3


NO_FORM = r"(opset \d+ has no|the type of its [\w ]+ is not known|its \w+ is not a constant)"


def one_pair(name="int8", opset=17):
    return model(
        [*pair(parameters=("scale", "zero_point"))],
        [("x", "float32", ["n", 3])],
        [("y", "float32", ["n", 3])],
        initializers=scale_and_zero_point(name),
        opset=opset,
    )


def test_result_in_standard_operators_stays():
    standard = in_standard_operators(one_pair("bfloat16"))
    again = rewrite_model(standard, Settings(operators="standard"))
    assert not again.done
    assert again.model == standard


@pytest.mark.parametrize(("name", "expected"), [
    ("int8", ["Mul", "Round", "IsNaN", "Where", "Clip", "Mul", "Sub"]),
    ("bfloat16", ["Mul", "Clip", "Add", "Cast", "Cast", "Mul"]),
])  # fmt: skip
def test_nodes_of_a_round_trip(name, expected):
    assert operators(in_standard_operators(one_pair(name))) == expected


@pytest.mark.parametrize("operation", ["quantize_dequantize", "dequantize"])
@pytest.mark.parametrize("name", ["int8", "float8e4m3fn"])
@pytest.mark.parametrize("between", ["", "Identity", "Transpose"])
def test_scales_beside_products(operation, name, between):
    """ONNX Runtime fuses a scalar factor beside a MatMul into it, and then does not round the product by itself."""
    rng = np.random.default_rng(3)
    weights = constant("w", rng.normal(size=(8, 8)), np.float32)
    parameters = [constant("s", 0.3, np.float32), constant("z", 0, oracle.dtype(name))]
    inner, nodes = "x", []
    if operation == "quantize_dequantize":
        nodes.append("a = MatMul (x, w)")
        inner = "a"
    if between:
        nodes.append(f"b = {between} ({inner})")
        inner = "b"
    nodes += [helper.make_node(OWN[operation], [inner, "s", "z"], ["c"], domain="quark_numba"), "y = MatMul (c, w)"]
    x_type = name if operation == "dequantize" else "float32"
    source = model(nodes, [("x", x_type, [8, 8])], [("y", "float32", [8, 8])], initializers=[weights, *parameters])
    x = rng.normal(scale=9, size=(8, 8)).astype(oracle.dtype(x_type))
    results = [run(plain_session(in_standard_operators(source), level=level), x=x) for level in LEVELS]
    oracle.assert_same_bits(*results)


def test_subgraphs_and_functions():
    text = """
        <ir_version: 8, opset_import: ["" : 17, "com.amd.quark" : 1, "l" : 1]>
        g (float[3] x, bool flag) => (float[3] y)
        <float s = {0.5}, int8 z = {1}> {
            f = l.Pair (x)
            y = If (flag) <
                then_branch = t () => (float[3] a) {
                    q = com.amd.quark.ExtendedQuantizeLinear (f, s, z)
                    a = com.amd.quark.ExtendedDequantizeLinear (q, s, z) },
                else_branch = e () => (float[3] b) { b = Neg (f) }>
        }
        <domain: "l", opset_import: ["" : 17, "com.amd.quark" : 1]>
        Pair (v) => (w) {
            s2 = Constant <value = float {0.25}> ()
            z2 = Constant <value = int8 {0}> ()
            c = com.amd.quark.ExtendedQuantizeLinear (v, s2, z2)
            w = com.amd.quark.ExtendedDequantizeLinear (c, s2, z2)
        }"""
    source = parser.parse_model(text)
    standard = rewrite_model(source, Settings(operators="standard"))
    assert not standard.left
    domains = {node.domain for node in protos.nodes(standard.model.graph, *standard.model.functions)}
    assert domains == {""}
    x = np.array([-1.6, 0.13, 300], np.float32)
    for flag, expected in ((True, [-1.5, 0.0, 32.0]), (False, [1.5, -0.25, -31.75])):
        (y,) = plain_session(standard.model).run(None, {"x": x, "flag": np.array(flag)})
        np.testing.assert_array_equal(y, np.float32(expected))


def test_other_operators_stay():
    """A custom operator of another library stays as it is."""
    other = helper.make_node("Theirs", ["y"], ["z"], domain="theirs")
    source = one_pair()
    source.graph.node.append(other)
    source.opset_import.append(helper.make_opsetid("theirs", 1))
    source.graph.output[0].name = "z"
    standard = quark_numba.optimize(source, operators="standard")
    assert standard.graph.node[-1] == other
    assert {node.domain for node in standard.graph.node} == {"", "theirs"}


def test_what_has_no_form_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(one_pair("bfloat16", opset=11).SerializeToString())
    names = r"com\.amd\.quark::|quark_numba::"
    message = (
        rf"not all nodes can be written in ONNX's standard operators: 1 node ({names})\w+: opset 11 has no Cast of bfloat16"
    )
    with pytest.raises(ModelError, match=message):
        quark_numba.optimize(tmp_path / "model.onnx", tmp_path / "out.onnx", operators="standard")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("operators", ["Standard", None, 1, ["standard"]])
def test_wrong_argument(operators):
    expected = re.escape(f"operators is {operators!r}; expected one of 'custom', 'cuda', 'standard'")
    with pytest.raises(ValueError, match=expected):
        quark_numba.optimize(one_pair(), operators=operators)
