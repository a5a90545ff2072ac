"""The READMEs and the other pages: their examples run, and the links, files, names, commands and options in them exist. Their
versions and figures are those of `pyproject.toml` and of the benchmarks."""

import ast
import builtins
import contextlib
import functools
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import charts
import page_texts
import pages
import pytest
import report
import result_tables
import saved_results

import quark_numba
from quark_numba import cli
from quark_numba.library import targets
from quark_numba.ort.c_api import FIRST_RELEASE, FLOAT_QDQ_RELEASE

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / folder for folder in ("bench", "examples", "quark_numba", "tests"))
READMES = [ROOT / "README.md", *(path for folder in FOLDERS for path in sorted(folder.rglob("README.md")))]
READMES = [path for path in READMES if "node_modules" not in path.parts]
OTHERS = ("CHANGELOG.md", "bench/RESULTS.md", "bench/PERFORMANCE.md", "quark_numba/session/SESSION_OPTIONS.md")
PAGES = [*READMES, *(ROOT / each for each in OTHERS), *sorted((ROOT / ".github").rglob("*.md"))]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("path", PAGES, ids=name_of)


def text_of(path):
    return path.read_text(encoding="utf-8")


def python_of(text):
    """Return all Python examples. Each line keeps its number in the README, so that tracebacks name it."""
    lines, is_python = [], False
    for line in text.splitlines():
        is_fence = line.startswith("```")
        if is_fence:
            is_python = not is_python and line == "```python"
        lines.append(line if is_python and not is_fence else "")
    return "\n".join(lines) + "\n"


FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")


def shell_commands(text):
    for language, content in FENCED.findall(text):
        if language == "sh":
            yield from re.split(r"&&|\n", content.replace("\\\n", ""))


def statements(text):
    """Yield the pieces of code in each paragraph, item of a list or row of a table."""
    for statement in re.split(r"\n\s*\n|\n(?=- |\d+\. |\||#)", FENCED.sub("\n", text)):
        yield CODE.findall(statement)


def pieces_of_code(text):
    yield from shell_commands(text)
    for codes in statements(text):
        yield from codes


LINK = re.compile(r"\]\(([^()\s]+)\)")


def anchors(path):
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)", FENCED.sub("", text_of(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_links(path, text):
    for target in LINK.findall(FENCED.sub("", text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


def missing_files(path, text):
    """Yield the files that do not exist. Files without a folder are beside the README; paths begin there, or in the
    repository's root."""
    for piece in pieces_of_code(text):
        for word in piece.split():
            is_path = re.fullmatch(r"\w[\w.-]*/([\w.-]+/)*([\w.-]+\.(py|md|json|onnx|npz))?|\.(ci|github)/[\w./-]+", word)
            folders = (path.parent, ROOT) if is_path else (path.parent,)
            if (is_path or re.fullmatch(r"\w+\.py", word)) and not any((each / word).exists() for each in folders):
                yield word


def missing_names(text):
    for piece in pieces_of_code(text):
        for name in re.findall(r"\bquark_numba\.(\w+)", piece):
            if not hasattr(quark_numba, name) and not importlib.util.find_spec(f"quark_numba.{name}"):
                yield name


# What looks like a name in code: with an underscore, or with capitals within. Not meant are placeholders, and these names of
# other projects. The pages about sessions are full of names of ONNX Runtime.
IDENTIFIER = re.compile(r"_*[A-Za-z]\w*_\w+|_\w{2,}|[A-Z][a-z]+\w*[A-Z]\w*")
PLACEHOLDER = re.compile(r"(N|NAME)_\w+")
OF_OTHERS = {
    "ConvertToChannelsLastAndClean",
    "OMP_WAIT_POLICY",
    "QEMU_CPU",
    "export_onnx_qcdq",
    "sequence_lens",
    "set_flush_denormal",
}
OF_ONNX_RUNTIME = [ROOT / "quark_numba" / each / "README.md" for each in ("ort", "session")]


@functools.cache
def words_of_code():
    """Return all words in the code of the package, the tests and the benchmarks, and in the names of files."""
    files = [file for folder in ("quark_numba", "tests", "bench") for file in (ROOT / folder).rglob("*") if file.is_file()]
    texts = (text_of(file) for file in files if file.suffix == ".py" and file != Path(__file__))
    return {word for text in (*(file.name for file in files), *texts) for word in re.findall(r"\w+", text)}


def missing_identifiers(text):
    """Yield names in running text that look like names in code and are not. Parts of paths and of commands do not count."""
    for code in (code for codes in statements(text) for code in codes):
        for dotted in re.findall(r"(?<![\w./-])[\w.]+(?![\w/-])", code):
            for name in dotted.split("."):
                is_meant = IDENTIFIER.fullmatch(name) and not PLACEHOLDER.fullmatch(name) and name not in OF_OTHERS
                if is_meant and name not in words_of_code():
                    yield name


def commands(text):
    """Yield each subcommand with each option that is named in the same piece of code, or after it in the same statement. None
    stands for a missing option or subcommand."""
    for codes in [*([command] for command in shell_commands(text)), *statements(text)]:
        subcommand = None
        for code in codes:
            words = [word.rpartition("/")[2] for word in code.split()]
            if "quark-numba" in words:
                words = words[words.index("quark-numba") + 1 :]
                if words and re.fullmatch(r"[a-z-]+", words[0]):
                    subcommand = words[0]
                    yield subcommand, None
            elif not code.startswith("--"):
                continue
            for word in words:
                if word.startswith("--"):
                    yield subcommand, word.partition("=")[0]


@functools.cache
def options_of(subcommand):
    """Return the options that the help of a subcommand lists, or None if there is no such subcommand."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as stop:
        cli.main([subcommand, "--help"])
    lines = re.findall(r"^  (?:-\w, )?(--[\w-]+)(?:, (--no-[\w-]+))?", out.getvalue(), re.MULTILINE)
    return None if stop.value.code else frozenset(option for line in lines for option in line if option)


def missing_commands(text):
    """Yield unknown commands. An option without a subcommand has to be one of any subcommand that the README names."""
    found = list(commands(text))
    everyones = {option for subcommand, _ in found if subcommand for option in options_of(subcommand) or ()}
    for subcommand, option in found:
        options = options_of(subcommand) if subcommand else everyones
        if options is None or (option and option not in options):
            yield f"{subcommand} {option}"


EXAMPLES = [path for path in READMES if python_of(text_of(path)).strip()]


@pytest.mark.compiled
@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
@pytest.mark.by_default(1)
def test_examples_run(path, tmp_path):
    """The examples of a page run from top to bottom, in one process."""
    if "build_library" in python_of(text_of(path)):
        try:
            targets.linker(None)
        except quark_numba.ModelError as error:
            pytest.skip(str(error))
    model = Path("tests", "models", "textline_cls_bf16.onnx")
    (tmp_path / model).parent.mkdir(parents=True)
    for name in (model, "model.onnx"):
        shutil.copy(ROOT / model, tmp_path / name)
    script = tmp_path / "README.py"
    script.write_text(python_of(text_of(path)), encoding="utf-8")
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^print\(.*\)  # (.*)$", python_of(text_of(path)), re.MULTILINE)
    assert not shown or done.stdout.splitlines() == shown


def undefined_names(code):
    """Return the names that a piece of code uses and neither imports nor assigns."""
    nodes = [*ast.walk(ast.parse(code))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    imported = {each.asname or each.name for node in imports for each in node.names}
    assigned = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return {each.id for each in names} - assigned - imported - set(dir(builtins))


@pytest.mark.parametrize("folder", ["", "quark_numba/rewriting", "quark_numba/session"])
def test_each_example_can_be_copied_alone(folder):
    examples = [content for language, content in FENCED.findall(text_of(ROOT / folder / "README.md")) if language == "python"]
    assert [undefined_names(each) for each in examples] == [set()] * len(examples)
    assert len(examples) > 2


def test_there_are_examples():
    folders = ("analysis", "arrays", "library", "onnx_tools", "ort", "rewriting", "running", "session")
    assert {ROOT / "README.md", *(ROOT / "quark_numba" / each / "README.md" for each in folders)} <= set(EXAMPLES)


@every_page
def test_all_that_is_named_exists(path):
    text = text_of(path)
    assert list(missing_links(path, text)) == []
    assert list(missing_files(path, text)) == []
    assert list(missing_names(text)) == []
    assert list(missing_commands(text)) == []
    if path.name in ("CONTRIBUTING.md", "README.md", "RECIPES.md") and path not in OF_ONNX_RUNTIME:
        assert list(missing_identifiers(text)) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("[a](nowhere.md), [b](tests/README.md#tests), [c](https://example.com)", ["nowhere.md"]),
        ("[a](tests/README.md#nothing), [b](#limits)", ["tests/README.md#nothing"]),
        ("`tests/support/oracle.py`, `tests/nothing.py` and `nowhere/`", ["tests/nothing.py", "nowhere/"]),
        ("`setup.py`", ["setup.py"]),
        ("```sh\npython bench/nothing.py \\\n  bench/report.py\n```", ["bench/nothing.py"]),
        ("`quark_numba.quantize(x)`, `quark_numba.nothing`", ["nothing"]),
        ("`quark-numba run`, `quark-numba go MODEL`", ["go None"]),
        ("`quark-numba optimize IN OUT --runs 3`", ["optimize --runs"]),
        ("`quark-numba types` and `--dim NAME=N`\n\n`quark-numba run --dim NAME=N`", ["types --dim"]),
        ("- `quark-numba run MODEL`\n- `--runs`, `--keep-quantized-weights`", ["None --keep-quantized-weights"]),
        ("```sh\ngo && .venv/bin/quark-numba run m \\\n  --runs 3 --nothing\npytest --cov\n```", ["run --nothing"]),
        ("`KINDS` in `X_BITS`, `NAME_x`, `_meant (no_name=1)`, `NoClass`", ["X_BITS", "_meant", "no_name", "NoClass"]),
    ],
)
def test_what_is_missing_is_found(text, missing):
    path = ROOT / "README.md"
    assert [
        *missing_links(path, text),
        *missing_files(path, text),
        *missing_names(text),
        *missing_commands(text),
        *missing_identifiers(text),
    ] == missing


PROJECT = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DEPENDENCIES = (*PROJECT["dependencies"], *EXTRAS["onnxruntime"], *EXTRAS["extensions"])
LOWER_BOUNDS = dict(each.partition(",")[0].split(">=") for each in DEPENDENCIES)


def wrong_bounds(text):
    """Return the releases of ONNX Runtime that a text asks for, without those of the project and of `qdq` = "float"."""
    expected = {LOWER_BOUNDS["onnxruntime"], ".".join(map(str, FLOAT_QDQ_RELEASE))}
    return set(re.findall(r"\bONNX\s+Runtime\s+(\d[\d.]*\d)\s+or\s+(?:later|newer)", text)) - expected


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_pages_ask_for_the_same_onnx_runtime_as_the_project(path):
    assert wrong_bounds(text_of(path)) == set()


def test_the_library_asks_for_the_same_onnx_runtime_as_the_project():
    assert LOWER_BOUNDS["onnxruntime"] == FIRST_RELEASE


def test_a_wrong_bound_is_found():
    assert wrong_bounds("ONNX Runtime 1.17 or later, ONNX\nRuntime 1.2 or newer, ONNX Runtime 1.31") == {"1.17", "1.2"}


def test_the_first_readme_says_what_the_project_needs():
    text = text_of(ROOT / "README.md")
    assert f"ONNX Runtime {LOWER_BOUNDS['onnxruntime']} or later" in text
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or later" in text
    assert f"This is version {quark_numba.__version__}" in text


def test_the_lowest_versions_that_were_tested_are_those_of_the_project():
    _, _, versions = text_of(ROOT / "tests" / "README.md").partition("## Versions")
    rows = re.findall(r"^\| ([\w-]+) \| (\d[\d.]*) \|", versions, re.MULTILINE)
    lowest = {name: version for name, version in rows if name in LOWER_BOUNDS}
    assert {name: LOWER_BOUNDS[name] for name in lowest} == lowest
    assert "onnxruntime" in lowest


@pytest.mark.parametrize("path", report.PAGES, ids=lambda path: path.name)
def test_the_numbers_of_the_benchmarks_are_those_of_their_results(path):
    assert report.written(path, saved_results.read_all()) == text_of(path)


def texts_of(chart):
    """Return the labels and the numbers in a chart of matplotlib, which draws them as paths beside comments."""
    return re.findall(r"<!-- (.*?) -->", text_of(chart))


def test_the_charts_of_the_benchmarks_are_drawn_from_their_results(tmp_path):
    charts.draw(tmp_path, saved_results.read_all())
    for name in charts.CHARTS:
        assert texts_of(tmp_path / name) == texts_of(ROOT / "bench" / name)
        assert len(texts_of(tmp_path / name)) > 10


def run_of(tmp_path, turns):
    """Write the file of a run with seconds for each group and contender, in turns. Return its path."""
    benchmarks = [
        {"fullname": "bench/test_a.py::test[0]", "group": g, "extra_info": {"contender": who}, "stats": {"median": seconds}}
        for g, who, seconds in turns
    ]
    machine = {"cpu": {"brand_raw": "a processor", "count": 2}, "quark_numba": {}, "instruction_sets": ["AVX2", "AVX-512"]}
    content = {"datetime": "2026-11-27T20:00", "machine_info": machine, "benchmarks": benchmarks}
    (tmp_path / "run.json").write_text(json.dumps(content))
    return tmp_path / "run.json"


def test_the_best_turn_of_each_contender_is_kept(tmp_path):
    turns = [("g", "float", 3.0), ("g", "quark", 9.0), ("g", "float", 2.0), ("g", "quark", 10.0)]
    ((name, kept),) = saved_results.results_of(run_of(tmp_path, turns))
    assert (name, kept["seconds"]) == ("a", {"g": {"float": 2.0, "quark": 9.0}})
    said = "Each time is the best of 2 turns; the slowest turn typically takes 31 % longer."
    results = saved_results.Results(kept)
    runs = [("2026-11-27", "a processor, 2 processors (AVX2, AVX-512)", "")]
    assert saved_results.runs_of({"a": results}) == runs
    assert result_tables.run_line(results, {"a": results}) == f"[Run 1](#runs), 2026-11-27, a processor, 2 processors. {said}\n"
    assert next(page_texts.measured_line(results)) == f"Measured on a processor, 2 processors. {said}"


@pytest.mark.parametrize(
    ("one", "two", "is_kept"),
    [
        (0.010, 0.006, True),
        (0.010, 0.0105, True),
        (0.010, 0.012, False),  # as with another program on the second processor
        (0.0001, 0.0002, True),  # a second thread does not help a small model
    ],
)
def test_a_run_on_a_busy_machine_is_not_kept(tmp_path, monkeypatch, capsys, one, two, is_kept):
    monkeypatch.setattr(saved_results, "SAVED", tmp_path / "results")
    turns = [("m/threads=1", "float", one), ("m/threads=2", "float", two), ("m/load", "float", 1.0)]
    assert saved_results.keep(run_of(tmp_path, turns)) == is_kept
    assert (tmp_path / "results" / "a.json").exists() == is_kept
    assert ("m: 10 ms on one thread, 12 ms on two" in capsys.readouterr().out) == (not is_kept)


def test_a_run_without_a_kept_contender_is_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(saved_results, "SAVED", tmp_path / "results")
    assert saved_results.keep(run_of(tmp_path, [("g", "float", 2.0), ("g", "quark", 9.0)]))
    assert not saved_results.keep(run_of(tmp_path, [("g", "float", 1.0)]))
    assert "no Quark's library" in capsys.readouterr().out
    assert '"float": 2.0' in text_of(tmp_path / "results" / "a.json")


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0045, "0.0045"), (0.996, "1.0"), (1.96, "2.0"), (9.96, "10"), (188.7, "190"), (13629, "14,000"), (0, "0")],
)
def test_numbers_of_the_benchmarks_have_two_significant_digits(number, text):
    assert pages.digits(number) == text


def test_tables_are_aligned_in_their_source():
    lines = pages.table(["model", "ms", "why"], [["a", "1.5", "[it](#is)"], ["a long one", "", "slow"]])
    assert [*lines] == [
        "| model      |  ms | why       |",
        "| ---------- | --: | --------- |",
        "| a          | 1.5 | [it](#is) |",
        "| a long one |     | slow      |",
        "",
    ]


def rows_of(text, column):
    """Return the rows of the tables in a page that name this column, in order, as dictionaries."""
    header = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        if header and cells and not set(cells[0]) <= {"-", " "}:
            yield dict(zip(header, cells, strict=True))
        header = cells if cells and column in cells else header if cells else None


def test_the_first_readme_has_the_times_beside_quarks_library():
    details = rows_of(text_of(pages.RESULTS), "speed-up of InferenceSession over Quark's library")
    columns = "speed-up of InferenceSession over Quark's library", "InferenceSession"
    expected = [tuple(row[column].split(result_tables.ON_THREADS)[0] for column in columns) for row in details]
    front = rows_of(text_of(ROOT / "README.md"), page_texts.FRONT_COLUMNS[0])
    assert [tuple(row[column] for column in page_texts.FRONT_COLUMNS) for row in front] == expected
    assert len(expected) == 7


def test_the_first_readme_has_the_start_up_times_of_the_benchmarks():
    content = json.loads(text_of(saved_results.SAVED / "start_up.json"))["seconds"]
    seconds = [content["empty"][f"session/{name}_model"] for name in ("bf16", "mx9")]
    front = text_of(ROOT / "README.md")
    found = re.search(r"`InferenceSession` compiles kernels: ([\d.]+) s \(bfloat16\) or ([\d.]+) s \(MX9\)", front)
    assert [float(each) for each in found.groups()] == pytest.approx(seconds, rel=0.05)
