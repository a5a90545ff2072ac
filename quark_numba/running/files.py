"""Arrays in .npz and .npy files, as a whole or some rows at a time, the errors for arrays that a file lacks, and texts in files
as tokens. Pickled arrays are never loaded."""

from __future__ import annotations

import math
import os
import struct
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import ModelError, errors_named, file_error, missing_packages_are_named
from ..models.files import check_is_regular, errors_of_file

T = TypeVar("T")

# The bytes of a file that are in memory at a time while its checksums are computed.
_CHUNK = 1 << 20

# What the files are, for messages.
_WHAT = "a file of numbers"

# The fixed part of a member's header in a zip file: its length, and where the lengths of the rest are.
_LOCAL_HEADER, _LENGTHS = 30, slice(26, 30)


class Member(NamedTuple):
    """An array in a file: its shape and dtype, whether it is in Fortran order, and where in the file its elements begin, or
    None if they are compressed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    offset: int | None


class File(NamedTuple):
    """A file at the time when its headers were read, with its size, its modification time in nanoseconds, the number of batches
    in it, and its arrays by name."""

    path: Path
    size: int
    time: int
    batch_count: int
    members: dict[str, Member]

    @property
    def is_here(self) -> bool:
        """Return whether this machine has the very same file."""
        try:
            return self._is_same(self.path.stat())
        except OSError:
            return False

    @property
    def is_read_whole(self) -> bool:
        """Return whether the file has to be read as a whole, as an array is compressed or in Fortran order."""
        return any(member.offset is None or member.is_fortran for member in self.members.values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays, with the checksums checked. Raise ModelError if the file cannot be read or has changed."""
        arrays = read_arrays(self.path, [*self.members])
        for name, member in self.members.items():
            if (arrays[name].shape, arrays[name].dtype) != (member.shape, member.dtype.newbyteorder("=")):
                raise self._changed()
        return arrays

    def arrays_again(self) -> dict[str, NDArray[Any]]:
        """Return `arrays`. The thread keeps those of one file until it reads another file."""
        if _last.arrays is None or _last.arrays[0] != self:
            _last.arrays = None  # before the next file is in memory, too
            _last.arrays = self, self.arrays()
        return _last.arrays[1]

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return rows of arrays that are together in the file, and read nothing else. Raise ModelError if the file cannot be
        read or has changed."""
        with errors_of_file(self.path, _WHAT), open(self.path, "rb") as file:
            if not self._is_same(os.fstat(file.fileno())) and read_headers(self.path, [*self.members]) != self.members:
                raise self._changed()
            return {name: _rows(file, member, start, stop) for name, member in self.members.items()}

    def check(self) -> None:
        """Raise ModelError if the content of an array differs from its checksum. This thread remembers the last file."""
        if self.path.suffix == ".npy" or _last.checked == self:
            return
        _read(self.path, [*self.members], _read_to_the_end)
        _last.checked = self

    def _is_same(self, status: os.stat_result) -> bool:
        return (status.st_size, status.st_mtime_ns) == (self.size, self.time)

    def _changed(self) -> ModelError:
        return ModelError(f"{self.path}: it has changed since its header was read")


class _Last(threading.local):
    """What a thread keeps of the last file that it read."""

    arrays: tuple[File, dict[str, NDArray[Any]]] | None = None
    checked: File | None = None


_last = _Last()


def forget() -> None:
    """Release what this thread keeps of the last file that it read."""
    _last.arrays = _last.checked = None


def files_of(folder: Path) -> list[Path]:
    """Return the .npz and .npy files of a folder in the order of their names. Raise ModelError if it has no such file."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith((".npz", ".npy")))
    except OSError as error:
        raise file_error(folder, error) from None
    if not names:
        raise ModelError(f"{folder}: no .npz and no .npy file in this folder")
    return [folder / name for name in names]


def read_headers(path: str | Path, names: Sequence[str]) -> dict[str, Member]:
    """Return the named arrays of an .npz file, or the array of an .npy file, without their elements. Raise ModelError."""
    return _read(path, names, _header)


def read_arrays(path: str | Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an .npz file, or the array of an .npy file, in this machine's byte order. Raises
    ModelError."""
    return _read(path, names, lambda content, *_: _native(npy.read_array(content, allow_pickle=False)))


def check_arrays(there: Iterable[Any], names: Sequence[str], where: object) -> None:
    """Raise ModelError unless the arrays that are `there` include all of `names`."""
    for name in names:
        if name not in there:
            raise ModelError(f"{where}: no array named {name}; it has {', '.join(map(str, there)) or 'none'}")


def _read(path: str | Path, names: Sequence[str], read_one: Callable[[IO[bytes], int | None, int], T]) -> dict[str, T]:
    """Return what `read_one` makes of each array: of its .npy file as a stream, of where in the file that begins (None if it is
    compressed), and of its bytes."""
    check_is_regular(path)
    with errors_of_file(path, _WHAT), open(path, "rb") as file:
        if Path(path).suffix == ".npy":
            if len(names) != 1:
                raise ModelError(f"{path}: one array; expected an .npz file with {', '.join(names)}")
            return {names[0]: read_one(file, 0, os.fstat(file.fileno()).st_size)}
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            check_arrays(members, names, path)
            arrays = {}
            for name in names:
                with archive.open(members[name]) as content:  # which checks the header that `_start` reads
                    arrays[name] = read_one(content, _start(file, members[name]), members[name].file_size)
            return arrays


def _start(file: IO[bytes], info: zipfile.ZipInfo) -> int | None:
    """Return where in a zip file the content of a member begins, or None if it is compressed."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    file.seek(info.header_offset)
    return info.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", file.read(_LOCAL_HEADER)[_LENGTHS]))


def _header(content: IO[bytes], start: int | None, size: int) -> Member:
    version = npy.read_magic(content)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format")
    shape, is_fortran, dtype = readers[version](content)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are not loaded")
    if min(shape, default=0) < 0:
        raise ValueError(f"it has shape {shape}")
    place = content.tell()
    if place + math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"it ends before the last element of an array of shape {shape}")
    return Member(tuple(shape), dtype, is_fortran, None if start is None else start + place)


def _read_to_the_end(content: IO[bytes], *_: object) -> None:
    while content.read(_CHUNK):
        pass


def _rows(file: Any, member: Member, start: int, stop: int) -> NDArray[Any]:
    """Return rows of an array that lie in a file as they are, in C's order."""
    assert member.offset is not None
    rows = np.empty((stop - start, *member.shape[1:]), member.dtype)
    file.seek(member.offset + start * math.prod(member.shape[1:]) * member.dtype.itemsize)
    if rows.nbytes and file.readinto(rows.reshape(-1).view(np.uint8)) < rows.nbytes:
        raise ValueError("it ends before its last element")
    return _native(rows)


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in this machine's byte order, without a copy of numbers."""
    dtype = array.dtype.newbyteorder("=")
    if array.dtype.kind in "iufc" and array.dtype != dtype:
        return array.byteswap(inplace=True).view(dtype)
    return array.astype(dtype, copy=False)


def files_of_texts(source: Any) -> list[Path]:
    """Return the path of a text file, or those of the .txt files of a folder in the order of their names. Raise ModelError if
    there is none."""
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(f"tokenizer: the source is a {type(source).__name__}; expected the path of a text file or of a folder")
    path = Path(source)
    with errors_of_file(path, "a text file or a folder"):
        files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        for file in files:
            file.stat()
    if not files:
        raise ModelError(f"{path}: no .txt file in this folder")
    return files


def read_tokens(files: Sequence[Path], tokenizer: str | os.PathLike[str]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the name of each file, and its tokens, of shape (1, tokens), with those that the tokenizer adds to a text. Raise
    ModelError if a file is no text in UTF-8, or the tokenizer cannot be used."""
    with missing_packages_are_named():
        import tokenizers
    with errors_named(f"tokenizer {os.fspath(tokenizer)}", with_type=False):
        encoder = tokenizers.Tokenizer.from_file(os.fspath(tokenizer))
    for file in files:
        with errors_of_file(file, "a text in UTF-8"):
            text = file.read_text(encoding="utf-8")
        with errors_named(str(file), with_type=False):
            yield str(file), np.array([encoder.encode(text).ids], np.int64)
