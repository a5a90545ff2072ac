"""What the command prints: tables with rows, one name for a format, numbers with their nouns, lines of a readable length."""

import re

import numpy as np
import onnx
import pytest
from onnx_models import model
from paths import MODELS
from rewritten_models import constant, floats, pair
from textline import path_of

import quark_numba
from quark_numba import texts
from quark_numba.analysis.html_tables import as_html
from quark_numba.analysis.twin import float_twin
from quark_numba.cli import inventory, printing
from quark_numba.errors import counted
from quark_numba.models.model_files import Source
from quark_numba.texts import Table

BORDERS = "┏┡└│"


def add(path, *, quantized):
    """Write a model that adds a constant; quantized, its input is rounded. Return the path."""
    nodes = [*pair("x", "codes", "rounded", ["s", "z"], ""), "y = Add (rounded, s)"] if quantized else ["y = Add (x, s)"]
    initializers = [*floats(s=0.5), constant("z", 0, np.int8)]
    onnx.save(model(nodes, [("x", "float32", [4])], ["y"], initializers=initializers, domains=[]), path)
    return str(path)


@pytest.mark.parametrize("variant", ["bf16", "bfp16", "mx9", "mxfp8"])
@pytest.mark.by_default(1)
def test_formats_have_one_name(variant):
    """`run` and `analyze` call a format by the same name."""
    (name,) = {nodes.element_type for nodes in inventory.quantization_nodes(path_of(variant))}
    assert name == {"bf16": "bfloat16", "mxfp8": "mxfp8_e4m3"}.get(variant, variant)
    twin = float_twin.make_twin(Source.open(path_of(variant)))
    assert {quantizer.form.type for quantizer in twin.quantizers} == {name}


@pytest.mark.compiled
def test_there_are_no_empty_tables(tmp_path, terminal):
    """A line takes the place of a table without rows."""
    path = add(tmp_path / "m.onnx", quantized=False)
    text = terminal.text("run", path, "--runs", "1", "--optimize")
    assert f"Quantization nodes of {path}: none\n" in text
    assert "Nodes of the optimized model that stay as they are: none\n" in text
    text = terminal.text("optimize", path, tmp_path / "out.onnx")
    assert text == f"Nodes that {tmp_path / 'out.onnx'} no longer has: none\nNodes that were left: none\n"
    assert not [line for line in text.splitlines() if line[0] in BORDERS]


@pytest.mark.compiled
@pytest.mark.parametrize("command", ["analyze", "evaluate"])
def test_a_float_model_is_told(command, tmp_path, capsys, terminal):
    path = add(tmp_path / "m.onnx", quantized=False)
    text = terminal.text(command, path, "--random", "1")
    assert "│ y" in text
    assert ("Quantized tensors: none\n" in text) == (command == "analyze")
    if command == "analyze":
        terminal.text(command, path, "--random", "1", "--csv", tmp_path / "t.csv")
        assert (tmp_path / "t.csv").read_text().startswith("name,place,kind,type,")
        assert "<p>none</p>" in as_html([Table("Quantized tensors", ["tensor"], [])])
    with pytest.warns(UserWarning, match="has no quantization nodes: its float model is the model itself"):
        getattr(quark_numba, command)(path, quark_numba.RandomData(1))
    terminal.text(command, add(tmp_path / "q.onnx", quantized=True), "--random", "1")  # without a warning


@pytest.mark.compiled
def test_numbers_with_nouns(tmp_path, terminal):
    path = add(tmp_path / "m.onnx", quantized=True)
    for number in (1, 2):
        s, es = "s" * (number > 1), "es" * (number > 1)
        assert re.search(rf" {number} in {number} batch{es} ", terminal.text("evaluate", path, "--random", str(number)))
        text = terminal.text("analyze", path, "--random", str(number))
        assert f", over {number} sample{s}: SQNR of the own error, the inherited error, and both\n" in text
    assert [counted(number, "batch", "batches") for number in (0, 1, 2000)] == ["0 batches", "1 batch", "2,000 batches"]


def test_the_legend_comes_first(terminal):
    first, *_ = terminal.text("types").split("\n┏")
    assert first.startswith("Numbers: the first version of the operator")
    assert first.endswith("ai.onnx::QuantizeLinear")


def test_info_has_no_empty_row(terminal):
    assert all(terminal.report("info").values())


def test_sentences_are_folded(capsys):
    """A column of sentences makes no line longer than the others, and names stay whole."""
    why = "not in the blocked layout: " + "some words of a long reason " * 6
    printing.print_counts("Nodes", "why", {("d::" + "N" * 90, why): 1})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 90 + texts.WIDTH + 30
    assert any("d::" + "N" * 90 in line for line in lines)
    assert "".join(line.split("│")[3] for line in lines if line.startswith("│")).split() == why.split()
    names = ["n" * 100, "m" * 30]
    printing.print_table("Tensors", ["tensor", "used by"], [["x", ", ".join(names)]])
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    printing.print_table("Tensors", ["tensor", "used by"], [["x", ""]])
    assert "│ x      │         │" in capsys.readouterr().out


@pytest.mark.compiled
@pytest.mark.slow
def test_lines_of_a_real_report(terminal):
    model_path = MODELS / "textline_cls_mx9.onnx"
    lines = terminal.text("run", model_path, "--runs", "1", "--optimize", "--dim", "?=48").splitlines()
    assert max(map(len, lines)) <= 128
