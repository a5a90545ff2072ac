"""The operators of QONNX and of MCT, in the families of fake quantization and of tables, against their oracles."""

import ml_dtypes
import numba
import numpy as np
import onnx
import oracle
import pytest
import samples
from fake_quantization_nodes import QONNX, Node, random_node
from marks import default_of
from onnx import checker, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx_models import INFERS, assert_inference_refuses, infers, session
from oracle import assert_same_bits
from other_quantizers import QONNX_DOMAINS
from probes import probes
from text_graphs import text_model, text_nodes

import quark_numba
from quark_numba.catalog import OPERATORS
from quark_numba.cli.inventory import quantization_nodes
from quark_numba.dialects import mct, openvino, qonnx
from quark_numba.fake_quantization.key import FORMS

f32 = np.float32

# Every operator of the dialects, but for those with the same kernels under older names.
OF_DIALECTS = [each for dialect in (qonnx, mct, openvino) for each in dialect.OPERATORS if not each.newer_name]

# QONNX's probes with a bit width of 4.2, which its executor computes. The specification of the package refuses it.
FRACTIONAL_BIT_WIDTH = {5, 33}

operators = pytest.mark.parametrize("operator", OF_DIALECTS, ids=lambda each: each.name)
firsts = pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 500, 61))])


def seeds(first):
    return range(first, first + (61 if first else 12))


def call(node):
    operator = OPERATORS.find(node.domain, node.operator)
    return operator.call(*node.inputs, **operator.values(node.attributes))


# Each rounding mode has a kernel, and by default only nodes of these modes run in sessions.
DEFAULT_MODES = ("ROUND", "FLOOR")


def has_default_mode(attributes):
    return attributes.get("rounding_mode", "ROUND").upper() in DEFAULT_MODES


of_qonnx = pytest.mark.parametrize("operator", [each.name for each in OF_DIALECTS if each.domain == QONNX])


def node_of_probe(probe):
    return Node(probe.domain, probe.operator, probe.attributes, probe.inputs)


@of_qonnx
@pytest.mark.slow
def test_probes(operator):
    """Results have the bits that QONNX's executor gave, the sign of zero included."""
    for probe in probes(operator):
        if probe.number in FRACTIONAL_BIT_WIDTH:
            with pytest.raises(ValueError, match=r"bit_width 4\.2.*; expected a bit width that is a whole number"):
                call(node_of_probe(probe))
        elif is_affordable(probe.output):
            assert_same_bits(call(node_of_probe(probe)), probe.output)


def is_affordable(array):
    return not numba.config.DISABLE_JIT or array.size < 500


@pytest.mark.compiled
@of_qonnx
@pytest.mark.parametrize("modes", ["default", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_probes_in_sessions(operator, modes):
    for probe in probes(operator):
        if modes == "default" and not has_default_mode(probe.attributes):
            continue
        node = node_of_probe(probe)
        made = session(node.model())
        if probe.number in FRACTIONAL_BIT_WIDTH:
            with pytest.raises(Exception, match=r"Quant: the format is not valid; expected a bit width that is a whole number"):
                made.run(None, node.feeds())
        else:
            assert_same_bits(made.run(None, node.feeds())[0], probe.output)


@operators
@firsts
@pytest.mark.by_default(1, slow=60)
def test_random_nodes(operator, first):
    for seed in seeds(first):
        node = random_node(operator.domain, operator.name, seed)
        assert_same_bits(call(node), node.expected())


@pytest.mark.compiled
@operators
@firsts
@pytest.mark.by_default(1, slow=40)
def test_random_nodes_in_sessions(operator, first):
    for seed in seeds(first):
        node = random_node(operator.domain, operator.name, seed)
        if not (first or has_default_mode(node.attributes)):
            continue
        constants = bool(seed % 2)
        made = session(node.model(constants=constants), threads=1 + seed // 2 % 2)
        assert_same_bits(made.run(None, node.feeds(constants=constants))[0], node.expected())


OLDER = [each for each in OPERATORS if each.newer_name and each.domain in QONNX_DOMAINS]


@pytest.mark.compiled
@pytest.mark.parametrize("operator", OLDER, ids=lambda each: each.full_name)
@pytest.mark.by_default(1)
def test_older_domains(operator):
    node = random_node(QONNX, operator.name, 4)._replace(domain=operator.domain)
    assert_same_bits(session(node.model()).run(None, node.feeds())[0], node.expected())


@operators
@pytest.mark.by_default(2)
def test_layouts_of_arrays(operator):
    """Strides, memory orders and unaligned memory give the same bits."""
    node = random_node(operator.domain, operator.name, 7)
    x, *others = node.inputs
    assert x.ndim == 4
    y = node.expected()
    unaligned = np.frombuffer(b" " + x.tobytes(), np.uint8)[1:].view(f32).reshape(x.shape)
    for other in (np.asfortranarray(x), np.repeat(x, 2, axis=-1)[..., ::2], x[::-1].copy()[::-1], unaligned, x.astype(">f4")):
        assert_same_bits(call(node._replace(inputs=[other, *others])), y)
    transposed = np.ascontiguousarray(x.transpose(2, 0, 3, 1)).transpose(1, 3, 0, 2)
    strided = [np.repeat(each, 2, axis=0)[::2] if each.ndim else each for each in others]
    assert_same_bits(call(node._replace(inputs=[transposed, *strided])), y)


@pytest.mark.parametrize("name", default_of([each.name for each in OF_DIALECTS], "Quant"))
@pytest.mark.compiled
def test_large_arrays(name):
    """Calls on large arrays, which threads share, give the oracle's results."""
    (operator,) = [each for each in OF_DIALECTS if each.name == name]
    for seed in range(3):
        node = random_node(operator.domain, name, 11 * seed + 7)  # all with x of shape (2, 3, 4, 5)
        x, *others = node.inputs
        x = np.tile(x, (2000, 1, 1, 1))[1:-1]
        sizes = [len(x) if each.ndim == 4 and len(each) == 2 else None for each in others]
        whole = [np.resize(each, (size, *each.shape[1:])) if size else each for each, size in zip(others, sizes, strict=True)]
        if "channel_axis" in node.attributes and node.attributes["channel_axis"] in (0, -4) and node.attributes["per_channel"]:
            whole = [np.resize(each, len(x)) if each.size == 2 else each for each in others]
        attributes = node.attributes | ({"rounding_mode": "ROUND"} if "rounding_mode" in node.attributes else {})
        large = node._replace(inputs=[x, *whole], attributes=attributes)
        assert_same_bits(call(large), large.expected())


OF_FAKE_QUANTIZATION = [each for each in OF_DIALECTS if each.family == "fake_quantization"]


def of_own(node):
    """Return (attributes, inputs) of the package's own operator for a node: what it means, with all parameters as inputs."""
    operator = OPERATORS.find(node.domain, node.operator)
    meaning = operator.meaning(node.inputs, operator.values(node.attributes))
    parameters = []
    for name in FORMS[meaning.form].parameters:
        value = np.asarray(meaning.parameters[name], f32)
        if meaning.axis != "broadcast" and value.size > 1:
            value = oracle.along(value, meaning.axis, node.inputs[0].ndim)
        parameters.append(value)
    return {"form": meaning.form, "rounding_mode": meaning.rounding_mode}, [node.inputs[0], *parameters]


@pytest.mark.parametrize("operator", OF_FAKE_QUANTIZATION, ids=lambda each: each.name)
@pytest.mark.by_default(1)
def test_own_operator(operator):
    """The operator that `optimize` writes gives the bits of the one that it replaces, on arrays and in a session."""
    for seed in range(4, 7):
        node = random_node(operator.domain, operator.name, seed)
        attributes, inputs = of_own(node)
        own = Node("quark_numba", "FakeQuantize", attributes, inputs)
        assert_same_bits(call(own), node.expected())
        if not numba.config.DISABLE_JIT:
            assert_same_bits(session(own.model()).run(None, own.feeds())[0], node.expected())


@pytest.mark.parametrize(
    "operator", [each for each in OF_FAKE_QUANTIZATION if len(each.inputs) > 1], ids=lambda each: each.name
)
@pytest.mark.by_default(1)
def test_types_of_numbers(operator):
    """Each number has any type that holds it, whatever the others have. QKeras's scales are float64, and the rest int64."""
    node = random_node(operator.domain, operator.name, 6)
    if "rounding_mode" in node.attributes:
        node = node._replace(attributes=node.attributes | {"rounding_mode": "ROUND"})
    x, *numbers = node.inputs
    for first in range(3):
        others = [typed(each, first + i) for i, each in enumerate(numbers)]
        assert any(each.dtype != f32 for each in others)
        other = node._replace(inputs=[x, *others])
        assert_same_bits(call(other), node.expected())
        if not numba.config.DISABLE_JIT:
            assert_same_bits(session(other.model()).run(None, other.feeds())[0], node.expected())
            model = other.model(constants=True)
            assert_same_bits(quark_numba.InferenceSession(model).run(None, {"x": x})[0], node.expected())


def typed(number, turn):
    """Return a number in another type, if the type holds it."""
    with np.errstate(all="ignore"):
        other = number.astype((np.float64, np.int64, np.int32)[turn % 3])
        return other if np.array_equal(other.astype(f32), number.astype(f32)) else number.astype(np.float64)


def test_levels_of_openvino():
    """By hand: halves go to even, NaN stays, and the limits of x may be crossed, or the same."""
    x, operator = f32([-2, -1, -0.75, -0.25, 0, 0.25, 1, 1.5, np.nan]), OPERATORS.find("org.openvinotoolkit", "FakeQuantize")

    def fake_quantize(*limits, **attributes):
        return operator.call(x, *map(f32, limits), **operator.values(attributes)).tolist()[:-1]

    assert fake_quantize(-1, 1, 0, 4, levels=5) == [0, 0, 0, 2, 2, 2, 4, 4]
    assert fake_quantize(1, -1, 0, 4, levels=5) == [0, 0, 4, 2, 2, 2, 0, 4]
    assert fake_quantize(0, 0, -1, 1, levels=2) == [-1, -1, -1, -1, -1, 1, 1, 1]
    assert np.isnan(operator.call(x, *map(f32, (-1, 1, 0, 4)), levels=5, auto_broadcast="numpy")[-1])
    with pytest.raises(ValueError, match="levels 1; expected a whole number of levels that is at least 2"):
        fake_quantize(-1, 1, 0, 4, levels=1)
    with pytest.raises(ValueError, match="auto_broadcast is 'pdpd'; expected 'numpy' or 'none'"):
        fake_quantize(-1, 1, 0, 4, levels=5, auto_broadcast="pdpd")


def test_codes():
    """The form of codes gives what Clip between QuantizeLinear and DequantizeLinear gives."""
    x, scale = samples.affordable(samples.floats("int8", 0.1, 0)), f32(0.1)
    codes = np.clip(oracle.quantize(x, scale, np.int8(3), "int8"), np.int8(-10), np.int8(20))
    own = Node("quark_numba", "FakeQuantize", {"form": "codes"}, [x, scale, f32(-13), f32(17)])
    assert_same_bits(call(own), oracle.dequantize(codes, scale, np.int8(3), "int8"))


@pytest.mark.parametrize(("form", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
@pytest.mark.by_default(1)
def test_casts(form, dtype):
    """The forms without parameters give what a Cast to the type and back gives: for every code, for the middle between each two
    neighbours, and beside it."""
    codes = np.arange(2**15, dtype=np.uint16).view(dtype).astype(f32)
    codes = codes[codes <= np.finfo(f32).max]
    above = np.append(codes[1:].astype(np.float64), 2 * codes[-1].astype(np.float64) - codes[-2])
    with np.errstate(over="ignore", under="ignore"):
        middles = ((codes + above) / 2).astype(f32)
        beside = [np.nextafter(middles, f32(to)) for to in (-np.inf, np.inf)]
        positive = samples.affordable(np.concatenate([codes, middles, *beside, f32([np.inf, 3.4e38])]))
        x = np.concatenate([positive, -positive, f32([np.nan])])
        expected = x.astype(dtype).astype(f32)
    node = Node("quark_numba", "FakeQuantize", {"form": form, "rounding_mode": "ROUND"}, [x])
    assert_same_bits(call(node), expected)
    signalling = np.uint32([0x7F800001, 0xFF800001, 0x7FBFFFFF]).view(f32)
    assert np.isnan(call(node._replace(inputs=[signalling]))).all()
    quark_numba.register_schemas()
    checker.check_model(node.model(shapes=[x.shape]), full_check=True)
    if not numba.config.DISABLE_JIT:
        assert_same_bits(session(node.model()).run(None, node.feeds())[0], expected)


@operators
@pytest.mark.by_default(1)
def test_tools_of_onnx(operator):
    """The checker accepts a node, its shape is inferred, and the reference evaluator gives its bits."""
    quark_numba.register_schemas()
    node = random_node(operator.domain, operator.name, 7)
    shapes = [each.shape for each in node.inputs]
    (y,) = ReferenceEvaluator(node.model(), new_ops=quark_numba.reference_ops()).run(None, node.feeds())
    assert_same_bits(y, node.expected())
    made = node.model(shapes=shapes)
    checker.check_model(made)
    if INFERS:
        inferred = shape_inference.infer_shapes(made, strict_mode=True).graph.output[0].type.tensor_type
        assert [each.dim_value for each in inferred.shape.dim] == [*shapes[0]]


@operators
@pytest.mark.by_default(3)
def test_constants_are_folded(operator):
    """Constants are folded, also with int64 bit widths."""
    for seed in (4, 6, 7):
        node = random_node(operator.domain, operator.name, seed)
        made = node.model(constants=True)
        made.graph.initializer.append(numpy_helper.from_array(node.inputs[0], "x"))
        del made.graph.input[:]
        made.graph.node.extend(text_nodes("z = Identity (y)"))
        made.graph.output[0].name = "z"
        optimized = quark_numba.optimize(made)
        assert [each.op_type for each in optimized.graph.node] == ["Identity"]
        (y,) = [numpy_helper.to_array(each) for each in optimized.graph.initializer if each.name == "y"]
        assert_same_bits(y, node.expected())


@pytest.mark.parametrize("bias", [126, 127, 128])
@pytest.mark.parametrize("scale", [1, 0.1, -3, 1e-30, 1e38])
@pytest.mark.parametrize("flags", [{"saturation": 1}, {"saturation": 0, "has_inf": 1}, {"saturation": 0, "has_nan": 1}])
def test_minifloats_that_exceed_float32(flags, scale, bias):
    """With 8 exponent bits the largest value may be beyond float32."""
    x = np.array([3.4e38, -3.4028235e38, 3.3e38, 1.7e38, -1e38, 5.0, np.inf], f32)
    x = np.concatenate([x, x * f32(min(abs(scale), 1))])
    inputs = [x, f32(scale), f32(8), f32(4), f32(bias), f32(np.inf)]
    attributes = {"has_inf": 0, "has_nan": 0, "has_subnormal": 1, "rounding_mode": "ROUND"} | flags
    node = Node(QONNX, "FloatQuant", attributes, inputs)
    assert_same_bits(call(node), node.expected())


def test_a_bit_width_of_32_as_int32():
    """It is the number 32, and 2 ** 32 does not wrap around."""
    x = np.array([3e9, 5e9, -1], f32)
    y = quark_numba.fake_quantize(x, f32(1), f32(0), np.int32(32), signed=False)
    assert_same_bits(y, np.array([3e9, 2**32, 0], f32))


LUT = "WeightsLUTPOTQuantizer"
X = np.zeros((2, 3, 4), f32)
ONE, ZERO = f32(1), f32(0)
MODES = "expected one of ROUND, CEIL, FLOOR, UP, DOWN, HALF_UP, HALF_DOWN, HALF_EVEN, ROUND_TO_ZERO"
TABLE = {"lut_values_bitwidth": 4, "per_channel": 1, "channel_axis": 1, "num_bits": 4, "signed": 1}
OF_ONE = TABLE | {"per_channel": 0}
FORMAT = {"has_inf": 0, "has_nan": 0, "saturation": 1, "has_subnormal": 1, "rounding_mode": "ROUND"}

# Nodes that are refused in a run, with the messages. A shape has parentheses, or brackets where onnx infers shapes.
WRONG_INPUTS = [
    ("Quant", {}, [X, np.ones(3, f32), ZERO, f32(8)], r"scale has shape .3,?.; expected one that broad.* x, .2, 3, 4."),
    ("Quant", {}, [X, np.ones((1, 2, 3, 4), f32), np.ones((5, 1, 1), f32), f32(8)], r"zero_point has shape .5, 1, 1.; expec"),
    ("Quant", {}, [X, ONE, ZERO, np.full(4, 8, f32)], r"bit_width has shape .4,?.; expected one element"),
    ("Quant", {}, [X, ONE, ZERO, f32(0)], "expected a bit width that is a whole number from 1 to 64"),
    ("Quant", {}, [X, ONE, ZERO, np.int64(-3)], "expected a bit width that is a whole number from 1 to 64"),
    ("Quant", {}, [X, ONE, ZERO, f32(1e9)], "expected a bit width that is a whole number from 1 to 64"),
    ("Quant", {}, [X, ONE, ZERO, f32(65)], "expected a bit width that is a whole number from 1 to 64"),
    ("Quant", {}, [X, ONE, ZERO, f32(4.5)], "expected a bit width that is a whole number from 1 to 64"),
    ("BipolarQuant", {}, [X, np.ones((3, 3), f32)], r"scale has shape .3, 3.; expected one that broadcasts"),
    ("Trunc", {}, [X, ONE, ZERO, f32(8), f32(3.5)], "expected a bit width that is a whole number"),
    ("Trunc", {}, [X, ONE, ZERO, f32(8), np.ones(3, f32), f32(4)], r"out_scale has shape .3,?.; expected one that broadcasts"),
    ("FloatQuant", FORMAT, [X, ONE, f32(9), f32(3), f32(7), f32(448)], "expected 1 to 8 exponent bits, 0 to 23 mantissa bits"),
    ("FloatQuant", FORMAT, [X, ONE, f32(4), f32(3.5), f32(7), f32(448)], "expected 1 to 8 exponent bits"),
    ("FloatQuant", FORMAT | {"saturation": 0}, [X, ONE, f32(4), f32(3), f32(7), f32(448)], "saturation, Inf or NaN"),
    ("FloatQuant", FORMAT, [X, ONE, f32(4), f32(3), f32(7), np.ones(2, f32)], r"max_val has shape .2,?.; expected one element"),
    ("MultiThreshold", {}, [X, np.ones(4, f32)], r"thresholds has shape .4,?.; expected two dimensions"),
    ("MultiThreshold", {}, [X, np.ones((3, 2), f32)], r"thresholds has shape .3, 2., x .2, 3, 4.; .* along axis 2"),
    ("MultiThreshold", {"data_layout": "NHWC"}, [X, np.ones((4, 2), f32)], r"thresholds has shape .4, 2., x .* along axis 3"),
    ("MultiThreshold", {}, [X[0, 0], np.ones((4, 2), f32)], r"thresholds has shape .4, 2., x .4,?.; .* along axis 1"),
    (LUT, TABLE, [X, np.ones(0, f32), np.ones(3, f32)], r"lut has shape .0,?.; expected at least one"),
    (LUT, TABLE, [X, np.ones(2, f32), np.ones(4, f32)], r"threshold has shape .4,?., x .2, 3, 4.; expected one"),
    (LUT, TABLE, [X, np.ones(2, f32), f32([1, 0, 1])], "threshold has an element that is not above 0"),
    (LUT, TABLE | {"channel_axis": 3}, [X, np.ones(2, f32), np.ones(4, f32)], "threshold has shape .4,?., x"),
    (LUT, OF_ONE, [X, np.ones(2, f32), np.ones(3, f32)], "threshold has shape .3,?., x .2, 3, 4.; expected one"),
    ("WeightsPOTQuantizer", OF_ONE, [X, np.ones(4, f32)], r"threshold has shape .4,?.; expected one element"),
    ("WeightsPOTQuantizer", TABLE, [X, np.ones((1, 3, 1), f32)], r"threshold has shape .1, 3, 1.; expected one element"),
    ("WeightsUniformQuantizer", OF_ONE, [X, ZERO, np.ones(4, f32)], r"max_range has shape .4,?.; expected one element"),
    ("WeightsPOTQuantizer", TABLE, [X, np.zeros(3, f32)], "expected a threshold above 0"),
    ("WeightsPOTQuantizer", TABLE, [X, np.ones(4, f32)], r"threshold has shape .*; expected one that broadcasts"),
    ("WeightsUniformQuantizer", TABLE, [X, np.ones(3, f32), np.zeros(3, f32)], "expected min below max"),
    ("ActivationUniformQuantizer", {"min_range": 1.0, "max_range": 1.0, "num_bits": 4}, [X], "expected min below max"),
    ("ActivationPOTQuantizer", {"threshold": 1.0, "signed": 1, "num_bits": 0}, [X], "expected a threshold above 0, and a bit"),
]  # fmt: skip
wrong_inputs = pytest.mark.parametrize(("operator", "attributes", "inputs", "message"), WRONG_INPUTS)


def node_of(operator, attributes, inputs):
    known = {each.name: each.domain for each in OF_DIALECTS}
    read = {each.name for each in OPERATORS.find(known[operator], operator).attributes}
    attributes = {name: each for name, each in attributes.items() if name in read}
    return Node(known[operator], operator, attributes, [np.asarray(each) for each in inputs])


@pytest.mark.compiled
@wrong_inputs
@pytest.mark.by_default(1)
def test_wrong_inputs_of_sessions(operator, attributes, inputs, message):
    """Wrong inputs raise an error in each run of a session, which goes on."""
    node = node_of(operator, attributes, inputs)
    made = session(node.model())
    for _ in range(2):
        with pytest.raises(Exception, match=rf"{node.domain}::{operator}: .*{message}"):
            made.run(None, node.feeds())


@infers
@pytest.mark.parametrize(("operator", "attributes", "inputs", "message"), [each for each in WRONG_INPUTS if "shape" in each[3]])
def test_wrong_shapes_of_shape_inference(operator, attributes, inputs, message):
    node = node_of(operator, attributes, inputs)
    assert_inference_refuses(node.model(shapes=[each.shape for each in node.inputs]), message)


OF_QUANT, WITH_TABLE = [X, ONE, ZERO, f32(8)], [X, np.ones(2, f32), np.ones(3, f32)]
LEARNED = {"rounding_mode": "learned_round"}
WRONG_ATTRIBUTES = [
    ("Quant", {"rounding_mode": "DPU"}, OF_QUANT, f"rounding_mode is 'DPU', which is refused, as QONNX does not .*; {MODES}"),
    ("IntQuant", LEARNED, OF_QUANT, "rounding_mode is 'learned_round', which is refused, as what was"),
    ("Trunc", {"rounding_mode": "STOCHASTIC_ROUND"}, [*OF_QUANT, f32(4)], "which is refused, as its result is random"),
    ("Quant", {"rounding_mode": "NEAREST"}, OF_QUANT, f"rounding_mode is 'NEAREST'; {MODES}"),
    ("MultiThreshold", {"data_layout": "NHW"}, [X, np.ones((1, 2), f32)], "data_layout is 'NHW'; expected a letter"),
    (LUT, TABLE | {"lut_values_bitwidth": 0}, WITH_TABLE, "lut_values_bitwidth is 0; expected 1..32"),
    (LUT, TABLE | {"lut_values_bitwidth": 33}, WITH_TABLE, "lut_values_bitwidth is 33; expected 1..32"),
]
wrong_attributes = pytest.mark.parametrize(("operator", "attributes", "inputs", "message"), WRONG_ATTRIBUTES)


@pytest.mark.parametrize(("operator", "attributes", "inputs", "message"), [*WRONG_INPUTS, *WRONG_ATTRIBUTES])
@pytest.mark.by_default(10)
def test_wrong_calls(operator, attributes, inputs, message):
    known = node_of(operator, attributes, inputs)
    with pytest.raises(ValueError, match=message):
        call(known._replace(inputs=inputs))


@pytest.mark.compiled
@wrong_attributes
def test_wrong_attributes_are_refused_at_load(operator, attributes, inputs, message):
    made = node_of(operator, attributes, inputs).model()
    made.graph.node[0].name = "culprit"
    with pytest.raises(Exception, match=rf"{message}.*node 'culprit'"):
        session(made)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("Quant", [X.astype(np.float16), ONE, ZERO, f32(8)]),
        ("Quant", [X, ONE, ZERO, np.uint8(8)]),
        ("Quant", [X, np.float16(1), ZERO, f32(8)]),
        ("MultiThreshold", [X, np.ones((1, 2), np.int32)]),
    ],
)
def test_wrong_types(operator, inputs):
    """ONNX Runtime refuses an x of another type when it loads the model, and the node another number when it runs."""
    node = node_of(operator, {}, inputs)
    with pytest.raises(Exception, match=operator):
        session(node.model()).run(None, node.feeds())
    assert_inference_refuses(node.model(), r"has element type (float16|uint8|int32); expected float32", check_type=True)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["FixedPerTensorAffine", "FakeQuantizeLearnablePerchannelAffine"])
def test_operators_of_mqbench_are_refused_by_name(name, tmp_path):
    """The operators of MQBench are refused by name, although they are in ONNX's own domain."""
    made = text_model(f"(float[] x, float[] s, int32[] z) => (float[] y) {{ y = {name} <quant_min = 0> (x, s, z) }}")
    with pytest.raises(quark_numba.ModelError, match=f"ai.onnx::{name}, which cannot run: it is a step of MQBench's export"):
        quark_numba.InferenceSession(made)
    onnx.save(made, tmp_path / "m.onnx")
    (counted,) = quantization_nodes(tmp_path / "m.onnx")
    assert (counted.operator, counted.run_by) == (f"ai.onnx::{name}", "nobody")
    assert "MQBench" in counted.why
