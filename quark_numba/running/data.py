"""Data for a model: batches of its inputs, read one at a time from files or from a function, or random.

The headers of all files are read first, so that wrong data are refused before anything runs."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import ModelError, reraise_of_signal_handler
from .sessions import Arrays, dtype_of

# A path, "module:function", an iterable of feeds, or a function that returns one. A feed is a mapping of input names to arrays,
# or an array for a model of one input.
Source = Any

_FUNCTION = re.compile(r"[\w.]+:\w+")


class Header(NamedTuple):
    """The shape and dtype in the header of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Input:
    """An input of a model. `shape` is None if it is not known. A free dimension is anything but a positive integer."""

    name: str
    type_name: str
    shape: tuple[int | str | None, ...] | None

    def fault(self, header: Any, *, dropped: int = 0) -> str:
        """Return the reason why an array does not fit this input, or "" if it fits. `header` is the array or its header. Its
        first `dropped` dimensions are ignored."""
        dtype = dtype_of(self.type_name)
        if dtype is None or (header.dtype.kind != "U" if dtype.kind == "U" else header.dtype.newbyteorder("=") != dtype):
            return f"is {header.dtype}; the model takes {self.type_name}"
        shape = header.shape[dropped:]
        if self.shape is None:
            return ""
        fits = len(shape) == len(self.shape) and all(
            not isinstance(wanted, int) or wanted < 1 or wanted == given
            for given, wanted in zip(shape, self.shape, strict=True)
        )
        expected = ", ".join(str(each) if isinstance(each, (int, str)) else "?" for each in self.shape)
        return "" if fits else f"has shape {header.shape}; the model takes [{expected}]"

    @property
    def has_free_rows(self) -> bool:
        """Whether the number of rows is free. False for an input of one dimension: its rows are single elements."""
        return self.shape is None or (len(self.shape) > 1 and not (isinstance(self.shape[0], int) and self.shape[0] > 0))


def inputs_of(session: Any) -> list[Input]:
    # ONNX Runtime returns [] for a scalar and for an unknown shape.
    return [Input(each.name, each.type, tuple(each.shape) if each.shape else None) for each in session.get_inputs()]


@dataclass(frozen=True)
class Rows:
    """The inputs whose rows are samples. Only arrays of at least `least_rank` dimensions have rows."""

    names: tuple[str, ...]
    least_rank: int


@dataclass(frozen=True)
class Batch:
    """A batch: part number `part` of a file, or a feed in memory. A file is read only by a call of `load`, on its thread or
    worker."""

    name: str
    feed: Arrays | None = None
    file: File | None = None
    part: int = 0
    reader: _Reader | None = None
    number: int = -1  # its index in the data
    rows: Rows | None = None

    def load(self) -> Arrays:
        """Return the arrays by their names. Raises ModelError if the file cannot be read or has changed."""
        if self.feed is not None:
            return self.feed
        assert self.file
        assert self.reader
        return self.reader.part(self.file, self.part)

    def samples_of(self, feed: Arrays) -> int:
        """Return the number of samples in `feed`, the loaded batch. It is 1 if no array has rows that are samples."""
        assert self.rows
        arrays = (feed[name] for name in self.rows.names)
        return next((len(array) for array in arrays if array.ndim >= self.rows.least_rank), 1)

    @property
    def is_here(self) -> bool:
        """Whether this machine has the batch. If it is in a file, it has to be the very same file."""
        return self.file is None or self.file.is_here


@dataclass(frozen=True)
class File:
    """A file at the time when its headers were read, with its size and its modification time in nanoseconds."""

    path: Path
    parts: int
    size: int
    time: int

    @property
    def is_here(self) -> bool:
        try:
            there = self.path.stat()
        except OSError:
            return False
        return (there.st_size, there.st_mtime_ns) == (self.size, self.time)


class Data:
    """An iterable over batches of a model's inputs. `again` is whether it can be iterated over more than once: False if the
    data come from an iterator. `batches` is the number of batches, None if only the source knows it. `description`
    distinguishes these data from others."""

    def __init__(
        self,
        items: Callable[[], Iterator[Batch]],
        batches: int | None,
        limit: int | None,
        rows: Rows,
        *,
        again: bool = True,
        description: str = "",
    ) -> None:
        self._items, self._limit, self._rows, self.again, self.description = items, limit, rows, again, description
        self.batches = batches if limit is None or batches is None else min(batches, limit)

    def parts(self) -> Iterator[Batch]:
        """Yield the batches. Those in files are not read yet."""
        count = 0
        try:
            for batch in self._items():
                yield dataclasses.replace(batch, number=count, rows=self._rows)
                count += 1
                if count == self._limit:
                    break
        finally:
            _last_file.cache_clear()
        if not count:
            raise ModelError("there are no data: the source has no batch")

    def __iter__(self) -> Iterator[Arrays]:
        return (each.load() for each in self.parts())


def open_data(
    inputs: Sequence[Input],
    data: Source = None,
    *,
    random: int | None = None,
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    limit: int | None = None,
    batch: int | None = None,
    labels: str | None = None,
) -> Data:
    """Return the batches of a source, or `random` random batches, but at most `limit` of them.

    Parameters
    ----------
    inputs : the inputs of the model
    data : path of an .npz file or of a folder of .npz or .npy files, or "module:function", or an iterable of feeds, or a
        callable that returns one. The keys of a file or of a feed are the names of inputs. Each array is one batch. If all
        arrays have one dimension more than the model's inputs, each is a stack of batches.
    batch : int, optional
        The number of rows in a batch: each array is cut into such batches.
    labels : str, optional
        A further key of each batch, of an array of integers.

    Raises
    ------
    ModelError
        If data are missing, wrong or cannot be read. The message names the file.
    """
    reader = _Reader(inputs, batch, labels)
    if data is None:
        if labels:
            raise ModelError(f"random data have no labels {labels!r}")
        first = random_inputs(inputs, dimensions or {}, np.random.default_rng(seed))

        def random_batches() -> Iterator[Batch]:
            generator = np.random.default_rng(seed)
            random_inputs(inputs, dimensions or {}, generator, quiet=True)
            yield Batch("random batch 0", first)
            for number in range(1, random or 1):
                yield Batch(f"random batch {number}", random_inputs(inputs, dimensions or {}, generator, quiet=True))

        description = f"random {seed} {sorted((dimensions or {}).items())}"
        return Data(random_batches, random or 1, limit, reader.rows, description=description)
    if isinstance(data, (str, os.PathLike)):
        if os.path.isdir(data):
            return _open_files(reader, _files(Path(data)), limit)
        if os.path.exists(data) or not _FUNCTION.fullmatch(os.fspath(data)):
            return _open_files(reader, [Path(data)], limit)
        return _open_function(reader, load_function(os.fspath(data)), os.fspath(data), limit)
    if callable(data):
        return _open_function(reader, data, "the data", limit)
    return _open_feeds(reader, data, limit)


def _open_function(reader: _Reader, function: Callable[[], Any], name: str, limit: int | None) -> Data:
    """Return the data that a function returns. It is called again each time the data are read."""
    first = [_feeds(_called(function, name), name)]
    return Data(
        lambda: reader.feeds(first.pop() if first else _feeds(_called(function, name), name), name),
        None,
        limit,
        reader.rows,
        description=name,
    )


def _open_feeds(reader: _Reader, data: Any, limit: int | None) -> Data:
    feeds = _feeds(data, "the data")
    batches = None
    if isinstance(feeds, Sequence):
        batches = sum(
            reader.parts(reader.arrays(feed, f"the data, number {i}"), f"the data, number {i}") for i, feed in enumerate(feeds)
        )
    return Data(lambda: reader.feeds(feeds, "the data"), batches, limit, reader.rows, again=iter(feeds) is not feeds)


def _feeds(made: Any, name: str) -> Iterable[Any]:
    if isinstance(made, (Mapping, np.ndarray)):
        return [made]
    if not isinstance(made, Iterable):
        raise ModelError(f"{name}: a {type(made).__name__}; expected an iterable of feeds")
    return made


def load_function(name: str) -> Callable[..., Any]:
    """Return the function that "module:function" names. Modules are searched for in the current folder first, as by
    ``python -m``."""
    module, _, attribute = name.partition(":")
    if not _FUNCTION.fullmatch(name):
        raise ModelError(f"{name!r} is neither a file, nor a folder, nor module:function")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module may raise anything
        reraise_of_signal_handler(error)
        raise ModelError(f"{name}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise ModelError(f"{name}: is a {type(found).__name__}; expected a function")
    return found


def _called(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except Exception as error:  # a function may raise anything
        reraise_of_signal_handler(error)
        raise ModelError(f"{name}: {type(error).__name__}: {error}") from error


def _files(folder: Path) -> list[Path]:
    try:
        found = sorted(
            (each for each in os.scandir(folder) if each.name.endswith((".npz", ".npy"))), key=lambda each: each.name
        )
    except OSError as error:
        raise ModelError(f"{folder}: {error.strerror}") from None
    if not found:
        raise ModelError(f"{folder}: no .npz and no .npy file in this folder")
    return [Path(each) for each in found]


def _open_files(reader: _Reader, paths: list[Path], limit: int | None) -> Data:
    files: list[File] = []
    batches = 0
    for path in paths:
        parts = reader.check(path)
        there = path.stat()
        files.append(File(path, parts, there.st_size, there.st_mtime_ns))
        batches += parts
        if limit is not None and batches >= limit:
            break

    def items() -> Iterator[Batch]:
        for file in files:
            for part in range(file.parts):
                name = f"{file.path}, batch {part}" if file.parts > 1 else str(file.path)
                yield Batch(name, file=file, part=part, reader=reader)

    return Data(
        items, batches, limit, reader.rows, description=repr([(str(each.path), each.size, each.time) for each in files])
    )


@functools.lru_cache(1)
def _last_file(reader: _Reader, file: File) -> Arrays:
    """Return the arrays of a file. The last file is kept, because it may have several batches in a row."""
    return reader.read(file.path)


class _Reader:
    """Checks and reads arrays for a model's inputs."""

    def __init__(self, inputs: Sequence[Input], batch: int | None, labels: str | None) -> None:
        self.inputs, self.batch, self.labels = {each.name: each for each in inputs}, batch, labels
        self.names = [*self.inputs, *([labels] if labels else [])]
        free = tuple(each.name for each in inputs if each.has_free_rows)
        self.rows = Rows(tuple(self.inputs), 1) if batch else Rows(free, 2)

    def check(self, path: Path) -> int:
        """Return the number of batches in a file, as its headers say. Raises ModelError if they do not fit the model."""
        return self.parts(_headers(path, self.names), str(path))

    def part(self, file: File, part: int) -> Arrays:
        """Return a batch of a file. Raises ModelError."""
        arrays = _last_file(self, file) if file.parts > 1 else self.read(file.path)
        name = str(file.path)
        if self.parts(arrays, name) != file.parts:
            raise ModelError(f"{name}: it has changed since its header was read")
        return self.cut(arrays, part)

    def read(self, path: Path) -> dict[str, NDArray[Any]]:
        if path.suffix == ".npy":
            return {self.names[0]: _guarded(path, _read_npy)}
        return read_arrays(path, self.names, "input")

    def feeds(self, made: Iterable[Any], name: str) -> Iterator[Batch]:
        source = iter(made)
        for number in itertools.count():
            what = f"{name}, number {number}"
            try:
                feed = next(source)
            except StopIteration:
                return
            except Exception as error:  # a function may raise anything
                reraise_of_signal_handler(error)
                raise ModelError(f"{what}: {type(error).__name__}: {error}") from error
            arrays = self.arrays(feed, what)
            parts = self.parts(arrays, what)
            for part in range(parts):
                yield Batch(f"{what}, batch {part}" if parts > 1 else what, self.cut(arrays, part))

    def arrays(self, feed: Any, what: str) -> dict[str, NDArray[Any]]:
        if isinstance(feed, np.ndarray) and len(self.names) == 1:
            feed = {self.names[0]: feed}
        if not isinstance(feed, Mapping):
            raise ModelError(f"{what}: a {type(feed).__name__}; expected a mapping of input names to arrays")
        missing = [each for each in self.names if each not in feed]
        if missing:
            raise ModelError(f"{what}: no array for the input {missing[0]}; it has {', '.join(map(str, feed)) or 'none'}")
        return {each: np.asarray(feed[each]) for each in self.names}

    def cut(self, arrays: Arrays, part: int) -> Arrays:
        """Return batch number `part` of arrays, in this machine's byte order."""
        stacked = self.is_stack({key: array.shape for key, array in arrays.items()})
        batch = {}
        for key, array in arrays.items():
            if self.batch:
                array = array[part * self.batch : (part + 1) * self.batch]
            elif stacked:
                array = array[part]
            batch[key] = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
        return batch

    def is_stack(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether each input's array has exactly one dimension more than the model's input."""
        ranks = [(len(shapes[name]), each.shape) for name, each in self.inputs.items()]
        return not self.batch and bool(ranks) and all(wanted is not None and rank == len(wanted) + 1 for rank, wanted in ranks)

    def parts(self, headers: Mapping[str, Any], name: str) -> int:
        """Return the number of batches in arrays. Their headers are enough. Raises ModelError if they do not fit the model."""
        stacked = self.is_stack({key: header.shape for key, header in headers.items()})
        lengths = {header.shape[:1] for header in headers.values()}
        if (self.batch or stacked) and (len(lengths) > 1 or () in lengths):
            shapes = ", ".join(f"{key} {header.shape}" for key, header in headers.items())
            raise ModelError(f"{name}: {shapes}; expected arrays of the same length, to be cut into batches")
        length = next(iter(lengths))[0] if self.batch or stacked else 1
        for key, each in self.inputs.items():
            header = headers[key]
            if self.batch:
                for rows in {min(self.batch, length), length % self.batch or self.batch}:
                    fault = each.fault(Header((rows, *header.shape[1:]), header.dtype))
                    if fault:
                        raise ModelError(f"{name}: input {key}, in batches of {self.batch}, {fault}")
            fault = "" if self.batch else each.fault(header, dropped=int(stacked))
            if fault:
                raise ModelError(f"{name}: input {key} {fault}")
        if self.labels and headers[self.labels].dtype.kind not in "iu":
            raise ModelError(f"{name}: labels {self.labels} are {headers[self.labels].dtype}; expected integers")
        return -(-length // self.batch) if self.batch else length


def _headers(path: Path, names: list[str]) -> dict[str, Header]:
    """Return the headers of the named arrays in an .npz file, or of the array in an .npy file."""
    if path.suffix == ".npy":
        if len(names) != 1:
            raise ModelError(f"{path}: one array; expected an .npz file with {', '.join(names)}")
        return {names[0]: _guarded(path, _npy_header)}
    return _guarded(path, lambda file: _npz_headers(path, file, names))


def _guarded(path: str | Path, read: Callable[[Any], Any], what: str = "a file of numbers") -> Any:
    """Return the result of `read` for the open file. Raises ModelError. If it fails, the message says that the file is not
    `what`."""
    try:
        with open(path, "rb") as file:
            return read(file)
    except ModelError:
        raise
    except Exception as error:  # the file may be missing or have any content
        reraise_of_signal_handler(error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"not {what}: {error}"
        raise ModelError(f"{path}: {reason}") from None


def _npz_headers(path: Path, file: Any, names: list[str]) -> dict[str, Header]:
    if not zipfile.is_zipfile(file):
        raise ModelError(f"{path}: expected an .npz file")
    with zipfile.ZipFile(file) as archive:
        there = [name.removesuffix(".npy") for name in archive.namelist()]
        missing = [name for name in names if name not in there]
        if missing:
            raise ModelError(f"{path}: no array for the input {missing[0]}; it has {', '.join(there) or 'none'}")
        found = {}
        for name in names:
            member = f"{name}.npy"
            with archive.open(member if member in archive.namelist() else name) as content:
                found[name] = _npy_header(content)
        return found


def _npy_header(file: Any) -> Header:
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are not loaded")
    return Header(tuple(shape), dtype)


def _read_npy(file: Any) -> NDArray[Any]:
    return npy.read_array(file, allow_pickle=False)


def read_arrays(path: str | Path, names: Sequence[str], what: str) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an .npz file, in this machine's byte order. Other arrays in it are ignored. `what`, "input" or
    "output", is for messages."""

    def read(file: Any) -> dict[str, NDArray[Any]]:
        arrays = np.load(file)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ModelError(f"{path}: one array; expected an .npz file")
        missing = [name for name in names if name not in arrays]
        if missing:
            raise ModelError(f"{path}: no array for the {what} {missing[0]}; it has {', '.join(arrays) or 'none'}")
        found = {name: arrays[name] for name in names}
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in found.items()}

    return _guarded(path, read, "an .npz file of numbers")


def random_inputs(
    inputs: Sequence[Input], dimensions: Mapping[str, int], generator: np.random.Generator, *, quiet: bool = False
) -> Arrays:
    """Return random arrays of the inputs' shapes: floats from a normal distribution, integers 0 or 1.

    A free dimension is looked up in `dimensions` as "input[axis]", and then by its name. If it is not there, it is 1.
    """
    found = {}
    unused = set(dimensions)
    free, guessed = [], []
    for each in inputs:
        shape = []
        for axis, dimension in enumerate(each.shape or ()):
            if isinstance(dimension, int) and dimension > 0:
                shape.append(dimension)
                continue
            names = [f"{each.name}[{axis}]"] + ([dimension] if isinstance(dimension, str) else [])
            free.append(" or ".join(names))
            given = [name for name in names if name in dimensions]
            unused -= set(given)
            shape.append(dimensions[given[0]] if given else 1)
            if not given:
                guessed.append(names[0])
        dtype = dtype_of(each.type_name)
        if dtype is None or dtype.kind == "U":
            raise ModelError(f"input {each.name} is a {each.type_name}: there are no random values of this type")
        try:
            values = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        except (MemoryError, ValueError) as error:
            raise ModelError(f"input {each.name} of shape {shape}: {error}") from None
        found[each.name] = values.astype(dtype)
    if unused:
        raise ModelError(f"no free dimension is named {sorted(unused)[0]}; the model has: {', '.join(free) or 'none'}")
    if guessed and not quiet:
        warnings.warn(f"free dimensions are taken as 1: {', '.join(guessed)}", stacklevel=2)
    return found


def check_source(source: Any, random: int | None) -> None:
    """Raise TypeError unless exactly one is given: data, or a number of random batches."""
    if (source is None) == (random is None):
        raise TypeError("data and random: one of them is needed, and not both")


def check_positive(**numbers: int | None) -> None:
    """Raise ValueError if a number is not a positive integer. None stands for a number that was left out."""
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} is {number!r}; expected a positive integer")
