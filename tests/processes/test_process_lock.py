"""Processes that need the same kernels at once: one compiles a kernel, and the others wait for its file."""

import errno
import os
import subprocess
import sys
from contextlib import suppress

import numba
import numpy as np
import pytest
from processes import python, start

from quark_numba.compiling import cache, process_lock
from quark_numba.compiling.array_functions import array_function
from quark_numba.compiling.process_lock import locked

HOLDS = """
import sys
from pathlib import Path
from quark_numba.compiling.process_lock import locked
with locked(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """A function that returns a process, which holds a lock of a folder until it is killed."""
    processes = []

    def held_by_another(name, folder=tmp_path):
        command, pipe = [sys.executable, "-c", HOLDS, str(folder), name], subprocess.PIPE
        processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe))
        assert processes[-1].stdout.readline().strip() == b"held"
        return processes[-1]

    yield held_by_another
    for process in processes:
        end(process)


def end(process):
    process.kill()
    process.communicate()


def takes(folder, name):
    """Return whether another process had the lock first, and whether this process has it then."""
    with locked(folder, name) as has_waited:
        return has_waited, bool(process_lock._held)


def test_a_lock_of_another_process(hold, tmp_path, monkeypatch):
    """A process waits for another's lock with a limit, and the lock is free when its process is killed."""
    process = hold("a")
    with monkeypatch.context() as patch:
        patch.setattr(process_lock, "_PATIENCE", 0.05)
        assert takes(tmp_path, "a") == (True, False)
    monkeypatch.setattr(process_lock, "sleep", lambda _: end(process))
    assert takes(tmp_path, "a") == (True, True)
    assert takes(tmp_path, "a") == (False, True)


def test_another_lock_is_free(hold, tmp_path, monkeypatch):
    hold("a")
    assert takes(tmp_path, "b") == (False, True)


def test_who_holds_a_lock_waits_for_no_other(hold, tmp_path, monkeypatch):
    """Two processes that need each other's lock would wait forever."""
    hold("a")
    monkeypatch.setattr(process_lock, "_PATIENCE", 1e9)
    with locked(tmp_path, "b"):
        assert takes(tmp_path, "a") == (False, True)  # "b"
        assert is_taken(tmp_path, "b")  # closing a second descriptor would free it
    assert not process_lock._held


def is_taken(folder, name):
    """Return whether another process finds a lock taken."""
    code = f"""
from pathlib import Path
from quark_numba.compiling import process_lock
process_lock._PATIENCE = 0.05
with process_lock.locked(Path({str(folder)!r}), {name!r}) as has_waited:
    print(has_waited)
"""
    return python("-P", "-c", code).stdout.strip() == "True"


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("of", ["a pipe", "another user"])
def test_a_file_that_is_not_used(of, tmp_path, monkeypatch):
    """Opening a pipe might wait forever, and another user might keep the locks of a file."""
    if of == "a pipe":
        os.mkfifo(tmp_path / process_lock.FILE)
    else:
        (tmp_path / process_lock.FILE).touch()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert takes(tmp_path, "a") == (False, False)


@pytest.mark.skipif(os.name != "posix", reason="fcntl is of POSIX")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(number, tmp_path, monkeypatch):
    import fcntl

    def refuses(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuses)
    assert takes(tmp_path, "a") == (False, False)


def test_a_folder_that_is_gone(tmp_path):
    assert takes(tmp_path / "none", "a") == (False, False)


def test_the_lock_is_given_back_after_an_error(tmp_path):
    with suppress(ZeroDivisionError), locked(tmp_path, "a"):
        raise ZeroDivisionError
    assert not process_lock._held


def one(x):
    x[0] = 1


@pytest.mark.compiled
@pytest.mark.parametrize("writes", [True, False])
def test_a_kernel_that_another_process_compiles(writes, hold, tmp_path, monkeypatch, caplog):
    """A process waits for the other's file and loads it. If the other ends without a file, the kernel is compiled here."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "location", cache.location.__wrapped__)
    caplog.set_level("INFO")
    signature, x = numba.types.void(numba.float64[::1]), np.zeros(1)
    array_function(one, "one", signature)
    (file,) = cache.files()
    content = file.read_bytes()
    file.unlink()
    process = hold(file.name, file.parent)

    def ends(_):
        if writes:
            file.write_bytes(content)
        end(process)

    monkeypatch.setattr(process_lock, "sleep", ends)
    monkeypatch.setattr(cache, "before_compiling", [lambda: pytest.fail("this starts helpers")])
    caplog.clear()
    array_function(one, "one", signature)(x)
    assert x == 1
    assert ("compiling" in caplog.text) == (not writes)
    assert cache.files() == [file]


SESSIONS = """
import logging
import onnx
from paths import MODELS
from quark_numba.compiling import process_lock
process_lock._PATIENCE = 1e6
logging.basicConfig(filename=LOG, level="INFO")
logging.info("compiling nothing")
session = quark_numba.InferenceSession(MODELS / "textline_cls_mx9.onnx")
"""


@pytest.mark.compiled
@pytest.mark.slow
def test_processes_at_once(tmp_path):
    """Of several processes at once, one compiles each kernel."""
    logs = [tmp_path / f"{number}.log" for number in range(4)]
    started = [
        start(SESSIONS.replace("LOG", repr(str(log))), NUMBA_CACHE_DIR=str(tmp_path), QUARK_NUMBA_COMPILE_PROCESSES="1")
        for log in logs
    ]
    assert [process.wait() for process in started] == [0] * 4
    compiled = [line.split()[1] for log in logs for line in log.read_text().splitlines() if ":compiling " in line]
    compiled = [name for name in compiled if name not in ("nothing", "kernels")]  # words of other messages
    assert compiled
    assert len(compiled) == len({*compiled})
    # The other files are records, and functions that LLVM makes without Numba.
    assert {name.rstrip(",") for name in compiled} <= {path.name.rpartition("_")[0] for path in tmp_path.rglob("*.kernel")}
