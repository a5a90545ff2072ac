"""The catalog, and the support that an operator has by its declaration alone."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import toy_family
from paths import ROOT, SUPPORT
from processes import run

import quark_numba
from quark_numba.catalog import OPERATORS, Catalog
from quark_numba.declaration import BlockRoundTrip, DynamicQuantize, FakeQuantize
from quark_numba.dialects import quark
from quark_numba.element_types import FLOAT32, find
from quark_numba.fake_quantization.key import FORMS

PACKAGE = Path(quark_numba.__file__).parent


def test_an_operator_comes_once():
    first, *_ = OPERATORS
    with pytest.raises(ValueError, match=f"{first.full_name}-{first.since_version} comes twice, or after a later version"):
        Catalog([first, first])


def test_documentation_names_the_quantizer_of_the_operator():
    """Operators of ONNX and of other quantizers are not documented by Quark."""
    domains = {operator.domain for operator in OPERATORS if "AMD Quark" in operator.doc}
    assert domains == {*quark.DOMAINS}


def test_versions_come_in_order():
    versions = OPERATORS.versions(OPERATORS.find("", "QuantizeLinear"))
    with pytest.raises(ValueError, match=r"ai\.onnx::QuantizeLinear-25 comes twice, or after a later version"):
        Catalog(reversed(versions))


@pytest.mark.parametrize("operator", [*OPERATORS], ids=lambda each: f"{each.full_name}-{each.since_version}")
def test_what_a_node_means(operator):
    """A meaning has the scale and zero point by their names, in any place. Operators that round inside have no meaning."""
    if operator.meaning is None:
        assert not any(other.meaning for other in OPERATORS if other.family == operator.family)
        return
    inputs = {parameter.name: Input(parameter.name, operator.types[parameter.variable][-1]) for parameter in operator.inputs}
    required = {each.name: 1 for each in operator.attributes if each.default is None}
    if "form" in required:
        required["form"] = "bipolar"  # its only parameter stands for all inputs after x
    meaning = operator.meaning([*inputs.values()], operator.values(required))
    assert meaning.x is inputs["x"]
    if isinstance(meaning, FakeQuantize):
        assert set(meaning.parameters) == set(FORMS[meaning.form].parameters)
        assert set(inputs.values()) - {meaning.x} <= set(meaning.parameters.values())
        return
    if operator.operation == "round":
        newest = OPERATORS.find("com.amd.quark", meaning.operator)
        assert not newest.newer_name
        assert newest.values({}) == meaning.attributes
        assert meaning.format in ("bfp16", "mxint8")
        assert meaning.bits == pytest.approx({"bfp16": 8 + 8 / 8, "mxint8": 8 + 8 / 32}[meaning.format])
        return
    scale = next((each for name, each in inputs.items() if name.endswith("scale")), None)
    if isinstance(meaning, BlockRoundTrip | DynamicQuantize):
        own = OPERATORS.find("quark_numba", getattr(meaning, "round_trip", getattr(meaning, "operator", None)))
        kind = {1: "BlockRoundTrip", 2: "DynamicQuantize"}[len(operator.outputs)]
        assert (type(meaning).__name__, own.family) == (kind, operator.family)
        assert (meaning.axis, meaning.block_size) == (-1, {"nvfp4": 16, "mxfp8": 32}[next(iter(operator.formats))])
        if len(operator.outputs) == 2:
            assert (meaning.scale, meaning.element_type) == (scale, operator.types[operator.outputs[0].variable][0])
        else:
            assert (own, meaning.attributes) == (operator, operator.values({}))
            assert meaning.bits == {"nvfp4": 4 + 8 / 16, "mxfp8": 8 + 8 / 32}[meaning.format]
        return
    zero_point = next((each for name, each in inputs.items() if name.endswith("zero_point")), None)
    element_type = (zero_point or inputs["x"]).element_type
    if operator.domain == "trt":
        element_type = find("float8e4m3fn")  # also if tensors say uint8
    assert (meaning.scale, meaning.zero_point, meaning.element_type) == (scale, zero_point, element_type)
    kinds = {"quantize": "Quantize", "dequantize": "Dequantize", "quantize_dequantize": "RoundTrip"}
    assert type(meaning).__name__ == kinds[operator.operation]
    for name, other in (("axis", -2), ("block_size", 4), ("saturate", 0), ("precision", 1), ("output_dtype", 1)):
        if name not in operator.values({}):
            continue
        given = operator.values({name: other})
        if name == "output_dtype" and operator.operation == "quantize":
            with pytest.raises(ValueError, match="output_dtype is 1; expected the zero point's type, "):
                operator.meaning([*inputs.values()], given)
            continue
        changed = operator.meaning([*inputs.values()], given)
        expected = {"saturate": False, "precision": FLOAT32, "output_dtype": FLOAT32}.get(name, other)
        assert getattr(changed, {"precision": "computes_in", "output_dtype": "computes_in"}.get(name, name)) == expected


class Input(NamedTuple):
    """An operand with a known type."""

    name: str
    element_type: object
    array: object = None


def test_older_names_are_those_of_operators():
    older = [each for each in OPERATORS if each.newer_name]
    assert older
    for each in older:
        named = [other for other in OPERATORS if (other.name, other.newer_name) == (each.newer_name, "")]
        assert any((newer.family, newer.operation) == (each.family, each.operation) for newer in named)


def test_nothing_asks_for_the_class_of_an_operator():
    """No module lists operators by their names either, except where they are declared and rewritten."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        assert not re.search(r"isinstance\([^)]*\b(Operator|Version)\b", source), path
        declares = path.parent.name == "dialects" or (path.parent / "kernels.py").exists()
        if not declares and path.name != "renamed_operators.py":
            assert not re.search(r'"(Vitis|Extended)?(Quantize|Dequantize)Linear"', source), path


def assert_families_are_in_their_places(root, families):
    """A family has a folder, a module in ort/nodes, and a row in the map. The catalog and the layers name it."""
    package = root / "quark_numba"
    settings, page = (path.read_text(encoding="utf-8") for path in (root / "pyproject.toml", package / "README.md"))
    layers = re.search(r'name = "layers"\n.*?layers = \[(.*?)\]', settings, re.DOTALL)[1]
    assert {path.parent.name for path in package.glob("*/kernels.py")} == families
    assert {path.stem for path in (package / "ort" / "nodes").glob("*.py")} - {"__init__", "context"} == families
    assert {*re.findall(r"^\| `quark_numba/(\w+)/` \| family: ", page, re.MULTILINE)} == families
    assert families <= {*re.findall(r"\w+", layers)}


def test_families_are_in_their_places():
    assert_families_are_in_their_places(ROOT, {operator.family for operator in OPERATORS})


@pytest.mark.slow
@pytest.mark.compiled
def test_a_new_family(tmp_path):
    """Two places have the code of a family, and three name it. The layers hold, and a session runs its operator."""
    toy_family.add_to_copy(ROOT, tmp_path)
    assert_families_are_in_their_places(tmp_path, {"toy", *(operator.family for operator in OPERATORS)})
    assert len(toy_family.LINES) == 3
    checked = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"], cwd=tmp_path
    )
    assert checked.returncode == 0
    code = f"""
import numpy as np, onnxruntime, quark_numba
from text_graphs import text_model
made = text_model("(float[2, 3] x) => (float[2, 3] y) {{ y = toy.Mix (x, x, x) }}")
options = onnxruntime.SessionOptions()
quark_numba.register(options)
session = onnxruntime.InferenceSession(made.SerializeToString(), options)
x = np.ones((2, 3), np.float32)
assert quark_numba.__file__.startswith({str(tmp_path)!r})
assert session.run(None, {{"x": x}})[0].tolist() == (3 * x + 0.5).tolist()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(SUPPORT)])}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)


PREPARE_TOY = """
import toy_family
toy_family.add()
from onnx import checker, helper, shape_inference
from onnx.reference import ReferenceEvaluator
from text_graphs import text_model, text_nodes

x = np.arange(6, dtype=np.float32).reshape(2, 3)

def spread(attributes=""):
    node = f"y, total = toy.SpreadQuantizeLinear {attributes} (x)"
    return text_model(f"(float[n, 3] x) => (float[n, 3] y, float[1] total) {{ {node} }}")

def mix(attributes=""):
    return text_model(f"(float[2, 3] x) => (float[2, 3] y) {{ y = toy.Mix {attributes} (x, x, x) }}")
"""


@pytest.mark.compiled
def test_a_new_operator_in_sessions():
    """The native backend runs the operator with defaults and other values of attributes, two outputs, lists, and any number of
    inputs, and reports its fault. The extensions backend needs the attribute in the node, and has no lists."""
    run(
        PREPARE_TOY
        + """
import importlib.util
for attributes, factor in (("", 2), ("<factor = 0.5>", 0.5)):
    y, total = session(spread(attributes)).run(None, {"x": x})
    assert y.tolist() == (x * factor).tolist() and total.tolist() == [15 * factor]
for attributes, offset in (("", 0.5), ("<offsets = [4.0]>", 4)):
    (y,) = session(mix(attributes)).run(None, {"x": x})
    assert y.tolist() == (3 * x + offset).tolist()
scalar = spread()
for value in (*scalar.graph.input, *scalar.graph.output):
    value.type.tensor_type.ClearField("shape")
try:
    session(scalar).run(None, {"x": np.array(1, np.float32)})
except Exception as error:
    assert "toy::SpreadQuantizeLinear: x has shape (); expected a dimension" in str(error), error
else:
    raise AssertionError
try:
    session(spread("<factor = 3>"))
except Exception as error:
    assert "attribute factor" in str(error) and "expected FLOAT" in str(error), error
else:
    raise AssertionError
if importlib.util.find_spec("onnxruntime_extensions"):
    y, total = session(spread("<factor = 0.5>"), backend="extensions").run(None, {"x": x})
    assert y.tolist() == (x * 0.5).tolist() and total.tolist() == [7.5]
"""
    )


def test_a_new_operator_in_onnxs_tools():
    run(
        PREPARE_TOY
        + """
from onnx_models import INFERS
quark_numba.register_schemas()
for made in (spread(), mix()):
    checker.check_model(made, full_check=True)
made = spread()
for value in made.graph.output:
    value.type.tensor_type.ClearField("shape")
if INFERS:
    shapes = [value.type.tensor_type.shape.dim for value in shape_inference.infer_shapes(made).graph.output]
    assert [[d.dim_param or d.dim_value for d in shape] for shape in shapes] == [["n", 3], [1]]
new_ops = quark_numba.reference_ops()
y, total = ReferenceEvaluator(spread("<factor = 0.5>"), new_ops=new_ops).run(None, {"x": x})
assert y.tolist() == (x * 0.5).tolist() and total.tolist() == [7.5]
(y,) = ReferenceEvaluator(mix(), new_ops=new_ops).run(None, {"x": x})
assert y.tolist() == (3 * x + 0.5).tolist()
"""
    )


@pytest.mark.slow
def test_a_new_operator_in_models():
    """The inventory and the table of types list the operator, and `optimize` folds its constant nodes."""
    run(
        PREPARE_TOY
        + """
import tempfile, onnx
from quark_numba import optimize, to_tensor_proto
from quark_numba.cli import inventory, types
with tempfile.TemporaryDirectory() as folder:
    onnx.save(spread(), folder + "/m.onnx")
    (counted,) = inventory.quantization_nodes(folder + "/m.onnx")
assert (counted.operator, counted.element_type, counted.count, counted.run_by) == (
    "toy::SpreadQuantizeLinear", "float32", 1, "quark_numba"
)
assert "toy::SpreadQuantizeLinear" in [row["operator"] for row in types.type_rows()]
constant = spread()
del constant.graph.input[:]
constant.graph.initializer.append(to_tensor_proto(x, "x"))
constant.graph.node.extend(text_nodes("z = toy.Mix (y, total)  w = Relu (z)"))
del constant.graph.output[:]
constant.graph.output.append(helper.make_tensor_value_info("w", 1, [2, 3]))
assert [node.op_type for node in optimize(constant).graph.node] == ["Relu"]
from quark_numba.cli import warmup
assert "toy" not in warmup._families_of_one_kernel()
"""
    )


PREPARE_DIALECT = '''
import tempfile, onnx
import toy_dialect
toy_dialect.add()
from onnx import checker
from onnx.reference import ReferenceEvaluator
from onnx_models import session
from text_graphs import text_model

rng = np.random.default_rng(50)
x, w = rng.normal(0, 2, (2, 3, 5, 5)).astype(np.float32), rng.normal(0, 2, (3, 3, 1, 1)).astype(np.float32)
steps = np.array([0.1, 0.3, 0.02], np.float32)

def expected(x, bits, axis):
    step = steps.reshape([3 if each == axis else 1 for each in range(x.ndim)])
    highest = np.float32(2 ** (bits - 1) - 1)
    return np.rint(np.clip(x / step, -highest, highest)) * step

text = """(float[2, 3, 5, 5] x) => (float[2, 3, 5, 5] a, float[2, 3, 5, 5] y) {
    a = toy.steps.LearnedStep <axis = 1, bits = 4> (x, steps)  b = toy.steps.LearnedStep (w, steps)
    c = Conv (a, b)  d = Add (c, c)  y = toy.steps.LearnedStep <bits = 16> (d, step)
}"""
made = text_model(text, w=w, steps=steps, step=steps[:1])

def check(outputs):
    a, y = outputs
    assert a.tobytes() == expected(x, 4, 1).tobytes()
    d = 2 * np.einsum("nchw,kc->nkhw", a, expected(w, 8, 0)[:, :, 0, 0])
    np.testing.assert_allclose(y, np.rint(d / steps[0]) * steps[0], atol=steps[0] * 1.01)
'''


@pytest.mark.slow
@pytest.mark.compiled
def test_a_new_dialect_in_sessions():
    """A dialect of one operator is a file and a line: its nodes run as they are, fold, and become steps of regions."""
    run(
        PREPARE_DIALECT
        + """
check(session(made).run(None, {"x": x}))
optimized = quark_numba.optimize(made)
assert [node.op_type for node in optimized.graph.node] == ["Region", "Conv", "Region"]
check(session(optimized).run(None, {"x": x}))
check(quark_numba.InferenceSession(made).run(None, {"x": x}))
"""
    )


@pytest.mark.slow
def test_a_new_dialect_in_onnxs_tools():
    run(
        PREPARE_DIALECT
        + """
quark_numba.register_schemas()
checker.check_model(made, full_check=True)
check(ReferenceEvaluator(made, new_ops=quark_numba.reference_ops()).run(None, {"x": x}))
from quark_numba.cli import inventory, types
with tempfile.TemporaryDirectory() as folder:
    onnx.save(made, folder + "/m.onnx")
    (counted,) = inventory.quantization_nodes(folder + "/m.onnx")
assert (counted.operator, counted.count, counted.run_by) == ("toy.steps::LearnedStep", 3, "quark_numba")
assert "toy.steps::LearnedStep" in [row["operator"] for row in types.type_rows()]
"""
    )
