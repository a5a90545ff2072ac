"""Data for a model: batches of its inputs, read one at a time from files or from a function, or random.

The headers of all files are read first, so that wrong data are refused before anything runs."""

from __future__ import annotations

import functools
import itertools
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, errors_named
from .files import File, check_names, files_of, read_arrays, read_headers
from .inputs import Header, Input, random_inputs
from .sessions import Arrays

_FUNCTION = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
class Data:
    """Batches from files, from memory or from a function.

    Parameters
    ----------
    source : path, "module:function", iterable of feeds, or callable that returns one
        The path of an .npz file with the names of inputs as keys, of a folder of .npz files, or of an .npy file or a folder of
        them if the model has one input. A feed is a mapping of names to arrays, or an array if the model has one input. Each
        array is a batch, or a stack of batches if all arrays have one dimension more than their inputs. Batches are read when
        their turn comes, and nothing is unpickled.
    batch : int, optional
        The number of rows of a batch: arrays are cut into batches of this size.
    limit : int, optional
        The largest number of batches.
    """

    source: Any
    batch: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_positive(batch=self.batch, limit=self.limit)


@dataclass(frozen=True)
class RandomData:
    """Random batches in the shapes of the model's inputs: floats from a normal distribution, integers 0 or 1.

    Parameters
    ----------
    batches : int
        The number of batches.
    seed : int
        The seed of the random numbers.
    dimensions : mapping of str to int
        The sizes of free dimensions, by name or as "input[axis]". Default: 1.
    """

    batches: int = 1
    seed: int = 0
    dimensions: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(batches=self.batches)


def check_positive(**numbers: int | None) -> None:
    """Raise ValueError if a number is not a positive integer. None stands for a number that was left out."""
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} is {number!r}; expected a positive integer")


@dataclass(frozen=True)
class Layout:
    """How arrays become batches: they are for these `inputs`, are cut into batches of `batch` rows, and have `labels` as a
    further key."""

    inputs: tuple[Input, ...]
    batch: int | None
    labels: str | None

    @property
    def names(self) -> list[str]:
        return [*(model_input.name for model_input in self.inputs), *([self.labels] if self.labels else [])]

    def arrays(self, feed: Any, what: str) -> Arrays:
        """Return the arrays of a feed by name. Raises ModelError."""
        if isinstance(feed, np.ndarray) and len(self.names) == 1:
            feed = {self.names[0]: feed}
        if not isinstance(feed, Mapping):
            raise ModelError(f"{what}: a {type(feed).__name__}; expected a mapping of input names to arrays")
        check_names(feed, self.names, what)
        return {name: np.asarray(feed[name]) for name in self.names}

    def batches(self, headers: Mapping[str, Header | NDArray[Any]], name: str) -> int:
        """Return the number of batches in arrays. Their headers are enough. Raises ModelError if they do not fit the model."""
        stacked = self._is_stack(headers)
        lengths = {header.shape[:1] for header in headers.values()}
        if (self.batch or stacked) and (len(lengths) > 1 or () in lengths):
            shapes = ", ".join(f"{key} {header.shape}" for key, header in headers.items())
            raise ModelError(f"{name}: {shapes}; expected arrays of the same length, to be cut into batches")
        length = next(iter(lengths))[0] if self.batch or stacked else 1
        for model_input in self.inputs:
            header = headers[model_input.name]
            if self.batch:
                sizes = {min(self.batch, length), length % self.batch or self.batch}
                faults = [model_input.fault(Header((rows, *header.shape[1:]), header.dtype)) for rows in sizes]
                what = f"input {model_input.name}, in batches of {self.batch},"
            else:
                faults, what = [model_input.fault(header, dropped=int(stacked))], f"input {model_input.name}"
            for fault in filter(None, faults):
                raise ModelError(f"{name}: {what} {fault}")
        if self.labels and headers[self.labels].dtype.kind not in "iu":
            raise ModelError(f"{name}: labels {self.labels} are {headers[self.labels].dtype}; expected integers")
        return -(-length // self.batch) if self.batch else length

    def cut(self, arrays: Arrays, part: int) -> Arrays:
        """Return batch number `part` of arrays, in this machine's byte order."""
        stacked = self._is_stack(arrays)
        batch = {}
        for name, array in arrays.items():
            if self.batch:
                array = array[part * self.batch : (part + 1) * self.batch]
            elif stacked:
                array = array[part]
            batch[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
        return batch

    def _is_stack(self, headers: Mapping[str, Header | NDArray[Any]]) -> bool:
        """Whether each input's array has exactly one dimension more than the model's input."""
        ranks = [(len(headers[model_input.name].shape), model_input.shape) for model_input in self.inputs]
        return not self.batch and bool(ranks) and all(shape is not None and rank == len(shape) + 1 for rank, shape in ranks)

    def samples(self, batch: Arrays) -> int:
        """Return the number of samples in a batch: its rows, or 1 if rows are not samples."""
        least_rank = 1 if self.batch else 2
        arrays = (batch[model_input.name] for model_input in self.inputs if self.batch or model_input.has_free_rows)
        return next((len(array) for array in arrays if array.ndim >= least_rank), 1)


@dataclass(frozen=True)
class Batch:
    """Batch `number` of the data: a feed in memory, or part number `part` of a file, which is read only by a call of `load`, on
    its thread or worker."""

    name: str
    number: int
    layout: Layout
    feed: Arrays | None = None
    file: File | None = None
    part: int = 0

    def load(self) -> Arrays:
        """Return the arrays by their names. Raises ModelError if the file cannot be read or has changed."""
        if self.feed is not None:
            return self.feed
        assert self.file
        names = self.layout.names
        arrays = _last_file(self.file, *names) if self.file.batches > 1 else read_arrays(self.file.path, names)
        if self.layout.batches(arrays, str(self.file.path)) != self.file.batches:
            raise ModelError(f"{self.file.path}: it has changed since its header was read")
        return self.layout.cut(arrays, self.part)

    @property
    def is_here(self) -> bool:
        """Whether this machine has the batch. If it is in a file, it has to be the very same file."""
        return self.file is None or self.file.is_here


@functools.lru_cache(1)  # the last file is kept, because it may have several batches in a row
def _last_file(file: File, *names: str) -> Arrays:
    return read_arrays(file.path, names)


@dataclass(frozen=True)
class Batches:
    """An iterable over batches of a model's inputs. `items` returns what batches are cut from: names with files or with arrays.
    `again` is whether it can be called more than once: False if the data come from an iterator. `count` is the number of
    batches, None if only the source knows it. `source` distinguishes these data from others of the same layout and limit."""

    items: Callable[[], Iterable[tuple[str, File | Arrays]]]
    layout: Layout
    limit: int | None
    count: int | None
    source: str
    again: bool = True

    def parts(self) -> Iterator[Batch]:
        """Yield the batches. Those in files are not read yet."""
        number = 0
        try:
            for name, content in self.items():
                parts = content.batches if isinstance(content, File) else self.layout.batches(content, name)
                for part in range(parts):
                    what = f"{name}, batch {part}" if parts > 1 else name
                    if isinstance(content, File):
                        yield Batch(what, number, self.layout, file=content, part=part)
                    else:
                        yield Batch(what, number, self.layout, feed=self.layout.cut(content, part))
                    number += 1
                    if number == self.limit:
                        return
        finally:
            _last_file.cache_clear()
        if not number:
            raise ModelError("there are no data: the source has no batch")

    def __iter__(self) -> Iterator[Arrays]:
        return (batch.load() for batch in self.parts())


def open_batches(inputs: Sequence[Input], data: Any, *, labels: str | None = None) -> Batches:
    """Return the batches of the data for a model with these inputs: of Data, of RandomData, or of the source of Data. Each has
    an array of integers under the key `labels`, too. Raise ModelError, with the name of the file, if data are missing, wrong or
    cannot be read."""
    if isinstance(data, RandomData):
        return _random_batches(inputs, data, labels)
    if not isinstance(data, Data):
        data = Data(data)
    layout = Layout(tuple(inputs), data.batch, labels)
    source, name = data.source, "the data"
    if isinstance(source, (str, os.PathLike)):
        if os.path.exists(source) or not _FUNCTION.fullmatch(os.fspath(source)):
            return _batches_of_files(layout, Path(source), data.limit)
        name = os.fspath(source)
        source = load_function(name)
    if callable(source):
        first = [_feeds(source, name)]
        return Batches(
            lambda: _named_arrays(layout, first.pop() if first else _feeds(source, name), name), layout, data.limit, None, name
        )
    feeds = _feeds(lambda: source, name)
    count = None
    if isinstance(feeds, Sequence):
        count = sum(layout.batches(arrays, what) for what, arrays in _named_arrays(layout, feeds, name))
        count = min(count, data.limit or count)
    is_iterator = iter(feeds) is feeds
    return Batches(lambda: _named_arrays(layout, feeds, name), layout, data.limit, count, "", again=not is_iterator)


def _random_batches(inputs: Sequence[Input], data: RandomData, labels: str | None) -> Batches:
    if labels:
        raise ModelError(f"random data have no labels {labels!r}")
    random_inputs(inputs, data.dimensions, np.random.default_rng(data.seed))  # raises ModelError

    def items() -> Iterator[tuple[str, Arrays]]:
        generator = np.random.default_rng(data.seed)
        for number in range(data.batches):
            yield f"random batch {number}", random_inputs(inputs, data.dimensions, generator, quiet=True)

    source = f"random {data.seed} {sorted(data.dimensions.items())}"
    return Batches(items, Layout(tuple(inputs), None, None), None, data.batches, source)


def _batches_of_files(layout: Layout, path: Path, limit: int | None) -> Batches:
    files: list[File] = []
    count = 0
    for file_path in files_of(path) if os.path.isdir(path) else [path]:
        batches = layout.batches(read_headers(file_path, layout.names), str(file_path))
        status = file_path.stat()
        files.append(File(file_path, status.st_size, status.st_mtime_ns, batches))
        count += batches
        if limit is not None and count >= limit:
            count = limit
            break
    source = repr([(str(file.path), file.size, file.time) for file in files])
    return Batches(lambda: [(str(file.path), file) for file in files], layout, limit, count, source)


def _feeds(function: Callable[[], Any], name: str) -> Iterable[Any]:
    with errors_named(name):
        feeds = function()
    if isinstance(feeds, (Mapping, np.ndarray)):
        return [feeds]
    if not isinstance(feeds, Iterable):
        raise ModelError(f"{name}: a {type(feeds).__name__}; expected an iterable of feeds")
    return feeds


def _named_arrays(layout: Layout, feeds: Iterable[Any], name: str) -> Iterator[tuple[str, Arrays]]:
    iterator, end = iter(feeds), object()
    for number in itertools.count():
        what = f"{name}, number {number}"
        with errors_named(what):
            feed = next(iterator, end)
        if feed is end:
            return
        yield what, layout.arrays(feed, what)


def load_function(name: str) -> Callable[..., Any]:
    """Return the function that "module:function" names. Modules are searched for in the current folder first, as by
    ``python -m``."""
    if not _FUNCTION.fullmatch(name):
        raise ModelError(f"{name!r} is neither a file, nor a folder, nor module:function")
    sys.path.insert(0, os.getcwd())
    try:
        with errors_named(name):
            function = pkgutil.resolve_name(name)
    finally:
        sys.path.remove(os.getcwd())
    if not callable(function):
        raise ModelError(f"{name}: is a {type(function).__name__}; expected a function")
    return function
