"""Temporary folders, which the next process removes if this one is killed."""

from __future__ import annotations

import atexit
import errno
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..compiling.lock import IMPORTS
from ..compiling.user_folder import without_links
from ..errors import MissingFileError

PREFIX = "quark_numba_"

_SUFFIX = ".tmp"

_NAME = re.compile(rf"\.?{PREFIX}[a-z0-9_]{{8}}\{_SUFFIX}")

# The file of a folder that its process keeps open, and locked where the system has locks that end with a process; and what is
# in it. A folder of the same name without it belongs to another program.
_LOCK, _MARK = "in use", b"quark_numba made this folder, and removes it when it is no longer used.\n"

# The folder within it for the files. While files beside the temporary folder are exchanged, the old files are in another
# folder, and a file says what is exchanged.
_FILES, _ASIDE, _EXCHANGE = "files", "aside", "exchange.json"

# A file within it that is made to see which mode new files have.
FRESH = "fresh"


@contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None, prefix: str = PREFIX) -> Iterator[str]:
    """Yield the path of an empty folder that exists within the context, in `parent` or else where Python makes temporary files.
    Folders of killed processes in the same place are removed. Windows cannot remove files while a session reads them, so
    removal is tried again when the process ends."""
    with IMPORTS:
        import shutil
        import tempfile  # both take longer than all else that a session of a kept model imports

    place = os.path.abspath(parent or tempfile.gettempdir())
    remove_left_behind(place)
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=place)
        with suppress(FileNotFoundError):  # another process took it for one that was left behind
            lock = open(os.path.join(folder, _LOCK), "wb", buffering=0)  # noqa: SIM115  # closed below
            if try_to_lock(lock) is not False and os.path.exists(lock.name):
                break
            lock.close()
            shutil.rmtree(folder, ignore_errors=True)
    inner = os.path.join(folder, _FILES)
    try:
        lock.write(_MARK)
        os.mkdir(inner)
        yield inner
    finally:
        if _may_be_unfinished(folder):
            lock.close()  # the next call in this folder continues
        else:
            # The lock goes last: a folder with files but without it would stay for ever if this process were killed now.
            _remove_files(folder)
            lock.close()
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.exists(folder):
                atexit.register(shutil.rmtree, folder, ignore_errors=True)


def remove_left_behind(place: str | os.PathLike[str]) -> None:
    """Remove the temporary folders of killed processes, and nothing that this module did not make."""
    for folder in Path(place).glob(f"*{PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # on Windows: a file that its process has open
            if not _NAME.fullmatch(folder.name) or folder.is_symlink() or not _is_of_this_user(folder):
                continue
            if (folder / _LOCK).exists():
                with open(folder / _LOCK, "r+b") as lock:
                    if try_to_lock(lock) is not True or (mark := lock.read(len(_MARK) + 1)) not in (_MARK, b""):
                        continue
                    if os.name == "posix":
                        _empty(folder, mark)
                if os.name != "posix":  # no file that is open can be removed
                    (folder / _LOCK).unlink()
                    try:
                        _empty(folder, mark)
                    except BaseException:
                        (folder / _LOCK).write_bytes(_MARK)
                        raise
            folder.rmdir()  # raises an error if it is not empty


def _is_of_this_user(folder: Path) -> bool:
    """Return whether the folder is this user's. Another one could put a link in its place while it is being removed."""
    return os.name != "posix" or folder.lstat().st_uid == os.geteuid()


def _empty(folder: Path, mark: bytes) -> None:
    """Remove what `temporary_folder` puts into a folder. A lock without a mark was made before all files."""
    if mark:
        with _exchanges_wait(folder.parent):
            _put_back(folder.parent, folder)
        _remove_files(folder)
    (folder / _LOCK).unlink(missing_ok=True)


def _remove_files(folder: str | os.PathLike[str]) -> None:
    with IMPORTS:
        import shutil

    for each in (_FILES, _ASIDE):
        shutil.rmtree(os.path.join(folder, each), ignore_errors=True)
    for each in (_EXCHANGE, FRESH):
        Path(folder, each).unlink(missing_ok=True)


@contextmanager
def exchanging(files: Sequence[str], place: str, folder: str) -> Iterator[None]:
    """Move files of `place` aside, the last one first, while their new content is moved there from `folder`, which
    `temporary_folder` yielded. If the last file does not get there, or this process is killed, the old files come back: now, or
    else when files of the place are used next."""
    root = os.path.dirname(folder)
    new = {file: _identity(os.path.join(folder, file)) for file in files}
    os.mkdir(os.path.join(root, _ASIDE))
    with _exchanges_wait(place):
        Path(root, _EXCHANGE).write_text(json.dumps({"last": files[-1], "new": new}), encoding="utf-8")
        try:
            for file in reversed(files):
                with suppress(FileNotFoundError):
                    os.replace(os.path.join(place, file), os.path.join(root, _ASIDE, file))
            yield
        except BaseException:
            with suppress(OSError):
                _put_back(place, root)
            raise


def _unfinished(root: str | os.PathLike[str]) -> tuple[list[str], dict[str, list[int]]]:
    """Return (names, new) for an exchange that was interrupted: the names of the old files that were moved aside, in the order
    in which they go back, and the identities of the new files by name. Return no names if the exchange is finished, as the last
    new file has left the temporary folder. Raise OSError if something is aside without a record of the exchange."""
    aside, record = os.path.join(root, _ASIDE), os.path.join(root, _EXCHANGE)
    if os.path.islink(aside):
        raise FileExistsError(aside)
    files = os.listdir(aside) if os.path.isdir(aside) else []
    if not files:
        return [], {}
    try:
        with open(record, encoding="utf-8", opener=without_links) as file:
            exchange = json.load(file)
        last, new = exchange["last"], {**exchange["new"]}
        is_finished = not os.path.lexists(os.path.join(root, _FILES, last))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise FileNotFoundError(record) from None
    return ([], {}) if is_finished else (sorted(files, key=lambda file: file == last), new)


def _may_be_unfinished(root: str | os.PathLike[str]) -> bool:
    try:
        files, _ = _unfinished(root)
    except OSError:
        return True
    return bool(files)


def _put_back(place: str | os.PathLike[str], root: str | os.PathLike[str]) -> None:
    """Move files back to their place if their exchange is not finished. Raise FileExistsError if this would replace a file that
    is not of the exchange."""
    files, new = _unfinished(root)
    for file in files:
        path = os.path.join(place, file)
        if os.path.lexists(path) and _identity(path) != new.get(file):
            raise FileExistsError(path)
    for file in files:
        os.replace(os.path.join(root, _ASIDE, file), os.path.join(place, file))


def _identity(path: str) -> list[int]:
    """Return the inode, the size and the time of modification of a file, which a renamed file keeps."""
    state = os.lstat(path)
    return [state.st_ino, state.st_size, state.st_mtime_ns]


@contextmanager
def _exchanges_wait(place: str | os.PathLike[str]) -> Iterator[None]:
    """Let other processes and threads exchange no files of a folder meanwhile, where the system can lock folders. Raise
    TimeoutError if another one does so for ten seconds."""
    if os.name != "posix":
        yield
        return
    import fcntl

    try:
        folder = os.open(place, os.O_RDONLY)
    except PermissionError:
        yield
        return
    try:
        end = time.monotonic() + 10
        while try_to_lock(folder) is False:
            if time.monotonic() > end:
                raise TimeoutError(errno.ETIMEDOUT, "another process is exchanging files of this folder")
            time.sleep(0.01)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)  # a forked child may have the folder open
        os.close(folder)


def recover(path: str | os.PathLike[str]) -> None:
    """Put a file that is missing back in its place, if a process was killed while it exchanged the file for another. Raise
    ModelError if the file is still aside, since its folder has changed."""
    if os.path.exists(path):
        return
    before = None
    with suppress(OSError, ValueError):  # no file has such a name
        place, file = os.path.split(os.path.realpath(path))
        remove_left_behind(place)
        files = [aside / file for aside in Path(place).glob(f"*{PREFIX}*{_SUFFIX}/{_ASIDE}")]
        before = next(filter(os.path.lexists, files), None)
    if before and not os.path.exists(path):
        was = "a process was killed while it replaced this file, and its folder has changed since"
        raise MissingFileError(f"{os.fspath(path)}: {was}; the previous version is {before}")


def try_to_lock(lock: Any) -> bool | None:
    """Lock an open file for this process alone, and return whether that was possible, or None if the file system has no locks.
    Return True on Windows, where a file that is open cannot be removed."""
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
