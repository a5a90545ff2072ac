"""The files that the command writes: through links, into devices and pipes, and with the right modes."""

import os
import stat
import threading

import onnx
import pytest
from onnx_models import one_node

from quark_numba import cli

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(os.name != "posix", reason="links, pipes and modes of POSIX"),
]


@pytest.fixture
def optimize(tmp_path):
    onnx.save(one_node("quantize", "int8"), tmp_path / "in.onnx")
    return lambda out: cli.main(["optimize", str(tmp_path / "in.onnx"), str(out)])


def test_links_are_followed(optimize, tmp_path):
    target = tmp_path / "target.onnx"
    target.write_bytes(b"before")
    target.chmod(0o604)
    (tmp_path / "symbolic").symlink_to(target)
    os.link(target, tmp_path / "hard")
    for link in ("symbolic", "hard"):
        target.write_bytes(b"before")
        assert optimize(tmp_path / link) == 0
        assert onnx.load(target).graph.node[0].op_type == "ExtendedQuantizeLinear"
        assert stat.S_IMODE(target.stat().st_mode) == 0o604
    assert (tmp_path / "symbolic").is_symlink()
    assert (tmp_path / "hard").stat().st_ino == target.stat().st_ino
    (tmp_path / "dangling").symlink_to(tmp_path / "new.onnx")
    assert optimize(tmp_path / "dangling") == 0
    assert (tmp_path / "new.onnx").is_file()


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_new_files_follow_the_mask(optimize, tmp_path, monkeypatch, mask):
    from quark_numba.models import model_files

    monkeypatch.setattr(model_files, "_MOST_BYTES", -1)
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


def test_a_large_model_does_not_go_into_a_pipe(optimize, tmp_path, monkeypatch, capsys):
    from quark_numba.models import model_files

    monkeypatch.setattr(model_files, "_MOST_BYTES", -1)
    os.mkfifo(tmp_path / "pipe")
    assert optimize(tmp_path / "pipe") == 1
    assert "not a regular file, and the model needs two" in capsys.readouterr().err
