"""The cache of compiled functions on disk: its folder, the names of its files, what they depend on, their checksums, and the
message that kernels are compiled. It has three kinds of files:

- A function for C: an object file, which LLVM loads without Numba.
- A function for Python: a pickle of what Numba has compiled.
- A record: JSON that this package computed once and needs at each start. It may name functions for C by their references.

The name of a function's file has a digest of its sources, and that of a record a digest of the whole package: changed sources
have another file. Unlike Numba's own cache, this one verifies a checksum when it reads, and goes on without a file that cannot
be written. Files are code, so whoever can write to the folder can run code in this process."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import pickle
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .installed_versions import version_of
from .memory import no_garbage_collection
from .object_files import ObjectFile
from .process_lock import locked
from .sources import digest as digest  # `jit` takes it from here: the imports of this module change nothing that is compiled
from .sources import digest_of_package
from .user_folder import check_folder, is_plain, make_own, named_folder, own_content, own_folder, warn, write

_log = logging.getLogger(__name__)

SUFFIX = ".kernel"

# The beginning of a file, and the names of files: the function, two digests and, for unfinished files, the process. A file
# without both belongs to another program.
_MARK = b"quark_numba kernel\n"
_NAME = re.compile(rf".+_[0-9a-f]{{12}}_[0-9a-f]{{12}}\{SUFFIX}(\.[0-9]+)?")

# The functions for C that this process has loaded or compiled: their addresses by the names of their files and, within a file,
# by their own names; and their references by their addresses. A file that Numba compiled has one function, named "". A
# reference is the name of a file and, after "#", that of a function.
_functions: dict[str, dict[str, int]] = {}
_references: dict[int, str] = {}

# Functions that are called before a function without a file is compiled.
before_compiling: list[Callable[[], None]] = []


class _Process:
    """What this process knows of its compiling."""

    # A session waits for functions that may have to be compiled, and none of them has been compiled yet. Compiling the next one
    # is logged as a warning, because a user waits.
    warns_on_next_compile = False
    # Functions are compiled for another machine. They have files as Numba keeps them: their object files cannot be loaded here.
    is_for_another_machine = False
    # A file could not be written. Then waiting for the files of other processes is in vain, too.
    cannot_write = False


process = _Process()


# The length of the longest file name. A Windows path has at most 260 characters: a folder whose path is too long for such a
# name is not used.
_LONGEST_NAME = 120


def compile_cached(compiler: Any, *signature: Any) -> None:
    """Load the function of a Dispatcher or CFunc of Numba from disk, or else compile it and save it there. A CFunc has its
    signature already."""
    from .inner_functions import compiled_into_callers  # which imports Numba

    is_for_c = not signature and not process.is_for_another_machine
    compiler._cache = file = (_FileForC if is_for_c else _FileOfNumba)(compiler.__qualname__, _facts())
    with no_garbage_collection(), file.locks, compiled_into_callers() if is_for_c else nullcontext():
        compiler.compile(*signature)
    if file.path and file.is_there and is_for_c:
        _add_functions(file.path.name, {"": compiler.address})


def _add_functions(file: str, addresses: dict[str, int]) -> None:
    _functions.setdefault(file, addresses)
    for name, address in addresses.items():
        _references[address] = f"{file}#{name}"


def kept_text(name: str, machine: tuple[str, ...], make: Callable[[], str]) -> str:
    """Return the text that is kept on disk under `name`, or else make and keep it. The name ends with a digest, as that of a
    function does. The text is code for another machine and, like a compiled function, also depends on this processor."""
    file = _File(name, (*_facts(), *machine))
    with no_garbage_collection(), file.locks:
        text: str | None = file.find(bytes.decode)
        if text is None:
            text = make()
            file.write(text.encode())
    return text


def reference_of(address: int) -> str:
    """Return the reference of a function for C. Raise LookupError if it is not on disk."""
    return _references[address]


def load_function(reference: str) -> int:
    """Return the address of a function for C. Raise LookupError, OSError or ValueError if its file is missing or damaged, or
    needs what this process lacks."""
    file, _, name = reference.partition("#")
    if file not in _functions:
        folder = location().folder
        if folder is None:
            raise LookupError("no function is on disk")
        _add_functions(file, ObjectFile.of_bytes(_verified(own_content(folder, file))).load())
    return _functions[file][name]


def is_kept(name: str, module: str) -> bool:
    """Return whether a function for C is on disk. If the user has changed Numba's settings, the answer is False."""
    path = _File(f"{name}_{digest(module)}", _processor()).path
    return path is not None and is_plain(loaded=True) and path.exists()


def load_and_keep(name: str, made: ObjectFile) -> dict[str, int]:
    """Load an object file that Numba did not make, and keep it under a name, which ends with a digest. Return the addresses of
    its functions."""
    file, addresses = _File(name, _processor()), made.load()
    file.write(made.to_bytes())
    if file.path and file.is_there:
        _add_functions(file.path.name, addresses)
    return addresses


def find_record(name: str) -> Any:
    """Return what `keep_record` kept under a name, by this version of the package on such a processor. Return None if there is
    nothing, or if the user has changed Numba's settings."""
    return _record(name).read(json.loads) if is_plain(loaded=True) else None


def keep_record(name: str, content: Any) -> None:
    """Keep content for JSON under a name for which `find_record` found none, or nothing that could be used. Keep nothing if
    Numba compiles for a processor other than this one, or if the user has changed its settings."""
    if is_plain(loaded=True) and _facts()[-2:] == _processor()[-2:]:
        _record(name).write(json.dumps(content).encode())


def _record(name: str) -> _File:
    return _File(f"{name}_{digest_of_package()[:12]}", _processor())


@functools.cache
def _processor() -> tuple[str, ...]:
    """Return what `_facts` returns if Numba has its default settings, without Numba."""
    import llvmlite.binding as ll

    versions = platform.python_implementation(), platform.python_version(), version_of("numba"), version_of("llvmlite")
    return *versions, ll.get_process_triple(), ll.get_host_cpu_name(), ll.get_host_cpu_features().flatten()


def _facts() -> tuple[str, ...]:
    """Return the versions and the processor that a compiled function depends on, as Numba has them."""
    import llvmlite
    import numba
    from numba.core.registry import cpu_target

    versions = platform.python_implementation(), platform.python_version(), numba.__version__, llvmlite.__version__
    return *versions, *cpu_target.target_context.codegen().magic_tuple()


def _verified(content: bytes) -> bytes:
    """Return the content of a file, which is empty if the file is damaged."""
    start = len(_MARK) + hashlib.sha256().digest_size
    return content[start:] if content[:start] == _MARK + hashlib.sha256(content[start:]).digest() else b""


_PACKAGE = Path(__file__).parents[1]


class Location(NamedTuple):
    """A folder, whether files are loaded from it, and the reason why files cannot be written, or "" if they can."""

    folder: Path | None
    may_read: bool
    why_not: str = ""


@functools.cache
def location() -> Location:
    """Return where the files are: in the folder that NUMBA_CACHE_DIR names, or else in the package's ``__pycache__``, or in the
    cache folder of the user. They are loaded if only this user or the system could have written them. The folder of a frozen
    application may be gone when the application ends."""
    if not named_folder() and not getattr(sys, "frozen", False):
        with suppress(OSError):
            beside = _PACKAGE / "__pycache__"
            beside.mkdir(exist_ok=True)
            check_folder(beside)
            _write_to(beside)
            return Location(beside, True)
    folder, may_read = None, False
    try:
        folder = own_folder()
        folder = make_own(folder)
        may_read = True
        _write_to(folder)
    except OSError as error:
        return Location(folder, may_read, error.strerror or str(error))
    return Location(folder, may_read)


def _write_to(folder: Path) -> None:
    tempfile.TemporaryFile(dir=folder, suffix="_" * _LONGEST_NAME).close()


def environment() -> dict[str, str]:
    """Return the environment variables with which another process uses the same folder."""
    folder = location().folder  # a relative path is that of the folder at its first use
    return {"NUMBA_CACHE_DIR": str(folder.parent)} if named_folder() and folder else {}


def files() -> list[Path]:
    """Return the files of this and all other versions of the package, unfinished files of killed processes included."""
    folder, may_read, _ = location()
    return sorted(filter(_is_own, folder.glob(f"*{SUFFIX}*"))) if folder and may_read else []


def _is_own(path: Path) -> bool:
    """Return whether this package wrote a file, of which a killed process may have written only the beginning."""
    with suppress(OSError):
        return bool(_NAME.fullmatch(path.name)) and path.is_file() and _MARK.startswith(path.read_bytes()[: len(_MARK)])
    return False


def sizes() -> list[int]:
    """Return the sizes of the files in bytes, except files that another process has removed meanwhile."""
    found = []
    for path in files():
        with suppress(OSError):
            found.append(path.stat().st_size)
    return found


class _File:
    """A file of the cache. Its name has a hash of the facts that the content depends on, besides the sources."""

    def __init__(self, name: str, facts: tuple[str, ...]) -> None:
        self.name = name
        self.path: Path | None = None  # where the file is, or will be; None if it is neither read nor written
        self.is_there = False  # whether this process has read or written it
        self.locks = ExitStack()  # contexts that are held until the content is made
        folder, may_read, self._why_not = location()
        if folder and may_read and not name.endswith("_"):  # "_": without a digest
            key = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
            self.path = folder / f"{name}_{key}{SUFFIX}"

    def find(self, parse: Callable[[bytes], Any]) -> Any:
        """Read the file; if it is missing or damaged, get ready to compile. Return what `parse` makes of the content, or None
        if the function has to be compiled."""
        found = self.read(parse)
        if found is None and self.path and not self._why_not and not process.cannot_write:
            has_waited = self.locks.enter_context(locked(self.path.parent, self.path.name))
            found = self.read(parse)  # another process, which held the lock, may have written it
            # A process that waits for another one to compile needs no helpers.
            for each in [] if found or has_waited else [*before_compiling]:
                each()
        if found is None:
            self._announce_compiling()
        return found

    def _announce_compiling(self) -> None:
        """Log that the function is compiled, with a warning if a session waits for it or if its file cannot be written."""
        if self._why_not:
            warn(str(location().folder or ""), self._why_not)
        kept_in = self.path.parent if self.path and not self._why_not else "memory alone"
        if process.warns_on_next_compile:
            process.warns_on_next_compile = False
            _log.warning("compiling kernels takes some seconds; they are kept in %s", kept_in, extra={"kept_in": kept_in})
        _log.info("compiling %s, to be kept in %s", self.name, kept_in, extra={"kept_in": kept_in})

    def read(self, parse: Callable[[bytes], Any]) -> Any:
        """Return what `parse` makes of the content, or None if the file is missing or damaged."""
        with suppress(Exception):  # a damaged file may raise anything
            if self.path and (content := _verified(own_content(self.path.parent, self.path.name))):
                found = parse(content)
                self.is_there = True
                return found
        return None

    def write(self, content: bytes) -> None:
        """Write the file, if that is possible."""
        if self.path is None or self._why_not:
            return
        try:
            write(self.path, _MARK + hashlib.sha256(content).digest() + content)
            self.is_there = True
        except OSError as error:
            if os.name == "posix" or not self.path.exists():  # on Windows, another process may have written it and hold it open
                process.cannot_write = True
                warn(str(self.path.parent), error.strerror or str(error))


class _FileOfNumba(_File):
    """The file of a function, with what compiling needs of ``numba.core.caching.Cache``. Its content is Numba's own."""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the compiled function, or None if its file is missing or damaged."""
        target_context.refresh()
        return self.find(lambda content: self.rebuilt(content, target_context))

    def save_overload(self, signature: Any, compiled: Any) -> None:
        if not compiled.library.has_dynamic_globals:  # addresses of this process
            self.write(self.content_of(compiled))

    def rebuilt(self, content: bytes, target_context: Any) -> Any:
        """Return the function that a file has."""
        from numba.core.compiler import CompileResult

        return CompileResult._rebuild(target_context, *pickle.loads(content))

    def content_of(self, compiled: Any) -> bytes:
        """Return the content of the file of a function."""
        from numba.core.serialize import dumps

        return dumps(compiled._reduce())


class _FileForC(_FileOfNumba):
    """The file of a function for C: an object file."""

    def rebuilt(self, content: bytes, target_context: Any) -> Any:
        return _Loaded(ObjectFile.of_bytes(content).load()[""])

    def content_of(self, compiled: Any) -> bytes:
        import llvmlite.binding as ll

        _, _, (code, bitcode) = compiled.library.serialize_using_object_code()
        module = ll.parse_bitcode(bitcode)
        needed = {value.name for value in (*module.functions, *module.global_variables) if value.is_declaration}
        assert not any(name.startswith("NRT_MemInfo_alloc") for name in needed), f"{self.name} allocates an array"
        symbols = {"": compiled.fndesc.llvm_cfunc_wrapper_name}
        return ObjectFile(symbols, sorted(name for name in needed if not name.startswith("llvm.")), code).to_bytes()


class _Loaded:
    """A loaded function for C, as Numba expects one of its own."""

    llvm_cfunc_wrapper_name = ""

    def __init__(self, address: int) -> None:
        self.library = self.fndesc = self
        self._address = address

    def get_pointer_to_function(self, _: str) -> int:
        return self._address
