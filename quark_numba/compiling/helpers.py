"""Helper processes, which compile functions into the cache while this process works on something else: how many there are, when
none start, and how long this process waits for them."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple

from . import cache
from .lock import has_green_threads
from .threads import number_of_processors

# The folder or archive that this package is in, and a folder in which processes that use it may start.
PACKAGES = Path(__file__).parents[2]
PLACE = PACKAGES if PACKAGES.is_dir() else PACKAGES.parent

# The environment variable with the number of processes that compile at the same time, this one included.
PROCESSES = "QUARK_NUMBA_COMPILE_PROCESSES"

# The largest number of helpers. Each takes some 200 MB of memory.
_MOST = 2

# The seconds after which this process stops waiting for the others.
_PATIENCE = 60.0

# What a helper does: it runs each line that it reads, and then writes a byte. It ends when this process has closed the other
# end of the pipe, as it does if it is killed.
_LOOP = """
import os, queue, sys, threading
lines = queue.SimpleQueue()
def read():
    for line in sys.stdin:
        lines.put(line)
    os._exit(1)
threading.Thread(target=read, daemon=True).start()
while True:
    exec(lines.get())
    os.write(1, b".")
"""

# Python executables that failed as helpers. They are not started again.
_failed: set[str] = set()

# The helpers that were started last. While one of them is running, sessions of other threads start no helpers.
_running: list[subprocess.Popen[bytes]] = []

_log = logging.getLogger(__name__)


class Call(NamedTuple):
    """A call of a function of a module, which compiles something into the cache."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # literals

    @property
    def statement(self) -> str:
        """The call, as a line of Python."""
        module, name = self.function.__module__, self.function.__name__
        return f"from {module} import {name}; {name}(*{self.arguments!r})\n"


class Helpers:
    """A context in which other processes make calls that compile functions into the cache.

    They start when this process is about to compile a function that is not in the cache, and end with the context. If a helper
    fails, this process compiles the missing functions when it needs them, and starts no more helpers.

    Parameters
    ----------
    calls : sequence of Call
        A helper that is free makes the first call that is left.

    Raises
    ------
    ValueError
        If PROCESSES is not a number of processes.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()  # None ends a thread
        for call in calls:
            self._calls.put(call)
        self._most = _most_helpers()
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._process, self._has_ended = os.getpid(), False

    def __enter__(self) -> Helpers:
        cache.before_compiling.append(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        cache.before_compiling.remove(self._start)
        self._has_ended = True
        for helper in self._helpers:
            _end(helper)

    def _start(self) -> None:
        """Start helpers for the calls that are left, unless some have been started."""
        # In a fork, nothing would end them.
        if self._helpers or os.getpid() != self._process or sys.executable in _failed:
            return
        if any(helper.poll() is None for helper in _running):
            return
        _running.clear()
        for _ in range(min(self._most, _MOST, self._calls.qsize())):
            command, environment = program(_LOOP)
            with suppress(OSError):  # it cannot be started
                helper = subprocess.Popen(
                    command,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    cwd=PLACE,
                    env=environment | {PROCESSES: "1"},
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
                )
                self._helpers.append(helper)
                _running.append(helper)
                if self._has_ended:  # meanwhile, in another thread
                    _end(helper)
                    return
                self._threads.append(threading.Thread(target=self._serve, args=(helper,), daemon=True))
                self._threads[-1].start()

    def _serve(self, helper: Any) -> None:
        """Let a helper make calls, until it fails or no more are to come. Then it ends."""
        with suppress(OSError, ValueError):  # it has ended, and the pipes are closed
            while call := self._calls.get():
                helper.stdin.write(call.statement.encode())
                if not helper.stdout.read(1):
                    break
            else:
                helper.stdin.write(b"os._exit(0)\n")
        helper.wait()

    def finish(self, calls: Iterable[Call]) -> None:
        """Make these calls, too: in the helpers, and at the same time in this process. Return when all calls are made. If no
        helpers may run, return at once: this process compiles a function when it needs it."""
        if not self._most:
            return
        for call in calls:
            self._calls.put(call)
        with suppress(queue.Empty):
            while own := self._calls.get_nowait():
                own.function(*own.arguments)
        for _ in self._threads:
            self._calls.put(None)
        end = time.monotonic() + _PATIENCE
        for thread, helper in zip(self._threads, self._helpers, strict=True):
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive() or helper.returncode != 0:
                message = "a helper process failed, or took more than %.0f s; no more are started: %s"
                _log.warning(message, _PATIENCE, sys.executable)
                _failed.add(sys.executable)


def _end(helper: Any) -> None:
    helper.kill()
    helper.wait()
    for pipe in (helper.stdin, helper.stdout):
        pipe.close()


def _close_in_fork() -> None:
    """Close the ends of the pipes in a fork. Otherwise the helpers would take the fork for this process, and outlive this
    one."""
    for helper in _running:
        if helper.stdin:
            helper.stdin.close()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_close_in_fork)


def program(code: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a process that runs Python code with the modules and the cache of this one."""
    # In isolated mode (-I), Python ignores its environment variables, and does not import from the current folder. The process
    # writes bytecode only where this one does, and imports no `sitecustomize` unless this one did.
    options = ["-I", *["-S"] * sys.flags.no_site, *["-B"] * sys.dont_write_bytecode]
    if sys.pycache_prefix:
        options += ["-X", f"pycache_prefix={os.path.abspath(sys.pycache_prefix)}"]
    code = f"import sys; sys.path[:] = {_folders(str(PACKAGES))!r}\n{code}"
    return [sys.executable, *options, "-c", code], os.environ | cache.environment()


def _folders(own: str) -> list[str]:
    """Return the folders from which a helper imports modules: those of this process, except the current folder and relative
    ones, whose meaning depends on the current folder. The folder of this package is among them. Python ignores entries that are
    not text."""
    folders = [each for each in sys.path if isinstance(each, str) and os.path.isabs(each)]
    return folders if own in folders else [own, *folders]


def _most_helpers() -> int:
    """Return how many helpers this process may start. It is 0 for the processes of a pool, which are many already, and for
    processes with green threads, whose `subprocess` runs other green threads while a lock is held."""
    given = os.environ.get(PROCESSES, "")
    if given and not (given.isdecimal() and int(given)):
        raise ValueError(f"{PROCESSES} is {given!r}; expected a number of processes")
    program = Path(sys.executable or "")
    is_python = program.stem.startswith("python") and program.is_absolute() and not getattr(sys, "frozen", False)
    if parent_process() or has_green_threads() or not is_python:
        return 0
    return (int(given) if given else number_of_processors()) - 1
