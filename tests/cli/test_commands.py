"""The command: its reports, in tables and in JSON, and its refusals."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from onnx import helper
from onnx_models import model, one_node, parsed
from paths import MODELS, ROOT
from processes import python
from textline import BF16, EXPECTED, FLOAT, path_of

from quark_numba import cli
from quark_numba.catalog import OPERATORS
from quark_numba.cli import inventory, measuring, types

pytestmark = pytest.mark.compiled


def test_run_with_reference(terminal):
    text = terminal.text("run", BF16, "--reference", FLOAT, "--data", EXPECTED, "--threads", "2", "--runs", "2")
    for expected in ("com.amd.quark::ExtendedQuantizeLinear", "bfloat16", "258", "median latency", "SQNR, dB", "ratio"):
        assert expected in text


def test_models_that_nobody_runs(terminal, tmp_path):
    """The table of nodes has the operator that keeps a model from loading."""
    onnx.save(model(["y = com.vai.quantize.FixNeuron (x)"], ["x"], ["y"]), tmp_path / "m")
    assert re.search(r"FixNeuron +│ \? +│ +1 │ nobody", terminal.text("run", tmp_path / "m", code=1))


def test_domains_that_nobody_has(tmp_path):
    """Nobody runs operators of unknown domains, even if their names are those of quantization operators, or if they are in
    local functions."""
    nodes = ["u = trt.DequantizeLinear (x, s)", "v = com.foo.QuantizeLinear (u, s)", "w = com.microsoft.QuantizeLinear (u, s)"]
    counted = model([*nodes, "t = com.microsoft.Gelu (u)", "y = Relu (u)", "z = local.F (u)"], ["x"], ["y"])
    counted.functions.append(helper.make_function("local", "F", ["x"], ["y"], parsed("y = odd.Odd (x)"), []))
    onnx.save(counted, tmp_path / "m.onnx")
    assert {n.operator: n.run_by for n in inventory.quantization_nodes(tmp_path / "m.onnx")} == {
        "trt::DequantizeLinear": "nobody",
        "com.foo::QuantizeLinear": "nobody",
        "odd::Odd": "nobody",
        "com.microsoft::QuantizeLinear": "ONNX Runtime",
    }


def test_models_of_block_formats(terminal):
    text = terminal.text("run", path_of("mxfp8"), "--data", EXPECTED, "--runs", "3")
    assert re.search(r"MXQuantizeDequantize +│ mxfp8_e4m3 +│ +291 │ quark_numba", text)


@pytest.mark.parametrize(
    ("name", "row"),
    [("tagger_u16", r"ExtendedLSTM +│ uint16 +│ +2"), ("style_bf16", r"ExtendedInstanceNormalization +│ bfloat16 +│ +11")],
)
@pytest.mark.slow
def test_models_of_other_operators(name, row, terminal):
    assert re.search(rf"{row} │ quark_numba", terminal.text("run", str(MODELS / f"{name}.onnx"), "--runs", "2"))


def test_formats_of_nodes_that_do_not_say(tmp_path, capsys, terminal):
    """Nodes without a format have the default one. If a function leaves the format to its caller, it is unknown."""
    (node,) = parsed("y = com.amd.quark.MXQuantizeDequantize (x)")
    onnx.save(model([node], ["x"], ["y"]), tmp_path / "m")
    assert re.search(r"MXQuantizeDequantize +│ mxint8 +│ +1 │ quark_numba", terminal.text("run", tmp_path / "m", "--runs", "1"))
    for name in ("element_dtype", "block_size"):
        attribute = node.attribute.add()
        attribute.name, attribute.ref_attr_name = name, "outer"
        attribute.type = onnx.AttributeProto.STRING if name == "element_dtype" else onnx.AttributeProto.INT
    body = helper.make_function("local", "F", ["x"], ["y"], [node], [helper.make_opsetid("com.amd.quark", 1)], ["outer"])
    whole = model(["y = local.F (x)"], ["x"], ["y"])
    whole.functions.append(body)
    onnx.save(whole, tmp_path / "f")
    cli.main(["run", str(tmp_path / "f")])
    assert re.search(r"MXQuantizeDequantize +│ \? +│ +1 │ quark_numba", capsys.readouterr().out)


def test_inputs_go_by_name(terminal, tmp_path):
    """Models that declare their inputs in another order get the same arrays."""
    inputs = [(name, "float32", [1000]) for name in "ab"]
    onnx.save(model(["y = Sub (a, b)"], inputs, ["y"]), tmp_path / "ab.onnx")
    onnx.save(model(["y = Sub (a, b)"], inputs[::-1], ["y"]), tmp_path / "ba.onnx")
    report = terminal.report("run", tmp_path / "ab.onnx", "--reference", tmp_path / "ba.onnx")
    assert report["reference"]["outputs"][0]["sqnr_db"] == "inf"


def test_json(terminal):
    report = terminal.report("run", BF16, "--reference", FLOAT, "--data", EXPECTED, "--runs", "3")
    assert report["nodes"] == [
        {"operator": f"com.amd.quark::{name}", "element_type": "bfloat16", "count": 258, "run_by": "quark_numba"}
        for name in ("ExtendedDequantizeLinear", "ExtendedQuantizeLinear")
    ]
    reference = report["reference"]
    assert reference["latency_ratio"] == report["median_seconds"] / reference["median_seconds"]
    with np.load(EXPECTED) as arrays:
        y, expected = arrays["bf16"].astype(float), arrays["float"].astype(float)
    (output,) = reference["outputs"]
    assert output["sqnr_db"] == pytest.approx(10 * np.log10((expected**2).sum() / ((y - expected) ** 2).sum()), abs=0.1)
    assert output["largest_difference"] == pytest.approx(np.abs(y - expected).max(), abs=1e-3)


def test_a_model_is_its_own_reference(terminal):
    (output,) = terminal.report("run", FLOAT, "--reference", FLOAT, "--dim", "?=48", "--runs", "1")["reference"]["outputs"]
    assert (output["sqnr_db"], output["largest_difference"]) == ("inf", 0)


@pytest.mark.parametrize("dimensions", [["x[0]=2", "?=48"], ["x[0]=2", "x[2]=48", "x[3]=64"]])
def test_dimensions(terminal, dimensions):
    arguments = [argument for dimension in dimensions for argument in ("--dim", dimension)]
    shape = terminal.report("run", BF16, *arguments, "--runs", "1")["inputs"]["x"]["shape"]
    assert shape == [2, 3, 48, 64 if "x[3]=64" in dimensions else 48]


def test_info(terminal):
    report = terminal.report("info")
    assert report["onnxruntime"] == onnxruntime.__version__
    assert report["backend"] == "native"
    assert onnxruntime.__version__ in terminal.text("info")


def test_types(terminal):
    rows = {(row["operator"], row["type"]): row for row in terminal.report("types")}
    formats = {kind for operator, kind in rows if operator.endswith("QuantizeDequantize")}
    assert formats == {*oracle.MX_ELEMENTS, "to_bfp", "to_bfp_prime", "to_bfp_prime_shared", "nvfp4", "mxfp8"}
    assert rows["quark_numba::Region", "float32"]["native"]
    assert rows["qonnx.custom_op.general::Quant", "integers"]["native"]
    linear = {operator.full_name for operator in OPERATORS if operator.family == "linear"}
    assert {kind for operator, kind in rows if operator in linear} == set(oracle.TYPES)
    float4 = rows["ai.onnx::QuantizeLinear", "float4e2m1"]
    assert float4["scales"] == {"float32": 23, "float16": 23, "bfloat16": 23, "int32": 23, "float8e8m0": 24}
    assert [float4[way] for way in ("arrays", "native", "extensions")] == [True, True, False]
    extended = rows["com.amd.quark::ExtendedDequantizeLinear", "int16"]
    assert extended["scales"] == {"float32": 1}
    assert [extended[way] for way in ("arrays", "native", "extensions")] == [True, True, True]
    assert "float6e2m3" in terminal.text("types")


def test_readme_has_the_tables_of_types():
    readme = (ROOT / "quark_numba" / "element_types" / "README.md").read_text(encoding="utf-8")
    for operator, columns, rows in types.type_tables():
        lines = ["| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows]]
        assert f"{operator}:\n\n" + "\n".join(lines) in readme


@pytest.mark.parametrize(
    "arguments",
    [[], ["run"], ["run", BF16, "--dim", "x"], ["run", BF16, "--threads", "0"], ["go"]]
    + [["run", BF16, "--threads", "x"], ["run", BF16, "--dim", "n=1", "--data", EXPECTED]],
)
def test_wrong_arguments(terminal, arguments):
    assert "usage: quark-numba" in terminal.refusal(*arguments)


@pytest.fixture
def files(tmp_path):
    """Return a folder with files that the command refuses."""
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    np.savez(tmp_path / "shape.npz", x=np.zeros(3, np.float32))
    np.savez(tmp_path / "dtype.npz", x=np.zeros((1, 3, 48, 48)))
    (tmp_path / "truncated.onnx").write_bytes(Path(BF16).read_bytes()[:1000])
    (tmp_path / "truncated.npz").write_bytes(Path(EXPECTED).read_bytes()[:1000])
    np.save(tmp_path / "one.npy", np.zeros(3))
    onnx.save(one_node("quantize", "bfloat16"), tmp_path / "bfloat16.onnx")
    onnx.save(one_node("quantize", "uint8"), tmp_path / "other_inputs.onnx")
    axis = one_node("quantize", "uint8")
    for node_input, length in zip(axis.graph.input, (None, 3, 3), strict=True):
        node_input.type.tensor_type.shape.dim.add(dim_value=length)
    onnx.save(axis, tmp_path / "axis.onnx")
    (tmp_path / "text.npz").write_text("text")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/none.onnx"], "none.onnx: No such file"),
        (["[/red]"], r"\[/red\]: No such file"),
        (["{}/truncated.onnx"], "truncated.onnx: not an ONNX model"),
        ([BF16, "--reference", "{}/none.onnx"], "none.onnx: No such file"),
        ([str(MODELS)], "models: (Is a directory|Permission denied)"),
        ([BF16, "--data", "{}/none.npz"], "none.npz: No such file"),
        (["{}/other_inputs.onnx", "--data", "{}/one.npy"], "one.npy: one array; expected an .npz file with x, scale"),
        ([BF16, "--data", "{}/truncated.npz"], "truncated.npz: not a file of numbers"),
        ([BF16, "--dim", "x[0]=99999999999999"], r"input x of shape \[99999999999999, 3, 1, 1\]"),
        ([BF16, "--dim", "?=48", "--reference", "{}/other_inputs.onnx"], "the reference has an input scale; the model has x"),
        (["{}/axis.onnx", "--dim", "x[0]=2"], "ExtendedQuantizeLinear: axis is 1, out of range"),
        ([BF16, "--data", "{}/text.npz"], "text.npz: not a file of numbers"),
        ([BF16, "--data", "{}/other.npz"], "no array named x; it has other"),
        ([BF16, "--data", "{}/shape.npz"], r"shape.npz: input x has shape \(3,\); the model takes"),
        ([BF16, "--data", "{}/dtype.npz"], "dtype.npz: input x is float64; the model takes"),
        ([BF16, "--dim", "n=3"], r"no free dimension is named n; the model has: x\[0\], x\[2\] or \?"),
        (["{}/bfloat16.onnx"], r"input zero_point is a tensor\(bfloat16\): there are no random"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.by_default(8)
def test_refusals(capsys, files, arguments, message):
    assert cli.main(["run", *(argument.format(files) for argument in arguments)]) == 1
    assert re.search(f"^error: .*{message}", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("as_module", [True, False])
def test_entry_points(as_module):
    script = Path(sysconfig.get_path("scripts"), "quark-numba").with_suffix(sysconfig.get_config_var("EXE"))
    if not as_module and os.name == "nt" and not script.exists():
        pytest.skip("Windows' Python under Wine has no pip, which writes scripts")
    command = [sys.executable, "-m", "quark_numba"] if as_module else [str(script)]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.startswith("quark-numba 0.")


@pytest.mark.parametrize(("domain", "kept"), [("com.amd.quark", True), ("", False)])
def test_quantized_nodes_are_kept_only_in_models_with_our_operators(tmp_path, domain, kept):
    """Quark imports its domain into every model. ONNX Runtime may still fuse the nodes if all are standard operators."""
    node = one_node("quantize", "uint8", domain=domain)
    if not domain:
        node.opset_import.append(helper.make_opsetid("com.amd.quark", 1))
    path = tmp_path / "m.onnx"
    onnx.save(node, path)
    options = measuring.create_session(path, inventory.quantization_nodes(path)).get_session_options()
    if kept:
        assert options.get_session_config_entry("session.disable_quant_qdq") == "1"
    else:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry("session.disable_quant_qdq")


def test_node_counts_in_subgraphs_and_functions(tmp_path):
    branch = """branch () => (float[] b) {
          zero = Constant <value = int16 {0}> ()
          q = com.amd.quark.ExtendedQuantizeLinear (x, scale, zero)
          b = com.amd.quark.ExtendedDequantizeLinear (q, scale)
        }"""
    nodes = [f"y = If <then_branch = {branch}, else_branch = {branch}> (condition)"]
    nodes.append("u = com.amd.quark.ExtendedQuantizeLinear (x, scale)")
    nodes.append('v = com.amd.quark.BFPQuantizeDequantize <bfp_method = "to_bfp"> (x)')
    counted, body = model(nodes, ["x"], ["y"]), parsed("y = QuantizeLinear (x, s, z)")
    counted.functions.append(helper.make_function("test", "F", ["x", "s", "z"], ["y"], body, []))
    onnx.save(counted, tmp_path / "m.onnx")
    counts = inventory.quantization_nodes(tmp_path / "m.onnx")
    assert [(n.operator.split("::")[1], n.element_type, n.count) for n in counts] == [
        ("QuantizeLinear", "?", 1),
        ("BFPQuantizeDequantize", "bfp16", 1),
        ("ExtendedDequantizeLinear", "int16", 2),
        ("ExtendedQuantizeLinear", "int16", 2),
        ("ExtendedQuantizeLinear", "uint8", 1),
    ]


TAGGER = str(MODELS / "tagger_u16.onnx")
CALLS = """import numpy, quark_numba
for size in (1, 1 << 20):
    quark_numba.dequantize(quark_numba.quantize(numpy.ones(size, "f"), 0.5, dtype="int4"), 0.5)
"""
SESSION = """import numpy, onnxruntime, quark_numba
options = onnxruntime.SessionOptions()
quark_numba.register(options)
session = onnxruntime.InferenceSession({!r}, options)"""
OPTIMIZED = "import sys, quark_numba; quark_numba.InferenceSession({!r}); assert 'onnx' not in sys.modules"
RUN = "session.run(None, {'x': numpy.zeros((9, 1, 20), 'f')})"


COMMAND = ["-m", "quark_numba", "warmup"]
ONE_TYPE = ["-c", "from quark_numba.cli import warmup; warmup._compile(['int4'], [], lambda **_: None)"]  # all take minutes


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (ONE_TYPE, CALLS),
        ([*COMMAND, BF16], f"{SESSION.format(BF16)}\n{OPTIMIZED.format(BF16)}"),
        ([*COMMAND, TAGGER], f"{SESSION.format(TAGGER)}\n{RUN}"),
    ],
    ids=["type", "model", "other_operators"],
)
@pytest.mark.slow
def test_warmup(arguments, after, tmp_path):
    """A later process finds all kernels that it needs in the cache, and the optimized model."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "QUARK_NUMBA_CACHE_MB": "64"}
    done = python(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    compiled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.kernel")}
    assert compiled
    done = python("-c", after, **environment)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.kernel")} == compiled


def test_no_native_backend(terminal, monkeypatch, tmp_path):
    monkeypatch.setattr("quark_numba.library.targets.linker", lambda target: ["a linker"])
    monkeypatch.setattr("quark_numba.ort.native.REGISTRY.library", (None, "there is a reason"))
    assert "error: there is a reason" in terminal.error("build-library", BF16, "--as-written", "-o", tmp_path)


def test_warmup_refuses(terminal):
    assert "/nowhere.onnx: No such file" in terminal.error("warmup", "/nowhere.onnx")


def test_names_with_colons(capsys):
    """Text between colons is printed as it is, where Rich would print an emoji."""
    assert cli.main(["run", ":smile:.onnx"]) == 1
    assert ":smile:.onnx" in capsys.readouterr().err
