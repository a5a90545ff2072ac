"""Helper processes, which compile side by side with the process of a session."""

import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import onnx
import pytest
from onnx import helper
from paths import MODELS
from processes import note, run

import quark_numba
from quark_numba.compiling import cache
from quark_numba.compiling import helpers as helpers_module
from quark_numba.compiling.helpers import PROCESSES, Call, Helpers
from quark_numba.errors import EnvironmentVariableError
from quark_numba.ort import ahead
from quark_numba.region.key import parse


@pytest.fixture(autouse=True)
def _two_processes(monkeypatch):
    monkeypatch.setenv(PROCESSES, "2")
    monkeypatch.setattr(helpers_module, "_failed", set())
    monkeypatch.setattr(helpers_module, "_running", [])
    yield
    assert all(helper.poll() is not None for helper in helpers_module._running)
    assert not cache.before_compiling


def compile_something():
    """Call what this process calls before it compiles a function that is not in the cache."""
    for each in [*cache.before_compiling]:
        each()


def calls(folder, count):
    """Return calls that note their numbers and the number of the process in a file."""
    return [Call(note, (str(folder / "notes"), number)) for number in range(count)]


HANGS = Call(time.sleep, (1000,))


def done(folder):
    """Return (number of the statement, number of the process) for each that was run."""
    path = folder / "notes"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("processes", [2, 3])
def test_all_calls_are_made_once(processes, tmp_path, monkeypatch):
    monkeypatch.setenv(PROCESSES, str(processes))
    with Helpers(calls(tmp_path, 5)) as helpers:
        assert not helpers_module._running
        compile_something()
        compile_something()
        assert len(helpers_module._running) == processes - 1
        helpers.finish([])
    assert sorted(number for number, _ in done(tmp_path)) == [0, 1, 2, 3, 4]


def test_all_processes_make_calls(tmp_path):
    """A call that comes later is made by a helper that waits, and by this process meanwhile."""
    pause = Call(time.sleep, (0.2,))
    with Helpers(calls(tmp_path, 1)) as helpers:
        compile_something()
        while not done(tmp_path):
            time.sleep(0.01)
        helpers.finish([*calls(tmp_path, 1), *[pause, *calls(tmp_path, 1)] * 10])
    assert len(done(tmp_path)) == 12
    assert len({process for _, process in done(tmp_path)}) == 2


def test_without_a_helper(tmp_path, monkeypatch):
    monkeypatch.setenv(PROCESSES, "1")
    with Helpers(calls(tmp_path, 2)) as helpers:
        compile_something()
        helpers.finish(calls(tmp_path, 1))
    assert not done(tmp_path)


def test_nothing_is_started_unless_this_process_compiles(tmp_path):
    with Helpers(calls(tmp_path, 3)):
        pass
    compile_something()
    assert not done(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a script")
@pytest.mark.parametrize("script", [None, "exit 1", "exec sleep 1000"])
def test_a_helper_that_fails_is_not_started_again(script, tmp_path, monkeypatch, caplog):
    """A helper cannot be started, ends at once, or hangs. No session of the process starts it again, and a warning says so."""
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\necho >>{tmp_path}/started\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr(helpers_module, "_PATIENCE", 0.4)
    monkeypatch.setattr(sys, "executable", str(python))
    for _ in range(3):
        with Helpers(calls(tmp_path, 1)) as helpers:
            compile_something()
            helpers.finish([])
    if script:
        assert (tmp_path / "started").read_text() == "\n"
        assert f"a helper process failed, or took more than 0 s; no more are started: {python}" in caplog.text


@pytest.mark.compiled
def test_a_model_without_regions_does_not_wait():
    begin = time.monotonic()
    with Helpers([HANGS]) as helpers:
        compile_something()
        ahead.finish(helpers, onnx.ModelProto())
    assert time.monotonic() - begin < 40


def test_a_helper_ends_with_the_session(tmp_path):
    """An error, or a signal handler's exception, ends the session before the helper is done."""
    with Helpers([HANGS]):
        compile_something()
        (helper,) = helpers_module._running
        assert helper.poll() is None
    assert helper.poll() is not None


def test_a_helper_that_starts_too_late_is_ended(tmp_path):
    """A helper that starts after the context has ended, because another thread compiles, is ended."""
    with Helpers([HANGS]) as helpers:
        start = helpers._start
    start()
    (helper,) = helpers_module._running
    assert helper.poll() is not None
    with Helpers(calls(tmp_path, 1)) as helpers:
        compile_something()
        helpers.finish([])
    assert len(done(tmp_path)) == 1


def test_a_child_of_fork_starts_none(tmp_path):
    with Helpers(calls(tmp_path, 1)) as helpers:
        helpers._process += 1  # as if a fork had copied it
        compile_something()
        assert not helpers_module._running


PARENT = """
import sys, time
from quark_numba.compiling import cache, helpers
with helpers.Helpers([helpers.Call(time.sleep, (1000,))]):
    cache.before_compiling[0]()
    print(helpers._running[0].pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX's signals")
def test_a_helper_does_not_survive_a_killed_process():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        helper = int(parent.stdout.readline())
        parent.kill()
    for _ in range(600):
        try:
            os.kill(helper, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("the helper is running")


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
    """Relative folders are left out. That of the package comes first if a relative folder led to it."""
    own, here = os.path.dirname(os.path.dirname(quark_numba.__file__)), os.path.abspath("here")
    monkeypatch.setattr(sys, "path", ["", here, ".", "there", own, "../elsewhere"])
    assert helpers_module._folders(own) == [here, own]
    monkeypatch.setattr(sys, "path", ["", here])
    assert helpers_module._folders(own) == [own, here]


def test_a_program_without_a_folder(monkeypatch):
    """A program that is named without a folder is not started: it would be looked for in the current folder."""
    monkeypatch.setattr(sys, "executable", "python3")
    assert most_helpers() == 0


def test_a_call_that_fails(tmp_path, caplog):
    with Helpers([Call(int, ("none",))]) as helpers:
        compile_something()
        (thread,) = helpers._threads
        thread.join()
        helpers.finish([])
    assert "a helper process failed" in caplog.text


def test_the_limit_is_of_the_process(tmp_path):
    """Sessions that are created at the same time have one helper together."""
    with Helpers([Call(time.sleep, (0.2,)), *calls(tmp_path, 1)]) as one, Helpers(calls(tmp_path, 2)) as other:
        compile_something()
        assert len(helpers_module._running) == 1
        other.finish([])
        one.finish([])
    assert len(done(tmp_path)) == 3


def most_helpers():
    return helpers_module._most_helpers()


def test_processes_of_a_pool_have_no_helpers(monkeypatch):
    assert most_helpers() == 1
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(most_helpers).result() == 0
    monkeypatch.setattr(sys, "executable", "an_application")
    assert most_helpers() == 0


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_processes(wrong, monkeypatch):
    monkeypatch.setenv(PROCESSES, wrong)
    with pytest.raises(EnvironmentVariableError, match=f"{PROCESSES} is '{wrong}'; expected a number of processes"):
        ahead.helpers(onnx.ModelProto())


PROGRAM = "region (float x0) => (float y) {\n  y = Abs (x0)\n}"


@pytest.mark.compiled
def test_what_the_nodes_of_a_model_need(monkeypatch):
    """The functions of convolutions, which take long, come first. Each program and each family counts once. What is in the
    cache is left out: a later session does not even import Numba."""
    nodes = [helper.make_node("Region", ["x"], [y], domain="quark_numba", program=PROGRAM) for y in "ab"]
    nodes += [helper.make_node("IntegerConv", ["b", "w", "s", "t"], [y], domain="quark_numba", lanes=8) for y in "cd"]
    model = helper.make_model(helper.make_graph([*nodes, helper.make_node("Abs", ["d"], ["y"])], "g", [], []))
    monkeypatch.setattr(ahead, "is_kept", lambda name, module: False)
    calls = [*ahead._calls(model)]
    assert calls == [
        Call(ahead.compile_states, ("quark_numba", "IntegerConv", {"lanes": 8})),
        Call(ahead.compile_region, (PROGRAM.encode(),)),
        Call(ahead.compile_node, ("region",)),
        Call(ahead.compile_node, ("convolution",)),
    ]
    for call in calls:
        compile(call.statement, "statement", "exec")
    calls[1].function(*calls[1].arguments)
    assert cache.is_kept(parse(PROGRAM).name, "quark_numba.region.kernels")
    monkeypatch.setattr(ahead, "is_kept", lambda name, module: True)
    assert not [*ahead._calls(model)]


def test_what_is_not_valid_is_left_to_the_session():
    ahead.compile_states("quark_numba", "IntegerConv", {"lanes": 3})
    ahead.compile_region(b"no program")
    ahead.compile_node("no family")


@pytest.mark.compiled
@pytest.mark.slow
def test_a_first_session(tmp_path):
    """The process of the session compiles less than all that the session needs, and no helper is left. The helper has started
    before this process compiles anything."""
    run(
        f"""
import logging, pathlib, subprocess
compiled, started = [], []
from quark_numba.compiling import cache
cache._log.setLevel(logging.INFO)
note = lambda record: record.levelno == logging.INFO and compiled.append((record.args[0], len(started)))
cache._log.addFilter(note)
popen = subprocess.Popen
subprocess.Popen = lambda *arguments, **named: started.append(popen(*arguments, **named)) or started[-1]
model = {str(MODELS / "textline_cls_bf16.onnx")!r}
quark_numba.InferenceSession(model)
kept = {{path.name.rsplit("_", 1)[0] for path in pathlib.Path({str(tmp_path)!r}).rglob("*.kernel")}}
assert compiled[0][1] == 1
assert set(dict(compiled)) < kept, (compiled, kept)
assert [process.poll() is None for process in started] == [False]
""",
        NUMBA_CACHE_DIR=str(tmp_path),
        PYTHONWARNINGS="error",
    )
