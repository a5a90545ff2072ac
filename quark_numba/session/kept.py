"""Prepared models that are kept in a folder, so that later sessions map them at once.

A model is kept under a digest of everything that it depends on (``kept_names``). Processes may use a folder at the same time.
An entry is made apart, and appears under its name at once."""

from __future__ import annotations

import errno
import json
import logging
import os
import reprlib
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..compiling.lock import IMPORTS
from ..compiling.user_folder import (
    OTHERS_WRITE,
    close_to_others,
    make_own,
    opened_folder,
    opened_in,
    own_content,
    own_folder,
    warn,
    without_links,
)
from ..errors import EnvironmentVariableError, MissingFileError, ModelError, WriteError, reason_of
from ..models.file_states import state_of
from ..models.temporary import is_locked, remove_left_behind, temporary_folder
from .kept_names import NAME, PREFIX, digests

_log = logging.getLogger(__name__)

# An entry's file with the states of all others. It is written last, and its time is that of the last use.
_MANIFEST = "kept.json"

# An entry's file that sessions lock while they open the others.
_LOCK = "lock"

# An entry's file that says whose folder it is, and its content. Nothing without it is removed.
_MARKER, _MARK = "kept by quark_numba", b"quark_numba made this folder, and may remove it.\n"

# The environment variable for the most gigabytes of a folder, and the default.
_LIMIT, _DEFAULT_LIMIT = "QUARK_NUMBA_CACHE_GB", 64.0

_CHUNK = 1 << 20

# A model, its facts, and why it must not be kept, if so. The model is bytes, a path, or None: the original.
Made = tuple[str | bytes | None, dict[str, Any], str | None]
Kept = tuple[str | bytes | None, dict[str, Any]]


def users_folder() -> Path:
    """Return the folder of models in the user's cache. Raise OSError if the user has no place of this user's own."""
    return make_own(own_folder()) / "models"


def folder_of(given: bool | str | os.PathLike[str]) -> Path | None:
    """Return the folder that an argument `cache` means: True is one in the user's cache. None: the user has no such place, or
    others can write to it, of which a warning tells. Raise TypeError or ModelError if it cannot be a folder."""
    if isinstance(given, bool):
        try:
            return users_folder()
        except OSError as error:
            warn(error.filename or "", reason_of(error))
            return None
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise TypeError(f"cache is a {type(given).__name__}; expected True, False or the path of a folder")
    name = os.fspath(given)
    try:
        if not name:
            raise ValueError("it is empty")
        name.encode()  # ONNX Runtime takes UTF-8 only
        os.stat(name)
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) or error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP):
            raise ModelError(f"cache is {reprlib.repr(name)}; expected the path of a folder: {reason_of(error)}") from None
    return Path(name).absolute()


def limit() -> float:
    """Return the most bytes of a folder."""
    with suppress(ValueError):
        limit = float(os.environ.get(_LIMIT, _DEFAULT_LIMIT)) * 1e9
        if limit >= 0:
            return limit
    raise EnvironmentVariableError(f"{_LIMIT} is {os.environ[_LIMIT]!r}; expected a number of gigabytes")


@contextmanager
def opened(entry: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the manifest of an entry, whose files nobody removes within the context. None: there is no such
    entry. A damaged entry is removed."""
    facts = None
    with ExitStack() as files:
        with suppress(OSError):
            lock = files.enter_context(open(entry / _LOCK, "rb", opener=without_links))
            facts = _checked(entry) if is_locked(lock, shared=True) is not False and _is_of(lock, entry) else None
        if facts is None:
            files.close()
            if os.path.exists(entry) and remove(entry):
                _log.info("%s: a kept model is damaged, and is made again", entry)
        yield facts


def _checked(entry: Path) -> dict[str, Any] | None:
    """Return the manifest of an entry; None: it is damaged. A file whose state is another than the one that was kept has to
    have the same content."""
    try:
        with open(entry / _MANIFEST, "rb", opener=without_links) as file:
            manifest = _manifest(entry, file.read())
        states = {name: state_of(entry / name) for name in manifest["files"]}
        if not all(stat.S_ISREG(os.lstat(entry / name).st_mode) for name in states):
            return None
        for name, (state, checksum) in manifest["files"].items():
            if states[name] != state and (states[name][0] != state[0] or _checksum(entry / name) != checksum):
                return None
        if any(states[name] != state for name, (state, _) in manifest["files"].items()):
            manifest["files"] = {name: [states[name], checksum] for name, (_, checksum) in manifest["files"].items()}
            _write_manifest(entry, manifest)
        with suppress(OSError):
            os.utime(entry / _MANIFEST)
        return manifest
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _manifest(entry: Path, content: bytes) -> dict[str, Any]:
    """Return a manifest from the content of its file. Raise an exception of any kind if it is damaged, or another entry's."""
    manifest = dict(json.loads(content))
    if manifest.pop("checksum") != _checksum_of(manifest) or manifest["name"] != entry.name:
        raise ValueError("the manifest is damaged, or another entry's")
    return manifest


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps({**manifest, "checksum": _checksum_of(manifest)})


def _checksum_of(manifest: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest).encode())


def add(entry: Path, name: str, content: bytes) -> None:
    """Add a file to an entry, and to its manifest under `name`, unless there is a valid one, or none would be loaded.
    If several processes do this at the same time, one of them wins."""
    checksum = zlib.crc32(content)
    file = f"{name}-{checksum:08x}"
    try:
        with opened(entry) as manifest:
            if manifest is None or content_of(entry, manifest, name):
                return
            close_to_others(entry)
            _write(entry / file, content)
            manifest["files"][file] = [state_of(entry / file), checksum]
            _write_manifest(entry, manifest | {name: file})
    except (OSError, ValueError, LookupError, TypeError) as error:
        _log.info("%s: %s cannot be kept: %s", entry, name, reason_of(error))


def content_of(entry: Path, manifest: Mapping[str, Any], name: str) -> bytes | None:
    """Return a file that was added to an open entry; None: there is none, or others than this user and the system's own could
    have written it or the entry."""
    if name in manifest:
        with suppress(OSError, ValueError, LookupError, TypeError):
            manifest = _manifest(entry, own_content(entry, _MANIFEST))
            content = own_content(entry, manifest[name])
            if zlib.crc32(content) == manifest["files"][manifest[name]][1]:
                return content
    return None


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb", opener=without_links) as file:
        while content := file.read(_CHUNK):
            checksum = zlib.crc32(content, checksum)
    return checksum


def _write_manifest(entry: Path, manifest: dict[str, Any]) -> None:
    with suppress(OSError):
        _write(entry / _MANIFEST, _text(manifest).encode())


def _write(path: Path, content: bytes) -> None:
    """Write a file of an entry, whole or not at all, which only this user may change."""
    with temporary_folder(path.parents[1]) as place:
        written = Path(place, path.name)
        written.write_bytes(content)
        written.chmod(0o644)
        written.replace(path)


def kept(files: ExitStack, entry: Path, make: Callable[[ExitStack, Path | None], Made]) -> Kept:
    """Return the path of a kept model, which exists until `files` are closed, and the facts that were kept with it. If there is
    none, make and keep it.

    `make` takes the place of its temporary folders, None for the default. A path is in a folder of its own in that place; None
    is not kept. If a model cannot be kept, a warning names the folder, and the model is returned as it was made."""
    manifest = files.enter_context(opened(entry))
    if manifest:
        remove_left_behind(entry.parent)
        return str(entry / manifest["file"]), manifest["facts"]
    limit()  # raises EnvironmentVariableError
    made = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files_of_made:  # closed at once if this fails: the disk may be full
            made = make(files_of_made, entry.parent)
            files.push(files_of_made.pop_all())
        return _keep(entry, made, files)
    except MissingFileError:  # of the model
        raise
    except (OSError, WriteError) as error:
        reason = reason_of(error)
    manifest = files.enter_context(opened(entry))  # another process may have made it meanwhile
    if manifest:
        return str(entry / manifest["file"]), manifest["facts"]
    if entry.exists() and not _is_own(entry):
        reason = f"{entry.name} is in the way, and has no file that says that this package made it"
    _log.warning("%s: a model cannot be kept: %s", entry.parent, reason)
    return (made or make(files, None))[:2]


def _keep(entry: Path, made: Made, files: ExitStack) -> Kept:
    """Make an entry of a model and its facts, and return them as they are there. Nobody removes the entry until `files` are
    closed. Raise OSError if it cannot be written, or if there is an entry by now, and WriteError if it must not be kept."""
    model, facts, why_not = made
    if model is None:
        return model, facts
    if why_not:
        raise WriteError(why_not)
    if isinstance(model, bytes):
        path = Path(files.enter_context(temporary_folder(entry.parent)), "model.onnx")
        path.write_bytes(model)
    else:
        path = Path(model)
    folder = path.parent
    names = os.listdir(folder)
    (folder / _MARKER).write_bytes(_MARK)
    for name in (_LOCK, _MANIFEST):
        (folder / name).touch()
    for place in (folder, *folder.iterdir()):
        with suppress(OSError):  # of a file system without modes
            place.chmod(stat.S_IMODE(place.stat().st_mode) & ~OTHERS_WRITE)
    states = {name: [state_of(folder / name), _checksum(folder / name)] for name in names}
    (folder / _MANIFEST).write_text(_text({"name": entry.name, "files": states, "file": path.name, "facts": facts}))
    if os.name == "posix":  # the lock moves with the folder; Windows moves no folder with an open file
        is_locked(files.enter_context((folder / _LOCK).open("rb")), shared=True)
    os.rename(folder, entry)
    if os.name != "posix":
        files.enter_context((entry / _LOCK).open("rb"))
    make_room(entry.parent, apart_from=entry)
    return str(entry / path.name), facts


def _is_own(entry: Path) -> bool:
    """Whether a folder is an entry, whatever its state."""
    with suppress(OSError):
        if NAME.fullmatch(entry.name) and not entry.is_symlink():
            with open(entry / _MARKER, "rb", opener=without_links) as marker:
                return marker.read(len(_MARK) + 1) == _MARK
    return False


def entries(folder: Path) -> list[tuple[Path, int, float]]:
    """Return the entries of a folder, each with its bytes and the time of its last use, the oldest first. What a killed removal
    left of an entry counts as the oldest."""
    kept_entries = []
    for entry in filter(_is_own, folder.glob(f"{PREFIX}*")):
        with suppress(OSError):
            size = sum(file.lstat().st_size for file in entry.iterdir())
            manifest = entry / _MANIFEST
            kept_entries.append((entry, size, manifest.stat().st_mtime if manifest.exists() else 0.0))
    return sorted(kept_entries, key=lambda entry: entry[2])


def make_room(folder: Path, apart_from: Path) -> None:
    """Remove the entries that were used least recently, until the folder has no more bytes than its limit."""
    kept_entries = entries(folder)
    total = sum(size for _, size, _ in kept_entries)
    for entry, size, _ in kept_entries:
        if total > limit() and entry != apart_from and remove(entry):
            total -= size


def clear(folder: Path) -> None:
    """Remove all entries that are not in use, and the digests."""
    for entry in folder.glob(f"{PREFIX}*"):
        if NAME.fullmatch(entry.name):
            remove(entry)
    for record in digests(folder):
        with suppress(OSError):
            record.unlink()


def remove(entry: Path) -> bool:
    """Remove an entry, unless a session is just opening it, or somebody else made the folder. Return whether it is gone."""
    if not _is_own(entry):
        with suppress(OSError):
            entry.rmdir()  # raises an error if it is not empty
        return not os.path.exists(entry)
    with ExitStack() as files:
        try:
            if stat.S_ISREG((entry / _LOCK).lstat().st_mode):
                lock = files.enter_context(open(entry / _LOCK, "r+b", opener=without_links))
                if is_locked(lock) is False or not _is_of(lock, entry):
                    return False
        except FileNotFoundError:
            pass  # without its lock it is damaged, and nobody uses it
        except OSError:
            return False
        if os.name != "posix":  # no file that is open can be removed
            files.close()
        _remove_files(entry)
    return not os.path.exists(entry)


def _remove_files(entry: Path) -> None:
    """Remove an entry, its marker last: what a killed process leaves of an entry has to have it."""
    with IMPORTS:
        import shutil  # which takes longer than all else that a session of a kept model imports

    with suppress(OSError), opened_folder(entry) as folder:
        with opened_in(folder, entry, _MARKER) as marker:
            if marker.read() != _MARK:
                return
        for name in sorted(os.listdir(entry if folder is None else folder), key=lambda name: name == _MARKER):
            path = entry / name if folder is None else name
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode):
                    shutil.rmtree(path, dir_fd=folder)
                else:
                    os.unlink(path, dir_fd=folder)
        entry.rmdir()


def _is_of(lock: Any, entry: Path) -> bool:
    """Whether an open lock is that of the entry, and not of one that was removed and made again."""
    return os.path.samestat(os.fstat(lock.fileno()), (entry / _LOCK).stat())
