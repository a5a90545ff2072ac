"""Helper processes, which compile functions into the cache while this process does something else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
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

from . import cache
from .lock import created

# The environment variable with the number of processes that compile at the same time, this one included.
PROCESSES = "QUARK_NUMBA_COMPILE_PROCESSES"

# A helper takes some 200 MB of memory. With a third one, the longest function decides about the time.
_MOST_HELPERS = 2

# The seconds for which this process waits for a helper when it has nothing else to do. No function takes as long to compile.
_PATIENCE = 60.0

# A function and its arguments, which pickle can name. It compiles functions that this process can load from the cache.
Work = tuple[Any, ...]


class Helpers:
    """A context in which helper processes share work.

    They are started when this process is about to compile a function that is not in the cache, and end with the context. A
    failure has no consequence: what was not compiled is compiled when it is needed, and fails there.

    Raises
    ------
    ValueError
        If PROCESSES is no number of processes.
    """

    def __init__(self) -> None:
        self._most = _most_helpers()
        self._waiting: SimpleQueue[Work | None] = SimpleQueue()
        self._taken: set[Work] = set()
        self._threads: list[Thread] = []

    def __enter__(self) -> Helpers:
        cache.before_compiling.append(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        cache.before_compiling.remove(self._start)
        self._forget()
        self._end()

    def begin(self, work: Iterable[Work]) -> None:
        """Begin with work that will probably be needed."""
        for each in work:
            self._waiting.put(each)

    def finish(self, work: Iterable[Work]) -> None:
        """Share work that is needed, the longest first, and return when all of it is done. Other work that has not begun is
        forgotten."""
        self._forget()
        self.begin(each for each in work if each not in self._taken)
        with suppress(Empty):
            while (each := self._waiting.get_nowait()) is not None:
                created(partial(_do, each))
        self._end()
        end = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _take(self) -> Iterator[Work]:
        """Yield work, and wait for more, until the end."""
        for work in iter(self._waiting.get, None):
            self._taken.add(work)
            yield work

    def _forget(self) -> None:
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()

    def _end(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)

    def _start(self) -> None:
        """Start helpers, at most one for each piece of work."""
        for _ in range(min(self._most - len(self._threads), self._waiting.qsize())):
            thread = Thread(target=self._share, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _share(self) -> None:
        """Hand work to one helper until there is no more."""
        work = self._take()
        first = next(work, None)
        if first is None:
            return
        # The folders of this process's modules may be in no variable of the environment.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        with (
            suppress(OSError),  # it cannot be started, or it has been ended
            subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {PROCESSES: "1"},
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # of Windows
            ) as helper,
        ):
            assert helper.stdin
            assert helper.stdout
            for each in chain([first], work):
                helper.stdin.write(pickle.dumps(each))
                helper.stdin.flush()
                if not helper.stdout.read(1):
                    break
            helper.kill()


def _most_helpers() -> int:
    """Return how many helpers this process may start. Processes of a pool or a cluster start none: they are many already."""
    given = os.environ.get(PROCESSES, "")
    if given and not (given.isdecimal() and int(given)):
        raise ValueError(f"{PROCESSES} is {given!r}; expected a number of processes")
    if parent_process() or getattr(sys, "frozen", False) or not Path(sys.executable or "").stem.startswith("python"):
        return 0
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(given) - 1 if given else min(_MOST_HELPERS, cpus - 1)


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
