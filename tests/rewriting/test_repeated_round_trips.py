"""The pass `repeated_round_trips`: round trips of values that an equal round trip gave are dropped."""

import itertools

import block_samples
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_models import RELEASE, model
from rewritten_models import assert_same_values, constant, floats

from quark_numba import bfp_quantize_dequantize, optimize, quantize_dequantize
from quark_numba.rewriting import repeated_round_trips
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.pairs import PAIR
from quark_numba.rewriting.repeated_round_trips import REPEATED

TYPES = [name for name, row in PAIR.formats.items() if row.ort_release and row.ort_release <= RELEASE]
IS_INTEGER = {name: isinstance(oracle.TYPES[name], oracle.Integer) for name in TYPES}

# All exponents and both signs, ties, zeros, Inf, NaN, and numbers that a float type rounds to -0.
X = np.uint32(np.arange(0, 2**32, 2**17 + 2**13 + 3)).view(np.float32)
X = np.concatenate([X, np.float32([0, -0.0, 1e-9, -1e-9, -0.1])])
X = np.resize(X, (4, X.size // 16 * 4))


def round_trip(x, y, scale="scale", axis=0, saturate=1):
    attributes = f"axis = {axis}, block_size = 0, saturate = {saturate}"
    return f"{y} = quark_numba.QuantizeDequantizeLinear <{attributes}> ({x}, {scale}, zero_point)"


def repeated(between, name="int8", scale=0.25, zero_point=0, behind="MatMul (z, w)", second=None, **attributes):
    """Return a model in which the nodes `between` lie between two round trips, and what the second one gives goes to a node."""
    second = second or round_trip("v", "z", **attributes)
    nodes = [round_trip("x", "y"), *between, second, f"u = {behind}", round_trip("u", "end")]
    own = scale if np.ndim(scale) else [scale]
    constants = floats(scale=own, w=np.random.default_rng(1).normal(0, 1, (4, 3)), low=0, high=6, odd=1.1)
    constants.append(constant("zero_point", np.full(np.shape(own), zero_point), oracle.dtype(name)))
    constants.append(constant("shape", [-1, 4], np.int64))
    return model(nodes, [("x", "float32", X.shape)], ["end"], initializers=constants, opset=17)


def dropped(source):
    return sum(count for (_, what), count in rewrite_model(source).done.items() if what == REPEATED)


MOVES = {
    "transpose and reshape": ["t = Reshape (y, shape)", "s = Transpose (t)", "v = Transpose (s)"],
    "concat": [round_trip("x", "y2"), "c = Concat <axis = 0> (y, y2)", "v = Reshape (c, shape)"],
    "nothing": ["r = Reshape (y, shape)", round_trip("r", "v")],
}
CLIPS = {"relu": ["r = Relu (y)", "v = Reshape (r, shape)"], "clip": ["r = Clip (y, low, high)", "v = Reshape (r, shape)"]}


@pytest.mark.compiled
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("between", MOVES | CLIPS)
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_dropped_round_trips(name, between):
    before = repeated((MOVES | CLIPS)[between], name, 1.0)
    has_bounds = PAIR.formats[name].bits > 2  # 6 is a value of all other types
    assert dropped(before) == (2 if between == "nothing" else between != "clip" or has_bounds)
    assert_same_values(before, optimize(before, regions=False), {"x": X})
    assert_same_values(before, optimize(before), {"x": X})


@pytest.mark.parametrize(
    "source",
    [
        repeated(MOVES["concat"], second=round_trip("v", "z", "odd")),
        repeated(MOVES["concat"], "float8e5m2", saturate=0),
        repeated(MOVES["concat"], "float16", 0.3),
        repeated(MOVES["concat"], "int32", 0.3),
        repeated(MOVES["concat"], "bfloat16", 0.5),
        repeated(MOVES["concat"], "float16", 0.5, 1),
        repeated(MOVES["concat"], "int8", 1e-40),
        repeated(MOVES["concat"], "int8", [0.25] * 4, axis=1),
        repeated(["v = Neg (y)"]),
        repeated(["v = Clip (y, low, odd)"]),
        repeated(["v = Clip (y, low)"]),
        repeated(["v = Concat <axis = 0> (y, x)"]),
        repeated(MOVES["concat"], "float16", behind="Neg (z)"),
        repeated(MOVES["concat"], "float16", behind="Div (z, z)"),
    ],
)
def test_round_trips_that_stay(source):
    assert not dropped(source)


def test_an_output_of_a_float_type_stays():
    """A -0 would be left where the second round trip gives 0. An integer type does not give -0."""
    for name, count in (("float16", 0), ("int8", 1)):
        source = repeated(MOVES["concat"], name, 1.0, behind="Reshape (z, shape)")
        source.graph.output[0].name = "u"
        del source.graph.node[-1]
        assert dropped(source) == count


def test_work_grows_with_the_length_of_a_chain(monkeypatch):
    """A node of a chain of round trips is looked at as often in a long chain as in a short one."""
    seen = []
    keeps = repeated_round_trips._keeps_rounded
    monkeypatch.setattr(repeated_round_trips, "_keeps_rounded", lambda *given: seen.append(given) or keeps(*given))
    for length in (10, 40):
        names = ["y", *(f"y{k}" for k in range(length - 1)), "v"]
        chain = [line for x, y in itertools.pairwise(names) for line in (f"r_{y} = Relu ({x})", round_trip(f"r_{y}", y))]
        seen.clear()
        assert dropped(repeated(chain)) == length + 1
        assert len(seen) == length


BFP16, MX9 = ({"axis": 1, **block_samples.BFP[name]} for name in ("BFP16", "MX9"))
MX = {"axis": 1, "element_dtype": "fp8_e4m3"}
RELU = ["v = Relu (y)"]
BLOCKS_X = block_samples.values((3, 35, 40), "float32")


def blocks(between, first, second=None, operator="BFPQuantizeDequantize", x="float32"):
    """Return a model in which the nodes `between` lie between two round trips through a block format, given by attributes."""
    ends = [
        helper.make_node(operator, [a], [b], domain="com.amd.quark", **attributes)
        for a, b, attributes in (("x", "y", first), ("v", "z", second or first))
    ]
    result = model([*between, "end = Neg (z)"], [("x", x, BLOCKS_X.shape)], ["end"], domains=["com.amd.quark"], opset=17)
    result.graph.node.insert(0, ends[0])
    result.graph.node.insert(len(result.graph.node) - 1, ends[1])
    return result


@pytest.mark.compiled
@pytest.mark.parametrize("between", [RELU, ["v = Identity (y)"]], ids=["relu", "identity"])
@pytest.mark.parametrize("attributes", [BFP16, MX9, MX9 | {"rounding_mode": 2}], ids=["BFP16", "MX9", "MX9 to even"])
@pytest.mark.covering("slow")
def test_dropped_block_formats(attributes, between):
    before = blocks(between, attributes)
    assert dropped(before) == 1
    for named in ({"regions": False}, {}, {"operators": "standard"}):
        assert_same_values(before, optimize(before, **named), {"x": BLOCKS_X}, content_but_for_nan)


def content_but_for_nan(value):
    """Return all bytes of a float32 OrtValue, with one NaN for all: an equal round trip may change a NaN's sign."""
    y = value.numpy()
    return np.where(np.isnan(y), np.float32(np.nan), y).tobytes()


@pytest.mark.parametrize(
    "source",
    [
        blocks(RELU, BFP16, MX9),
        blocks(RELU, BFP16, BFP16 | {"axis": 2}),
        blocks(RELU, BFP16 | {"bit_width": 17, "convert_to_bfloat_before_bfp": 1}),
        blocks(RELU, BFP16, x="float16"),
        blocks(["v = Neg (y)"], BFP16),
        blocks(["v = Transpose <perm = [2, 1, 0]> (y)"], BFP16),
        blocks(RELU, MX, operator="MXQuantizeDequantize"),
        blocks(RELU, MX | {"element_dtype": "int8"}, operator="MXQuantizeDequantize"),
    ],
)
def test_block_formats_that_stay(source):
    assert not dropped(source)


@pytest.mark.parametrize("attributes", block_samples.BFP.values(), ids=block_samples.BFP)
@pytest.mark.parametrize("rounding_mode", block_samples.ROUNDING_MODES)
@pytest.mark.covering("slow")
def test_what_is_dropped_of_block_formats(attributes, rounding_mode):
    """A format that the pass takes for one that changes nothing returns its own results, some of which became 0."""
    attributes = attributes | {"axis": 1, "rounding_mode": rounding_mode}
    if not dropped(blocks(RELU, attributes)):
        assert "convert_to_bfloat_before_bfp" in attributes
        return
    x = block_samples.values((200, 192), "float32")
    y = np.maximum(bfp_quantize_dequantize(x, **attributes), np.float32(0))
    for once in (y, -y):
        oracle.assert_same_bits(bfp_quantize_dequantize(once, **attributes), once)


@pytest.mark.compiled
@pytest.mark.slow
@given(st.data(), st.sampled_from(TYPES), st.integers(-60, 60), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_dropped_returns_its_x(data, name, exponent, is_power):
    """For each type, a round trip that the pass takes for one that changes nothing returns numbers of an equal one."""
    scale = np.float32(2.0**exponent * (1 if is_power else data.draw(st.floats(1, 2, width=32, exclude_max=True))))
    scale = np.float32(1) if name == "bfloat16" else scale
    row, dtype = oracle.TYPES[name], oracle.dtype(name)
    zero_point = data.draw(st.integers(row.lowest, row.highest)) if IS_INTEGER[name] else 0
    if not dropped(repeated(MOVES["concat"], name, scale, zero_point)):
        assert not is_power
        return
    random = np.random.default_rng(exponent + 60)
    with np.errstate(all="ignore"):
        x = np.concatenate([X.ravel(), np.float32(random.normal(0, 1, 2000)) * scale * np.exp2(random.integers(-3, 33, 2000))])
        once = quantize_dequantize(np.float32(x), scale, np.array(zero_point, dtype))
        twice = quantize_dequantize(once, scale, np.array(zero_point, dtype))
    np.testing.assert_array_equal(twice, once)
    if IS_INTEGER[name]:
        oracle.assert_same_bits(twice, once)
