"""What is rounded to float16 stays so. The Casts of a standard form stay beside ONNX Runtime's Casts, and beside those of the
model. Nodes of the package stay in float16."""

import numpy as np
import onnx
import oracle
import pytest
from onnx import helper
from onnx_models import array_of, model, ort_value, session, session_options
from rewritten_models import constant
from standard_cases import WITH_FORMS, cases
from standard_models import LEVELS, in_standard_operators, plain_session

from quark_numba import InferenceSession, optimize
from quark_numba.element_types import FLOAT16, find
from quark_numba.rewriting.onnx_runtime import casts_to
from quark_numba.rewriting.standard_forms import ONNX_ONLY

pytestmark = pytest.mark.compiled

# Operators with an input or an output of float16.
OF_FLOAT16 = [each for each in WITH_FORMS if any(FLOAT16 in types for types in each.types.values())]


def outputs(made, feeds):
    names = [each.name for each in made.get_outputs()]
    return [
        array_of(each)
        for each in made.run_with_ort_values(names, {name: ort_value(np.array(x, order="C")) for name, x in feeds.items()})
    ]


def assert_results(made, feeds, expected):
    for y, result in zip(outputs(made, feeds), expected, strict=True):
        oracle.assert_same_bits(y, result)


def between_products(case):
    """Return a model of a node whose inputs of float16 are computed by nodes of float16, and whose outputs of float16 are the
    inputs of one, its feeds and its results. On the CPU ONNX Runtime computes these nodes in float32."""
    nodes, values, feeds, renamed, given, results = [], [], {}, {}, [], []
    rng = np.random.default_rng(1)
    for name, array in zip(case.names(), case.inputs, strict=True):
        given.append(array)
        values.append((name, find(array.dtype).name, [None] * array.ndim))
        feeds[name] = array
        if array.dtype == np.float16:
            factor = rng.uniform(0.5, 2, array.shape[-1:]).astype(np.float16)
            values.append((f"{name}_factor", "float16", factor.shape))
            feeds[f"{name}_factor"], renamed[name] = factor, f"{name}_product"
            nodes.append(helper.make_node("Mul", [name, f"{name}_factor"], [renamed[name]]))
            given[-1] = np.asarray(array * factor)
    nodes.append(case.node(**renamed))
    expected = []
    for name, array in zip(nodes[-1].output, case._replace(inputs=given).outputs(), strict=True):
        results.append((name, find(array.dtype).name, [None] * array.ndim))
        expected.append(array)
        if array.dtype == np.float16:
            nodes.append(helper.make_node("Mul", [name, name], [f"{name}_square"]))
            results[-1] = (f"{name}_square", "float16", [None] * array.ndim)
            with np.errstate(over="ignore"):
                expected[-1] = array * array
    return model(nodes, values, results, opset=case.opset), feeds, expected


def is_run(result):
    """Return whether ONNX Runtime has a Cast to a type."""
    return casts_to(find(result.dtype))


@pytest.mark.parametrize("operator", OF_FLOAT16, ids=lambda each: f"{each.domain}-{each.name}-{each.since_version}")
@pytest.mark.parametrize("operators", ONNX_ONLY)
@pytest.mark.by_default(4)
def test_nodes_of_float16(operator, operators):
    """What is rounded to float16 in front of a form, and behind it, stays so."""
    for case in cases(operator, is_float16=True):
        source, feeds, expected = between_products(case)
        if not all(map(is_run, (*case.inputs, *expected))):
            continue
        rewritten = optimize(source, operators=operators)
        for level in LEVELS:
            assert_results(plain_session(rewritten, level=level), feeds, expected)


@pytest.mark.parametrize("operator", OF_FLOAT16, ids=lambda each: f"{each.domain}-{each.name}-{each.since_version}")
@pytest.mark.parametrize("operators", ["custom", "cuda"])
@pytest.mark.by_default(4)
def test_custom_nodes_of_float16(operator, operators):
    """What is rounded to float16 in front of a node of the package, and behind it, stays so in an optimized model."""
    for case in cases(operator, is_float16=True):
        source, feeds, expected = between_products(case)
        if not all(map(is_run, (*case.inputs, *expected))):
            continue
        rewritten = optimize(source, operators=operators, qdq="float")
        made = [session(rewritten, qdq="float", threads=1, level=level) for level in LEVELS]
        if operators == "custom":
            made.append(InferenceSession(source, session_options(threads=1), qdq="float"))
        for each in made:
            assert_results(each, feeds, expected)


def test_no_fence_between_nodes_of_the_package():
    nodes = [f"{y} = com.amd.quark.BFPQuantizeDequantize <axis = 1, block_size = 4> ({x})" for x, y in ("ab", "bc")]
    nodes = ["a = Mul (x, x)", *nodes, "y = Mul (c, c)"]
    source = model(nodes, [("x", "float16", [2, 8])], [("y", "float16", [2, 8])])
    assert [node.op_type for node in optimize(source).graph.node].count("Concat") == 0


ROUNDED_TO_BFLOAT16 = helper.make_node(
    "FakeQuantize", ["x"], ["a"], domain="quark_numba", form="bfloat16", rounding_mode="ROUND"
)
CODES = helper.make_node("ExtendedQuantizeLinear", ["x", "s", "z"], ["a"], domain="com.amd.quark")


@pytest.mark.parametrize("between", [[], ["b = Identity (a)"]], ids=["beside", "behind"])
@pytest.mark.parametrize(("node", "codes"), [(ROUNDED_TO_BFLOAT16, None), (CODES, "bfloat16"), (CODES, "int16")])
def test_casts_of_the_model(node, codes, between):
    """A Cast of the model to int8 takes what was rounded."""
    nodes = [node, *between, helper.make_node("Cast", ["b" if between else "a"], ["y"], to=onnx.TensorProto.INT8)]
    parameters = [] if codes is None else [constant("s", 1.0, np.float32), constant("z", 0, oracle.dtype(codes))]
    source = model(nodes, [("x", "float32", ["n"])], [("y", "int8", ["n"])], initializers=parameters)
    x = np.nextafter(np.arange(-100, 100, dtype=np.float32), np.float32(0))
    (expected,) = outputs(session(source, qdq="float", threads=1, level="DISABLE_ALL"), {"x": x})
    np.testing.assert_array_equal(expected, np.arange(-100, 100))
    for level in LEVELS:
        (y,) = outputs(plain_session(in_standard_operators(source), level=level), {"x": x})
        np.testing.assert_array_equal(y, expected)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("x_shape", [(), (3, 32)], ids=str)
def test_shapes(x_shape):
    """Scalars have fences too. Names that ONNX Runtime gives to its own Casts change nothing."""
    name = "InsertedPrecisionFreeCast_a"
    nodes = ["a = Mul (x, c)", helper.make_node("ExtendedQuantizeLinear", ["a", "s", "z"], [name], domain="com.amd.quark")]
    nodes += [helper.make_node("ExtendedDequantizeLinear", [name, "s", "z"], ["b"], domain="com.amd.quark"), "y = Mul (b, c)"]
    parameters = [constant("s", 0.3, np.float32), constant("z", 0, np.float16), constant("c", 1.37, np.float32)]
    source = model(nodes, [("x", "float32", x_shape)], [("y", "float32", x_shape)], initializers=parameters)
    x = np.random.default_rng(2).normal(size=x_shape).astype(np.float32)
    (expected,) = outputs(session(source, qdq="float", threads=1, level="DISABLE_ALL"), {"x": x})
    for level in LEVELS:
        (y,) = outputs(plain_session(in_standard_operators(source), level=level), {"x": x})
        oracle.assert_same_bits(y, expected)
