"""Arrays in .npz and .npy files. Pickled arrays are never loaded."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import ModelError, file_error, reraise_of_signal_handler
from .inputs import Header

T = TypeVar("T")


@dataclass(frozen=True)
class File:
    """A file at the time when its headers were read, with its size, its modification time in nanoseconds, and the number of
    batches in it."""

    path: Path
    size: int
    time: int
    batches: int

    @property
    def is_here(self) -> bool:
        """Whether this machine has the very same file."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.time)


def files_of(folder: Path) -> list[Path]:
    """Return the .npz and .npy files of a folder in the order of their names. Raises ModelError if it has none."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith((".npz", ".npy")))
    except OSError as error:
        raise file_error(folder, error) from None
    if not names:
        raise ModelError(f"{folder}: no .npz and no .npy file in this folder")
    return [folder / name for name in names]


def read_headers(path: str | Path, names: Sequence[str]) -> dict[str, Header]:
    """Return the headers of the named arrays of an .npz file, or of the array of an .npy file. Raises ModelError."""
    return _read(path, names, _header)


def read_arrays(path: str | Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an .npz file, or the array of an .npy file, in this machine's byte order. Raises
    ModelError."""
    return _read(path, names, _array)


def check_names(there: Iterable[Any], names: Sequence[str], where: object) -> None:
    """Raise ModelError unless all of `names` are among those that are `there`."""
    for name in names:
        if name not in there:
            raise ModelError(f"{where}: no array named {name}; it has {', '.join(map(str, there)) or 'none'}")


def _read(path: str | Path, names: Sequence[str], read_one: Callable[[IO[bytes]], T]) -> dict[str, T]:
    try:
        with open(path, "rb") as file:
            if Path(path).suffix == ".npy":
                if len(names) != 1:
                    raise ModelError(f"{path}: one array; expected an .npz file with {', '.join(names)}")
                return {names[0]: read_one(file)}
            with zipfile.ZipFile(file) as archive:
                members = {member.removesuffix(".npy"): member for member in archive.namelist()}
                check_names(members, names, path)
                arrays = {}
                for name in names:
                    with archive.open(members[name]) as content:
                        arrays[name] = read_one(content)
                return arrays
    except ModelError:
        raise
    except Exception as error:  # the file may be missing or have any content
        reraise_of_signal_handler(error)
        if isinstance(error, OSError) and error.errno:
            raise file_error(path, error) from None
        raise ModelError(f"{path}: not a file of numbers: {error}") from None


def _header(file: IO[bytes]) -> Header:
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are not loaded")
    return Header(tuple(shape), dtype)


def _array(file: IO[bytes]) -> NDArray[Any]:
    array = npy.read_array(file, allow_pickle=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
