"""Helpers of processes that begin, live and end in odd ways: helpers do not survive or hang, and do not run or write anything
that their process would not."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest
from marks import sizes

from quark_numba.compiling.helpers import PACKAGES, PROCESSES

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

MARK = "MARK_OF_A_TEST"

# `go` returns how many helpers there were, and their exit codes.
PROGRAM = """
import os, signal, sys, threading, time
from quark_numba.compiling import cache, helpers

NAP, SLEEP = [helpers.Call(time.sleep, (0.1,))] * 2, [helpers.Call(time.sleep, (1000,))] * 2

def go(calls=NAP, fork=False):
    with helpers.Helpers(calls) as running:
        for each in [*cache.before_compiling]:
            each()
        if fork and not os.fork():
            time.sleep(1000)
        print("started", flush=True)
        for thread in running._threads:
            running._calls.put(None)
        for thread in running._threads:
            thread.join(helpers._PATIENCE)
        running.finish([])
        return len(running._helpers), [each.returncode for each in running._helpers]

def report():
    with open({path!r}, "w") as file:
        file.write(repr(go()))
"""


def environment(mark):
    folders = filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")])  # an empty one would be the current folder
    return os.environ | {PROCESSES: "3", MARK: mark, "PYTHONPATH": os.pathsep.join(folders)}


def left(mark, seconds=20):
    """Return the command lines of processes with the mark that have not ended after some seconds."""
    end = time.monotonic() + seconds
    while (commands := [*running(mark)]) and time.monotonic() < end:
        time.sleep(0.05)
    return commands


def running(mark):
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ", "rb") as variables, open(f"/proc/{number}/cmdline", "rb") as command:
                if f"{MARK}={mark}".encode() in variables.read():
                    yield int(number), command.read()[-60:]
        except OSError:  # it has ended, or is somebody else's
            continue


@pytest.fixture
def mark():
    """The mark of the processes of a test, all of which have to end."""
    value = uuid.uuid4().hex
    yield value
    survivors = left(value)
    for number, _ in survivors:
        os.kill(number, signal.SIGKILL)
    assert not survivors


def ignore_ends():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def close_all():
    for number in range(3):
        os.close(number)


REAPS = """
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
"""

WAYS = {
    "-c": ("report()", None),
    "on the standard input": ("report()", None),
    "streams closed before": ("print = lambda *_, **__: None; report()", close_all),
    "streams closed later": ("[os.close(n) for n in range(3)]; print = lambda *_, **__: None; report()", None),
    "the ends of children ignored": ("report()", ignore_ends),
    "the ends of children taken by others": (f"{REAPS}\nreport()", None),
    "in a thread": ("thread = threading.Thread(target=report, daemon=True); thread.start(); thread.join()", None),
    "in a fork": ("go(); os.fork() and os.wait() or report()", None),
    "at the end": ("import atexit; atexit.register(report)", None),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.by_default(1)
def test_helpers_work(way, mark, tmp_path):
    code, before = WAYS[way]
    code = PROGRAM.format(path=str(tmp_path / "out")) + code
    given = {"args": [sys.executable, "-c", code]}
    if way == "on the standard input":
        given = {"args": [sys.executable, "-"], "input": code.encode()}
    subprocess.run(**given, env=environment(mark), preexec_fn=before, capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").read_text() == "(2, [0, 0])"


# The script in the place of Python, and what `go` returns.
SCRIPTS = {
    "python-runs-python": ('{python} "$@"', "(2, [0, 0])"),
    "python-becomes-python": ('exec {python} "$@"', "(2, [0, 0])"),
    "python-sleeps": ("exec sleep 1000", "(2, [None, None])"),
    "python-ignores-its-arguments": ("exec {python} -c 'import time; time.sleep(1000)'", "(2, [None, None])"),
}


@pytest.mark.parametrize("executable", [None, "", *SCRIPTS])
@pytest.mark.by_default(1)
def test_another_executable(executable, mark, tmp_path):
    """A process goes on without helpers, or ends them."""
    expected = "(0, [])"
    if executable:
        script = tmp_path / executable
        text, expected = SCRIPTS[executable]
        script.write_text("#!/bin/sh\n" + text.format(python=sys.executable))
        script.chmod(0o755)
        executable = str(script)
    code = PROGRAM.format(path=str(tmp_path / "out")) + f"helpers._PATIENCE = 5; sys.executable = {executable!r}; report()"
    subprocess.run([sys.executable, "-c", code], env=environment(mark), capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").read_text() == expected


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@sizes("count", 1, slow=4, exhaustive=100)
@pytest.mark.by_default(1)
def test_a_process_that_is_killed(number, count, mark):
    """Helpers do not outlive a killed process, at whatever moment it is killed."""
    # Whoever runs the tests may ignore signals, as nohup does, and their children inherit that.
    heed = "signal.signal(signal.SIGINT, signal.default_int_handler); signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    code = f"{PROGRAM.format(path='')}{heed}; print(flush=True); go(SLEEP)"
    rng = random.Random(int(number))
    for _ in range(count):
        with subprocess.Popen(
            [sys.executable, "-c", code], env=environment(mark), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.5))
            process.send_signal(number)
            assert process.wait(60) != 0
        assert not left(mark)


def test_a_killed_process_whose_fork_lives_on(mark):
    """Helpers of a killed process end although its fork has a copy of all open files."""
    code = PROGRAM.format(path="") + "go(SLEEP, fork=True)"
    with subprocess.Popen([sys.executable, "-c", code], env=environment(mark), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        forks = [number for number, command in running(mark) if number != process.pid and b"fork=True" in command]
        process.kill()
        process.stdout.close()
    end = time.monotonic() + 20
    while len(remaining := [number for number, _ in running(mark)]) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    for number in forks:
        os.kill(number, signal.SIGKILL)
    assert remaining == forks
    assert len(forks) == 1


@pytest.mark.parametrize("entry", ["''", "'.'", "'relative'", "pathlib.Path(folder)", "folder.encode()"])
@pytest.mark.by_default(1)
def test_a_helper_imports_what_its_process_would(entry, mark, tmp_path):
    """A helper imports nothing from the current folder. Like Python, it ignores entries of `sys.path` that are not text."""
    evil = tmp_path / "relative"
    evil.mkdir()
    for folder in (tmp_path, evil):
        for name in ("numpy", "numba", "pickle", "socket", "secrets", "sitecustomize", "usercustomize", "encodings"):
            (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise ImportError")
    code = f"""{PROGRAM.format(path=str(tmp_path / "out"))}
import pathlib
folder = {str(evil)!r}
sys.path.insert(0, {entry})
os.chdir({str(tmp_path)!r})
NAP[:] = [helpers.Call(__import__, ("numba",))] * 2
report()
"""
    command = [sys.executable, "-P", "-c", code]
    subprocess.run(command, env=environment(mark), cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").read_text() == "(2, [0, 0])"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("flags", [["-B"], ["-X", "pycache_prefix={elsewhere}"], ["-X", "pycache_prefix=elsewhere"], []])
@pytest.mark.by_default(1)
def test_a_helper_writes_bytecode_where_its_process_would(flags, mark, tmp_path):
    folder, elsewhere = tmp_path / "modules", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "some_module.py").write_text("")
    code = PROGRAM.format(path=str(tmp_path / "out"))
    code += f"sys.path.append({str(folder)!r}); NAP[:] = [helpers.Call(__import__, ('some_module',))] * 2; report()"
    variables = environment(mark)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        variables.pop(name, None)
    command = [sys.executable, *(each.format(elsewhere=elsewhere) for each in flags), "-c", code]
    subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").read_text() == "(2, [0, 0])"
    assert (folder / "__pycache__").exists() == (not flags)
    assert bool([*elsewhere.rglob("some_module*")]) == ("-X" in flags)


def test_a_helper_of_a_process_without_site(mark, tmp_path):
    """`site` imports `sitecustomize`, which such a process does not."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv").rglob("site-packages")
    (packages / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
    code = f"import sys; sys.path[:] = {[each for each in sys.path if each]!r}\n" + PROGRAM.format(path=str(tmp_path / "out"))
    program = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([program, "-S", "-c", f"{code}report()"], env=environment(mark), capture_output=True, timeout=60, check=True)
    assert (tmp_path / "out").read_text() == "(2, [0, 0])"
    assert not (tmp_path / "ran").exists()
