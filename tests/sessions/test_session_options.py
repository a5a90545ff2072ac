"""Session options keep the meaning that they have in ONNX Runtime, and the page of options names all that ONNX Runtime has."""

import fnmatch
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import external_data_helper, helper, numpy_helper
from onnx_models import model, session_options
from onnxruntime.capi import onnxruntime_pybind11_state
from paths import ROOT
from text_graphs import text_model

import quark_numba
from quark_numba.element_types import external_data
from quark_numba.rewriting.onnx_runtime import RELEASE
from quark_numba.session import inference_session
from quark_numba.session import session_options as options

PAGE = ROOT / "quark_numba" / "session" / "SESSION_OPTIONS.md"


def named_on_the_page():
    return re.findall(r"`([^`]+)`", PAGE.read_text(encoding="utf-8"))


def test_the_page_has_every_method():
    methods = [name for name in dir(onnxruntime.SessionOptions()) if not name.startswith("_")]
    assert {*methods} - {*named_on_the_page()} == set()


def test_the_page_has_every_entry():
    """The names of entries are strings in ONNX Runtime's library, each between zero bytes."""
    content = Path(onnxruntime_pybind11_state.__file__).read_bytes()
    found = re.findall(rb"\0((?:session|optimization|mlas|memory|ep)\.[a-z][a-z0-9_.]*[a-z0-9])(?=\0)", content)
    entries = {name.decode() for name in found}
    assert {"session.disable_quant_qdq", "optimization.enable_gelu_approximation"} <= entries
    patterns = named_on_the_page()
    unknown = {name for name in entries | {*options.ENTRIES} if not any(fnmatch.fnmatch(name, each) for each in patterns)}
    assert unknown == set()


@pytest.mark.compiled
def test_free_dimensions(tmp_path):
    """Free dimensions are set by the names and denotations of inputs, which optimized and cached models keep."""
    text = "(float[n, c] x) => (float[n, c] y) { d = Pair (x, s, z)  y = Relu (d) }"
    made = text_model(text, s=np.float32(0.1), z=np.int8(0))
    made.graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    onnx.save(made, tmp_path / "m.onnx")
    for how in ({}, {"cache": tmp_path / "cache"}, {"cache": tmp_path / "cache"}):
        given = session_options()
        given.add_free_dimension_override_by_name("n", 3)
        given.add_free_dimension_override_by_denotation("DATA_CHANNEL", 5)
        session = quark_numba.InferenceSession(tmp_path / "m.onnx", given, **how)
        assert session.get_inputs()[0].shape == [3, 5]
        with pytest.raises(Exception, match="Got invalid dimensions for input"):
            session.run(None, {"x": np.zeros((2, 5), np.float32)})


@pytest.mark.compiled
def test_a_model_that_names_files_in_nodes_stays_where_it_is(tmp_path, monkeypatch):
    """An execution provider looks for the file of an EPContext beside the model."""
    context = helper.make_node("EPContext", ["d"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="file")
    made = model(["d = Pair (x, s, z)", context], ["x"], ["y"])
    onnx.save(made, tmp_path / "m.onnx")
    taken = []

    def taking(self, source, *_, **__):
        taken.append(source)
        raise RuntimeError("this machine has no such provider")

    monkeypatch.setattr(inference_session.onnxruntime.InferenceSession, "__init__", taking)
    for source in (tmp_path / "m.onnx", made.SerializeToString(), made):
        with pytest.raises(RuntimeError, match="no such provider"):
            quark_numba.InferenceSession(source)
    assert {*taken} == {tmp_path / "m.onnx", made.SerializeToString()}


@pytest.mark.compiled
def test_options_that_threads_share():
    """Sessions ask options what they replace, and give them other values meanwhile."""
    source = text_model("(float[3] x) => (float[] y) { d = Pair (x, s, z)  y = Relu (d) }", s=np.float32(0.25), z=np.int8(0))
    for _ in range(4):
        shared = session_options()
        shared.log_severity_level = 3
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _, shared=shared: quark_numba.InferenceSession(source, shared), range(8)))
        assert shared.log_severity_level == 3


def with_weights_apart(folder, location):
    """Write a model of y = x + w, with w in a file, and return its path."""
    nodes = "d = Pair (w, s, z)  y = Add (x, d)"
    source = text_model(f"(float[3] x) => (float[] y) {{ {nodes} }}", w=np.zeros(3, np.float32), s=np.float32(1), z=np.int8(0))
    (w,) = (each for each in source.graph.initializer if each.name == "w")
    w.CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    external_data_helper.set_external_data(w, location, offset=0, length=12)
    w.ClearField("raw_data")
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(source.SerializeToString())
    return folder / "m.onnx"


def weights(path, **named):
    return quark_numba.InferenceSession(path, **named).run(None, {"x": np.zeros(3, np.float32)})[0].tolist()


@pytest.mark.compiled
def test_a_cached_model_whose_link_leads_elsewhere_later(tmp_path):
    for value, name in enumerate(("a", "b"), 1):
        np.full(3, value, np.float32).tofile(tmp_path / name)
    path = with_weights_apart(tmp_path, "w.bin")
    for name, expected in (("a", [1, 1, 1]), ("b", [2, 2, 2])):
        (tmp_path / "w.bin").unlink(missing_ok=True)
        (tmp_path / "w.bin").symlink_to(name)
        assert weights(path, cache=tmp_path / "kept") == expected
        assert weights(path, cache=tmp_path / "kept") == expected


@pytest.mark.compiled
@pytest.mark.skipif(RELEASE < (1, 28), reason="the entry is for models in memory")
def test_a_cached_model_with_a_folder_named_from_another_one(tmp_path, monkeypatch):
    path = with_weights_apart(tmp_path / "model", "w.bin")
    for value, name in enumerate(("a", "b"), 1):
        (tmp_path / name / "weights").mkdir(parents=True)
        np.full(3, value, np.float32).tofile(tmp_path / name / "weights" / "w.bin")
        monkeypatch.chdir(tmp_path / name)
        named = {"model_external_initializers_file_folder_path": "weights"}
        assert weights(path, cache=tmp_path / "kept", sess_options=session_options(**named)) == [value] * 3


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="the path is checked before it is opened, and not later")
def test_a_link_that_is_put_into_a_resolved_path(tmp_path):
    (tmp_path / "file").write_bytes(b"secret")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder" / "way").symlink_to(tmp_path)
    for location in ("link", "way/file", "../file", "inner/../../file"):
        with pytest.raises((OSError, ValueError)):
            external_data.opened_without_links(location, str(tmp_path / "folder"))
