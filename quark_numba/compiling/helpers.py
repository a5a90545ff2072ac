"""Helper processes, which compile functions into the cache while this process does something else."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread, Timer
from typing import Any

from ..errors import ModelError
from . import cache
from .lock import created
from .threads import number_of_processors

# The folder that this package is in.
PACKAGES = Path(__file__).parents[2]

# The environment variable with the number of processes that compile at the same time, this one included.
PROCESSES = "QUARK_NUMBA_COMPILE_PROCESSES"

# A helper takes some 200 MB of memory. With a third one, the longest function decides about the time.
_MOST_HELPERS = 2

# After so many seconds a process no longer waits for the other.
_PATIENCE = 60.0

_NAME = "quark_numba helper"

# What a helper writes when it is ready, and the seconds that it may take until then.
_READY, _START = b"quark_numba", 20.0

# The programs that were started as Python and were no helpers. They are not started again.
_failed: set[str] = set()

_log = logging.getLogger(__name__)

# A function and its arguments, which pickle can name. It compiles functions that this process can load from the cache.
Work = tuple[Any, ...]


class Helpers:
    """A context in which helper processes share work.

    They are started when this process is about to compile a function that is not in the cache, and end with the context. They
    take work when they are ready. This process does again what a helper fails at. If it fails, too, the error is raised where
    the function is needed. After a helper has failed, this process starts no more.

    Raises
    ------
    ModelError
        If PROCESSES is no number of processes.
    """

    def __init__(self) -> None:
        self._most = _most_helpers()
        self._process = os.getpid()
        self._waiting: SimpleQueue[Work | None] = SimpleQueue()
        self._taken: set[Work] = set()
        self._done: set[Work] = set()
        self._threads: list[Thread] = []
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._starting: list[subprocess.Popen[bytes]] = []  # those of them that are not ready
        self._is_ended = False

    def __enter__(self) -> Helpers:
        cache.before_compiling.append(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        cache.before_compiling.remove(self._start)

    def begin(self, work: Iterable[Work]) -> None:
        """Begin with work that will probably be needed."""
        for each in work:
            self._waiting.put(each)

    def finish(self, work: Iterable[Work]) -> None:
        """Share the work that is needed, and return when it is done. The work that takes longest has to come first. Other work
        that has not begun is forgotten."""
        needed = [*work]
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        self.begin(each for each in needed if each not in self._taken)
        with suppress(Empty):
            while each := self._waiting.get_nowait():
                self._do_here(each)
        self._end()
        end = time.monotonic() + _PATIENCE
        while self._is_busy_with(needed) and time.monotonic() < end:
            time.sleep(0.005)
        if self._is_busy_with(needed):
            _log.warning("a helper process did not answer for %.0f s: %s", _PATIENCE, sys.executable)
            _failed.add(sys.executable)
        for helper in self._helpers:
            helper.kill()
        for each in needed:
            if each not in self._done:
                self._do_here(each)

    def _do_here(self, work: Work) -> None:
        created(partial(_do, work))
        self._done.add(work)

    def _is_busy_with(self, work: Iterable[Work]) -> bool:
        is_done = self._taken.intersection(work) <= self._done
        return not is_done and any(thread.is_alive() for thread in self._threads)

    def _end(self) -> None:
        self._is_ended = True
        self._waiting.put(None)
        for helper in [*self._starting]:
            helper.kill()

    def _start(self) -> None:
        """Start helpers, at most one for each piece of work. Sessions that are created at the same time share the limit."""
        if self._is_ended or os.getpid() != self._process or sys.executable in _failed:
            return
        running = sum(thread.name == _NAME for thread in threading.enumerate())
        for _ in range(min(self._most - running, self._waiting.qsize())):
            thread = Thread(target=self._share, name=_NAME, daemon=True)
            with suppress(RuntimeError):  # there are too many threads, or the interpreter ends
                thread.start()
                self._threads.append(thread)

    def _take(self) -> Iterator[Work]:
        """Yield work, and wait for more, until the end."""
        with suppress(Empty):
            while (work := self._waiting.get(timeout=_PATIENCE)) and not self._is_ended:
                self._taken.add(work)
                yield work
        self._waiting.put(None)  # for the others

    def _share(self) -> None:
        """Hand work to one helper until there is no more."""
        command, environment = program(f"from {__name__} import serve; serve()")
        is_alive = False
        with (
            suppress(Exception),  # it cannot be started, or it has been ended
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=PACKAGES,
                env=environment | {PROCESSES: "1"},
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
            ) as helper,
        ):
            try:
                is_alive = self._is_ready(helper)
                for each in self._take() if is_alive else ():
                    assert helper.stdin
                    assert helper.stdout
                    is_alive = False
                    helper.stdin.write(pickle.dumps(each))
                    helper.stdin.flush()
                    if not helper.stdout.read(1):
                        break
                    is_alive = True
                    self._done.add(each)
            finally:
                helper.kill()
        if not is_alive and not self._is_ended:
            _failed.add(sys.executable)
            _log.info("a helper process failed, and no more are started: %s", sys.executable)

    def _is_ready(self, helper: subprocess.Popen[bytes]) -> bool:
        """Wait until a helper has begun, and return whether it has. Nobody waits for this."""
        self._starting.append(helper)
        self._helpers.append(helper)
        limit = Timer(_START, helper.kill)
        limit.start()
        if self._is_ended:
            helper.kill()
        try:
            return bool(helper.stdout and helper.stdout.read(len(_READY)) == _READY)
        finally:
            limit.cancel()
            self._starting.remove(helper)


def program(code: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a process that runs Python code with the modules and the cache of this one."""
    # Isolated (-I), it heeds no environment variable of Python's, and has no current folder among those of modules.
    code = f"import sys; sys.path[:] = {_folders(str(PACKAGES))!r}; {code}"
    return [sys.executable, "-I", "-c", code], os.environ | cache.environment()


def _folders(own: str) -> list[str]:
    """Return the folders of modules for a helper: those of this process, without the current one and others that mean something
    else when the current folder is changed. The folder of this package is among them."""
    folders = [each for each in map(str, sys.path) if os.path.isabs(each)]
    return folders if own in folders else [own, *folders]


def _most_helpers() -> int:
    """Return how many helpers this process may start. Processes of a pool start none: they are many already."""
    given = os.environ.get(PROCESSES, "")
    if given and not (given.isdecimal() and int(given)):
        raise ModelError(f"{PROCESSES} is {given!r}; expected a number of processes")
    program = Path(sys.executable or "")
    if parent_process() or getattr(sys, "frozen", False) or not (program.stem.startswith("python") and program.is_absolute()):
        return 0
    return int(given) - 1 if given else min(_MOST_HELPERS, number_of_processors() - 1)


def serve() -> None:
    """Do the work of a helper: call each function that comes, pickled, through the standard input, and write a byte when it has
    returned."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what compilers print is no answer
    os.write(answers, _READY)
    with suppress(EOFError):
        while True:
            _do(pickle.load(sys.stdin.buffer))
            os.write(answers, b".")


def _do(work: Work) -> None:
    function, *arguments = work
    with suppress(Exception):
        function(*arguments)
