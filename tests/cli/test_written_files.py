"""The files that the command writes: through links, into devices and pipes, and with the right modes."""

import mmap
import os
import shutil
import stat
import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
from onnx_models import model, one_node
from paths import MODELS
from rewritten_models import floats

from quark_numba import cli
from quark_numba.models import files

pytestmark = [pytest.mark.compiled, pytest.mark.skipif(os.name != "posix", reason="links, pipes and modes of POSIX")]


@pytest.fixture
def optimize(tmp_path):
    onnx.save(one_node("quantize", "int8"), tmp_path / "in.onnx")
    return lambda out: cli.main(["optimize", str(tmp_path / "in.onnx"), str(out)])


def in_files(path, *, location):
    """Write a model whose large tensor is in a file, and an input."""
    initializers = floats(w=np.ones((30, 40)))
    whole = model(["y = MatMul (x, w)"], [("x", "float32", [2, 30])], ["y"], initializers=initializers, domains=[])
    onnx.save(whole, path, save_as_external_data=True, location=location)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Models, inputs and expected outputs, which commands read."""
    monkeypatch.chdir(tmp_path)
    in_files("m.onnx", location="m.weights")
    in_files("float.onnx", location="float.weights")
    os.mkdir("data")
    for name in ("in.npz", "data/0.npz", "data/1.npz"):
        np.savez(name, x=np.ones((2, 30), np.float32))
    np.savez("expected.npz", y=np.full((2, 40), 30, np.float32))
    for name in ("m.onnx", "m.weights", "float.onnx", "float.weights", "in.npz", "data/0.npz", "data/1.npz", "expected.npz"):
        if not name.endswith("weights"):  # onnx refuses tensors in a file with several names
            os.link(name, f"{name}.hard".replace("/", "_"))
        os.symlink(name, f"{name}.symbolic".replace("/", "_"))
    return tmp_path


RUN = ["run", "m.onnx", "--reference", "float.onnx", "--runs", "1"]
ANALYZE = ["analyze", "m.onnx", "--reference", "float.onnx", "--data", "data"]
OVER_INPUTS = [
    *([*RUN, "--data", "in.npz", "--expected", "expected.npz", "--save-outputs", name] for name in ("in.npz", "expected.npz")),
    *(
        [*RUN, "--save-outputs", name]
        for name in ("m.onnx", "m.weights", "./m.onnx", "float.onnx", "float.weights", "m.onnx.hard")
    ),
    *([*RUN, "--save-outputs", name] for name in ("m.weights.symbolic", "float.weights.symbolic")),
    [*RUN, "--data", "data/0.npz", "--save-outputs", "data/0.npz"],
    [*RUN, "--data", "data", "--limit", "1", "--save-outputs", "data_1.npz.hard"],
    *([*ANALYZE, option, "float.weights"] for option in ("--csv", "--html", "--exclude-config", "--resume")),
    *([*ANALYZE, "--csv", name] for name in ("m.onnx.symbolic", "m.weights.symbolic", "data/1.npz", "data_0.npz.symbolic")),
    ["evaluate", *ANALYZE[1:], "--resume", "m.weights"],
    ["optimize", "m.onnx", "m.weights"],
    ["optimize", "m.onnx", "m.weights.symbolic"],
    ["optimize", "m.onnx", "m.onnx.hard"],
]


@pytest.mark.parametrize("words", OVER_INPUTS, ids=" ".join)
def test_no_output_replaces_an_input(words, folder, terminal):
    before = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    assert "expected another" in terminal.error(*words)
    assert {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()} == before


@pytest.mark.parametrize("second", ["table", "./table", "linked"])
def test_outputs_are_different_files(second, folder, terminal):
    if second == "linked":
        (folder / "table").touch()
        os.link("table", "linked")
    error = terminal.error(*ANALYZE, "--csv", "table", "--exclude-config", second)
    assert f"{second}: to be written twice; expected different files" in error


@pytest.mark.parametrize(("name", "reason"), [("data", "Is a directory"), ("no/file", "No such file or directory")])
@pytest.mark.parametrize(
    "words",
    [[*RUN, "--save-outputs"], [*ANALYZE, "--html", "page.html", "--csv"], ["evaluate", *ANALYZE[1:], "--resume"]],
    ids=" ".join,
)
def test_files_that_cannot_be_written_are_told_before_a_run(words, name, reason, folder, capsys):
    before = {*folder.rglob("*")}
    assert cli.main([*words, name]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {name}: {reason}\n")
    assert {*folder.rglob("*")} == before


def test_outputs_beside_inputs(folder):
    """Files beside the inputs are written and replaced, also in a folder of data."""
    for _ in range(2):
        assert cli.main([*RUN, "--data", "data/0.npz", "--save-outputs", "data/out.npz"]) == 0
        assert cli.main([*RUN, "--data", "data/0.npz", "--save-outputs", "/dev/null"]) == 0
    np.testing.assert_array_equal(np.load("data/out.npz")["y"], np.full((2, 40), 30))


def test_other_names_of_a_file_keep_its_content(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"before")
    os.link(target, tmp_path / "other")
    files.write(target, b"after")
    assert (target.read_bytes(), (tmp_path / "other").read_bytes()) == (b"after", b"before")


def test_links_are_followed(optimize, tmp_path):
    target = tmp_path / "target.onnx"
    target.write_bytes(b"before")
    target.chmod(0o604)
    (tmp_path / "symbolic").symlink_to(target)
    assert optimize(tmp_path / "symbolic") == 0
    assert onnx.load(target).graph.node[0].op_type == "ExtendedQuantizeLinear"
    assert stat.S_IMODE(target.stat().st_mode) == 0o604
    assert (tmp_path / "symbolic").is_symlink()
    (tmp_path / "dangling").symlink_to(tmp_path / "new.onnx")
    assert optimize(tmp_path / "dangling") == 0
    assert (tmp_path / "new.onnx").is_file()


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_new_files_follow_the_mask(optimize, tmp_path, monkeypatch, mask):
    from quark_numba.models import model_files

    monkeypatch.setattr(model_files, "_MAX_BYTES", -1)
    before = os.umask(mask)
    try:
        assert optimize(tmp_path / "out.onnx") == 0
    finally:
        os.umask(before)
    for written in tmp_path.glob("out.onnx*"):
        assert stat.S_IMODE(written.stat().st_mode) == 0o666 & ~mask


def test_a_file_keeps_its_mode(optimize, tmp_path):
    (tmp_path / "out.onnx").write_bytes(b"")
    (tmp_path / "out.onnx").chmod(0o664)
    assert optimize(tmp_path / "out.onnx") == 0
    assert stat.S_IMODE((tmp_path / "out.onnx").stat().st_mode) == 0o664


def test_pipes_and_devices_are_written_to(optimize, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert optimize(tmp_path / "pipe") == 0
    reader.join()
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert onnx.ModelProto.FromString(read[0]).graph.node[0].op_type == "ExtendedQuantizeLinear"
    (tmp_path / "null").symlink_to("/dev/null")
    assert optimize(tmp_path / "null") == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_device(optimize, capsys):
    assert optimize("/dev/full") == 1
    assert "/dev/full: No space left on device" in capsys.readouterr().err
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


FULL = """
import os, sys
from pathlib import Path
from quark_numba import cli

os.chdir(sys.argv[1])
for out in ("single", "double"):
    Path(out).write_bytes(b"before")
os.link("double", "again")
Path("rest").write_bytes(bytes(int(sys.argv[2])))
for out in ("single", "double", "new"):
    assert cli.main(["optimize", sys.argv[3], out]) == 1, out
assert {each.name: each.read_bytes() for each in Path().iterdir() if each.name != "rest"} == dict.fromkeys(
    ("single", "double", "again"), b"before"
)
assert os.stat("double").st_nlink == 2
"""


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    """What was there before stays, also under a second name, and nothing else is left. Beside the files there is no page."""
    (tmp_path / "disk").mkdir()
    rest = str(30 * mmap.PAGESIZE)
    inner = f'mount -t tmpfs -o size={32 * mmap.PAGESIZE} tmpfs "$1" && shift && exec "$@"'
    words = ["unshare", "-rm", "sh", "-c", inner, "sh", tmp_path / "disk"]
    if not shutil.which("unshare") or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no small disk can be made")
    code = [sys.executable, "-P", "-c", FULL, tmp_path / "disk", rest, MODELS / "qonnx" / "float_e4m3.onnx"]
    done = subprocess.run([*words, *code], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"No space left on device") == 3


def test_a_large_model_does_not_go_into_a_pipe(optimize, tmp_path, monkeypatch, capsys):
    from quark_numba.models import model_files

    monkeypatch.setattr(model_files, "_MAX_BYTES", -1)
    os.mkfifo(tmp_path / "pipe")
    assert optimize(tmp_path / "pipe") == 1
    assert "not a regular file, and the model needs two" in capsys.readouterr().err
