"""A file that is missing is a FileNotFoundError wherever it is named, and a ModelError, too."""

import errno
import os
import pickle

import numpy as np
import onnx
import pytest
from onnx_models import model
from rewritten_models import constant, floats, pair

import quark_numba
from quark_numba import Execution, MissingFileError, ModelError, RandomData, WriteError

RANDOM = RandomData(1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with a model, and with one whose weight is in a file that is missing."""
    monkeypatch.chdir(tmp_path)
    nodes = [*pair("x", "q", "y", ["s", "z"]), "sum = Add (y, w)"]
    weight = np.ones(8, np.float32)
    made = model(nodes, [("x", "float32", [8])], ["sum"], initializers=[*floats(s=0.5, w=weight), constant("z", 0, np.int8)])
    onnx.save(made, "m.onnx")
    (stored,) = (tensor for tensor in made.graph.initializer if tensor.name == "w")
    stored.ClearField("raw_data")
    stored.ClearField("float_data")
    stored.data_location = onnx.TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="weights.bin")
    onnx.save(made, "external.onnx")
    return tmp_path


READ = {
    "InferenceSession": lambda path: quark_numba.InferenceSession(path),
    "InferenceSession, kept": lambda path: quark_numba.InferenceSession(path, cache="kept"),
    "optimize": lambda path: quark_numba.optimize(path),
    "optimize to a file": lambda path: quark_numba.optimize(path, "out.onnx"),
    "evaluate": lambda path: quark_numba.evaluate(path, RANDOM),
    "evaluate, reference": lambda path: quark_numba.evaluate("m.onnx", RANDOM, path),
    "analyze": lambda path: quark_numba.analyze(path, RANDOM),
    "analyze, reference": lambda path: quark_numba.analyze("m.onnx", RANDOM, path),
    "build_library": lambda path: quark_numba.build_library([path], "library"),
}


@pytest.mark.compiled
@pytest.mark.parametrize("call", READ.values(), ids=READ)
@pytest.mark.parametrize(("path", "missing"), [("none.onnx", "none.onnx"), ("external.onnx", "weights.bin")])
def test_models(call, path, missing, folder):
    before = sorted(os.listdir(folder))
    with pytest.raises(FileNotFoundError, match=f"{missing}: No such file or directory") as raised:
        call(path)
    assert isinstance(raised.value, MissingFileError)
    assert isinstance(raised.value, ModelError)
    assert raised.value.errno == errno.ENOENT
    assert sorted({*os.listdir(folder)} - {"kept"}) == before


@pytest.mark.compiled
@pytest.mark.parametrize("path", ["none.npz", "none.npy", os.path.join("none", "")])
@pytest.mark.parametrize("function", [quark_numba.evaluate, quark_numba.analyze])
def test_data(function, path, folder):
    with pytest.raises(FileNotFoundError, match=r"none[.npyz]*: No such file or directory"):
        function("m.onnx", path)


@pytest.mark.compiled
def test_a_missing_folder_to_write_to(folder):
    out = os.path.join("none", "out.onnx")
    calls = [lambda: quark_numba.optimize("m.onnx", out)]
    calls.append(lambda: quark_numba.evaluate("m.onnx", RANDOM, execution=Execution(resume=out)))
    for call in calls:
        with pytest.raises(FileNotFoundError, match=r"out\.onnx: No such file or directory") as raised:
            call()
        assert isinstance(raised.value, WriteError)


def test_exceptions_travel():
    """Exceptions can be pickled, as they are between processes."""
    error = pickle.loads(pickle.dumps(MissingFileError("m.onnx: No such file or directory")))
    assert (type(error), str(error)) == (MissingFileError, "m.onnx: No such file or directory")
    assert error.errno == errno.ENOENT
