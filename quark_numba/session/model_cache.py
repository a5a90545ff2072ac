"""A cache of prepared models, which ONNX Runtime itself maps into memory in later sessions: its folder, its limits and
environment variables, which models are cached by default, and what is removed.

A model is found by a digest of everything that it depends on (``cache_keys``). Its entry is a folder. The folder is renamed to
its final name when it is complete, and renamed again before it is removed. So processes that use a cache at the same time see
either the whole entry or no entry. A damaged entry is removed and built again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..compiling.cache import location
from ..compiling.user_folder import OTHERS_WRITE, make_own, own_folder, warn, without_links
from ..errors import EnvironmentVariableError, MissingFileError, WriteError, errors_ignored, reason_of
from ..models.file_states import state_of
from ..models.temporary import remove_left_behind, temporary_folder
from . import cache_keys
from .artifact import Artifact

if TYPE_CHECKING:
    from .request import SessionRequest  # which needs ONNX Runtime

_log = logging.getLogger(__name__)

# The file of an entry with the entry's name, the states and digests of the model's files, and the report on the model. The
# modification time of this file is the time of the last use.
_MANIFEST = "kept.json"

# The name and the content of the file that marks a folder as this package's. Folders without this file are never removed.
_MARKER, _MARK = "kept by quark_numba", b"quark_numba made this folder, and may remove it.\n"

# The environment variables for the size limit of a folder in gigabytes, and for the size up to which models are cached by
# default in megabytes; and the defaults.
_LIMIT, _DEFAULT_LIMIT = "QUARK_NUMBA_CACHE_GB", 64.0
_SMALL, _DEFAULT_SMALL = "QUARK_NUMBA_CACHE_MB", 64.0


def users_folder() -> Path:
    """Return the folder of models in the user's cache. Raise OSError if no cache folder is writable by this user alone."""
    return make_own(own_folder()) / "models"


class ModelCache(NamedTuple):
    """A cache of models in a folder."""

    folder: Path

    @classmethod
    def choose(cls, cache: bool | str | os.PathLike[str] | None) -> ModelCache | None:
        """Return the cache that an argument `cache` means: True means the cache of the user, and so does None, for small
        models. Return None if the argument means no cache. Also return None if the user has no cache folder, or if other users
        can write to it: for True with a warning, and for None also if kernels are not saved."""
        if cache is False:
            return None
        if cache is None:
            with suppress(OSError):
                return None if location().why_not or not location().may_read else cls(users_folder())
            return None
        if cache is not True:
            return cls(Path(cache).absolute())
        try:
            return cls(users_folder())
        except OSError as error:
            warn(error.filename or "", reason_of(error))
            return None

    def find(self, request: SessionRequest) -> Path | None:
        """Return the path of the entry for a request. Return None if the request has no model file, or if the state of this
        file has changed or was not recorded."""
        files = cache_keys.recall_files(self.folder, request.path) if request.path is not None else None
        return self.entry(request, files) if files else None

    def entry(self, request: SessionRequest, files: Sequence[str | os.PathLike[str]]) -> Path:
        """Return the path of the entry for a request and the files of its model, the model file first."""
        return self.folder / cache_keys.name_entry(self.folder, files, request.facts())

    def get_or_create(
        self, request: SessionRequest, files: Sequence[str | os.PathLike[str]], build: Callable[[Path | None], Artifact]
    ) -> Artifact:
        """Return the cached model for a request and the files of its model. In `files`, the model file is first. If no model is
        cached, build the model and add it to the cache.

        `build` takes the folder for its temporary folders, or None for the default. If `build` writes files, `_keep` renames
        their temporary folder to the entry. If the model cannot be added, the result is the first of these:

        - the model that another process has added meanwhile;
        - the model as it was built, with a warning that names the folder and the reason;
        - if an error of the folder prevented the build, a model built with the default folder, with the same warning."""
        entry = self.entry(request, files)
        if kept := self.open_or_discard(entry):
            return kept
        limit()  # raises EnvironmentVariableError
        artifact = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            artifact = build(self.folder)
            return self._keep(entry, artifact, os.path.abspath(files[0]))
        except MissingFileError:  # of the model
            raise
        except (OSError, WriteError) as error:
            reason = reason_of(error)
        if kept := self.open_or_discard(entry):  # another process may have made it meanwhile
            if artifact:
                artifact.files.close()
            return kept
        if entry.exists() and not _is_own(entry):
            reason = f"{entry.name} is in the way, and has no file that says that this package made it"
        _log.warning("%s: could not cache the optimized model: %s", self.folder, reason)
        return artifact or build(None)

    def add(self, entry: Path, artifact: Artifact, original: str) -> None:
        """Add a model of which a session exists already. Do nothing if that is not possible, or has been done."""
        with errors_ignored(), artifact._replace(files=ExitStack()) as own:
            if not os.path.lexists(entry):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._keep(entry, own, original)

    def open_or_discard(self, entry: Path) -> Artifact | None:
        """Return the model of an entry, or None if there is no entry. A damaged entry is removed."""
        kept = None
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            kept = _open(entry)
        if kept:
            remove_left_behind(self.folder)
        elif os.path.lexists(entry) and self.remove(entry):
            _log.info("%s: a cached model is damaged, and is made again", entry)
        return kept

    def _keep(self, entry: Path, artifact: Artifact, original: str) -> Artifact:
        """Add a model to the cache, and return the model in its new entry. The model's files are in a temporary folder of this
        cache. A marker and a manifest are added to that folder, which is then renamed to the entry. If the cache is now too
        large, the least recently used entries are removed.

        `original` is the path of the model that the caller passed. It is recorded only for people who inspect the folder. The
        entry of a model that needs no change has no model file. Raise OSError if the entry cannot be written or already exists,
        and WriteError if the model must not be cached."""
        if artifact.why_not_kept:
            raise WriteError(artifact.why_not_kept)
        if isinstance(artifact.source, str):
            path = Path(artifact.source)
        else:
            path = Path(artifact.files.enter_context(temporary_folder(self.folder)), "model.onnx")
            if artifact.source is not None:
                path.write_bytes(artifact.source)
        folder = path.parent
        names = os.listdir(folder)
        (folder / _MARKER).write_bytes(_MARK)
        (folder / _MANIFEST).touch()
        for place in (folder, *folder.iterdir()):
            with suppress(OSError):  # of a file system without modes
                place.chmod(stat.S_IMODE(place.stat().st_mode) & ~OTHERS_WRITE)
        states = {name: state_of(folder / name) for name in names}
        files = {name: [state, _digest(folder / name)] for name, state in states.items()}
        facts = artifact.facts() | {"original": original}
        model = path.name if path.name in files else None
        manifest = {"name": entry.name, "file": model, "files": files, "facts": facts}
        (folder / _MANIFEST).write_text(json.dumps(manifest))
        os.rename(folder, entry)
        artifact.files.close()
        self._make_room(entry)
        return artifact._replace(source=str(entry / model), state=states[model]) if model else artifact

    def entries(self) -> list[tuple[Path, int, float]]:
        """Return the entries, the least recently used first. Each has its size in bytes and the time of its last use."""
        found = []
        for entry in filter(_is_own, self.folder.glob(f"{cache_keys.PREFIX}*")):
            with suppress(OSError):
                size = sum(file.lstat().st_size for file in entry.iterdir())
                manifest = entry / _MANIFEST
                found.append((entry, size, manifest.stat().st_mtime if manifest.exists() else 0.0))
        return sorted(found, key=lambda entry: entry[2])

    def _make_room(self, apart_from: Path) -> None:
        """Remove the least recently used entries until the size of the folder is within its limit. The entry `apart_from`
        stays."""
        entries = self.entries()
        total = sum(size for _, size, _ in entries)
        for entry, size, _ in entries:
            if total > limit() and entry != apart_from and self.remove(entry):
                total -= size

    def clear(self) -> None:
        """Remove all entries that are not in use, and the digests."""
        for entry, _, _ in self.entries():
            self.remove(entry)
        for record in cache_keys.list_digests(self.folder):
            with suppress(OSError):
                record.unlink()

    def remove(self, entry: Path) -> bool:
        """Remove an entry if this package made it, and return whether the entry no longer exists. The entry is first moved to a
        temporary folder. So no other user can replace a file by a link during the removal, and a killed process does not leave
        an incomplete entry."""
        if _is_own(entry):
            try:
                with temporary_folder(self.folder) as place:
                    os.rename(entry, Path(place, entry.name))
            except OSError:
                if os.name == "posix":  # a full disk; Windows moves no folder with an open file
                    import shutil

                    shutil.rmtree(entry, ignore_errors=True)
        return not os.path.lexists(entry)


def limit() -> float:
    """Return the size limit of a cache in bytes. Raise EnvironmentVariableError if the variable is not a valid limit."""
    return _size(_LIMIT, _DEFAULT_LIMIT, 1e9, "gigabytes")


def small() -> float:
    """Return the bytes of tensors up to which models are cached by default, or 0 if none are. Raise EnvironmentVariableError if
    the variable is not a valid limit."""
    return _size(_SMALL, _DEFAULT_SMALL, 1e6, "megabytes")


def _size(variable: str, default: float, unit: float, name: str) -> float:
    with suppress(ValueError):
        size = float(os.environ.get(variable, default)) * unit
        if size >= 0:
            return size
    raise EnvironmentVariableError(f"{variable} is {os.environ[variable]!r}; expected a number of {name}")


def _open(entry: Path) -> Artifact:
    """Return the model of an entry. Raise an exception of any kind if the entry has no model, is damaged, or has the manifest
    of another entry. A file whose state differs from the recorded state is valid if its size and digest are the recorded
    ones."""
    with open(entry / _MANIFEST, "rb", opener=without_links) as file:
        manifest = json.loads(file.read())
    files, model = manifest["files"], manifest["file"]
    states = {name: state_of(entry / name) for name in files}
    for name, (state, digest) in files.items():
        is_same = states[name] == state or (states[name][0] == state[0] and _digest(entry / name) == digest)
        if not is_same or (entry / name).is_symlink():
            raise ValueError(f"{name} is damaged")
    if manifest["name"] != entry.name:
        raise ValueError(f"it is {manifest['name']}")
    path, state = (None, None) if model is None else (str(entry / model), states[model])
    kept = Artifact.of_facts(path, manifest["facts"], state)
    with suppress(OSError):
        if any(states[name] != state for name, (state, _) in files.items()):
            manifest["files"] = {name: [states[name], digest] for name, (_, digest) in files.items()}
            cache_keys.write(entry.parent, entry / _MANIFEST, manifest)
        os.utime(entry / _MANIFEST)
    return kept


def _is_own(entry: Path) -> bool:
    """Return whether a folder is an entry, complete or damaged."""
    with suppress(OSError):
        if cache_keys.NAME.fullmatch(entry.name) and not entry.is_symlink():
            with open(entry / _MARKER, "rb", opener=without_links) as marker:
                return marker.read(len(_MARK) + 1) == _MARK
    return False


def _digest(path: Path) -> str:
    with open(path, "rb", opener=without_links) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
