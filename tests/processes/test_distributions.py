"""The package in an archive on sys.path, as bytecode alone, and in frozen applications."""

import compileall
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from paths import MODELS, ROOT
from processes import python

import quark_numba
from quark_numba.compiling import cache, sources

PACKAGE = Path(quark_numba.__file__).parent
QUANTIZE = """
import sys
import numpy as np
import quark_numba
from quark_numba.compiling import cache, sources
assert quark_numba.quantize(np.ones(3, np.float32), 0.5, dtype="int8").tolist() == [2, 2, 2]
print(quark_numba.__file__, cache.digest("quark_numba.linear.kernels"), sources.digest_of_package())
"""

# Finds the package in a folder, and has nothing but its code, as the loaders of some frozen applications.
CODE_ALONE = """
import importlib.abc, importlib.machinery, importlib.util, os, pkgutil, sys

class Loader(importlib.abc.Loader):
    def __init__(self, path):
        self.path = path
    def get_code(self, name):
        with open(self.path, "rb") as file:
            return compile(file.read(), f"{name}.py", "exec", dont_inherit=True)
    def exec_module(self, module):
        exec(self.get_code(module.__name__), module.__dict__)

class Finder:
    def __init__(self, place):
        if not place.startswith("frozen:"):
            raise ImportError
        self.place = place.removeprefix("frozen:")
    def find_spec(self, name, target=None):
        place = os.path.join(self.place, name.rpartition(".")[2])
        base = os.path.join(FOLDER, place)
        for path, places in ((f"{base}.py", None), (f"{base}/__init__.py", [f"frozen:{place}"])):
            if os.path.isfile(path):
                spec = importlib.machinery.ModuleSpec(name, Loader(path), is_package=places is not None)
                spec.submodule_search_locations = places
                return spec
    def iter_modules(self, prefix):
        for name in sorted(os.listdir(os.path.join(FOLDER, self.place))):
            path = os.path.join(FOLDER, self.place, name)
            if name.endswith(".py") and name != "__init__.py":
                yield prefix + name[:-3], False
            elif os.path.isfile(os.path.join(path, "__init__.py")):
                yield prefix + name, True

FOLDER = sys.argv[1]
sys.path_hooks.insert(0, Finder)
sys.path.insert(0, "frozen:")
import quark_numba
quark_numba.__file__ = "nowhere"
from quark_numba.compiling import sources
sources.__file__ = "/nowhere/quark_numba/compiling/sources.py"
print(sources.digest("quark_numba.linear.kernels"), sources.digest_of_package())
"""


def copied(folder):
    """Return the folder of a copy of the package."""
    return shutil.copytree(PACKAGE, folder / "quark_numba", ignore=shutil.ignore_patterns("__pycache__"))


def archived(package):
    """Return a zip archive with the package."""
    path = package.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in sorted(package.rglob("*")):
            archive.write(each, each.relative_to(package.parent))
    return path


def compiled(folder):
    package = copied(folder)
    assert compileall.compile_dir(package, quiet=2, legacy=True)
    for path in package.rglob("*.py"):
        path.unlink()
    return folder


def printed(code, *words, place="", **environment):
    """Return the words that a process prints that imports the package from a place."""
    begin = f"import sys; sys.path.insert(0, {str(place)!r})\n" if place else ""
    done = python("-P", "-c", begin + code, *words, PYTHONPATH="", **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.compiled
@pytest.mark.slow
def test_an_archive(tmp_path):
    """In an archive, kernels and sources are those of an ordinary installation. Cached models depend on the sources, too."""
    place = archived(copied(tmp_path))
    file, kernels, package = printed(QUANTIZE, place=place)
    assert file.startswith(str(place))
    assert kernels == cache.digest("quark_numba.linear.kernels")
    with open(tmp_path / "quark_numba" / "linear" / "arithmetic.py", "a") as file:
        file.write("# changed\n")
    archived(tmp_path / "quark_numba")
    _, changed, of_changed = printed(QUANTIZE, place=place, NUMBA_DISABLE_JIT="1")
    assert changed != kernels
    assert of_changed != package


@pytest.mark.compiled
@pytest.mark.slow
def test_bytecode_alone(tmp_path):
    """The digest is that of the bytecode of the whole package."""
    place = compiled(tmp_path / "package")
    file, kernels, package = printed(QUANTIZE, place=place, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert file.startswith(str(place))
    assert package.startswith(kernels)
    assert [each for each in (tmp_path / "cache").rglob("*.kernel") if kernels in each.name]
    (changed,) = (place / "quark_numba" / "linear").glob("arithmetic.pyc")
    changed.write_bytes(changed.read_bytes() + b"\0")
    _, kernels, of_changed = printed(QUANTIZE, place=place, NUMBA_DISABLE_JIT="1")
    assert of_changed.startswith(kernels)
    assert of_changed != package


def test_code_alone(tmp_path):
    """The digest is the same in each process, whatever else the process has, and differs for other code."""
    copied(tmp_path)
    (kernels, package), *others = (
        printed(f"{begin}\n{CODE_ALONE}", tmp_path, PYTHONHASHSEED=seed)
        for begin, seed in (("", "1"), ("import ast, dis, json", "2"))
    )
    assert package.startswith(kernels)
    assert others == [[kernels, package]]
    arithmetic = tmp_path / "quark_numba" / "linear" / "arithmetic.py"
    changed = arithmetic.read_text().replace("wide(value + magic)", "wide(value + value + magic)")
    assert changed != arithmetic.read_text()
    arithmetic.write_text(changed)
    assert not package.startswith(printed(CODE_ALONE, tmp_path)[0])


def text_of(text):
    return sources._text_of(compile(text, "name", "exec"))


@pytest.mark.parametrize("other", ["x = 2", "y = 1", "x = 1.0", "x = True", "x = -1", "def f():\n x = 1"])
def test_other_code_has_another_text(other):
    assert text_of("x = 1") == text_of("x = 1")
    assert text_of("x = 1") != text_of(other)


def test_the_order_of_a_set_does_not_count():
    """A digest does not depend on the order of a set, which differs between processes."""
    words = "{'a', 'b', 'c', 'd', 'e'}"
    texts = {text_of(f"x in {words}"), text_of(f"x in {{{', '.join(sorted(eval(words), reverse=True))!r}}}")}
    assert len(texts) == 2
    assert sources._text_of(frozenset("abcde")) == sources._text_of(frozenset("edcba"))


def test_a_module_without_a_file():
    """The kernel of an operator in a notebook is not kept, because the code that it depends on is unknown."""
    assert cache.digest("__main__") == ""
    assert cache.digest("no_such_module") == ""
    assert cache._File("compute_", ()).path is None


@pytest.mark.compiled
@pytest.mark.slow
def test_files_of_an_archive(tmp_path):
    """The page of an analysis and the sources of a library are read from it."""
    code = f"""
import quark_numba.cli
model = {str(MODELS / "textline_cls_bf16.onnx")!r}
assert quark_numba.cli.main(["analyze", model, "--random", "1", "--html", {str(tmp_path / "page.html")!r}]) == 0
quark_numba.build_library(model, {str(tmp_path / "library")!r})
"""
    printed(code, place=archived(copied(tmp_path)))
    assert "</html>" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "library").is_dir()


APPLICATION = """
import sys
import numpy as np
import quark_numba

if __name__ == "__main__":
    assert sys.frozen
    for name in quark_numba.__all__:
        getattr(quark_numba, name)
    model, cache, library = sys.argv[1:]
    assert quark_numba.quantize(np.ones(3, np.float32), 0.5, dtype="int8").tolist() == [2, 2, 2]
    session = quark_numba.InferenceSession(model, cache=cache)
    x = {each.name: np.zeros([n if isinstance(n, int) else 1 for n in each.shape], np.float32) for each in session.get_inputs()}
    session.run(None, x)
    try:
        quark_numba.build_library(model, library)
    except quark_numba.ModelError as error:
        assert "this is a frozen application" in str(error)
    from quark_numba.cli import main
    assert main(["info"]) == 0
    from quark_numba.compiling import cache
    print("digest", cache.digest("quark_numba.linear.kernels"))
"""


@pytest.mark.compiled
@pytest.mark.slow
def test_an_application_of_pyinstaller(tmp_path):
    """`pyinstaller script.py` is enough: the package has a hook. Its entry point is that of pyproject.toml."""
    pytest.importorskip("PyInstaller")
    script, site = tmp_path / "application.py", tmp_path / "site"
    script.write_text(APPLICATION)
    copied(site)
    (site / "quark_numba-0.dist-info").mkdir()
    (site / "quark_numba-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: quark_numba\nVersion: 0\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (hook_dirs,) = points["pyinstaller40"].items()
    (site / "quark_numba-0.dist-info" / "entry_points.txt").write_text("[pyinstaller40]\n{} = {}\n".format(*hook_dirs))
    command = [sys.executable, "-m", "PyInstaller", "--log-level", "WARN", str(script)]
    built = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    shutil.rmtree(site)
    application = tmp_path / "dist" / "application" / "application"
    before = {*application.parent.rglob("*")}
    arguments = [MODELS / "textline_cls_bf16.onnx", tmp_path / "kept", tmp_path / "library"]
    done = subprocess.run([application, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # As it is that of an ordinary installation, both have the same kernels.
    assert f"digest {cache.digest('quark_numba.linear.kernels')}" in done.stdout.splitlines()
    assert [*(tmp_path / "kept").glob("*/kept.json")]
    assert {*application.parent.rglob("*")} == before
