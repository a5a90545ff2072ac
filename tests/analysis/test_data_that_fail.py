"""Data that fail while they are read: the error names the batch and has the cause, and `on_error="continue"` leaves the batch
out, whatever of the caller's objects raises it."""

import sys
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx_models import model

import quark_numba
from quark_numba import Data, Execution, ModelError
from quark_numba.running.data import load_function, open_batches
from quark_numba.running.inputs import ModelInput

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore:the model has no quantization nodes")]

X = np.random.default_rng(5).uniform(-1, 1, (4, 10)).astype(np.float32)
GOOD = {"x": X}


def fail(*_, **__):
    raise OSError("chunk 7 lost")


def failing(base, name, **members):
    """Return an instance of a class whose member of this name raises an error: a method, or a property."""
    members[name] = fail if name.startswith("__") or name in ("keys", "read") else property(fail)
    return type(f"Failing_{name}", (base,), members)()


class Lazy:
    """As arrays of dask and h5py: rows are read when they are asked for, if the attribute `rows` has them all."""

    shape, dtype, ndim, rows = (4, 10), np.dtype("float32"), 2, X

    def __array__(self, dtype=None, copy=None):
        return self.rows

    def __getitem__(self, index):
        return self.rows[index]


class Feed(Mapping):
    def __getitem__(self, name):
        return GOOD[name]

    def __iter__(self):
        return iter(GOOD)

    def __len__(self):
        return len(GOOD)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(model(["y = Neg (x)"], [("x", "float32", ["n", 10])], ["y"], domains=[]), path)
    return str(path)


FEEDS = {
    "array": {"x": failing(Lazy, "__array__")},
    "array, not sliced": {"x": failing(object, "__array__", shape=(4, 10), dtype=np.dtype("float32"))},
    "shape": {"x": failing(Lazy, "shape")},
    "dtype": {"x": failing(Lazy, "dtype")},
    "getitem": failing(Feed, "__getitem__"),
    "contains": failing(Feed, "__contains__"),
    "iter, for a message": failing(Feed, "__iter__", __contains__=lambda *_: False),
}


@pytest.mark.parametrize("function", [quark_numba.evaluate, quark_numba.analyze])
@pytest.mark.parametrize("kind", [list, iter, tuple], ids=["list", "iterator", "tuple"])
@pytest.mark.parametrize("feed", FEEDS.values(), ids=FEEDS)
@pytest.mark.covering
def test_a_feed_that_fails(function, kind, feed, path):
    feeds = [GOOD, feed, GOOD]
    with pytest.raises(ModelError, match=r"^the data, number 1: .*OSError: chunk 7 lost") as error:
        function(path, kind(feeds))
    assert isinstance(error.value.__cause__, OSError)
    found = function(path, kind(feeds), execution=Execution(on_error="continue"))
    assert [*found.failed] == ["the data, number 1"]
    assert "OSError: chunk 7 lost" in found.failed["the data, number 1"]
    assert (found.samples, found.batches) == (8, 3)


class Failing:
    """An iterator, or a sequence, of which some numbers fail."""

    def __init__(self, wrong, count=5):
        self.wrong, self.count, self.next = wrong, count, 0

    def get(self, number):
        if number in self.wrong:
            raise OSError(f"chunk {number} lost")
        return GOOD

    def __next__(self):
        self.next += 1
        if self.next > self.count:
            raise StopIteration
        return self.get(self.next - 1)

    def __iter__(self):
        return self


class FailingSequence(Failing, Sequence):
    __iter__ = Sequence.__iter__
    __next__ = None

    def __getitem__(self, number):
        return self.get(number)

    def __len__(self):
        return self.count


@pytest.mark.parametrize("kind", [Failing, FailingSequence])
def test_a_source_that_goes_on_behind_what_fails(kind, path):
    found = quark_numba.evaluate(path, kind({1, 2, 4}), execution=Execution(on_error="continue"))
    assert [*found.failed] == [f"the data, number {number}" for number in (1, 2, 4)]
    assert (found.samples, found.batches) == (8, 5)
    assert found.failed["the data, number 4"] == "the data, number 4: OSError: chunk 4 lost"
    with pytest.raises(ModelError, match="number 1: OSError: chunk 1 lost"):
        quark_numba.evaluate(path, kind({1, 2}))


def test_sources_that_end_with_what_fails(path):
    """A generator says that it has ended. An iterator that always fails is abandoned."""

    def generator():
        yield GOOD
        raise OSError("chunk 1 lost")

    for source in (generator, generator()):
        found = quark_numba.evaluate(path, source, execution=Execution(on_error="continue"))
        assert [*found.failed.values()] == ["the data, number 1: OSError: chunk 1 lost; the generator has ended"]
        assert found.samples == 4
    with pytest.raises(ModelError, match=r"number 101: 101 failures in a row, the last one: .*OSError: chunk 101 lost"):
        quark_numba.evaluate(path, Failing(range(1, 10**9), 10**9), execution=Execution(on_error="continue"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (failing(Sequence, "__len__", __getitem__=fail), "the data: OSError: chunk 7 lost"),
        (failing(object, "__iter__"), "the data: OSError: chunk 7 lost"),
        (fail, "the data: OSError: chunk 7 lost"),
        (lambda: failing(object, "__iter__"), "the data: OSError: chunk 7 lost"),
    ],
)
def test_sources_that_fail(source, message, path):
    with pytest.raises(ModelError, match=message) as error:
        quark_numba.evaluate(path, source)
    assert isinstance(error.value.__cause__, OSError)


def test_a_metric_and_a_progress_that_fail(path):
    with pytest.raises(ModelError, match="the data, number 0: metric fail: OSError: chunk 7 lost") as error:
        quark_numba.evaluate(path, [X], metric=fail)
    assert isinstance(error.value.__cause__, OSError)
    for returned in (failing(Mapping, "__iter__", __getitem__=fail, __len__=fail), failing(object, "__float__"), "text"):
        with pytest.raises(ModelError, match=r"the data, number 0: metric .*Error: "):
            quark_numba.evaluate(path, [X], metric=lambda *_, returned=returned: returned)
    with pytest.raises(ModelError, match="progress: OSError: chunk 7 lost"):
        quark_numba.evaluate(path, [X], execution=Execution(on_error="continue", progress=fail))


def test_a_chunk_that_fails_is_one_batch():
    """For an object that reads rows on request, only the batch with the lost rows fails, and only the requested rows are
    read."""
    asked = []

    class Chunks(Lazy):
        shape, rows = (6, 10), np.arange(60, dtype=np.float32).reshape(6, 10)

        def __getitem__(self, rows):
            asked.append((rows.start, rows.stop))
            return fail() if rows.start == 2 else self.rows[rows]

    inputs = [ModelInput("x", "tensor(float)", ("n", 10))]
    batches = open_batches(inputs, Data({"x": Chunks()}, batch=2))
    assert (batches.count, asked) == (3, [])
    parts = [*batches.parts()]
    assert [part.name for part in parts] == [f"the data, number 0, batch {part}" for part in range(3)]
    assert [*map(bool, (part.error for part in parts))] == [False, True, False]
    assert asked == [(0, 2), (2, 4), (4, 6)]
    np.testing.assert_array_equal(parts[2].load()["x"], Chunks.rows[4:])


@pytest.mark.parametrize("rows", [X[:3], X.astype(np.float64), X[:, :9]], ids=["rows", "dtype", "columns"])
def test_an_object_that_returns_another_array_than_it_says(rows, path):
    wrong = type("Wrong", (Lazy,), {"rows": rows})()
    with pytest.raises(
        ModelError, match=r"number 1: array x is .*; expected float32 of shape \(4, 10\), as its attributes say"
    ):
        quark_numba.evaluate(path, [GOOD, {"x": wrong}])


def test_a_masked_array_is_refused(path):
    """A masked array in data is refused, as its mask would be lost."""
    masked = np.ma.array(X, mask=X > 0)
    for wrong in ({"x": masked}, masked, {"x": type("Variable", (Lazy,), {"rows": masked})()}):
        with pytest.raises(ModelError, match=r"number 1: array x is a masked array.*filled"):
            quark_numba.evaluate(path, [GOOD, wrong])


@pytest.mark.slow
def test_workers(path):
    pytest.importorskip("distributed", exc_type=ImportError)
    feeds = [GOOD, FEEDS["array"], GOOD, FEEDS["getitem"]]
    execution = Execution(workers=1, on_error="continue")
    found = quark_numba.evaluate(path, feeds, execution=execution)
    assert [*found.failed] == ["the data, number 1", "the data, number 3"]
    assert found == quark_numba.evaluate(path, feeds, execution=Execution(on_error="continue"))
    with pytest.raises(ModelError, match="the data, number 1: OSError: chunk 7 lost"):
        quark_numba.evaluate(path, feeds, execution=Execution(workers=1))
    frame = sys._getframe()
    with pytest.raises(ModelError, match="cannot be sent to workers: TypeError: cannot pickle"):
        quark_numba.evaluate(path, [X], metric=lambda *_, frame=frame: 1, execution=Execution(workers=1))


@pytest.mark.parametrize("error", ["OSError", "RuntimeError"])
def test_command(error, path, tmp_path, monkeypatch, terminal):
    """The command reports an error of the input, and not of the output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"lazy_{error}.py").write_text(
        f"""
import numpy as np
class Lazy:
    shape, dtype, ndim = (4, 10), np.dtype("float32"), 2
    def __array__(self, dtype=None, copy=None):
        raise {error}("chunk 7 lost")
def feeds():
    yield {{"x": np.zeros((4, 10), np.float32)}}
    yield {{"x": Lazy()}}
"""
    )
    text = terminal.error("evaluate", path, "--data", f"lazy_{error}:feeds")
    assert f"error: lazy_{error}:feeds, number 1: {error}: chunk 7 lost" in text


def test_an_error_that_is_not_the_output(monkeypatch, terminal):
    """An OSError without a number comes from a library, not from the system."""
    monkeypatch.setattr("quark_numba.cli.types.print_json", fail)
    assert terminal.error("types", "--json") == "error: OSError: chunk 7 lost "


def test_a_module_of_data_that_enters_another_folder(tmp_path, monkeypatch):
    """The search path is as it was, and an error in the module keeps its message."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "batches_elsewhere.py").write_text(f"import os\nos.chdir({str(inner)!r})\nraise OSError('chunk 7 lost')\n")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    with pytest.raises(ModelError, match="chunk 7 lost"):
        load_function("batches_elsewhere:batches")
    assert sys.path == before
