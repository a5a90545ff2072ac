"""The package's own exceptions, the texts of errors of files and of missing packages (such as onnxruntime), and functions that
let the exceptions of signal handlers through, Ctrl-C among them."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


class ModelError(Exception):
    """The model, or the data or options that it is run with, cannot be used; the message gives the reason."""


class MissingFileError(ModelError, FileNotFoundError):
    """A file does not exist: a model, a file of its tensors, or data."""

    errno = errno.ENOENT


class WriteError(ModelError):
    """A file cannot be written, because the disk is full, for instance."""


class MissingFolderError(WriteError, FileNotFoundError):
    """A file cannot be written, because there is no such folder."""

    errno = errno.ENOENT


class NotAvailableError(RuntimeError):
    """The native backend, or a part of it, does not work in this process; the message gives the reason."""


class MissingPackageError(ModuleNotFoundError):
    """An optional package is not installed. The message says which package to install."""


class EnvironmentVariableError(ValueError):
    """An environment variable of the package has a wrong value; the message names it. No model and no data are at fault."""


# What to install where a module that only parts of the package need is missing.
_PROVIDERS = {
    "onnxruntime": "ONNX Runtime is not installed. One of these packages provides it: onnxruntime (pip install "
    "'quark_numba[onnxruntime]'), onnxruntime-vitisai, onnxruntime-gpu, onnxruntime-directml, onnxruntime-openvino, or another "
    "build for a device; only one of them at a time",
    "onnxruntime_extensions": "onnxruntime-extensions is not installed, which does without the native backend: pip install "
    "'quark_numba[extensions]'",
    "tokenizers": "tokenizers is not installed, which splits texts: pip install 'quark_numba[text]'",
}


def reason_of(error: Exception) -> str:
    """Return the text of an error. For an error of the system this is the text of POSIX, because Windows has other texts, in
    the language of the user."""
    if getattr(error, "winerror", None):
        return os.strerror(error.errno)  # type: ignore[attr-defined]
    return getattr(error, "strerror", None) or str(error)


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with a noun in the singular or plural, for a message: "1 batch", "2 batches"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def file_error(name: object, error: Exception, kind: type[ModelError] = ModelError) -> ModelError:
    """Return an exception of this kind with the name of a file and the text of an error. If the error is a FileNotFoundError,
    so is the exception."""
    if isinstance(error, FileNotFoundError):
        kind = MissingFolderError if issubclass(kind, WriteError) else MissingFileError
    return kind(f"{name}: {reason_of(error)}")


@contextmanager
def missing_packages_are_named() -> Iterator[None]:
    """In the context, let the error of a failed import say which packages provide the missing module."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PROVIDERS:
            raise
        raise MissingPackageError(_PROVIDERS[error.name], name=error.name) from None


def reraise_of_signal_handler(error: BaseException) -> None:
    """Raise the exception of a signal handler, of a time limit for instance, if `error` is that exception or was caused by it.
    Call this before blaming a model or a file for an exception of any kind: the exception of a signal handler says nothing
    about the code that it interrupted."""
    codes = set(_codes_of_handlers())
    chain: BaseException | None = error
    while chain:
        traceback = chain.__traceback__
        while traceback:
            if traceback.tb_frame.f_code in codes:
                raise chain
            traceback = traceback.tb_next
        chain = chain.__cause__ or chain.__context__


@contextmanager
def errors_named(name: str, kind: type[Exception] = ModelError, *, with_type: bool = True) -> Iterator[None]:
    """In the context, turn an exception (from a user's function, a library or an invalid model) into one of `kind`. Its message
    begins with `name` and, if `with_type` is True, the type of the exception. These exceptions are raised unchanged:

    - exceptions of `kind`, and exceptions of signal handlers;
    - the exceptions for a wrong environment variable, a missing package or lack of memory."""
    try:
        yield
    except (kind, MissingPackageError, EnvironmentVariableError, MemoryError):
        raise
    except Exception as error:
        reraise_of_signal_handler(error)
        raise kind(f"{name}: {type(error).__name__ + ': ' if with_type else ''}{error}") from (error if with_type else None)


@contextmanager
def errors_ignored() -> Iterator[None]:
    """In the context, drop every exception except those of signal handlers."""
    try:
        yield
    except Exception as error:
        reraise_of_signal_handler(error)


def _codes_of_handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        for attribute in ("func", "__func__"):  # unwraps a functools.partial and a method
            handler = getattr(handler, attribute, handler)
        if callable(handler) and not hasattr(handler, "__code__"):
            handler = type(handler).__call__
        if hasattr(handler, "__code__"):
            yield handler.__code__


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python's own handler of Ctrl-C (SIGINT) does, but within an import only after the import has
    ended. This is the handler of the command. C++ that is being imported may end the process at an exception (onnx's does), and
    importlib drops an exception in its own callbacks."""
    while frame:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            again = threading.Timer(0.02, _interrupt_main)
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt_main() -> None:
    if hasattr(signal, "pthread_kill"):  # this ends a sleep of the main thread, too
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
    else:
        _thread.interrupt_main()
