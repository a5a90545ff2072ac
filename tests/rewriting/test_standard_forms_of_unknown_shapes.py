"""The standard forms of every operator of the catalog where lengths, or all shapes, are known only in the run."""

import re

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from onnx import helper
from onnx_models import array_of, ort_value
from standard_cases import WITH_FORMS, cases
from standard_models import plain_session
from text_graphs import text_model

from quark_numba.element_types import find
from quark_numba.element_types.operands import find_any
from quark_numba.rewriting.constants import INPUT
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.onnx_runtime import casts_to
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.standard_forms import ONNX_ONLY

pytestmark = pytest.mark.compiled

# Why a node may have no form: the list in `quark_numba/rewriting/README.md`.
NO_FORM = r"its \w+ is not a constant|opset \d+ has no|is beyond float32|two values too close|would be rounded to \w+ twice"
NO_FORM += r"|are in a tensor of uint8|is neither a constant nor known|a limit of its y is -0|has a value that is not finite"

# Rounding needs opset 11.
WITH_FORMS = [each for each in WITH_FORMS if each.domain or each.since_version > 10]

every_operator = pytest.mark.parametrize(
    "operator", WITH_FORMS, ids=lambda each: f"{each.domain or 'onnx'}-{each.name}-{each.since_version}"
)


def value(name, array, known):
    """Return the description of a value. `known` is what is known of its shape: "rank", or "nothing"."""
    return helper.make_tensor_value_info(name, find_any(array.dtype).number, [None] * array.ndim if known == "rank" else None)


def model_of(case, known, place="graph", are_constants=True):
    """Return a model of one node, in the main graph, in a subgraph or in a function."""
    x, results = case.inputs[0], case.outputs()
    given = [value(name, each, known) for name, each in list(zip(case.names(), case.inputs, strict=True))[1:] if name]
    tensors = case.tensors() if are_constants else []
    outputs = [value(each, array, known) for each, array in zip(case.node().output, results, strict=True)]
    opsets = [helper.make_opsetid("", case.opset)]
    if case.operator.domain:
        opsets.append(helper.make_opsetid(case.operator.domain, case.version))
    inputs, functions = [value("x", x, known), *([] if are_constants else given)], []
    if place == "graph":
        nodes = [case.node()]
    elif place == "function":
        names = [name for name in case.names() if name]
        functions = [helper.make_function("local", "F", names, list(case.node().output), [case.node()], opsets)]
        nodes = [helper.make_node("F", names, list(case.node().output), domain="local")]
        opsets = [*opsets, helper.make_opsetid("local", 1)]
    else:
        nodes, tensors, inputs = _with_subgraph(case, place, known, tensors, inputs)
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def _with_subgraph(case, place, known, tensors, inputs):
    """Return the nodes, the initializers and the inputs of a main graph whose subgraph has the node. A Loop and a Scan run it
    once, and x is a state that they carry."""
    inner = [f"inner_{name}" for name in case.node().output]
    renamed = dict(zip(case.node().output, inner, strict=True))
    declared = "nothing" if place == "If" else known
    results = [value(name, array, declared) for name, array in zip(inner, case.outputs(), strict=True)]
    x = case.inputs[0]
    true = helper.make_node("Constant", [], ["true"], value=helper.make_tensor("t", onnx.TensorProto.BOOL, [], [True]))
    flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    if place == "If":
        bodies = [helper.make_graph([case.node(**renamed)], name, [], results) for name in ("one", "other")]
        node = helper.make_node("If", ["flag"], case.node().output, then_branch=bodies[0], else_branch=bodies[1])
        return [node], tensors, [*inputs, flag]
    carried = [helper.make_node("Identity", ["v"], ["carried"]), case.node(**renamed, x="v")]
    state = [value("v", x, declared)], [value("carried", x, declared)]
    scanned = [f"scanned_{name}" for name in case.node().output]
    back = [
        helper.make_node(
            "Squeeze", [name, *(["zero"] if case.opset >= 13 else [])], [y], **({} if case.opset >= 13 else {"axes": [0]})
        )
        for name, y in zip(scanned, case.node().output, strict=True)
    ]
    tensors = [*tensors, *([helper.make_tensor("zero", onnx.TensorProto.INT64, [1], [0])] if case.opset >= 13 else [])]
    if place == "Loop":
        count = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
        going = [helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in ("going", "goes")]
        carried.append(helper.make_node("Identity", ["going"], ["goes"]))
        body = helper.make_graph(carried, "body", [count, going[0], *state[0]], [going[1], *state[1], *results])
        tensors.append(helper.make_tensor("trips", onnx.TensorProto.INT64, [], [1]))
        return [true, helper.make_node("Loop", ["trips", "true", "x"], ["last", *scanned], body=body), *back], tensors, inputs
    step = helper.make_tensor_value_info("step", onnx.TensorProto.FLOAT, [])
    body = helper.make_graph(carried, "body", [*state[0], step], [*state[1], *results])
    tensors.append(helper.make_tensor("steps", onnx.TensorProto.FLOAT, [1], [0.0]))
    return [helper.make_node("Scan", ["x", "steps"], ["last", *scanned], body=body, num_scan_inputs=1), *back], tensors, inputs


def _ort_value(array):
    """Return an array of any type in ONNX Runtime; the shared function takes the types of the package."""
    return ort_value(array) if find(array.dtype) else onnxruntime.OrtValue.ortvalue_from_numpy(array)


def assert_right(case, source, x=None, operators="standard", level="DISABLE_ALL"):
    """Assert that a model gives what the kernels compute. Return whether the node has a form."""
    result = rewrite_model(source, Settings(operators=operators))
    reasons = [why for _, why in result.left if why != INPUT]
    if reasons:
        assert all(re.search(NO_FORM, why) for why in reasons), reasons
        return False
    expected = case.outputs(x)
    if not all(casts_to(find_any(each.dtype)) for each in (*case.inputs, *expected) if each is not None):
        return False  # ONNX Runtime lacks a type
    made = plain_session(result.model, level=level)
    feeds = {name: each for name, each in zip(case.names(), case.inputs, strict=True) if name}
    feeds |= {"flag": np.array(True)} | ({} if x is None else {"x": x})
    given = {each.name: _ort_value(np.array(feeds[each.name], order="C")) for each in made.get_inputs()}
    for y, each in zip(made.run_with_ort_values([o.name for o in made.get_outputs()], given), expected, strict=True):
        if operators == "webgpu":  # Max and Min take the place of Clip, and may return either of 0 and -0
            y, each = (np.where(array == 0, np.zeros((), array.dtype), array) for array in (array_of(y), np.asarray(each)))
            oracle.assert_same_bits(y, each)
        else:
            oracle.assert_same_bits(array_of(y), np.asarray(each))
    return True


@every_operator
@pytest.mark.parametrize("known", ["rank", "nothing"])
@pytest.mark.parametrize("operators", ONNX_ONLY)
@pytest.mark.by_default(10)
def test_main_graph(operator, known, operators):
    """Parameters are constants. Lengths may be unknown, and ranks too."""
    tried = [assert_right(case, model_of(case, known), operators=operators) for case in cases(operator)]
    is_possible = operator.name != "TRT_FP4DynamicQuantize"  # ONNX Runtime may lack its type
    assert any(tried) or not is_possible


@pytest.mark.by_default(8)
@every_operator
@pytest.mark.parametrize("known", ["rank", "nothing"])
def test_computed_parameters(operator, known):
    """Parameters are inputs of the graph, whose shapes are not known either."""
    for case in cases(operator):
        assert_right(case, model_of(case, known, are_constants=False))


@pytest.mark.by_default(8)
@every_operator
@pytest.mark.parametrize("place", ["If", "Loop", "Scan", "function"])
@pytest.mark.parametrize("known", ["rank", "nothing"])
def test_places(operator, place, known):
    """ONNX Runtime needs the ranks of what a Scan carries, and has no Squeeze of float8."""
    for case in list(cases(operator))[::3]:
        is_float8 = any(find(array.dtype).name.startswith("float8") for array in case.outputs())
        if place in ("If", "function") or not (is_float8 or (place == "Scan" and known == "nothing")):
            assert_right(case, model_of(case, known, place))


@every_operator
@pytest.mark.parametrize("known", ["rank", "nothing"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.covering
def test_no_elements(operator, known, axis):
    """x has no elements, as the caches of a decoder have in the first step. Parameters of several elements may not fit then."""
    for case in cases(operator):
        shape = list(case.inputs[0].shape)
        shape[axis] = 0
        x = np.zeros(shape, case.inputs[0].dtype)
        try:
            case.outputs(x)
        except ValueError:
            continue
        assert_right(case, model_of(case, known), x)


@pytest.mark.by_default(3)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (1, 1), (3, 5)], ids=str)
def test_ranks(shape):
    """An x of at most one dimension has one axis, whichever the attribute names."""
    for operator in WITH_FORMS:
        if operator.family != "block" or operator.domain != "com.amd.quark":
            continue
        for case in cases(operator):
            x = np.resize(case.inputs[0], shape)
            if len(shape) > 1 or case.opset >= 14:
                assert_right(case, model_of(case, "nothing"), x)


@pytest.mark.parametrize("lengths", [[None, None], [1, 1], None], ids=str)
@pytest.mark.parametrize("between", ["", "Identity"])
@pytest.mark.parametrize("operators", ONNX_ONLY)
def test_beside_products(lengths, between, operators):
    """ONNX Runtime fuses a constant factor of one element into a MatMul, and not one that it cannot compute before the run."""
    quantized = "QuantizeLinear (a, s, z)  d = DequantizeLinear (q, s, z)"
    inner = f"b = {between} (d)  y = MatMul (b, v)" if between else "y = MatMul (d, v)"
    source = text_model(
        f"(float[2, 2] u, float[2, 2] v) => (float[2, 2] y) {{ a = MatMul (u, v)  q = {quantized}  {inner} }}",
        opset=17,
        s=np.float32(0.3),
        z=np.int8(0),
    )
    for each in (*source.graph.input, *source.graph.output):
        each.CopyFrom(helper.make_tensor_value_info(each.name, onnx.TensorProto.FLOAT, lengths))
    result = rewrite_model(source, Settings(operators=operators))
    assert not result.left
    rng = np.random.default_rng(3)
    shape = (1, 1) if lengths == [1, 1] else (7, 7)
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name in "uv"}
    ys = [
        plain_session(result.model, level=level).run(None, feeds)[0]
        for level in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
    ]
    for y in ys[1:]:
        oracle.assert_same_bits(y, ys[0])


@pytest.mark.parametrize("known", ["rank", "nothing"])
def test_small_codes(known):
    """ONNX Runtime has neither a Shape nor a Concat of 4 bits and of float8."""
    codes = {"int4": ml_dtypes.int4, "float8e5m2": ml_dtypes.float8_e5m2}
    for each in WITH_FORMS:
        if each.name != "DequantizeLinear" or each.domain or each.since_version < 21:
            continue
        for case in cases(each):
            for dtype in codes.values():
                x, scale = case.inputs[0] % 7, case.inputs[1]
                small = case._replace(inputs=[x.astype(dtype), scale, np.zeros(scale.shape, dtype)])
                assert_right(small, model_of(small, known, are_constants=False))
