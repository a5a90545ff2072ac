"""The cache on disk: filled by several processes, unwritable, broken or of another version."""

import shutil
from pathlib import Path

import grimp
import pytest
from processes import run, start

import quark_numba
from quark_numba.compiling.cache import sources

pytestmark = pytest.mark.compiled

# One type with large arrays, too, which take another form of the kernel.
CHECK = "check('int8'); check('bfloat16', size=5_000)"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that has all that CHECK needs."""
    folder = tmp_path_factory.mktemp("cache")
    run(CHECK, NUMBA_CACHE_DIR=str(folder))
    return folder


def test_eight_processes_fill_it_at_once(tmp_path):
    processes = [start(CHECK, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(8)]
    assert [process.wait(300) for process in processes] == [0] * 8
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}
    assert files
    run(CHECK, NUMBA_CACHE_DIR=str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")} == files


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign"])
def test_damaged_files(damage, filled, tmp_path):
    """They are made anew."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*.nb?"):
        content = path.read_bytes()
        path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "foreign": b"something else\n" * 99}[damage])
    run(CHECK, NUMBA_CACHE_DIR=str(tmp_path))


def test_nowhere_to_write(tmp_path):
    """Neither the package's folder nor the user's is there to be written: what has no cache is compiled all the same."""
    package = tmp_path / "package" / "quark_numba"
    shutil.copytree(Path(quark_numba.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    # Numba wants to make a folder __pycache__ in the package, and one in the user's cache: both names are taken by files.
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    environment = {"PYTHONPATH": str(package.parent), "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home")}
    at = f"assert quark_numba.__file__.startswith({str(tmp_path)!r}), quark_numba.__file__; "
    run(
        at + "assert not list(__import__('pathlib').Path(quark_numba.__file__).parent.rglob('*.nb?')); " + CHECK,
        NUMBA_CACHE_DIR="",
        **environment,
    )
    assert not list(tmp_path.rglob("*.nb?"))


@pytest.mark.parametrize("wing", ["linear", "block"])
def test_the_digest_covers_what_a_kernel_is_made_of(wing):
    """All that its module imports, directly or not, but what keeps kernels on disk; and no more, as each edit of a file that is
    covered makes every kernel stale."""
    package = Path(quark_numba.__file__).parent
    paths = [path.relative_to(package.parent) for path in sources(package / wing / "kernels.py")]
    covered = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    imported = grimp.build_graph("quark_numba").find_upstream_modules(f"quark_numba.{wing}.kernels")
    assert covered >= imported - {"quark_numba.compiling.cache"}
    assert covered <= imported | {f"quark_numba.{each}" for each in ("compiling", wing, f"{wing}.kernels")}
    assert not covered & {f"quark_numba.{wing}.calls", f"quark_numba.{wing}.operators", "quark_numba.compiling.cache"}


def test_another_version_of_the_package(tmp_path):
    """Kernels of other sources are not taken for one's own, though they lie beside them."""
    package = tmp_path / "package" / "quark_numba"
    shutil.copytree(Path(quark_numba.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run(CHECK, **environment)
    codecs = package / "linear" / "arithmetic.py"
    source = codecs.read_text()
    changed = source.replace("operand(value) / scale", "operand(value) / (scale + scale)")
    assert changed != source
    codecs.write_text(changed)
    run(
        """
try:
    check("int8")
except AssertionError:
    pass
else:
    raise SystemExit("the old kernel")
""",
        **environment,
    )
    codecs.write_text(source)
    run(CHECK, **environment)


def test_kernels_of_one_shape_from_the_caches_of_two_processes(tmp_path):
    """Their types and the names of their parts are the same; what they compute is not."""
    names = ["uint4", "uint2", "int4", "float4e2m1", "float6e2m3", "float6e3m2"]
    convert = """
for name in {}:
    x = np.random.default_rng(0).normal(0, 5, 70_001).astype(np.float32)
    scale, zero_point = np.ones(70_001, np.float32), np.ones(70_001, oracle.dtype(name))
    oracle.assert_same_bits(quantize(x, scale, zero_point, axis=0), oracle.quantize(x, scale, zero_point, name))
    y = quantize(x, scale[0], zero_point[0])
    oracle.assert_same_bits(y, oracle.quantize(x, scale[0], zero_point[0], name))
    oracle.assert_same_bits(dequantize(y, scale, zero_point, axis=0), oracle.dequantize(y, scale, zero_point, name))
"""
    for each in names:
        run(convert.format([each]), NUMBA_CACHE_DIR=str(tmp_path))
    run(convert.format(names), NUMBA_CACHE_DIR=str(tmp_path))
