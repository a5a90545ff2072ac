"""ONNX Runtime's blocked layout through regions. Sessions with the layout are compared with sessions without it."""

import collections
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from blocked_models import count, has_blocks, laid_out, laid_out_for, options
from marks import default_of
from onnx_models import session
from paths import MODELS
from rewritten_models import VARIANTS
from text_graphs import text_model

import quark_numba
from quark_numba import optimize

pytestmark = pytest.mark.compiled

# The nodes between convolutions, by format. None stands for a pair of linear operators.
FORMATS = {
    "int16": None,
    "bfp16": "BFPQuantizeDequantize <axis = 1, bit_width = 16, block_size = 8>",
    "mx9": 'BFPQuantizeDequantize <axis = 1, bfp_method = "to_bfp_prime", bit_width = 16, block_size = 16>',
    "mxfp8": 'MXQuantizeDequantize <axis = 1, element_dtype = "fp8_e4m3", block_size = 32>',
    "mxint8": 'MXQuantizeDequantize <axis = 1, element_dtype = "int8", block_size = 4>',
}


def left(source):
    """Return the number of regions that are not in the layout, by the reason."""
    return dict(laid_out_for(optimize(source)).left_out)


pytestmark = [pytestmark, pytest.mark.skipif(not has_blocks(), reason="ONNX Runtime has no such layout on this processor")]


def outputs(source, feeds, **named):
    return quark_numba.InferenceSession(source, options(), **named).run(None, feeds)


@pytest.mark.parametrize("variant", default_of(VARIANTS, "bf16", "mx9"))
@pytest.mark.slow
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


def network(channels, steps, *, x="2, 3, 12, 10", outputs="float[] y", inputs="", zero_point=None, kind=None, **constants):
    """Return a model of two convolutions with quantized steps between them, from "a" to "b". "other" is another convolution of
    x, and "gate" has one value for each channel. `x` has its dimensions, and `kind` is one of `FORMATS`."""
    random = np.random.default_rng(channels)
    weights = [random.normal(0, 0.4, shape) for shape in ((channels, 3, 3, 3), (channels, 3, 3, 3), (5, channels, 3, 3))]
    weights += [random.normal(0, 1, (channels, channels, 1, 1))]
    constants |= {f"{name}_scale": 0.03 for name in ("a0", "other0", "gate0", "b")} | {
        f"w{k}": w for k, w in enumerate(weights)
    }

    def pair(x, y):
        return f"{y} = {kind} ({x})" if kind else f"{y} = Pair ({x}, {x}_scale, zero_point)"

    made = text_model(
        f"""(float[{x}] x {inputs}) => ({outputs}) {{
            a0 = Conv (x, w0)  other0 = Conv (x, w1)  {pair("a0", "a")}  {pair("other0", "other")}
            pooled = GlobalAveragePool (a)  gate0 = Conv (pooled, w3)  {pair("gate0", "gate")}
            {steps}  {pair("b", "c")}  y = Conv (c, w2)
        }}""",
        opset=17,
        zero_point=np.int16(3) if zero_point is None else zero_point,
        **{name: np.asarray(value, np.float32) for name, value in constants.items()},
    )
    for each in made.graph.node:
        each.name = f"{each.output[0]} of {each.op_type}"
    return made


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initializers_that_are_inputs(ir_version):
    """ONNX Runtime folds some of the initializers. They do not become inputs that need a value; before IR version 4, all are
    listed."""
    w = np.random.default_rng(1).normal(0, 0.4, (16, 16, 3, 3)).astype(np.float32)
    source = text_model(
        """(float[1, 16, 8, 8] x) => (float[] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)  n = BatchNormalization (c, one, two, one, two)
            a = Pair (n, scale, zero_point)  y = Conv (a, w)
        }""",
        opset=17,
        zero_point=np.int16(3),
        scale=np.float32(0.03),
        w=w,
        **{name: np.full(16, value, np.float32) for name, value in (("one", 1), ("two", 2), ("unused", 3))},
    )
    source.ir_version = ir_version
    for each in source.graph.initializer:
        source.graph.input.add(name=each.name).type.CopyFrom(onnx.helper.make_tensor_type_proto(each.data_type, each.dims))
    assert count(laid_out(source, keep_initializers_as_inputs=False), "Region") == 1
    x = np.random.default_rng(2).normal(0, 1, (1, 16, 8, 8)).astype(np.float32)
    plain, *others = (
        quark_numba.InferenceSession(source, options(), blocked_layout=blocked, keep_initializers_as_inputs=keep)
        for blocked, keep in ((False, True), (True, True), (True, False))
    )
    for each in others:
        assert [value.name for value in each.get_inputs()] == [value.name for value in plain.get_inputs()] == ["x"]
        np.testing.assert_allclose(each.run(None, {"x": x})[0], plain.run(None, {"x": x})[0], atol=1e-4)


STEPS = {
    "activation": "b = HardSwish (a)",
    "residual": "b = Add (a, other)",
    "gate": "g = HardSigmoid (gate)  b = Mul (a, g)",
    "gate first": "b = Mul (gate, a)",
    "gate and residual": "g = Mul (a, gate)  b = Sub (g, other)",
    "constant of channels": "d = Div (a, per_channel)  b = Add (d, one)",
    "constant of all": "b = Mul (a, everywhere)",
    "padding that is no 0": "d = Add (a, one)  s = Sqrt (d)  b = Max (s, one)",
    "pool": "b = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)",
    "spatial": "b = Mul (a, map)",
}


@pytest.mark.parametrize("channels", [16, 8, 20, 24, 6])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("dimensions", ["2, 3, 12, 10", "n, 3, ?, ?", "1, 3, 5, 5"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_networks(channels, steps, dimensions, name):
    random = np.random.default_rng(1)
    n, height, width = (1, 5, 5) if dimensions[0] == "1" else (2, 12, 10)
    constants = {
        "one": 1,
        "per_channel": random.uniform(0.5, 2, (channels, 1, 1)),
        "everywhere": random.uniform(0.5, 2, (1, channels, 1, width - 2)),
        "map": random.uniform(0.5, 2, (height - 2, 1)),
    }
    source = network(channels, STEPS[steps], x=dimensions, kind=FORMATS[name], **constants)
    x = random.normal(0, 2, (n, 3, height, width)).astype(np.float32)
    (plain,), (blocked,) = (outputs(source, {"x": x}, blocked_layout=each) for each in (False, True))
    # Global pools add in another order.
    tolerance = 1e-4 if "gate" in steps else 0
    np.testing.assert_allclose(blocked, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
@pytest.mark.by_default(1)
def test_what_networks_keep(kind):
    """Networks keep the layout through regions, so that the tests above do compare two layouts."""
    kept = collections.Counter()
    for steps in ("activation", "residual", "gate", "gate and residual", "constant of channels", "padding that is no 0"):
        after = laid_out(network(24, STEPS[steps], kind=kind, one=1, per_channel=np.ones((24, 1, 1))))
        kept[steps] = count(after, "ReorderOutput")
    assert max(kept.values()) <= 3, kept  # for y, and after the pool


@pytest.mark.parametrize("steps", ["b = Div (other, a)", "d = Sub (a, one)  b = Sqrt (d)"])
@pytest.mark.parametrize("value", [1.0, np.inf])
@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
@pytest.mark.by_default(1)
def test_padding_that_is_not_finite(steps, value, kind):
    """Inf and NaN in channels of padding do not reach the other channels through the next convolution, nor the exponents that
    channels share."""
    source = network(20, steps, zero_point=ml_dtypes.bfloat16(0), kind=kind, one=1)
    assert left(source) == {}
    x = np.random.default_rng(3).normal(0, 2, (2, 3, 12, 10)).astype(np.float32)
    x[0, 1, 2, 3] = value
    plain, blocked = (outputs(source, {"x": x}, blocked_layout=each)[0] for each in (False, True))
    assert np.isfinite(plain[1]).all() or "Sqrt" in steps or kind  # blocks round small divisors to 0
    np.testing.assert_array_equal(blocked, plain)


def test_padding_of_a_convolution_without_a_region_behind_it():
    """If its input has Inf, a convolution puts NaN into the channels of padding, which must not reach the other channels. ONNX
    Runtime itself gives NaN in all channels here. So the expected values are those of a session without optimizations."""
    steps = "d = Conv (a, w3)  e = MaxPool <kernel_shape = [2, 2]> (d)  f = Conv (e, w3)  b = Relu (f)"
    source = network(20, steps, zero_point=ml_dtypes.bfloat16(0))
    x = np.random.default_rng(3).normal(0, 2, (2, 3, 12, 10)).astype(np.float32)
    x[0, 1, 2, 3] = np.inf
    (expected,) = session(source, level="DISABLE_ALL").run(None, {"x": x})
    (blocked,) = outputs(source, {"x": x})
    np.testing.assert_array_equal(np.isfinite(blocked), np.isfinite(expected))


MAX_POOL = "MaxPool <kernel_shape = [2, 2]>"


@pytest.mark.parametrize(
    ("operator", "weights", "cause"),
    [
        (MAX_POOL, "changeable", "Conv: its weights are not constants"),
        (MAX_POOL, "w1", "MaxPool: its input may be NaN, which ONNX Runtime's max pool on blocks ignores"),
        ("Softmax <axis = 1>", "w1", "Softmax: the operator has no counterpart on blocks"),
    ],
)
def test_a_reason_names_the_node_upstream_that_was_left_out(operator, weights, cause):
    """The reason does not name the nodes downstream, which are left out because their input is not in blocks."""
    steps = f"d = Conv (x, {weights})  e = {operator} (d)  f = GlobalMaxPool (e)  b = Mul (f, two)"
    inputs = ", float[8, 3, 3, 3] changeable" if weights == "changeable" else ""
    source = network(8, steps, inputs=inputs, two=2)
    assert left(source) == {f"no input is in blocks ({cause})": 1}


# Nodes that take whole blocks of 32 channels of b, on which they stay in blocks, and others.
PARTS = {
    "d, e = Split <axis = 1> (b, sixteens)  c = Add (e, d)": True,
    "d, e = Split <axis = -3> (b, sixteens)  c = Add (e, d)": True,
    "d, e = Split <axis = 1> (b, others)  f = Concat <axis = 1> (e, d)  c = Slice (f, zero, sixteen, axis)": False,
    "d, e = Split <axis = 2> (b, fives)  f = Concat <axis = 3> (e, d)  c = Slice (f, zero, sixteen, axis)": False,
    "c = Slice (b, sixteen, end, axis)": True,
    "c = Slice (b, minus, end, last_axis, unit)": True,
    "c = Slice (b, zero, sixteen, axis)": True,
    "d = Slice (b, eight, end, axis)  c = Slice (d, eight, end, axis)": False,
    "d = Slice (b, zero, end, axis, two)  c = Mul (d, d)": False,
    "d = Slice (b, one, eight, two)  c = Slice (d, zero, sixteen, axis)": False,
}


@pytest.mark.parametrize("steps", PARTS)
def test_parts_of_the_channels(steps):
    numbers = {"zero": 0, "one": 1, "two": 2, "eight": 8, "sixteen": 16, "minus": -16, "end": 2**63 - 1, "axis": 1}
    numbers |= {"last_axis": -3, "unit": 1}
    constants = {name: np.array([value]) for name, value in numbers.items() if name in steps}
    constants |= {"sixteens": np.array([16, 16]), "others": np.array([12, 20]), "fives": np.array([5, 5])}
    source = text_model(
        f"""(float[2, 16, 10, 12] x) => (float[] y) {{
            a = Conv (x, w)  b = Pair (a, scale, zero_point)  {steps}  s = Pair (c, scale, zero_point)  y = Conv (s, v)
        }}""",
        opset=17,
        scale=np.float32(0.03),
        zero_point=np.int16(3),
        w=np.random.default_rng(1).normal(0, 0.4, (32, 16, 1, 3)).astype(np.float32),
        v=np.random.default_rng(2).normal(0, 0.4, (7, 16, 1, 1)).astype(np.float32),
        **{name: value for name, value in constants.items() if name in steps},
    )
    after = laid_out(source)
    assert (count(after, "ReorderOutput") == 1) == PARTS[steps]
    x = np.random.default_rng(3).normal(0, 2, (2, 16, 10, 12)).astype(np.float32)
    (plain,), (blocked,) = (outputs(source, {"x": x}, blocked_layout=each) for each in (False, True))
    np.testing.assert_array_equal(blocked, plain)


@pytest.mark.parametrize(
    "how",
    [
        "",
        'coordinate_transformation_mode = "half_pixel", nearest_mode = "round_prefer_ceil"',
        'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
        'coordinate_transformation_mode = "half_pixel", nearest_mode = "floor"',
        'coordinate_transformation_mode = "asymmetric"',
        'coordinate_transformation_mode = "align_corners"',
    ],
)
@pytest.mark.parametrize("factors", [(2, 2), (1, 3), (5, 4), (7, 31), (32, 1), (1.5, 2)])
@pytest.mark.parametrize("height", ["9", "h"])
@pytest.mark.covering
def test_enlarged_images(how, factors, height):
    """The pixels nearest to the centers of pixels are those that a whole factor repeats."""
    source = text_model(
        f"""(float[1, 16, {height}, 300] x) => (float[] y) {{
            a = Conv (x, w)  b = Pair (a, scale, zero_point)
            c = Resize <mode = "nearest"{", " * bool(how)}{how}> (b, "", factors)  y = Pair (c, scale, zero_point)
        }}""",
        opset=17,
        scale=np.float32(0.03),
        zero_point=np.int16(3),
        factors=np.array([1, 1, *factors], np.float32),
        w=np.random.default_rng(1).normal(0, 0.4, (16, 16, 1, 1)).astype(np.float32),
    )
    after = laid_out(source)
    is_whole = all(factor % 1 == 0 for factor in factors)
    is_centered = (not how or "half_pixel" in how) and "floor" not in how and height == "9" and max(factors) < 32
    assert count(after, "Upsample") == (is_whole and (is_centered or (how.endswith('"floor"') and "asymmetric" in how)))
    x = np.random.default_rng(3).normal(0, 2, (1, 16, 9, 300)).astype(np.float32)
    (plain,), (blocked,) = (outputs(source, {"x": x}, blocked_layout=each) for each in (False, True))
    np.testing.assert_array_equal(blocked, plain)


def test_what_else_takes_and_gives_values():
    """The graph has outputs from within the steps, an input into them, and a node in ONNX's layout."""
    steps = "d = Mul (a, scales)  b = Add (d, other)  t = Transpose <perm = [0, 2, 3, 1]> (b)"
    outputs_of_all = "float[] y, float[] b, float[] t, float[] a"
    source = network(8, steps, outputs=outputs_of_all, inputs=", float[n, 8, 1, 1] scales")
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
    source = network(24, STEPS["gate"], x="n, 3, ?, 10", outputs="float[n, 5, h, w] y")
    source.metadata_props.add(key="made by", value="a test")
    source.doc_string, source.graph.name, source.producer_name = "a document", "a graph", "a producer"
    given = options()
    given.enable_profiling, given.profile_file_prefix = True, str(tmp_path / "profile")
    sessions = [quark_numba.InferenceSession(source, given, blocked_layout=each) for each in (False, True)]
    facts = []
    for made in sessions:
        meta = made.get_modelmeta()
        values = (*made.get_inputs(), *made.get_outputs())
        facts.append([(value.name, value.type, value.shape) for value in values])
        facts[-1] += [meta.custom_metadata_map, meta.description, meta.graph_name, meta.producer_name, meta.version]
    assert facts[0] == facts[1]
    assert given.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert (given.optimized_model_filepath, given.log_severity_level) == ("", options().log_severity_level)
    names = []
    for made in sessions:
        made.run(None, {"x": np.zeros((1, 3, 12, 10), np.float32)})
        path = Path(made.end_profiling())
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
        model, kept, reasons, _ = laid_out_for(source, given)
        ((reason, count),) = reasons.items()
        assert (model, kept, count) == (None, 0, 4)
        assert next(iter(change)) in reason
    for arguments, named, reason in (
        ((["Other", "CPUExecutionProvider"],), {}, "the session has other execution providers than CPUExecutionProvider"),
        ((), {"disabled_optimizers": ["NchwcTransformer"]}, "NchwcTransformer is disabled"),
    ):
        assert laid_out_for(source, None, *arguments, **named).left_out == {reason: 4}
    given = options()
    given.add_session_config_entry("optimization.disable_specified_optimizers", "A;NchwcTransformer")
    assert laid_out_for(source, given).left_out == {"NchwcTransformer is disabled": 4}
    assert laid_out_for(source, None, [("CPUExecutionProvider", {})]).in_layout == 4
    assert laid_out_for(onnx.ModelProto()) == (None, 0, {}, "")
    source.graph.input[0].name = "another"
    (reason,) = laid_out_for(source).left_out
    assert reason.startswith("ONNX Runtime did not write the optimized model: ")
