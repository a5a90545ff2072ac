"""The folder of the user in which the package keeps files, the check whether others could have written there, the warning if
nothing can be kept, and reading and writing its files. This module does without Numba."""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1].name

# The settings of Numba that do not change what it compiles for C.
_PLAIN = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY")

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder() -> Path:
    """Return the folder of the user, which may not exist yet: it is in the folder that NUMBA_CACHE_DIR names, or else in the
    cache folder of the user. It never depends on the current folder. Raise FileNotFoundError if the user has no such place."""
    if place := named_folder():
        return Path(place, _PACKAGE).absolute()
    if sys.platform == "win32":
        places, parts = [os.environ.get("LOCALAPPDATA", ""), r"~\AppData\Local"], [_PACKAGE, "Cache"]
    elif sys.platform == "darwin":
        places, parts = ["~/Library/Caches"], [_PACKAGE]
    else:
        places, parts = [os.environ.get("XDG_CACHE_HOME", ""), "~/.cache"], [_PACKAGE]
    for each in map(os.path.expanduser, places):
        if os.path.isabs(each):
            return Path(each, *parts)
    raise FileNotFoundError(errno.ENOENT, "this user has no home folder")


def named_folder() -> str:
    """Return the folder that NUMBA_CACHE_DIR names, or "". If Numba is loaded or has a file of settings, it tells."""
    if is_plain():
        return os.environ.get("NUMBA_CACHE_DIR", "")
    import numba

    return str(numba.config.CACHE_DIR)


def make_own(folder: Path) -> Path:
    """Make a folder for this user alone, or remove the write permission of others from an existing folder of this user. Return
    its path, which is not a link.

    Raises
    ------
    OSError
        If the folder cannot be made, belongs to another user (unless that is the system), or stays writable for others.
        `filename` is the folder.
    """
    try:
        with suppress(FileExistsError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        if os.name == "posix" and folder.is_symlink():
            _check(folder.lstat(), is_link=True)
            folder = Path(os.path.realpath(folder, strict=True))
        close_to_others(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
    return folder


def close_to_others(folder: Path) -> None:
    """Remove the write permission of others from a folder, except on Windows. Raise OSError if they keep it or own the
    folder."""
    with opened_folder(folder) as number:
        is_wide = False
        if number is not None:
            status = os.fstat(number)
            is_wide = status.st_uid == os.geteuid() and bool(status.st_mode & OTHERS_WRITE)
            if is_wide:
                os.fchmod(number, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
        _check_opened(number, folder)
        if is_wide:
            _log.warning("%s: other users could write to this cache. From now on only its owner can.", folder)


def check_folder(folder: Path) -> None:
    """Raise PermissionError if anyone but this user and the system could write to a folder."""
    with opened_folder(folder) as number:
        _check_opened(number, folder)


def _check_opened(number: int | None, folder: Path) -> None:
    if number is None:
        from . import access_list

        access_list.check_own(folder)
    else:
        _check(os.fstat(number))


def _check(status: os.stat_result, *, is_link: bool = False) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, f"it belongs to another user, number {status.st_uid}")
    if status.st_mode & OTHERS_WRITE and not is_link:  # the mode of a link means nothing
        raise PermissionError(errno.EPERM, f"other users can write to it, as its mode is {stat.S_IMODE(status.st_mode):o}")


def own_content(folder: Path, name: str) -> bytes:
    """Return the content of a file in a folder. Raise OSError if the file or the folder is a link, or if anyone but this user
    and the system could have written to them. The check concerns the opened file, not its name; on Windows, it concerns the
    access list of the folder."""
    with opened_folder(folder) as number:
        path = folder / name if number is None else name
        with open(path, "rb", opener=functools.partial(without_links, dir_fd=number)) as file:
            _check_opened(number, folder)
            if number is not None:
                _check(os.fstat(file.fileno()))
            return file.read()


@contextmanager
def opened_folder(folder: Path) -> Iterator[int | None]:
    """Yield a descriptor, which leads to the same folder even if another folder, or a link, takes its place. Yield None on
    systems without such descriptors."""
    if os.name != "posix":
        yield None
        return
    number = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)


def without_links(path: str, flags: int, dir_fd: int | None = None) -> int:
    """Open a file as `os.open` does, but refuse links, which might lead to files of others, and do not wait for the other end
    of a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), dir_fd=dir_fd)


def write(path: Path, content: bytes) -> None:
    """Write a file, which other processes see either whole or not at all, and to which other users cannot write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.unlink(missing_ok=True)
        with open(written, "xb", opener=functools.partial(os.open, mode=0o644)) as file:
            file.write(content)
        written.replace(path)
    finally:
        with suppress(OSError):
            written.unlink(missing_ok=True)


@functools.cache
def warn(folder: str, reason: str) -> None:
    """Log once per process that nothing can be kept in a folder, with the reason and a remedy."""
    _log.warning(
        "%s: compiled kernels and models cannot be kept: %s. Each process makes them again, which takes seconds. Let "
        "NUMBA_CACHE_DIR name a folder that belongs to this user, and that others cannot write to",
        folder or "no folder",
        reason,
    )


def is_plain(*, loaded: bool = False) -> bool:
    """Return whether Numba has its default settings, apart from the folder of its cache and from its threads, and is not
    loaded. If `loaded` is True, it may be loaded."""
    return (
        (loaded or "numba" not in sys.modules)
        and not os.path.exists(".numba_config.yaml")
        and all(name in _PLAIN for name in os.environ if name.startswith("NUMBA_"))
    )
