"""The cache on disk: filled by several processes, unwritable, broken or of another version."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numba
import pytest
from marks import default_of, sizes
from processes import python, run, start

import quark_numba
from quark_numba.compiling import cache, user_folder
from quark_numba.compiling.sources import sources

pytestmark = pytest.mark.compiled

# One type also has large arrays. They need another form of the kernel, which takes four times as long to compile.
SMALL = "check('int8', size=5_000)"
CHECK = "check('int8'); check('bfloat16', size=5_000)"


def filled_by(count, folder, code=CHECK):
    """Return the folder, in which `count` processes at once have cached all kernels that the code needs."""
    processes = [start(code, NUMBA_CACHE_DIR=str(folder)) for _ in range(count)]
    assert [process.wait(300) for process in processes] == [0] * count
    return folder


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    return filled_by(3, tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
@sizes("count", 2, slow=3, full=8)
def test_eight_processes_fill_it_at_once(count, tmp_path, request):
    code = SMALL if count == 2 else CHECK
    folder = request.getfixturevalue("filled") if count == 3 else filled_by(count, tmp_path, code)
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.kernel")}
    assert files
    run(code, NUMBA_CACHE_DIR=str(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.kernel")} == files


def damaged(content, damage):
    if damage == "truncated":
        return content[: len(content) // 2]
    if damage == "empty":
        return b""
    if damage == "foreign":
        return b"something else\n" * 99
    changed = bytearray(content)
    for at in range(damage, len(content), 997):
        changed[at] ^= 1 << damage % 8
    return bytes(changed)


@pytest.mark.parametrize("damage", default_of(["truncated", "empty", "foreign", 0, 31, 33, 500, 994], "truncated"))
@pytest.mark.slow
def test_damaged_files(damage, filled, tmp_path):
    """Damaged files are made anew. If the damage is a number, one bit of every 997th byte is flipped, from that byte on."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.kernel")}
    assert contents
    for path, content in contents.items():
        path.write_bytes(damaged(content, damage))
    run(CHECK, NUMBA_CACHE_DIR=str(tmp_path))
    assert {path: len(content) for path, content in contents.items()} == {path: path.stat().st_size for path in contents}


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a file is of Linux: it ends processes elsewhere")
@pytest.mark.slow
def test_no_room(tmp_path):
    """If a file cannot be written as a whole, as on a full disk, there still is a result."""
    run(
        f"""
import logging, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
logging.basicConfig(filename={str(tmp_path / "log")!r})
check("int8", size=5_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
check("uint16", size=5_000)
""",
        NUMBA_CACHE_DIR=str(tmp_path),
    )
    assert not list(tmp_path.rglob("*.kernel*"))
    assert "cannot be kept" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_nowhere_to_write(tmp_path):
    """Neither the package's folder nor the user's can be written to. Kernels are compiled without a cache."""
    package = tmp_path / "package" / "quark_numba"
    shutil.copytree(Path(quark_numba.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    # The cache would be in a folder __pycache__ of the package, or in the user's cache. Files are in the way of both.
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    environment = {"PYTHONPATH": str(package.parent), "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home")}
    at = f"assert quark_numba.__file__.startswith({str(tmp_path)!r}), quark_numba.__file__; "
    run(
        f"{at}assert not list(__import__('pathlib').Path(quark_numba.__file__).parent.rglob('*.kernel')); {SMALL}",
        NUMBA_CACHE_DIR="",
        **environment,
    )
    assert not list(tmp_path.rglob("*.kernel"))


def test_a_folder_in_which_names_do_not_fit(monkeypatch, tmp_path):
    """A folder is not used if its path is too long for the names of kernels, as every kernel would be compiled and then not
    kept. On Windows, a path has at most 260 characters."""
    temporary_file = tempfile.TemporaryFile

    def short(dir, suffix=""):  # noqa: A002
        if len(os.path.join(dir, suffix)) > 250:
            raise FileNotFoundError(dir)
        return temporary_file(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", short)
    for name, fits in (("a", True), ("a" * 200, False)):
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / name))
        assert cache.folder.__wrapped__() == (tmp_path / name / "quark_numba" if fits else None)


@pytest.mark.parametrize(
    ("system", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "/cache/quark_numba"),
        ("linux", None, "/home/me/.cache/quark_numba"),
        ("darwin", None, "/home/me/Library/Caches/quark_numba"),
        ("win32", "LOCALAPPDATA", "/cache/quark_numba/Cache"),
    ],
)
def test_the_users_folder(system, variable, expected, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    if variable:
        monkeypatch.setenv(variable, "/cache")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", system)
        assert user_folder.own_folder() == Path(expected)


@pytest.mark.parametrize("family", ["linear", "block"])
def test_the_digest_covers_what_a_kernel_is_made_of(family):
    """The digest covers all modules that the kernel's module imports, directly or not, except those that run the compilation.
    It covers no others, because every edit of a covered file makes every kernel stale."""
    grimp = pytest.importorskip("grimp", exc_type=ImportError, reason="its DLL does not load under Wine")
    covered = {*sources(f"quark_numba.{family}.kernels")}
    imported = grimp.build_graph("quark_numba").find_upstream_modules(f"quark_numba.{family}.kernels")
    apart = ("cache", "lock", "memory", "sources", "user_folder")  # all but `lock` are imported by the cache alone
    apart = {f"quark_numba.compiling.{each}" for each in apart}
    assert covered >= imported - apart
    packages = {name.rpartition(".")[0] for name in imported}
    assert covered <= imported | packages | {f"quark_numba.{family}.kernels"}
    assert not covered & (apart | {f"quark_numba.{family}.calls", f"quark_numba.{family}.operators"})


@pytest.mark.slow
def test_another_version_of_the_package(tmp_path):
    """Kernels of other sources are not used, though they are in the same folder."""
    package = tmp_path / "package" / "quark_numba"
    shutil.copytree(Path(quark_numba.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run(SMALL, **environment)
    codecs = package / "linear" / "arithmetic.py"
    source = codecs.read_text()
    changed = source.replace("wide(value + magic)", "wide(value + value + magic)")
    assert changed != source
    codecs.write_text(changed)
    run(
        """
try:
    check("int8", size=5_000)
except AssertionError:
    pass
else:
    raise SystemExit("the old kernel")
""",
        **environment,
    )
    codecs.write_text(source)
    run(SMALL, **environment)


@pytest.mark.parametrize(
    "names",
    [
        ["uint4", "float4e2m1"],
        pytest.param(["uint4", "uint2", "int4", "float4e2m1", "float6e2m3", "float6e3m2"], marks=pytest.mark.full),
    ],
)
@pytest.mark.slow
def test_kernels_of_one_shape_from_the_caches_of_processes(names, tmp_path):
    """The kernels have the same types and the same names of their parts, but compute different results."""
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


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's C library for another rounding")
@pytest.mark.parametrize("thread", ["main", "another"])
@pytest.mark.slow
def test_rounding_of_the_process_that_fills_it(thread, tmp_path):
    """A thread that rounds upward compiles code for all processes, whose constants must not be rounded upward."""
    values = """
codes, scale = np.arange(256, dtype=np.uint8).view(oracle.dtype("float8e4m3fn")), np.float32(0.5)
expected = oracle.dequantize(codes, scale, None, "float8e4m3fn")
def compare():
    oracle.assert_same_bits(dequantize(codes, scale), expected)
"""
    upward = """
import ctypes, platform
library = ctypes.CDLL("libm.so.6")
def compile_upward():
    upward = 0x400000 if platform.machine() == "aarch64" else 0x800
    library.fesetround(upward)
    dequantize(codes, scale)
    assert library.fegetround() == upward
    library.fesetround(0)
"""
    begin = {"main": "compile_upward()", "another": "it = threading.Thread(target=compile_upward); it.start(); it.join()"}
    run(f"{values}{upward}{begin[thread]}\ncompare()", NUMBA_CACHE_DIR=str(tmp_path))
    run(f"{values}compare()", NUMBA_CACHE_DIR=str(tmp_path))


OBJECT = """
import shutil
import llvmlite.binding as ll
from pathlib import Path
from quark_numba.compiling.cache import folder, object_of
from quark_numba.ort import callbacks

addresses = [callbacks.compiled(function) for function in callbacks.SHARED[:COUNT][::-1]]
for path in Path(OTHER).rglob("*.kernel"):
    shutil.copy(path, folder())
symbol, _, bitcode = object_of(addresses[-1])
assert not ll.parse_bitcode(bitcode).get_function(symbol).is_declaration
print(symbol)
"""


def symbol_in(folder, count, other):
    code = OBJECT.replace("COUNT", str(count)).replace("OTHER", repr(str(other)))
    done = python("-P", "-c", code, NUMBA_CACHE_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_file_that_another_process_has_written_meanwhile(tmp_path):
    """Its symbol differs, as it has a number that counts what a process has compiled."""
    others = symbol_in(tmp_path / "other", 2, tmp_path / "none")
    assert symbol_in(tmp_path / "alone", 1, tmp_path / "none") != others
    assert symbol_in(tmp_path / "own", 1, tmp_path / "other") == others


def test_an_operator_from_outside_depends_on_what_it_takes_from_the_package():
    covered = sources("toy_family")
    assert {"toy_family", "quark_numba.compiling.intrinsics", "quark_numba.ort.nodes.context"} <= {*covered}
