"""The cache of compiled functions on disk. A function has a file, whose name changes with the sources of the function.

Numba's own cache loads damaged files without a check and fails on a full disk. This cache verifies a checksum when it reads,
and a function whose file cannot be written is used without a file. Files are loaded by pickle, so whoever can write to the
folder can run code in this process."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from .memory import no_garbage_collection
from .process_lock import locked
from .sources import digest as digest  # `jit` takes it from here: the imports of this module change nothing that is compiled
from .user_folder import check_folder, make_own, own_content, own_folder, warn, write

_log = logging.getLogger(__name__)

SUFFIX = ".kernel"

# The beginning of a file, and the names of files: the function, two digests and, for unfinished files, the process. A file
# without both belongs to another program.
_MARK = b"quark_numba kernel\n"
_NAME = re.compile(rf".+_[0-9a-f]{{12}}_[0-9a-f]{{12}}\{SUFFIX}(\.[0-9]+)?")

# The file of each function for C in this process, by the address of the function.
_files: dict[int, Path] = {}

# Functions that are called before a function without a file is compiled.
before_compiling: list[Callable[[], None]] = []

# Whether a session waits for functions that may have to be compiled. It contains True until the first one is compiled.
_waiting: set[bool] = set()

# Whether a file could not be written: it contains True from then on. Then waiting for the files of other processes is in vain,
# too.
_unwritten: set[bool] = set()


def session_waits() -> None:
    """Let a line of the log say that the next function is compiled, because a session needs many, and its user waits for
    them."""
    _waiting.add(True)


# The length of the longest file name. A Windows path has at most 260 characters: a folder whose path is too long for such a
# name is not used.
_LONGEST_NAME = 120


def compile_cached(compiler: Any, *signature: Any) -> None:
    """Load the function of a Dispatcher or CFunc of Numba from disk, or else compile it and save it there."""
    compiler._cache = file = _File(compiler.__qualname__)
    with no_garbage_collection(), file.locks:
        compiler.compile(*signature)
    if file.path and not signature:  # a function for C
        _files[compiler.address] = file.path


def kept_text(name: str, machine: tuple[str, ...], make: Callable[[], str]) -> str:
    """Return the text that is kept on disk under `name`, or else make and keep it. The name ends with a digest, as that of a
    function does. The text is code for another machine and, like a compiled function, also depends on this processor."""
    from numba.core.registry import cpu_target

    file = _File(name)
    with no_garbage_collection(), file.locks:
        text: str | None = file.find(machine, cpu_target.target_context, bytes.decode)
        if text is None:
            text = make()
            if file.is_written:
                file.write(machine, cpu_target.target_context.codegen(), text.encode())
    return text


def object_of(address: int) -> tuple[str, bytes, bytes]:
    """Return the symbol of a function for C, the object file that defines it, and the bitcode of that file's module. All three
    come from the function's file, which another process that compiled the function at the same time may have written, with
    another symbol.

    Raises
    ------
    LookupError
        If the function is not kept on disk."""
    with suppress(KeyError, OSError):
        path = _files[address]
        content = _verified(own_content(path.parent, path.name))
        if content:
            (_, _, (code, bitcode)), description, *_ = pickle.loads(content)
            return description.llvm_cfunc_wrapper_name, code, bitcode
    raise LookupError("a compiled function is not on disk")


def _verified(content: bytes) -> bytes:
    """Return the content of a file, which is empty if the file is damaged."""
    start = len(_MARK) + hashlib.sha256().digest_size
    return content[start:] if content[:start] == _MARK + hashlib.sha256(content[start:]).digest() else b""


_PACKAGE = Path(__file__).parents[1]


class Place(NamedTuple):
    """A folder, whether files are loaded from it, and the reason why files cannot be written, or "" if they can."""

    folder: Path | None
    is_read: bool
    why_not: str = ""


@functools.cache
def place() -> Place:
    """Return where the files are: in the folder that NUMBA_CACHE_DIR names, or else in the package's ``__pycache__``, or in the
    cache folder of the user. They are loaded if only this user or the system could have written them. The folder of a frozen
    application may be gone when the application ends."""
    if not numba.config.CACHE_DIR and not getattr(sys, "frozen", False):
        with suppress(OSError):
            beside = _PACKAGE / "__pycache__"
            beside.mkdir(exist_ok=True)
            check_folder(beside)
            _write_to(beside)
            return Place(beside, True)
    folder, is_read = None, False
    try:
        folder = own_folder()
        folder = make_own(folder)
        is_read = True
        _write_to(folder)
    except OSError as error:
        return Place(folder, is_read, error.strerror or str(error))
    return Place(folder, is_read)


def _write_to(folder: Path) -> None:
    tempfile.TemporaryFile(dir=folder, suffix="_" * _LONGEST_NAME).close()


def environment() -> dict[str, str]:
    """Return the environment variables with which another process uses the same folder."""
    folder = place().folder  # a relative path is that of the folder at its first use
    return {"NUMBA_CACHE_DIR": str(folder.parent)} if numba.config.CACHE_DIR and folder else {}


def files() -> list[Path]:
    """Return the files of this and all other versions of the package, unfinished files of killed processes included."""
    folder, is_read, _ = place()
    return sorted(filter(_is_own, folder.glob(f"*{SUFFIX}*"))) if folder and is_read else []


def _is_own(path: Path) -> bool:
    """Return whether this package wrote a file, of which a killed process may have written only the beginning. Earlier versions
    began files with the checksum of the rest."""
    with suppress(OSError):
        if _NAME.fullmatch(path.name) and path.is_file():
            content, size = path.read_bytes(), hashlib.sha256().digest_size
            is_of_earlier = len(content) > size and hashlib.sha256(content[size:]).digest() == content[:size]
            return _MARK.startswith(content[: len(_MARK)]) or is_of_earlier
    return False


def sizes() -> list[int]:
    """Return the sizes of the files in bytes, except files that another process has removed meanwhile."""
    found = []
    for path in files():
        with suppress(OSError):
            found.append(path.stat().st_size)
    return found


class _File:
    """The file of one function, with the interface of ``numba.core.caching.Cache``."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder, is_read, self._why_not = place()
        self.cache_path = folder if is_read and not name.endswith("_") else None  # "_": without a digest
        self.path: Path | None = None  # of the file, if there is one
        self.locks = ExitStack()  # contexts that are held until the function is compiled

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the compiled function, or None if its file is missing or damaged."""
        target_context.refresh()

        def read(content: bytes) -> Any:
            return CompileResult._rebuild(target_context, *pickle.loads(content))

        return self.find(signature, target_context, read)

    def find(self, signature: Any, target_context: Any, read: Callable[[bytes], Any]) -> Any:
        """Read the file; if it is missing or damaged, get ready to compile. Return what `read` makes of the content, or None if
        the function has to be compiled."""
        found = None
        if self.cache_path is not None:
            path = self._path(signature, target_context.codegen())
            found = self._read(path, read)
            if found is None and not self._why_not and not _unwritten:
                found = self._lock_and_reread(path, read)
        if found is None:
            self._announce_compiling()
        return found

    def _lock_and_reread(self, path: Path, read: Callable[[bytes], Any]) -> Any:
        """Take the lock of the function, which `locks` hold until it is compiled, and read its file again: another process,
        which held the lock, may have written it. If there is none, call what is to be called before a function is compiled."""
        has_waited = self.locks.enter_context(locked(path.parent, path.name))
        found = self._read(path, read)
        # A process that waits for another one to compile needs no helpers.
        for each in [] if found or has_waited else [*before_compiling]:
            each()
        return found

    def _announce_compiling(self) -> None:
        """Log that the function is compiled, with a warning if a session waits for it or if its file cannot be written."""
        if self._why_not:
            warn(str(place().folder or ""), self._why_not)
        kept_in = (not self._why_not and self.cache_path) or "memory alone"
        if _waiting:
            _waiting.clear()
            _log.warning("compiling kernels takes some seconds; they are kept in %s", kept_in, extra={"kept_in": kept_in})
        _log.info("compiling %s, to be kept in %s", self.name, kept_in, extra={"kept_in": kept_in})

    def _read(self, path: Path, read: Callable[[bytes], Any]) -> Any:
        """Return what `read` makes of a file's content, or None if the file is missing or damaged."""
        with suppress(Exception):  # a damaged file may raise anything
            if content := _verified(own_content(path.parent, path.name)):
                found, self.path = read(content), path
                return found
        return None

    @property
    def is_written(self) -> bool:
        return self.cache_path is not None and not self._why_not

    def save_overload(self, signature: Any, compiled: Any) -> None:
        if self.is_written and not compiled.library.has_dynamic_globals:  # addresses of this process
            self.write(signature, compiled.codegen, dumps(compiled._reduce()))

    def write(self, signature: Any, codegen: Any, content: bytes) -> None:
        path = self._path(signature, codegen)
        try:
            write(path, _MARK + hashlib.sha256(content).digest() + content)
            self.path = path
        except OSError as error:
            if os.name == "posix" or not path.exists():  # on Windows, another process may have written it and hold it open
                _unwritten.add(True)
                warn(str(self.cache_path), error.strerror or str(error))

    def _path(self, signature: Any, codegen: Any) -> Path:
        """Return the path of the file. The name includes a hash of the versions, the processor and the signature that the
        compiled function depends on."""
        versions = platform.python_implementation(), platform.python_version(), numba.__version__, llvmlite.__version__
        key = hashlib.sha256(repr((versions, codegen.magic_tuple(), str(signature))).encode()).hexdigest()[:12]
        assert self.cache_path
        return self.cache_path / f"{self.name}_{key}{SUFFIX}"
