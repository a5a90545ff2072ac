"""Make the library, and load it into this process."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import tempfile

from .elf import MACHINES, shared_library


class NotAvailableError(RuntimeError):
    """The native way does not work in this process; the message says why."""


def check_platform() -> None:
    """Raises NotAvailableError where there is no such library."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        expected = f"Linux on {' or '.join(MACHINES)}"
        raise NotAvailableError(f"it needs {expected}, this is {sys.platform} on {platform.machine()}")


def load(symbol: str, address: int, argument: int) -> str:
    """Load a library that exports `symbol`, which jumps to `address` with `argument` as its third argument, and return its
    path. Raises NotAvailableError."""
    machine = MACHINES[platform.machine()]
    content = shared_library(symbol, address, argument, machine)
    reasons = []
    for load_file in (_load_memory_file, _load_temporary_file):
        try:
            return load_file(content, symbol, machine.code(address, argument))
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


def _load(path: str, symbol: str, code: bytes) -> None:
    """The linker takes a path for a library that it had under this path before, whatever lies there now."""
    function = getattr(ctypes.CDLL(path), symbol, None)
    if function is None or ctypes.string_at(ctypes.cast(function, ctypes.c_void_p).value or 0, len(code)) != code:
        raise OSError(f"{path} was another library once")


def _load_temporary_file(content: bytes, symbol: str, code: bytes) -> str:
    with tempfile.NamedTemporaryFile(prefix="quark_numba_", suffix=".so", delete=False) as file:  # mode 0600
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
