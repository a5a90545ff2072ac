"""Session options keep the meaning that they have in ONNX Runtime, and the page of sessions names all that ONNX Runtime has."""

import fnmatch
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import model, session_options
from onnxruntime.capi import onnxruntime_pybind11_state
from text_graphs import text_model

import quark_numba
from quark_numba.session import inference_session, options

PAGE = Path(quark_numba.__file__).with_name("session") / "README.md"


def named_on_the_page():
    (table,) = re.findall(r"^## Session options\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", "\n".join(line for line in table.splitlines() if line.startswith("|")))


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
    """They are set by the names and denotations of inputs, which optimised and kept models keep."""
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
