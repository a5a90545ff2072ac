"""ExtendedInstanceNormalization and ExtendedLSTM against recorded results of Quark's library, and against the oracle."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import other_operators
import other_operators_oracle as oracle
import pytest
from onnx import TensorProto, checker, helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx_models import assert_inference_refuses, infers, session
from other_operators import INPUTS, LSTM, NORMALIZATION, nodes_of, one_node, probes, random_lstm
from text_graphs import text_nodes

import quark_numba
from quark_numba import extended_instance_normalization, extended_lstm, from_tensor_proto, optimize, to_tensor_proto
from quark_numba.ort.nodes import recurrent
from quark_numba.ort.operators import node_function
from quark_numba.recurrent.fixed_point import layer_of

CALLS = {NORMALIZATION: extended_instance_normalization, LSTM: extended_lstm}
ORACLES = {
    NORMALIZATION: oracle.instance_normalization,
    LSTM: lambda *arrays, **attributes: oracle.lstm(*arrays, **other_operators.of_layer(attributes)),
}
RANDOM = {NORMALIZATION: other_operators.random_normalization, LSTM: random_lstm}

operators = pytest.mark.parametrize("operator", [NORMALIZATION, LSTM])


def assert_same(y, expected):
    """Assert that both arrays have the same bits, except for the bits of NaN."""
    assert y.dtype == expected.dtype == np.float32
    assert y.shape == expected.shape
    same = (y.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(y) & np.isnan(expected))
    assert same.all(), (np.argwhere(~same)[:3].tolist(), y[~same][:3], expected[~same][:3])


def assert_as_of_library(y, expected, attributes):
    if oracle.HAS_SAME_TANHF or "y_scale" not in attributes:
        assert_same(y, expected)
    else:
        np.testing.assert_allclose(y, expected, rtol=0, atol=4 * attributes["y_scale"])


def is_in_range(flags):
    return not flags & other_operators.OUT_OF_RANGE


@pytest.mark.parametrize("name", ["tagger_u16", "style_xint8", "style_bf16"])
@pytest.mark.slow
def test_nodes_of_models(name):
    for operator, attributes, arrays, y in nodes_of(name):
        if is_affordable(y):
            assert_as_of_library(CALLS[operator](*arrays, **attributes), y, attributes)


def is_affordable(array):
    return not numba.config.DISABLE_JIT or array.size < 3000


@pytest.mark.slow
@operators
def test_probes(operator):
    """Results agree with Quark's library if everything is in range, and with the oracle in all cases."""
    in_range = 0
    for attributes, arrays, y, flags in probes(operator):
        if not is_affordable(y):
            continue
        found = CALLS[operator](*arrays, **attributes)
        if is_in_range(flags):
            in_range += 1
            assert_as_of_library(found, y, attributes)
        if y.size < 2000:
            assert_same(found, ORACLES[operator](*arrays, **attributes))
    assert in_range > 20


@operators
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=[pytest.mark.slow, pytest.mark.compiled]) for n in range(50, 500, 50))]
)
@pytest.mark.by_default(1)
def test_random_nodes(operator, first):
    for seed in range(first, first + 50):
        attributes, arrays = RANDOM[operator](seed)
        assert_same(CALLS[operator](*arrays, **attributes), ORACLES[operator](*arrays, **attributes))


@pytest.mark.compiled
@operators
@pytest.mark.parametrize("constants", [False, True], ids=["fed", "constants"])
@pytest.mark.parametrize(("domain", "threads"), [("com.amd.quark", 1), ("com.amd.quark", 2), ("com.vai.quantize", 2)])
@pytest.mark.slow
def test_sessions(operator, domain, threads, constants):
    """Sessions give the results of calls, for small, large and empty inputs, and for inputs of random bits."""
    cases = [each[:2] for each in probes(operator)[::7]] + [RANDOM[operator](seed) for seed in range(20)]
    cases += [each[1:3] for each in nodes_of("tagger_u16" if operator == LSTM else "style_xint8")[:2]]
    for attributes, arrays in cases:
        node = session(one_node(operator, attributes, arrays, constants=constants, domain=domain), threads=threads)
        names = INPUTS[operator][:1] if constants else INPUTS[operator]
        (y,) = node.run(None, dict(zip(names, arrays, strict=False)))
        assert_same(y, CALLS[operator](*arrays, **attributes))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("operator", [NORMALIZATION, LSTM])
def test_sessions_of_extensions(operator):
    """The extensions backend needs the attributes that Quark writes, and gets six digits of every scale."""
    for attributes, arrays, _, _ in probes(operator)[:12]:
        written = {"epsilon": 1e-5} | attributes if operator == NORMALIZATION else {"layout": 0} | attributes
        node = session(one_node(operator, written, arrays), backend="extensions")
        (y,) = node.run(None, dict(zip(INPUTS[operator], arrays, strict=True)))
        expected = CALLS[operator](*arrays, **attributes)
        if operator == NORMALIZATION:
            assert_same(y, expected)
        else:
            np.testing.assert_allclose(y, expected, rtol=0, atol=8 * attributes["y_scale"])


@pytest.mark.by_default(1)
@operators
def test_reference_evaluator(operator):
    for seed in range(12):
        attributes, arrays = RANDOM[operator](seed)
        evaluator = ReferenceEvaluator(one_node(operator, attributes, arrays), new_ops=quark_numba.reference_ops())
        (y,) = evaluator.run(None, dict(zip(INPUTS[operator], arrays, strict=True)))
        assert_same(y, CALLS[operator](*arrays, **attributes))


@pytest.mark.by_default(1)
@operators
def test_optimize_computes_constants(operator):
    attributes, arrays = RANDOM[operator](0)
    constant = one_node(operator, attributes, arrays, constants=True)
    constant.graph.initializer.append(to_tensor_proto(arrays[0], "x"))
    del constant.graph.input[:]
    constant.graph.node.extend(text_nodes("z = Identity (y)"))
    constant.graph.output[0].name = "z"
    optimized = optimize(constant)
    assert [node.op_type for node in optimized.graph.node] == ["Identity"]
    (y,) = [from_tensor_proto(each) for each in optimized.graph.initializer if each.name == "y"]
    assert_same(y, CALLS[operator](*arrays, **attributes))


@pytest.mark.compiled
@operators
@pytest.mark.slow
def test_optimize_beside_them(operator):
    """The nodes downstream become a region. Its shape is that of the node's output, which differs from that of a layer's x."""
    attributes, arrays = ({}, nodes_of("style_xint8")[2][2]) if operator == NORMALIZATION else nodes_of("tagger_u16")[0][1:3]
    source, last = one_node(operator, attributes, arrays, constants=True), CALLS[operator](*arrays, **attributes).shape[-1]
    scales, added = np.linspace(0.01, 0.02, last, dtype=np.float32), np.linspace(-1, 1, last, dtype=np.float32)
    constants = {"scales": scales, "zeros": np.zeros(last, np.int8), "added": added}
    source.graph.initializer.extend(to_tensor_proto(array, name) for name, array in constants.items())
    source.graph.node.extend(
        text_nodes("""
            positive = Relu (y)
            rounded = quark_numba.QuantizeDequantizeLinear <axis = -1> (positive, scales, zeros)
            z = Add (rounded, added)
        """)
    )
    source.opset_import.append(helper.make_opsetid("quark_numba", 1))
    source.graph.output[0].name = "z"
    optimized = optimize(source)
    assert [node.op_type for node in optimized.graph.node] == [operator, "Region"]
    (expected,), (z,) = (session(each).run(None, {"x": arrays[0]}) for each in (source, optimized))
    assert_same(z, expected)


@pytest.mark.slow
def test_sequences_of_a_batch_are_as_if_alone():
    attributes, (x, *weights), _ = nodes_of("tagger_u16")[0][1:]
    x = np.concatenate([x[:20], x[20:40], -x[:20]], axis=1)
    y = extended_lstm(x, *weights, **attributes)
    for n in range(3):
        assert_same(y[:, :, n : n + 1], extended_lstm(x[:, n : n + 1], *weights, **attributes))


def test_layouts_of_arrays():
    attributes, arrays = other_operators.random_normalization(3)
    y = extended_instance_normalization(*arrays, **attributes)
    assert_same(extended_instance_normalization(np.asfortranarray(arrays[0]), arrays[1].tolist(), arrays[2], **attributes), y)
    attributes, (x, w, r, b) = random_lstm(3)
    y = extended_lstm(x, w, r, b, **attributes)
    assert_same(
        extended_lstm(np.asfortranarray(x), w.astype(">f4"), np.repeat(r, 2, axis=2)[:, :, ::2], b.tolist(), **attributes), y
    )


@pytest.mark.slow
@pytest.mark.compiled
def test_runs_of_one_session_at_the_same_time():
    """The runs have different lengths. They come from several threads, which run other sessions too."""
    attributes, (x, *weights), _ = nodes_of("tagger_u16")[0][1:]
    sessions = [session(one_node(LSTM, attributes, [x, *weights], constants=constants)) for constants in (True, False)]
    scales = [np.float32(factor) for factor in (1, 0.5)]
    norm = nodes_of("style_xint8")[2][2]
    sessions.append(session(one_node(NORMALIZATION, {}, norm, constants=True)))
    expected = {n: extended_lstm(x[:n], *weights, **attributes) for n in (1, 7, 30, 60)}
    normalized = [extended_instance_normalization(norm[0] * scale, *norm[1:]) for scale in scales]

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(25):
            n, k = int(rng.choice(list(expected))), int(rng.integers(0, 2))
            feeds = {"x": x[:n]} | (dict(zip("wrb", weights, strict=True)) if k else {})
            assert_same(sessions[k].run(None, feeds)[0], expected[n])
            assert_same(sessions[2].run(None, {"x": norm[0] * scales[k]})[0], normalized[k])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))


LAYER = random_lstm(3)[0] | {"hidden_size": 4}
SHAPES = {
    NORMALIZATION: {"x": (2, 3, 5), "scale": (3,), "bias": (3,)},
    LSTM: {"x": (5, 1, 6), "w": (2, 16, 6), "r": (2, 16, 4), "b": (2, 32)},
}
OF_BOTH = "for hidden_size 4; there are layers of both directions only"
WRONG_SHAPES = [
    (NORMALIZATION, {"x": (7,)}, r"x has shape .7,?.; expected at least two dimensions"),
    (NORMALIZATION, {"x": ()}, r"x has shape (\(\)|\[\]); expected at least two dimensions"),
    (NORMALIZATION, {"scale": (2,)}, r"scale has shape .2,?., x .2, 3, 5.; expected at least as many elements as x has"),
    (NORMALIZATION, {"bias": (1, 1)}, r"bias has shape .1, 1., x .2, 3, 5.; expected at least"),
    (LSTM, {"x": (5, 6)}, r"x has shape .5, 6.; expected \(sequence length, batch, input size\)"),
    (LSTM, {"x": (5, 1, 7)}, rf"w has shape .2, 16, 6., x .5, 1, 7.; expected \(2, 4 \* hidden_size, input size\) {OF_BOTH}"),
    (LSTM, {"w": (1, 16, 6), "r": (1, 16, 4), "b": (1, 32)}, rf"w has shape .1, 16, 6., x .5, 1, 6.; .* {OF_BOTH}"),
    (LSTM, {"w": (2, 12, 6), "r": (2, 12, 3), "b": (2, 24)}, "w has shape .2, 12, 6."),
    (LSTM, {"r": (2, 4, 16)}, rf"r has shape .2, 4, 16.; expected \(2, 4 \* hidden_size, hidden_size\) {OF_BOTH}"),
    (LSTM, {"b": (2, 16)}, rf"b has shape .2, 16.; expected \(2, 8 \* hidden_size\) {OF_BOTH}"),
]
wrong_shapes = pytest.mark.parametrize(("operator", "shapes", "message"), WRONG_SHAPES)
ATTRIBUTES = {NORMALIZATION: {}, LSTM: LAYER}


def zeros(operator, shapes=None):
    return [np.zeros(shape, np.float32) for shape in (SHAPES[operator] | (shapes or {})).values()]


def node_of_zeros(operator, attributes=None, **named):
    """Return a model of one node for inputs of the right shapes."""
    return one_node(operator, ATTRIBUTES[operator] | (attributes or {}), zeros(operator), **named)


@wrong_shapes
def test_wrong_shapes_of_calls(operator, shapes, message):
    with pytest.raises(ValueError, match=message):
        CALLS[operator](*zeros(operator, shapes), **ATTRIBUTES[operator])


@pytest.mark.compiled
@wrong_shapes
@pytest.mark.slow
def test_wrong_shapes_of_sessions(operator, shapes, message):
    """A session refuses wrong shapes when it loads if they are known, otherwise when it runs."""
    arrays = zeros(operator, shapes)
    node = session(one_node(operator, ATTRIBUTES[operator], arrays))
    with pytest.raises(Exception, match=f"{operator}: {message}"):
        node.run(None, dict(zip(INPUTS[operator], arrays, strict=True)))
    if arrays[0].ndim:
        known = SHAPES[operator] | shapes
        with pytest.raises(Exception, match=message):
            session(one_node(operator, ATTRIBUTES[operator], arrays, constants=True, shapes=known))


@infers
@wrong_shapes
def test_wrong_shapes_of_shape_inference(operator, shapes, message):
    node = one_node(operator, ATTRIBUTES[operator], zeros(operator, shapes), shapes=SHAPES[operator] | shapes)
    assert_inference_refuses(node, message)


@infers
@pytest.mark.parametrize(
    ("operator", "shapes", "y"),
    [
        (NORMALIZATION, {"x": ("n", 3, "h"), "scale": (3,), "bias": (4,)}, ["n", 3, "h"]),
        (NORMALIZATION, {"x": ("n", "c"), "scale": ("c",), "bias": ("c",)}, ["n", "c"]),
        (NORMALIZATION, {"x": (1, 3, 4)}, [1, 3, 4]),
        (LSTM, {"x": ("s", 3, 6), "w": (2, 16, 6), "r": (2, 16, 4), "b": (2, 32)}, [None, 2, 3, 4]),
        (LSTM, {"x": ("s", "n", "i"), "w": ("d", "g", 6)}, [None, 2, None, 4]),
        (LSTM, {}, [None, 2, None, 4]),
    ],
)
def test_shape_inference(operator, shapes, y):
    quark_numba.register_schemas()
    inferred = shape_inference.infer_shapes(node_of_zeros(operator, shapes=shapes), strict_mode=True)
    inferred = inferred.graph.output[0].type.tensor_type
    assert inferred.elem_type == TensorProto.FLOAT
    sizes = [each.dim_value if each.HasField("dim_value") else each.dim_param for each in inferred.shape.dim]
    assert [None if str(each).startswith("unk__") else each for each in sizes] == y


@operators
def test_checker(operator):
    quark_numba.register_schemas()
    y = {NORMALIZATION: (2, 3, 5), LSTM: (5, 2, 1, 4)}[operator]
    checker.check_model(node_of_zeros(operator, shapes=SHAPES[operator] | {"y": y}), full_check=True)


WRONG_ATTRIBUTES = [
    ({"hidden_size": 0}, "hidden_size is 0; expected an integer from 1 to 268435455"),
    ({"hidden_size": -4}, "hidden_size is -4; expected an integer from 1 to 268435455"),
    ({"hidden_size": 2**40}, "hidden_size is 1099511627776; expected an integer from 1 to 268435455"),
    ({"layout": 1}, "layout is 1; expected 0"),
    ({"input_forget": 1}, "input_forget is 1; expected 0"),
    *(({f"{name}_scale": 0.0}, f"{name}_scale is 0.0; expected a finite, positive float32") for name in "xwrby"),
    ({"y_scale": -1.0}, "y_scale is -1.0; expected a finite"),
    ({"x_scale": float("inf")}, "x_scale is inf; expected a finite"),
    ({"r_scale": float("nan")}, "r_scale is nan; expected a finite"),
    ({"x_scale": 1e30, "w_scale": 1e30}, "x_scale . w_scale is .*, beyond float32"),
    ({"y_scale": 1e30, "r_scale": 1e30}, "y_scale . r_scale is .*, beyond float32"),
]
wrong_attributes = pytest.mark.parametrize(("attributes", "message"), WRONG_ATTRIBUTES)


@wrong_attributes
def test_wrong_attributes_of_calls(attributes, message):
    with pytest.raises(ValueError, match=message):
        extended_lstm(*zeros(LSTM), **LAYER | attributes)


@pytest.mark.compiled
@wrong_attributes
def test_wrong_attributes_of_sessions(attributes, message):
    with pytest.raises(Exception, match=message):
        session(node_of_zeros(LSTM, attributes))


@pytest.fixture(scope="module")
def settled():
    """Return the function that sets attributes of a new state as libraries do. It returns the layer, or None if one is
    invalid."""
    set_attributes = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2)(node_function("recurrent", "set_attributes"))

    def layer_for(attributes):
        state, words = np.zeros((), recurrent.STATE), np.zeros(len(recurrent.FREE_ATTRIBUTES), np.int64)
        for i, name in enumerate(recurrent.FREE_ATTRIBUTES):
            if name.endswith("_scale"):
                words[i : i + 1].view(np.float32)[0] = attributes[name]
            elif name != "direction":
                words[i] = attributes[name]
        return state["layer"] if set_attributes(state.ctypes.data, words.ctypes.data) else None

    return layer_for


@pytest.mark.compiled
@pytest.mark.slow
def test_attributes_of_libraries(settled):
    """Libraries take the attributes that sessions take, and make the same layer of them."""
    for attributes in ({}, {"hidden_size": (1 << 28) - 1}, {"x_zero_point": -1, "b_zero_point": 1 << 40, "y_scale": 1e-30}):
        assert settled(LAYER | attributes) == layer_of({"layout": 0, "input_forget": 0} | LAYER | attributes)[0], attributes
    for attributes, _ in WRONG_ATTRIBUTES:
        if not attributes.keys() & {"layout", "input_forget"}:
            assert settled(LAYER | attributes) is None, attributes


@infers
@wrong_attributes
def test_wrong_attributes_of_shape_inference(attributes, message):
    assert_inference_refuses(node_of_zeros(LSTM, attributes), message)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["hidden_size", *(f"{a}_{b}" for a in "xwrby" for b in ("scale", "zero_point"))])
@pytest.mark.by_default(4)
def test_missing_attributes(name):
    attributes = dict(LAYER)
    value = attributes.pop(name)
    with pytest.raises(Exception, match=f"attribute {name} is missing"):
        session(one_node(LSTM, attributes, zeros(LSTM)))
    another_kind = int(value) if name.endswith("scale") else float(value)
    with pytest.raises(Exception, match=f"attribute {name}: .*expected"):
        session(node_of_zeros(LSTM, {name: another_kind}))


@pytest.mark.compiled
def test_epsilon_of_another_kind():
    with pytest.raises(Exception, match=r"attribute epsilon: .*expected FLOAT"):
        session(node_of_zeros(NORMALIZATION, {"epsilon": 1}))


@pytest.mark.compiled
@operators
def test_inputs_and_outputs_of_another_number(operator):
    for message, change in (
        ("(?i)put", lambda graph: graph.node[0].input.pop()),
        ("(?i)put", lambda graph: graph.node[0].input.append("x")),
        ("(?i)put", lambda graph: graph.node[0].output.append("z")),
        (operator, lambda graph: graph.node[0].input.__setitem__(2, "")),
        (r"tensor\(float16\)", lambda graph: setattr(graph.input[0].type.tensor_type, "elem_type", TensorProto.FLOAT16)),
    ):
        wrong = node_of_zeros(operator)
        change(wrong.graph)
        with pytest.raises(Exception, match=message):
            session(wrong)


@pytest.mark.slow
def test_directions_are_two():
    """A layer has two directions, whatever the attribute says. Tests above check that weights of one direction are refused."""
    attributes, arrays = random_lstm(3)
    for direction in ("forward", "reverse"):
        assert_same(extended_lstm(*arrays, **attributes, direction=direction), extended_lstm(*arrays, **attributes))


@pytest.mark.parametrize(
    ("operator", "arguments", "error", "message"),
    [
        (LSTM, {"x": np.zeros((5, 1, 6))}, TypeError, "x has element type float64; expected float32: write x.astype"),
        (LSTM, {"w": np.zeros((2, 16, 6), np.int8)}, TypeError, "w has element type int8; expected float32"),
        (LSTM, {"b": "b"}, TypeError, "b has"),
        (LSTM, {"x_scale": "1"}, TypeError, "x_scale is '1'; expected a number"),
        (LSTM, {"x_zero_point": 0.5}, TypeError, "x_zero_point is 0.5; expected an integer"),
        (LSTM, {"hidden_size": "4"}, TypeError, "hidden_size is '4'; expected an integer"),
        (NORMALIZATION, {"x": np.zeros((2, 3, 5), np.float16)}, TypeError, "x has element type float16; expected float32"),
        (NORMALIZATION, {"scale": np.ma.masked_array([1, 2, 3])}, TypeError, "scale is a masked array"),
        (NORMALIZATION, {"epsilon": "1"}, TypeError, "epsilon is '1'; expected a number"),
    ],
)
def test_wrong_arguments(operator, arguments, error, message):
    given = dict(zip(INPUTS[operator], zeros(operator), strict=True)) | ATTRIBUTES[operator]
    with pytest.raises(error, match=message):
        CALLS[operator](**given | arguments)
