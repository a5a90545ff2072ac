"""Return memory to the system that this process no longer needs."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# The advice of madvise that a range is not needed, by its number on Linux.
_MADV_DONTNEED = 4


@contextmanager
def released() -> Iterator[None]:
    """Return unused memory to the system before and after something that takes much of it."""
    _release()
    yield
    _release()


def _release() -> None:
    """Return unused memory to the system. Models of onnx-ir are circles of objects, and glibc's allocator keeps freed memory.
    The code of LLVM is needed only while kernels are compiled or loaded."""
    gc.collect()
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    with suppress(AttributeError):  # of another C library than glibc
        library.malloc_trim(0)
    # Pages of code are clean copies of the file. A use maps them again, so that nothing is lost.
    with suppress(OSError, AttributeError), open("/proc/self/maps") as maps:
        for line in maps:
            addresses, permissions, *_ = line.split()
            if permissions == "r-xp" and "libllvmlite" in line:
                start, end = (int(each, 16) for each in addresses.split("-"))
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
