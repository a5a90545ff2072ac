"""The cache on disk: filled by several processes, unwritable, broken or of another version."""

import errno
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import numba
import numpy as np
import pytest
from marks import default_of, sizes
from processes import PREPARE, python, run, start

import quark_numba
from quark_numba.compiling import access_list, cache, user_folder
from quark_numba.compiling.array_functions import array_function
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
@sizes("count", 2, slow=8)
def test_processes_fill_it_at_once(count, tmp_path):
    code = SMALL if count == 2 else CHECK
    folder = filled_by(count, tmp_path, code)
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
@pytest.mark.slow(2)
def test_damaged_files(damage, filled, tmp_path):
    """Damaged files are made anew. If the damage is a number, one bit of every 997th byte is flipped, from that byte on."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.kernel")}
    assert contents
    for path, content in contents.items():
        path.write_bytes(damaged(content, damage))
    run(CHECK, NUMBA_CACHE_DIR=str(tmp_path))
    # A file's size depends on which of the processes wrote it: symbols have a number that counts what a process has compiled.
    bad = [path.name for path in contents if not cache._verified(path.read_bytes())]
    assert not bad


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


def test_a_session_that_waits_is_told_once(monkeypatch, caplog):
    """When a session needs a function that has to be compiled, it logs one line, which Python shows by default."""
    caplog.set_level("INFO", "quark_numba.compiling")
    monkeypatch.setattr(cache, "process", cache._Process())
    compiled = cache._File("f_", ())
    for waits in (False, True, False):
        if waits:
            cache.process.warns_on_next_compile = True
        compiled.find(bytes)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "INFO"]
    assert caplog.records[1].getMessage() == "compiling kernels takes some seconds; they are kept in memory alone"


@pytest.mark.parametrize("damage", ["none", "truncated", "foreign"])
def test_a_text_is_kept_as_functions_are(damage, monkeypatch, tmp_path):
    """The second time a text is read, unless its file is damaged or it is for another machine."""
    monkeypatch.setattr(cache, "location", lambda: cache.Location(tmp_path, True))
    assert cache.kept_text("text_0123456789ab", ("machine",), lambda: "first") == "first"
    (path,) = tmp_path.glob("*.kernel")
    assert cache._NAME.fullmatch(path.name)
    if damage != "none":
        path.write_bytes(damaged(path.read_bytes(), damage))
    expected = "first" if damage == "none" else "second"
    assert cache.kept_text("text_0123456789ab", ("machine",), lambda: "second") == expected
    assert cache.kept_text("text_0123456789ab", ("machine",), lambda: "third") == expected
    assert cache.kept_text("text_0123456789ab", ("other machine",), lambda: "fourth") == "fourth"


def test_a_text_that_cannot_be_kept_is_made_each_time(monkeypatch, tmp_path):
    """A text is made each time without a digest of its sources, and in a folder that cannot be written to."""
    monkeypatch.setattr(cache, "location", lambda: cache.Location(tmp_path, True))
    assert [cache.kept_text("text_", (), lambda text=text: text) for text in "ab"] == ["a", "b"]
    monkeypatch.setattr(cache, "location", lambda: cache.Location(tmp_path, True, "read-only"))
    monkeypatch.setattr(cache, "warn", lambda *_: None)
    assert [cache.kept_text("text_0123456789ab", (), lambda text=text: text) for text in "ab"] == ["a", "b"]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_first_session_is_not_silent(tmp_path):
    """The first process with a session prints one line, the second none, and neither does one that only calls on arrays."""
    session = "session(one_node('quantize', 'int8'))"
    for code, lines in (("check_array = quantize(np.ones(3, 'f'), 0.5)", 0), (session, 1), (session, 0)):
        done = python("-W", "error", "-c", f"{PREPARE}\n{code}", NUMBA_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert len(done.stderr.splitlines()) == lines, done.stderr
        assert lines == 0 or f"they are kept in {tmp_path}" in done.stderr


@pytest.mark.slow
def test_nowhere_to_write(tmp_path):
    """Neither the folder of the package nor that of the user is writable. Kernels are compiled without a cache."""
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
        assert bool(cache.location.__wrapped__().why_not) == (not fits)


@pytest.mark.parametrize(
    ("system", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "/cache/quark_numba"),
        ("linux", None, "/home/me/.cache/quark_numba"),
        ("linux", "XDG_CACHE_HOME: relative", "/home/me/.cache/quark_numba"),
        ("darwin", None, "/home/me/Library/Caches/quark_numba"),
        ("win32", "LOCALAPPDATA", "/cache/quark_numba/Cache"),
    ],
)
def test_the_users_folder(system, variable, expected, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    if variable:
        name, _, value = variable.partition(": ")
        monkeypatch.setenv(name, value or "/cache")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", system)
        assert user_folder.own_folder() == Path(expected)


@pytest.mark.skipif(os.name != "posix", reason="other systems have other lists of users")
@pytest.mark.parametrize("home", [None, "relative"])
def test_a_user_without_a_home(home, monkeypatch, tmp_path):
    """The user has an arbitrary ID, as in a container. Nothing is kept below the current folder."""
    import pwd

    def unknown(_):
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(sys, "frozen", True, raising=False)  # nothing beside the package
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home:
        monkeypatch.setenv("HOME", home)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="this user has no home folder"):
        user_folder.own_folder()
    assert cache.location.__wrapped__() == (None, False, "this user has no home folder")
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def place(monkeypatch, tmp_path):
    """Return the folder of kernels, which does not exist yet."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    cache.location.cache_clear()
    user_folder.warn.cache_clear()
    yield tmp_path / "quark_numba"
    cache.location.cache_clear()


def compile_one():
    """Return the result of a small kernel, which is loaded or compiled."""
    x = np.zeros(1)
    array_function(one, "one", numba.types.void(numba.float64[::1]))(x)
    return x[0]


def one(x):
    x[0] = 1


posix = pytest.mark.skipif(os.name != "posix", reason="modes and owners of POSIX")


@posix
@pytest.mark.parametrize("mask", [0, 0o002, 0o077])
def test_the_folder_is_for_this_user_alone(mask, place):
    """Others cannot write to files either, whatever the umask."""
    before = os.umask(mask)
    try:
        compile_one()
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    (file,) = cache.files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644 & ~mask


def two(x):
    x[0] = 2


@pytest.fixture
def planted(place):
    """Return the content of a file whose kernel writes 2, as another user might plant it."""
    array_function(two, "two", numba.types.void(numba.float64[::1]))
    (file,) = cache.files()
    content = file.read_bytes()
    file.unlink()
    return content


def of_another(path):
    if os.getuid():
        pytest.skip("only root can give files away")
    os.chown(path, 12345, 12345)


@posix
@pytest.mark.compiled
@pytest.mark.parametrize("change", [lambda file: file.chmod(0o664), lambda file: file.chmod(0o646), of_another])
def test_a_file_that_others_could_have_written(change, planted, place):
    """A file that others could have written is not loaded; the kernel is compiled again."""
    compile_one()
    (file,) = cache.files()
    file.write_bytes(planted)
    assert compile_one() == 2  # it is loaded if it is this user's
    change(file)
    assert compile_one() == 1
    user_folder.own_content(place, file.name)  # raises no error


@posix
@pytest.mark.compiled
def test_a_link_in_the_place_of_a_file(planted, tmp_path):
    compile_one()
    (file,) = cache.files()
    file.unlink()
    (tmp_path / "planted").write_bytes(planted)
    file.symlink_to(tmp_path / "planted")
    assert compile_one() == 1
    assert not file.is_symlink()


@posix
@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777])
def test_a_folder_to_which_others_can_write(mode, place, caplog):
    """If others can write to a folder of this user, that right is withdrawn from them, and a warning says so."""
    place.mkdir()
    place.chmod(mode)
    assert cache.location() == (place, True, "")
    assert stat.S_IMODE(place.stat().st_mode) == mode & ~0o022
    assert f"{place}: other users could write to this cache" in caplog.text


def unchanged_mode(patch):
    patch.setattr(os, "fchmod", lambda *_: None)  # as on a file system without modes


FOREIGN = {
    "of another user": (lambda place, _: of_another(place), "it belongs to another user, number 12345"),
    "of all": (
        lambda place, patch: (place.chmod(0o777), unchanged_mode(patch)),
        "other users can write to it, as its mode is 777",
    ),
    "a link of another user": (
        lambda place, _: (place.rmdir(), place.symlink_to(place.parent), os.chown(place, 12345, 12345, follow_symlinks=False)),
        "it belongs to another user, number 12345",
    ),
    "a link to itself": (lambda place, _: (place.rmdir(), place.symlink_to(place)), "Too many levels of symbolic links"),
    "a file": (lambda place, _: (place.rmdir(), place.touch()), "Not a directory"),
}


@posix
@pytest.mark.compiled
@pytest.mark.parametrize("cause", FOREIGN)
def test_a_folder_that_is_not_used(cause, place, monkeypatch, caplog):
    """Kernels are compiled in memory. One warning names the folder, the reason and the remedy."""
    if "another" in cause and os.getuid():
        pytest.skip("only root can give files away")
    place.mkdir()
    change, reason = FOREIGN[cause]
    change(place, monkeypatch)
    for _ in range(2):
        assert compile_one() == 1
    assert cache.location() == (place, False, reason)
    (warning,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert warning.startswith(f"{place}: compiled kernels and models cannot be kept: {reason}. ")
    assert "NUMBA_CACHE_DIR" in warning
    assert not cache.files()
    assert not [*place.iterdir()] if place.is_dir() and not place.is_symlink() else True


@posix
@pytest.mark.compiled
def test_a_link_of_this_user(place, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    compile_one()
    assert [*(tmp_path / "elsewhere").glob("*.kernel")] == cache.files()


@posix
@pytest.mark.compiled
def test_a_folder_that_can_only_be_read(place, monkeypatch, caplog):
    """Kernels of a read-only folder are loaded, as in a read-only image. Others are compiled, which gives a warning."""
    compile_one()
    cache.location.cache_clear()
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert cache.location() == (place, True, "Read-only file system")
    caplog.clear()
    assert compile_one() == 1
    assert not caplog.records
    (file,) = cache.files()
    file.unlink()
    assert compile_one() == 1
    assert f"{place}: compiled kernels and models cannot be kept: Read-only file system" in caplog.text
    assert not cache.files()


def refused(**_):
    raise OSError(errno.EROFS, "Read-only file system")


@posix
def test_the_packages_folder_if_others_can_write_to_it(monkeypatch, tmp_path):
    """The folder of the package stays as it is, since it belongs to Python, and kernels are in the cache of the user."""
    beside = tmp_path / "__pycache__"
    beside.mkdir()
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(cache, "_PACKAGE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache.location.__wrapped__().folder == beside
    beside.chmod(0o775)
    assert cache.location.__wrapped__() == (tmp_path / "home" / "quark_numba", True, "")
    assert stat.S_IMODE(beside.stat().st_mode) == 0o775


USER = "S-1-5-21-1-2-3-1001"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"O:{USER}D:(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{USER})", []),
        (f"O:BAD:PAI(A;OICI;FA;;;{USER})(A;OICI;0x1200a9;;;BU)(A;OICIIO;GA;;;CO)(A;ID;FRFX;;;WD)", []),
        (f"O:{USER}D:AI(A;OICIID;0x1301bf;;;AU)(A;ID;FA;;;SY)", ["AU"]),  # below C:\
        (f"O:{USER}D:(D;;FA;;;AU)(A;;FA;;;{USER})", []),  # refused
        (f"O:{USER}D:(A;;DCLCRPCR;;;BU)(A;;FA;;;WD)", ["BU", "WD"]),
        ("O:S-1-5-21-1-2-3-1002D:(A;;FA;;;S-1-5-21-1-2-3-1002)", ["S-1-5-21-1-2-3-1002"]),
        (f"O:{USER}D:NO_ACCESS_CONTROL", ["everybody"]),
        (f"O:{USER}", ["everybody"]),
        ("", ["an unknown owner", "everybody"]),
    ],
)
def test_access_lists_of_windows(text, expected):
    assert access_list.writers(text, USER) == expected


@pytest.mark.skipif(os.name != "nt", reason="needs the access lists of Windows")
def test_a_folder_of_this_user_on_windows(tmp_path):
    text = access_list._text_of(tmp_path)
    assert access_list.writers(text, access_list._this_user()) == []
    assert access_list.writers(text, USER)
    with pytest.raises(PermissionError, match="its access list cannot be read"):
        access_list.check_own(Path("C:\\no such folder"))


@pytest.mark.parametrize("family", ["linear", "block"])
def test_the_digest_covers_what_a_kernel_is_made_of(family):
    """The digest covers all modules that the kernel's module imports, directly or not, except those that run the compilation.
    It covers no others, because every edit of a covered file makes every kernel stale."""
    grimp = pytest.importorskip("grimp", exc_type=ImportError, reason="its DLL does not load under Wine")
    covered = {*sources(f"quark_numba.{family}.kernels")}
    imported = grimp.build_graph("quark_numba").find_upstream_modules(f"quark_numba.{family}.kernels")
    apart = (
        "access_list",
        "cache",
        "inner_functions",
        "installed_versions",
        "lock",
        "memory",
        "object_files",
        "process_lock",
        "sources",
        "user_folder",
    )  # all but `lock` are imported by the cache alone
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
        pytest.param(["uint4", "uint2", "int4", "float4e2m1", "float6e2m3", "float6e3m2"], marks=pytest.mark.slow),
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
from pathlib import Path
from quark_numba.compiling import cache
from quark_numba.compiling.object_files import ObjectFile
from quark_numba.ort import callbacks

addresses = [callbacks.compiled(function) for function in callbacks.SHARED[:COUNT][::-1]]
for path in Path(OTHER).rglob("*.kernel"):
    shutil.copy(path, cache.location().folder)
file, _, name = cache.reference_of(addresses[-1]).partition("#")
made = ObjectFile.of_bytes(cache._verified((cache.location().folder / file).read_bytes()))
assert made.load()[name]
print(made.symbols[name])
"""


def symbol_in(folder, count, other):
    code = OBJECT.replace("COUNT", str(count)).replace("OTHER", repr(str(other)))
    done = python("-P", "-c", code, NUMBA_CACHE_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_file_that_another_process_has_written_meanwhile(tmp_path):
    """The symbol in such a file differs, as it has a number that counts what a process has compiled."""
    others = symbol_in(tmp_path / "other", 2, tmp_path / "none")
    assert symbol_in(tmp_path / "alone", 1, tmp_path / "none") != others
    assert symbol_in(tmp_path / "own", 1, tmp_path / "other") == others


def test_an_operator_from_outside_depends_on_what_it_takes_from_the_package():
    covered = sources("toy_family")
    assert {"toy_family", "quark_numba.compiling.intrinsics", "quark_numba.ort.nodes.context"} <= {*covered}
