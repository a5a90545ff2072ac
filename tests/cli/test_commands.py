"""The command: its reports, in tables and in JSON, and its refusals."""

import json
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
from onnx import TensorProto, helper
from onnx_models import model, one_node
from paths import MODELS, ROOT

from quark_numba import cli
from quark_numba.cli import inventory, measuring, types

pytestmark = pytest.mark.compiled

BF16, FLOAT, EXPECTED = (
    str(MODELS / name) for name in ("textline_cls_bf16.onnx", "textline_cls_float.onnx", "textline_cls_expected.npz")
)


def test_run_with_reference(capsys):
    assert cli.main(["run", BF16, "--reference", FLOAT, "--inputs", EXPECTED, "--threads", "2", "--runs", "2"]) == 0
    text = capsys.readouterr().out
    for expected in ("com.amd.quark::ExtendedQuantizeLinear", "bfloat16", "258", "median latency", "SQNR, dB", "ratio"):
        assert expected in text


def test_models_that_nobody_runs(capsys, tmp_path):
    """The table of nodes has the operator that keeps a model from loading."""
    node = helper.make_node("FixNeuron", ["x"], ["y"], domain="com.vai.quantize")
    onnx.save(model([node], ["x"], ["y"], domains=["com.vai.quantize"]), tmp_path / "m")
    assert cli.main(["run", str(tmp_path / "m")]) == 1
    assert re.search(r"FixNeuron +│ \? +│ +1 │ nobody", capsys.readouterr().out)


def test_domains_that_nobody_has(tmp_path):
    """Nobody runs operators of unknown domains, even if their names are those of quantization operators, or if they are in
    local functions."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s"], ["u"], domain="trt"),
        helper.make_node("QuantizeLinear", ["u", "s"], ["v"], domain="com.foo"),
        helper.make_node("QuantizeLinear", ["u", "s"], ["w"], domain="com.microsoft"),
        helper.make_node("Gelu", ["u"], ["t"], domain="com.microsoft"),
        helper.make_node("Relu", ["u"], ["y"]),
        helper.make_node("F", ["u"], ["z"], domain="local"),
    ]
    counted = model(nodes, ["x"], ["y"])
    function = helper.make_function("local", "F", ["x"], ["y"], [helper.make_node("Odd", ["x"], ["y"], domain="odd")], [])
    counted.functions.append(function)
    onnx.save(counted, tmp_path / "m.onnx")
    assert {n.operator: n.run_by for n in inventory.quantization_nodes(tmp_path / "m.onnx")} == {
        "trt::DequantizeLinear": "nobody",
        "com.foo::QuantizeLinear": "nobody",
        "odd::Odd": "nobody",
        "com.microsoft::QuantizeLinear": "ONNX Runtime",
    }


def test_models_of_block_formats(capsys):
    assert cli.main(["run", str(MODELS / "textline_cls_mxfp8.onnx"), "--inputs", EXPECTED, "--runs", "3"]) == 0
    assert re.search(r"MXQuantizeDequantize +│ fp8_e4m3 +│ +291 │ quark_numba", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "row"),
    [("tagger_u16", r"ExtendedLSTM +│ uint16 +│ +2"), ("style_bf16", r"ExtendedInstanceNormalization +│ bfloat16 +│ +11")],
)
def test_models_of_other_operators(name, row, capsys):
    assert cli.main(["run", str(MODELS / f"{name}.onnx"), "--runs", "2"]) == 0
    assert re.search(rf"{row} │ quark_numba", capsys.readouterr().out)


def test_formats_of_nodes_that_do_not_say(tmp_path, capsys):
    """Their format is the default. If a function leaves the format to its caller, it is unknown."""
    node = helper.make_node("MXQuantizeDequantize", ["x"], ["y"], domain="com.amd.quark")
    onnx.save(model([node], ["x"], ["y"]), tmp_path / "m")
    assert cli.main(["run", str(tmp_path / "m"), "--runs", "1"]) == 0
    assert re.search(r"MXQuantizeDequantize +│ int8 +│ +1 │ quark_numba", capsys.readouterr().out)
    for name in ("element_dtype", "block_size"):
        attribute = node.attribute.add()
        attribute.name, attribute.ref_attr_name = name, "outer"
        attribute.type = onnx.AttributeProto.STRING if name == "element_dtype" else onnx.AttributeProto.INT
    body = helper.make_function("local", "F", ["x"], ["y"], [node], [helper.make_opsetid("com.amd.quark", 1)], ["outer"])
    whole = model([helper.make_node("F", ["x"], ["y"], domain="local")], ["x"], ["y"], domains=["local", "com.amd.quark"])
    whole.functions.append(body)
    onnx.save(whole, tmp_path / "f")
    cli.main(["run", str(tmp_path / "f")])
    assert re.search(r"MXQuantizeDequantize +│ \? +│ +1 │ quark_numba", capsys.readouterr().out)


def test_inputs_go_by_name(capsys, tmp_path):
    """Models that declare their inputs in another order get the same arrays."""
    inputs = [(name, "float32", [1000]) for name in "ab"]
    difference = helper.make_node("Sub", ["a", "b"], ["y"])
    onnx.save(model([difference], inputs, ["y"]), tmp_path / "ab.onnx")
    onnx.save(model([difference], inputs[::-1], ["y"]), tmp_path / "ba.onnx")
    assert cli.main(["run", str(tmp_path / "ab.onnx"), "--reference", str(tmp_path / "ba.onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reference"]["outputs"][0]["sqnr_db"] == "inf"


def test_json(capsys):
    assert cli.main(["run", BF16, "--reference", FLOAT, "--inputs", EXPECTED, "--runs", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["nodes"] == [
        {
            "operator": f"com.amd.quark::{name}",
            "element_type": "bfloat16",
            "count": 258,
            "run_by": "quark_numba",
        }
        for name in ("ExtendedDequantizeLinear", "ExtendedQuantizeLinear")
    ]
    reference = report["reference"]
    assert reference["latency_ratio"] == report["median_seconds"] / reference["median_seconds"]
    with np.load(EXPECTED) as arrays:
        y, expected = arrays["bf16"].astype(float), arrays["float"].astype(float)
    (output,) = reference["outputs"]
    assert output["sqnr_db"] == pytest.approx(10 * np.log10((expected**2).sum() / ((y - expected) ** 2).sum()), abs=0.1)
    assert output["largest_difference"] == pytest.approx(np.abs(y - expected).max(), abs=1e-3)


def test_a_model_is_its_own_reference(capsys):
    assert cli.main(["run", FLOAT, "--reference", FLOAT, "--dim", "?=48", "--runs", "1", "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["reference"]["outputs"]
    assert (output["sqnr_db"], output["largest_difference"]) == ("inf", 0)


@pytest.mark.parametrize("dimensions", [["x[0]=2", "?=48"], ["x[0]=2", "x[2]=48", "x[3]=64"]])
def test_dimensions(capsys, dimensions):
    arguments = [argument for dimension in dimensions for argument in ("--dim", dimension)]
    assert cli.main(["run", BF16, *arguments, "--runs", "1", "--json"]) == 0
    shape = json.loads(capsys.readouterr().out)["inputs"]["x"]["shape"]
    assert shape == [2, 3, 48, 64 if "x[3]=64" in dimensions else 48]


def test_info(capsys):
    assert cli.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["onnxruntime"] == onnxruntime.__version__
    assert report["backend"] == "native"
    assert cli.main(["info"]) == 0
    assert onnxruntime.__version__ in capsys.readouterr().out


def test_types(capsys):
    assert cli.main(["types", "--json"]) == 0
    rows = {(row["operator"], row["type"]): row for row in json.loads(capsys.readouterr().out)}
    formats = {kind for operator, kind in rows if operator.endswith("QuantizeDequantize")}
    assert formats == {*oracle.MX_ELEMENTS, "to_bfp", "to_bfp_prime", "to_bfp_prime_shared", "nvfp4", "mxfp8"}
    assert rows["quark_numba::Region", "float32"]["native"]
    assert rows["qonnx.custom_op.general::Quant", "integers"]["native"]
    dialects = ("quark_numba::Region", "quark_numba::FakeQuantize", *("qonnx.", "mct_quantizers::"))
    rows = {row: ways for row, ways in rows.items() if not row[0].startswith(dialects)}
    assert {kind for _, kind in rows} - formats == set(oracle.TYPES) - formats
    float4 = rows["ai.onnx::QuantizeLinear", "float4e2m1"]
    assert float4["scales"] == {"float32": 23, "float16": 23, "bfloat16": 23, "int32": 23, "float8e8m0": 24}
    assert [float4[way] for way in ("arrays", "native", "extensions")] == [True, True, False]
    extended = rows["com.amd.quark::ExtendedDequantizeLinear", "int16"]
    assert extended["scales"] == {"float32": 1}
    assert [extended[way] for way in ("arrays", "native", "extensions")] == [True, True, True]
    assert cli.main(["types"]) == 0
    assert "float6e2m3" in capsys.readouterr().out


def test_readme_has_the_tables_of_types():
    readme = (ROOT / "quark_numba" / "element_types" / "README.md").read_text(encoding="utf-8")
    for operator, columns, rows in types.type_tables():
        lines = ["| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows]]
        assert f"{operator}:\n\n" + "\n".join(lines) in readme


@pytest.mark.parametrize(
    "arguments",
    [[], ["run"], ["run", BF16, "--dim", "x"], ["run", BF16, "--threads", "0"], ["go"]]
    + [["run", BF16, "--threads", "x"], ["run", BF16, "--dim", "n=1", "--inputs", EXPECTED]],
)
def test_wrong_arguments(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: quark-numba" in capsys.readouterr().err


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
        ([BF16, "--inputs", "{}/none.npz"], "none.npz: No such file"),
        (["{}/other_inputs.onnx", "--inputs", "{}/one.npy"], "one.npy: one array; expected an .npz file with x, scale"),
        ([BF16, "--inputs", "{}/truncated.npz"], "truncated.npz: not a file of numbers"),
        ([BF16, "--dim", "x[0]=99999999999999"], r"input x of shape \[99999999999999, 3, 1, 1\]"),
        ([BF16, "--dim", "?=48", "--reference", "{}/other_inputs.onnx"], "the reference has an input scale; the model has x"),
        (["{}/axis.onnx", "--dim", "x[0]=2", "--backend", "extensions"], "ExtendedQuantizeLinear: axis is 1, out of range"),
        ([BF16, "--inputs", "{}/text.npz"], "text.npz: not a file of numbers"),
        ([BF16, "--inputs", "{}/other.npz"], "no array named x; it has other"),
        ([BF16, "--inputs", "{}/shape.npz"], "the model does not run: .*Invalid rank"),
        ([BF16, "--inputs", "{}/dtype.npz"], "the model does not run: .*Unexpected input data type"),
        ([BF16, "--dim", "n=3"], r"no free dimension is named n; the model has: x\[0\], x\[2\] or \?"),
        ([BF16, "--backend", "extensions"], r"tensor\(bfloat16\).*ExtendedQuantizeLinear"),
        (["{}/bfloat16.onnx"], r"input zero_point is a tensor\(bfloat16\): there are no random"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
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
    def node(name, inputs, output, domain="com.amd.quark"):
        return helper.make_node(name, inputs, [output], domain=domain)

    constant = helper.make_node("Constant", [], ["zero"], value=helper.make_tensor("zero", TensorProto.INT16, [], [0]))
    branch = helper.make_graph(
        [
            constant,
            node("ExtendedQuantizeLinear", ["x", "scale", "zero"], "q"),
            node("ExtendedDequantizeLinear", ["q", "scale"], "b"),
        ],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch),
        node("ExtendedQuantizeLinear", ["x", "scale"], "u"),
        helper.make_node("BFPQuantizeDequantize", ["x"], ["v"], domain="com.amd.quark", bfp_method="to_bfp"),
    ]
    counted = model(nodes, ["x"], ["y"])
    function = helper.make_function(
        "test", "F", ["x", "s", "z"], ["y"], [node("QuantizeLinear", ["x", "s", "z"], "y", domain="")], []
    )
    counted.functions.append(function)
    onnx.save(counted, tmp_path / "m.onnx")
    counts = inventory.quantization_nodes(tmp_path / "m.onnx")
    assert [(n.operator.split("::")[1], n.element_type, n.count) for n in counts] == [
        ("QuantizeLinear", "?", 1),
        ("BFPQuantizeDequantize", "to_bfp", 1),
        ("ExtendedDequantizeLinear", "int16", 2),
        ("ExtendedQuantizeLinear", "int16", 2),
        ("ExtendedQuantizeLinear", "uint8", 1),
    ]


def _process(*arguments, cache):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        pytest.param(
            ["--types", "int4"],
            "import numpy, quark_numba\n"
            "for size in (1, 1 << 20):\n"
            "    y = quark_numba.quantize(numpy.ones(size, 'f'), 0.5, dtype='int4')\n"
            "    quark_numba.dequantize(y, 0.5)",
            marks=pytest.mark.full,
        ),
        (
            ["--model", BF16],
            "import onnxruntime, quark_numba\n"
            "options = onnxruntime.SessionOptions()\n"
            "quark_numba.register(options)\n"
            f"onnxruntime.InferenceSession({BF16!r}, options)",
        ),
        pytest.param(
            ["--model", str(MODELS / "tagger_u16.onnx")],
            "import numpy, onnxruntime, quark_numba\n"
            "options = onnxruntime.SessionOptions()\n"
            "quark_numba.register(options)\n"
            f"session = onnxruntime.InferenceSession({str(MODELS / 'tagger_u16.onnx')!r}, options)\n"
            "session.run(None, {'x': numpy.zeros((9, 1, 20), 'f')})",
            marks=pytest.mark.full,
        ),
    ],
    ids=["types", "model", "other_operators"],
)
@pytest.mark.slow
def test_warmup(arguments, after, tmp_path):
    """A later process finds all kernels that it needs in the cache."""
    done = _process("-m", "quark_numba", "warmup", *arguments, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    compiled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.kernel")}
    assert compiled
    done = _process("-c", after, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.kernel")} == compiled


def test_warmup_refuses(capsys):
    assert cli.main(["warmup", "--model", "/nowhere.onnx"]) == 1
    assert "/nowhere.onnx: No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["warmup", "--types", "int3"])
    assert "invalid choice: 'int3'" in capsys.readouterr().err
