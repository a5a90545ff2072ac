"""The library, made and loaded into this process: for which platforms, from memory or from which file, how often that is tried,
and the reasons why it cannot be loaded."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ...compiling.user_folder import own_folder, write
from ...errors import NotAvailableError, reason_of
from . import elf, macho, pe

# Processes share a file and may get in each other's way. The number of attempts, and the seconds between them.
_ATTEMPTS, _PAUSE = 20, 0.05


def check_platform() -> None:
    """Raise NotAvailableError if there is no such library for this platform."""
    here = _here()
    machines = [*elf.MACHINES, *macho.MACHINES, *pe.MACHINES]
    if here not in machines:
        raise NotAvailableError(f"it needs {', '.join(machines[:-1])} or {machines[-1]}, this is {here}")


def _here() -> str:
    """Return the platform that Python was built for: a processor may run programs for another one."""
    name = sysconfig.get_platform()
    # On macOS this names a release of the system, and one Python may be built for both processors.
    return f"macos-{platform.machine()}" if name.startswith("macosx-") else name


def load(symbol: str, address: int, argument: int) -> str:
    """Load a library that exports `symbol`, which jumps to `address` with `argument` as its third argument, and return its
    path. Raise NotAvailableError if it cannot be loaded."""
    here = _here()
    ways: list[Callable[[], str]]
    if here in pe.MACHINES:
        ways = [partial(_load_kept_file, symbol, address, argument, pe.MACHINES[here])]
    elif here in macho.MACHINES:
        mac = macho.MACHINES[here]
        content = macho.shared_library(symbol, address, argument, mac)
        ways = [partial(_load_temporary_file, content, symbol, mac.code(address, argument), ".dylib")]
    else:
        machine = elf.MACHINES[here]
        parts = elf.shared_library(symbol, address, argument, machine), symbol, machine.code(address, argument)
        ways = [partial(_load_memory_file, *parts), partial(_load_temporary_file, *parts)]
    reasons = []
    for way in ways:
        try:
            return way()
        except OSError as error:
            reasons.append(str(error))
    raise NotAvailableError(f"the library cannot be loaded: {'; '.join(reasons)}")


def _load_memory_file(content: bytes, symbol: str, code: bytes) -> str:
    if not hasattr(os, "memfd_create"):
        raise OSError("this Python has no os.memfd_create")
    descriptor = os.memfd_create("quark_numba", os.MFD_CLOEXEC)  # stays open: the path goes through it
    try:
        os.write(descriptor, content)
        path = f"/proc/self/fd/{descriptor}"
        _load(path, symbol, code)
    except OSError:
        os.close(descriptor)
        raise
    return path


def _load(path: str, symbol: str, code: bytes) -> ctypes.CDLL:
    """Load the library at a path, and check its code: if the linker has loaded another library from this path before, it
    returns that one without reading the file. Raise OSError if it cannot be loaded or has other code."""
    library = ctypes.CDLL(path)
    function = getattr(library, symbol, None)
    if function is None or ctypes.string_at(ctypes.cast(function, ctypes.c_void_p).value or 0, len(code)) != code:
        raise OSError(f"{path} was another library once")
    return library


def _load_temporary_file(content: bytes, symbol: str, code: bytes, suffix: str = ".so") -> str:
    import tempfile  # slow, and rarely needed

    with tempfile.NamedTemporaryFile(prefix="quark_numba_", suffix=suffix, delete=False) as file:  # mode 0600
        file.write(content)
    try:
        _load(file.name, symbol, code)
    except OSError:
        os.remove(file.name)
        raise
    atexit.register(_remove, file.name, os.getpid())
    return file.name


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.remove(path)


def _load_kept_file(symbol: str, address: int, argument: int, machine: pe.Machine) -> str:
    """Load a file that stays and serves all processes of this user. The argument and the address are set in the memory of this
    process."""
    content = pe.shared_library(symbol, machine)
    path = _kept_file(content)
    words = (ctypes.c_uint64 * 2).in_dll(_loaded_kept_file(path, content, symbol, pe.code(machine)), pe.WORDS)
    words[:] = [argument, address]
    return path


def _kept_file(content: bytes) -> str:
    return str(own_folder() / f"quark_numba_{hashlib.sha256(content).hexdigest()[:16]}.dll")


def _loaded_kept_file(path: str, content: bytes, symbol: str, code: bytes) -> ctypes.CDLL:
    """Load the file at `path` if it has this content, else replace it first. The file cannot be changed between the check and
    the loading. If several processes do this at the same time, some cannot open or replace the file, and try again."""
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            file = open(path, "rb", opener=_open_unchanging)  # noqa: SIM115  # errors of loading are not caught here
        except OSError as error:
            reason = f"{path}: {reason_of(error)}"
        else:
            with file:
                if file.read(len(content) + 1) == content:
                    return _load(path, symbol, code)
            reason = f"{path} is another file"
        try:
            write(Path(path), content)
        except OSError as error:
            reason += f"; it cannot be written: {reason_of(error)}"
            time.sleep(_PAUSE)
    raise OSError(reason)


def _open_unchanging(path: str, flags: int) -> int:
    """Return a descriptor for reading. On Windows the file cannot be written, replaced or removed until it is closed."""
    if sys.platform == "win32":
        import _winapi
        import msvcrt

        share_read, open_existing = 1, 3
        handle = _winapi.CreateFile(path, _winapi.GENERIC_READ, share_read, 0, open_existing, 0, 0)
        return msvcrt.open_osfhandle(handle, flags)
    return os.open(path, flags)
