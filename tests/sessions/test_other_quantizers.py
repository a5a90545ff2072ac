"""Models that Brevitas, Model Compression Toolkit and ModelOpt wrote, as they are, in sessions of the native backend."""

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_models import array_of, model, ort_value, session, session_options
from oracle import assert_same_bits
from other_quantizers import HAS_SAME_SUMS, expectation, models_of, outputs_of, quantization_nodes
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba.cli import inventory
from quark_numba.errors import ModelError
from quark_numba.rewriting.optimize import rewrite_model

pytestmark = pytest.mark.compiled

# The largest difference from the vendor's outputs, for outputs of up to 1. MCT's runtime takes six digits of attributes.
TOLERANCES = {"qonnx": 1e-6, "mct": 1e-3, "nvidia": 1e-6}

# The models with ONNX's own DequantizeLinear in types that ONNX Runtime's CPU provider lacks.
NEEDS_FLOAT_QDQ = ("nvfp4_m",)


@pytest.mark.parametrize("path", models_of(*TOLERANCES), ids=lambda path: path.stem)
@pytest.mark.by_default(3)
def test_models(path):
    """Each quantization node gives the bits of the oracle for its inputs, and the model gives the vendor's outputs."""
    source = onnx.load(path)
    feeds, expected = expectation(path)
    options = {"qdq": "float" if path.stem in NEEDS_FLOAT_QDQ else "auto"}
    outputs = session(path, **options).run(None, feeds)
    tolerance = TOLERANCES[path.parent.name] if HAS_SAME_SUMS and not path.stem.endswith("_qcdq") else 0.1
    for y, y_of_vendor in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(y, y_of_vendor, rtol=0, atol=tolerance * max(1, np.nanmax(np.abs(y_of_vendor))))

    nodes = quantization_nodes(source)
    assert bool(nodes) != path.stem.endswith("_qcdq")
    known = {each.name: numpy_helper.to_array(each) for each in source.graph.initializer} | feeds
    seen = {name for node in nodes for name in (*node.input, *node.output)} - {*known}
    del source.graph.output[:]
    source.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(seen))
    if nodes:
        values = {name: ort_value(x) for name, x in feeds.items()}
        found = session(source, threads=1, **options).run_with_ort_values(sorted(seen), values)
        known |= dict(zip(sorted(seen), map(array_of, found), strict=True))
    for node in nodes:
        for name, y in zip(
            node.output, outputs_of(node, [known[each] for each in node.input], source.opset_import), strict=True
        ):
            assert_same_bits(known[name].view(y.dtype), y)  # models of ModelOpt say uint8 for float8e4m3fn


def test_a_model_that_needs_this_packages_qdq():
    """ONNX Runtime has no DequantizeLinear of float4e2m1. It says so, unless this package runs ONNX's own operators, or the
    session optimizes the model."""
    path = MODELS / "nvidia" / "nvfp4_m.onnx"
    with pytest.raises(Exception, match="Could not find an implementation for DequantizeLinear"):
        session(path)
    feeds, (expected,) = expectation(path)
    for threads in (1, 2):
        (y,) = quark_numba.InferenceSession(path, session_options(threads=threads)).run(None, feeds)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 if HAS_SAME_SUMS else 0.1)


@pytest.mark.parametrize(
    ("domain", "name", "why"),
    [
        ("qonnx.custom_op.general", "QuantLSTMCell", "nothing says what it computes"),
        ("onnx.brevitas", "QuantLSTMCell", "nothing says what it computes"),
        ("aimet.customop.cpu", "QcQuantizeOp", "it holds the address of an object in the process that made it"),
        ("trt", "TRT_FP4QDQ", "it is a step of ModelOpt's exporter"),
    ],
)
@pytest.mark.parametrize("where", ["graph", "subgraph", "function"])
def test_operators_that_run_nowhere(domain, name, why, where, tmp_path):
    """Operators that run nowhere are refused by name, with the reason. ONNX Runtime's own message names the operator."""
    node = helper.make_node(name, ["x"], ["y"], name="culprit", domain=domain)
    if where == "subgraph":
        inner = helper.make_graph([node], "inner", [], [helper.make_tensor_value_info("y", 1, None)])
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    refused = model([node], ["x", ("c", "bool", [])], ["y"], domains=[domain, "local"])
    if where == "function":
        opsets = [helper.make_opsetid(domain, 1)]
        refused.functions.append(helper.make_function("local", "F", ["x"], ["y"], [node], opsets))
        refused.graph.node[0].CopyFrom(helper.make_node("F", ["x"], ["y"], domain="local"))
    message = f"node 'culprit' is a {domain}::{name}, which cannot run: {why}"
    with pytest.raises(ModelError, match=re.escape(message)):
        quark_numba.InferenceSession(refused)
    with pytest.raises(Exception, match=name):
        session(refused)
    onnx.save(refused, tmp_path / "m.onnx")
    (counted,) = [each for each in inventory.quantization_nodes(tmp_path / "m.onnx") if each.operator == f"{domain}::{name}"]
    assert counted.run_by == "nobody"
    assert counted.why.startswith(why)
    if where == "graph":
        (left,) = rewrite_model(refused).left
        assert left[0] == f"{domain}::{name}"
        assert left[1].startswith(why)


def test_operators_that_a_library_runs():
    """Nothing is refused that ONNX Runtime runs, here as a function of the model that has the name."""
    known = text_model("""(float[2] x) => (float[2] y) { y = aimet.customop.cpu.QcQuantizeOp (x) }
        <domain: "aimet.customop.cpu", opset_import: ["" : 21]> QcQuantizeOp (x) => (y) { y = Identity (x) }""")
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(quark_numba.InferenceSession(known).run(None, {"x": x})[0], x)
