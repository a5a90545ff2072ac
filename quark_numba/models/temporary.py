"""Temporary folders, which the next process removes if this one is killed."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PREFIX = "quark_numba_"

# The file of a folder that its process keeps open, and locked where the system has locks that end with a process.
_LOCK = "in use"

_OF_MKDTEMP = re.compile(rf"\.?{PREFIX}[a-z0-9_]{{8}}")


@contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None, prefix: str = PREFIX) -> Iterator[str]:
    """Yield the path of an empty folder that exists within the context, in `parent` or else where Python makes temporary files.
    Folders of killed processes in the same place are removed. Windows cannot remove files while a session reads them, so
    removal is tried again when the process ends."""
    place = os.path.abspath(parent or tempfile.gettempdir())
    remove_left_behind(place)
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, dir=place)
        with suppress(FileNotFoundError):  # another process took it for one that was left behind
            lock = open(os.path.join(folder, _LOCK), "wb")  # noqa: SIM115  # closed below
            if is_locked(lock) is not False and os.path.exists(lock.name):
                break
            lock.close()
            shutil.rmtree(folder, ignore_errors=True)
    inner = os.path.join(folder, "files")
    try:
        os.mkdir(inner)
        yield inner
    finally:
        # The files go first: a folder with files but without its lock would stay for ever if this process were killed now.
        shutil.rmtree(inner, ignore_errors=True)
        lock.close()
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.exists(folder):
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def remove_left_behind(place: str | os.PathLike[str]) -> None:
    """Remove the temporary folders of killed processes."""
    for folder in Path(place).glob(f"*{PREFIX}*"):
        with suppress(OSError):  # on Windows: a file that its process has open
            if not (folder / _LOCK).exists():
                if _OF_MKDTEMP.fullmatch(folder.name):
                    folder.rmdir()  # raises an error if it is not empty
            elif os.name == "posix":
                with open(folder / _LOCK, "r+b") as lock:
                    if is_locked(lock) is True:
                        shutil.rmtree(folder / "files", ignore_errors=True)
                        shutil.rmtree(folder, ignore_errors=True)
            else:
                (folder / _LOCK).unlink()
                shutil.rmtree(folder, ignore_errors=True)


def is_locked(lock: Any, *, shared: bool = False) -> bool | None:
    """Lock an open file, for this process alone or shared with others, and return whether that was possible; None: the file
    system has no locks. Return True on Windows, where a file that is open cannot be removed."""
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
