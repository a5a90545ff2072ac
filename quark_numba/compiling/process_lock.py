"""Locks between processes, which the system frees when their process ends, in whatever way: the file that has them, and how
long a process waits for one."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from time import monotonic

from .lock import sleep

# The file with all locks of a folder. A lock is one byte of it, which need not exist.
FILE = "compiling.lock"

# The seconds that a process waits for another one, and those between two attempts.
_PATIENCE, _PAUSE = 30.0, 0.01

# The bytes whose locks this process holds. A fork holds no locks.
_held: list[int] = []

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_held.clear)


@contextmanager
def locked(folder: Path, name: str) -> Iterator[bool]:
    """Hold the lock `name` of a folder within the context, and yield whether another process held it first.

    The context begins without the lock if the file system has no locks, or if another process keeps the lock for `_PATIENCE`
    seconds. A process that holds a lock does not wait for a second one, so two processes never wait for each other. A lock only
    saves work: nothing may depend on it.
    """
    if _held:
        # Closing the file a second time would give the lock back: POSIX frees all locks that a process has on a file.
        yield False
        return
    byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
    end, has_waited = monotonic() + _PATIENCE, False
    with ExitStack() as files:
        with suppress(OSError):
            file = files.enter_context(open(folder / FILE, "ab", buffering=0, opener=_for_this_user))
            while (taken := _take(file, byte)) is False:
                has_waited = True
                if monotonic() > end:
                    break
                sleep(_PAUSE)
            if taken:
                _held.append(byte)
                files.callback(_give_back, file, byte)
        yield has_waited


def _for_this_user(path: str, flags: int) -> int:
    """Open a file; a new one is for this user alone. Raise OSError for a link, a pipe, or a file of another user, who might
    keep its locks."""
    number = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)
    state = os.fstat(number)
    if not stat.S_ISREG(state.st_mode) or (os.name == "posix" and state.st_uid != os.geteuid()):
        os.close(number)
        raise PermissionError(errno.EPERM, "it does not belong to this user")
    return number


def _take(file: FileIO, byte: int) -> bool | None:
    """Lock a byte of a file for this process, and return whether that was possible, or None if the file system has no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(byte)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # Unlike those of flock, these locks stay with this process: a fork does not hold them.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK) else None
    return True


def _give_back(file: FileIO, byte: int) -> None:
    if byte in _held:  # not in a fork
        _held.remove(byte)
    if sys.platform == "win32":  # elsewhere, closing the file frees it
        import msvcrt

        file.seek(byte)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
