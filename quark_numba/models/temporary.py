"""Temporary folders: their names, their locks, and when they are removed. If a process is killed, the next process removes its
folders.

1. `temporary_folder` creates a folder with the file ``in use``, which it locks and keeps open. It writes a mark into this file:
   a folder of the same name without the mark belongs to another program. The caller gets the folder ``files`` in it.
2. When the caller is done, the files are removed, then the lock, then the folder.
3. If the process is killed before step 2, the folder remains, and its lock is free. The next process that uses the same parent
   folder finds it (`remove_left_behind`). This process moves back the files that an unfinished exchange left aside
   (``exchanges``), and then does step 2.

A folder whose files cannot be moved back is not changed. A lock without a mark is from a process that was killed in step 1:
its folder has no files yet."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..compiling.lock import IMPORTS
from ..errors import MissingFileError
from .exchanges import ASIDE, EXCHANGE, FILES, may_be_unfinished, put_back, try_to_lock

PREFIX = "quark_numba_"

_SUFFIX = ".tmp"

_NAME = re.compile(rf"\.?{PREFIX}[a-z0-9_]{{8}}\{_SUFFIX}")

# The file that is open while a folder is used, and locked where the system has locks that end with a process; and its mark.
_LOCK, _MARK = "in use", b"quark_numba made this folder, and removes it when it is no longer used.\n"

# A file within it that is made to see which mode new files have.
FRESH = "fresh"


@contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None, prefix: str = PREFIX) -> Iterator[str]:
    """Yield the path of an empty folder that exists within the context, in `parent` or else where Python makes temporary files.
    Folders of killed processes in the same place are removed. Windows cannot remove files while a session reads them, so
    removal is tried again when the process ends."""
    with IMPORTS:
        import shutil
        import tempfile  # both take longer than all else that a session of a cached model imports

    place = os.path.abspath(parent or tempfile.gettempdir())
    remove_left_behind(place)
    folder, lock = _created(place, prefix)
    inner = os.path.join(folder, FILES)
    try:
        lock.write(_MARK)
        os.mkdir(inner)
        yield inner
    finally:
        if may_be_unfinished(folder):
            lock.close()  # the next call in this folder continues
        else:
            # The lock goes last: a folder with files but without it would stay for ever if this process were killed now.
            _remove_files(folder)
            lock.close()
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.exists(folder):
                atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _created(place: str, prefix: str) -> tuple[str, IO[bytes]]:
    """Return a new folder, and its lock."""
    with IMPORTS:
        import shutil
        import tempfile

    while True:
        folder = tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=place)
        with suppress(FileNotFoundError):  # another process took it for one that was left behind
            lock = open(os.path.join(folder, _LOCK), "wb", buffering=0)  # noqa: SIM115  # the caller closes it
            if try_to_lock(lock) is not False and os.path.exists(lock.name):
                return folder, lock
            lock.close()
            shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind(place: str | os.PathLike[str]) -> None:
    """Remove the temporary folders of killed processes, and nothing that this module did not make."""
    for folder in Path(place).glob(f"*{PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # on Windows: a file that its process has open
            if _NAME.fullmatch(folder.name) and not folder.is_symlink() and _is_of_this_user(folder):
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder that no process has locked, if its lock has the mark. Raise OSError if it cannot be removed."""
    path = folder / _LOCK
    if path.exists():
        with open(path, "r+b") as lock:
            if try_to_lock(lock) is not True or (mark := lock.read(len(_MARK) + 1)) not in (_MARK, b""):
                return
            if os.name == "posix":
                _empty(folder, mark)
        if os.name != "posix":  # no file that is open can be removed
            path.unlink()
            try:
                _empty(folder, mark)
            except BaseException:
                path.write_bytes(_MARK)
                raise
    folder.rmdir()  # raises an error if it is not empty


def _is_of_this_user(folder: Path) -> bool:
    """Return whether the folder is this user's. Another one could put a link in its place while it is being removed."""
    return os.name != "posix" or folder.lstat().st_uid == os.geteuid()


def _empty(folder: Path, mark: bytes) -> None:
    """Remove what `temporary_folder` puts into a folder. A lock without a mark was made before all files."""
    if mark:
        put_back(folder)
        _remove_files(folder)
    (folder / _LOCK).unlink(missing_ok=True)


def _remove_files(folder: str | os.PathLike[str]) -> None:
    with IMPORTS:
        import shutil

    for each in (FILES, ASIDE):
        shutil.rmtree(os.path.join(folder, each), ignore_errors=True)
    for each in (EXCHANGE, FRESH):
        Path(folder, each).unlink(missing_ok=True)


def recover(path: str | os.PathLike[str]) -> None:
    """Put a file that is missing back in its place, if a process was killed while it exchanged the file for another. Raise
    ModelError if the file is still aside, since its folder has changed."""
    if os.path.exists(path):
        return
    before = None
    with suppress(OSError, ValueError):  # no file has such a name
        place, file = os.path.split(os.path.realpath(path))
        remove_left_behind(place)
        files = [aside / file for aside in Path(place).glob(f"*{PREFIX}*{_SUFFIX}/{ASIDE}")]
        before = next(filter(os.path.lexists, files), None)
    if before and not os.path.exists(path):
        was = "a process was killed while it replaced this file, and its folder has changed since"
        raise MissingFileError(f"{os.fspath(path)}: {was}; the previous version is {before}")
