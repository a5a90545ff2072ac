"""How results are shown: tables in notebooks and from `print`, one short line as repr. And names of strangers' models in files:
no spreadsheet takes one for a formula, and what is not printed is escaped."""

import csv
import dataclasses
import io
import os
import re
import warnings
from html.parser import HTMLParser

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model
from rewritten_models import constant, floats

import quark_numba
from quark_numba import RandomData, cli
from quark_numba.cli import analyze

pytestmark = pytest.mark.compiled

FORMULAS = ['=cmd|" /C calc"!A1', "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\0=1", "＝1"]
SEPARATED = {"a;=1": "a;'=1", 'b;"=1': "b;'\"=1", "c;d": "c;d"}
OTHERS = ['a","=1', "'", "a\0b\x1b[31m", "日本語 🎉 \u202egnp", "<script>alert(1)</script>"]
OTHERS += ['url(#a) id="b" #0b6fb8 $x^2$']
MODEL = "m\x1b.onnx" if os.name == "posix" else "m.onnx"  # Windows has no such names
NAMES = [*FORMULAS, *SEPARATED, *OTHERS]


def network(names):
    """Return a model that rounds a tensor of each name."""
    nodes, last = [], "x"
    for place, name in enumerate(names):
        codes, y = f"codes{place}", f"y{place}"
        nodes += [
            helper.make_node("Neg", [last], [name]),
            helper.make_node("QuantizeLinear", [name, "s", "z"], [codes]),
            helper.make_node("DequantizeLinear", [codes, "s", "z"], [y]),
        ]
        last = y
    initializers = [*floats(s=0.05), constant("z", 0, np.int8)]
    return model(nodes, [("x", "float32", [2, 8])], [last], initializers=initializers, domains=[])


def escaped(name):
    """Return a name as tables show it, with control characters escaped."""
    escapes = {"\t": r"\t", "\r": r"\r", "\n": r"\n", "\0": r"\x00", "\x1b": r"\x1b", "\u202e": r"\u202e"}
    return "".join(escapes.get(c, c) for c in name)


class Parsed(HTMLParser):
    """The texts of HTML by element, and the elements."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.tags, self.path = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.path.append(tag)
        self.texts.append((tag, ""))

    def handle_endtag(self, tag):
        while self.path and self.path.pop() != tag:
            pass

    def handle_data(self, data):
        if self.path and self.texts[-1][0] == self.path[-1]:
            self.texts[-1] = self.path[-1], self.texts[-1][1] + data

    def of(self, tag):
        return [text for kind, text in self.texts if kind == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the CSV and the page of a model with such names."""
    folder = tmp_path_factory.mktemp("written")
    model_path = folder / MODEL
    onnx.save(network(NAMES), model_path)
    words = ["analyze", str(model_path), "--random", "1", "--what-if", "bfloat16"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main([*words, "--csv", str(folder / "t.csv"), "--html", str(folder / "t.html")]) == 0
    return folder / "t.csv", folder / "t.html"


def test_no_cell_is_a_formula(written):
    path, _ = written
    text = path.read_text(encoding="utf-8")
    assert all(c.isprintable() or c == "\n" for c in text)
    for separator in ",;":
        with open(path, newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file, delimiter=separator) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r", "\n", "＝"))]
        assert {cell for cell in cells if cell.startswith("-")} <= {"-inf"}
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    quoted = [*(f"'{name}" for name in FORMULAS), *SEPARATED.values(), *OTHERS]
    assert [row["name"] for row in rows] == [*map(escaped, quoted)]
    for place, row in enumerate(rows):
        assert int(row["place"]) == place
        assert float(row["own_sqnr_db"]) < float(row["what_if_bfloat16"])


def test_numbers_stay_numbers():
    """A negative ratio is a number, None is an empty cell, and pandas reads both accordingly."""
    pandas = pytest.importorskip("pandas")
    found = quark_numba.analyze(network(["a", "b"]), RandomData(1))
    found.tensors[0].sqnr_db, found.tensors[1].sqnr_db = -12.5, None
    text = analyze._csv(found)
    assert ",-12.5," in text
    table = pandas.read_csv(io.StringIO(text))
    ratios = table.set_index("name")["sqnr_db"]
    assert ratios.dtype == np.float64
    assert ratios[found.tensors[0].name] == -12.5
    assert np.isnan(ratios[found.tensors[1].name])


def test_names_on_the_page(written):
    _, path = written
    text = path.read_text(encoding="utf-8")
    assert all(c.isprintable() or c == "\n" for c in text)
    parsed = Parsed(text)
    assert parsed.of("title") == [escaped(MODEL)]
    assert parsed.tags.count("script") == 1
    shown = {escaped(name) for name in NAMES}
    assert shown <= {*parsed.of("td")}
    captions = [re.sub(r", \d+ values$", "", caption) for caption in parsed.of("figcaption")]
    assert len(captions) == 8
    assert {*captions} <= shown


def test_captions_keep_any_name(tmp_path):
    """The worst tensors have these names, so that each has a histogram."""
    names = OTHERS[-3:]
    onnx.save(network(names), tmp_path / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main(["analyze", str(tmp_path / "m.onnx"), "--random", "1", "--html", str(tmp_path / "t.html")]) == 0
    parsed = Parsed((tmp_path / "t.html").read_text(encoding="utf-8"))
    assert {caption.rsplit(",", 1)[0] for caption in parsed.of("figcaption")} == {escaped(name) for name in names}


def test_results_in_a_notebook():
    whole = network(NAMES)
    found = quark_numba.analyze(whole, RandomData(1), sweep=True, what_if=["bfloat16"], histograms=2)
    evaluation = quark_numba.evaluate(whole, RandomData(1))
    found.failed = evaluation.failed = {"batch 2": "<b>"}
    for result in (found, evaluation):
        text = result._repr_html_()
        parsed = Parsed(text)
        assert not {"script", "button", "style", "link", "img", "iframe"} & {*parsed.tags}
        assert "<script" not in text
        assert all(c.isprintable() for c in text)
        assert "Batches that are left out" in parsed.of("h2")
        assert f"y{len(NAMES) - 1}" in parsed.of("td")
        assert len(repr(result)) < 80
        assert "\n" not in repr(result)
        assert re.search(r"Batches that are left out\n.*│ batch 2 │ <b>", str(result), re.DOTALL)
    assert {escaped(name) for name in NAMES} <= {*Parsed(found._repr_html_()).of("td")}
    titles = [
        "Quantized model",
        "Quantized tensors",
        "Least SQNR of the outputs",
        "Best trade-offs",
        "Batches that are left out",
    ]
    assert [title.split(",")[0] for title in Parsed(found._repr_html_()).of("h2")] == titles
    assert repr(found) == f"<Analysis of {len(NAMES)} tensors and 1 output, over 1 sample>"
    assert repr(evaluation) == "<Evaluation of 1 output, over 1 sample>"
    assert len(repr(found.histograms[0])) < 200


@pytest.mark.parametrize("command", ["analyze", "evaluate"])
def test_print_shows_what_the_command_prints(command, tmp_path, terminal, monkeypatch):
    """`print` shows the same, whatever the environment says about colours, and inside of Jupyter."""
    onnx.save(network(["a", "b"]), tmp_path / "m.onnx")
    printed = terminal.text(command, tmp_path / "m.onnx", "--random", "1")
    result = getattr(quark_numba, command)(tmp_path / "m.onnx", RandomData(1))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)

    def without_rates(text):
        return [line for line in text.splitlines() if "a second" not in line and "│" in line]

    assert without_rates(str(result)) == without_rates(printed)
    assert "\x1b" not in str(result)


def test_lists_are_what_pandas_takes():
    pandas = pytest.importorskip("pandas")
    found = quark_numba.analyze(network(NAMES), RandomData(1), sweep=True)
    for rows in (found.tensors, found.outputs, found.sweep):
        table = pandas.DataFrame(rows)
        assert list(table) == [each.name for each in dataclasses.fields(rows[0])]
        assert len(table) == len(rows)
    assert list(pandas.DataFrame(found.tensors)["name"]) == [each.name for each in found.tensors]
