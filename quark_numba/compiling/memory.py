"""Returning memory that is no longer needed to the system, the pages of LLVM among it, and pausing garbage collection."""

from __future__ import annotations

import ctypes
import functools
import gc
import re
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import PAGESIZE

# The advice of madvise that a range is not needed, by its number on Linux.
_MADV_DONTNEED = 4

# A part of LLVM's library that is not writable, in Linux's list of mappings: start, end, offset in the file, file.
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r-.p ([0-9a-f]+) \S+ \d+ +(/.*libllvmlite.*)$", re.MULTILINE)

# The header of an ELF file has the offset of the table of segments, the size of an entry and the number of entries. An entry
# has the kind, the flags and the offset of the segment, and five other words.
_TABLE, _SEGMENT = struct.Struct("=32xQ14xHH4x"), struct.Struct("=IIQ40x")
_LOADED, _WRITABLE = 1, 2


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection for work that makes many objects that live on. Scanning them again and again would take an
    eighth of the time to compile, and a fifth of the time to rewrite a model."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def released() -> Iterator[None]:
    """Return unused memory to the system before and after work that takes much of it. The objects of an onnx-ir model refer to
    each other in cycles. If they were made within `no_garbage_collection`, they are in the youngest generation, and need no
    scan of all objects, which takes a tenth of a second."""
    gc.collect(0)
    _release()
    yield
    _release()


def _release() -> None:
    """Return unused memory, which the allocator of glibc keeps, to the system."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # with a C library other than glibc
            ctypes.CDLL(None).malloc_trim(0)
    release_compiler()


def release_compiler() -> None:
    """Unmap the code and the constants of LLVM, some 65 MB, which are needed only while kernels are compiled or loaded. Their
    pages are unchanged copies of the file, and a use maps them again, so that nothing is lost. This takes a millisecond,
    and some more the first time."""
    for start, size in _pages_of_compiler():
        with suppress(AttributeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED)


@functools.cache
def _pages_of_compiler() -> list[tuple[int, int]]:
    """Return the address and the size of each part of LLVM's library that nothing writes to, not even the loader. Return
    nothing on systems other than Linux.

    Linux's numbers of changed pages (smaps) are not reliable: pages that were swapped out are not counted, and qemu, which
    runs containers for other processors, writes 0."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        found = _MAPPING.findall(maps.read())
        parts = [(int(start, 16), int(end, 16), int(offset, 16), path) for start, end, offset, path in found]
        return [(start, end - start) for start, end, offset, path in parts if offset + PAGESIZE <= _first_written(path)]
    return []


def _first_written(path: str) -> int:
    """Return the offset in an ELF file of the first segment that may be written to. The loader makes parts of such a segment
    unwritable once it has changed them; their pages are not those of the file."""
    with open(path, "rb") as file:
        offset, size, count = _TABLE.unpack(file.read(_TABLE.size))
        file.seek(offset)
        segments = _SEGMENT.iter_unpack(file.read(size * count))
        return min(offset for kind, flags, offset in segments if kind == _LOADED and flags & _WRITABLE)
