"""Helper processes, which compile functions into the cache while this process does something else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from multiprocessing import parent_process
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from ..errors import ModelError
from . import cache
from .lock import created
from .threads import number_of_processors

# The environment variable with the number of processes that compile at the same time, this one included.
PROCESSES = "QUARK_NUMBA_COMPILE_PROCESSES"

# A helper takes some 200 MB of memory. With a third one, the longest function decides about the time.
_MOST_HELPERS = 2

# After so many seconds a process no longer waits for the other.
_PATIENCE = 60.0

_NAME = "quark_numba helper"

# A function and its arguments, which pickle can name. It compiles functions that this process can load from the cache.
Work = tuple[Any, ...]


class Helpers:
    """A context in which helper processes share work.

    They are started when this process is about to compile a function that is not in the cache, and end with the context. This
    process does again what a helper fails at. If it fails, too, the error is raised where the function is needed.

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

    def _start(self) -> None:
        """Start helpers, at most one for each piece of work. Sessions that are created at the same time share the limit."""
        if self._is_ended or os.getpid() != self._process:
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
        work = self._take()
        first = next(work, None)
        if first is None:
            return
        # Isolated (-I), it heeds no environment variable of Python's. The folders of modules are those of this process.
        code = f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; from {__name__} import serve; serve()"
        with (
            suppress(Exception),  # it cannot be started, or it has been ended
            subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {PROCESSES: "1"} | cache.environment(),
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
            ) as helper,
        ):
            self._helpers.append(helper)
            assert helper.stdin
            assert helper.stdout
            for each in chain([first], work):
                helper.stdin.write(pickle.dumps(each))
                helper.stdin.flush()
                if not helper.stdout.read(1):
                    break
                self._done.add(each)
            helper.kill()


def _most_helpers() -> int:
    """Return how many helpers this process may start. Processes of a pool start none: they are many already."""
    given = os.environ.get(PROCESSES, "")
    if given and not (given.isdecimal() and int(given)):
        raise ModelError(f"{PROCESSES} is {given!r}; expected a number of processes")
    if parent_process() or getattr(sys, "frozen", False) or not Path(sys.executable or "").stem.startswith("python"):
        return 0
    return int(given) - 1 if given else min(_MOST_HELPERS, number_of_processors() - 1)


def serve() -> None:
    """Do the work of a helper: call each function that comes, pickled, through the standard input, and write a byte when it has
    returned."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what compilers print is no answer
    with suppress(EOFError):
        while True:
            _do(pickle.load(sys.stdin.buffer))
            os.write(answers, b".")


def _do(work: Work) -> None:
    function, *arguments = work
    with suppress(Exception):
        function(*arguments)
