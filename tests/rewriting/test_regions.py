"""The pass `regions` and its nodes: connected elementwise nodes become one node, which gives the same values."""

import itertools
import re

import architectures
import block_samples
import numpy as np
import onnx
import oracle
import pytest
import textline
from block_samples import BFP, MX, rounding_modes
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from marks import sizes
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model, parsed, run, session
from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException
from paths import ROOT
from rewritten_models import (
    VARIANTS,
    assert_same_values,
    constant,
    exact_session,
    floats,
    operators,
    pair,
    scale_and_zero_point,
)

import quark_numba
from quark_numba import optimize, reference_ops, to_tensor_proto
from quark_numba.catalog import OPERATORS
from quark_numba.declaration import Tensor
from quark_numba.element_types import find
from quark_numba.region.calls import run_region
from quark_numba.region.key import CASTS, parse
from quark_numba.region.loops import (
    ANCHOR,
    UNCHANGED,
    Apply,
    Choice,
    Conversion,
    Load,
    Reduce,
    Store,
    exact_parts,
    ordinary_parts,
)
from quark_numba.region.step_operators import BLOCK_ROUND_TRIPS, CAST, FAKE_QUANTIZE, ROUND_TRIP, STEP_OPERATORS
from quark_numba.rewriting.fusions import FUSED, UNKNOWN
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.regions import MERGED

STEPS = sorted(set(STEP_OPERATORS) - {CAST, ROUND_TRIP, FAKE_QUANTIZE, *BLOCK_ROUND_TRIPS})
BINARY = [name for name in STEPS if STEP_OPERATORS[name].fewest == 2]
TYPES = [name for name, row in OPERATORS.find("quark_numba", ROUND_TRIP).formats.items() if row.has_tensors() and row.bits >= 4]

# Every kind of float32, ties of integer types among them.
_BITS = [0x00000000, 0x00000001, 0x00400000, 0x00800000, 0x3F000000, 0x3F800000, 0x3FC00000, 0x40200000, 0x40C00000]
_BITS += [0x42FF0000, 0x437F8000, 0x477F7FFF, 0x4F000000, 0x5F800001, 0x7F7F0000, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000]
SPECIAL = np.array([*_BITS, *(bits | 1 << 31 for bits in _BITS), 0x7FC00000], np.uint32).view(np.float32)
GRID = np.stack(np.meshgrid(SPECIAL, SPECIAL))


def one_step(name, shapes=((3, 5), (3, 5)), parameters=None, is_first=True, **attributes):
    """Return a model of a step and a round trip of its result, through int8 by default. If not `is_first`, the step follows the
    round trip of x instead. Clip has bounds."""
    inputs = ["x", "other"][: 2 if name in BINARY else 1]
    inputs += ["lowest", "highest"] * (name == "Clip")
    if is_first:
        nodes = [helper.make_node(name, inputs, ["v"], **attributes), *pair("v", "codes", "y")]
    else:
        nodes = [*pair("x", "codes", "v"), helper.make_node(name, ["v", *inputs[1:]], ["y"], **attributes)]
    constants = floats(lowest=-1.5, highest=2.25) * (name == "Clip")
    values = [("x", "float32", shapes[0]), *([("other", "float32", shapes[1])] * (name in BINARY))]
    return model(nodes, values, ["y"], initializers=[*(parameters or scale_and_zero_point()), *constants], opset=17)


def assert_merged(before, feeds, count=1):
    """Assert that `optimize` makes `count` regions, and that every value that both models have is equal. Return the optimized
    model."""
    after = optimize(before)
    assert operators(after).count("Region") == count, operators(after)
    assert_same_values(before, after, feeds)
    return after


def merge(nodes, feeds, initializers=(), opset=17):
    """Make a model of nodes that give y, and do what `assert_merged` does."""
    inputs = [(name, find(each.dtype).name, each.shape) for name, each in feeds.items()]
    return assert_merged(model(nodes, inputs, ["y"], initializers=initializers, opset=opset), feeds)


def test_each_step_is_on_the_page():
    """The page of `optimize` names each operator that may be a step."""
    page = (ROOT / "quark_numba/rewriting/README.md").read_text(encoding="utf-8")
    _, _, section = page.partition("- The steps are")
    named = set(re.findall(r"`(\w+)`", section.partition("\n- A step gives")[0]))
    assert named - {"optimize"} == set(STEP_OPERATORS)


@pytest.mark.compiled
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_steps_give_what_onnx_runtime_gives(name, is_first):
    """Each step comes before or after a round trip through bfloat16. The inputs are all pairs of special values, and random
    values. Their length is not a multiple of the vector length."""
    random = np.random.default_rng(1).integers(0, 2**32, (2, 5003), np.uint32).view(np.float32)
    x, other = np.concatenate([GRID.reshape(2, -1), random], axis=1)
    other[np.isnan(other) & np.isnan(x)] = 1  # of two NaNs, either may be the result
    before = one_step(name, ((None,), (None,)), scale_and_zero_point("bfloat16", 1), is_first)
    if name in ("Max", "Min"):  # of two zeros, either may be the result
        before.graph.initializer.extend(floats(other=np.where(other == 0, np.float32(1), other)))
        del before.graph.input[1]
        assert "Region" not in operators(optimize(one_step(name)))
    assert_merged(before, {"x": x, "other": other})


@pytest.mark.compiled
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(set(STEPS) - {*BINARY}))
def test_every_float32(name):
    """Each step of one operand gives the bits of ONNX Runtime's own node. Clip has no bounds, and attributes have their
    defaults."""
    step = region_model(f"region (float x0) => (float y) {{\n  y = {name} (x0)\n}}", ["float32"], [None])
    theirs = model([f"y = {name} (i0)"], [("i0", "float32", [None])], ["y"], opset=17)
    node, expected = exact_session(step), exact_session(theirs)
    for first in range(0, 2**32, 2**24):
        x = np.arange(first, first + 2**24, dtype=np.uint32).view(np.float32)
        (one,), (other,) = (session.run(None, {"i0": x}) for session in (node, expected))
        differ = np.flatnonzero(one.view(np.uint32) != other.view(np.uint32))
        assert not differ.size, (x[differ[0]], one[differ[0]], other[differ[0]])


@pytest.mark.compiled
@pytest.mark.parametrize("element_type", CASTS, ids=str)
@pytest.mark.slow
def test_casts(element_type):
    """Regions cast every code of a type. They cast before block formats, too, and if inputs broadcast. A cast of a smaller
    tensor than y stays a separate node."""
    codes = np.arange(2**16, dtype=np.uint16).view(element_type.dtype)
    cast, add = "v = Cast <to = 1> (h)", "w = Add (v, x)"
    for shape, h_shape, count in [((2**16,), (2**16,), 1), ((3, 2**15), (2**15,), 0), ((5, 4, 30), (5, 4, 30), 1)]:
        feeds = {"h": np.resize(codes, h_shape), "x": np.zeros(shape, np.float32)}
        after = merge([cast, add, *pair("w")], feeds, scale_and_zero_point("bfloat16", 1))
        assert operators(after).count("Cast") == 1 - count
        for axis in (1, 2) if len(shape) > 2 else ():
            merge([cast, add, block_node("w", "b", "BFP16", axis), "y = Neg (b)"], feeds)
    text = f"region ({element_type.name} x0, float x1) => (float y) {{\n  v = Cast <to: int = 1> (x0)\n  y = Sub (x1, v)\n}}"
    for h_shape in [(40, 1), (1, 3000), (1,), (40, 3000)]:
        h, x = np.resize(codes[:1000], h_shape), np.random.default_rng(5).normal(0, 1, (40, 3000)).astype(np.float32)
        one = region_model(text, [element_type.name, "float32"], [h_shape, x.shape])
        np.testing.assert_array_equal(run(exact_session(one), i0=h, i1=x), x - h.astype(np.float32))


BROADCASTS = [((2, 3, 4, 5), each) for each in [(3, 1, 1), (2, 3, 1, 1), (5,), (2, 1, 4, 1), (), (1,), (2, 3, 4, 5)]]
BROADCASTS += [((2, 1, 4, 1), (3, 1, 5)), ((), ()), ((), (1, 1)), ((0, 3), (1, 3)), ((2, 3, 0), (3, 1)), ((1, 1, 1), (1,))]
BROADCASTS += [((4, 20_000), (4, 1)), ((4, 20_000), (20_000,)), ((2, 3000, 7), (3000, 1)), ((70_000, 3), (3,))]
BROADCASTS.append(((3,) * 8, (3, 1, 3, 1, 3, 1)))


@pytest.mark.compiled
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.covering
@pytest.mark.by_default(2)
def test_broadcasts(shapes, is_turned):
    shapes = shapes[::-1] if is_turned else shapes
    random = np.random.default_rng(2)
    x, other = (random.normal(0, 9, shape).astype(np.float32) for shape in shapes)
    assert_merged(one_step("Sub", shapes=shapes), {"x": x, "other": other})
    assert_merged(one_step("Sub", shapes=(None, None)), {"x": x, "other": other})


@pytest.mark.compiled
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_every_type_and_axis(name, axis):
    """Regions round to every type along every axis. Some scales have a usable reciprocal, others do not. Some zero points are
    not 0."""
    x = np.concatenate([SPECIAL, np.random.default_rng(3).normal(0, 50, 4 * 5 * 301 - SPECIAL.size).astype(np.float32)])
    x = x.reshape(4, 5, 301)
    for scales, low in [([0.3, 2.0, 1e-5], 0), ([1.0], 0), ([2.0**-70, 0.7, 1e30], 1), ([0.3], 1)]:
        shape = () if axis is None else (x.shape[axis],)
        zero_point = np.full(shape, low).astype(oracle.dtype(name))
        attributes = f"axis = {1 if axis is None else axis}, block_size = 0, saturate = 1"
        round_trip = f"w = quark_numba.{ROUND_TRIP} <{attributes}> (v, scale, zero_point)"
        constants = [*floats(scale=np.resize(scales, shape), half=0.5), constant("zero_point", zero_point)]
        merge(["v = Mul (x, half)", round_trip, "y = Neg (w)"], {"x": x}, constants, opset=21)


def block_node(source, target, name, axis, rounding_mode=2):
    attributes = (BFP | MX)[name] | {"axis": axis, "rounding_mode": rounding_mode}
    operator = "BFPQuantizeDequantize" if name in BFP else "MXQuantizeDequantize"
    return helper.make_node(operator, [source], [target], domain="com.amd.quark", **attributes)


# Shapes with short blocks, rows of one element, blocks that are longer than the axis, and sizes for several tiles and tasks.
BLOCK_SHAPES = [((2, 35, 4, 6), 1), ((2, 3, 5), -2), ((40, 3), 0), ((2, 64, 7, 1), 1), ((3, 70, 40, 20), 1), ((0, 8, 3), 1)]
# Blocks along the last axis, which are whole, end with a short one, or are shorter than a vector.
BLOCK_SHAPES += [((9, 5, 64), -1), ((300, 45), 1), ((2, 3, 7), 2), ((70, 1), 1), ((0, 8), 1), ((4, 0), 1)]


@pytest.mark.compiled
@rounding_modes
@pytest.mark.parametrize("name", [*BFP, *MX])
@pytest.mark.covering("exhaustive")
@pytest.mark.slow(10)
def test_blocks(name, rounding_mode):
    """Regions round to block formats after each kind of input, and after steps that may leave blocks unchanged. Some blocks
    are ordinary, others hold special values."""
    between = ["v0 = Relu (b0)", "v1 = Clip (b1, zero, six)", "v2 = Clip (b2, zero, odd)", "v3 = Clip (b3, low, six)"]
    between.append("v4 = Mul (b4, gate)")
    for shape, axis in BLOCK_SHAPES:
        nodes = ["v = Add (x, other)", block_node("v", "b0", name, axis, rounding_mode)]
        for k, node in enumerate(between):
            nodes += [node, block_node(f"v{k}", f"b{k + 1}", name, axis, rounding_mode)]
        nodes.append("y = Sub (b5, b0)")
        gate = (*shape[:2], *[1] * (len(shape) - 2))
        inputs = [("x", "float32", shape), ("other", "float32", shape), ("gate", "float32", gate)]
        before = model(nodes, inputs, ["y"], initializers=floats(zero=0, six=6, odd=5.765432, low=-1), opset=17)
        random = np.random.default_rng(4)
        feeds = {"other": np.zeros(shape, np.float32), "gate": random.normal(0, 1, gate).astype(np.float32)}
        after = assert_merged(before, {"x": random.normal(0, 3, shape).astype(np.float32)} | feeds)
        for seed in range(2):
            assert_same_values(before, after, {"x": block_samples.values(shape, "float32", seed)} | feeds)


@pytest.mark.compiled
@rounding_modes
def test_the_lowest_number_of_int8(rounding_mode):
    """It is -128, and the highest is 127. In two's complement a zero has no sign, and Relu and Clip may give other numbers than
    those of the format: the block's exponent becomes larger with -128."""
    node = {"element_dtype": "int8", "block_size": 8, "rounding_mode": rounding_mode, "axis": -1}
    trips = [
        helper.make_node("MXQuantizeDequantize", [x], [y], domain="com.amd.quark", **node)
        for x, y in (("v", "b0"), ("v0", "b1"), ("v1", "y"))
    ]
    nodes = ["v = Neg (x)", trips[0], "v0 = Identity (b0)", trips[1], "v1 = Clip (b1, low, six)", trips[2]]
    before = model(nodes, [("x", "float32", (30, 21))], ["y"], initializers=floats(low=-200, six=6), opset=17)
    random = np.random.default_rng(6)
    ends = random.choice([127.5, -127.5, 127.75, -127.75, -128, 255, -255, 0.5, -0.5, 1.5, -2.5, 0, -0.0], (30, 21))
    after = assert_merged(before, {"x": ends.astype(np.float32)})
    for x in (ends * 2.0 ** random.integers(-2, 3, ends.shape), random.normal(0, 1, ends.shape), np.full(ends.shape, -0.0)):
        assert_same_values(before, after, {"x": x.astype(np.float32)})
    assert_same_values(before, after, {"x": block_samples.values(ends.shape, "float32", 0)})


@pytest.mark.compiled
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("of_blocks", [0, 1, 2])
@pytest.mark.parametrize("name", ["int8", "uint32", "float16"])
@pytest.mark.parametrize("shape", [(3, 5, 40), (2, 4, 37), (70, 3, 6)], ids=str)
@pytest.mark.covering
@pytest.mark.slow
def test_scales_along_an_axis_beside_blocks(name, axis, of_blocks, shape):
    """Zero points have 1 to 8 bytes an element in the program, wherever the blocks lie."""
    random = np.random.default_rng(8)
    zero_point = np.arange(shape[axis]).astype(oracle.dtype(name)) * (name != "float16")
    nodes = [block_node("x", "b", "MX9", of_blocks), *pair("b", y="d", axis=axis), block_node("d", "y", "MX9", of_blocks)]
    parameters = scale_and_zero_point(name, random.uniform(0.01, 0.1, shape[axis]), zero_point)
    merge(nodes, {"x": random.normal(0, 3, shape).astype(np.float32)}, parameters)


@pytest.mark.slow
@pytest.mark.compiled
def test_a_step_of_blocks_that_passes_on_its_operand_leaves_other_values_alone():
    blocks = [block_node(x, y, "BFP16", 1) for x, y in (("x", "b0"), ("r", "b1"), ("m", "b2"), ("s", "y"))]
    nodes = [blocks[0], "r = Relu (b0)", blocks[1], "m = Mul (b1, c)", blocks[2], "s = Add (b2, r)", blocks[3]]
    merge(nodes, {"x": np.random.default_rng(1).normal(0, 3, (2, 64, 4, 6)).astype(np.float32)}, floats(c=0.7))


@pytest.mark.compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.by_default(3)
def test_real_models_have_regions(variant):
    after = optimize(onnx.load(textline.path_of(variant)))
    assert "Region" in operators(after)
    assert not {"Add", "Mul", "Div", "Clip", "HardSigmoid"} & set(operators(after))
    # ONNX Runtime fuses a Relu after a convolution into the convolution.
    convolutions = {node.output[0] for node in after.graph.node if node.op_type == "Conv"}
    assert {node.input[0] for node in after.graph.node if node.op_type == "Relu"} <= convolutions


# Generated graphs.

SHAPES = [(2, 3, 4), (2, 3, 4), (2, 3, 4), (3, 1), (4,), (2, 1, 1), (1,), ()]


class RandomGraph:
    """Nodes and constants that are drawn one after the other. `values` are the shapes of all values by name. The nodes are
    mostly round trips, or mostly `blocks` of one format and steps that may leave them unchanged."""

    def __init__(self, draw):
        self.draw, self.random = draw, np.random.default_rng(draw(st.integers(0, 2**32)))
        self.constants, self.nodes = floats(low=-1, high=2), []
        self.values = {"x": (2, 3, 4), "z": self.one_of(SHAPES)}
        self.block = self.one_of(["BFP16", "BFP16", *BFP, *MX])
        kinds = [ROUND_TRIP] * 12 + ["blocks"] * 6 + STEPS, ["blocks"] * 6 + ["Relu", "Mul", "Add", "Clip"]
        self.kinds = self.one_of(kinds)

    def one_of(self, choices):
        return self.draw(st.sampled_from(choices))

    def add_constant(self, name):
        self.values[name] = self.one_of(SHAPES)
        self.constants.append(constant(name, self.random.normal(0, 2, self.values[name]), np.float32))

    def add_node(self, name):
        """Add a node that gives the value `name`, of one of the last values or x."""
        recent = [*list(self.values)[-2:], list(self.values)[-1], "x"]
        source, what = self.one_of(recent), self.one_of(self.kinds)
        shape = self.values[source]
        if what == "blocks":
            if len(shape) < 2:
                source, shape = "x", self.values["x"]
            node = block_node(source, name, self.one_of([self.block] * 8 + [*BFP, *MX]), self.one_of([1] * 4 + [0, -1]))
        elif what == ROUND_TRIP:
            node = self.round_trip(source, name)
        elif what in BINARY:
            other = self.one_of(recent)
            together = np.broadcast_shapes(shape, self.values[other])
            if what == "PRelu" and together != shape:
                return
            shape, node = together, f"{name} = {what} ({source}, {other})"
        else:
            bounds = self.one_of(["", ", low", ', "", high', ", low, high"]) if what == "Clip" else ""
            node = f"{name} = {what} ({source}{bounds})"
        self.nodes += parsed(node)
        self.values[name] = shape

    def round_trip(self, source, name):
        """Return the node of a round trip with one scale, or with scales along an axis."""
        shape, zeros = self.values[source], oracle.dtype(self.one_of(TYPES))
        axis = self.draw(st.integers(0, len(shape) - 1)) if shape and self.draw(st.integers(0, 3)) == 0 else None
        own = () if axis is None else (shape[axis],)
        self.constants.append(constant(f"{name}_scale", self.random.choice(np.float32([0.05, 0.25, 1.0, 3.0]), own)))
        self.constants.append(constant(f"{name}_zero", np.full(own, self.one_of([0, 0, 1])).astype(zeros)))
        attributes = f"axis = {axis or 0}, block_size = 0, saturate = 1"
        return f"{name} = quark_numba.{ROUND_TRIP} <{attributes}> ({source}, {name}_scale, {name}_zero)"


@st.composite
def graphs(draw):
    """Return a random model and its feeds. The model has chains, diamonds and fan-out of all steps and types, with every
    broadcast, constants, and outputs in the middle."""
    graph = RandomGraph(draw)
    random, inputs, half = graph.random, dict(graph.values), graph.one_of(SHAPES)
    if draw(st.booleans()):
        graph.nodes += parsed("from_half = Cast <to = 1> (h)")
        graph.values["from_half"] = half
    for i in range(draw(st.integers(0, 3))):
        graph.add_constant(f"c{i}")
    for i in range(draw(st.integers(6, 14))):
        graph.add_node(f"v{i}")
    assume(graph.nodes)
    produced = [node.output[0] for node in graph.nodes]
    outputs = {produced[-1], *draw(st.lists(st.sampled_from(produced), max_size=1))}
    known = graph.one_of([True, True, True, False])  # blocks of unknown shapes are not merged
    graph_inputs = [(name, "float32", shape if known else [None] * len(shape)) for name, shape in inputs.items()]
    graph_inputs.append(("h", "float16", half))
    source = model(graph.nodes, graph_inputs, sorted(outputs), initializers=graph.constants, opset=18)
    special = random.choice(SPECIAL, 24).reshape(2, 3, 4) if draw(st.booleans()) else random.normal(0, 3, (2, 3, 4))
    feeds = {"x": special.astype(np.float32), "z": random.normal(0, 3, inputs["z"]).astype(np.float32)}
    return source, feeds | {"h": random.normal(0, 3, half).astype(np.float16)}


@pytest.mark.compiled
@pytest.mark.slow
@sizes("examples", 10, slow=100, exhaustive=500)
def test_generated_graphs(examples):
    merged = []

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(graphs())
    def compare(case):
        before, feeds = case
        after = optimize(before)
        merged.append("Region" in operators(after))
        assert_same_values(before, after, feeds, with_any_nan)

    compare()
    assert sum(merged) > len(merged) / 2


def with_any_nan(value):
    """Return the shape and the bytes of float32 numbers, with one NaN for all: of two NaNs, either may be the result."""
    array = value.numpy()
    return array.shape, np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


# The account of nodes, and the nodes that stay.


def small(nodes, *outputs, x=(2, 3)):
    return model(nodes, [("x", "float32", x)], outputs, initializers=scale_and_zero_point(), opset=17)


def test_the_account():
    result = rewrite_model(small([*pair(), "z = Relu (y)", "last = Neg (z)"], "last"))
    counts = {name: count for (name, what), count in result.done.items() if what == MERGED}
    assert counts == {f"quark_numba::{ROUND_TRIP}": 1, "ai.onnx::Relu": 1, "ai.onnx::Neg": 1}
    (region,) = result.model.graph.node
    assert (region.op_type, region.output) == ("Region", ["last"])
    without = rewrite_model(small([*pair(), "z = Relu (y)"], "z"), Settings(native_operators=False))
    assert without.done.keys() == rewrite_model(small(pair(), "y")).done.keys()


@pytest.mark.parametrize(
    ("scale", "attributes", "types", "why"),
    [
        (np.ones((2, 1), np.float32), {"block_size": 3, "axis": 1}, {}, "its scales are blocked"),
        (None, {}, {}, "its scale or its zero point is not a constant"),
        (np.float32(1), {}, {"z": "uint2"}, "quark_numba::Region has no uint2"),
        (np.ones(3, np.float32), {"axis": 1}, {"x": None}, "it has several scales, and the rank of its x is not known"),
        (np.ones(3, np.float32), {"axis": 2}, {}, "not valid: its scales do not fit its axis"),
    ],
)
def test_left(scale, attributes, types, why):
    attributes = {"axis": 1, "block_size": 0, "saturate": 1} | attributes
    node = helper.make_node(ROUND_TRIP, ["x", "s", "z"], ["v"], domain="quark_numba", **attributes)
    zeros = np.zeros(np.shape(scale) if scale is not None else (), find(types.get("z", "int8")).dtype)
    constants = [to_tensor_proto(zeros, "z"), *([constant("s", scale)] if scale is not None else [])]
    inputs = [("x", "float32", types.get("x", [2, 3])), *([("s", "float32", [])] if scale is None else [])]
    result = rewrite_model(model([node, "y = Relu (v)"], inputs, ["y"], initializers=constants, opset=17))
    assert operators(result.model) == [ROUND_TRIP, "Relu"]
    assert result.left == {(f"quark_numba::{ROUND_TRIP}", why): 1}


@pytest.mark.parametrize(
    ("name", "axis", "x", "why"),
    [
        ("BFP16", 1, None, "the rank of its x is not known, or it may have one element"),
        ("BFP16", 0, ["n", 1], "the rank of its x is not known, or it may have one element"),
        ("long", 0, [2, 3], "its blocks have more than 128 elements"),
    ],
)
def test_blocks_that_are_left(name, axis, x, why):
    node = block_node("x", "v", "BFP16", axis)
    if name == "long":
        next(each for each in node.attribute if each.name == "block_size").i = 129
    result = rewrite_model(small([node, "y = Relu (v)"], "y", x=x))
    assert operators(result.model) == [node.op_type, "Relu"]
    assert result.left == {(f"com.amd.quark::{node.op_type}", why): 1}


def test_blocks_of_one_kind_are_a_region():
    nodes = [block_node("x", "a", "BFP16", 0), "n = Neg (a)", block_node("n", "b", "BFP16", 0), block_node("b", "y", "MX9", 0)]
    assert operators(optimize(small(nodes, "y", x=[8, 3]))) == ["Region", "Region"]


@pytest.mark.compiled
@pytest.mark.parametrize("opset", range(14, 24))
def test_nodes_that_onnx_runtime_fuses_are_left(opset):
    """In every opset, ONNX Runtime shows that it fuses a Relu into a convolution, and folds a Mul into weights."""
    nodes = ["c = Conv (x, w)", "r = Relu (c)", *pair("r", "r_codes", "q"), "d = Conv (q, w)", "m = Mul (d, k)"]
    nodes = parsed(*nodes, *pair("m", "m_codes", "n"), "y = Neg (n)")
    for each in nodes:
        each.name = each.output[0]
    constants = [*floats(w=np.ones((4, 4, 1, 1)), k=np.full((4, 1, 1), 2)), *scale_and_zero_point()]
    result = rewrite_model(model(nodes, [("x", "float32", [1, 4, 3, 3])], ["y"], initializers=constants, opset=opset))
    assert result.left == {("ai.onnx::Relu", FUSED): 1, ("ai.onnx::Mul", FUSED): 1}
    assert operators(result.model) == ["Conv", "Relu", "Region", "Conv", "Mul", "Region"]


def test_what_may_be_fused_is_left():
    """ONNX Runtime refuses a model with an unknown operator, so it cannot be asked which nodes it fuses."""
    nodes = ["s = some.domain.Strange (x)", "r = Relu (s)", *pair("r", "codes", "q"), "y = Neg (q)"]
    result = rewrite_model(model(nodes, [("x", "float32", [1, 4])], ["y"], initializers=scale_and_zero_point()))
    assert operators(result.model) == ["Strange", "Relu", "QuantizeDequantizeLinear", "Neg"]
    reasons = {name: why for name, why in result.left if name in ("ai.onnx::Relu", "ai.onnx::Neg")}
    assert len(reasons) == 2
    assert all(why.startswith(f"{UNKNOWN}: ") and "Strange" in why for why in reasons.values())


def test_a_node_by_itself_is_a_region_where_there_are_others():
    nodes = [*pair(), "s = Softmax (y)", *pair("s", "codes2", "t"), "z = Relu (t)"]
    assert operators(optimize(small(nodes, "z"))) == ["Region", "Softmax", "Region"]
    assert operators(optimize(small(nodes[:3], "s"))) == [ROUND_TRIP, "Softmax"]


def test_values_that_others_use_stay():
    assert operators(optimize(small([*pair(), "z = Relu (y)"], "y", "z"))) == [ROUND_TRIP, "Relu"]


def test_what_is_smaller_is_not_computed_for_each_element():
    """A gate with one value per channel is computed in a separate region."""
    nodes = ["p = GlobalAveragePool (x)", *pair("p", "codes", "g")]
    nodes += ["h = HardSigmoid (g)", "m = Mul (x, h)", *pair("m", "codes2", "y")]
    after = optimize(small(nodes, "y", x=["n", 3, 4, 5]))
    assert operators(after) == ["GlobalAveragePool", "Region", "Region"]


# The node itself.

PROGRAM = """region (float x0, float[1] x1, int8[1] x2) => (float y) {
  v0 = quark_numba.QuantizeDequantizeLinear <axis: int = 0, saturate: int = 1> (x0, x1, x2)
  y = LeakyRelu <alpha: float = 0.009999999776482582> (v0)
}"""


BLOCK_PROGRAM = """region (float x0, float x1) => (float y) {
  v0 = Add (x0, x1)
  y = com.amd.quark.MXQuantizeDequantize <axis: int = -2, block_size: int = 32, element_dtype: string = "fp8_e4m3", rounding_mode: int = 0> (v0)
}"""  # noqa: E501  # as it is written


def region_model(program, inputs=("float32", "float32", "int8"), shapes=((2, 3), (), ()), **attributes):
    names = [f"i{k}" for k in range(len(inputs))]
    node = helper.make_node("Region", names, ["y"], "the_node", domain="quark_numba", program=program, **attributes)
    return model([node], list(zip(names, inputs, shapes, strict=True)), ["y"])


@pytest.mark.parametrize("text", [PROGRAM, BLOCK_PROGRAM])
def test_texts(text):
    program = parse(text)
    assert parse(program.text) == program
    assert program.text == text


def test_names():
    program = parse(PROGRAM)
    assert program.name != parse(PROGRAM.replace("Leaky", "Thresholded")).name


def test_the_reference_evaluator():
    source = region_model(PROGRAM)
    x = np.random.default_rng(5).normal(0, 50, (2, 3)).astype(np.float32)
    feeds = {"i0": x, "i1": np.float32(0.25), "i2": np.int8(3)}
    (y,) = ReferenceEvaluator(source, new_ops=reference_ops()).run(None, feeds)
    expected = quark_numba.quantize_dequantize(x, np.float32(0.25), np.int8(3))
    expected = np.where(expected < 0, expected * np.float32(0.01), expected)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.compiled
@pytest.mark.parametrize(("x", "other"), [((3, 5), (3, 5)), ((40, 3), (3,)), ((1, 1), (4, 1)), ((1, 1), ()), ((7,), (7,))])
@pytest.mark.slow
def test_blocks_are_cut_from_what_inputs_broadcast_to(x, other):
    """As in the operators of block formats, a single element stays as it is, and a one-dimensional tensor is cut along its only
    axis."""
    source = region_model(BLOCK_PROGRAM, ("float32", "float32"), (None, None))
    random = np.random.default_rng(7)
    feeds = {"i0": random.normal(0, 3, x).astype(np.float32), "i1": random.normal(0, 3, other).astype(np.float32)}
    total = feeds["i0"] + feeds["i1"]
    expected = oracle.mx(total, element_dtype="fp8_e4m3", axis=-2 if total.ndim > 1 else 0, block_size=32, rounding_mode=0)
    for runner in (exact_session(source), ReferenceEvaluator(source, new_ops=reference_ops())):
        oracle.assert_same_bits(runner.run(None, feeds)[0], expected)


BFP_DEFAULTS = {"rounding_mode": 0, "sub_block_size": 2, "sub_block_shift_bits": 1, "convert_to_bfloat_before_bfp": 0}
LAYOUTS = {
    "bfp16": ("BFP", BFP_DEFAULTS | {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8}),
    "mx9": ("BFP", BFP_DEFAULTS | {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16}),
    "mxfp8": ("MX", {"element_dtype": "fp8_e4m3", "block_size": 32, "rounding_mode": 0}),
    "mxint8": ("MX", {"element_dtype": "int8", "block_size": 4, "rounding_mode": 2}),
}
LAYOUT_PROGRAM = """region (float x0, float x1, float[1] x2) => (float y) {
  v0 = Mul (x0, x1)
  v1 = com.amd.quark.OPERATOR <axis: int = -3, ATTRIBUTES> (v0)
  v2 = Add (v1, x2)
  y = com.amd.quark.OPERATOR <axis: int = -3, ATTRIBUTES> (v2)
}"""


@pytest.mark.compiled
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("channels", [4, 8, 12, 16, 20, 40, 100])
@pytest.mark.parametrize("image", [(2, 1, 1), (2, 3, 5), (1, 9, 31), (1, 40, 33)], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_blocks_in_the_blocked_layout(name, image, channels, lanes):
    """Each element has the bits that it has in ONNX's layout, and the channels that the layout adds are 0, whatever they are
    in the inputs."""
    kind, attributes = LAYOUTS[name]
    rounded = oracle.bfp if kind == "BFP" else oracle.mx
    text = ", ".join(
        f'{key}: string = "{value}"' if isinstance(value, str) else f"{key}: int = {value}"
        for key, value in sorted((("axis", -3), *attributes.items()))
    )
    program = LAYOUT_PROGRAM.replace("axis: int = -3, ATTRIBUTES", text).replace("OPERATOR", f"{kind}QuantizeDequantize")
    n, h, w = image
    random = np.random.default_rng(channels)
    ordinary = random.normal(0, 3, (n, channels, h, w)).astype(np.float32)
    extreme = ordinary * random.choice(np.float32([0, 1, 1, 1e-30, 1e30]), ordinary.shape)
    extreme[random.random(extreme.shape) < 0.01] = random.choice(np.float32([np.nan, np.inf, -np.inf]))
    gate = random.normal(0, 1, (n, channels, 1, 1)).astype(np.float32)
    source = region_model(program, ["float32"] * 3, (None, None, ()), lanes=lanes, channels=channels)
    session, evaluator = exact_session(source), ReferenceEvaluator(source, new_ops=reference_ops())
    for x in (ordinary, extreme):
        feeds = {"i0": in_lanes(x, lanes), "i1": in_lanes(gate, lanes), "i2": np.array(1, np.float32)}
        with np.errstate(all="ignore"):
            expected = rounded(rounded(x * gate, axis=1, **attributes) + np.float32(1), axis=1, **attributes)
        for runner in (session, evaluator):
            oracle.assert_same_bits(runner.run(None, feeds)[0], in_lanes(expected, lanes, added=0))


def in_lanes(x, lanes, added=np.nan):
    """Return a tensor in the blocked layout. Channels that the layout adds have the value `added`."""
    n, channels, h, w = x.shape
    count = -(-channels // lanes)
    filled = np.full((n, count * lanes, h, w), added, np.float32)
    filled[:, :channels] = x
    return filled.reshape(n, count, lanes, h, w).transpose(0, 1, 3, 4, 2).reshape(n, count * lanes, h, w)


def inferred(shapes, types=("float32", "float32", "int8"), program=PROGRAM, **attributes):
    """Return the shape of y that the operator's own inference gives."""
    (region,) = (each for each in OPERATORS if each.operation == "region")
    inputs = [Tensor(find(name), shape) for name, shape in zip(types, shapes, strict=True)]
    ((element_type, shape),) = region.infer(inputs, region.values({"program": program, **attributes}))
    assert element_type.name == "float32"
    return shape


ADD = "region (float x0, float x1) => (float y) { y = Add (x0, x1) }"


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([[2, 32, 5, 4], [2, 32, 5, 4]], [2, 32, 5, 4]),
        ([[2, 32, 5, 4], [None, 32, 1, 1]], [2, 32, 5, 4]),
        ([[2, 32, 5, None], [1, 1, 5, 4]], [2, 32, 5, 4]),
        ([[2, 32, 5, 4], [1, 2, 1, 1, 16]], [2, 32, 5, 4]),
        ([[2, None, 5, 4], [1, 1, 1, 1]], [2, None, 5, 4]),
        ([None, [2, 32, 5, 4]], None),
    ],
)
def test_inference_in_the_blocked_layout(shapes, expected):
    assert inferred(shapes, ["float32"] * 2, ADD, lanes=16) == expected


@pytest.mark.parametrize(
    ("attributes", "shapes", "message"),
    [
        ({"lanes": 12}, [[1, 12, 1, 1]] * 2, "lanes is 12; expected 0 or one of"),
        (
            {"channels": 3},
            [[1, 3, 1, 1]] * 2,
            "channels is 3 with lanes 0; expected 0, or a number of channels with lanes",
        ),
        ({"lanes": 8, "channels": -1}, [[1, 8, 1, 1]] * 2, "channels is -1 with lanes 8"),
        ({"lanes": 8}, [[1, 8, 2, 2], [1, 12, 2, 2]], "input 1 has shape .* expected one channel, or .* 8"),
        ({"lanes": 8, "channels": 17}, [[1, 16, 2, 2]] * 2, "channel 17"),
        ({"lanes": 8, "channels": 8}, [[1, 16, 2, 2]] * 2, "channel 8"),
    ],
)
@pytest.mark.parametrize("where", ["array", pytest.param("session", marks=pytest.mark.compiled)])
def test_wrong_layouts(attributes, shapes, message, where):
    xs = [np.ones(shape, np.float32) for shape in shapes]
    if where == "array":
        with pytest.raises(ValueError, match=message):
            run_region(*xs, program=ADD, **attributes)
    else:
        source = blocked_add(xs, **attributes)
        with pytest.raises(Exception, match=message.replace("or .* 8", "or whole blocks of channels")):
            run(session(source), i0=xs[0], i1=xs[1])


def blocked_add(xs, **attributes):
    return region_model(ADD, ["float32"] * 2, [[None] * x.ndim for x in xs], **attributes)


@pytest.mark.compiled
@pytest.mark.parametrize("channels", [0, 17, 20, 31, 32])
@pytest.mark.parametrize("other", [(2, 32, 61, 40), (1, 32, 1, 40), (2, 1, 61, 1), (1, 2, 1, 1, 16), (1, 1, 1, 40, 1)], ids=str)
@pytest.mark.parametrize("count", [2, 1])
@pytest.mark.by_default(10)
def test_the_blocked_layout(channels, other, count):
    """The results equal numpy's broadcasting with the channels of each block moved to the end. Channels that pad the last block
    are set to 0, even if they hold NaN or Inf."""
    random = np.random.default_rng(channels)
    shape = (count, 32, 61, 40)
    x, z = (random.choice([*random.normal(0, 9, 20), np.inf, np.nan], each).astype(np.float32) for each in (shape, other))
    if other[0] > count:
        z = z[:count]
    blocks = [each.reshape(len(each), -1, *each.shape[2:4], min(each.shape[1], 16)) for each in (x, z if z.ndim == 4 else x)]
    expected = blocks[0] + (blocks[1] if z.ndim == 4 else z)
    if channels:
        expected[:, 1, :, :, channels - 16 :] = 0
    expected = expected.reshape(shape)
    y = run(session(blocked_add([x, z], lanes=16, channels=channels)), i0=x, i1=z)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(run_region(x, z, program=ADD, lanes=16, channels=channels), expected)


def test_inference():
    of_two = [([2, 3], [3], [2, 3]), ([2, 1], [1, None], [2, None]), ([None, 3], [4, 1], [4, 3]), ([1], [1, 1], [1, 1])]
    for one, other, expected in [*of_two, (None, [3], None)]:
        assert inferred([one, other], ["float32"] * 2, ADD) == expected
    assert inferred([[2, 3], [], [1]]) == [2, 3]
    with pytest.raises(ValueError, match="which cannot be broadcast together"):
        inferred([[2], [3]], ["float32"] * 2, ADD)
    with pytest.raises(TypeError, match="input 2 has element type uint8; expected int8"):
        inferred([[2], [], []], ["float32", "float32", "uint8"])
    with pytest.raises(ValueError, match="the node has 2 inputs; its program has 3"):
        inferred([[2], []], ["float32", "float32"])


WRONG = [
    ("nothing", "program is not in ONNX's textual syntax"),
    (PROGRAM.replace("LeakyRelu <alpha: float = 0.009999999776482582>", "Softmax"), r"program step y = Softmax is unknown"),
    (PROGRAM.replace("(v0)", "(v0, x0)"), r"program step y = LeakyRelu has operands \(v0, x0\); expected 1..1"),
    (PROGRAM.replace("(v0)", "(y)"), r"program step y = LeakyRelu has the operand y, which is no input or earlier result"),
    (PROGRAM.replace("(v0)", "(x0)"), "program does not use v0"),
    (PROGRAM.replace("alpha", "beta"), r"program step y = LeakyRelu has an attribute beta = .*; expected alpha"),
    (PROGRAM.replace("int8[1] x2", "int64[1] x2"), "program input x2 has an unknown element type, number 7"),
    (PROGRAM.replace("int8[1] x2", "int8[1] x1"), "program declares input x1 twice"),
    (PROGRAM.replace("float x0", "int8 x0"), "has the operand x0 of element type int8; expected float32"),
    (PROGRAM.replace("float[1] x1", "float[2] x1"), r"program input x1 has shape \[2\]; expected \[1\], or none"),
    (PROGRAM.replace("float[1] x1", "float x1"), "has several scales and axis 0; expected an axis below 0"),
    (PROGRAM.replace("=> (float y)", "=> (float v0)"), r"program has outputs \(v0\); expected y, the result of its last step"),
    (BLOCK_PROGRAM.replace("-2", "1"), "has axis 1 and block_size 32; expected an axis below 0"),
    (BLOCK_PROGRAM.replace("32", "200"), "has axis -2 and block_size 200; expected an axis below 0, .* and at most 128"),
    (BLOCK_PROGRAM.replace("32", "0"), "block_size is 0; expected a positive integer"),
    (BLOCK_PROGRAM.replace("e4m3", "e4m4"), "element_dtype is 'fp8_e4m4'; expected .*; did you mean"),
    (BLOCK_PROGRAM.replace("element_dtype: string", "element_dtyp: string"), "has an attribute element_dtyp = b'fp8_e4m3'"),
    (BLOCK_PROGRAM.replace("com.amd.quark", "quark_numba"), "y = quark_numba::MXQuantizeDequantize is unknown"),
    (
        BLOCK_PROGRAM.replace("(v0)", "(x1)").replace("float x1", "float[1] x1"),
        "has the operand x1 of one element; expected one without a shape",
    ),
    (
        BLOCK_PROGRAM.replace(", float x1", "").replace("Add (x0, x1)", "com.amd.quark.BFPQuantizeDequantize <axis = -2> (x0)"),
        "program has blocks of several kinds",
    ),
    (
        "region (float x0) => (float y) { y = Cast <to: int = 1> (x0) }",
        "operand x0 of element type float32; expected float16, bfloat16",
    ),
    ("region (float16 x0) => (float y) { y = Cast <to: int = 10> (x0) }", "Cast is no Cast of an input to 1, float32"),
    ("region (float x0) => (float y) { v = Neg (x0) y = Cast (v) }", "Cast is no Cast of an input to 1, float32"),
    ("region (float16 x0) => (float y) { y = Neg (x0) }", "operand x0 of element type float16; expected float32"),
    (PROGRAM.replace("(v0)\n}", "(v0)\n  y = Relu (y)\n}"), "program computes y twice"),
]


@pytest.mark.compiled
@pytest.mark.parametrize(("program", "message"), WRONG)
@pytest.mark.by_default(8)
def test_wrong_programs(program, message):
    with pytest.raises(ValueError, match=message):
        parse(program)
    for make in (exact_session, quark_numba.InferenceSession):
        with pytest.raises(RuntimeException, match=rf"quark_numba: ValueError: (.|\n)*{message}(.|\n)* \(node 'the_node'\)"):
            make(region_model(program))


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["float32", "float32"], "ValueError: the node has 2 inputs; its program has 3"),
        (["float32", "float32", "int8", "int8"], "ValueError: the node has 4 inputs; its program has 3"),
        (["float32", "float32", "uint8"], "TypeError: input 2 has element type uint8; expected int8"),
        (["float16", "float32", "int8"], "TypeError: input 0 has element type float16; expected float32"),
        (["double", "float32", "int8"], "TypeError: input 0 has element type float64; expected float32"),
        (["string", "float32", "int8"], "TypeError: input 0 is not a tensor of an element type that quark_numba::Region takes"),
    ],
)
def test_other_inputs_than_those_of_the_program(types, message):
    with pytest.raises(RuntimeException, match=rf"quark_numba: {message} \(node 'the_node'\)"):
        exact_session(region_model(PROGRAM, types, [None] * len(types)))


def test_the_list_of_loops():
    """Blocks stay as they are after a Clip whose bounds are values of their format, so that one loop replaces two."""
    add = [Load(0, "x0"), Load(1, "x1"), Apply(0), Store(2, "y")]
    assert exact_parts(parse(ADD)) == ([add], 0)
    blocks = "com.amd.quark.BFPQuantizeDequantize <axis: int = -2>"
    lines = [f"v0 = {blocks} (x0)", "v1 = Clip (v0, x1, x2)", f"v2 = {blocks} (v1)", "y = Neg (v2)"]
    program = parse(f"region (float x0, float[1] x1, float[1] x2) => (float y) {{ {' '.join(lines)} }}")
    assert exact_parts(program) == (
        [
            Conversion(0, "x0", "b0"),
            [Load(3, "b0"), Apply(1), Store(4, "b1")],
            Conversion(2, "b1", "b0"),
            [Load(5, "b0"), Apply(3), Store(6, "y")],
        ],
        2,
    )
    first, choice = ordinary_parts(program)[0]
    assert first == [Load(0, "x0"), Reduce(0)]
    start = [Load(0, "x0"), Apply(0, ANCHOR), Apply(1)]
    assert choice == Choice(
        "is_closed2(x1, x2)",
        [[*start, Apply(2, UNCHANGED), Apply(3), Store(6, "y")]],
        [[*start, Reduce(2), Store(4, "b0")], [Load(4, "b0"), Apply(2, ANCHOR), Apply(3), Store(6, "y")]],
    )


@pytest.mark.parametrize(
    ("count", "what"), [(65, "steps"), (49, "inputs"), (17, "inputs of more than one element"), (0, "no steps")]
)
def test_absurd_sizes(count, what):
    if "steps" in what:
        lines = [f"v{i + 1} = Neg (v{i})" for i in range(count)]
        text = f"region (float v0) => (float v{count}) {{ {' '.join(lines)} }}"
    else:
        text = f"region ({', '.join(f'float x{i}' for i in range(count))}) => (float y) {{ y = Neg (x0) }}"
    with pytest.raises(ValueError, match=f"program has {count or ''} ?{what}"):
        parse(text)


@pytest.mark.compiled
@pytest.mark.parametrize("count", [3, 0])
def test_wrong_shapes(count):
    source = region_model(PROGRAM, shapes=(None, None, None))
    feeds = {"i0": np.ones((2, 3) if count else (0, 3), "f4"), "i1": np.ones(count, "f4"), "i2": np.ones((), "i1")}
    with pytest.raises(Exception, match=rf"input 1 has shape \({count},\); expected one element"):
        exact_session(source).run(None, feeds)


@pytest.mark.compiled
def test_shapes_that_do_not_go_together():
    node = exact_session(region_model(ADD, ["float32", "float32"], [None, None]))
    for one, other in itertools.product([(2, 3), (3,)], [(4,), (2, 2)]):
        with pytest.raises(Exception, match=r"input 1 has shape \(.*\), which cannot be broadcast with the other inputs"):
            node.run(None, {"i0": np.ones(one, np.float32), "i1": np.ones(other, np.float32)})


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["bfloat16", "uint32"])
@pytest.mark.parametrize(
    "source",
    [architectures.transformer(1, 16, 32, 2), architectures.residual_network(32, (8, 16), 1), architectures.text_detector(32)],
    ids=["transformer", "cnn", "detector"],
)
@pytest.mark.slow
def test_architectures(source, name):
    x = source.graph.input[0]
    shape = [each.dim_value for each in x.type.tensor_type.shape.dim]
    before = architectures.quantized(source, name)
    after = optimize(before)
    assert not {"Add", "Mul", "Div", "Clip"} & set(operators(after))
    assert_same_values(before, after, {"x": np.random.default_rng(6).normal(0, 1, shape).astype(np.float32)})
