"""The pass `repeated_round_trips`: round trips of values that an equal round trip gave are dropped."""

import itertools
import re

import block_samples
import numpy as np
import onnx
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_models import RELEASE, model, session
from rewritten_models import assert_same_values, constant, floats, pair

from quark_numba import bfp_quantize_dequantize, optimize, quantize_dequantize
from quark_numba.catalog import OPERATORS
from quark_numba.rewriting import moved_elements
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.pairs import PAIR
from quark_numba.rewriting.repeated_round_trips import BOOLEANS, REPEATED

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
        repeated(["v = Clip (y, low)"], "float16"),
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
    keeps = moved_elements.sources
    monkeypatch.setattr(moved_elements, "sources", lambda *given: seen.append(given) or keeps(*given))
    for length in (10, 40):
        names = ["y", *(f"y{k}" for k in range(length - 1)), "v"]
        chain = [line for x, y in itertools.pairwise(names) for line in (f"r_{y} = Relu ({x})", round_trip(f"r_{y}", y))]
        seen.clear()
        assert dropped(repeated(chain)) == length + 1
        assert len(seen) == length + 1  # and the node in front of the last round trip


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


@pytest.mark.by_default(1)
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
        blocks(["v = Trilu (y)"], BFP16),  # beside a NaN, 0 may become NaN
        blocks(["v = Max (y, y)"], BFP16),
        blocks(["v = Transpose <perm = [1, 0, 2]> (y)"], BFP16),
        blocks(RELU, MX, operator="MXQuantizeDequantize"),
        blocks(RELU, MX | {"element_dtype": "int8"}, operator="MXQuantizeDequantize"),
    ],
)
def test_block_formats_that_stay(source):
    assert not dropped(source)


# Nodes between two round trips with blocks of 8 along axes of y and v, in the shape (3, 24, 5) of y, and whether the second one
# is dropped. The names of constants tell their elements: `i_3_5` is [3, 5].
_END = 2**63 - 1
MOVED = [
    (["v = Neg (y)"], 1, 1, True),
    (["s = Abs (y)", "v = Transpose <perm = [0, 2, 1]> (s)"], 1, 2, True),
    (["v = Slice (y, i_1, i_3, i_2)"], 1, 1, True),
    (["v = Slice (y, i_8, i_16, i_1)"], 1, 1, True),
    (["v = Slice (y, i_8, i_end, i_1)"], 1, 1, True),
    (["v = Slice (y, i_8, i_n8, i_n2)"], 1, -2, True),
    (["v = Slice (y, i_n16, i_n8, i_1)"], -2, 1, True),
    (["v = Slice (y, i_8, i_20, i_1)"], 1, 1, False),
    (["v = Slice (y, i_4, i_16, i_1)"], 1, 1, False),
    (["v = Slice (y, i_0, i_16, i_1, i_2)"], 1, 1, False),
    (["v = Slice (y, i_n1, i_n24, i_1, i_n1)"], 1, 1, False),
    (["v = Concat <axis = 1> (y, y)"], 1, 1, True),
    (["s = Slice (y, i_0, i_3, i_1)", "v = Concat <axis = 1> (y, s)"], 1, 1, False),
    (["s = Slice (y, i_0, i_8, i_1)", "v = Concat <axis = -2> (s, y)"], 1, 1, True),
    (["v = Concat <axis = 2> (y, y)"], 1, 1, True),
    (["v = Concat <axis = 1> (y, x)"], 1, 1, False),
    (["v = Concat <axis = 2> (y, y)"], 2, 2, False),
    (["w, v = Split <axis = 1> (y, i_16_8)"], 1, 1, True),
    (["v, w = Split <axis = 1> (y, i_8_16)"], 1, 1, True),
    (["w, v = Split <axis = 1> (y, i_12_12)"], 1, 1, False),
    (["w, v = Split <axis = 2> (y, i_2_3)"], 1, 1, True),
    (["v = Gather <axis = 0> (y, i_2_0)"], 1, 1, True),
    (["v = Gather <axis = 2> (y, i_1x2)"], 1, 1, True),
    (["v = Gather <axis = 0> (y, i_1x2)"], 1, 2, True),
    (["v = Gather <axis = 0> (y, i_1x2)"], 1, 1, False),
    (["v = Gather <axis = 1> (y, i_8_0)"], 1, 1, False),
    (["v = Transpose <perm = [0, 2, 1]> (y)"], 1, 2, True),
    (["v = Transpose (y)"], 2, 0, True),
    (["v = Transpose (y)"], 2, 2, False),
    (["v = Reshape (y, i_72_5)"], 1, 0, True),
    (["v = Reshape (y, i_3_2_12_5)"], 1, 2, False),
    (["v = Reshape (y, i_3_3_8_5)"], 1, 2, True),
    (["v = Reshape (y, i_3_24_5_1)"], 1, 1, True),
    (["v = Reshape (y, i_3_120)"], 1, 1, False),
    (["v = Reshape (y, i_3_120)"], 2, 1, False),
    (["v = Flatten <axis = 2> (y)"], 1, 0, True),
    (["v = Flatten <axis = 2> (y)"], 2, 1, True),
    (["u = Unsqueeze (y, i_0)", "v = Squeeze (u, i_0)"], 1, 1, True),
    (["v = Unsqueeze (y, i_1)"], 1, 2, True),
    (["v = Unsqueeze (y, i_1)"], 1, 1, False),
    (["v = Expand (y, i_2_3_24_5)"], 1, 2, True),
    (["s = Slice (y, i_0, i_1, i_2)", "v = Expand (s, i_3_24_5)"], 1, 1, True),
    (["s = Slice (y, i_0, i_1, i_2)", "v = Expand (s, i_3_24_5)"], 2, 2, False),
    (["v = Tile (y, i_2_1_3)"], 1, 1, True),
    (["v = Tile (y, i_1_2_1)"], 1, 1, True),
    (["v = Tile (y, i_1_1_2)"], 2, 2, False),
    (["v = Pad (y, i_1_0_2_0_5_1)"], 1, 1, True),
    (["v = Pad (y, i_0_8_0_0_0_0)"], 1, 1, True),
    (["v = Pad (y, i_0_0_0_0_3_0)"], 1, 1, True),
    (["v = Pad (y, i_0_0_0_0_0_3)"], 2, 2, False),  # a block with a NaN may be NaN as a whole
    (["v = Pad (y, i_0_3_0_0_0_0)"], 1, 1, False),
    (["v = Pad (y, i_0_0_1_0_0_0, one)"], 1, 1, False),
    (["v = Pad <mode = 'edge'> (y, i_0_0_1_0_0_0)".replace("'", '"')], 1, 1, False),
    (["v = Resize (y, , scales)"], 1, 1, True),
    (["v = Resize (y, , scales)"], 2, 2, False),
    (["v = Resize <mode = 'linear'> (y, , scales)".replace("'", '"')], 1, 1, False),
    (['v = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (y, , odd_scales)'], 1, 1, False),
    (["t = Transpose (y)", "r = Relu (t)", "v = Reshape (r, i_5_24_3_1)"], 1, 1, True),
    (["m = Max (y, one)", "v = Reshape (m, i_72_5)"], 1, 0, False),
]


def moved(nodes, first, second, attributes, shape=(3, 24, 5)):
    """Return a model of nodes between two round trips to a block format, along these axes."""
    names = {name for text in nodes for name in re.findall(r"\bi_\w+", text)}
    constants = [constant(name, _numbers(name), np.int64) for name in sorted(names)]
    constants += floats(one=1, scales=[1, 1, 2], odd_scales=[1, 1.02, 1])
    trips = [
        helper.make_node("BFPQuantizeDequantize", [x], [y], domain="com.amd.quark", **attributes, axis=axis)
        for x, y, axis in (("x", "y", first), ("v", "z", second))
    ]
    source = model(nodes, [("x", "float32", shape)], ["end"], domains=["com.amd.quark"], opset=17, initializers=constants)
    between = [*source.graph.node]
    del source.graph.node[:]
    source.graph.node.extend([trips[0], *between, trips[1], helper.make_node("Neg", ["z"], ["end"])])
    return source


def _numbers(name):
    if "x" in name:  # of two dimensions
        return [[0, 2]]
    return [_END if part == "end" else -int(part[1:]) if part[0] == "n" else int(part) for part in name.split("_")[1:]]


HOSTILE = {"BFP16": block_samples.BFP["BFP16"], "MX": {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 8}}


@pytest.mark.compiled
@pytest.mark.parametrize(("nodes", "first", "second", "is_dropped"), MOVED)
@pytest.mark.parametrize("attributes", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.covering("slow")
def test_moved_blocks(nodes, first, second, is_dropped, attributes):
    """Blocks that stay whole need no second rounding; the values have all signs, exponents, Inf, NaN and subnormal numbers."""
    before = moved(nodes, first, second, attributes)
    assert dropped(before) == is_dropped
    for seed in range(3 * is_dropped):
        x = np.random.default_rng(seed).choice(block_samples.values((40, 40), "float32").ravel(), (3, 24, 5))
        assert_same_values(before, optimize(before), {"x": x}, content_but_for_nan)


# Nodes between two round trips of single elements, and the kinds of formats for which the second one is dropped. y has the
# shape (3, 4, 5).
KINDS = {"int8": (0.25, -5), "uint16": (0.125, 65535), "int32": (0.5, 7), "float16": (1, 0), "cast": (), "Quant": (0.25, 3)}
WHOLE, FLOATS = ["int8", "uint16", "int32"], ["float16", "cast"]
CHOSEN = [
    ("v = Concat <axis = 1> (y, members)", KINDS),
    ("v = Concat <axis = 1> (y, others)", ["cast"]),
    ("v = Max (y, members)", KINDS),
    ("v = Min (others, y)", ["cast"]),
    ("v = Max (y, minus_zero)", []),
    ("v = Max (y, inf)", []),
    ("t = Neg (y)  r = Relu (y)  v = Min (r, y, zero)", KINDS),
    ("v = Where (mask, y, members)", KINDS),
    ("v = Where (mask, x, y)", []),
    ("v = Clip (y, minus_one, zero)", KINDS),
    ("v = Clip (y, minus_one)", WHOLE),  # it makes Inf finite
    ("v = Clip (y, odd, zero)", []),
    ("v = Neg (y)", FLOATS),
    ("v = Abs (y)", ["int8", "float16", "cast"]),
    ("v = ThresholdedRelu (y)", KINDS),
    ("v = Trilu (y)", KINDS),
    ("v = Pad (y, pads)", KINDS),
    ("v = Pad (y, pads, minus_one)", KINDS),
    ("v = Pad (y, pads, odd)", []),
    ('v = Pad <mode = "reflect"> (y, pads)', KINDS),
    ("v = MaxPool <kernel_shape = [3], pads = [2, 2]> (y)", WHOLE),
    ("v = MaxPool <kernel_shape = [2], dilations = [2], pads = [1, 1]> (y)", []),
    ("v = GlobalMaxPool (y)", WHOLE),
    ("v = AveragePool <kernel_shape = [2]> (y)", []),
    ("v = ScatterElements <axis = 1> (y, places, members)", KINDS),
    ('v = ScatterElements <axis = 1, reduction = "add"> (y, places, y)', []),
    ("v = Resize (y, , scales)", KINDS),
    ('v = Resize <mode = "linear"> (y, , scales)', []),
    ("v = Add (y, zero)", []),
]
SPECIAL = [0, -0.0, 1e-45, -1e-45, 1e-39, 0.1, -0.1, 0.125, -0.125, 1e-9, 6e4, 7e4, -7e4, 3e38, -3e38, np.inf, -np.inf, np.nan]


def elements(seed, shape):
    """Return numbers of all kinds: signed zeros, subnormal numbers, ties, Inf, NaN, and numbers beyond all bounds."""
    rng = np.random.default_rng(seed)
    usual = rng.normal(0, 1, shape) * np.exp2(rng.integers(-5, 12, shape))
    return np.where(rng.random(shape) < 0.5, rng.choice(SPECIAL, shape), usual).astype(np.float32)


def chosen(nodes, kind, *, behind=None, shape=(3, 4, 5)):
    """Return a model of nodes between two round trips of a kind. Behind the second one signs of zeros are lost, if the round
    trip turns them."""
    text = {
        "cast": "{1}_codes = Cast <to = 16> ({0})  {1} = Cast <to = 1> ({1}_codes)",
        "Quant": '{1} = qonnx.custom_op.general.Quant <signed = 1, narrow = 1, rounding_mode = "ROUND"> '
        "({0}, scale, zero_point, bits)",
    }.get(kind) or round_trip("{0}", "{1}")
    lost = kind in ("float16", "Quant")
    behind = behind or ("s = Reshape (z, column)  end = MatMul (s, one)" if lost else "end = Neg (z)")
    scale, zero_point = KINDS[kind] or (1, 0)
    dtype = np.float32 if lost and kind == "Quant" else oracle.dtype({"cast": "int8"}.get(kind, kind))
    constants = floats(minus_one=-1, zero=0, odd=0.1, minus_zero=-0.0, inf=-np.inf, scales=[1, 1, 2], one=[[1]], bits=8)
    constants += floats(members=np.resize([-2, 0, -1, -4], shape), others=np.full(shape, 2.0**-30), scale=scale)
    constants += [constant("zero_point", zero_point, dtype), constant("mask", [True, False, True, False, True], np.bool_)]
    places = np.broadcast_to([[2], [0], [3], [1]], shape)
    constants += [constant("column", [-1, 1], np.int64), constant("places", places, np.int64)]
    constants += [constant("pads", [0, 1, 2, 0, 0, 1], np.int64)]
    nodes = [text.format("x", "y"), nodes, text.format("v", "z"), behind]
    return model(nodes, [("x", "float32", shape)], ["end"], initializers=constants, opset=18)


@pytest.mark.compiled
def test_the_negative_of_zero():
    """Neg makes -0 of 0. A round trip through the codes -127 to 127 returns the negative of each of its values, but not -0."""
    trips = [
        f"{y}_c = QuantizeLinear ({x}, s, z)  {y}_d = Clip ({y}_c, low, high)  {y} = DequantizeLinear ({y}_d, s, z)"
        for x, y in (("x", "y"), ("v", "w"))
    ]
    numbers = [constant(name, value, np.int8) for name, value in {"z": 0, "low": -127, "high": 127}.items()]
    nodes = [trips[0], "v = Neg (y)", trips[1], "end = Reciprocal (w)"]
    before = model(nodes, [("x", "float32", (4,))], ["end"], initializers=[*floats(s=0.5), *numbers], opset=17)
    assert not dropped(before)
    assert_same_values(before, optimize(before), {"x": np.array([0, -0.0, 1, -0.1], np.float32)})


def assert_same_ends(before, x, **named):
    """The optimized model gives the bits of the original one. One NaN is as good as another."""
    results = []
    for source in (before, optimize(before, **named)):
        (y,) = session(source, level="DISABLE_ALL").run(None, {"x": x})
        results.append(np.where(np.isnan(y), np.float32(np.nan), y))
    oracle.assert_same_bits(*results)


@pytest.mark.compiled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nodes", "kinds"), CHOSEN, ids=[re.search(r"= (\w+)", text)[1] for text, _ in CHOSEN])
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_chosen_elements(nodes, kinds, kind):
    before = chosen(nodes, kind)
    assert dropped(before) == (kind in kinds)
    if kind in kinds:
        for named in ({}, {"regions": False}, {"operators": "standard"}):
            assert_same_ends(before, elements(1, (3, 4, 5)), **named)


@pytest.mark.parametrize("kind", KINDS)
def test_signs_of_zeros_that_are_kept(kind):
    """Only Casts return -0 for -0, and whole numbers have no -0."""
    assert dropped(chosen("v = Relu (y)", kind, behind="end = Neg (z)")) == (kind not in ("float16", "Quant"))


# Nodes between two round trips with 4 scales along axes of y and v, in the shape (4, 4, 5) of y.
PER_AXIS = [
    (["v = Slice (y, i_1, i_3, i_2)"], 1, 1, True),
    (["v = Slice (y, i_0, i_4, i_1)"], 1, -2, True),
    (["v = Slice (y, i_n1, i_n5, i_1, i_n1)"], 1, 1, False),
    (["c = Concat <axis = 1> (y, y)", "v = Slice (c, i_1, i_5, i_1)"], 1, 1, False),
    (["v = Concat <axis = 2> (y, members)"], 1, 1, True),
    (["v = Concat <axis = 2> (y, ones)"], 1, 1, False),
    (["v, w = Split <axis = 2> (y, i_2_3)"], 1, 1, True),
    (["v = Gather <axis = 0> (y, i_2_0)"], 1, 1, True),
    (["v = Gather <axis = 1> (y, i_3_0_1_2)"], 1, 1, False),
    (["v = Transpose <perm = [1, 0, 2]> (y)"], 1, 0, True),
    (["v = Transpose <perm = [1, 0, 2]> (y)"], 1, 1, False),
    (["v = Reshape (y, i_2_2_4_5)"], 1, 2, True),
    (["v = Reshape (y, i_5_4_4)"], 1, 1, False),
    (["v = Unsqueeze (y, i_1)"], 1, 2, True),
    (["v = Expand (y, i_2_4_4_5)"], 1, 2, True),
    (["s = Slice (y, i_0, i_1, i_1)", "v = Expand (s, i_4_4_5)"], 1, 1, False),
    (["v = Tile (y, i_1_1_2)"], 1, 1, True),
    (["v = Pad (y, i_1_0_2_0_0_1)"], 1, 1, True),
    (["v = Resize (y, , scales)"], 1, 1, True),
    (['v = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (y, , odd_scales)'], 1, 1, False),
    (["v = Relu (y)"], 1, 1, True),
    (["v = Max (y, zero)"], 1, 1, True),
    (["v = Max (y, half)"], 1, 1, False),
    (["v = Clip (y, zero, half)"], 1, 1, False),
    (["v = Min (members, y)"], 1, 1, True),
    (["s = Slice (y, i_0, i_1, i_2)", "v = Min (y, s)"], 1, 1, True),
    (["s = Slice (y, i_0, i_1, i_1)", "v = Min (y, s)"], 1, 1, False),
    (["v = Where (mask, y, members)"], 1, 1, True),
    (["v = MaxPool <kernel_shape = [2]> (y)"], 1, 1, None),  # of whole numbers alone
    (["v = Neg (y)"], 1, 1, False),
]


def per_axis(nodes, first, second, name, scale):
    constants = [constant(each, _numbers(each), np.int64) for each in set(re.findall(r"\bi_\w+", " ".join(nodes)))]
    constants += floats(scale=scale, zero=0, half=0.5, ones=np.ones((4, 4, 1)), scales=[1, 1, 2], odd_scales=[1, 1.1, 1])
    constants += floats(members=np.broadcast_to(np.reshape(scale, (4, 1)), (4, 4, 1)), one=[[1]])
    constants += [constant("zero_point", [0] * 4 if name == "float16" else [-3, 0, 5, 100], oracle.dtype(name))]
    constants += [constant("column", [-1, 1], np.int64), constant("mask", [True, False, True, False, True], np.bool_)]
    ends = [round_trip("x", "y", axis=first), *nodes, round_trip("v", "z", axis=second)]
    behind = ["s2 = Reshape (z, column)", "end = MatMul (s2, one)"] if name == "float16" else ["end = Neg (z)"]
    return model([*ends, *behind], [("x", "float32", (4, 4, 5))], ["end"], initializers=constants, opset=17)


@pytest.mark.compiled
@pytest.mark.parametrize(("nodes", "first", "second", "is_dropped"), PER_AXIS)
@pytest.mark.parametrize(("name", "scale"), [("int8", [0.3, 1e-30, 4, 1e30]), ("float16", [0.25, 2.0**-60, 4, 2.0**50])])
@pytest.mark.covering("slow")
@pytest.mark.by_default(4)
def test_scales_along_an_axis(nodes, first, second, is_dropped, name, scale):
    before = per_axis(nodes, first, second, name, scale)
    is_dropped = name == "int8" if is_dropped is None else is_dropped or (name == "float16" and "Neg" in nodes[0])
    assert dropped(before) == is_dropped
    with np.errstate(over="ignore", under="ignore"):
        x = elements(1, (4, 4, 5)) * np.float32(scale).reshape(4, 1)
    if is_dropped:
        assert_same_ends(before, x)


@pytest.mark.parametrize(
    ("name", "scale"),
    [("int8", [0.25, 1e-40, 1, 1]), ("int32", [1, 2, 3, 4]), ("float16", [1, 1.5, 1, 1]), ("bfloat16", [1, 1, 2, 1])],
)
def test_scales_along_an_axis_that_are_not_proved(name, scale):
    source = per_axis(["v = Relu (y)"], 1, 1, "int8", scale)
    source.graph.initializer.append(constant("typed", [0] * 4, oracle.dtype(name)))
    for node in source.graph.node:
        for k, each in enumerate(node.input):
            node.input[k] = "typed" if each == "zero_point" else each
    assert not dropped(source)


def test_values_of_another_round_trip():
    """A wider integer type has the numbers of a narrower one."""

    def count(first, second):
        types = {"first": first, "second": second}
        constants = [constant(each, zero_point, oracle.dtype(name)) for each, (name, zero_point) in types.items()]
        nodes = [round_trip("x", "y").replace("zero_point", "first"), "v = Transpose (y)"]
        nodes += [round_trip("v", "z").replace("zero_point", "second"), "end = Neg (z)"]
        return dropped(
            model(nodes, [("x", "float32", (4, 6))], ["end"], initializers=[*constants, *floats(scale=0.3)], opset=21)
        )

    assert count(("int8", 0), ("uint8", 128))
    assert count(("int8", 0), ("int16", 7))
    assert not count(("int16", 0), ("int8", 0))
    assert not count(("int8", 0), ("uint8", 127))


@pytest.mark.compiled
@pytest.mark.parametrize(("name", "count"), [("int8", 1), ("uint8", 1), ("float8e5m2", 0)])
def test_dequantized_codes(name, count):
    """Codes of a float type may be Inf, which a round trip that saturates does not return."""
    nodes = [
        "y = DequantizeLinear (x, scale, zero_point)",
        "v = Transpose (y)",
        round_trip("v", "z"),
        "r = Reshape (z, column)",
    ]
    constants = [
        constant("zero_point", 0, oracle.dtype(name)),
        constant("column", [-1, 1], np.int64),
        *floats(scale=0.5, one=[[1]]),
    ]
    nodes.append("end = MatMul (r, one)")
    before = model(nodes, [("x", name, (16, 16))], ["end"], initializers=constants, opset=21)
    assert dropped(before) == count
    if count:
        codes = np.arange(256, dtype=np.uint8).view(oracle.dtype(name)).reshape(16, 16)
        assert_same_ends(before, codes)


@pytest.mark.compiled
def test_steps_with_a_clip():
    """Quantize, Clip and dequantize, as Brevitas writes them, twice."""
    steps = [
        "{1}q = QuantizeLinear ({0}, scale, zero)",
        "{1}c = Clip ({1}q, low, high)",
        "{1} = DequantizeLinear ({1}c, scale, zero)",
    ]
    nodes = [*(each.format("x", "y") for each in steps), "v = Transpose (y)", *(each.format("v", "z") for each in steps)]
    for low, count in ((-7, 1), (3, 0)):  # without 0 among the values, nothing is known
        constants = [constant(each, value, np.int8) for each, value in {"zero": 0, "low": low, "high": 7}.items()]
        constants += floats(scale=0.3)
        before = model([*nodes, "end = Neg (z)"], [("x", "float32", (5, 4))], ["end"], initializers=constants, opset=17)
        assert dropped(before) == count
        assert_same_ends(before, elements(1, (5, 4)))


@pytest.mark.compiled
@pytest.mark.parametrize(("axis", "count"), [(0, 1), (1, 0)])
def test_pairs_along_an_axis(axis, count):
    """The nodes that replace Quantize and Dequantize have the shapes that onnx infers for these."""
    parameters = ("scale", "zero_point")
    nodes = [*pair(axis=1), "v = Transpose <perm = [1, 0, 2]> (y)", *pair("v", "codes2", "z", parameters, axis=axis)]
    constants = [*floats(scale=[0.3, 1, 4, 1e-20]), constant("zero_point", [1, 2, 3, 4], np.int8)]
    before = model([*nodes, "end = Neg (z)"], [("x", "float32", (4, 4, 5))], ["end"], initializers=constants, opset=17)
    assert dropped(before) == count
    assert_same_ends(before, elements(2, (4, 4, 5)))


@pytest.mark.compiled
@pytest.mark.parametrize(("shape", "count"), [((4, 1, 1), 1), ((4, 1), 0)])
def test_scales_of_quant_along_an_axis(shape, count):
    """The scales broadcast to x, so after a Transpose they have another shape."""
    quant = "{1} = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> ({0}, {2}, zero, bits)"
    nodes = [quant.format("x", "y", "scale"), "v = Transpose <perm = [1, 0, 2]> (y)", quant.format("v", "z", "other")]
    scales = np.float32([0.3, 1, 4, 1e-20])
    constants = floats(scale=scales.reshape(4, 1), other=scales.reshape(shape), zero=0, bits=5, one=[[1]])
    constants.append(constant("column", [-1, 1], np.int64))
    nodes += ["r = Reshape (z, column)", "end = MatMul (r, one)"]
    before = model(nodes, [("x", "float32", (4, 4, 5))], ["end"], initializers=constants, opset=17)
    assert dropped(before) == count
    assert_same_ends(before, elements(2, (4, 4, 5)))


@pytest.mark.parametrize("rounding_mode", ["ROUND", "HALF_UP", "HALF_DOWN", "CEIL", "FLOOR", "UP", "DOWN"])
@pytest.mark.parametrize("bits", [1, 2, 8, 16, 17])
@pytest.mark.covering("slow")
@pytest.mark.by_default(2)
def test_what_is_dropped_of_quant_returns_its_x(bits, rounding_mode):
    """A Quant that the pass takes for one that changes nothing returns its own numbers. The others may be rounded elsewhere."""
    rng = np.random.default_rng(bits)
    for scale, zero_point, signed in itertools.product([0.1, 0.3, 1e-30, 7e20, 1e-39], [0, 1, 0.5], [0, 1]):
        attributes = f'signed = {signed}, narrow = 0, rounding_mode = "{rounding_mode}"'
        quant = f"{{1}} = qonnx.custom_op.general.Quant <{attributes}> ({{0}}, scale, zero_point, bits)"
        nodes = [quant.format("x", "y"), quant.format("y", "z"), "r = Reshape (z, column)", "end = MatMul (r, one)"]
        constants = [*floats(scale=scale, zero_point=zero_point, bits=bits, one=[[1]]), constant("column", [-1, 1], np.int64)]
        source = model(nodes, [("x", "float32", (4, 6))], ["end"], initializers=constants, opset=17)
        expected = "HALF" in rounding_mode or rounding_mode == "ROUND"
        expected &= 2 <= bits <= 16 and scale > 1e-38 and zero_point != 0.5
        assert dropped(source) == expected
        if expected:
            operator = OPERATORS.find("qonnx.custom_op.general", "Quant")
            named = {"signed": signed, "narrow": 0, "rounding_mode": rounding_mode}
            given = [np.float32(each) for each in (scale, zero_point, bits)]
            with np.errstate(all="ignore"):
                x = np.float32(np.concatenate([rng.normal(0, 2.0**bits, 5000), SPECIAL])) * np.float32(scale)
                once = operator.call(x, *given, **named)
                np.testing.assert_array_equal(operator.call(once, *given, **named), once)


def test_one_element_is_not_rounded():
    """The operators return one element as it is. Among several ones it is rounded."""
    source = moved(["v = Expand (y, i_1_8_4)"], 1, 1, HOSTILE["BFP16"], (1, 1, 1))
    assert not dropped(source)
    assert not dropped(moved(["v = Concat <axis = 0> (y, y)"], 1, 1, HOSTILE["BFP16"], (1, 1, 1)))
    assert dropped(moved(["v = Concat <axis = 0> (y, y)"], 1, 1, HOSTILE["BFP16"], (1, 1, 2)))


def test_lengths_that_are_not_known():
    def count(*given):
        return dropped(moved(*given, HOSTILE["BFP16"], ("n", 24, "length")))

    assert count(["v = Concat <axis = 0> (y, y)"], 1, 1)
    assert count(["v = Slice (y, i_0, i_8, i_2)"], 2, 2)
    assert count(["v = Slice (y, i_8, i_end, i_2)"], 2, 2)
    assert count(["v = Transpose (y)"], 1, 1)
    assert not count(["v = Slice (y, i_0, i_n8, i_2)"], 2, 2)
    assert not count(["v = Concat <axis = 2> (y, y)"], 2, 2)
    assert not dropped(moved(["v = Concat <axis = 0> (y, y)"], 1, 1, HOSTILE["BFP16"], ("a", "b", "c")))  # perhaps one element


@pytest.mark.compiled
@pytest.mark.parametrize("attributes", block_samples.BFP.values(), ids=block_samples.BFP)
@pytest.mark.parametrize("rounding_mode", block_samples.ROUNDING_MODES)
@pytest.mark.covering("slow")
def test_what_is_dropped_of_block_formats(attributes, rounding_mode):
    """A format that the pass takes for one that changes nothing returns its own results, some of which became 0 or changed
    their signs."""
    attributes = attributes | {"axis": 1, "rounding_mode": rounding_mode}
    if not dropped(blocks(RELU, attributes)):
        assert "convert_to_bfloat_before_bfp" in attributes
        return
    x = block_samples.values((200, 192), "float32")
    y = bfp_quantize_dequantize(x, **attributes)
    turned = y * np.random.default_rng(1).choice(np.float32([1, -1]), y.shape)
    for once in (np.maximum(y, np.float32(0)), -np.maximum(y, np.float32(0)), np.abs(y), turned):
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


def with_outputs(source, *names):
    """Return a model with other outputs, of the shape of x."""
    result = onnx.ModelProto()
    result.CopyFrom(source)
    del result.graph.output[:], result.graph.node[-1]
    shape = [*BLOCKS_X.shape]
    result.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in names)
    return result


@pytest.mark.compiled
@pytest.mark.parametrize("between", [RELU, [*RELU, "w = Identity (v)"]], ids=["last node", "other uses"])
def test_what_is_dropped_may_be_an_output(between):
    before = with_outputs(blocks(between, BFP16), "z", *(["w"] if len(between) > 1 else []))
    after = optimize(before)
    assert dropped(before) == 1
    assert [output.name for output in after.graph.output] == [output.name for output in before.graph.output]
    assert_same_values(before, after, {"x": BLOCKS_X}, content_but_for_nan)


def test_an_output_keeps_its_node_if_x_is_an_output():
    assert not dropped(with_outputs(blocks(RELU, BFP16), "v", "z"))


def of_booleans(comparison, operator, attributes, element_type="float32"):
    """Return a model that rounds the result of a comparison to a block format."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(element_type))
    nodes = [comparison, f"v = Cast <to = {number}> (b)"]
    source = model([*nodes, "end = Neg (z)"], [("x", "float32", BLOCKS_X.shape)], ["end"], domains=["com.amd.quark"], opset=17)
    source.graph.node.insert(2, helper.make_node(operator, ["v"], ["z"], domain="com.amd.quark", **attributes))
    source.graph.initializer.extend(floats(one=1))
    return source


def dropped_booleans(source):
    return sum(count for (_, what), count in rewrite_model(source).done.items() if what == BOOLEANS)


BLOCK_FORMATS = [
    *(("BFPQuantizeDequantize", each) for each in block_samples.BFP.values()),
    *(("MXQuantizeDequantize", {"element_dtype": name}) for name in ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp4_e2m1", "int8")),
]


@pytest.mark.compiled
@pytest.mark.parametrize(("operator", "attributes"), BLOCK_FORMATS)
@pytest.mark.covering("slow")
def test_booleans_are_not_rounded(operator, attributes):
    for axis in (1, 2):
        before = of_booleans("b = Greater (x, one)", operator, {**attributes, "axis": axis})
        assert dropped_booleans(before) == 1
        assert_same_values(before, optimize(before), {"x": BLOCKS_X}, lambda value: value.numpy().tobytes())


def test_what_is_not_known_to_be_boolean_is_rounded():
    for comparison, attributes in (("b = Round (x)", BFP16), ("b = Equal (x, one)", {**BFP16, "bit_width": 99})):
        assert not dropped_booleans(of_booleans(comparison, "BFPQuantizeDequantize", attributes))
    assert not dropped_booleans(of_booleans("b = Equal (x, one)", "BFPQuantizeDequantize", BFP16, "float16"))
