"""Checks of paths (missing, not a regular file, not UTF-8), errors of files, and their writing: what becomes of links, modes
and other names of a file. A file is written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import MissingFileError, ModelError, WriteError, file_error, reraise_of_signal_handler
from .exchanges import exchanging
from .temporary import FRESH, PREFIX, temporary_folder


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write content to a file, whole or not at all, as `write_by` does."""
    write_by(path, lambda written: Path(written).write_bytes(content))


def is_one_of(path: str | os.PathLike[str], others: Iterable[str | os.PathLike[str]]) -> bool:
    """Return whether a path leads to one of other files that exist, by whatever name: writing to it would change that file."""
    with suppress(OSError, ValueError):
        one = os.stat(path)
        return stat.S_ISREG(one.st_mode) and any(os.path.samestat(one, state) for other in others if (state := _stat(other)))
    return False


def is_special(path: str | os.PathLike[str]) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)


def check_exists(path: str | os.PathLike[str]) -> None:
    """Raise MissingFileError if there is no such file."""
    try:
        os.stat(path)
    except FileNotFoundError as error:
        raise file_error(os.fspath(path), error) from None
    except (OSError, ValueError):  # opening the file gives a better error
        pass


def check_is_regular(path: str | os.PathLike[str], why: str = "as a pipe or a device may have no end") -> None:
    """Raise ModelError if a path leads to a pipe, a socket or a device: reading one may never end. Folders and missing files
    give other errors when they are opened."""
    if is_special(path) and not os.path.isdir(path):
        raise ModelError(f"{os.fspath(path)}: not a regular file; expected one, {why}")


@contextmanager
def errors_of_file(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn errors in the context into ModelError, as the file may be missing or have any content. `what` is what it should
    be."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        reraise_of_signal_handler(error)
        if isinstance(error, OSError) and error.errno:
            raise file_error(path, error) from None
        raise ModelError(f"{path}: not {what}: {error}") from None


def named_in_utf8(path: str | os.PathLike[str]) -> str:
    """Return a path as ONNX Runtime takes it. Raise ModelError if its name is not UTF-8."""
    name = os.fspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ModelError(f"{name}: the name is not in UTF-8, which ONNX Runtime requires") from None
    return name


def write_by(path: str | os.PathLike[str], write_to: Callable[[str], object]) -> None:
    """Let `write_to` write a file, and others beside it, in a temporary folder, and replace the files at `path` by them: all or
    none. Links are followed at `path` alone; a link at the name of another file is replaced. A path that is not a regular
    file, such as a pipe, is written to as it is. Raise WriteError if that is not possible, and ModelError if `write_to` raises
    an error other than OSError."""
    name = os.fspath(path)
    try:
        if is_special(name):
            write_to(name)
            return
        place, file = os.path.split(os.path.realpath(name))
        with temporary_folder(place, prefix=f".{PREFIX}") as folder:
            write_to(os.path.join(folder, file))
            written = sorted(os.listdir(folder), key=lambda each: each == file)  # the model after its data
            before = _stat(os.path.join(place, file))
            if len(written) == 1:
                _put(os.path.join(folder, file), os.path.join(place, file), before)
                return
            for each in written[:-1]:
                _check_replaceable(os.path.join(place, each))
            with exchanging(written, place, folder):
                for each in written:
                    _put(os.path.join(folder, each), os.path.join(place, each), before if each == file else None)
    except MissingFileError:  # of a tensor that is to be written
        raise
    except Exception as error:  # of the file, or of protobuf if something other than an initializer is too large
        reraise_of_signal_handler(error)
        raise file_error(name, error, WriteError if isinstance(error, (OSError, WriteError)) else ModelError) from None


def _stat(path: str | os.PathLike[str]) -> os.stat_result | None:
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        return os.stat(path)
    return None


def _check_replaceable(path: str) -> None:
    with suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise WriteError(f"{os.path.basename(path)}: not a regular file")


def _put(written: str, target: str, before: os.stat_result | None) -> None:
    """Replace the target, whose state was `before`, by a written file, and keep the target's mode. Other names of the target
    keep its content: caches and package managers share files between folders in this way."""
    if before is None:
        fresh = os.path.join(os.path.dirname(os.path.dirname(written)), FRESH)
        open(fresh, "w").close()
        os.chmod(written, stat.S_IMODE(os.stat(fresh).st_mode))
    else:
        os.chmod(written, stat.S_IMODE(before.st_mode))
        with suppress(AttributeError, PermissionError):  # on Windows; for another user's file
            os.chown(written, before.st_uid, before.st_gid)
    os.replace(written, target)
