"""Data in files: batches are those of numpy, whatever the file's form, and no more of a file is in memory than is needed. What
is not a regular file, is damaged or has changed is refused by name."""

import itertools
import os
import pickle
import socket
import tracemalloc
import zipfile

import numpy as np
import onnx
import pytest
from onnx_models import model

import quark_numba
from quark_numba import Data, Execution, ModelError
from quark_numba.running import files, runs
from quark_numba.running.data import open_batches
from quark_numba.running.inputs import ModelInput

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore:the model has no quantization nodes")]

X = np.random.default_rng(6).normal(size=(11, 3, 2)).astype(np.float32)
LABELS = np.arange(11)
INPUTS = [ModelInput("x", "tensor(float)", ("n", 3, 2))]


class NoSums:
    def add(self, other): ...


def parts(data, inputs=INPUTS, **named):
    """Return the batches of data: as one process reads them, and as another one does that is sent them in another order."""
    opened = open_batches(inputs, data, **named)
    here = [part.in_turn().load() for part in opened.parts()]
    sent = pickle.loads(pickle.dumps([*opened.parts()]))
    there = [part.load() for part in sent[::-1]][::-1]
    assert len(here) == len(there) == opened.count
    for one, two in zip(here, there, strict=True):
        assert one.keys() == two.keys()
        assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    return here


def write(path, order="C", dtype="<f4", compressed=(), x=X, **others):
    """Write x and other arrays to an .npz file. Those named in `compressed` are compressed."""
    arrays = {"x": np.array(x, dtype, order=order), **others}
    if path.suffix == ".npy":
        np.save(path, arrays["x"])
        return path
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            kind = zipfile.ZIP_DEFLATED if name in compressed else zipfile.ZIP_STORED
            with file.open(zipfile.ZipInfo(f"{name}.npy") if kind == zipfile.ZIP_STORED else deflated(name), "w") as member:
                np.save(member, array)
    return path


def deflated(name):
    info = zipfile.ZipInfo(f"{name}.npy")
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
@pytest.mark.parametrize("compressed", [(), ("x",), ("l",), ("x", "l")], ids=["stored", "x", "labels", "both"])
@pytest.mark.covering
@pytest.mark.parametrize("batch", [None, 1, 4, 11, 20])
def test_batches_are_those_of_numpy(suffix, order, dtype, compressed, batch, tmp_path):
    has_labels = suffix == ".npz"
    path = write(tmp_path / f"x{suffix}", order, dtype, compressed, l=LABELS, unused=np.zeros(5))
    found = parts(Data(path, batch=batch), labels="l" if has_labels else None)
    starts = range(0, 11, batch or 11)
    assert len(found) == len(starts)
    for start, batch_ in zip(starts, found, strict=True):
        rows = slice(start, start + (batch or 11))
        assert batch_["x"].dtype == np.float32
        assert batch_["x"].dtype.isnative
        assert batch_["x"].flags.c_contiguous
        np.testing.assert_array_equal(batch_["x"], X[rows])
        if has_labels:
            np.testing.assert_array_equal(batch_["l"], LABELS[rows])


@pytest.mark.parametrize("compressed", [(), ("x",)], ids=["stored", "compressed"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_stacks(order, compressed, tmp_path):
    path = write(tmp_path / "x.npz", order, compressed=compressed, x=X[None].repeat(3, 0), l=np.arange(33).reshape(3, 11))
    found = parts(path, labels="l")
    assert [each["l"][0] for each in found] == [0, 11, 22]
    assert all(np.array_equal(each["x"], X) for each in found)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressed", [(), ("x",)], ids=["stored", "compressed"])
def test_other_shapes_and_types(order, compressed, tmp_path):
    for x, type_name in (
        (np.arange(11), "tensor(int64)"),
        (np.array([["ab", "é模"]] * 11), "tensor(string)"),
        (np.array([["ab", "é模"]] * 11, ">U5"), "tensor(string)"),
        (np.zeros((11, 0, 4), np.float32), "tensor(float)"),
        (np.arange(264).reshape(11, 2, 3, 4).astype(np.int8), "tensor(int8)"),
        (np.arange(22).reshape(11, 2) % 3 == 0, "tensor(bool)"),
    ):
        path = write(tmp_path / "x.npz", order, x.dtype, compressed, x)
        for start, found in enumerate(parts(Data(path, batch=4), [ModelInput("x", type_name, ("n", *x.shape[1:]))])):
            np.testing.assert_array_equal(found["x"], x[4 * start : 4 * start + 4])


@pytest.mark.parametrize("form", ["npy", "stored", "compressed"])
@pytest.mark.parametrize("threads", [1, 3])
def test_memory(form, threads, tmp_path):
    """At most two more batches than threads are in memory, and one compressed file at a time."""
    x = np.zeros((24 * 8, 1 << 13), np.float32)
    for name in "ab":
        path = tmp_path / f"{name}.{'npy' if form == 'npy' else 'npz'}"
        write(path, compressed=("x",) if form == "compressed" else (), x=x)
    batch = 8 * x[0].nbytes
    opened = open_batches([ModelInput("x", "tensor(float)", ("n", x.shape[1]))], Data(tmp_path, batch=8))
    reads = []
    whole = x.nbytes if form == "compressed" else 0
    del x

    def work():
        def run(part):
            feed = part.load()
            reads.append(feed["x"].sum())
            return NoSums()

        return run

    runner = runs.Runner(Execution(), opened, {}, [])
    tracemalloc.start()
    try:
        runner.total(NoSums, work, threads=threads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(reads) == 48
    assert peak < (threads + 2) * batch + whole + (1 << 20)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_compressed_file_is_read_once(threads, tmp_path, monkeypatch):
    onnx.save(model(["y = Neg (x)"], [("x", "float32", ["n", 3, 2])], ["y"], domains=[]), tmp_path / "m.onnx")
    for name in "ab":
        write(tmp_path / f"{name}.npz", compressed=("x",))
    read, seen = files.read_arrays, []
    monkeypatch.setattr(files, "read_arrays", lambda path, names: seen.append(path.name) or read(path, names))
    found = quark_numba.analyze(tmp_path / "m.onnx", Data(tmp_path, batch=1), execution=Execution(threads=threads))
    assert (found.batches, seen) == (22, ["a.npz", "b.npz"])


def damaged(path, name):
    """Change a byte of an element of an array in a file."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        info = file.getinfo(f"{name}.npy")
    place = info.header_offset + info.compress_size - 1000
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["x", "l"])
@pytest.mark.parametrize("compressed", [(), ("x", "l")], ids=["stored", "compressed"])
def test_damage_is_found_before_the_first_batch(name, compressed, tmp_path):
    """Checksums of files are verified although files are read in parts."""
    rows = np.random.default_rng(1).normal(size=(40_000, 3, 2))
    path = write(tmp_path / "x.npz", compressed=compressed, x=rows, l=rows[:, 0, 0].view(np.int64))
    damaged(path, name)
    opened = open_batches(INPUTS, Data(path, batch=2, limit=1), labels="l")
    for load in (lambda part: part.in_turn().load(), lambda part: part.load()):
        with pytest.raises(ModelError, match=r"x\.npz: not a file of numbers: "):
            list(map(load, opened.parts()))


def test_files_that_end_early_are_refused_at_once(tmp_path):
    path = write(tmp_path / "x.npy")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"x\.npy: not a file of numbers: it ends before the last element"):
        open_batches(INPUTS, path)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_file_that_changes(suffix, batch, tmp_path):
    """A file that was rewritten with other arrays is refused. A file that was only touched is not."""
    path = write(tmp_path / f"x{suffix}")
    opened = open_batches(INPUTS, Data(path, batch=batch))
    batches = opened.parts()
    first = next(batches).load()["x"]
    np.testing.assert_array_equal(first, X[:batch])
    os.utime(path, (1, 1))
    rest = [part.load()["x"] for part in opened.parts()]
    np.testing.assert_array_equal(np.concatenate(rest), X)
    write(path, x=X[:, :, :1].repeat(2, 2)[:, :2])
    with pytest.raises(ModelError, match="has changed since its header was read"):
        list(opened)
    path.unlink()
    with pytest.raises(ModelError, match="No such file"):
        list(opened)


def special(path, what):
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.symlink_to(what)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no special files in folders")
@pytest.mark.parametrize("what", ["pipe", "socket", "/dev/zero", "/dev/null"])
def test_what_is_not_a_regular_file(what, tmp_path, terminal, monkeypatch):
    """It is refused by its name before anything runs: in a folder of data, as data, as inputs, as expected outputs, and as the
    file that keeps a run."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data" / "a.npz")
    onnx.save(model(["y = Neg (x)"], [("x", "float32", ["n", 3, 2])], ["y"], domains=[]), "m.onnx")
    for name in ("data/b.npz", "b.npz", "b.npy", "b.onnx", "b.ort"):
        special(tmp_path / name, what)
    ran = []
    monkeypatch.setattr("quark_numba.running.sessions.run", lambda *_: ran.append(1) or {})
    message = "b.npz: not a regular file; expected one"
    for command in ("evaluate", "analyze"):
        for place in ("data", "b.npz"):
            assert message in terminal.error(command, "m.onnx", "--data", place)
    assert message.replace("npz", "npy") in terminal.error("evaluate", "m.onnx", "--data", "b.npy")
    assert message in terminal.error("evaluate", "m.onnx", "--data", "data/a.npz", "--resume", "b.npz")
    assert message in terminal.error("run", "m.onnx", "--data", "b.npz")
    for path, create in itertools.product(("b.onnx", "b.ort"), (quark_numba.optimize, quark_numba.InferenceSession)):
        with pytest.raises(ModelError, match=f"{path}: not a regular file; expected one"):
            create(path)
    assert not ran
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    words = ["run", "m.onnx", "--data", "data/a.npz", "--runs", "1", "--expected", "b.npz"]
    assert message in terminal.error(*words)
