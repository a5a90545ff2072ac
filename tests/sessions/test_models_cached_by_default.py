"""Small models that InferenceSession keeps without being asked (`cache` left out)."""

import logging
import os
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from cached_models import EXPECTED, entry_of, result, write
from onnx_models import model
from text_graphs import text_model

import quark_numba
from quark_numba.compiling import cache as kernels
from quark_numba.errors import EnvironmentVariableError
from quark_numba.session import build, model_cache
from quark_numba.session.model_cache import ModelCache

pytestmark = pytest.mark.compiled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder of models."""
    monkeypatch.setenv("QUARK_NUMBA_CACHE_MB", "64")
    monkeypatch.setattr(model_cache, "users_folder", lambda: tmp_path / "models")
    monkeypatch.setattr(model_cache, "location", lambda: kernels.Location(tmp_path, True))
    return tmp_path / "models"


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "m.onnx", 1)
    return tmp_path / "m.onnx"


@pytest.fixture
def builds(monkeypatch):
    """The models that were built, and not found in the cache."""
    made, rewrite = [], build.rewrite_model
    monkeypatch.setattr(build, "rewrite_model", lambda *given, **named: made.append(given) or rewrite(*given, **named))
    return made


def entries(folder):
    return [entry for entry, _, _ in ModelCache(folder).entries()]


def test_a_small_model_is_built_once(path, folder, builds):
    for options in (None, onnxruntime.SessionOptions(), None):
        assert result(quark_numba.InferenceSession(path, options)) == EXPECTED
    assert len(builds) == 1
    assert result(quark_numba.InferenceSession(path, cache=True)) == EXPECTED  # the same cache
    assert len(builds) == 1


def test_it_is_saved_once_the_session_exists(path, folder, monkeypatch):
    """What fails while ONNX Runtime creates the session saves nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime.InferenceSession, "__init__", lambda *_, **__: pytest.fail("refused"))
        with pytest.raises(pytest.fail.Exception, match="refused"):
            quark_numba.InferenceSession(path)
    assert not folder.exists()
    quark_numba.InferenceSession(path)
    assert len(entries(folder)) == 1


def test_other_options_and_changed_weights_are_other_models(path, folder, builds):
    quark_numba.InferenceSession(path)
    quark_numba.InferenceSession(path, keep_quantized_weights=True)
    write(path, 2)
    assert result(quark_numba.InferenceSession(path)) == [0, 2, 4, 6, 8, 10, 12]
    assert (len(builds), len(entries(folder))) == (3, 3)


def test_a_damaged_model_is_built_again(path, folder, builds):
    quark_numba.InferenceSession(path)
    (file,) = (each for each in entry_of(folder).iterdir() if each.suffix == ".onnx")
    file.write_bytes(file.read_bytes()[:-5])
    for _ in range(2):
        assert result(quark_numba.InferenceSession(path)) == EXPECTED
    assert len(builds) == 2


@pytest.mark.parametrize("reason", ["false", "bytes", "replaced", "size", "nothing", "kernels", "folder", "file", "room"])
def test_what_is_not_kept(reason, path, folder, monkeypatch, caplog):
    """There is no warning, as nobody asked for it."""
    source, options, named = path, onnxruntime.SessionOptions(), {}
    if reason == "false":
        named["cache"] = False
    elif reason == "bytes":
        loaded = onnx.load(path)
        source = loaded.SerializeToString()
    elif reason == "replaced":
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(0.5, np.float32))
        options.add_initializer("s", value)
    elif reason in ("size", "nothing"):
        monkeypatch.setenv("QUARK_NUMBA_CACHE_MB", {"size": "0.001", "nothing": "0"}[reason])
    elif reason == "kernels":
        monkeypatch.setattr(model_cache, "location", lambda: kernels.Location(path.parent, True, "no room"))
    elif reason == "folder":

        def refuse():
            raise PermissionError(13, "others can write to it")

        monkeypatch.setattr(model_cache, "users_folder", refuse)
    elif reason == "file":
        folder.write_text("in the way")
    else:

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(model_cache, "_digest", fail)
    with caplog.at_level(logging.WARNING):
        assert result(quark_numba.InferenceSession(source, options, **named)) == EXPECTED
    assert not caplog.records
    assert not folder.is_dir() or not list(folder.glob("quark_numba-*")) or all(each.suffix for each in folder.iterdir())


def test_a_model_of_which_a_session_warns(folder, tmp_path, caplog):
    """The next session warns again."""
    path = tmp_path / "m.onnx"
    text = "(float[3] x) => (float[] y) { d = Pair (a, s, z)  y = Add (x, d) }"
    source = text_model(text, a=np.ones(3, np.float32), s=np.float32(0.5), z=np.int8(0))
    source.graph.input.append(onnx.helper.make_tensor_value_info("a", 1, [3]))
    onnx.save(source, path)
    for _ in range(2):
        caplog.clear()
        quark_numba.InferenceSession(path)
        assert "keep_initializers_as_inputs=False" in caplog.text
    assert not folder.exists()


def test_a_model_without_changes(folder, tmp_path, builds):
    """The folder has no model, but says that ONNX Runtime takes the original one."""
    nodes = ["q = QuantizeLinear (x, s, z)", "y = DequantizeLinear (q, s, z)"]
    s, z = onnx.numpy_helper.from_array(np.float32(0.5), "s"), onnx.numpy_helper.from_array(np.uint8(7), "z")
    path = tmp_path / "m.onnx"
    onnx.save(model(nodes, [("x", "float32", [4])], [("y", "float32", [4])], initializers=[s, z], opset=17), path)
    os.utime(path, (1, 1))
    x = np.float32([0.3, -9, 2, 1000])
    for _ in range(3):
        session = quark_numba.InferenceSession(path, qdq="onnxruntime")
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.float32([0.5, -3.5, 2, 124]))
    assert len(builds) <= 1
    assert not list(entry_of(folder).glob("*.onnx"))


def test_wrong_variable(path, folder, monkeypatch):
    monkeypatch.setenv("QUARK_NUMBA_CACHE_MB", "much")
    with pytest.raises(EnvironmentVariableError, match="QUARK_NUMBA_CACHE_MB is 'much'; expected a number of megabytes"):
        quark_numba.InferenceSession(path)


def test_a_large_model_if_the_variable_says_so(path, folder, builds, monkeypatch):
    monkeypatch.setattr(build.model_files, "MAX_IN_MEMORY", 10)
    for _ in range(2):
        assert result(quark_numba.InferenceSession(path)) == EXPECTED
    assert len(builds) == 1


@pytest.mark.slow
def test_a_later_process_loads_neither_numba_nor_onnx(path, tmp_path):
    """Each process has the environment of a user who set nothing but the folder of kernels. The digest of a file that was
    changed less than two seconds ago is not recorded."""
    time.sleep(2.1)
    code = f"""
import sys, numpy as np, quark_numba
session = quark_numba.InferenceSession({str(path)!r})
print(session.run(None, {{"x": np.zeros(4000, np.float32)}})[0][:7].tolist(), "onnx" in sys.modules)
"""
    environment = {name: value for name, value in os.environ.items() if name != "QUARK_NUMBA_CACHE_MB"}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "numba")
    printed = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert printed == [f"{EXPECTED_TEXT} True\n", f"{EXPECTED_TEXT} False\n"]


EXPECTED_TEXT = str([float(value) for value in EXPECTED])
