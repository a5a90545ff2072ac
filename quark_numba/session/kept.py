"""Prepared models that are kept in a folder, so that later sessions map them at once.

A model is kept under a digest of everything that it depends on: the content of the model's files, the options, the processor
and the versions. Processes may use a folder at the same time. An entry is made apart, and appears under its name at once."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..compiling import cache
from ..errors import ModelError
from ..models.model_files import state_of
from ..models.temporary import is_locked, remove_left_behind, temporary_folder

_log = logging.getLogger(__name__)

# An entry's file with the states of all others. It is written last, and its time is that of the last use.
_MANIFEST = "kept.json"

# An entry's file that sessions lock while they open the others.
_LOCK = "lock"

# The suffix of the files with the digests of original models.
_DIGESTS = ".digests"

# The environment variable for the most gigabytes of a folder, and the default.
_LIMIT, _DEFAULT_LIMIT = "QUARK_NUMBA_CACHE_GB", 64.0

# A file may change again within this time without a change of its times.
_RACY_NS = 2 * 10**9

_CHUNK = 1 << 20

# The length of the name of an entry.
_KEY = 32

_DISTRIBUTIONS = ("onnx", "onnx-ir", "numpy", "numba", "llvmlite", "ml_dtypes")


def folder_of(given: bool | str | os.PathLike[str]) -> Path:
    """Return the folder that an argument `cache` means: True is one in the user's cache."""
    return cache.own_folder() / "models" if isinstance(given, bool) else Path(given).absolute()


def limit() -> float:
    """Return the most bytes of a folder."""
    with suppress(ValueError):
        limit = float(os.environ.get(_LIMIT, _DEFAULT_LIMIT)) * 1e9
        if limit >= 0:
            return limit
    raise ModelError(f"{_LIMIT} is {os.environ[_LIMIT]!r}; expected a number of gigabytes")


def key(folder: Path, paths: Iterable[str | os.PathLike[str]], options: Mapping[str, Any]) -> str:
    """Return the name of the entry for a model with these files and options. The digests of files are kept in the folder, and
    computed again if the size, the inode or a time of a file is another."""
    import llvmlite.binding
    import onnxruntime

    host = llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()
    found = {
        "files": [_digest(folder, os.path.abspath(path)) for path in paths],
        "options": options,
        "versions": [onnxruntime.__version__, *map(_version, _DISTRIBUTIONS), _sources()],
        "processor": [platform.machine(), *host],
    }
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:_KEY]


@functools.cache
def _sources() -> str:
    """Return the digest of this package's sources."""
    package = Path(__file__).parents[1]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))).hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:
        return ""


def _digest(folder: Path, path: str) -> str:
    record = folder / (hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:_KEY] + _DIGESTS)
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(record.read_text())
        if known["state"] == state_of(path):
            return str(known["sha256"])
    now, before = time.time_ns(), state_of(path)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if state_of(path) != before:
        raise ModelError(f"{path} was changed while it was read")
    if now - max(before[2:]) > _RACY_NS:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            written = record.with_name(f"{record.name}.{os.getpid()}")
            written.write_text(json.dumps({"path": path, "state": before, "sha256": digest}))
            written.replace(record)
    return digest


@contextmanager
def opened(entry: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the manifest of an entry, whose files nobody removes within the context. None: there is no such
    entry. A damaged entry is removed."""
    facts = None
    with ExitStack() as files:
        with suppress(OSError):
            lock = files.enter_context((entry / _LOCK).open("rb"))
            facts = _checked(entry) if is_locked(lock, shared=True) is not False and _is_of(lock, entry) else None
        if facts is None:
            files.close()
            if entry.exists():
                _log.info("%s: a kept model is damaged, and is made again", entry)
                remove(entry)
        yield facts


def _checked(entry: Path) -> dict[str, Any] | None:
    """Return the manifest of an entry; None: it is damaged. A file whose state is another than the one that was kept has to
    have the same content."""
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        states = {name: state_of(entry / name) for name in manifest["files"]}
        for name, (state, checksum) in manifest["files"].items():
            if states[name] != state and (states[name][0] != state[0] or _checksum(entry / name) != checksum):
                return None
        if any(states[name] != state for name, (state, _) in manifest["files"].items()):
            manifest["files"] = {name: [states[name], checksum] for name, (_, checksum) in manifest["files"].items()}
            _write_manifest(entry, manifest)
        with suppress(OSError):
            os.utime(entry / _MANIFEST)
        return dict(manifest)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while content := file.read(_CHUNK):
            checksum = zlib.crc32(content, checksum)
    return checksum


def _write_manifest(entry: Path, manifest: dict[str, Any]) -> None:
    with suppress(OSError):
        written = entry / f"{_MANIFEST}.{os.getpid()}"
        written.write_text(json.dumps(manifest))
        written.replace(entry / _MANIFEST)


@contextmanager
def kept(
    entry: Path, make: Callable[[], AbstractContextManager[tuple[str | bytes | None, dict[str, Any]]]]
) -> Iterator[tuple[str | bytes | None, dict[str, Any]]]:
    """Yield the path of a kept model, and the facts that were kept with it. If there is none, make and keep it.

    `make` returns a context with a model and its facts. The model is bytes, a path in a folder of its own in the same file
    system, or None, which is not kept. If a model cannot be kept, it is yielded as it was made."""
    with opened(entry) as found:
        if found:
            remove_left_behind(entry.parent)
            yield str(entry / found["file"]), found["facts"]
            return
    limit()  # raises ModelError
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{entry.parent}: {error.strerror}") from None
    with make() as (model, facts), ExitStack() as files:
        if model is None:
            yield model, facts
            return
        if isinstance(model, bytes):
            path = Path(files.enter_context(temporary_folder(entry.parent)), "model.onnx")
            path.write_bytes(model)
        else:
            path = Path(model)
        if _keep(entry, path, facts, files):
            yield str(entry / path.name), facts
            return
        found = files.enter_context(opened(entry))  # another process may have made it meanwhile
        yield str(entry / found["file"]) if found else model, facts


def _keep(entry: Path, path: Path, facts: dict[str, Any], files: ExitStack) -> bool:
    """Make an entry of the folder of a model, which then is no longer there. Nobody removes it until `files` are closed. Return
    False if another process was faster or there is no room."""
    made = path.parent
    try:
        of_files = {each.name: [state_of(each), _checksum(each)] for each in made.iterdir()}
        (made / _MANIFEST).write_text(json.dumps({"files": of_files, "file": path.name, "facts": facts}))
        (made / _LOCK).touch()
        if os.name == "posix":  # the lock moves with the folder; Windows moves no folder with an open file
            is_locked(files.enter_context((made / _LOCK).open("rb")), shared=True)
        os.rename(made, entry)
        if os.name != "posix":
            files.enter_context((entry / _LOCK).open("rb"))
    except OSError as error:
        if not entry.exists():
            _log.warning("%s: a model cannot be kept: %s", entry.parent, error.strerror)
        return False
    make_room(entry.parent, apart_from=entry)
    return True


def entries(folder: Path) -> list[tuple[Path, int, float]]:
    """Return the entries of a folder, each with its bytes and the time of its last use, the oldest first. What a killed removal
    left of an entry counts as the oldest."""
    found = []
    for entry in folder.glob("[0-9a-f]" * _KEY):
        with suppress(OSError):
            size = sum(each.stat().st_size for each in entry.iterdir())
            manifest = entry / _MANIFEST
            found.append((entry, size, manifest.stat().st_mtime if manifest.exists() else 0.0))
    return sorted(found, key=lambda each: each[2])


def make_room(folder: Path, apart_from: Path) -> None:
    """Remove the entries that were used least recently, until the folder has no more bytes than its limit."""
    found = entries(folder)
    total = sum(size for _, size, _ in found)
    for entry, size, _ in found:
        if total > limit() and entry != apart_from and remove(entry):
            total -= size


def clear(folder: Path) -> None:
    """Remove all entries that are not in use, and the digests."""
    for entry, _, _ in entries(folder):
        remove(entry)
    for record in folder.glob(f"*{_DIGESTS}*"):
        with suppress(OSError):
            record.unlink()


def remove(entry: Path) -> bool:
    """Remove an entry, unless a session is just opening it. Return whether it is gone."""
    try:
        with (entry / _LOCK).open("r+b") as lock:
            if is_locked(lock) is False or not _is_of(lock, entry):
                return False
            if os.name == "posix":
                shutil.rmtree(entry, ignore_errors=True)
    except FileNotFoundError:  # without its lock it is damaged, and nobody uses it
        shutil.rmtree(entry, ignore_errors=True)
    except OSError:
        return False
    if os.name != "posix":  # no file that is open can be removed
        shutil.rmtree(entry, ignore_errors=True)
    return not entry.exists()


def _is_of(lock: Any, entry: Path) -> bool:
    """Whether an open lock is that of the entry, and not of one that was removed and made again."""
    return os.path.samestat(os.fstat(lock.fileno()), (entry / _LOCK).stat())
