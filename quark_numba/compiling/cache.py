"""Compiled functions on disk: a file each, under a name that changes with the sources that the function is made of.

Numba's own cache takes a damaged file for a good one, and a full disk for the end. This one checks what it reads, and what it
cannot write is compiled all the same. The files are trusted like the package's own: who can write them can run code here."""

from __future__ import annotations

import functools
import gc
import hashlib
import logging
import os
import pickle
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

_log = logging.getLogger(__name__)

SUFFIX = ".kernel"

# Of a file's. On Windows a path may have 260 characters: where such names do not fit, another folder has to do.
_LONGEST_NAME = 120


def compile_cached(compiler: Any, *signature: Any) -> None:
    """Let a Dispatcher or a CFunc of Numba's load its function from disk, or compile it and keep it there."""
    compiler._cache = _File(compiler.__qualname__)
    with _no_garbage_collection():
        compiler.compile(*signature)


_PACKAGE = Path(__file__).parents[1]


def own_folder() -> Path:
    """The user's own: the one that NUMBA_CACHE_DIR names, else in the user's cache. It need not be there."""
    if numba.config.CACHE_DIR:
        return Path(numba.config.CACHE_DIR, _PACKAGE.name).absolute()
    return Path(AppDirs(_PACKAGE.name, appauthor=False).user_cache_dir)


@functools.cache
def folder() -> Path | None:
    """Where the files are: in the folder that NUMBA_CACHE_DIR names, else beside the package, else in the user's cache; None
    if nothing can be written there."""
    beside = [] if numba.config.CACHE_DIR else [_PACKAGE / "__pycache__"]
    for candidate in (*beside, own_folder()):
        with suppress(OSError):
            candidate.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=candidate, suffix="_" * _LONGEST_NAME).close()
            return candidate
    return None


def files() -> list[Path]:
    """The files of all versions of the package, and half-written files of processes that were killed."""
    place = folder()
    return sorted(path for path in place.glob(f"*{SUFFIX}*") if path.is_file()) if place else []


def sizes() -> list[int]:
    """The sizes of the files in bytes. Other processes may remove some."""
    found = []
    for path in files():
        with suppress(OSError):
            found.append(path.stat().st_size)
    return found


class _File:
    """The file of one function. Numba asks it as it asks a ``numba.core.caching.Cache``."""

    def __init__(self, name: str) -> None:
        self.name, self.cache_path = name, folder()

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled function; None if it is not there, or not as it was written."""
        target_context.refresh()
        if self.cache_path is not None:
            with suppress(Exception):  # whatever a file has in it
                content = self._path(signature, target_context.codegen()).read_bytes()
                size = hashlib.sha256().digest_size
                if hashlib.sha256(content[size:]).digest() == content[:size]:
                    return CompileResult._rebuild(target_context, *pickle.loads(content[size:]))
        _log.info("compiling %s, to be kept in %s", self.name, self.cache_path or "memory alone")
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        if self.cache_path is None or compiled.library.has_dynamic_globals:  # addresses of this process
            return
        content = dumps(compiled._reduce())
        path = self._path(signature, compiled.codegen)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self.cache_path.mkdir(parents=True, exist_ok=True)
            written.write_bytes(hashlib.sha256(content).digest() + content)
            written.replace(path)
        except OSError as error:
            if os.name == "posix" or not path.exists():  # else another process has made it, too, and has it open
                _log.warning("a compiled kernel cannot be kept in %s: %s", self.cache_path, error.strerror)
        finally:
            with suppress(OSError):
                written.unlink(missing_ok=True)

    def _path(self, signature: Any, codegen: Any) -> Path:
        """The file of a compiled function. Its name has everything else that the code depends on."""
        versions = platform.python_implementation(), platform.python_version(), numba.__version__, llvmlite.__version__
        key = hashlib.sha256(repr((versions, codegen.magic_tuple(), str(signature))).encode()).hexdigest()[:12]
        assert self.cache_path
        return self.cache_path / f"{self.name}_{key}{SUFFIX}"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Compiling makes very many objects that stay: going through them again and again takes an eighth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def digest(file: Path) -> str:
    """A digest of the sources that the functions of a file are made of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources(file))).hexdigest()[:12]


_IMPORT = re.compile(r"^ *from (\.+)([\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def sources(file: Path) -> list[Path]:
    """The files of this package that a file imports, directly or not, and itself; but for this module and ``lock``, which see
    to it that functions are compiled, and have no part in them. It looks at relative imports, wherever they stand."""
    found, waiting = {file}, [file]
    apart = {Path(__file__), Path(__file__).with_name("lock.py")}
    while waiting:
        importer = waiting.pop()
        for dots, module, several, one in _IMPORT.findall(importer.read_text(encoding="utf-8")):
            base = importer.parents[len(dots) - 1].joinpath(*module.split("."))
            names = [name.split()[0] for name in (several or one.partition("#")[0]).split(",") if name.strip()]
            for path in (base, *(base / name for name in names)):
                for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                    if candidate.is_file() and candidate not in found | apart:
                        found.add(candidate)
                        waiting.append(candidate)
    return sorted(found)
