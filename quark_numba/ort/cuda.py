"""The CUDA driver, which is part of every driver of NVIDIA GPUs: its library, its oldest version, and the kernels that it has
loaded."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING

from ..errors import NotAvailableError
from .shared_library.load import check_platform

if TYPE_CHECKING:
    from ..compiling.device import DeviceKernel

_NAME = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"

# What kernels need of the driver. The first two, of CUDA 12, load a kernel for all cards at once.
_FUNCTIONS = ("cuLibraryLoadData", "cuLibraryGetKernel", "cuLaunchKernel", "cuInit")


@functools.cache
def driver() -> ctypes.CDLL | None:
    """Return the library of the driver. Return None if this machine lacks it or has one from before CUDA 12, or if sessions
    have no compiled nodes."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    try:
        check_platform()
        library = ctypes.CDLL(_NAME)
    except (NotAvailableError, OSError):
        return None
    return library if all(hasattr(library, name) for name in _FUNCTIONS) else None


def launcher() -> int:
    """Return the address of ``cuLaunchKernel``."""
    return ctypes.cast(_driver().cuLaunchKernel, ctypes.c_void_p).value or 0


@functools.cache
def loaded(kernel: DeviceKernel) -> int:
    """Return the handle that the driver has for a kernel. The driver compiles it for a GPU at the first launch there, and keeps
    it until the process ends. Raise RuntimeError if the driver refuses it."""
    library, handle = ctypes.c_void_p(), ctypes.c_void_p()
    cuda, nothing = _driver(), (None, None, 0)
    code = cuda.cuInit(0)
    code = code or cuda.cuLibraryLoadData(ctypes.byref(library), kernel.ptx.encode(), *nothing, *nothing)
    code = code or cuda.cuLibraryGetKernel(ctypes.byref(handle), library, kernel.entry.encode())
    if code or handle.value is None:
        raise RuntimeError(f"the CUDA driver refuses the kernel {kernel.entry} with error {code}")
    return handle.value


def _driver() -> ctypes.CDLL:
    library = driver()
    if library is None:
        raise RuntimeError("this machine has no driver of CUDA 12 or later")
    return library
