"""The standard forms of block formats, in sessions without the package, against the oracles."""

import collections

import ml_dtypes
import numpy as np
import nvidia_nodes
import onnx
import oracle
import processes
import pytest
import samples
import textline
from block_samples import BFP, MX, axes, one_node, rounding_modes, values
from marks import default_of
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import array_of, model, ort_value, session
from rewritten_models import constant, operators
from standard_models import LEVELS, in_standard_operators, plain_session

from quark_numba.block.formats import BFP_METHODS, BIT_WIDTHS, MX_ELEMENT_TYPES, NVIDIA_FORMATS
from quark_numba.block.operators import BFP as BFP_OPERATOR
from quark_numba.block.operators import MX as MX_OPERATOR
from quark_numba.declaration import Builder
from quark_numba.declaration.standard_arithmetic import nearest, power_of_two
from quark_numba.element_types import ELEMENT_TYPES, FLOAT16, find
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model

f32 = np.float32
OPERATORS = {BFP_OPERATOR: oracle.bfp, MX_OPERATOR: oracle.mx}
FORMATS = [(BFP_OPERATOR, name) for name in BFP] + [(MX_OPERATOR, name) for name in MX]
formats = pytest.mark.parametrize(("operator", "name"), FORMATS, ids=[name for _, name in FORMATS])


def attributes_of(operator, name, rounding_mode, axis=-1):
    return ({} | BFP | MX)[name] | {"rounding_mode": rounding_mode, "axis": axis}


def expected(operator, x, attributes):
    with np.errstate(all="ignore"):
        return OPERATORS[operator](x, **operator.values(attributes) if operator is MX_OPERATOR else attributes)


def standard_of(operator, attributes, x, lengths=None, opset=21):
    """Return the standard form of a model of one node. `lengths`: those of x that the model declares, None for others."""
    lengths = x.shape if lengths is None else lengths
    source = one_node(operator, attributes, find(x.dtype).name, lengths)
    source.graph.output[0].type.CopyFrom(source.graph.input[0].type)
    source.opset_import[0].version = opset
    return in_standard_operators(source)


def outputs_of(standard, level="DISABLE_ALL", **feeds):
    made = plain_session(standard, level=level)
    names = [each.name for each in made.get_outputs()]
    found = made.run_with_ort_values(names, {name: ort_value(np.array(each, order="C")) for name, each in feeds.items()})
    return [array_of(each) for each in found]


def assert_right(operator, attributes, x, levels=LEVELS, **given):
    standard = standard_of(operator, attributes, x, **given)
    for level in levels:
        (y,) = outputs_of(standard, level, x=x)
        oracle.assert_same_bits(y, expected(operator, x, attributes))


# Formats.


def ties(block, bits):
    """Return blocks of all exponents that float32 has. Their elements are ties of numbers of so many bits, and their
    neighbours, up to the power of two after the largest number."""
    rng = np.random.default_rng(block + bits)
    numbers = rng.integers(0, 2**bits, (277, max(block - 2, 1))) + 0.5
    numbers = np.concatenate([numbers, np.full((277, 1), 2**bits - 0.5), rng.integers(2 ** (bits - 1), 2**bits, (277, 1))], 1)
    with np.errstate(over="ignore", under="ignore"):
        x = np.ldexp(numbers, np.arange(-149, 128)[:, None] - (bits - 1)).astype(f32)
    x = np.stack([x, np.nextafter(x, f32(0)), np.nextafter(x, f32(np.inf))])
    return (x * rng.choice([f32(-1), f32(1)], x.shape))[..., :block].reshape(3, -1)


@formats
@rounding_modes
@pytest.mark.by_default(8)
def test_every_format(operator, name, rounding_mode):
    attributes = attributes_of(operator, name, rounding_mode)
    block = attributes["block_size"]
    bits = attributes["bit_width"] - 9 if operator is BFP_OPERATOR else 7
    if operator is MX_OPERATOR and not name.startswith("int8"):
        bits = MX_ELEMENT_TYPES[attributes["element_dtype"]].mantissa_bits + 1
    with np.errstate(over="ignore"):
        special = np.resize(np.concatenate([samples.SPECIAL, values((300,), "float32")]), (40, 2 * block + 1))
    for x in (values((2, 3, 4, 70), "float32"), ties(block, bits), ties(block, bits + 1), special):
        assert_right(operator, attributes, x)


@pytest.mark.parametrize("bit_width", BIT_WIDTHS)
@pytest.mark.parametrize("method", BFP_METHODS)
@rounding_modes
@pytest.mark.slow
def test_every_bit_width(bit_width, method, rounding_mode):
    attributes = {"bfp_method": method, "bit_width": bit_width, "block_size": 8, "axis": -1, "rounding_mode": rounding_mode}
    for shift_bits in (0, 1, 8):
        attributes["sub_block_shift_bits"] = shift_bits
        for x in (ties(8, bit_width - 9), values((40, 64), "float32", bit_width)):
            assert_right(BFP_OPERATOR, attributes, x, LEVELS[:1])


# Shapes, types and versions.

SHAPES = [(), (1,), (7,), (64,), (1, 1, 1), (0, 4), (3, 40), (40, 3), (33, 1), (2, 33, 5), (2, 64, 9), (2, 3, 4, 10)]
SHAPES += [(1, 2, 3, 16, 2)]
OF_SHAPES = [
    (BFP_OPERATOR, "BFP16"),
    (BFP_OPERATOR, "many shifts"),
    (MX_OPERATOR, "fp8_e4m3, 32"),
    (MX_OPERATOR, "fp4_e2m1, 7"),
]


@pytest.mark.parametrize(("operator", "name"), OF_SHAPES, ids=[name for _, name in OF_SHAPES])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.by_default(4)
def test_shapes(operator, name, shape):
    """All, some or none of the lengths are known."""
    x = values(shape, "float32", len(shape))
    for axis in axes(shape) if len(shape) > 1 else [0, -1] if shape else [0]:
        attributes = attributes_of(operator, name, 2, axis)
        known = [shape, [None, *shape[1:]], [*shape[:1], *[None] * len(shape[1:])], [None] * len(shape)]
        for lengths in known if shape else known[:1]:
            assert_right(operator, attributes, x, LEVELS[:1], lengths=lengths)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)], ids=str)
def test_single_elements(shape):
    """A session knows only in the run that x has one element, which stays as it is. Two are rounded."""
    attributes = attributes_of(BFP_OPERATOR, "via bfloat16", 0)
    for x in (np.full(shape, 1.2345678, f32), np.full((2, *shape[1:]), 1.2345678, f32)):
        assert_right(BFP_OPERATOR, attributes, x, lengths=[None, *shape[1:]])


@pytest.mark.parametrize("x_type", ["float16", "bfloat16"])
@pytest.mark.parametrize(("operator", "name"), OF_SHAPES, ids=[name for _, name in OF_SHAPES])
def test_other_types(operator, name, x_type):
    assert_right(operator, attributes_of(operator, name, 0, 1), values((2, 35, 4, 6), x_type))


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 25])
def test_versions(opset):
    for operator, name in OF_SHAPES:
        assert_right(operator, attributes_of(operator, name, 0, 1), values((2, 35, 4, 6), "float32"), LEVELS[:1], opset=opset)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_beyond_the_axis(axis):
    for operator, name in OF_SHAPES:
        attributes = attributes_of(operator, name, 0, axis) | {"block_size": 2**40}
        x, smaller = values((3, 50), "float32"), attributes | {"block_size": 64}
        standard = standard_of(operator, attributes, x)
        oracle.assert_same_bits(outputs_of(standard, x=x)[0], expected(operator, x, smaller))


@pytest.mark.slow
def test_threads_that_flush_subnormals(tmp_path):
    """Zeros are not divided by zero. Only the first session of a process can make its threads flush subnormal numbers."""
    x = np.random.default_rng(1).normal(0, 3, (6, 128)).astype(f32)
    x[1], x[2, ::3] = 0, -0.0
    np.save(tmp_path / "x.npy", x)
    nodes = [(operator, attributes_of(operator, name, 0)) for operator, name in FORMATS]
    for place, (operator, attributes) in enumerate(nodes):
        onnx.save(standard_of(operator, attributes, x), tmp_path / f"{place}.onnx")
    code = f"""if True:
        import numpy as np, onnxruntime
        x = np.load({str(tmp_path / "x.npy")!r})
        for place in range({len(nodes)}):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
            session = onnxruntime.InferenceSession(f"{tmp_path}/{{place}}.onnx", options, ["CPUExecutionProvider"])
            np.save(f"{tmp_path}/{{place}}.npy", session.run(None, {{"x": x}})[0])
    """
    ran = processes.python("-c", code)
    assert ran.returncode == 0, ran.stderr
    for place, (operator, attributes) in enumerate(nodes):
        oracle.assert_same_bits(np.load(tmp_path / f"{place}.npy"), expected(operator, x, attributes))


def test_reasons():
    x = values((2, 40), "float32")
    for name, lengths, opset, reason in (
        ("via bfloat16", x.shape, 12, "opset 12 has no Cast of bfloat16"),
        ("BFP16", x.shape, 9, "opset 9 has no ThresholdedRelu"),
    ):
        source = one_node(BFP_OPERATOR, BFP[name], "float32", lengths)
        source.opset_import[0].version = opset
        left = rewrite_model(source, Settings(operators="standard")).left
        assert list(left) == [("com.amd.quark::BFPQuantizeDequantize", reason)]


# The formats of NVIDIA.


def nvidia_model(name, inputs, attributes, *, is_constant):
    """Return a model of one node with shapes; the scale of the tensor is a constant, or an input."""
    results = nvidia_nodes.expected_of(name, inputs, attributes)
    source = nvidia_nodes.one_node(name, inputs, attributes, results)
    for value, array in zip((*source.graph.input, *source.graph.output), (*inputs, *results), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, array.shape))
    if is_constant:
        source.graph.initializer.extend(
            constant(value.name, array) for value, array in zip(source.graph.input[1:], inputs[1:], strict=True)
        )
        del source.graph.input[1:]
    feeds = dict(zip([value.name for value in source.graph.input], inputs, strict=False))
    return source, feeds, results


def assert_right_nvidia(name, inputs, attributes, levels=LEVELS):
    for is_constant in (False, True)[: len(inputs)]:
        source, feeds, results = nvidia_model(name, inputs, attributes, is_constant=is_constant)
        standard = in_standard_operators(source)
        for level in levels:
            for y, result in zip(outputs_of(standard, level, **feeds), results, strict=True):
                oracle.assert_same_bits(y, result)


IN_SESSIONS = ["TRT_MXFP8DynamicQuantize", *nvidia_nodes.OWN]


@pytest.mark.parametrize("seed", default_of(range(20), 0, 1))
@pytest.mark.parametrize("name", IN_SESSIONS)
def test_nvidia(name, seed):
    rng = np.random.default_rng([seed, len(name)])
    for _ in range(3):
        assert_right_nvidia(name, *nvidia_nodes.random_node(name, rng), LEVELS[seed % 2 :][:1])


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-45, 1e-38, 3e38, 2.0**-130, 2.0**-117])
def test_scales_of_tensors(scale):
    x = np.array([[0] * 16, [1] * 16, [-np.inf] * 16, [1e-40] * 16, nvidia_nodes.SPECIAL + [2.0] * 6], f32)
    assert_right_nvidia("NVFP4QuantizeDequantize", [x, f32(scale)], {})


def test_exponents_of_mxfp8():
    """The exponent is the least one whose scale brings the largest element to at most 448, also where the scale is subnormal or
    an element is Inf."""
    with np.errstate(over="ignore"):
        largest = f32(448 * 2.0 ** np.arange(-158, 120))
        largest = np.stack([largest, np.nextafter(largest, f32(0)), np.nextafter(largest, f32(np.inf))]).reshape(-1, 1)
    x = np.concatenate([largest, largest / 3, -largest / 77, np.full_like(largest, 1e38)], 1)
    x[:, 3] = np.where(np.isinf(largest[:, 0]) | (np.arange(len(x)) % 50 == 0), np.inf, 0)
    for name in ("TRT_MXFP8DynamicQuantize", "MXFP8QuantizeDequantize"):
        assert_right_nvidia(name, [x], {"block_size": 4}, LEVELS[:1])


def test_unknown_lengths_of_codes():
    x = nvidia_nodes.values(np.random.default_rng(2), (3, 64, 5, 2), f32)
    attributes = {"axis": 1, "block_size": 32}
    source, _, results = nvidia_model("TRT_MXFP8DynamicQuantize", [x], attributes, is_constant=False)
    for lengths in ([None, 64, None, None], [3, None, 5, 2], [None] * 4):
        for value in (source.graph.input[0], *source.graph.output):
            value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, lengths))
        for dim in source.graph.output[1].type.tensor_type.shape.dim:
            dim.ClearField("dim_value")
        for y, result in zip(outputs_of(in_standard_operators(source), x=x), results, strict=True):
            oracle.assert_same_bits(y, result)


# onnx's own evaluator.


def test_reference_evaluator():
    """The form has a Cast to float4e2m1, which ONNX Runtime lacks."""
    x = values((3, 70), "float32")
    for operator, name in OF_SHAPES:
        attributes = attributes_of(operator, name, 0)
        with np.errstate(all="ignore"):
            (y,) = ReferenceEvaluator(standard_of(operator, attributes, x)).run(None, {"x": x})
        oracle.assert_same_bits(y, expected(operator, x, attributes))
    x = np.concatenate([values((4, 16), "float32"), np.resize(np.array(nvidia_nodes.SPECIAL, f32), (4, 16))])
    source, feeds, results = nvidia_model("TRT_FP4DynamicQuantize", [x, f32(0.1)], {}, is_constant=False)
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(in_standard_operators(source)).run(None, feeds)
    for y, result in zip(found, results, strict=True):
        oracle.assert_same_bits(np.asarray(y).astype(f32), result.astype(f32))


# Whole models.


@pytest.mark.parametrize("name", ["BFP16", "MX9", "fp8_e4m3, 32"])
def test_between_products(name):
    """The form has no constant factor of one element beside a MatMul, which ONNX Runtime would fuse into it."""
    operator = BFP_OPERATOR if name in BFP else MX_OPERATOR
    rng = np.random.default_rng(4)
    node = helper.make_node(operator.name, ["a"], ["b"], domain=operator.domain, **attributes_of(operator, name, 0))
    source = model(
        ["a = MatMul (x, w)", node, "y = MatMul (b, w)"],
        [("x", "float32", [32, 32])],
        [("y", "float32", [32, 32])],
        initializers=[constant("w", rng.normal(size=(32, 32)), f32)],
    )
    x = rng.normal(scale=9, size=(32, 32)).astype(f32)
    results = [outputs_of(in_standard_operators(source), level, x=x)[0] for level in LEVELS]
    oracle.assert_same_bits(*results)


@pytest.mark.parametrize("variant", ["bfp16", "mx9", "mxfp8"])
@pytest.mark.compiled
@pytest.mark.slow
def test_real_models(variant):
    source = onnx.load(textline.path_of(variant))
    results = []
    for made in (plain_session(in_standard_operators(source)), session(source, threads=1, level="DISABLE_ALL")):
        results.append(made.run(None, {"x": textline.X}))
    for y, drop_in in zip(*results, strict=True):
        oracle.assert_same_bits(y, drop_in)


def test_nodes_of_block_floating_point():
    """The form has no Transpose and no comparison, and neither Shape nor Pad where the lengths are known."""
    standard = standard_of(BFP_OPERATOR, BFP["BFP16"] | {"axis": 1}, values((2, 64, 9), "float32"))
    counts = collections.Counter(operators(standard))
    once = dict.fromkeys(("ReduceMin", "Neg", "Div", "Floor"), 1)
    twice = dict.fromkeys(("Reshape", "ThresholdedRelu", "HardSigmoid", "Add", "Sub", "Clip"), 2)
    assert counts == once | twice | {"Mul": 7, "Abs": 3}


# The arithmetic of all families.


COMPUTE = {
    "Abs": np.abs,
    "Add": np.add,
    "Mul": np.multiply,
    "Sub": np.subtract,
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "ThresholdedRelu": lambda x, alpha: np.where(x > f32(alpha), x, f32(0)),
}


class _Arrays(Builder):
    """Computes what others write."""

    def __call__(self, op_type, *inputs, **attributes):
        with np.errstate(all="ignore"):
            return COMPUTE[op_type](*[f32(each) if isinstance(each, float) else each for each in inputs], **attributes)

    def shape(self, x):
        return x.shape

    def may_be_nan(self, x):
        return True

    @property
    def is_beside_product(self):
        return False

    @property
    def signs_of_zeros_matter(self):
        return True


def assert_powers(magnitudes):
    magnitudes = magnitudes.astype(np.uint32).view(f32)
    found = power_of_two(_Arrays(17), magnitudes * f32(0.75), 2.0**-6)
    exponents = np.where(magnitudes < f32(2.0**-126), -127, np.frexp(magnitudes)[1] - 1)
    oracle.assert_same_bits(found, np.ldexp(f32(2.0**-6), exponents))


def test_power_of_two():
    """Every exponent, with mantissas around its ends and its middle."""
    exponents = np.arange(256)[:, None] << 23
    mantissas = np.concatenate([np.arange(-9, 9) + at for at in (0, 1 << 22, (1 << 23) // 3, (2 << 23) // 3)])
    bits = exponents + mantissas
    assert_powers(bits[(bits >= 0) & (bits < 0x7F800000)])


@pytest.mark.exhaustive
def test_power_of_two_of_every_float():
    for first in range(0, 0x7F800000, 1 << 23):
        assert_powers(np.arange(first, first + (1 << 23)))


SMALL_FLOATS = [
    row.name for row in ELEMENT_TYPES if not row.is_integer and (row.bits < 16 or row is FLOAT16) and row.name != "float8e8m0"
]


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_nearest(name):
    """Ties, their neighbours, and numbers that saturate. NaN stays, whether or not the type has it."""
    x = samples.floats(name, 1.0, 0)
    element_type = find(name)
    with np.errstate(all="ignore"):
        codes = oracle.nearest(x.astype(np.float64), name, saturate=True)
        result = oracle.values(codes.astype(f"u{element_type.dtype.itemsize}").view(element_type.dtype), name)
    result = np.where(np.isnan(x), np.nan, result).astype(f32)
    oracle.assert_same_bits(nearest(_Arrays(17), x, element_type), result)


def test_every_nvidia_format_has_a_test():
    assert {f"{nvidia.name.upper()}QuantizeDequantize" for nvidia in NVIDIA_FORMATS} == {*nvidia_nodes.OWN}
    assert np.dtype(ml_dtypes.float4_e2m1fn) == NVIDIA_FORMATS[0].codes.dtype
