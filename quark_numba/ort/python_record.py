"""The record of Python functions that compiled functions call (``callbacks``). This module does without Numba."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_int64, c_void_p
from typing import Any

import numpy as np

from ..compiling.lifetimes import keep_alive
from ..compiling.lock import thread_states
from .c_api import text_at

# Functions of the C API of Python. The first one is private before Python 3.13.
_IS_FINALIZING = "Py_IsFinalizing" if hasattr(ctypes.pythonapi, "Py_IsFinalizing") else "_Py_IsFinalizing"
_PYTHON_API = (
    _IS_FINALIZING,
    *("PyGILState_Check", "PyEval_SaveThread", "PyEval_RestoreThread"),
    *("PyThread_allocate_lock", "PyThread_acquire_lock", "PyThread_release_lock", "PyThread_free_lock"),
    *("PyThread_start_new_thread", "PyInterpreterState_Main"),
    *("PyThreadState_New", "PyThreadState_Clear", "PyThreadState_DeleteCurrent"),
    "PyThread_get_thread_ident",
)

# The addresses of the functions that are called for Python. Compiled code is kept on disk, so it must not contain addresses: it
# gets the address of such a record. Here and below an address is an int64.
_OURS = ("run_work", "thread_states", "message", "register", "create", "infer")
PYTHON = np.dtype([(name, np.int64) for name in ("is_finalizing", *_PYTHON_API[1:], *_OURS)])

# A Python function in the record PYTHON: (four words, address of is_done) -> an OrtStatus.
PythonFunction = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_int64))


def python_functions(run_work: int, **functions: Callable[[int, int, int, int, Any], int | None]) -> int:
    """Return the address of a new record PYTHON with these functions. `run_work` is the address of the compiled function."""
    record = keep_alive(np.zeros((), PYTHON))
    fill(record, _PYTHON_API)
    record["run_work"], record["thread_states"] = run_work, thread_states
    record["message"] = text_at(b"quark_numba: a Python function did not finish")
    for name, function in functions.items():
        record[name] = ctypes.cast(keep_alive(PythonFunction(function)), c_void_p).value
    return int(record.ctypes.data)


def fill(record: Any, names: Sequence[str]) -> None:
    """Write the addresses of functions of the C API of Python into a record."""
    for name in names:
        field = "is_finalizing" if name == _IS_FINALIZING else name
        record[field] = ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value
