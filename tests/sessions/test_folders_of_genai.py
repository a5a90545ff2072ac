"""Folders of ONNX Runtime GenAI: what `build_library` writes of them, and what it refuses."""

import json
from pathlib import Path

import onnx
import pytest
from decoders import decoder
from genai import configuration, write_folder
from libraries import linked
from rewritten_models import operators

from quark_numba import ModelError, build_library, optimize
from quark_numba.cli import main
from quark_numba.library import build, targets
from quark_numba.models import model_files

pytestmark = linked


@pytest.fixture
def unlinked(monkeypatch):
    """Libraries are empty files. Return the lists of models that they are made of."""
    made_of = []
    monkeypatch.setattr(build, "_needs", lambda models, qdq: made_of.append([path.name for path in models]) or [])
    monkeypatch.setattr(build, "_compile", lambda job, name: None)
    monkeypatch.setattr(targets, "link", lambda command, name, work, library: library.touch())
    return made_of


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def written_configuration(folder):
    return json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("words", [[], ["--as-written"]], ids=["optimized", "as written"])
def test_the_command(words, tmp_path, unlinked, capsys):
    """All files but hidden ones are in the new folder, and the configuration differs in the library alone."""
    folder = write_folder(tmp_path / "in")
    (folder / "deep").mkdir()
    (folder / "deep" / "chat ü.txt").write_bytes(b"\xff\r\n")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").touch()
    out = tmp_path / "new" / "out"
    assert main(["build-library", str(folder), "-o", str(out), *words]) == 0
    assert "quark_operators.so" in capsys.readouterr().err
    assert unlinked == [["decoder.onnx"]]
    new = {"quark_operators.so", "README.txt"}
    assert files_of(out) == {"decoder.onnx", "genai_config.json", "tokenizer.json", "deep/chat ü.txt"} | new
    assert (out / "deep" / "chat ü.txt").read_bytes() == b"\xff\r\n"
    expected = configuration(session_options={"custom_ops_library": "quark_operators.so"})
    assert written_configuration(out) == expected
    source = onnx.load(folder / "decoder.onnx") if words else optimize(folder / "decoder.onnx")
    assert operators(onnx.load(out / "decoder.onnx")) == operators(source)
    assert "GenAI" in (out / "README.txt").read_text()
    # The result may be built again.
    build_library(out, tmp_path / "again", optimize=False)
    assert files_of(tmp_path / "again") == files_of(out)
    assert written_configuration(tmp_path / "again") == expected


def test_all_models_of_a_configuration(tmp_path, unlinked):
    """Session options that a part has get the library too, and a model that two parts name is written once."""
    config = configuration("", session_options={"intra_op_num_threads": 1, "custom_ops_library": "other.so"})
    model = config["model"]
    model["decoder"]["pipeline"] = [
        {
            "prompt": {"filename": "prompt.onnx", "session_options": {"log_id": "p"}, "inputs": ["input_ids"]},
            "token": {"filename": "token.onnx", "inherit_session_options": True},
        }
    ]
    model["vision"] = {"filename": "vision.onnx", "config_filename": "processor_config.json"}
    model["speech"] = {"filename": "vision.onnx", "adapter_filename": "speech.onnx_adapter"}
    model["moonshine"] = {"frontend_filename": "frontend.onnx"}
    folder = write_folder(tmp_path / "in", config, **dict.fromkeys(["prompt", "token", "vision", "frontend"], decoder("bfp16")))
    for name in ("processor_config.json", "speech.onnx_adapter"):
        (folder / name).write_text("{}")
    build_library([folder], tmp_path / "out", qdq="onnxruntime")
    assert unlinked == [["prompt.onnx", "token.onnx", "vision.onnx", "frontend.onnx"]]
    assert files_of(tmp_path / "out") == files_of(folder) | {"quark_operators.so", "README.txt"}
    found = written_configuration(tmp_path / "out")["model"]
    library = {"custom_ops_library": "quark_operators.so"}
    assert found["decoder"]["session_options"] == {"intra_op_num_threads": 1} | library
    (pipeline,) = found["decoder"]["pipeline"]
    assert pipeline["prompt"]["session_options"] == {"log_id": "p"} | library
    assert pipeline["token"] == {"filename": "token.onnx", "inherit_session_options": True}
    assert [found[name] for name in ("vision", "speech", "moonshine")] == [
        model[name] for name in ("vision", "speech", "moonshine")
    ]


def test_entries_and_large_models(tmp_path, unlinked, monkeypatch):
    """With ONNX's own operators, the configuration has ONNX Runtime's entries. Files of tensors are written anew."""
    folder = write_folder(tmp_path / "in", configuration("onnx/decoder.onnx"))
    (folder / "onnx").mkdir()
    onnx.save(decoder("a8w8"), folder / "onnx" / "decoder.onnx", save_as_external_data=True, location="old", size_threshold=0)
    (folder / "decoder.onnx").unlink()
    monkeypatch.setattr(model_files, "_MAX_BYTES", -1)
    build_library(folder, tmp_path / "out", target=None, qdq="float")
    expected = {"onnx/decoder.onnx", "onnx/decoder.onnx.data", "genai_config.json", "tokenizer.json"}
    assert files_of(tmp_path / "out") == expected | {"quark_operators.so", "README.txt"}
    options = written_configuration(tmp_path / "out")["model"]["decoder"]["session_options"]
    entries = {"session.disable_quant_qdq": "1"}
    assert {name: options[name] for name in entries} == entries
    onnx.load(tmp_path / "out" / "onnx" / "decoder.onnx")


WRONG = {
    "not an object": ([], "genai_config.json: not an object"),
    "no model": ({"search": {}}, "names no model; expected one, such as model.decoder.filename"),
    "a text": ({"model": "m"}, "model is 'm'; expected an object"),
    "a number": (configuration(5), r"model.decoder.filename is 5; expected the path of a file in this folder"),
    "a folder above": (
        configuration("../in/decoder.onnx"),
        r"filename is '\.\./in/decoder.onnx'; expected the path of a file in",
    ),
    "an absolute path": (configuration("/m.onnx"), r"filename is '/m.onnx'; expected the path of a file in"),
    "a missing file": (configuration("m.onnx"), r"filename is 'm.onnx'; expected the path of a file that exists"),
    "options": (configuration(session_options=[]), r"model.decoder.session_options is \[\]; expected an object"),
    "places": (configuration(shared_initializers=[{"name": "w"}]), r"model.decoder.shared_initializers has places in files"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_configurations(case, tmp_path, unlinked):
    config, message = WRONG[case]
    folder = write_folder(tmp_path / "in")
    (folder / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        build_library(folder, tmp_path / "new" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_wrong_folders(tmp_path, unlinked):
    folder = write_folder(tmp_path / "in")
    for out in (folder, folder / "out"):
        with pytest.raises(ModelError, match="which is read; expected another folder"):
            build_library(folder, out)
    expected = r"in: a folder; expected an ONNX model, or alone a folder with a genai_config\.json"
    with pytest.raises(ModelError, match=expected):
        build_library([folder, folder / "decoder.onnx"], tmp_path / "out")
    (folder / "genai_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"genai_config\.json: not a configuration of ONNX Runtime GenAI: Expecting"):
        build_library(folder, tmp_path / "out")
    (folder / "genai_config.json").unlink()
    with pytest.raises(ModelError, match=expected):
        build_library(folder, tmp_path / "out")
    assert files_of(tmp_path) == {"in/decoder.onnx", "in/tokenizer.json"}
    assert not Path(tmp_path, "out").exists()


def test_a_model_that_cannot_be_used(tmp_path, unlinked):
    """Nothing is left of the folder and of those within it."""
    folder = write_folder(tmp_path / "in")
    (folder / "deep").mkdir()
    (folder / "deep" / "merges.txt").touch()
    (folder / "decoder.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"decoder\.onnx"):
        build_library(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
