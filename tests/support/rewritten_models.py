"""Models to rewrite, and the comparison of a model's values before and after."""

import ctypes
import functools
import math

import numpy as np
import onnx
import onnxruntime
import oracle
from onnx import helper
from onnx_models import OPERATORS, ort_value, session

from quark_numba import to_tensor_proto
from quark_numba.element_types import find
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model

VARIANTS = ("bf16", "fp16", "i32", "u32", "bfp16", "mx9", "mxfp8")
X = np.random.default_rng(40).normal(0, 3, (2, 4, 6)).astype(np.float32)
Q, DQ = "ExtendedQuantizeLinear", "ExtendedDequantizeLinear"


# A session that runs every node by itself, so that ONNX Runtime computes the same floats for both models.
exact_session = functools.partial(session, level="DISABLE_ALL", threads=0)


def names_of(graph):
    return {output for node in graph.node for output in node.output} | {each.name for each in graph.initializer}


def with_outputs(source, names):
    """Return a copy of the model that also has these values as outputs."""
    result = onnx.ModelProto()
    result.CopyFrom(source)
    present = {output.name for output in result.graph.output}
    result.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in present)
    return result


def content(value):
    """Return all bytes of an OrtValue of any element type."""
    bits = find(value.element_type()).bits
    return ctypes.string_at(value.data_ptr(), -(-math.prod(value.shape()) * bits // 8))


def assert_same_values(before, after, feeds, content=content, **options):
    """Assert that all values that both models have, the graph's outputs included, have an equal content. Return their names."""
    assert [each.name for each in before.graph.output] == [each.name for each in after.graph.output]
    produced = {output for node in before.graph.node for output in node.output}
    names = sorted(produced & names_of(after.graph))
    results = []
    for source in (before, after):
        node_session = exact_session(with_outputs(source, names), **options)
        inputs = [each.name for each in node_session.get_inputs()]
        values = {name: _value(np.asarray(feeds[name])) for name in inputs}
        outputs = node_session.run_with_ort_values(names, values)
        results.append([content(value) for value in outputs])
    for name, *values in zip(names, *results, strict=True):
        assert values[0] == values[1], name
    return names


def assert_rewritten(before, expected, feeds, session_qdq="auto", **options):
    """Assert that `optimize` makes a model of the expected operators, in which all values that both models have are equal, in
    sessions of `session_qdq`. Return its result."""
    result = rewrite_model(before, Settings(**options))
    assert operators(result.model) == expected
    assert_same_values(before, result.model, feeds, qdq=session_qdq)
    return result


def _value(array):
    return ort_value(array) if find(array.dtype) else onnxruntime.OrtValue.ortvalue_from_numpy(array)


def constant(name, value, dtype=None):
    return to_tensor_proto(np.asarray(value, dtype), name)


def floats(**values):
    """Return float32 initializers by their names."""
    return [constant(name, value, np.float32) for name, value in values.items()]


def pair(x="x", codes="codes", y="y", parameters=("scale", "zero_point"), domain="com.amd.quark", **attributes):
    own = domain if domain.startswith("com.") and domain != "com.microsoft" else ""
    names = OPERATORS[own, "quantize"], OPERATORS[own, "dequantize"]
    return [
        helper.make_node(names[0], [x, *parameters], [codes], domain=domain, **attributes),
        helper.make_node(names[1], [codes, *parameters], [y], domain=domain, **attributes),
    ]


def scale_and_zero_point(name="int8", scale=0.25, zero_point=0):
    return [constant("scale", scale, np.float32), constant("zero_point", zero_point, oracle.dtype(name))]


def operators(source):
    return [node.op_type for node in source.graph.node]
