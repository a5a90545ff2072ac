"""The READMEs: their examples run, and the links, files, names, commands and options in them exist."""

import contextlib
import functools
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quark_numba
from quark_numba import cli

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / folder for folder in ("bench", "quark_numba", "tests"))
READMES = [ROOT / "README.md", *(path for folder in FOLDERS for path in sorted(folder.rglob("README.md")))]

every_readme = pytest.mark.parametrize("path", READMES, ids=lambda path: path.relative_to(ROOT).as_posix())


def text_of(path):
    return path.read_text(encoding="utf-8")


def python_of(text):
    """All Python examples, each line where it stands in the README, so that tracebacks name it."""
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
    """Paragraphs, items of lists, rows of tables: the pieces of code in each."""
    for statement in re.split(r"\n\s*\n|\n(?=- |\d+\. |\||#)", FENCED.sub("\n", text)):
        yield CODE.findall(statement)


def pieces_of_code(text):
    yield from shell_commands(text)
    for codes in statements(text):
        yield from codes


LINK = re.compile(r"\]\(([^()\s]+)\)")


def anchors(path):
    """As GitHub makes them of headings."""
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
    """Files without a folder are beside the README; paths begin there, or in the repository's root."""
    for piece in pieces_of_code(text):
        for word in piece.split():
            is_path = re.fullmatch(r"\w[\w.-]*/([\w.-]+/)*([\w.-]+\.(py|md|json|onnx|npz))?", word)
            folders = (path.parent, ROOT) if is_path else (path.parent,)
            if (is_path or re.fullmatch(r"\w+\.py", word)) and not any((each / word).exists() for each in folders):
                yield word


def missing_names(text):
    for piece in pieces_of_code(text):
        for name in re.findall(r"\bquark_numba\.(\w+)", piece):
            if not hasattr(quark_numba, name):
                yield name


def commands(text):
    """Each subcommand with an option that is named in the same piece of code, or after it in the same statement; None stands
    for no option, or no subcommand."""
    for codes in [*([command] for command in shell_commands(text)), *statements(text)]:
        subcommand = None
        for code in codes:
            words = [word.rpartition("/")[2] for word in code.split()]
            if "quark-numba" in words:
                words = words[words.index("quark-numba") + 1 :]
                if words and re.fullmatch(r"[a-z]+", words[0]):
                    subcommand = words[0]
                    yield subcommand, None
            elif not code.startswith("--"):
                continue
            for word in words:
                if word.startswith("--"):
                    yield subcommand, word.partition("=")[0]


@functools.cache
def options_of(subcommand):
    """As its help lists them; None if there is no such subcommand."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as stop:
        cli.main([subcommand, "--help"])
    return None if stop.value.code else frozenset(re.findall(r"^  (?:-\w, )?(--[\w-]+)", out.getvalue(), re.MULTILINE))


def missing_commands(text):
    """An option beside no subcommand has to be one of any that the README names."""
    found = list(commands(text))
    everyones = {option for subcommand, _ in found if subcommand for option in options_of(subcommand) or ()}
    for subcommand, option in found:
        options = options_of(subcommand) if subcommand else everyones
        if options is None or (option and option not in options):
            yield f"{subcommand} {option}"


EXAMPLES = [path for path in READMES if python_of(text_of(path)).strip()]


@pytest.mark.compiled
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_run(path, tmp_path):
    """From top to bottom, in one process."""
    shutil.copy(ROOT / "tests" / "models" / "textline_cls_bf16.onnx", tmp_path / "model.onnx")
    script = tmp_path / "README.py"
    script.write_text(python_of(text_of(path)), encoding="utf-8")
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_there_are_examples():
    folders = ("analysis", "arrays", "onnx_tools", "ort", "rewriting", "running", "session")
    assert {ROOT / "README.md", *(ROOT / "quark_numba" / each / "README.md" for each in folders)} <= set(EXAMPLES)


def test_the_first_readme_is_short():
    lines = text_of(ROOT / "README.md").splitlines()
    assert len(lines) <= 170
    assert [line for line in lines if len(line) > 120] == []


@every_readme
def test_all_that_is_named_exists(path):
    text = text_of(path)
    assert list(missing_links(path, text)) == []
    assert list(missing_files(path, text)) == []
    assert list(missing_names(text)) == []
    assert list(missing_commands(text)) == []


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
        ("- `quark-numba run MODEL`\n- `--runs`, `--keep-codes`", ["None --keep-codes"]),
        ("```sh\ngo && .venv/bin/quark-numba run m \\\n  --runs 3 --nothing\npytest --cov\n```", ["run --nothing"]),
    ],
)
def test_what_is_missing_is_found(text, missing):
    path = ROOT / "README.md"
    assert [
        *missing_links(path, text),
        *missing_files(path, text),
        *missing_names(text),
        *missing_commands(text),
    ] == missing
