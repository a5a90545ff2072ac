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


def load(symbol: str, address: int) -> str:
    """Load a library that exports `symbol`, which jumps to `address`, and return its path. Raises NotAvailableError."""
    content = shared_library(symbol, address, MACHINES[platform.machine()])
    reasons = []
    for load_file in (_load_memory_file, _load_temporary_file):
        try:
            return load_file(content)
        except OSError as error:
            reasons.append(str(error))
    raise NotAvailableError(f"the library cannot be loaded: {'; '.join(reasons)}")


def _load_memory_file(content: bytes) -> str:
    descriptor = os.memfd_create("quark_numba", os.MFD_CLOEXEC)  # stays open: the path goes through it
    try:
        os.write(descriptor, content)
        path = f"/proc/self/fd/{descriptor}"
        ctypes.CDLL(path)
    except OSError:
        os.close(descriptor)
        raise
    return path


def _load_temporary_file(content: bytes) -> str:
    with tempfile.NamedTemporaryFile(prefix="quark_numba_", suffix=".so", delete=False) as file:  # mode 0600
        file.write(content)
    try:
        ctypes.CDLL(file.name)
    except OSError:
        os.remove(file.name)
        raise
    atexit.register(_remove, file.name, os.getpid())
    return file.name


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):
        os.remove(path)
