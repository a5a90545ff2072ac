"""Data for a model: batches of its inputs, read one at a time from files or from a function, or random; what a sample is, the
defaults of random data, and which data are refused.

The headers of all files are read first, so that wrong data are refused before the first batch runs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import check_integers, check_paths, check_positive, refuse
from ..element_types.operands import check_has_no_mask
from ..errors import ModelError, errors_named
from .files import File, check_arrays, files_of, files_of_texts, forget, read_headers, read_tokens
from .inputs import ModelInput, random_inputs
from .sessions import Arrays, dtype_of

_FUNCTION = re.compile(r"[\w.]+:\w+")

# An iterator that fails more often than this in a row may fail forever.
_MAX_FAILURES = 100


@dataclass(frozen=True)
class Data:
    """Batches from files, from memory or from a function.

    Parameters
    ----------
    source : path, "module:function", iterable of feeds, or callable that returns one
        The path of an .npz file with the names of inputs as keys, of a folder of .npz files, or of an .npy file or a folder of
        them if the model has one input. A feed is a mapping of names to arrays, or an array if the model has one input. Each
        array is a batch, or a stack of batches if all arrays have one dimension more than their inputs. Each batch is
        read just before it is needed, and no object is unpickled. An object with the shape and the dtype of an array, as in
        dask and h5py, is read one batch at a time, in this process and on the thread of the caller.
    batch : int, optional
        The number of rows of a batch: arrays are cut into batches of this size.
    limit : int, optional
        The largest number of batches.
    tokenizer : path, optional
        The file tokenizer.json of a language model (`pip install 'quark_numba[text]'`). `source` is then the path of a text in
        UTF-8, or of a folder of .txt files. The tokens of each text are a batch of one row, for the model's only input or for
        its input of tokens.
    """

    source: Any
    batch: int | None = None
    limit: int | None = None
    tokenizer: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_positive(batch=self.batch, limit=self.limit)
        check_paths(tokenizer=self.tokenizer)


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
        check_integers(1, math.inf, "a positive integer", batches=self.batches)
        check_integers(0, math.inf, "an integer of 0 or more", seed=self.seed)
        if not (isinstance(self.dimensions, Mapping) and all(isinstance(name, str) for name in self.dimensions)):
            refuse("dimensions", self.dimensions, "a mapping of names to sizes")
        sizes = {f"dimensions[{name!r}]": size for name, size in self.dimensions.items()}
        check_integers(0, math.inf, "an integer of 0 or more", **sizes)


class FailedDataError(ModelError):
    """An object that the caller passed raised an error while data were read from it."""


@dataclass(frozen=True)
class Unread:
    """An object with the shape and the dtype of an array, or some rows of it. The elements are read when they are needed."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    value: Any
    rows: slice | None = None

    @classmethod
    def inspect(cls, value: Any) -> Unread | None:
        """Return the Unread of an object, without reading the object. Return None for an array, for an object without shape or
        dtype, and for an object of one dimension, because such an object may find rows by labels (pandas.Series)."""
        if isinstance(value, np.ndarray) or not hasattr(type(value), "__getitem__"):
            return None
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if not isinstance(shape, tuple) or len(shape) < 2 or not isinstance(dtype, np.dtype):
            return None
        return cls(shape, dtype, value) if all(isinstance(length, int) for length in shape) else None

    def __getitem__(self, rows: slice) -> Unread:
        return dataclasses.replace(self, shape=(rows.stop - rows.start, *self.shape[1:]), rows=rows)

    def read(self, name: str, what: str) -> NDArray[Any]:
        """Return the array. Raise FailedDataError if the object fails, or returns an array other than its attributes say."""
        with errors_named(what, FailedDataError):
            value = self.value if self.rows is None else self.value[self.rows]
        array = _array(value, name, what)
        if array.shape != self.shape or array.dtype.newbyteorder("=") != self.dtype.newbyteorder("="):
            expected = f"{self.dtype} of shape {self.shape}, as its attributes say"
            raise FailedDataError(f"{what}: array {name} is {array.dtype} of shape {array.shape}; expected {expected}")
        return array


class BatchLayout(NamedTuple):
    """How arrays become batches: they are for these `inputs`, are cut into batches of `batch` rows, and have `labels` and
    `tokens` as further keys, with integers of any shape."""

    inputs: tuple[ModelInput, ...]
    batch: int | None
    labels: str | None
    tokens: str | None = None

    @property
    def names(self) -> list[str]:
        names = [model_input.name for model_input in self.inputs]
        return [*dict.fromkeys([*names, *(key for key in (self.tokens, self.labels) if key)])]

    def arrays(self, feed: Any, what: str) -> dict[str, NDArray[Any] | Unread]:
        """Return the arrays of a feed by name. Raise FailedDataError if objects of the caller raise an error, or if the feed is
        such an error, and ModelError if the feed is wrong."""
        if isinstance(feed, FailedDataError):
            raise feed
        if isinstance(feed, np.ndarray) and len(self.names) == 1:
            feed = {self.names[0]: feed}
        with errors_named(what, FailedDataError):
            is_mapping = isinstance(feed, Mapping)
            missing = is_mapping and not all(name in feed for name in self.names)
            there = [*feed] if missing else self.names
        if not is_mapping:
            raise ModelError(f"{what}: a {type(feed).__name__}; expected a mapping of input names to arrays")
        check_arrays(there, self.names, what)
        arrays = {}
        for name in self.names:
            with errors_named(what, FailedDataError):
                value = feed[name]
                unread = Unread.inspect(value)
            arrays[name] = _array(value, name, what) if unread is None else unread
        return arrays

    def count_batches(self, headers: Mapping[str, Any], name: str) -> int:
        """Return the number of batches in arrays. Their headers are enough. Raise ModelError if they do not fit the model."""
        stacked = self.is_stack(headers)
        lengths = {header.shape[:1] for header in headers.values()}
        if (self.batch or stacked) and (len(lengths) > 1 or () in lengths):
            shapes = ", ".join(f"{key} {header.shape}" for key, header in headers.items())
            raise ModelError(f"{name}: {shapes}; expected arrays of the same length, to be cut into batches")
        length = next(iter(lengths))[0] if self.batch or stacked else 1
        for model_input in self.inputs:
            header = headers[model_input.name]
            if self.batch:
                sizes = {min(self.batch, length) or self.batch, length % self.batch or self.batch}
                faults = [model_input.fault(header.dtype, (rows, *header.shape[1:])) for rows in sizes]
                what = f"input {model_input.name}, in batches of {self.batch},"
            else:
                faults = [model_input.fault(header.dtype, header.shape, dropped=int(stacked))]
                what = f"input {model_input.name}"
            for fault in filter(None, faults):
                raise ModelError(f"{name}: {what} {fault}")
        for what, key in (("tokens", self.tokens), ("labels", self.labels)):
            if key and headers[key].dtype.kind not in "iu":
                raise ModelError(f"{name}: {what} {key} are {headers[key].dtype}; expected integers")
        return -(-length // self.batch) if self.batch else length

    def cut(self, arrays: Mapping[str, NDArray[Any] | Unread], part: int, what: str) -> Arrays:
        """Return batch number `part` of arrays, in this machine's byte order. Raise FailedDataError if they cannot be read."""
        if self.batch or self.is_stack(arrays):
            start, stop = self.rows(arrays, part)
            arrays = {name: array[start:stop] for name, array in arrays.items()}
        read = {name: array.read(name, what) if isinstance(array, Unread) else array for name, array in arrays.items()}
        return self.of_rows(
            {name: np.ascontiguousarray(x, x.dtype.newbyteorder("=")).reshape(x.shape) for name, x in read.items()}
        )

    def rows(self, headers: Mapping[str, Any], part: int) -> tuple[int, int]:
        """Return the first row of batch number `part`, and the one after its last row."""
        length, step = next(iter(headers.values())).shape[0], self.batch or 1
        return part * step, min((part + 1) * step, length)

    def of_rows(self, arrays: Arrays) -> Arrays:
        """Return the batch that rows of arrays are. The batch of a stack is one row, without its first dimension."""
        return {name: array[0] for name, array in arrays.items()} if self.is_stack(arrays) else arrays

    def is_stack(self, headers: Mapping[str, Any]) -> bool:
        """Return whether each input's array has exactly one dimension more than the model's input."""
        ranks = [(len(headers[model_input.name].shape), model_input.shape) for model_input in self.inputs]
        return not self.batch and bool(ranks) and all(shape is not None and rank == len(shape) + 1 for rank, shape in ranks)

    def samples(self, batch: Arrays) -> int:
        """Return the number of samples in a batch: its rows, or 1 if rows are not samples."""
        least_rank = 1 if self.batch else 2
        arrays = (batch[model_input.name] for model_input in self.inputs if self.batch or model_input.has_free_rows)
        return next((len(array) for array in arrays if array.ndim >= least_rank), 1)


@dataclass(frozen=True)
class Batch:
    """A batch of the data.

    Parameters
    ----------
    name, number : its name in messages, and its place in the data
    feed : its arrays, if they are in memory
    file, part : a file, and the number of the batch in it; it is read by `load`, on the thread or the worker that calls it
    error : the error that came in place of the batch
    taken : the arrays of a file that were read in the order of the data, until `load` returns them
    is_checked : whether the checksums of the file are known to be right
    """

    name: str
    number: int
    layout: BatchLayout
    feed: Arrays | None = None
    file: File | None = None
    part: int = 0
    error: ModelError | None = None
    taken: list[Arrays] = field(default_factory=list)
    is_checked: bool = False

    def load(self) -> Arrays:
        """Return the arrays by their names. Raise ModelError if they cannot be read, or the file has changed."""
        if self.error is not None:
            raise self.error
        if self.feed is not None:
            return self.feed
        return self.taken.pop() if self.taken else self._read()

    def _read(self) -> Arrays:
        assert self.file
        if self.file.batch_count == 1:
            return self.layout.cut(self.file.arrays(), self.part, self.name)
        if self.file.is_read_whole:
            batch = self.layout.cut(self.file.arrays_again(), self.part, self.name)
            return {name: array.copy() for name, array in batch.items()}  # a view would keep the whole file in memory
        if not self.is_checked:
            self.file.check()
        return self.layout.of_rows(self.file.rows(*self.layout.rows(self.file.members, self.part)))

    def in_turn(self) -> Batch:
        """Return the batch to load on any thread. If its file has several batches, read now, in their order, what would
        otherwise be read once for each thread."""
        if self.file is None or self.file.batch_count == 1:
            return self
        try:
            if self.file.is_read_whole:
                return dataclasses.replace(self, taken=[self._read()])
            self.file.check()
        except ModelError as error:
            return dataclasses.replace(self, error=error)
        return dataclasses.replace(self, is_checked=True)

    @property
    def is_here(self) -> bool:
        """Return whether this machine has the batch. If it is in a file, it has to be the very same file."""
        return self.file is None or self.file.is_here


# A file, a feed, or the error with which an object that the caller passed failed.
Content = Any


@dataclass(frozen=True)
class Batches:
    """An iterable over batches of a model's inputs.

    Parameters
    ----------
    items : returns what batches are cut from, with names
    count : the number of batches, None if only the source knows it
    source : distinguishes these data from others of the same layout and limit
    is_reiterable : whether `items` can be called more than once; False if the data come from an iterator
    """

    items: Callable[[], Iterable[tuple[str, Content]]]
    layout: BatchLayout
    limit: int | None
    count: int | None
    source: str
    is_reiterable: bool = True

    def parts(self) -> Iterator[Batch]:
        """Yield the batches. Those in files are not read yet. A batch that cannot be read has the error."""
        numbers = itertools.count()
        try:
            yield from itertools.islice(self._cut(numbers), self.limit)
        finally:
            forget()
        if not next(numbers):
            raise ModelError("there are no data: the source has no batch")

    def _cut(self, numbers: Iterator[int]) -> Iterator[Batch]:
        for name, content in self.items():
            if isinstance(content, File):
                for part, what in _names(name, content.batch_count):
                    yield Batch(what, next(numbers), self.layout, file=content, part=part)
            else:
                try:
                    arrays = self.layout.arrays(content, name)
                    parts = self.layout.count_batches(arrays, name)
                except ModelError as error:
                    yield Batch(name, next(numbers), self.layout, error=error)
                    continue
                for part, what in _names(name, parts):  # no variable keeps a batch while the next one is read
                    yield self._of_feed(arrays, part, what, next(numbers))

    def _of_feed(self, arrays: Mapping[str, NDArray[Any] | Unread], part: int, what: str, number: int) -> Batch:
        try:
            return Batch(what, number, self.layout, feed=self.layout.cut(arrays, part, what))
        except ModelError as error:
            return Batch(what, number, self.layout, error=error)

    def __iter__(self) -> Iterator[Arrays]:
        return (batch.load() for batch in self.parts())


def _names(name: str, parts: int) -> Iterator[tuple[int, str]]:
    """Yield the numbers of the parts that are batches, with the batches' names."""
    return ((part, f"{name}, batch {part}" if parts > 1 else name) for part in range(parts))


def open_batches(inputs: Sequence[ModelInput], data: Any, *, labels: str | None = None, tokens: str | None = None) -> Batches:
    """Return the batches of the data for a model with these inputs: of Data, of RandomData, or of the source of Data. Each also
    has arrays of integers under the keys `labels` and `tokens`. Raise ModelError, with the name of the file, if data are
    missing, wrong or cannot be read."""
    if isinstance(data, RandomData):
        if tokens:
            raise ModelError(f"random data have no tokens {tokens!r}; expected texts to decode")
        return _random_batches(inputs, data, labels)
    if not isinstance(data, Data):
        data = Data(data)
    layout = BatchLayout(tuple(inputs), data.batch, labels, tokens)
    source, name = data.source, "the data"
    if data.tokenizer is not None:
        return _batches_of_texts(layout, data)
    if isinstance(source, (str, os.PathLike)):
        if os.path.exists(source) or not _FUNCTION.fullmatch(os.fspath(source)):
            return _batches_of_files(layout, Path(source), data.limit)
        name = os.fspath(source)
        source = load_function(name)
    if callable(source):
        first = [_feeds(source, name)]
        return Batches(
            lambda: _named_feeds(first.pop() if first else _feeds(source, name), name), layout, data.limit, None, name
        )
    feeds = _feeds(lambda: source, name)
    count = None
    if isinstance(feeds, Sequence):
        count = sum(_number_of_batches(layout, feed, what) for what, feed in _named_feeds(feeds, name))
        count = min(count, data.limit or count)
    with errors_named(name):
        is_iterator = iter(feeds) is feeds
    return Batches(lambda: _named_feeds(feeds, name), layout, data.limit, count, "", is_reiterable=not is_iterator)


def _number_of_batches(layout: BatchLayout, feed: Any, what: str) -> int:
    """Return the number of batches in a feed: 1 for the error of one that cannot be read. Raise ModelError if it is wrong."""
    try:
        return layout.count_batches(layout.arrays(feed, what), what)
    except FailedDataError:
        return 1


def _random_batches(inputs: Sequence[ModelInput], data: RandomData, labels: str | None) -> Batches:
    if labels:
        raise ModelError(f"random data have no labels {labels!r}")
    random_inputs(inputs, data.dimensions, np.random.default_rng(data.seed))  # raises ModelError

    def items() -> Iterator[tuple[str, Content]]:
        generator = np.random.default_rng(data.seed)
        for number in range(data.batches):
            yield f"random batch {number}", random_inputs(inputs, data.dimensions, generator, quiet=True)

    source = f"random {data.seed} {sorted(data.dimensions.items())}"
    return Batches(items, BatchLayout(tuple(inputs), None, None), None, data.batches, source)


def _batches_of_texts(layout: BatchLayout, data: Data) -> Batches:
    if len(layout.names) != 1:
        raise ModelError(
            f"tokenizer: the tokens of a text are one array; expected {', '.join(layout.names)} without a tokenizer"
        )
    assert data.tokenizer is not None
    tokenizer, files, (key,) = data.tokenizer, files_of_texts(data.source), layout.names
    dtype = dtype_of(layout.inputs[0].type_name) if layout.inputs else None

    def items() -> Iterator[tuple[str, Content]]:
        for name, tokens in read_tokens(files, tokenizer):
            yield name, {key: tokens if dtype is None else tokens.astype(dtype)}

    count = min(len(files), data.limit or len(files))
    status = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in (*files, Path(tokenizer))]
    return Batches(items, layout, data.limit, count, repr(status))


def _batches_of_files(layout: BatchLayout, path: Path, limit: int | None) -> Batches:
    files: list[File] = []
    count = 0
    for file_path in files_of(path) if os.path.isdir(path) else [path]:
        members = read_headers(file_path, layout.names)
        batch_count = layout.count_batches(members, str(file_path))
        status = file_path.stat()
        files.append(File(file_path, status.st_size, status.st_mtime_ns, batch_count, members))
        count += batch_count
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


def _named_feeds(feeds: Iterable[Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield each feed. If the object of the caller fails to return one, yield the error instead, and continue with the next
    one. Raise ModelError if the object returns nothing but errors any more."""
    end = object()
    with errors_named(name):
        calls: Iterable[Callable[[], Any]]
        if isinstance(feeds, Sequence):  # unlike its iterator, indices go on after an error
            calls = (functools.partial(feeds.__getitem__, number) for number in range(len(feeds)))
        else:
            calls = itertools.repeat(functools.partial(next, iter(feeds), end))
    failures = 0
    for number, call in enumerate(calls):
        what = f"{name}, number {number}"
        try:
            with errors_named(what, FailedDataError):
                feed = call()
            failures = 0
        except FailedDataError as error:
            feed, failures = error, failures + 1
            if isinstance(feeds, Generator):
                error.args = (f"{error}; the generator has ended",)
        if feed is end:
            return
        if failures > _MAX_FAILURES and not isinstance(feeds, Sequence):
            raise ModelError(f"{what}: {failures} failures in a row, the last one: {feed}")
        yield what, feed


def _array(value: Any, name: str, what: str) -> NDArray[Any]:
    with errors_named(what, FailedDataError):
        array = np.asanyarray(value)
    with errors_named(what, with_type=False):
        check_has_no_mask(array, f"array {name}")
    return np.asarray(array)


def load_function(name: str) -> Callable[..., Any]:
    """Return the function that "module:function" names. Modules are searched for in the current folder first, as by
    ``python -m``."""
    if not _FUNCTION.fullmatch(name):
        raise ModelError(f"{name!r} is neither a file, nor a folder, nor module:function")
    folder = os.getcwd()  # the module may enter another one
    sys.path.insert(0, folder)
    try:
        with errors_named(name):
            function = pkgutil.resolve_name(name)
    finally:
        sys.path.remove(folder)
    if not callable(function):
        raise ModelError(f"{name}: is a {type(function).__name__}; expected a function")
    return function
