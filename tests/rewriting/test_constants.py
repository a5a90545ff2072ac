"""The pass `constants` folds nodes whose inputs are all constants."""

import numpy as np
import oracle
import pytest
from onnx import helper
from onnx_models import model
from rewritten_models import (
    DQ,
    Q,
    X,
    assert_rewritten,
    assert_same_values,
    constant,
    floats,
    operators,
    pair,
    scale_and_zero_point,
)

from quark_numba import from_tensor_proto, mx_quantize, quantize_dequantize
from quark_numba.block.formats import MX_ELEMENT_TYPES
from quark_numba.element_types import FLOAT8E8M0, FLOAT32
from quark_numba.region import compiled_steps
from quark_numba.region.key import ZERO_POINTS
from quark_numba.rewriting import block_codes
from quark_numba.rewriting.constants import CODES, CONSTANT
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.onnx_runtime import RELEASE
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled


def test_constants_are_computed():
    weight = np.random.default_rng(41).normal(0, 3, (6, 3)).astype(np.float32)
    domains = {"com.amd.quark": "bfloat16", "com.vai.quantize": "bfloat16", "": "int8", "com.microsoft": "uint8"}
    for domain, name in domains.items():
        nodes = [*pair("weight", domain=domain), "z = MatMul (x, y)"]
        initializers = [constant("weight", weight), *scale_and_zero_point(name)]
        before = model(nodes, ["x"], ["z"], initializers=initializers, domains=[domain])
        result = assert_rewritten(before, ["MatMul"], {"x": X})
        (initializer,) = result.model.graph.initializer
        zero = oracle.TYPES[name].dtype(0)
        codes = oracle.quantize(weight, np.float32(0.25), zero, name)
        expected = oracle.dequantize(codes, np.float32(0.25), zero, name)
        oracle.assert_same_bits(from_tensor_proto(initializer), expected)
        assert initializer.name == "y"
        assert sum(result.done.values()) == 2
        assert not result.left


ROUND_TRIPS = [each for each in ZERO_POINTS if each.bits in (8, 16)]


@pytest.mark.by_default(3)
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("codes", ROUND_TRIPS, ids=lambda each: each.name)
def test_the_function_of_a_region_gives_the_bits_of_the_call_on_arrays(codes, saturate):
    rng = np.random.default_rng(43)
    x = rng.normal(0, 9, (2000, 6)).astype(np.float32)
    x[::2] = rng.integers(0, 1 << 32, (1000, 6), np.uint32).view(np.float32)
    x[0] = 0, -0.0, np.inf, -np.inf, np.nan, -np.nan
    for scale, zero_point, part in ((0.037, 3, x), (0.25, 0, x[:, 1:]), (1, 0, x[:0])):
        parameters = np.full((1,), scale, np.float32), np.full((1,), zero_point).astype(codes.dtype)
        found = compiled_steps.round_trip(part, *parameters, saturate=saturate)
        oracle.assert_same_bits(found, quantize_dequantize(part, *parameters, saturate=saturate))


def test_other_round_trips_have_no_function_of_a_region():
    x, scale, zero_point = np.ones((2, 3), np.float32), np.float32(1), np.zeros((), np.int8)
    each_axis = np.ones(3, np.float32), np.zeros(3, np.int8)
    assert compiled_steps.round_trip(x, scale, zero_point, saturate=True) is not None
    for operands in (
        (x, *each_axis),
        (x, scale, each_axis[1]),
        (x, scale, np.zeros((), np.int32)),
        (x, scale, None),
        (x.astype(np.float16), scale, zero_point),
        (x, np.float16(1), zero_point),
    ):
        assert compiled_steps.round_trip(*operands, saturate=True) is None


def blocks_model(weight, operator="MXQuantizeDequantize", axis=0, more=(), initializers=(), **attributes):
    """Return a model of a rounded weight times x. The nodes `more` lie between v and y."""
    y = "v" if more else "y"
    nodes = [
        helper.make_node("Constant", [], ["weight"], value=constant("", weight)),
        helper.make_node(operator, ["weight"], [y], domain="com.amd.quark", axis=axis, **attributes),
    ]
    return model([*nodes, *more, "z = Mul (x, y)"], [("x", "float32", [1])], ["z"], initializers=initializers)


KEPT = ["Dequantize", "Mul"]
ONE = {"x": np.ones(1, np.float32)}


@pytest.mark.parametrize("operator", ["BFPQuantizeDequantize", "MXQuantizeDequantize"])
def test_constants_of_block_formats_are_computed(operator):
    weight = np.random.default_rng(42).normal(0, 3, (40, 3)).astype(np.float32)
    before = blocks_model(weight, operator)
    result = assert_rewritten(before, ["Mul"], ONE)
    assert result.done == {(f"com.amd.quark::{operator}", CONSTANT): 1}
    # BFP has no codes in tensors, and no backend but the native one has the node that dequantizes MX's.
    settings = Settings(keep_quantized_weights=True, native_operators=operator != "MXQuantizeDequantize")
    after = rewrite_model(before, settings).model
    assert after.graph == result.model.graph


SHAPES_AND_AXES = [((70, 50), 0), ((70, 50), -1), ((130,), 3), ((4, 3, 65, 2), 2), ((1, 1, 33), -1), ((1, 900, 70), 1)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES_AND_AXES)
@pytest.mark.parametrize("name", list(MX_ELEMENT_TYPES))
@pytest.mark.slow
def test_codes_of_block_formats_are_kept(name, shape, axis):
    weight = np.random.default_rng(44).normal(0, 3, shape).astype(np.float32)
    before = blocks_model(weight, axis=axis, element_dtype=name, block_size=20)
    result = rewrite_model(before, Settings(keep_quantized_weights=True))
    assert_same_values(before, result.model, ONE)
    row = MX_ELEMENT_TYPES[name]
    if not row.has_tensors(RELEASE):
        assert operators(result.model) == ["Mul"]
        return
    assert operators(result.model) == KEPT
    assert result.done == {("com.amd.quark::MXQuantizeDequantize", block_codes.STORED): 1}
    codes, scales = result.model.graph.initializer
    oracle.assert_same_bits(from_tensor_proto(codes), mx_quantize(weight, element_dtype=name, axis=axis, block_size=20)[0])
    assert scales.data_type == (FLOAT32 if row.is_integer else FLOAT8E8M0).number
    for after in (rewrite_model(result.model, Settings(keep_quantized_weights=True)), rewrite_model(result.model)):
        assert_same_values(before, after.model, ONE)
    assert operators(after.model) == ["Mul"]


@pytest.mark.parametrize(("name", "is_kept"), [("fp8_e4m3", False), ("int8", True)])
@pytest.mark.slow
def test_scales_that_an_older_onnx_runtime_lacks(name, is_kept, monkeypatch):
    """ONNX Runtime has tensors of float8e8m0 since 1.31. The scales of int8 are float32."""
    monkeypatch.setattr(block_codes, "RELEASE", (1, 30))
    before = blocks_model(np.ones((4, 40), np.float32), axis=1, element_dtype=name, block_size=20)
    assert operators(rewrite_model(before, Settings(keep_quantized_weights=True)).model) == (KEPT if is_kept else ["Mul"])


# Inf has no code in most types. The scale of the last block should be 2**-128, but there is none below 2**-127.
SPECIAL = [
    ("fp4_e2m1", np.inf, np.inf, False),
    ("fp8_e4m3", np.inf, 1, False),
    ("int8", -np.inf, 1, False),
    ("fp8_e5m2", np.inf, 1, True),
    ("fp4_e2m1", np.nan, np.nan, False),
    ("fp8_e4m3", np.nan, 1, False),
    ("fp4_e2m1", 1.5 * 2.0**-126, 2.0**-129, False),
]


@pytest.mark.parametrize(("name", "first", "others", "is_kept"), SPECIAL)
@pytest.mark.slow
def test_codes_that_cannot_hold_a_constant(name, first, others, is_kept):
    weight = np.random.default_rng(45).normal(0, 3, (64, 5)).astype(np.float32)
    weight[32:, 3], weight[32, 3] = others, first
    before = blocks_model(weight, element_dtype=name)
    assert_rewritten(before, KEPT if is_kept else ["Mul"], ONE, keep_quantized_weights=True)


@pytest.mark.slow
def test_codes_that_take_more_room_than_floats():
    """Blocks of three elements have a float32 factor each."""
    weight = np.random.default_rng(47).normal(0, 3, (512, 3)).astype(np.float32)
    for columns, name, expected in [(3, "int8", KEPT), (3, "fp8_e4m3", KEPT), (1, "int8", ["Mul"])]:
        before = blocks_model(weight[:, :columns], axis=1, element_dtype=name)
        assert operators(rewrite_model(before, Settings(keep_quantized_weights=True)).model) == expected


@pytest.mark.by_default(1)
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (pair("v"), [DQ, "Mul"]),
        (["y = com.amd.quark.BFPQuantizeDequantize <axis = 0> (v)"], ["Mul"]),
        (["y = Gather (v, i)"], ["Gather", "Mul"]),
    ],
    ids=["pair", "blocks", "gather"],
)
def test_nodes_behind_codes_of_blocks(more, expected):
    """Nodes after codes of blocks are folded as they are after floats. A Gather takes rows of floats."""
    weight = np.random.default_rng(48).normal(0, 3, (64, 5)).astype(np.float32)
    initializers = [*scale_and_zero_point(), constant("i", np.array([3, 60]))]
    before = blocks_model(weight, more=more, initializers=initializers)
    assert_rewritten(before, expected, ONE, keep_quantized_weights=True)


def test_equal_nodes_of_block_formats_share_codes():
    weight = np.random.default_rng(46).normal(0, 3, (64, 5)).astype(np.float32)
    nodes = [f"{y} = com.amd.quark.MXQuantizeDequantize <axis = 0> (w)" for y in ("y", "y2")]
    before = model([*nodes, "z = Mul (y2, y)"], [], ["z"], initializers=[constant("w", weight)])
    result = assert_rewritten(before, ["Dequantize", "Dequantize", "Mul"], {}, keep_quantized_weights=True)
    assert len(result.model.graph.initializer) == 2


def test_codes_are_kept():
    weight = np.random.default_rng(43).normal(0, 3, (64, 64)).astype(np.float32)
    initializers = [constant("weight", weight), *scale_and_zero_point()]
    before = model([*pair("weight"), "z = MatMul (x, y)"], ["x"], ["z"], initializers=initializers)
    result = assert_rewritten(before, [DQ, "MatMul"], {"x": np.ones((2, 64), np.float32)}, keep_quantized_weights=True)
    codes = {each.name: from_tensor_proto(each) for each in result.model.graph.initializer}["codes"]
    oracle.assert_same_bits(codes, oracle.quantize(weight, np.float32(0.25), None, "int8"))
    assert result.done == {(f"com.amd.quark::{Q}", CODES): 1}
    assert result.model.ByteSize() < 0.3 * before.ByteSize()


@pytest.mark.slow
def test_codes_stay_kept_where_a_region_reads_them():
    """The second input of a region, unlike that of a quantize node, is not a scale, whose dequantize node would be folded."""
    initializers = [constant("weight", np.resize(np.float32([1, -2, 30]), X.shape)), *scale_and_zero_point()]
    nodes = [*pair("weight", "codes", "w"), *pair("x", "codes2", "y"), "z = Add (y, w)"]
    result = assert_rewritten(
        model(nodes, ["x"], ["z"], initializers=initializers), [DQ, "Region"], {"x": X}, keep_quantized_weights=True
    )
    assert rewrite_model(result.model, Settings(keep_quantized_weights=True)).model.graph == result.model.graph


def test_invalid_nodes_are_left():
    """A node that ONNX Runtime refuses is not folded: its zero point has a type that the operator lacks, or its `output_dtype`
    is another type."""
    for zero_point, attribute, why in [
        (np.int32(0), "", "y_zero_point has element type"),
        (np.int8(0), "<output_dtype = 2>", "output_dtype is 2; expected the zero point's type, int8"),
    ]:
        nodes = [f"codes = QuantizeLinear {attribute} (weight, scale, zero_point)", pair(domain="")[1], "z = MatMul (x, y)"]
        initializers = [*floats(weight=np.ones((6, 3)), scale=0.25), constant("zero_point", zero_point)]
        result = rewrite_model(model(nodes, ["x"], ["z"], initializers=initializers))
        assert operators(result.model)[::2] == ["QuantizeLinear", "MatMul"]
        assert len(result.left) == 2
        assert all(f"not valid: {why}" in reason for name, reason in result.left if name == "ai.onnx::QuantizeLinear")
