"""Whether a file has changed: its time, size and identity. This module does without onnx."""

from __future__ import annotations

import os

# The size, the inode, and the times of the last changes of content and inode of a file. Empty if there is no such file.
State = list[int]


def state_of(path: str | os.PathLike[str]) -> State:
    """Return the size, inode and times of a file, which differ after any change of it."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: no file has such a name
        return []
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
