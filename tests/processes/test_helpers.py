"""Helper processes, which compile side by side with the process of a session."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import pytest
from paths import MODELS
from processes import note, run

import quark_numba
from quark_numba.compiling import cache
from quark_numba.compiling import helpers as helpers_module
from quark_numba.compiling.helpers import PROCESSES, Helpers
from quark_numba.errors import ModelError


@pytest.fixture(autouse=True)
def _two_processes(monkeypatch):
    monkeypatch.setenv(PROCESSES, "2")
    yield
    for thread in threading.enumerate():
        if thread.name == helpers_module._NAME:
            thread.join(60)
            assert not thread.is_alive()


def compile_something():
    """What this process does before it compiles a function that is not in the cache."""
    for each in [*cache.before_compiling]:
        each()


def work(folder, count):
    """Return pieces of work that note their numbers in a file."""
    return [(note, str(folder / "notes"), number) for number in range(count)]


def done(folder):
    """Return (number of the work, number of the process) for each piece that is done."""
    path = folder / "notes"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(folder, count):
    end = time.monotonic() + 60
    while len(done(folder)) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_helper_begins_when_this_process_compiles(tmp_path):
    with Helpers() as helpers:
        helpers.begin(work(tmp_path, 2))
        assert not helpers._threads
        compile_something()
        wait_for(tmp_path, 2)
    assert os.getpid() not in dict(done(tmp_path)).values()


def test_all_work_is_done_once(tmp_path):
    needed = work(tmp_path, 50)
    with Helpers() as helpers:
        helpers.begin(needed[:2])
        compile_something()
        wait_for(tmp_path, 1)
        helpers.finish(needed)
        assert sorted(number for number, _ in done(tmp_path)) == list(range(50))
    assert len({process for _, process in done(tmp_path)}) == 2


def test_without_a_helper(tmp_path, monkeypatch):
    monkeypatch.setenv(PROCESSES, "1")
    with Helpers() as helpers:
        helpers.begin(work(tmp_path, 2))
        compile_something()
        helpers.finish(work(tmp_path, 4)[1:])
    assert not helpers._threads
    assert done(tmp_path) == [(number, os.getpid()) for number in (1, 2, 3)]  # the first one was not needed


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a script")
@pytest.mark.parametrize("script", [None, "exit 0", "head -c 1 >/dev/null", "exec sleep 2"])
@pytest.mark.by_default(2)
def test_a_helper_that_fails(script, tmp_path, monkeypatch):
    """There is none, it ends at once or after one piece of work, or it hangs."""
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr(helpers_module, "_PATIENCE", 0.1)
    monkeypatch.setattr(sys, "executable", str(python))
    first, *others = work(tmp_path, 4)
    with Helpers() as helpers:
        helpers.begin([first])
        compile_something()
        helpers.finish([*others, first])
    assert done(tmp_path) == [(number, os.getpid()) for number in (1, 2, 3, 0)]


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a script")
@pytest.mark.parametrize("script", ["exit 0", "echo hello; exec sleep 1000", "exec sleep 1000"])
@pytest.mark.by_default(1)
def test_a_helper_that_fails_is_not_started_again(script, tmp_path, monkeypatch):
    """Not by any session of the process. Nobody waits for one that is not ready."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho >>{tmp_path}/started\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(helpers_module, "_START", 0.5, raising=False)
    monkeypatch.setattr(sys, "executable", str(python))
    begin = time.monotonic()
    for _ in range(3):
        with Helpers() as helpers:
            helpers.begin(work(tmp_path, 1))
            compile_something()
            for thread in helpers._threads:
                thread.join(20)
            compile_something()
            helpers.finish(work(tmp_path, 2))
    assert time.monotonic() - begin < 20
    assert (tmp_path / "started").read_text() == "\n"
    assert done(tmp_path) == [(number, os.getpid()) for number in (0, 1) * 3]


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a script")
def test_a_helper_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    begin = time.monotonic()
    with Helpers() as helpers:
        helpers.begin(work(tmp_path, 1))
        compile_something()
        time.sleep(0.2)
        helpers.finish(work(tmp_path, 1))
    assert time.monotonic() - begin < 20
    assert done(tmp_path) == [(0, os.getpid())]


def test_a_helper_that_hangs_is_told(tmp_path, monkeypatch, caplog):
    """The program is Python, and its work takes too long."""
    monkeypatch.setattr(helpers_module, "_PATIENCE", 0.2)
    monkeypatch.setattr(helpers_module, "_failed", set(), raising=False)
    slow = (time.sleep, 1.5)
    with Helpers() as helpers:
        helpers.begin([slow, *work(tmp_path, 1)])
        compile_something()
        while slow not in helpers._taken:
            time.sleep(0.01)
        helpers.finish([slow])
        assert f"a helper process did not answer for 0 s: {sys.executable}" in caplog.text
    with Helpers() as helpers:
        helpers.begin(work(tmp_path, 1))
        compile_something()
        assert not helpers._threads


CHANGES = """
import os, sys
import onnx, onnxruntime, numba, onnx_ir, pickle, socket, subprocess, tempfile, secrets
from quark_numba import InferenceSession
import quark_numba.ort.ahead
os.chdir(sys.argv[1])
sys.path.append("relative")
InferenceSession(sys.argv[2])
"""


@pytest.mark.compiled
@pytest.mark.slow
def test_a_helper_imports_nothing_from_the_current_folder(tmp_path):
    """A program that came by -c has the current folder among those of modules, and may change it."""
    evil, ran = tmp_path / "evil", tmp_path / "ran"
    (evil / "relative").mkdir(parents=True)
    for folder in (evil, evil / "relative"):
        for name in ("pickle", "socket", "subprocess", "tempfile", "secrets", "numpy", "numba", "quark_numba"):
            (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\nraise ImportError")
    command = [sys.executable, "-c", CHANGES, evil, MODELS / "textline_cls_bf16.onnx"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), PROCESSES: "3"}
    root = os.path.dirname(os.path.dirname(quark_numba.__file__))  # the package is found without the current folder, too
    subprocess.run(command, env=environment | {"PYTHONPATH": root}, cwd=tmp_path, check=True)
    assert not ran.exists()


def test_the_folders_of_modules(monkeypatch):
    """Relative ones are left out. That of the package comes first if it was found by one of them."""
    own, here = os.path.dirname(os.path.dirname(quark_numba.__file__)), os.path.abspath("here")
    monkeypatch.setattr(sys, "path", ["", here, ".", "there", own, "../elsewhere"])
    assert helpers_module._folders(own) == [here, own]
    monkeypatch.setattr(sys, "path", ["", here])
    assert helpers_module._folders(own) == [own, here]


def test_a_program_without_a_folder(monkeypatch):
    """It would be looked for in the current folder."""
    monkeypatch.setattr(sys, "executable", "python3")
    assert most_helpers() == 0


def test_work_that_fails(tmp_path):
    """The others are done all the same. The error comes where the function is needed."""
    wrong = (os.mkdir, str(tmp_path / "missing" / "folder"))
    with Helpers() as helpers:
        helpers.begin([wrong, *work(tmp_path, 2)])
        compile_something()
        wait_for(tmp_path, 2)
        helpers.finish([wrong, (os.mkdir, str(tmp_path)), *work(tmp_path, 3)])
    assert sorted(number for number, _ in done(tmp_path)) == [0, 1, 2]


def test_what_has_not_begun_is_forgotten(tmp_path):
    with Helpers() as helpers:
        helpers.begin(work(tmp_path, 3))
    compile_something()
    assert not helpers._threads
    assert not cache.before_compiling
    assert not done(tmp_path)


def test_a_child_of_fork_starts_none(tmp_path):
    with Helpers() as helpers:
        helpers.begin(work(tmp_path, 1))
        helpers._process += 1  # as if a fork had copied it
        compile_something()
        assert not helpers._threads


def test_the_limit_is_of_the_process(tmp_path):
    """Sessions that are created at the same time have one helper together."""
    with Helpers() as one, Helpers() as other:
        one.begin([(time.sleep, 0.2), *work(tmp_path, 1)])
        other.begin(work(tmp_path, 2)[1:])
        compile_something()
        other.finish(work(tmp_path, 2)[1:])
        one.finish(work(tmp_path, 1))
    assert len(one._threads) == 1
    assert not other._threads
    assert len(done(tmp_path)) == 2


def test_work_that_is_not_needed_is_not_waited_for(tmp_path):
    with Helpers() as helpers:
        helpers.begin([*work(tmp_path, 1), (time.sleep, 50)])
        compile_something()
        wait_for(tmp_path, 1)
        begin = time.monotonic()
        helpers.finish(work(tmp_path, 1))
        assert time.monotonic() - begin < 40


def most_helpers():
    return Helpers()._most


def test_processes_of_a_pool_have_no_helpers(monkeypatch):
    assert most_helpers() == 1
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(most_helpers).result() == 0
    monkeypatch.setattr(sys, "executable", "an_application")
    assert most_helpers() == 0


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_processes(wrong, monkeypatch):
    monkeypatch.setenv(PROCESSES, wrong)
    with pytest.raises(ModelError, match=f"{PROCESSES} is '{wrong}'; expected a number of processes"):
        Helpers()


@pytest.mark.compiled
@pytest.mark.slow
def test_a_first_session(tmp_path):
    """The process of the session compiles less than all that the session needs, and no helper is left."""
    run(
        f"""
import logging, pathlib, subprocess
compiled = []
from quark_numba.compiling import cache
cache._log.setLevel(logging.INFO)
cache._log.addFilter(lambda record: compiled.append(record.args[0]))
started = []
popen = subprocess.Popen
subprocess.Popen = lambda *arguments, **named: started.append(popen(*arguments, **named)) or started[-1]
model = {str(MODELS / "textline_cls_bf16.onnx")!r}
quark_numba.InferenceSession(model)
kept = {{path.name.rsplit("_", 1)[0] for path in pathlib.Path({str(tmp_path)!r}).rglob("*.kernel")}}
assert compiled and set(compiled) < kept, (compiled, kept)
assert [process.poll() is None for process in started] == [False]
""",
        NUMBA_CACHE_DIR=str(tmp_path),
        PYTHONWARNINGS="error",
    )
