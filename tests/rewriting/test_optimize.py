"""`optimize` as a whole, sessions and commands: rewritten nodes give the same bits as before, and everything else stays."""

import itertools
import os
import re

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
import textline
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import sizes
from onnx import helper
from onnx_models import model, parsed, session_options
from rewritten_models import (
    DQ,
    VARIANTS,
    Q,
    X,
    assert_rewritten,
    assert_same_values,
    constant,
    exact_session,
    floats,
    operators,
    pair,
    scale_and_zero_point,
)

import quark_numba
from quark_numba import ModelError, cli, optimize
from quark_numba.models import model_files
from quark_numba.rewriting.constants import CONSTANT, INPUT
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.pairs import FUSED

pytestmark = pytest.mark.compiled

# Whole models that Quark wrote.


@pytest.mark.parametrize("keep_quantized_weights", [False, True], ids=["floats", "codes"])
@pytest.mark.parametrize("variant", [*VARIANTS, "a8w8"])
@pytest.mark.covering
@pytest.mark.by_default(1, slow=6)
def test_every_place_in_real_models(variant, keep_quantized_weights):
    before = onnx.load(textline.path_of(variant))
    after = optimize(before, keep_quantized_weights=keep_quantized_weights)
    names = assert_same_values(before, after, {"x": textline.X})
    quantizes, rewritten = ([node for node in each.graph.node if "uantize" in node.op_type] for each in (before, after))
    assert {node.output[0] for node in rewritten} <= set(names)
    assert len(rewritten) < len(quantizes)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.by_default(1)
def test_whole_real_models(variant):
    """At the level "all", ONNX Runtime gives convolutions with constant weights another layout, so last bits differ. A last bit
    may flip a rounding to float16, and a float16 output has only 11 bits."""
    for level, tolerance in [("EXTENDED", 1e-5), ("ALL", 2**-11 if variant == "fp16" else 1e-5)]:
        outputs = []
        for make in (onnxruntime.InferenceSession, quark_numba.InferenceSession):
            options = session_options(f"ENABLE_{level}", disable_quant_qdq="1")
            quark_numba.register(options)
            outputs += make(textline.path_of(variant), options, providers=["CPUExecutionProvider"]).run(None, {"x": textline.X})
        np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=tolerance)


# Generated graphs.


NAMES = ["uint8", "int8", "bfloat16", "int16", "int32"]


@st.composite
def graphs(draw, names):
    """Return a random model, and whether to keep codes. The model may have chains, fan-outs, shared and equal parameters,
    outputs in the middle, scales per axis, missing zero points and constants."""
    initializers = floats(weight=np.random.default_rng(44).normal(0, 3, X.shape))
    nodes, sources = [], ["x", "weight"]
    codes: list[tuple[str, str, tuple]] = []
    sets = []
    for i in range(draw(st.integers(1, 3))):
        name, per_axis = draw(st.sampled_from(names)), draw(st.booleans())
        axis = draw(st.sampled_from([-2, 0, 1, 2])) if per_axis else 1
        scales = draw(st.sampled_from([[0.25], [0.1, 2.0], [1.0]]))
        scale = np.resize(np.float32(scales), X.shape[axis] if per_axis else ())
        low = draw(st.sampled_from([0, 1])) if name != "bfloat16" else draw(st.sampled_from([0, 0.5]))
        zeros = np.full(scale.shape, low).astype(oracle.dtype(name))
        initializers += [constant(f"scale{i}", scale), constant(f"zero{i}", zeros)]
        zero_point = [f"zero{i}"] if name != "uint8" or low or draw(st.booleans()) else []
        sets.append((name, [f"scale{i}", *zero_point], {"axis": axis}))
        if draw(st.booleans()):  # equal parameters with other names
            initializers += [constant(f"scale{i}b", scale), constant(f"zero{i}b", zeros)]
            sets.append((name, [f"scale{i}b", f"zero{i}b"], {"axis": axis}))
    for i in range(draw(st.integers(1, 8))):
        what = draw(st.sampled_from(["pair", "pair", "pair", "quantize", "dequantize", "Relu", "Add", "block"]))
        output = f"{what}{i}"
        if what == "dequantize" and not codes:
            continue
        recent = st.sampled_from(sources[-3:])
        if what in ("pair", "quantize"):
            name, parameters, attributes = draw(st.sampled_from(sets))
            both = pair(draw(recent), f"codes{i}", output, parameters, **attributes)
            nodes += both if what == "pair" else both[:1]
            if what == "quantize":
                codes.append((f"codes{i}", name, (parameters, attributes)))
        elif what == "dequantize":
            source, name, own = draw(st.sampled_from(codes[-2:]))
            other = [(parameters, attributes) for each, parameters, attributes in sets if each == name]
            parameters, attributes = draw(st.sampled_from([own, own, *other]))
            nodes.append(pair("", source, output, parameters, **attributes)[1])
        elif what == "block":
            nodes.append(f"{output} = com.amd.quark.BFPQuantizeDequantize ({draw(recent)})")
        else:
            nodes.append(f"{output} = {what} ({', '.join(draw(recent) for _ in range(1 + (what == 'Add')))})")
        if what != "quantize":
            sources.append(output)
    produced = sources[2:]
    if not produced:
        nodes.append("last = Relu (x)")
        produced = ["last"]
    others = [*produced[:-1], *codes]
    outputs = [produced[-1], *(draw(st.lists(st.sampled_from(others), max_size=2, unique_by=str)) if others else [])]
    outputs = [(each[0], each[1], None) if isinstance(each, tuple) else each for each in outputs]
    return model(nodes, ["x"], outputs, initializers=initializers), draw(st.booleans())


@sizes("examples", 5, slow=100, exhaustive=300)
def test_generated_graphs(examples):
    rewritten = []

    @settings(max_examples=examples, deadline=None, derandomize=examples == 5)
    @given(graphs(NAMES[:3] if examples == 5 else NAMES))  # these kernels are those of other tests
    def check(graph_and_keep_quantized_weights):
        before, keep_quantized_weights = graph_and_keep_quantized_weights
        result = rewrite_model(before, Settings(keep_quantized_weights=keep_quantized_weights))
        after = result.model
        assert_same_values(before, after, {"x": X})
        assert len(after.graph.node) <= len(before.graph.node)
        assert optimize(after, keep_quantized_weights=keep_quantized_weights).graph.node == after.graph.node
        rewritten.append(bool(result.done))

    check()
    assert sum(rewritten) > len(rewritten) / 2


# Several passes at once.


def one_pair():
    return model(pair(), ["x"], ["y"], initializers=scale_and_zero_point())


def test_a_missing_zero_point_is_zero():
    for scale in (0.1, np.linspace(0.1, 1, 4)):
        nodes = [*pair("x", "a", "y", ["scale"], axis=1), *pair("y", "b", "z", ["scale"], axis=1)]
        before = model(nodes, ["x"], ["z"], initializers=floats(scale=scale))
        result = assert_rewritten(before, ["QuantizeDequantizeLinear"], {"x": X})
        assert len(result.model.graph.initializer) == 2


def test_nodes_stay_in_order():
    nodes = [*pair("x", "c", "y1"), *pair("y1", "c2", "y2"), "z = Relu (y2)", pair("x", "c", "w")[1], "o = Add (z, w)"]
    values = [("x", "float32", X.shape)], [("o", "float32", X.shape)]
    before = model(nodes, *values, initializers=scale_and_zero_point())
    after = assert_rewritten(before, ["QuantizeDequantizeLinear", "Relu", "Add"], {"x": X}, native_operators=False).model
    onnx.checker.check_model(after)


def test_nodes_in_any_order():
    """ONNX Runtime takes nodes in any order, and Quark's quantizer appends the nodes that it converts."""
    for nodes in itertools.permutations([*pair("x", "a", "b"), "c = Relu (b)", *pair("c", "d", "y")]):
        before = model(nodes, ["x"], ["y"], initializers=scale_and_zero_point())
        after = rewrite_model(before).model
        assert operators(after) == ["Region"]
    assert_same_values(before, after, {"x": X})


# Subgraphs and functions.


def branches(then_nodes, then_initializers=()):
    """Return a model of an If on the input `flag`. One branch has `then_nodes`, the other one an Identity."""
    then, other = (
        helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)], initializers)
        for nodes, initializers in [(parsed(*then_nodes), then_initializers), (parsed("other = Identity (x)"), ())]
    )
    node = helper.make_node("If", ["flag"], ["out"], then_branch=then, else_branch=other)
    return model([node], ["x", ("flag", "bool", [])], ["out"], initializers=scale_and_zero_point(zero_point=1))


@pytest.mark.parametrize("flag", [True, False])
def test_subgraphs(flag):
    """Constants in a subgraph are folded, and its pairs are rewritten, with parameters of the outer graph."""
    nodes = [*pair(), *pair("bias", "bias_codes", "bias_y"), "z = Add (y, bias_y)"]
    before = branches(nodes, floats(bias=0.8))
    result = rewrite_model(before)
    (then,) = (each.g for each in result.model.graph.node[0].attribute if each.name == "then_branch")
    assert [node.op_type for node in then.node] == ["Region"]
    assert [each.name for each in then.initializer] == ["bias_y"]
    assert not result.left
    assert_same_values(before, result.model, {"x": X, "flag": np.array(flag)})


def test_codes_that_a_subgraph_uses_stay():
    before = branches([pair()[1]])
    before.graph.node.insert(0, pair()[0])
    result = assert_rewritten(before, operators(before), {"x": X, "flag": np.array(True)})
    assert {text for _, text in result.left} == {"its codes are used in another graph"}


def test_operators_that_are_functions_of_the_model_are_left():
    inputs, body, opsets = ["x", "scale", "zero_point"], parsed("y = Identity (x)"), [helper.make_opsetid("", 21)]
    before = one_pair()
    before.functions.append(helper.make_function("com.amd.quark", DQ, inputs, ["y"], body, opsets))
    result = rewrite_model(before)
    assert operators(result.model) == [Q, DQ]
    assert result.left[f"com.amd.quark::{DQ}", "a local function of the model has its name"] == 1


# Parts of a model that stay.


def test_initializers_that_are_inputs_may_be_fed():
    for ir_version, computed in [(10, False), (3, True)]:
        before = model(pair("x"), ["x"], ["y"], initializers=[constant("x", X), *scale_and_zero_point()])
        before.ir_version = ir_version
        if ir_version < 4:
            before.graph.input.extend(helper.make_tensor_value_info(*each, []) for each in [("scale", 1), ("zero_point", 3)])
        result = rewrite_model(before)
        assert [each.name for each in result.model.graph.input] == [each.name for each in before.graph.input]
        assert any(what == FUSED for _, what in result.done) is not computed
        assert computed or [why for _, why in result.left] == [INPUT]
        assert_same_values(before, result.model, {"x": X, "scale": np.float32(0.25), "zero_point": np.int8(0)})


def test_a_node_without_an_output_stays():
    nodes = [*pair(), "= qonnx.custom_op.general.Quant (x, scale, scale, scale)", "z = Relu (y)"]
    before = model(nodes, ["x"], ["z"], initializers=scale_and_zero_point())
    assert operators(optimize(before)) == ["Quant", "Region"]


def test_a_constant_that_is_not_valid_stays():
    """ONNX Runtime takes a Constant with an attribute of another name."""
    before = model([*pair(), "z = Add (y, c)"], ["x"], ["z"], initializers=scale_and_zero_point())
    constant_node = helper.make_node("Constant", [], ["c"], value_float=1.5)
    constant_node.attribute.append(helper.make_attribute("other", 1))
    before.graph.node.insert(0, constant_node)
    assert_same_values(before, optimize(before), {"x": X})


def test_everything_else_stays():
    nodes = ['w = some.domain.Strange <mode = "odd"> (x)', *pair("w"), "unused = Relu (x)"]
    initializers = [*scale_and_zero_point(), *floats(idle=1)]
    before = model(nodes, ["x"], ["y"], initializers=initializers, domains=["com.amd.quark"])
    before.opset_import.extend([helper.make_opsetid("some.domain", 7), helper.make_opsetid("idle.domain", 2)])
    before.producer_name, before.producer_version, before.model_version, before.doc_string = "p", "1.2", 3, "doc"
    helper.set_model_props(before, {"key": "value"})
    untouched = before.SerializeToString(deterministic=True)
    result = rewrite_model(before)
    after = result.model
    assert before.SerializeToString(deterministic=True) == untouched
    assert operators(after) == ["Strange", "QuantizeDequantizeLinear", "Relu"]
    assert after.graph.node[0] == before.graph.node[0]
    for name in ("producer_name", "producer_version", "model_version", "doc_string", "ir_version", "metadata_props"):
        assert getattr(after, name) == getattr(before, name)
    assert (after.graph.input, after.graph.output) == (before.graph.input, before.graph.output)
    assert "idle" in [each.name for each in after.graph.initializer]
    opsets = {each.domain: each.version for each in after.opset_import}
    assert opsets == {"": 21, "com.amd.quark": 1, "some.domain": 7, "idle.domain": 2, "quark_numba": 1}
    unknown = model(["y = com.vai.quantize.FixNeuron (x)"], ["x"], ["y"])
    why = "neither ONNX Runtime nor this package has this operator"
    assert rewrite_model(unknown).left == {("com.vai.quantize::FixNeuron", why): 1}


def test_metadata_of_what_is_rewritten_stays():
    before = one_pair()
    before.graph.output[0].doc_string, before.graph.node[1].doc_string = "of y", "of the node"
    annotation = before.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    after = optimize(before)
    assert operators(after) == ["QuantizeDequantizeLinear"]
    assert after.graph.output == before.graph.output
    assert after.graph.node[0].doc_string == "of the node"
    assert after.graph.quantization_annotation == before.graph.quantization_annotation


# Models that are broken, or cannot be read.


def test_models_that_onnx_ir_does_not_keep_stay_as_they_are():
    sparse = model(["w = Add (x, s)", *pair("w")], ["x"], ["y"], initializers=scale_and_zero_point())
    values, indices = constant("s", [1.0, 2.0], np.float32), constant("s_indices", [0, 3], np.int64)
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [6]))
    trained, mapped = one_pair(), one_pair()
    trained.training_info.add().algorithm.node.extend(parsed("q = Relu (x)"))
    mapped.graph.output[0].type.map_type.key_type = 7
    for before, reason in [(sparse, "it has sparse initializers"), (trained, "it has training_info"), (mapped, "cannot read")]:
        result = rewrite_model(before)
        assert result.model == before
        assert result.model is not before
        ((_, text),) = result.left
        assert reason in text
    assert_same_values(sparse, optimize(sparse), {"x": X})


def test_wrong_nodes_are_left_to_onnx_runtime():
    nodes = [*pair("weight"), *pair("weight", "codes2", "y2", axis=1.5), "z = Add (y, y2)"]
    initializers = floats(weight=np.ones((2, 3)), scale=np.ones(4))
    before = model(nodes, [], ["z"], initializers=[*initializers, constant("zero_point", np.zeros(4), np.int8)])
    result = rewrite_model(before)
    assert operators(result.model) == operators(before)
    reasons = " ".join(text for _, text in result.left)
    assert "not valid: y_scale has shape (4,); expected as many elements as x of shape (2, 3)" in reasons
    assert "not valid: attribute axis is a FLOAT; expected INT" in reasons


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        (["x"], ["y"], "it has 1 input and 1 output, a wrong number"),
        (["x", "scale", "zero_point", "scale"], ["y"], "it has 4 inputs and 1 output, a wrong number"),
        (["x", "scale"], ["y", "z"], "it has 2 inputs and 2 outputs, a wrong number"),
        (["x", ""], ["y"], "a required input is omitted"),
    ],
)
def test_nodes_with_wrong_inputs_or_outputs_stay(inputs, outputs, why):
    nodes = [helper.make_node("QuantizeLinear", inputs, outputs), helper.make_node("DequantizeLinear", ["y", "scale"], ["w"])]
    result = rewrite_model(model(nodes, ["x"], ["w"], initializers=scale_and_zero_point()))
    assert result.left["ai.onnx::QuantizeLinear", f"not valid: {why}"] == 1
    assert operators(result.model)[0] == "QuantizeLinear"


@pytest.mark.parametrize(
    "nodes",
    [
        [f"y = com.amd.quark.{Q} ()"],
        [f"codes = com.amd.quark.{Q} (x)", pair(parameters=())[1]],
        [f'codes = com.amd.quark.{Q} (x, "", zero_point)', pair()[1]],
        [f"codes = com.amd.quark.{Q} (x, scale, zero_point, x)", pair()[1]],
        [f"= com.amd.quark.{Q} (x, scale)", "y = Relu (x)"],
        [pair(parameters=["scale"])[0], pair()[1]],  # quantizes to uint8, dequantizes int8
        [pair(codes="codes0", y="z", parameters=["scales", "zeros"])[1], *pair("z", "codes", "y", ["scales", "zeros"])],
        [pair(codes="codes0", y="z", parameters=["double"])[1], *pair("z", "codes", "y", ["double"])],
    ],
)
def test_nodes_that_are_not_valid_are_left(nodes):
    initializers = [*scale_and_zero_point(), *floats(scales=np.ones(4)), constant("zeros", np.zeros(2), np.int8)]
    initializers += [constant("double", 1.0, np.float64), constant("codes0", np.zeros(3), np.int8)]
    before = model(nodes, ["x"], ["y"], initializers=initializers)
    result = rewrite_model(before)
    assert operators(result.model) == operators(before)
    assert result.left


# Files, sessions and commands.


def product(x, weight):
    nodes = [*pair("weight"), "z = MatMul (x, y)", *pair("z", "codes2", "out")]
    return model(nodes, [x], ["out"], initializers=[*floats(weight=weight), *scale_and_zero_point()])


@pytest.fixture
def files(tmp_path):
    before = product("x", np.random.default_rng(45).normal(0, 3, (6, 500)))
    onnx.save(before, tmp_path / "m.onnx")
    inside = onnx.ModelProto()
    inside.CopyFrom(before)
    onnx.save(inside, tmp_path / "outside.onnx", save_as_external_data=True, location="outside.data", size_threshold=16)
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "m.onnx").read_bytes()[:-100])
    (tmp_path / "text.onnx").write_text("no model at all")
    return tmp_path, before


@pytest.mark.parametrize("name", ["m.onnx", "outside.onnx"])
def test_paths_and_tensors_in_files(files, name):
    folder, before = files
    after = optimize(str(folder / name))
    assert after.SerializeToString(deterministic=True) == optimize(folder / name).SerializeToString(deterministic=True)
    assert_same_values(before, after, {"x": X})
    with pytest.raises(TypeError, match=r"model is a list; expected onnx\.ModelProto or a path"):
        optimize([])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cut.onnx", "not an ONNX model"),
        ("text.onnx", "not an ONNX model"),
        ("missing.onnx", "No such file"),
        (".", "directory"),
        ("alone.onnx", "alone.onnx: "),
    ],
)
def test_no_model(files, name, message, terminal):
    folder, _ = files
    (folder / "alone.onnx").write_bytes((folder / "outside.onnx").read_bytes().replace(b"outside.data", b"missing.data"))
    with pytest.raises(ModelError, match=message):
        optimize(folder / name)
    with pytest.raises((ModelError, RuntimeError)):
        quark_numba.InferenceSession(folder / name)
    out = folder / "out.onnx"
    out.write_text("from before")
    assert message in terminal.error("optimize", folder / name, str(out))
    assert out.read_text() == "from before"


def test_a_model_without_a_graph(tmp_path):
    (tmp_path / "empty.onnx").write_bytes(b"")
    for empty in (tmp_path / "empty.onnx", onnx.ModelProto()):
        with pytest.raises(ModelError, match="not an ONNX model: it has no graph"):
            optimize(empty)


def test_tensors_that_cannot_be_read(files):
    folder, before = files
    outside = onnx.load(folder / "outside.onnx", load_external_data=False)
    with pytest.raises(ModelError, match=r"tensor weight is in the file 'outside\.data', and a model without a path has no"):
        optimize(outside)
    before.graph.initializer[0].raw_data = before.graph.initializer[0].raw_data[:-1]
    with pytest.raises(ModelError, match="tensor weight: "):
        optimize(before)


@pytest.mark.parametrize("most", [None, 1000])
def test_the_command_writes_all_or_nothing(files, monkeypatch, terminal, most):
    """Tensors for which the model's file has no room go to another file."""
    folder, before = files
    if most:
        monkeypatch.setattr(model_files, "_MAX_BYTES", most)
    out = folder / "out.onnx"
    report = terminal.report("optimize", folder / "m.onnx", str(out))
    assert {"operator": f"com.amd.quark::{DQ}", "nodes": 1, "what": CONSTANT} in report["done"]
    assert (folder / "out.onnx.data").exists() is bool(most)
    assert_same_values(before, onnx.load(out), {"x": X})
    assert "fused: quantize and dequantize" in re.sub(
        r"\s+", " ", terminal.text("optimize", folder / "m.onnx", str(out)).replace("│", " ")
    )
    session = quark_numba.InferenceSession(str(folder / "outside.onnx"))
    (expected,) = exact_session(before).run(None, {"x": X})
    assert session.run(None, {"x": X})[0].tobytes() == expected.tobytes()

    def full(model, path, *arguments, **named):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    content = out.read_bytes()
    monkeypatch.setattr(onnx, "save", full)
    monkeypatch.setattr(model_files, "write_apart", full)
    assert "No space left on device" in terminal.error("optimize", folder / "m.onnx", str(out))
    assert out.read_bytes() == content
    assert not [each for each in folder.iterdir() if each.name.startswith(".")]
    assert cli.main(["optimize", str(folder / "m.onnx"), str(folder / "no" / "folder")]) == 1


def test_sessions(files):
    """A session takes a path, bytes or a ModelProto, and the caller's options."""
    folder, before = files
    (expected,) = exact_session(before).run(None, {"x": X})
    for source in (folder / "m.onnx", str(folder / "m.onnx"), before.SerializeToString(), before):
        options = session_options(threads=1)
        session = quark_numba.InferenceSession(source, options, ["CPUExecutionProvider"], enable_fallback=False)
        assert isinstance(session, onnxruntime.InferenceSession)
        assert session.get_session_options().intra_op_num_threads == 1
        assert session.run(None, {"x": X})[0].tobytes() == expected.tobytes()
    with pytest.raises(ModelError, match="not an ONNX model"):
        quark_numba.InferenceSession(b"nothing")
    with pytest.raises(Exception, match="FixNeuron"):
        quark_numba.InferenceSession(model(["y = com.vai.quantize.FixNeuron (x)"], ["x"], ["y"]))


def test_profile(files, terminal):
    folder, _ = files
    arguments = ["profile", str(folder / "m.onnx"), "--dim", "x[0]=2", "--dim", "x[1]=6", "--runs", "3"]
    onnx.save(product(("x", "float32", ["n", "m"]), np.ones((6, 5))), folder / "m.onnx")
    report = terminal.report(*arguments)
    assert {each["operator"] for each in report["before"]} == {Q, DQ, "MatMul"}
    assert {each["operator"] for each in report["after"]} == {"QuantizeDequantizeLinear", "MatMul"}
    assert all(each["seconds"] >= 0 for each in report["before"])
    text = terminal.text(*arguments)
    assert all(word in text for word in ("quantization", "the rest", "100%", "MatMul"))
    assert cli.main(["profile", str(folder / "text.onnx")]) == 1

    nodes = f"codes = com.amd.quark.{Q} (v, scale, zero_point) d = com.amd.quark.{DQ} (codes, scale, zero_point)"
    body = f"body (int64 i, bool c, float[] v) => (bool go, float[] d) {{ go = Identity (c) {nodes} }}"
    initializers = [*scale_and_zero_point(), constant("n", 20, np.int64)]
    loop = model([f'y = Loop <body = {body}> (n, "", x)'], [("x", "float32", [64, 64])], ["y"], initializers=initializers)
    onnx.save(loop, folder / "l.onnx")
    times = {
        each["operator"]: each["seconds"] for each in terminal.report("profile", folder / "l.onnx", "--runs", "3")["before"]
    }
    assert "Loop" not in times
    assert times[Q] > 0
    assert not [each for each in os.listdir() if each.startswith("profile")]
