"""ONNX Runtime's blocked layout through regions. Sessions with the layout are compared with sessions without it."""

import collections
import json
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from marks import default_of
from onnx import helper
from onnx_models import model
from paths import MODELS
from rewritten_models import VARIANTS, constant

import quark_numba
from quark_numba import optimize
from quark_numba.session import blocked_layout

pytestmark = pytest.mark.compiled

# What is between convolutions, by format; None: a pair of linear operators.
FORMATS = {
    "int16": None,
    "bfp16": ("BFPQuantizeDequantize", {"bit_width": 16, "block_size": 8}),
    "mx9": ("BFPQuantizeDequantize", {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16}),
    "mxfp8": ("MXQuantizeDequantize", {"element_dtype": "fp8_e4m3", "block_size": 32}),
    "mxint8": ("MXQuantizeDequantize", {"element_dtype": "int8", "block_size": 4}),
}


def options(threads=2):
    result = onnxruntime.SessionOptions()
    result.intra_op_num_threads = threads
    quark_numba.register(result)
    return result


def laid_out(source):
    """Return the optimised model in the blocked layout, None if no region keeps the layout."""
    return blocked_layout.blocked(optimize(source), options()).model


def left(source):
    """Return the number of regions that are not in the layout, by the reason."""
    return dict(blocked_layout.blocked(optimize(source), options()).left)


def has_blocks():
    x = helper.make_node("Conv", ["x", "w"], ["y"])
    source = model([x], [("x", "float32", [1, 16, 4, 4])], ["y"], initializers=[constant("w", np.ones((16, 16, 1, 1)), "f")])
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 4
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        session_options.optimized_model_filepath = str(Path(folder) / "m.onnx")
        onnxruntime.InferenceSession(source.SerializeToString(), session_options, ["CPUExecutionProvider"])
        return count(onnx.load(session_options.optimized_model_filepath), "ReorderInput") > 0


def count(source, operator):
    return sum(node.op_type == operator for node in source.graph.node)


pytestmark = [pytestmark, pytest.mark.skipif(not has_blocks(), reason="ONNX Runtime has no such layout on this processor")]


def outputs(source, feeds, **named):
    return quark_numba.InferenceSession(source, options(), **named).run(None, feeds)


@pytest.mark.parametrize("variant", default_of(VARIANTS, "bf16", "mx9"))
@pytest.mark.by_default(1)
def test_real_models(variant):
    """Fewer tensors are reordered. Outputs may differ as much as ONNX Runtime's pools differ between the layouts."""
    path = MODELS / f"textline_cls_{variant}.onnx"
    after = laid_out(path)
    assert count(after, "Region") == count(optimize(path), "Region")
    assert count(after, "ReorderOutput") < count(after, "Conv") / 2
    x = np.load(MODELS / "textline_cls_expected.npz")["x"]
    for batch in (x, x[:1], np.repeat(x, 3, axis=0)):
        (plain,), (blocked,) = (outputs(path, {"x": batch}, blocked_layout=each) for each in (False, True))
        assert np.abs(plain - blocked).max() < (2**-11 if variant == "fp16" else 1e-5)


def pair(x, y, kind=None):
    if kind:
        operator, attributes = kind
        return [helper.make_node(operator, [x], [y], domain="com.amd.quark", axis=1, **attributes)]
    parameters = [f"{x}_scale", "zero_point"]
    return [
        helper.make_node("ExtendedQuantizeLinear", [x, *parameters], [f"{x}_code"], domain="com.amd.quark"),
        helper.make_node("ExtendedDequantizeLinear", [f"{x}_code", *parameters], [y], domain="com.amd.quark"),
    ]


def network(channels, steps, *, dimensions=(2, 3, 12, 10), constants=(), outputs=("y",), inputs=(), zero_point=None, kind=None):
    """Return a model of two convolutions with quantized steps between them, from "a" to "b". "other" is another convolution of
    x, and "gate" has one value for each channel. `kind` is one of `FORMATS`."""
    random = np.random.default_rng(channels)
    weights = [random.normal(0, 0.4, shape) for shape in ((channels, 3, 3, 3), (channels, 3, 3, 3), (5, channels, 3, 3))]
    weights += [random.normal(0, 1, (channels, channels, 1, 1))]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a0"]),
        helper.make_node("Conv", ["x", "w1"], ["other0"]),
        helper.make_node("GlobalAveragePool", ["a"], ["pooled"]),
        helper.make_node("Conv", ["pooled", "w3"], ["gate0"]),
        *pair("a0", "a", kind),
        *pair("other0", "other", kind),
        *pair("gate0", "gate", kind),
        *steps,
        *pair("b", "c", kind),
        helper.make_node("Conv", ["c", "w2"], ["y"]),
    ]
    for each in nodes:
        each.name = f"{each.output[0]} of {each.op_type}"
    zero_point = np.int16(3) if zero_point is None else zero_point
    parameters = [constant(f"{name}_scale", 0.03, np.float32) for name in ("a0", "other0", "gate0", "b")]
    parameters.append(constant("zero_point", zero_point, zero_point.dtype))
    parameters += [constant(f"w{k}", w, np.float32) for k, w in enumerate(weights)]
    return model(
        sorted_nodes(nodes),
        [("x", "float32", list(dimensions)), *inputs],
        list(outputs),
        initializers=[*parameters, *constants],
        domains=["com.amd.quark"],
        opset=17,
    )


def sorted_nodes(nodes):
    made = {name for node in nodes for name in node.output}
    result = []
    while nodes:
        for node in nodes:
            if made.isdisjoint(node.input):
                result.append(node)
                made.difference_update(node.output)
        nodes = [node for node in nodes if node not in result]
    return result


def node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs.split(), [output], **attributes)


STEPS = {
    "activation": [node("HardSwish", "a", "b")],
    "residual": [node("Add", "a other", "b")],
    "gate": [node("HardSigmoid", "gate", "g"), node("Mul", "a g", "b")],
    "gate first": [node("Mul", "gate a", "b")],
    "gate and residual": [node("Mul", "a gate", "g"), node("Sub", "g other", "b")],
    "constant of channels": [node("Div", "a per_channel", "d"), node("Add", "d one", "b")],
    "constant of all": [node("Mul", "a everywhere", "b")],
    "padding that is no 0": [node("Add", "a one", "d"), node("Sqrt", "d", "s"), node("Max", "s one", "b")],
    "pool": [node("MaxPool", "a", "b", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
    "spatial": [node("Mul", "a map", "b")],
}


@pytest.mark.parametrize("channels", [16, 8, 20, 24, 6])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("dimensions", [(2, 3, 12, 10), ("n", 3, None, None), (1, 3, 5, 5)], ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.covering
@pytest.mark.by_default(5)
def test_networks(channels, steps, dimensions, name):
    random = np.random.default_rng(1)
    n, height, width = (1, 5, 5) if dimensions[0] == 1 else (2, 12, 10)
    constants = [
        constant("one", 1.0, np.float32),
        constant("per_channel", random.uniform(0.5, 2, (channels, 1, 1)), np.float32),
        constant("everywhere", random.uniform(0.5, 2, (1, channels, 1, width - 2)), np.float32),
        constant("map", random.uniform(0.5, 2, (height - 2, 1)), np.float32),
    ]
    source = network(channels, STEPS[steps], dimensions=dimensions, constants=constants, kind=FORMATS[name])
    x = random.normal(0, 2, (n, 3, height, width)).astype(np.float32)
    (plain,), (blocked,) = (outputs(source, {"x": x}, blocked_layout=each) for each in (False, True))
    # Global pools add in another order.
    tolerance = 1e-4 if "gate" in steps else 0
    np.testing.assert_allclose(blocked, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
@pytest.mark.by_default(2)
def test_what_networks_keep(kind):
    """Networks keep the layout through regions, so that the tests above do compare two layouts."""
    kept = collections.Counter()
    constants = [constant("one", 1.0, np.float32), constant("per_channel", np.ones((24, 1, 1)), np.float32)]
    for steps in ("activation", "residual", "gate", "gate and residual", "constant of channels", "padding that is no 0"):
        after = laid_out(network(24, STEPS[steps], constants=constants, kind=kind))
        kept[steps] = count(after, "ReorderOutput")
    assert max(kept.values()) <= 3, kept  # for y, and behind the pool


@pytest.mark.parametrize("steps", [[node("Div", "other a", "b")], [node("Sub", "a one", "d"), node("Sqrt", "d", "b")]])
@pytest.mark.parametrize("value", [1.0, np.inf])
@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
@pytest.mark.by_default(5)
def test_padding_that_is_not_finite(steps, value, kind):
    """Inf and NaN in channels of padding do not reach the other channels through the next convolution, nor the exponents that
    channels share."""
    source = network(20, steps, constants=[constant("one", 1.0, np.float32)], zero_point=ml_dtypes.bfloat16(0), kind=kind)
    assert left(source) == {}
    x = np.random.default_rng(3).normal(0, 2, (2, 3, 12, 10)).astype(np.float32)
    x[0, 1, 2, 3] = value
    plain, blocked = (outputs(source, {"x": x}, blocked_layout=each)[0] for each in (False, True))
    assert np.isfinite(plain[1]).all() or "Sqrt" in str(steps) or kind  # blocks round small divisors to 0
    np.testing.assert_array_equal(blocked, plain)


def test_padding_of_a_convolution_without_a_region_behind_it():
    """If its input has Inf, a convolution puts NaN into the channels of padding, which must not reach the other channels. ONNX
    Runtime itself gives NaN in all channels here. So the expected values are those of a session without optimisations."""
    steps = [node("Conv", "a w3", "d"), node("MaxPool", "d", "e", kernel_shape=[2, 2]), node("Conv", "e w3", "f")]
    source = network(20, [*steps, node("Relu", "f", "b")], zero_point=ml_dtypes.bfloat16(0))
    x = np.random.default_rng(3).normal(0, 2, (2, 3, 12, 10)).astype(np.float32)
    x[0, 1, 2, 3] = np.inf
    given = options()
    given.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(source.SerializeToString(), given).run(None, {"x": x})
    (blocked,) = outputs(source, {"x": x})
    np.testing.assert_array_equal(np.isfinite(blocked), np.isfinite(expected))


@pytest.mark.parametrize(
    ("operator", "weights", "cause"),
    [
        ("MaxPool", "changeable", "Conv: its weights are not constants"),
        ("MaxPool", "w1", "MaxPool: its input may be NaN, which ONNX Runtime's max pool on blocks ignores"),
        ("Softmax", "w1", "Softmax: the operator has no counterpart on blocks"),
    ],
)
def test_a_reason_names_the_node_upstream_that_was_left_out(operator, weights, cause):
    """The reason does not name the nodes downstream, which are left out because their input is not in blocks."""
    attributes = {"axis": 1} if operator == "Softmax" else {"kernel_shape": [2, 2]}
    steps = [
        node("Conv", f"x {weights}", "d"),
        node(operator, "d", "e", **attributes),
        node("GlobalMaxPool", "e", "f"),
        node("Mul", "f two", "b"),
    ]
    inputs = [("changeable", "float32", [8, 3, 3, 3])] if weights == "changeable" else []
    source = network(8, steps, inputs=inputs, constants=[constant("two", 2.0, np.float32)])
    assert left(source) == {f"no input is in blocks ({cause})": 1}


def test_what_else_takes_and_gives_values():
    """The graph has outputs from within the steps, an input into them, and a node in ONNX's layout."""
    steps = [node("Mul", "a scales", "d"), node("Add", "d other", "b"), node("Transpose", "b", "t", perm=[0, 2, 3, 1])]
    source = network(8, steps, outputs=("y", "b", "t", "a"), inputs=[("scales", "float32", ["n", 8, 1, 1])])
    random = np.random.default_rng(2)
    feeds = {"x": random.normal(0, 2, (2, 3, 12, 10)), "scales": random.normal(0, 2, (2, 8, 1, 1))}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    assert count(laid_out(source), "ReorderOutput") < 7
    for plain, blocked in zip(*(outputs(source, feeds, blocked_layout=each) for each in (False, True)), strict=True):
        np.testing.assert_allclose(blocked, plain, rtol=1e-5, atol=1e-5)


def test_a_session_is_what_it_was(tmp_path, monkeypatch):
    """Names, shapes, metadata, options and the profile do not change, and no files are left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    source = network(24, STEPS["gate"], dimensions=("n", 3, None, 10), outputs=[("y", "float32", ["n", 5, "h", "w"])])
    source.metadata_props.add(key="made by", value="a test")
    source.doc_string, source.graph.name, source.producer_name = "a document", "a graph", "a producer"
    given = options()
    given.enable_profiling, given.profile_file_prefix = True, str(tmp_path / "profile")
    sessions = [quark_numba.InferenceSession(source, given, blocked_layout=each) for each in (False, True)]
    facts = []
    for session in sessions:
        meta = session.get_modelmeta()
        values = (*session.get_inputs(), *session.get_outputs())
        facts.append([(value.name, value.type, value.shape) for value in values])
        facts[-1] += [meta.custom_metadata_map, meta.description, meta.graph_name, meta.producer_name, meta.version]
    assert facts[0] == facts[1]
    assert given.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert (given.optimized_model_filepath, given.log_severity_level) == ("", onnxruntime.SessionOptions().log_severity_level)
    names = []
    for session in sessions:
        session.run(None, {"x": np.zeros((1, 3, 12, 10), np.float32)})
        path = Path(session.end_profiling())
        events = json.loads(path.read_text())
        path.unlink()
        names.append({each["name"] for each in events if each.get("args", {}).get("op_name") == "Region"})
    assert names[0] == names[1] != set()
    assert not list(tmp_path.iterdir())


def test_when_it_is_left_alone(tmp_path):
    source = optimize(network(24, STEPS["gate"]))
    levels = onnxruntime.GraphOptimizationLevel
    for change in (
        {"graph_optimization_level": levels.ORT_ENABLE_EXTENDED},
        {"graph_optimization_level": levels.ORT_DISABLE_ALL},
        {"optimized_model_filepath": str(tmp_path / "m.onnx")},
    ):
        given = options()
        for name, value in change.items():
            setattr(given, name, value)
        model, kept, reasons = blocked_layout.blocked(source, given)
        ((reason, count),) = reasons.items()
        assert (model, kept, count) == (None, 0, 4)
        assert next(iter(change)) in reason
    for arguments, named, reason in (
        ((["Other", "CPUExecutionProvider"],), {}, "the session has other execution providers than CPUExecutionProvider"),
        ((), {"disabled_optimizers": ["NchwcTransformer"]}, "NchwcTransformer is disabled"),
    ):
        assert blocked_layout.blocked(source, options(), *arguments, **named).left == {reason: 4}
    given = options()
    given.add_session_config_entry("optimization.disable_specified_optimizers", "A;NchwcTransformer")
    assert blocked_layout.blocked(source, given).left == {"NchwcTransformer is disabled": 4}
    assert blocked_layout.blocked(source, options(), [("CPUExecutionProvider", {})]).kept == 4
    assert blocked_layout.blocked(onnx.ModelProto(), options()) == (None, 0, {})
    source.graph.input[0].name = "another"
    (reason,) = blocked_layout.blocked(source, options()).left
    assert reason.startswith("ONNX Runtime did not write the optimised model: ")
