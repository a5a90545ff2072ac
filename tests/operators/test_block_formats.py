"""Block formats against the oracle: every configuration, rounding mode, type and axis, in calls and in sessions."""

import subprocess
import sys

import numpy as np
import oracle
import pytest
from block_samples import BFP, MX, SHAPES, axes, one_node, rounding_modes, values, x_types
from onnx import TensorProto, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx_models import assert_inference_refuses, infers, run, session
from paths import SUPPORT
from text_graphs import text_model

import quark_numba
from quark_numba import bfp_quantize, bfp_quantize_dequantize, mx_quantize, mx_quantize_dequantize
from quark_numba.block.operators import QUARK_OPERATORS


def check_call(call, expected, x_type, **attributes):
    for shape in SHAPES:
        x = values(shape, x_type)
        for axis in axes(shape):
            oracle.assert_same_bits(call(x, axis=axis, **attributes), expected(x, axis=axis, **attributes))


@x_types
@rounding_modes
@pytest.mark.parametrize("name", BFP)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_bfp(name, rounding_mode, x_type):
    check_call(bfp_quantize_dequantize, oracle.bfp, x_type, rounding_mode=rounding_mode, **BFP[name])


@x_types
@rounding_modes
@pytest.mark.parametrize("name", MX)
@pytest.mark.covering
@pytest.mark.by_default(1)
def test_mx(name, rounding_mode, x_type):
    check_call(mx_quantize_dequantize, oracle.mx, x_type, rounding_mode=rounding_mode, **MX[name])


@pytest.mark.parametrize("call", [bfp_quantize_dequantize, mx_quantize_dequantize, bfp_quantize, mx_quantize])
def test_names_of_rounding_modes(call):
    """The names mean the numbers in Quark's models. x has ties between whole numbers of steps, which are 1."""
    x = np.array([[64, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.3]], np.float32)

    def result(**given):
        made = call(x, **given)
        return b"".join(part.tobytes() for part in (made if isinstance(made, tuple) else [made]))

    of_numbers = [result(rounding_mode=number) for number in range(3)]
    assert [result(rounding_mode=name) for name in ("half_away", "half_upward", "half_even")] == of_numbers
    assert len(set(of_numbers)) == 3
    assert result() == of_numbers[0]
    assert result(rounding_mode="HALF_EVEN") == of_numbers[2]
    with pytest.raises(ValueError, match="rounding_mode is 'half_up'; expected 'half_away' or 'half_upward' or 'half_even'"):
        call(x, rounding_mode="half_up")
    with pytest.raises(TypeError, match=r"rounding_mode is 0.5; expected an integer"):
        call(x, rounding_mode=0.5)


def expected(operator, x, attributes):
    attributes = operator.values({}) | attributes
    return oracle.bfp(x, **attributes) if "bfp_method" in attributes else oracle.mx(x, **attributes)


operators = pytest.mark.parametrize("operator", QUARK_OPERATORS, ids=lambda operator: operator.full_name)
every_case = pytest.mark.parametrize(
    ("operator", "name"),
    [
        pytest.param(operator, name, marks=() if name in ("defaults", "BFP16", "MX9", "fp8_e4m3, 32") else pytest.mark.slow)
        for operator in QUARK_OPERATORS
        for name in ["defaults", *(BFP if "BFP" in operator.name else MX)]
    ],
    ids=lambda value: getattr(value, "name", value),
)
# The last two are large enough for several threads.
SESSION_SHAPES = [((), 1), ((7,), 1), ((0, 4), 0), ((2, 35, 4, 6), 1), ((3, 4, 100), -1)]
SESSION_SHAPES += [((8, 70, 20, 20), 1), ((301, 333), -1)]


@pytest.mark.compiled
@x_types
@every_case
@pytest.mark.covering
@pytest.mark.by_default(1, slow=24)
def test_sessions(operator, name, x_type):
    given = {} if name == "defaults" else (BFP | MX)[name]
    for shape, axis in SESSION_SHAPES:
        attributes = given | {"axis": axis}
        x = values(shape, x_type)
        oracle.assert_same_bits(run(session(one_node(operator, attributes, x_type)), x=x), expected(operator, x, attributes))


@pytest.mark.compiled
@operators
def test_sessions_of_extensions(operator):
    """The extensions backend needs every attribute in the node."""
    for shape, axis in SESSION_SHAPES:
        attributes = operator.values({}) | {"axis": axis}
        x = values(shape, "float32")
        node = session(one_node(operator, attributes), backend="extensions")
        oracle.assert_same_bits(run(node, x=x), expected(operator, x, attributes))


@x_types
@operators
@pytest.mark.by_default(1)
def test_reference_evaluator(operator, x_type):
    x = values((2, 35, 4, 6), x_type)
    evaluator = ReferenceEvaluator(one_node(operator, {"block_size": 4}, x_type), new_ops=quark_numba.reference_ops())
    (y,) = evaluator.run(None, {"x": x})  # onnx 1.17 has a bfloat16 of its own
    oracle.assert_same_bits(y.view(f"u{x.itemsize}").view(x.dtype), expected(operator, x, {"block_size": 4}))


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_beyond_the_axis(axis):
    x = values((3, 5000), "float32")
    expected = oracle.mx(x, element_dtype="int8", axis=axis, block_size=5000, rounding_mode=0)
    for block_size in (5000, 100_000, 2**62, 2**63 - 1):
        oracle.assert_same_bits(mx_quantize_dequantize(x, block_size=block_size, axis=axis), expected)
    attributes = {"bfp_method": "to_bfp_prime", "bit_width": 16, "axis": axis, "rounding_mode": 2, "sub_block_size": 1}
    y = bfp_quantize_dequantize(x, block_size=2**62, **attributes)
    oracle.assert_same_bits(y, oracle.bfp(x, block_size=5000, **attributes))


@pytest.mark.slow
@pytest.mark.compiled
def test_large_arrays():
    """Arrays that are large enough for several threads give the oracle's results."""
    for shape, axis in (((1000, 999), 0), ((1000, 999), 1), ((1000, 960), 1), ((4, 96, 50, 60), 1)):
        x = values(shape, "float32")
        expected = oracle.mx(x, element_dtype="int8", axis=axis, block_size=32, rounding_mode=0)
        oracle.assert_same_bits(mx_quantize_dequantize(x, axis=axis), expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_layouts(axis):
    x = values((2, 33, 5), "float32")
    with np.errstate(all="ignore"):
        y = oracle.mx(x, element_dtype="int8", axis=axis, block_size=32, rounding_mode=0)
    for array in (np.asfortranarray(x), x.astype(">f4"), np.repeat(x, 2, axis=1)[:, ::2], x[::-1][::-1], x.tolist()):
        result = mx_quantize_dequantize(array, axis=axis)
        oracle.assert_same_bits(result, y)
    assert mx_quantize_dequantize(np.asfortranarray(x)).flags.f_contiguous
    out = np.empty((5, 33, 2), np.float32).T
    assert mx_quantize_dequantize(x, axis=axis, out=out) is out
    oracle.assert_same_bits(out, y)
    both = x.copy()
    mx_quantize_dequantize(both, axis=axis, out=both)
    oracle.assert_same_bits(both, y)


PRIME = {"bfp_method": "to_bfp_prime"}
WRONG = [
    ("bfp", {"bfp_method": "to_bpf"}, "bfp_method is 'to_bpf'; expected 'to_bfp' or 'to_bfp_prime'"),
    ("bfp", {"bit_width": 9}, "bit_width is 9; expected 10"),
    ("bfp", {"bit_width": 25}, "bit_width is 25"),
    ("bfp", {"block_size": 0}, "block_size is 0; expected a positive"),
    ("bfp", {"block_size": -8}, "block_size is -8"),
    ("bfp", {"rounding_mode": 3}, "rounding_mode is 3; expected 0 or 1 or 2"),
    ("bfp", {"convert_to_bfloat_before_bfp": 2}, "convert_to_bfloat_before_bfp is 2; expected 0 or 1"),
    ("bfp", PRIME | {"sub_block_size": 3}, "sub_block_size is 3; expected one that divides block_size, 8"),
    ("bfp", PRIME | {"sub_block_size": 16}, "sub_block_size is 16"),
    ("bfp", PRIME | {"sub_block_size": 0}, "sub_block_size is 0"),
    ("bfp", PRIME | {"sub_block_shift_bits": 9}, "sub_block_shift_bits is 9"),
    ("bfp", PRIME | {"sub_block_shift_bits": -1}, "sub_block_shift_bits is -1"),
    ("mx", {"element_dtype": "fp8"}, "element_dtype is 'fp8'; expected 'fp8_e5m2' or"),
    ("mx", {"block_size": 0}, "block_size is 0"),
    ("mx", {"block_size": -(2**63)}, "block_size is -9223372036854775808; expected a positive"),
    ("mx", {"rounding_mode": -1}, "rounding_mode is -1"),
]
wrong = pytest.mark.parametrize(("kind", "attributes", "message"), WRONG)
FUNCTIONS = {"bfp": bfp_quantize_dequantize, "mx": mx_quantize_dequantize}


def operator_of(kind):
    return next(operator for operator in QUARK_OPERATORS if operator.name.lower().startswith(kind))


@wrong
def test_wrong_attributes_of_calls(kind, attributes, message):
    out = np.full((2, 16), 7, np.float32)
    with pytest.raises(ValueError, match=message):
        FUNCTIONS[kind](np.ones((2, 16), np.float32), out=out, **attributes)
    assert (out == 7).all()


@pytest.mark.compiled
@wrong
def test_wrong_attributes_of_sessions(kind, attributes, message):
    with pytest.raises(Exception, match=message):
        session(one_node(operator_of(kind), attributes))


@infers
@wrong
def test_wrong_attributes_of_shape_inference(kind, attributes, message):
    assert_inference_refuses(one_node(operator_of(kind), attributes, shape=[2, 16]), message)


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize(
    ("x", "arguments", "error", "message"),
    [
        (ONES, {"axis": 2}, ValueError, r"axis is 2, out of range for x of shape \(2, 3\)"),
        (ONES, {"axis": -3}, ValueError, "axis is -3, out of range"),
        (ONES, {"axis": 0.5}, TypeError, "axis is 0.5; expected an integer"),
        (ONES, {"block_size": "8"}, TypeError, "block_size is '8'; expected an integer"),
        (ONES, {"block_size": 2**64}, ValueError, "block_size is 18446744073709551616; expected a"),
        (ONES.astype(float), {}, TypeError, "x has element type float64; expected float32 or float16 or bfloat16"),
        (ONES, {"out": np.ones((3, 2), np.float32)}, ValueError, r"out has shape \(3, 2\)"),
        (ONES, {"out": np.ones((2, 3), np.float16)}, TypeError, "out has dtype float16"),
    ],
)
def test_wrong_arguments(kind, x, arguments, error, message):
    with pytest.raises(error, match=message):
        FUNCTIONS[kind](x, **arguments)


axes_out_of_range = pytest.mark.parametrize(("shape", "axis"), [((2, 3), 2), ((2, 3), -3), ((2, 3, 4), 7)])


@pytest.mark.compiled
@axes_out_of_range
@operators
def test_axis_out_of_range(operator, shape, axis):
    node = session(one_node(operator, {"axis": axis}))
    with pytest.raises(Exception, match=rf"{operator.name}: axis is {axis}, out of range for x of shape \({shape[0]}, 3"):
        run(node, x=np.ones(shape, np.float32))


@infers
@axes_out_of_range
@operators
def test_axis_out_of_range_in_shape_inference(operator, shape, axis):
    assert_inference_refuses(one_node(operator, {"axis": axis}, shape=shape), f"axis is {axis}, out of range")


@pytest.mark.compiled
@operators
def test_attributes_of_another_kind(operator):
    name = next(name for name, default in operator.values({}).items() if isinstance(default, str))
    for attributes in ({name: 3}, {"block_size": "8"}, {"axis": 1.5}):
        with pytest.raises(Exception, match=f"attribute {next(iter(attributes))}"):
            session(one_node(operator, attributes))


@infers
@operators
@pytest.mark.parametrize(
    "attributes", [{"axis": 1.5}, {"axis": "1"}, {"block_size": "8"}, {"block_size": 8.0}, {"block_size": [8]}]
)
def test_attributes_of_another_kind_in_shape_inference(operator, attributes):
    message = f"attribute {next(iter(attributes))} is a .*; expected INT"
    assert_inference_refuses(one_node(operator, attributes), message)


@infers
@operators
def test_shape_inference_of_what_is_not_known(operator):
    quark_numba.register_schemas()
    nodes = f"u = other.Mystery (x)  y = {operator.domain}.{operator.name} (u)"
    shape_inference.infer_shapes(text_model(f"(float[] x) => (float[] y) {{ {nodes} }}"))


@pytest.mark.slow
@pytest.mark.compiled
def test_threads_that_flush_subnormals():
    """Threads that flush subnormals give the same results. The first session of a process may make its threads flush them, and
    the caller's thread keeps this setting."""
    code = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import numpy as np
from block_samples import one_node
from onnx_models import run, session
from quark_numba import bfp_quantize_dequantize, mx_quantize_dequantize
from quark_numba.block.operators import QUARK_OPERATORS
x = np.zeros((4, 64), np.float32)
x[1] = 1
for operator in QUARK_OPERATORS:
    y = run(session(one_node(operator, {{}}), set_denormal_as_zero="1"), x=x)
    assert y.tolist() == x.tolist(), operator
for method in ("to_bfp", "to_bfp_prime"):
    assert bfp_quantize_dequantize(x, bfp_method=method).tolist() == x.tolist(), method
for element in ("fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8"):
    assert mx_quantize_dequantize(x, element_dtype=element).tolist() == x.tolist(), element
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@infers
@operators
def test_shape_inference(operator):
    quark_numba.register_schemas()
    inferred = shape_inference.infer_shapes(one_node(operator, {}, "float16", ["n", 3]), strict_mode=True)
    assert inferred.graph.output[0].type == inferred.graph.input[0].type
    assert_inference_refuses(one_node(operator, {}, "int8"), "x has element type int8; expected float32")
    assert inferred.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
