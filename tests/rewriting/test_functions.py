"""Local functions with the package's operators are inlined. The results equal those of ONNX Runtime, which itself inlines the
same functions with ONNX's own operators."""

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx_models import session
from rewritten_models import exact_session

import quark_numba
from quark_numba.rewriting.functions import INLINED
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled

FEEDS = {
    "x": np.array([-1.5, 0.2, 3], np.float32),
    "m": np.array([[0.4, -7, 1.1]], np.float32),
    "flag": np.array(True),
    "n": np.array(3),
}
PARAMETERS = "<float s = {0.3}, int8 z = {1}>"


def parsed(graph, *functions, ours=True, imports='"" : 21'):
    """Return the model of a text in which Q and D stand for the package's operators, or for ONNX's own."""
    text = f'<ir_version: 10, opset_import: ["" : 21, "l" : 1, "com.amd.quark" : 1]>\n{graph}'
    for function in functions:
        text += f'\n<opset_import: [{imports}, "l" : 1, "com.amd.quark" : 1], domain: "l">\n{function}'
    made = parser.parse_model(text)
    waiting = [made.graph, *made.functions]
    while waiting:
        for node in waiting.pop().node:
            if node.op_type in ("Q", "D"):
                name = {"Q": "QuantizeLinear", "D": "DequantizeLinear"}[node.op_type]
                node.op_type, node.domain = (f"Extended{name}", "com.amd.quark") if ours else (name, "")
            waiting += [each.g for each in node.attribute if each.HasField("g")]
    for function in made.functions:  # F__one becomes the overload `one` of F
        name, _, function.overload = function.name.partition("__")
        function.name = name
    for node in [*made.graph.node, *(node for function in made.functions for node in function.node)]:
        if node.domain == "l":
            node.op_type, _, node.overload = node.op_type.partition("__")
    return made


def run(made):
    """Return the outputs of a session by name."""
    names = [each.name for each in made.get_outputs()]
    return dict(zip(names, made.run(None, {each.name: FEEDS[each.name] for each in made.get_inputs()}), strict=True))


def check(*texts, imports='"" : 21', calls=None):
    """Assert that `optimize` leaves no function. Assert that the package's session and a session of the optimized model give
    the same results as ONNX's own operators. Return the optimized model."""
    expected = run(exact_session(parsed(*texts, ours=False)))
    whole = parsed(*texts, imports=imports)
    before = whole.SerializeToString()
    result = rewrite_model(whole)
    assert whole.SerializeToString() == before
    assert not result.model.functions
    inlined = {name: count for (name, what), count in result.done.items() if what == INLINED}
    if calls is not None:
        assert inlined == calls
    for made in (quark_numba.InferenceSession(whole), session(result.model)):
        outputs = run(made)
        assert list(outputs) == list(expected)
        for name, y in outputs.items():
            np.testing.assert_array_equal(y, expected[name])
    quark_numba.register_schemas()
    onnx.checker.check_model(result.model)
    return result.model


ACT = "QAct (x, s, z) => (y) { q = Q (x, s, z) y = D (q, s, z) }"


def test_what_was_in_a_function_is_rewritten_as_all_else():
    whole = check(
        f"g (float[3] x) => (float[3] out) {PARAMETERS} {{ a = l.QAct (x, s, z) r = Relu (a) out = l.QAct (r, s, z) }}",
        ACT,
        calls={"l::QAct": 2},
    )
    assert [node.op_type for node in whole.graph.node] == ["Region"]
    whole = check(
        "g (float[3] x) => (float[3] out) <float s = {0.3}, int8 z = {1}, float[3] c = {1, 2, 3}> "
        "{ d = l.QAct (c, s, z) out = Add (x, d) }",
        ACT,
    )
    assert [node.op_type for node in whole.graph.node] == ["Add"]  # QAct of a constant is folded


G = "g (float[3] x) => (float[3] out)"
IF = "g (float[3] x, bool flag) => (float[3] out)"
MATRIX = "g (float[1,3] m) => (float[1,3] out) <float[3] s = {0.3, 0.4, 1}, int8[3] z = {1, 2, 3}>"
AXIS = "<axis: int = @axis>"


def with_axis(call, attribute):
    """Return the texts of a model and its functions, of which one has an attribute by reference."""
    return (
        f"{MATRIX} {{ out = {call} }}",
        f"P <{attribute}> (x, s, z) => (y) {{ q = Q {AXIS} (x, s, z) y = D {AXIS} (q, s, z) }}",
        "Around <a> (x, s, z) => (y) { y = l.P <axis: int = @a> (x, s, z) }",
    )


@pytest.mark.parametrize(
    "texts",
    [
        (
            f"{G} {PARAMETERS} {{ out = l.Two (x, s, z) }}",
            "Two (x, s, z) => (y) { t = l.QAct (x, s, z) r = Abs (t) y = l.QAct (r, s, z) }",
            ACT,
        ),
        (f"{G} {PARAMETERS} {{ out = l.Outer (x, s, z) }}", "Outer (x, s, z) => (y) { y = l.QAct (x, s, z) }", ACT),
        # An attribute by reference: given by the call, by its default, left out, or given by the outer call.
        with_axis("l.P <axis = 1> (m, s, z)", "axis: int = 0"),
        with_axis("l.P (m, s, z)", "axis: int = 1"),
        with_axis("l.P (m, s, z)", "axis"),
        with_axis("l.Around <a = 1> (m, s, z)", "axis: int = 0"),
        # A zero point that the call leaves out.
        (f"{G} {PARAMETERS} {{ out = l.QAct (x, s) }}", ACT),
        (f'{G} {PARAMETERS} {{ out = l.QAct (x, s, "") }}', ACT),
        # An output that the call leaves out.
        (
            f'{G} {PARAMETERS} {{ "", out = l.F (x, s, z) }}',
            "F (x, s, z) => (a, y) { a = Neg (x) q = Q (a, s, z) y = D (q, s, z) }",
        ),
        # The names of the function's values are in use: upstream, downstream, for an initializer, as new names, in a subgraph.
        (f"{G} {PARAMETERS} {{ q = Neg (x) y = l.QAct (q, s, z) out = Add (q, y) }}", ACT),
        (f"{G} {PARAMETERS} {{ a = l.QAct (x, s, z) q = Exp (a) y = Add (q, a) out = l.QAct (y, s, z) }}", ACT),
        (f"{G} <float s = {{0.3}}, int8 z = {{1}}, float[3] q = {{1, 2, 3}}> {{ y = l.QAct (x, s, z) out = Add (y, q) }}", ACT),
        (
            f'{G} {PARAMETERS} {{ "q/QAct" = Neg (x) "q_2" = l.QAct ("q/QAct", s, z) y = l.QAct ("q_2", s, z) out = Abs (y) }}',
            ACT,
        ),
        (
            f"{IF} {PARAMETERS} {{ a = l.QAct (x, s, z) out = If (flag) <then_branch = t () => (o) "
            "{ q = Exp (a) y = Neg (q) o = Add (q, y) }, else_branch = e () => (p) { p = Neg (a) }> }",
            ACT,
        ),
        # A call in a subgraph, and a subgraph in a function, which captures the function's values.
        (
            f"{IF} {PARAMETERS} {{ out = If (flag) <then_branch = t () => (o) {{ o = l.QAct (x, s, z) }}, "
            "else_branch = e () => (p) { p = Neg (x) }> }",
            ACT,
        ),
        (
            f"{IF} {PARAMETERS} {{ a = l.F (x, flag, s, z) b = Exp (a) out = l.F (b, flag, s, z) }}",
            "F (x, c, s, z) => (y) { r = Neg (x) y = If (c) <then_branch = t () => (o) { q = Q (r, s, z) o = D (q, s, z) }, "
            "else_branch = e () => (p) { p = Identity (r) }> }",
        ),
        (
            f"{IF} {PARAMETERS} {{ a = l.F (x, flag, s, z) b = Exp (a) out = l.F (b, flag, s, z) }}",
            "F (x, c, s, z) => (y) { y = If (c) <then_branch = t () => (o) <float[3] k = {4, 5, 6}> "
            "{ r = Add (x, k) q = Q (r, s, z) o = D (q, s, z) }, "
            "else_branch = e () => (p) <float[3] k = {4, 5, 7}> { p = Neg (k) }> }",
        ),
        (
            f"g (float[3] x, int64 n, bool flag) => (float[3] out) {PARAMETERS} {{ out = Loop (n, flag, x) <body = b "
            "(int64 i, bool c, float[3] v) => (bool d, float[3] y) { d = Identity (c) t = l.QAct (v, s, z) y = Add (t, t) }> }",
            ACT,
        ),
        # Overloads. Nothing calls the third.
        (
            f"{G} {PARAMETERS} {{ a = l.F__one (x, s, z) out = l.F__two (a, s, z) }}",
            "F__one (x, s, z) => (y) { q = Q (x, s, z) y = D (q, s, z) }",
            "F__two (x, s, z) => (y) { n = Neg (x) q = Q (n, s, z) y = D (q, s, z) }",
            "F__three (x, s, z) => (y) { y = Q (x, s, z) }",
        ),
        # A function with its own constants.
        (
            f"{G} {{ a = l.F (x) out = l.F (a) }}",
            "F (x) => (y) { s = Constant <value = float {0.3}> () z = Constant <value = int8 {1}> () q = Q (x, s, z) "
            "y = D (q, s, z) }",
        ),
    ],
)
@pytest.mark.by_default(3)
def test_functions(texts):
    check(*texts)


def test_other_functions_stay():
    whole = parsed(
        f"{G} {PARAMETERS} {{ a = l.QAct (x, s, z) out = l.Plain (a) }}", ACT, "Plain (x) => (y) { t = Neg (x) y = Abs (t) }"
    )
    result = rewrite_model(whole)
    assert [each.name for each in result.model.functions] == ["Plain"]
    expected = np.abs(quark_numba.quantize_dequantize(FEEDS["x"], 0.3, np.int8(1)))
    np.testing.assert_array_equal(run(quark_numba.InferenceSession(whole))["out"], expected)


def test_opsets():
    """A function whose opset differs from that of the model is inlined if its operators are the same in both opsets. Otherwise
    it stays, with all functions that it calls, and their quantization nodes are listed."""
    text = f"{G} {PARAMETERS} {{ a = l.F (x, s, z) out = l.QAct (a, s, z) }}"
    relu = "F (x, s, z) => (y) { n = Relu (x) y = l.QAct (n, s, z) }"
    check(text, relu, ACT, imports='"" : 17', calls={"l::F": 1, "l::QAct": 2})
    whole = parsed(text, "F (x, s, z) => (y) { n = Softmax (x) y = l.QAct (n, s, z) }", ACT, imports='"" : 11')
    result = rewrite_model(whole)
    assert [each.name for each in result.model.functions] == ["F", "QAct"]
    why = "in a function that stays: F has ai.onnx::Softmax of opset 11, the model of opset 21"
    assert result.left == {(f"com.amd.quark::Extended{name}Linear", why): 1 for name in ("Quantize", "Dequantize")}
    assert not result.done


def test_the_command_says_what_was_done(tmp_path, terminal):
    path, out = str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")
    onnx.save(parsed(f"{G} {PARAMETERS} {{ out = l.QAct (x, s, z) }}", ACT), path)
    assert {"operator": "l::QAct", "nodes": 1, "what": INLINED} in terminal.report("optimize", path, out)["done"]


def test_a_session_of_the_model_as_it_is_needs_types():
    """ONNX Runtime infers no types for the outputs of a call, so the model has to declare them."""
    whole = parsed(f"{G} {PARAMETERS} {{ a = l.QAct (x, s, z) out = Neg (a) }}", ACT)
    expected = run(quark_numba.InferenceSession(whole))["out"]
    with pytest.raises(Exception, match="type inference failed"):
        session(whole)
    whole.graph.value_info.append(helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, None))
    for made in (session(whole), quark_numba.InferenceSession(whole)):
        np.testing.assert_array_equal(run(made)["out"], expected)


def test_evaluate_and_analyze():
    """Both take a model that ONNX Runtime does not load as it is, and use the defaults of a function's attributes."""
    whole = parsed(
        f"{G} {PARAMETERS} {{ a = l.F (x, s, z) out = Neg (a) }}",
        "F <alpha: float = 0.5> (x, s, z) => (y) { r = LeakyRelu <alpha: float = @alpha> (x) q = Q (r, s, z) y = D (q, s, z) }",
    )
    x = FEEDS["x"]
    leaky = np.where(x < 0, np.float32(0.5) * x, x)
    rounded = quark_numba.quantize_dequantize(leaky, 0.3, np.int8(1))
    for function in (quark_numba.analyze, quark_numba.evaluate):
        (output,) = function(whole, [x]).outputs
        assert output.sqnr_db == pytest.approx(10 * np.log10(np.sum(leaky**2.0) / np.sum((rounded - leaky) ** 2.0)))
