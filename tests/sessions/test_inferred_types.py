"""ONNX Runtime infers the types of all outputs in models that declare only those of the graph, as tools leave them that rewrite
graphs. No node runs."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import model, session, session_options
from oracle import assert_same_bits
from paths import MODELS
from required_attributes import REQUIRED
from text_graphs import text_model

import quark_numba
from quark_numba.catalog import OPERATORS
from quark_numba.ort import native

f32 = np.float32
NEWEST = [operator for domain in OPERATORS.domains for operator in OPERATORS.newest(domain)]

# Has a program instead of types.
NEWEST = [
    pytest.param(operator, marks=[] if operator.domain not in ("", "quark_numba") else pytest.mark.slow, id=operator.full_name)
    for operator in NEWEST
    if operator.family != "region"
]


def every_overload(operator, x_shape):
    """Return a model with a node for each overload of an operator, and the names of the overloads' types. Graph outputs are the
    shapes of the nodes' outputs, so that nothing says what type these have."""
    attributes = {name: value for name, value in REQUIRED.items() if name in operator.values(REQUIRED)}
    nodes, inputs, shapes, expected = [], [], [], set()
    for i, overload in enumerate(operator.overloads(lambda row: row.has_tensors())):
        typed = iter(overload.inputs)
        of_node = [next(typed) if each.is_homogeneous else operator.types[each.variable][0] for each in operator.inputs]
        given = {"output_dtype": overload.outputs[0].number} if operator.takes_type else {}
        names = [f"{i}_{k}" for k in range(len(of_node))]
        inputs += [
            helper.make_tensor_value_info(name, row.number, None if k else x_shape)
            for k, (name, row) in enumerate(zip(names, of_node, strict=True))
        ]
        outputs = [f"{i}_y{k}" for k in range(len(overload.outputs))]
        nodes.append(helper.make_node(operator.name, names, outputs, domain=operator.domain, **attributes | given))
        # ONNX Runtime has no Shape of types of fewer than 8 bits, but creates the nodes without one.
        for name in [names[0], *(name for name, row in zip(outputs, overload.outputs, strict=True) if row.bits >= 8)]:
            if name != names[0] or of_node[0].bits >= 8:
                nodes.append(helper.make_node("Shape", [name], [f"{name}_shape"]))
                shapes.append(helper.make_tensor_value_info(f"{name}_shape", onnx.TensorProto.INT64, None))
        expected.add(tuple(tuple(row.name for row in side) for side in overload))
    made = model(nodes, [], [], domains=[operator.domain] if operator.domain else [], opset=23)
    made.graph.input.extend(inputs)
    made.graph.output.extend(shapes)
    return made, expected


@pytest.mark.compiled
@pytest.mark.parametrize("x_shape", [("n", None, 96), (None, 1, None)])
@pytest.mark.parametrize("operator", NEWEST)
@pytest.mark.covering
def test_every_operator(operator, x_shape):
    made, expected = every_overload(operator, x_shape)
    options = session_options()
    options.add_session_config_entry(native.LISTS_NEEDS, "1")
    quark_numba.register(options, qdq="auto" if operator.domain else "float")
    with native.REGISTRY.listing_needs() as needs:
        onnxruntime.InferenceSession(made.SerializeToString(), options)
    assert {(need.inputs, need.outputs) for need in needs} == expected


CHAIN = """(float[n, 32] x, float s, float[32, 32] w) => (float[n, 32] y) {
    q = trt.TRT_FP8QuantizeLinear (x, s)  d = trt.TRT_FP8DequantizeLinear (q, s)  m = MatMul (d, w)
    q2 = trt.QuantizeLinear (m, s)  d2 = trt.DequantizeLinear (q2, s)
    a, b = trt.TRT_MXFP8DynamicQuantize (d2)  h = trt.TRT_MXFP8DequantizeLinear <output_dtype = 10> (a, b)
    y = Cast <to = 1> (h)
}"""


@pytest.mark.compiled
@pytest.mark.slow
def test_shapes_are_passed_on():
    """A type can be set only where the rank is known, so that one node needs the shapes that another one infers."""
    x, w = np.random.default_rng(0).normal(size=(2, 3, 32)).astype(f32)[0], np.eye(32, dtype=f32)
    made = text_model(CHAIN)
    feeds = {"x": x, "s": np.array(2.0**-6, f32), "w": w}
    (y,) = session(made).run(None, feeds)
    for name, number in (("q", 2), ("q2", 17)):  # uint8, and what it holds
        made.graph.value_info.append(helper.make_tensor_value_info(name, number, ["n", 32]))
    assert_same_bits(session(made).run(None, feeds)[0], y)
    assert np.abs(y - x).max() < 0.2


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["bytes", "path"])
def test_a_model_without_declarations(kind, tmp_path):
    """Tools drop what ModelOpt declares: uint8 for codes of float8. Providers can be set anew."""
    made = onnx.load(MODELS / "nvidia" / "fp8_m.onnx")
    assert any(value.type.tensor_type.elem_type == onnx.TensorProto.UINT8 for value in made.graph.value_info)
    with np.load(MODELS / "nvidia" / "fp8_expected.npz") as expected:
        feeds = {made.graph.input[0].name: expected["x"]}
    y = session(made).run(None, feeds)[0]
    del made.graph.value_info[:]
    onnx.save(made, tmp_path / "model.onnx")
    without = session(made if kind == "bytes" else tmp_path / "model.onnx")
    assert_same_bits(without.run(None, feeds)[0], y)
    without.set_providers(["CPUExecutionProvider"])
    assert_same_bits(without.run(None, feeds)[0], y)
