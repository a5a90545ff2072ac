"""Sessions of the extensions backend against the oracle, and beside operators of other packages."""

import re

import numpy as np
import oracle
import pytest
import samples
from onnx_models import one_node, run, session
from text_graphs import text_model

from quark_numba.element_types import find
from quark_numba.ort import extensions

onnxruntime_extensions = pytest.importorskip("onnxruntime_extensions")

pytestmark = pytest.mark.compiled

carried = [name for name in oracle.EXTENDED if extensions.carries(find(name))]
types = pytest.mark.parametrize("name", carried)
domains = pytest.mark.parametrize("domain", ["com.amd.quark", "com.vai.quantize"])


@domains
@types
def test_both_operators(name, domain):
    quantize = session(one_node("quantize", name, domain=domain), backend="extensions")
    dequantize = session(one_node("dequantize", name, domain=domain), backend="extensions")
    scale = np.float32(0.1)
    for zero_point in samples.zero_points(name):
        x = samples.floats(name, scale, zero_point)
        y = run(quantize, x=x, scale=scale, zero_point=zero_point)
        oracle.assert_same_bits(y, oracle.quantize(x, scale, zero_point, name))
        z = run(dequantize, x=y, scale=scale, zero_point=zero_point)
        oracle.assert_same_bits(z, oracle.dequantize(y, scale, zero_point, name))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)], ids=str)
def test_small_shapes(shape):
    node = session(one_node("quantize", "int8"), backend="extensions")
    assert run(node, x=np.ones(shape, np.float32), scale=np.float32(1), zero_point=np.int8(0)).shape == shape


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_axis_where_shapes_tell_the_axis(axis):
    shape = (5, 7, 3)
    scale = np.random.default_rng(10).uniform(0.01, 2, shape[axis]).astype(np.float32)
    zero_point = np.arange(shape[axis], dtype=np.int8)
    x = np.random.default_rng(11).normal(0, 50, shape).astype(np.float32)
    along = [oracle.along(values, axis, 3) for values in (scale, zero_point)]
    node = session(one_node("quantize", "int8", attributes={"axis": axis}), backend="extensions")
    y = run(node, x=x, scale=scale, zero_point=zero_point)
    oracle.assert_same_bits(y, oracle.quantize(x, *along, "int8"))


@pytest.mark.parametrize(
    ("x", "scale", "zero_point", "message"),
    [
        ((4, 4), (4,), (4,), r"axis is one of \[0, 1\]"),
        ((2, 3), (5,), (5,), r"y_scale has shape \(5,\); expected as many elements as x of shape \(2, 3\)"),
        ((2, 3), (3,), (), r"y_zero_point has shape \(\)"),
    ],
)
def test_a_fault_is_logged_and_the_output_empty(caplog, x, scale, zero_point, message):
    """A fault in a run is logged and gives an empty output, as an exception would end the process."""
    node = session(one_node("quantize", "int8"), backend="extensions")
    y = run(node, x=np.ones(x, np.float32), scale=np.ones(scale, np.float32), zero_point=np.zeros(zero_point, np.int8))
    assert y.shape == (0,)
    (record,) = caplog.records
    assert re.search(f"com.amd.quark::ExtendedQuantizeLinear: {message}.*; the output is left empty", record.message)


@pytest.mark.parametrize("name", sorted(set(oracle.EXTENDED) - set(carried)))
def test_other_types_are_refused_at_load(name):
    with pytest.raises(Exception, match=rf"Type 'tensor\({name}\)'.*ExtendedQuantizeLinear"):
        session(one_node("quantize", name), backend="extensions")


@pytest.mark.parametrize("name", ["float32", "int64", "int32"])
def test_numbers_of_any_type(name):
    """QKeras's zero points and bit widths are int64. A float16 would end the process, so that it is refused at load."""

    def made(*names):
        types = ", ".join(f"{each}[] {operand}" for each, operand in zip(names, ("zero_point", "bits"), strict=True))
        node = (
            'y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, scale, zero_point, bits)'
        )
        return session(text_model(f"(float[] x, float[] scale, {types}) => (float[] y) {{ {node} }}"), backend="extensions")

    text = {"float32": "float"}.get(name, name)
    x, expected = np.array([-9, 0.3, 9], np.float32), [-4.0, 0.5, 3.5]
    feeds = {"x": x, "scale": np.array(0.5, np.float32), "zero_point": np.zeros((), name), "bits": np.full((), 4, name)}
    assert made(text, text).run(None, feeds)[0].tolist() == expected
    with pytest.raises(Exception, match=r"Type 'tensor\(float16\)'"):
        made(text, "float16")


def test_a_missing_zero_point_is_refused_at_load():
    with pytest.raises(Exception, match=r"ExtendedQuantizeLinear.*input size 2 not in range"):
        session(one_node("quantize", "uint8", zero_point=False), backend="extensions")


def test_operators_of_others():
    @onnxruntime_extensions.onnx_op(op_type="test.domain::Twice", inputs=[onnxruntime_extensions.PyCustomOpDef.dt_float])
    def twice(x):
        return 2 * x

    text = """(float[] x, float[] scale, int8[] zero_point) => (int8[] y) {
        twice = test.domain.Twice (x)  y = ExtendedQuantizeLinear (twice, scale, zero_point)
    }"""
    both = session(text_model(text), backend="extensions")
    y = run(both, x=np.array([1, 2], np.float32), scale=np.float32(1), zero_point=np.int8(1))
    assert y.tolist() == [3, 5]


def test_outputs_go_back_as_arrays(monkeypatch):
    """The stock hook, which turns every output into a list of Python numbers, is not called."""
    calls = []
    monkeypatch.setattr(onnxruntime_extensions._ocos, "_on_pyop_invocation", lambda *arguments: calls.append(arguments))
    node = session(one_node("quantize", "uint8"), backend="extensions")
    assert run(node, x=np.ones(3, np.float32), scale=np.float32(0.5), zero_point=np.uint8(1)).tolist() == [3, 3, 3]
    assert not calls
