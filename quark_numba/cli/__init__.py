"""The command ``quark-numba``, also ``python -m quark_numba``: its subcommands, one file each, its exit codes, and the messages
that kernels are compiled or that memory runs out."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import (
    EnvironmentVariableError,
    MissingPackageError,
    ModelError,
    NotAvailableError,
    missing_packages_are_named,
    reason_of,
)
from ..version import __version__
from . import analyze, arguments, build_library, evaluate, info, optimize, profile, run, types, warmup
from .printing import tell

# In the order of the help. Each has the name of its subcommand, a `PURPOSE`, the function `add_options`, which takes the
# subparser, and the function `action`, which takes the options and returns the exit code. Whatever imports numba, onnx or
# onnxruntime is imported by the action.
_COMMANDS = (run, profile, evaluate, analyze, optimize, build_library, warmup, types, info)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0; 1 if a model or a file cannot be used or a check fails; 130 on Ctrl-C. Exit
    with 2 if arguments are wrong."""
    try:
        parser = argparse.ArgumentParser(
            prog="quark-numba", description="Run models that AMD Quark quantized, in ONNX Runtime."
        )
        parser.add_argument("--version", action="version", version=f"quark-numba {__version__}")
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        for command in _COMMANDS:
            name = command.__name__.rpartition(".")[2].replace("_", "-")
            subparser = commands.add_parser(name, help=command.PURPOSE)
            subparser.set_defaults(action=command.action)
            command.add_options(subparser)
        options = parser.parse_args(words)
        arguments.check(parser, options)
        with warnings.catch_warnings(), _compiling_is_told(), missing_packages_are_named():
            warnings.simplefilter("default")
            warnings.showwarning = lambda message, *_, **__: tell("yellow", "warning", message)
            code: int = options.action(options)
            if sys.stdout:
                sys.stdout.flush()
            return code
    except (ModelError, MissingPackageError, NotAvailableError, EnvironmentVariableError) as error:
        tell("red", "error", error)
        return 1
    except MemoryError as error:
        tell("red", "error", ": ".join(filter(None, ("there is not enough memory", str(error)))))
        return 1
    except OSError as error:  # the output or the cache cannot be written: the disk is full, or the reader has closed the pipe
        is_closed = isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL)
        if not is_closed:
            # An error without a number does not come from the system.
            what = error.filename or ("the output cannot be written" if error.errno else type(error).__name__)
            tell("red", "error", f"{what}: {reason_of(error)}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        # The process ends when the current compilation is finished; another Ctrl-C would not make it faster.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 130


@contextmanager
def _compiling_is_told() -> Iterator[None]:
    """Print the library's warnings, and a message when it first logs that it compiles, because that takes seconds."""

    class Teller(logging.Handler):
        is_told = False

        def emit(self, record: logging.LogRecord) -> None:
            kept_in = getattr(record, "kept_in", None)
            if kept_in is None and record.levelno >= logging.WARNING:
                tell("yellow", "warning", record.getMessage())
            elif kept_in is not None and not self.is_told:
                self.is_told = True
                tell("dim", "first use", f"compiling kernels takes some seconds; they are kept in {kept_in}")

    package, compiling = logging.getLogger("quark_numba"), logging.getLogger("quark_numba.compiling")
    level, handler = compiling.level, Teller()
    package.addHandler(handler)
    compiling.setLevel(logging.INFO)
    try:
        yield
    finally:
        compiling.setLevel(level)
        package.removeHandler(handler)
