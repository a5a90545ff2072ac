"""Files and folders of cached models that are damaged, exchanged, linked, or not this user's."""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from cached_models import EXPECTED, entry_of, kept_result, result, write

import quark_numba
from quark_numba.models import model_files, temporary
from quark_numba.session import cache_keys
from quark_numba.session.model_cache import ModelCache

pytestmark = pytest.mark.compiled

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX's links, pipes, owners and modes of files")


def too_late(*_):
    pytest.fail("a session waits, for a pipe maybe")


@pytest.fixture
def _no_hang():
    """A session that waits for a pipe is a failure, and no test that never ends."""
    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["small", "large"])
def path(request, tmp_path, monkeypatch):
    """The path of a model in memory or in files, which is kept with its digest in the folder `cache` beside it."""
    if request.param == "large":
        monkeypatch.setattr(model_files, "MAX_IN_MEMORY", 10)
    monkeypatch.setattr(cache_keys, "_RACY_NS", -(10**9))  # keep the digests of files that were just written
    write(tmp_path / "m.onnx", 1)
    quark_numba.InferenceSession(tmp_path / "m.onnx", cache=tmp_path / "cache")
    return tmp_path / "m.onnx"


def flipped(file):
    before, content = os.stat(file), bytearray(file.read_bytes() or b"\0")
    content[random.Random(file.name).randrange(len(content))] ^= 4
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(file, make):
    file.unlink()
    make()


def linked(file):
    elsewhere = file.rename(file.with_name("elsewhere"))
    file.symlink_to(elsewhere)


WAYS = {
    "empty": lambda file: os.truncate(file, 0),
    "half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "a bit, and the times of before": flipped,
    "another file": lambda file: file.write_bytes(next(file.parent.rglob("model.onnx")).read_bytes()),
    "brackets": lambda file: file.write_bytes(b"[" * 100_000),
    "null": lambda file: file.write_bytes(b"null"),
    "no file": Path.unlink,
    "a folder": lambda file: replaced(file, file.mkdir),
    "a link": linked,
    "a link to itself": lambda file: replaced(file, lambda: file.symlink_to(file)),
    "a pipe": lambda file: replaced(file, lambda: os.mkfifo(file)),
}


@posix
@pytest.mark.usefixtures("_no_hang")
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.slow
def test_every_file_damaged_in_every_way(path, way):
    folder = path.parent / "cache"
    entry = entry_of(folder)
    names = [each.relative_to(folder) for each in folder.rglob("*") if each.is_file()]
    assert {each.suffix for each in names} >= {".json", ".onnx", ".digests"}
    for name in names:
        WAYS[way](folder / name)
        for _ in range(2):
            assert kept_result(path) == EXPECTED, name
        assert ModelCache(folder).open_or_discard(entry), name
        shutil.rmtree(folder)
        assert kept_result(path) == EXPECTED


@posix
@pytest.mark.by_default(1)
def test_a_damaged_entry_with_links(path, caplog):
    """A damaged entry with links is built again, and what they lead to is not removed."""
    entry, precious = entry_of(path.parent / "cache"), path.parent / "precious" / "file"
    precious.parent.mkdir()
    precious.touch()
    (entry / "folder").mkdir()
    (entry / "folder" / "link").symlink_to(precious.parent)
    os.truncate(entry / "kept.json", 20)
    assert kept_result(path) == EXPECTED
    assert ModelCache(path.parent / "cache").open_or_discard(entry)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    assert precious.exists()


@pytest.mark.by_default(1)
def test_exchanged_entries(path):
    """Each of them is whole, but under the name of the other."""
    folder, other = path.parent / "cache", path.parent / "other" / "m.onnx"
    entry = entry_of(folder)
    other.parent.mkdir()
    write(other, 2)
    quark_numba.InferenceSession(other, cache=folder)
    (other_entry,) = {each for each, _, _ in ModelCache(folder).entries()} - {entry}
    entry.rename(folder / "aside")
    other_entry.rename(entry)
    (folder / "aside").rename(other_entry)
    for _ in range(2):
        assert kept_result(path) == EXPECTED
        assert result(quark_numba.InferenceSession(other, cache=folder)) == [0, 2, 4, 6, 8, 10, 12]


@pytest.mark.by_default(1)
def test_a_folder_that_goes_while_sessions_live(path):
    sessions = [quark_numba.InferenceSession(path, cache=path.parent / "cache") for _ in range(2)]
    shutil.rmtree(path.parent / "cache", ignore_errors=os.name == "nt")  # Windows keeps files that are in use
    assert [result(session) for session in sessions] == [EXPECTED] * 2
    sessions[0].set_providers(["CPUExecutionProvider"])
    assert result(sessions[0]) == EXPECTED
    assert kept_result(path) == EXPECTED


@pytest.mark.parametrize("hours", [-(10**5), -1, 1, 10**5])
@pytest.mark.by_default(1)
def test_a_clock_that_is_wrong(path, hours, monkeypatch):
    """The digest of a file is not that of its content before, whatever the clock says."""
    now = cache_keys.time.time_ns
    monkeypatch.setattr(cache_keys.time, "time_ns", lambda: now() + hours * 3600 * 10**9)
    for factor in (2, 3):
        write(path, factor)
        assert kept_result(path) == [factor * each for each in EXPECTED]
        for each in (path.parent / "cache").rglob("*"):
            os.utime(each, (0, 0))


@posix
def test_an_entry_that_becomes_a_link_while_it_is_removed(path, monkeypatch):
    """When an entry becomes a link while it is removed, what the link leads to stays."""
    cache, entry, theirs = ModelCache(path.parent / "cache"), entry_of(path.parent / "cache"), path.parent / "theirs"
    shutil.copytree(entry, theirs)
    rename = os.rename

    def exchanged(*arguments):
        rename(entry, path.parent / "aside")
        entry.symlink_to(theirs)
        rename(*arguments)

    monkeypatch.setattr(os, "rename", exchanged)
    assert cache.remove(entry)
    assert {each.name for each in theirs.iterdir()} == {each.name for each in (path.parent / "aside").iterdir()}


@posix
def test_temporary_folders_of_others_stay(tmp_path, monkeypatch):
    """In a folder for all users, another one could put a link in the place of such a folder while it is being removed."""
    folder = tmp_path / f"{temporary.PREFIX}abcdefgh.tmp"
    (folder / "files").mkdir(parents=True)
    (folder / "in use").write_bytes(temporary._MARK)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        temporary.remove_left_behind(tmp_path)
    assert (folder / "in use").exists()
    temporary.remove_left_behind(tmp_path)
    assert not folder.exists()


@posix
def test_a_mask_that_lets_others_write(path):
    """Nobody else may write to an entry."""
    cache = ModelCache(path.parent / "cache")
    before = os.umask(0)
    try:
        write(path, 3)
        kept_result(path)
    finally:
        os.umask(before)
    entry = max((each for each, _, _ in cache.entries()), key=os.path.getctime)
    assert not any(each.stat().st_mode & 0o022 for each in (entry, *entry.iterdir()))
