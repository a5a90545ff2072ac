"""The bytes of tensors that are in files (``TensorProto.external_data``): which files a model may name, through which links,
and the errors of wrong places and of files that are too short.

As in ONNX Runtime, a file has to be in the folder of its model or below it, also after following links. The reader of onnx is
not enough: it refuses all links, and files with several hard links, which package managers make."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import BinaryIO

import onnx
from onnx.external_data_helper import ExternalDataInfo


def place_of(tensor: onnx.TensorProto) -> ExternalDataInfo:
    """Return where in which file the elements of a tensor are. As in ONNX Runtime, length 0 means that the length is not given.
    Raise ValueError if the entries are invalid."""
    for entry in tensor.external_data:
        if entry.key in ("offset", "length") and not re.fullmatch("[0-9]+", entry.value):
            raise ValueError(f"{entry.key} {entry.value!r}; expected a number of digits")
    try:
        info = ExternalDataInfo(tensor)
    except (AttributeError, TypeError) as error:  # raised by older versions of onnx for other keys
        raise ValueError(error) from None
    info.length = info.length or None
    return info


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is the folder or below it. Neither may contain links."""
    return os.path.normcase(os.path.join(path, "")).startswith(os.path.normcase(os.path.join(folder, "")))


def real_path(location: str, folder: str, *others: str) -> str:
    """Return the path, without links, of a file that a model in `folder` names. Raise ValueError unless the file is below that
    folder, or a link in the folder leads below one of the others."""
    if os.path.isabs(location) or os.path.splitdrive(location)[0]:
        raise ValueError(f"{location!r} is an absolute path; expected a file in the folder of the model")
    named, folder = os.path.join(folder, location), os.path.realpath(folder)
    if not is_below(os.path.normpath(os.path.join(folder, location)), folder):
        raise ValueError(f"{location!r} is outside of the folder of the model; expected a file in it")
    path = os.path.realpath(named)
    if not any(is_below(path, os.path.realpath(each)) for each in (folder, *others)):
        raise ValueError(
            f"{location!r} leads through a link to a file outside of the folder of the model; expected a file in it"
        )
    return path


def read_from(file: BinaryIO, tensor: onnx.TensorProto, size: int | None = None) -> bytes:
    """Return the bytes of a tensor in an open file. `size` is the number of bytes that the elements need. If it is None, the
    tensor gives the number, or the bytes run to the end of the file. Raise ValueError or OSError if they cannot be read."""
    place = place_of(tensor)
    if size is not None and place.length not in (None, size):
        raise ValueError(f"it has {place.length} bytes in {place.location}; expected {size}")
    start, end = place.offset or 0, os.fstat(file.fileno()).st_size
    wanted = place.length if size is None else size
    stop = end if wanted is None else start + wanted
    if max(start, stop) > end:
        raise ValueError(f"{place.location} is truncated")
    file.seek(start)
    content = file.read(stop - start)
    if len(content) != stop - start:
        raise ValueError(f"{place.location} is truncated")
    return content


def opened(location: str, folder: str) -> BinaryIO:
    """Open a file that a model in this folder names, also through a link to another place in the folder. Raise ValueError or
    OSError if it cannot be read."""
    return _opened(real_path(location, folder), location, folder)


def opened_without_links(location: str, folder: str) -> BinaryIO:
    """Open a file as `opened` does, at a location whose links have been resolved. Links that were put into its path since then
    are not followed, where the system can tell."""
    if os.open not in os.supports_dir_fd:
        return opened(location, folder)
    folder = os.path.realpath(folder)
    path = os.path.normpath(os.path.join(folder, location))
    if not is_below(path, folder):
        raise ValueError(f"{location!r} is outside of the folder of the model; expected a file in it")
    return _opened(path, location, folder)


def _opened(path: str, location: str, folder: str) -> BinaryIO:
    """Open a file below a folder. Links in its path are not followed, where the system can tell. A pipe does not make this wait
    for its other end."""
    if os.path.isdir(path):  # Windows cannot open a folder
        raise ValueError(f"{location!r} is a folder; expected a file")
    number = _descriptor(path, os.path.realpath(folder))
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def _descriptor(path: str, folder: str) -> int:
    """Open a file below a folder. Neither path may contain links."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if os.open not in os.supports_dir_fd:
        return os.open(path, flags)
    *parents, name = os.path.relpath(path, folder).split(os.sep)
    # A folder may be one that can be entered but not read.
    enter = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
    place = os.open(folder, enter)
    try:
        for parent in parents:
            inner = os.open(parent, enter | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        return os.open(name, flags, dir_fd=place)
    finally:
        os.close(place)
