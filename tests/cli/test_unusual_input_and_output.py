"""The command when its input, its output or its user is unusual."""

import importlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numba
import numpy as np
import onnx
import processes
import pytest
from marks import default_of
from onnx import helper
from onnx_models import model, one_node
from textline import BF16, EXPECTED, FLOAT

from quark_numba import cli
from quark_numba.compiling import cache
from quark_numba.errors import interrupt

pytestmark = pytest.mark.compiled


def command(*arguments, **environment):
    return [sys.executable, "-P", "-m", "quark_numba", *arguments], {**os.environ, **environment}


def finished(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **environment):
    words, variables = command(*arguments, **environment)
    return subprocess.run(words, env=variables, stdout=stdout, stderr=stderr, timeout=300)


def own_errors(text):
    """Return the text without the message of ONNX Runtime for Windows on machines without graphics, for example under Wine."""
    return text.replace(b"Failed to create DXGI factory.\n", b"")


@pytest.fixture
def twice(tmp_path):
    """Return the path of a model of y = x + x."""
    path = tmp_path / "twice.onnx"
    onnx.save(model(["y = Add (x, x)"], [("x", "float32", [3])], ["y"], domains=[]), path)
    return str(path)


def npy(shape, descr="<f4", data=b""):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def npz(path, content, compression=zipfile.ZIP_STORED, change=None):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("x.npy", content)
    if change:
        path.write_bytes(change(path.read_bytes()))


def other_compression(content):
    """Return the zip file with compression method 99 in the local and in the central header."""
    changed = bytearray(content)
    central = content.index(b"PK\x01\x02")
    changed[8:10] = changed[central + 10 : central + 12] = struct.pack("<H", 99)
    return bytes(changed)


def encrypted(content):
    changed = bytearray(content)
    central = content.index(b"PK\x01\x02")
    changed[6] |= 1
    changed[central + 8] |= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("content", "change"),
    [
        *((npy(shape), None) for shape in ((10**15,), (10**40,), (-3,), "'three'")),
        *((npy((3,), descr), None) for descr in ("nonsense", "|O", "<f4")),
        *((content, None) for content in (b"\x93NUMPY\x09\x00", b"", b"text")),
        (npy((3,), data=bytes(12)), other_compression),
        (npy((3,), data=bytes(12)), encrypted),
        (npy((3,), data=bytes(12)), lambda content: content[:-30]),
        (npy((3,), data=bytes(12)), lambda content: content.replace(bytes(12), b"damaged data")),
    ],
    ids=["too many", "far too many", "negative", "text", "dtype", "objects", "short", "version", "empty", "no header"]
    + ["compression", "encryption", "cut", "damaged"],
)
def test_inputs_that_are_none(twice, tmp_path, content, change, terminal):
    npz(tmp_path / "x.npz", content, change=change)
    error = terminal.error("run", twice, "--data", tmp_path / "x.npz", "--runs", "1")
    assert re.search(r"x\.npz: (not a file of numbers|input x has shape .*; the model takes \[3\])", error)


def test_inputs_that_cannot_be_read(twice, tmp_path, terminal):
    of_a_folder = "no .npz and no .npy file in this folder"
    for path, reason in ((tmp_path, of_a_folder), (tmp_path / "missing", "No such file or directory")):
        assert f"{path.name}: {reason}" in terminal.error("run", twice, "--data", str(path))


def test_the_other_byte_order(twice, tmp_path, capsys):
    x = np.array([1, 2, 3], ">f4")
    np.savez(tmp_path / "x.npz", x=x)
    out = tmp_path / "y.npz"
    assert cli.main(["run", twice, "--data", str(tmp_path / "x.npz"), "--save-outputs", str(out), "--runs", "1"]) == 0
    with np.load(out) as outputs:
        assert outputs["y"].tolist() == [2, 4, 6]


def test_outputs_and_what_is_expected(twice, tmp_path, terminal):
    out, arguments = str(tmp_path / "y.npz"), ["run", twice, "--runs", "1"]
    assert cli.main([*arguments, "--seed", "1", "--save-outputs", out]) == 0
    assert "within the tolerance of 0" in terminal.text(*arguments, "--seed", "1", "--expected", out)
    report = terminal.report(*arguments, "--expected", out, code=1)["expected"]
    assert report["holds"] is False
    assert cli.main([*arguments, "--expected", out, "--tolerance", str(report["outputs"][0]["largest_difference"])]) == 0
    for wrong, message in (
        ({"z": np.zeros(3)}, "no array named y; it has z"),
        ({"y": np.zeros(4)}, r"output y has shape (3,), the reference's (4,)"),
    ):
        np.savez(out, **wrong)
        assert message in terminal.error(*arguments, "--expected", out)
    np.savez(out, y=np.full(3, np.nan))
    assert cli.main([*arguments, "--expected", out, "--tolerance", "1e9"]) == 1
    assert cli.main([*arguments, "--save-outputs", str(tmp_path / "no" / "y.npz")]) == 1
    for wrong in ("-1", "nan", "inf", "x"):
        with pytest.raises(SystemExit):
            cli.main([*arguments, "--expected", out, f"--tolerance={wrong}"])


def identity(path, element_type, shape=(2,)):
    values = [("x", element_type, shape)], [("y", element_type, shape)]
    onnx.save(model(["y = Identity (x)"], *values, domains=[]), path)
    return str(path)


def test_integers_beyond_what_float64_has(tmp_path):
    whole = identity(tmp_path / "m.onnx", "int64")
    for x, expected, code in (
        ([2**53 + 1, 2**62 + 1], [2**53, 2**62], 1),
        ([2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)], 0),
        ([2**63 - 1, 0], [-(2**63), 0], 1),
    ):
        np.savez(tmp_path / "x.npz", x=np.array(x))
        np.savez(tmp_path / "y.npz", y=np.array(expected))
        files = ["--data", str(tmp_path / "x.npz"), "--expected", str(tmp_path / "y.npz")]
        assert cli.main(["run", whole, *files, "--runs", "1"]) == code


def test_outputs_that_are_no_numbers(tmp_path, terminal):
    whole = identity(tmp_path / "m.onnx", "string")
    np.savez(tmp_path / "x.npz", x=np.array(["ab", "cd"]))
    np.savez(tmp_path / "y.npz", y=np.array(["ab", "ce"]))
    arguments = ["run", whole, "--data", str(tmp_path / "x.npz"), "--runs", "1"]
    assert "output y cannot be compared" in terminal.error(*arguments, "--expected", tmp_path / "y.npz")
    error = terminal.error(*arguments, "--save-outputs", tmp_path / "o.npz")
    assert "output y is not an array of numbers and cannot be written" in error


@pytest.mark.skipif(os.name != "posix", reason="Windows has no /dev/stdout")
def test_a_model_written_to_the_output(tmp_path):
    onnx.save(one_node("quantize", "int8"), tmp_path / "m.onnx")
    done = finished("optimize", str(tmp_path / "m.onnx"), "/dev/stdout")
    assert onnx.ModelProto.FromString(done.stdout).graph.node[0].op_type == "ExtendedQuantizeLinear"


@pytest.mark.skipif(os.name != "posix", reason="Windows has no shell of POSIX")
@pytest.mark.slow
def test_no_output_at_all():
    words, environment = command("info")
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *words], env=environment, stderr=subprocess.PIPE, timeout=300)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["run", ""], "model"),
        (["run", BF16, "--save-outputs", ""], "save-outputs"),
        (["run", BF16, "--optimize", "--cache", ""], "cache"),
        (["profile", BF16, "--cache="], "cache"),
        (["warmup", ""], "model"),
        (["optimize", "", "out.onnx"], "model"),
        (["optimize", BF16, ""], "out"),
        (["info", "--cached-models", "", "--clear-cache"], "cached-models"),
        (["analyze", BF16, "--random", "1", "--exclude-config", ""], "exclude-config"),
        (["evaluate", BF16, "--random", "1", "--outputs", "y", ""], "outputs"),
    ],
    ids=str,
)
def test_empty_names(words, name, terminal):
    assert f"argument {name}: it is empty; expected a name" in terminal.refusal(*words)


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["run", BF16, "--cache"], "optimize"),
        (["run", BF16, "--cache", "folder"], "optimize"),
        (["run", BF16, "--tolerance", "1"], "expected"),
        (["run", BF16, "--batch", "1"], "data"),
        (["analyze", BF16, "--random", "1", "--exclude", "3"], "exclude-config"),
    ],
    ids=str,
)
def test_options_that_would_be_ignored(words, needed, terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"only allowed with argument --{needed}" in terminal.refusal(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_folder_of_models_without_room(tmp_path, capsys):
    """A full folder of models is not reported as a fault of the output, and the model runs."""
    (tmp_path / "file").touch()
    words = ["run", BF16, "--optimize", "--runs", "1", "--cache", str(tmp_path / "file" / "cache")]
    done = finished(*words)
    assert done.returncode == 0
    assert f"warning: {tmp_path / 'file' / 'cache'}: could not cache the optimized model: " in done.stderr.decode()


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX")
def test_a_cache_that_cannot_be_read(terminal, tmp_path, monkeypatch):
    """All rows are printed, with the reason beside the folder."""
    place = tmp_path / "quark_numba"
    place.symlink_to(place)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "location", cache.location.__wrapped__)
    report = terminal.report("info")
    assert report["folder of kernels"] == f"{place}: not used: Too many levels of symbolic links"
    assert report["folder of cached models"] == report["folder of kernels"]
    assert report["kernels"] == report["cached models"] == "0, 0.0 MB"
    assert terminal.report("info", "--clear-cache") == report


@pytest.mark.slow
def test_other_things_in_the_folder_of_the_cache(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    place = tmp_path / "quark_numba"
    (place / f"folder{cache.SUFFIX}").mkdir(parents=True)
    (place / f"dangling{cache.SUFFIX}").symlink_to("nothing")
    half = place / f"quantize_int8_0123456789ab_0123456789ab{cache.SUFFIX}.123"
    half.write_bytes(b"quark_num")
    others = [place / f"notes{cache.SUFFIX}.md", place / half.name.removesuffix(".123"), place / half.with_suffix(".5")]
    for each in others:
        each.write_text("of somebody else")
    assert json.loads(finished("info", "--json", **environment).stdout)["kernels"] == "1, 0.0 MB"
    assert finished("info", "--clear-cache", **environment).returncode == 0
    assert not half.exists()
    assert [each.read_text() for each in others] == ["of somebody else"] * 3


@pytest.mark.slow
def test_the_optimized_model_beside_it(terminal):
    arguments = ["run", BF16, "--reference", FLOAT, "--data", EXPECTED, "--optimize", "--runs", "1"]
    assert "textline_cls_bf16.onnx, optimized" in terminal.text(*arguments)
    report = terminal.report(*arguments)
    assert report["optimized"]["latency_ratio"] == report["optimized"]["median_seconds"] / report["reference"]["median_seconds"]


@pytest.mark.parametrize("threads", ["0", "-1", "1025", "99999999999", "x"])
def test_wrong_numbers_of_threads(twice, threads, capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", twice, f"--threads={threads}"])


def test_control_sequences_of_a_model_stay_out_of_the_terminal(tmp_path, capsys):
    evil = "\x1b]0;title\x07\x1b[2JQuantizeLinear"
    onnx.save(model([helper.make_node(evil, ["x"], ["y"], domain="d\x1b[31m")], ["x"], ["y"], domains=["d"]), tmp_path / "m")
    assert cli.main(["run", str(tmp_path / "m")]) == 1
    text = "".join(capsys.readouterr())
    assert "\x1b[2J" not in text
    assert "\x1b]0" not in text
    assert "\x07" not in text
    assert r"\x1b[2JQuantizeLinear" in text


@pytest.mark.slow
def test_tables_in_a_pipe_are_whole(tmp_path):
    domain = "a.domain.with.a.name.that.is.much.longer.than.any.terminal.is.wide" + 3 * ".and.longer"
    onnx.save(model([f"y = {domain}.QuantizeLinear (x)"], ["x"], ["y"]), tmp_path / "m")
    assert f"{domain}::QuantizeLinear".encode() in finished("run", str(tmp_path / "m")).stdout


@pytest.mark.slow
def test_an_output_that_has_ascii_only():
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for arguments in (["profile", BF16, "--dim", "?=48", "--runs", "1"], ["run", "模型.onnx"]):
        done = finished(*arguments, **environment)
        assert b"Traceback" not in done.stderr
        assert done.returncode == (0 if arguments[0] == "profile" else 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a path with spaces and with letters of several scripts."""
    return tmp_path_factory.mktemp("names") / "a folder 模型 é"


@pytest.mark.parametrize("encoding", ["cp936", "cp1252"])
@pytest.mark.slow
def test_code_pages_and_names_that_they_lack(encoding, folder):
    """Model, inputs, outputs, cache and temporary files are in a folder with letters of several scripts. The run with the
    second encoding finds the cache of the first."""
    folder.mkdir(exist_ok=True)
    (folder / "y é.npz").unlink(missing_ok=True)
    onnx.save(one_node("quantize", "int8"), folder / "模型.onnx")
    np.savez(folder / "输入 x.npz", x=np.ones(3, np.float32), scale=np.float32(0.5), zero_point=np.int8(0))
    environment = {"PYTHONIOENCODING": encoding, "NUMBA_CACHE_DIR": str(folder), "PYTHONUTF8": "0"}
    environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    given = [str(folder / "模型.onnx"), "--data", str(folder / "输入 x.npz"), "--runs", "1"]
    outputs = ["--reference", given[0], "--save-outputs", str(folder / "y é.npz"), "--optimize"]
    for words, column in ((["run", *given, *outputs], "median latency, ms"), (["profile", *given], "share")):
        done = finished(*words, **environment)
        assert done.returncode == 0, done.stderr
        name = "模型.onnx" if encoding == "cp936" else r"\u6a21\u578b.onnx"
        if words[0] == "run":
            assert name in done.stdout.decode(encoding)
        assert column in done.stdout.decode(encoding)
    with np.load(folder / "y é.npz") as y:
        assert y["y"].tolist() == [2, 2, 2]
    assert list((folder / "quark_numba").glob("*.kernel"))
    assert not list(folder.glob("quark_numba_*"))


@pytest.mark.skipif(os.name != "posix" or not os.path.exists("/dev/full"), reason="Windows and macOS have no /dev/full")
def test_an_output_that_is_full():
    with open("/dev/full", "w") as full:
        done = finished("types", stdout=full)
    assert (done.returncode, done.stderr) == (1, b"error: the output cannot be written: No space left on device\n")


@pytest.mark.skipif(os.name != "posix" or not os.path.exists("/dev/full"), reason="Windows and macOS have no /dev/full")
@pytest.mark.slow
def test_messages_that_cannot_be_written(twice):
    """Results are printed even if messages cannot be written."""
    with open("/dev/full", "w") as full:
        done = finished("run", twice, "--runs", "1", stderr=full)
    assert done.returncode == 0
    assert b"median latency" in done.stdout


@pytest.mark.parametrize("columns", ["0", "1", "-1"])
@pytest.mark.by_default(1)
def test_any_width_of_a_terminal(columns, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["run", str(tmp_path / "none.onnx")]) == 1
    assert capsys.readouterr().err.splitlines() == [f"error: {tmp_path / 'none.onnx'}: No such file or directory"]


@pytest.mark.skipif(os.name != "posix", reason="names in Windows are UTF-16")
def test_a_model_whose_name_is_not_utf_8(twice, tmp_path, terminal):
    path = Path(os.fsdecode(os.fsencode(tmp_path / "m") + b"\xff.onnx"))
    path.write_bytes(Path(twice).read_bytes())
    assert "the name is not in UTF-8, which ONNX Runtime requires" in terminal.error("run", path)


def test_an_output_that_nobody_reads():
    words, environment = command("types", "--json")
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert own_errors(process.stderr.read()) == b""
    assert process.wait(300) == 1
    process.stderr.close()


def test_info_of_another_distribution_of_onnx_runtime(monkeypatch, terminal):
    """The distribution may have another name, such as onnxruntime-gpu."""

    def version(name):
        if name == "onnxruntime":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", version)
    assert terminal.report("info")["onnxruntime"][0].isdigit()


@pytest.fixture(scope="module")
def first_use(tmp_path_factory):
    """Return the arguments of the command, its cache, and the finished process, for which the cache was empty."""
    folder = tmp_path_factory.mktemp("first")
    onnx.save(one_node("quantize", "int8", shapes={"x": [3], "scale": [], "zero_point": []}), folder / "m.onnx")
    arguments = "run", str(folder / "m.onnx"), "--runs", "1"
    return arguments, folder / "cache", finished(*arguments, NUMBA_CACHE_DIR=str(folder / "cache"))


@pytest.mark.slow
def test_the_cache_is_shown_and_emptied(first_use, tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    shutil.copytree(first_use[1], tmp_path, dirs_exist_ok=True)
    kept = list(tmp_path.rglob(f"*{cache.SUFFIX}"))
    assert kept
    before = json.loads(finished("info", "--json", **environment).stdout)
    assert before["folder of kernels"] == str(tmp_path / "quark_numba")
    assert before["kernels"].startswith(f"{len(kept)}, ")
    report = json.loads(finished("info", "--clear-cache", "--json", **environment).stdout)
    assert report["kernels"] == "0, 0.0 MB"
    # `info` asks for the library's path, so that the first functions of the library are compiled anew.
    assert {path.name.partition("_")[0] for path in kept if path.exists()} <= {"ort"}


@pytest.mark.slow
def test_the_first_use_is_told(first_use):
    arguments, folder, first = first_use
    second = finished(*arguments, NUMBA_CACHE_DIR=str(folder))
    assert first.stderr.count(b"first use: compiling kernels takes some seconds; they are kept in") == 1
    assert b"first use" not in second.stderr


@pytest.mark.parametrize("seconds", default_of([0.4, 1.5, 0.3, 0.6, 1.0, 2.0, 3.0], 0.4, 1.5))
@pytest.mark.by_default(1, slow=2)
def test_ctrl_c(seconds, tmp_path):
    """From the moment when Python runs the package, Ctrl-C ends the command without a traceback, and with the exit code that
    shells know."""
    begun = ["run", BF16, "--data", EXPECTED, "--runs", "100000"]
    code, _, errors = processes.interrupted(seconds, *begun, NUMBA_CACHE_DIR=str(tmp_path))
    assert b"Traceback" not in errors, errors
    assert code == 130


def test_ctrl_c_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    (tmp_path / "interrupted_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nis_whole = True\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def import_and_wait():
        importlib.import_module("interrupted_module")
        for _ in range(1000):
            time.sleep(0.05)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            import_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert sys.modules.pop("interrupted_module").is_whole


def test_no_memory(twice, terminal, monkeypatch, tmp_path):
    def optimized(*_, **__):
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr("quark_numba.rewriting.optimize.rewrite_model", optimized)
    error = terminal.error("optimize", twice, tmp_path / "out.onnx")
    assert "error: there is not enough memory: Unable to allocate 8.00 GiB" in error
