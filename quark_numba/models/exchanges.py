"""Atomic exchanges: either all files of a group are replaced by new files, or none, also if the process is killed; and how long
one exchange waits for another.

1. The caller writes the new files in the folder ``files`` of a temporary folder (``temporary``).
2. `exchanging` locks the target folder, which has the old files: other processes wait with exchanges in this folder. It writes
   ``exchange.json``, which identifies the new files, and moves the old files to the folder ``aside``, the last file first.
3. The caller moves the new files to the target folder, the last file last. This finishes the exchange.

The last file is a model, and the other files hold its tensors. So a model is never in the same folder as the tensors of the
other model. If the process ends before step 3 is done, the next process that uses the target folder moves the old files back
(`put_back`)."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..compiling.user_folder import without_links

# What an exchange has in the temporary folder.
FILES, ASIDE, EXCHANGE = "files", "aside", "exchange.json"


@contextmanager
def exchanging(files: Sequence[str], place: str, folder: str) -> Iterator[None]:
    """Move files of `place` aside, the last one first, while their new content is moved there from `folder`, which
    `temporary_folder` yielded. If the last file is not moved to `place`, the old files are moved back. If this process is
    killed, the next use of files in `place` moves them back."""
    root = os.path.dirname(folder)
    new = {file: _identity(os.path.join(folder, file)) for file in files}
    os.mkdir(os.path.join(root, ASIDE))
    with _exchanges_wait(place):
        Path(root, EXCHANGE).write_text(json.dumps({"last": files[-1], "new": new}), encoding="utf-8")
        try:
            for file in reversed(files):
                with suppress(FileNotFoundError):
                    os.replace(os.path.join(place, file), os.path.join(root, ASIDE, file))
            yield
        except BaseException:
            with suppress(OSError):
                _put_back(place, root)
            raise


def _unfinished(root: str | os.PathLike[str]) -> tuple[list[str], dict[str, list[int]]]:
    """Return (names, new) for an exchange that was interrupted: the names of the old files that were moved aside, in the order
    in which they go back, and the identities of the new files by name. Return no names if the exchange is finished, that is, if
    the last new file has left the temporary folder. Raise OSError if files were moved aside without a record of the
    exchange."""
    aside, record = os.path.join(root, ASIDE), os.path.join(root, EXCHANGE)
    if os.path.islink(aside):
        raise FileExistsError(aside)
    files = os.listdir(aside) if os.path.isdir(aside) else []
    if not files:
        return [], {}
    try:
        with open(record, encoding="utf-8", opener=without_links) as file:
            exchange = json.load(file)
        last, new = exchange["last"], {**exchange["new"]}
        is_finished = not os.path.lexists(os.path.join(root, FILES, last))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise FileNotFoundError(record) from None
    return ([], {}) if is_finished else (sorted(files, key=lambda file: file == last), new)


def may_be_unfinished(root: str | os.PathLike[str]) -> bool:
    with suppress(OSError):
        files, _ = _unfinished(root)
        return bool(files)
    return True


def put_back(root: str | os.PathLike[str]) -> None:
    """Move the old files back to the parent of the temporary folder, if their exchange is not finished. Raise OSError if the
    files cannot be moved."""
    place = os.path.dirname(os.path.abspath(root))
    with _exchanges_wait(place):
        _put_back(place, root)


def _put_back(place: str | os.PathLike[str], root: str | os.PathLike[str]) -> None:
    """Move files back to their place if their exchange is not finished. Raise FileExistsError if this would replace a file
    that is not part of the exchange."""
    files, new = _unfinished(root)
    for file in files:
        path = os.path.join(place, file)
        if os.path.lexists(path) and _identity(path) != new.get(file):
            raise FileExistsError(path)
    for file in files:
        os.replace(os.path.join(root, ASIDE, file), os.path.join(place, file))


def _identity(path: str) -> list[int]:
    """Return the inode, the size and the time of modification of a file, which a renamed file keeps."""
    state = os.lstat(path)
    return [state.st_ino, state.st_size, state.st_mtime_ns]


@contextmanager
def _exchanges_wait(place: str | os.PathLike[str]) -> Iterator[None]:
    """A context in which other processes and threads cannot exchange files of a folder, if the system can lock folders. Raise
    TimeoutError if another exchange takes ten seconds."""
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
