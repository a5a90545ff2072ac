"""Functions that are called in a child process, whose end or silence is a finding."""

import contextlib
import multiprocessing
import os
import queue
import tempfile
from concurrent.futures import ThreadPoolExecutor

# The address space of a child. A model with huge dimensions must not take all memory of the machine.
_MEMORY = 12 << 30


def _serve(connection, function, errors):
    """Call the function with arguments from a connection until it is closed. What libraries print goes to a file."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no limits, and some systems refuse this one
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with open(errors, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with contextlib.suppress(EOFError):
        while True:
            argument, found = connection.recv(), []
            for step in function(argument, found):
                connection.send(step)
            connection.send(found)


class Child:
    """A child process that calls `function`, and another one after its end.

    ``function(argument, found)`` yields the name of each step before it takes it, and appends findings, as text, to the list
    `found`. A step may take `seconds`."""

    def __init__(self, function, seconds):
        self.function, self.seconds = function, seconds
        file, self.errors = tempfile.mkstemp(suffix=".txt")
        os.close(file)
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.connection.close()
        self.process.kill()
        self.process.join()
        os.unlink(self.errors)

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.function, self.errors))
        self.process.start()
        other.close()

    def call(self, argument):
        """Return the findings of a call. If the process ends or hangs, that is the finding, with the step."""
        found, step, end = self.outcome(argument)
        return [f"{step}: {': '.join(end)}"] if end else found

    def outcome(self, argument):
        """Return the findings of a call, the last step, and None. If the process ends or hangs, return None, the step, and what
        happened, with its circumstances."""
        step, size = "start", os.path.getsize(self.errors)
        try:
            self.connection.send(argument)
            while self.connection.poll(self.seconds):
                result = self.connection.recv()
                if isinstance(result, list):
                    return result, step, None
                step = result
            end = "hang", f"{self.seconds} seconds"
        except (EOFError, OSError):
            self.process.join()
            with open(self.errors, "rb") as file:
                file.seek(size)
                printed = file.read()[-500:].decode(errors="replace").strip()
            end = "end of the process", f"exit code {self.process.exitcode}: {printed}"
        self.process.kill()
        self.process.join()
        self.connection.close()
        self._start()
        return None, step, end


def on_threads(count, make, use, arguments):
    """Call ``use(child, argument)`` for each argument, on threads with a child each, which `make` returns."""
    waiting = queue.SimpleQueue()
    for each in arguments:
        waiting.put(each)

    def work(_):
        with make() as child, contextlib.suppress(queue.Empty):
            while True:
                use(child, waiting.get_nowait())

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))
