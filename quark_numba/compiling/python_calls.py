"""Compiled functions for C that Python calls with its objects. This module does without Numba."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from .cache import find_record, keep_record, load_function, reference_of
from .lifetimes import keep_alive

# The functions of the C API whose addresses compiled code gets, in addition to that of None. Compiled code is kept on disk, so
# it must not contain addresses.
_FUNCTIONS = {
    "incref": "Py_IncRef",
    "save_thread": "PyEval_SaveThread",
    "restore_thread": "PyEval_RestoreThread",
    "as_int": "PyLong_AsLongLong",
    "as_double": "PyFloat_AsDouble",
    "tuple_item": "PyTuple_GetItem",
    "of_bool": "PyBool_FromLong",
    "of_int": "PyLong_FromLongLong",
}
PYTHON = np.dtype([("none", np.int64), *((name, np.int64) for name in _FUNCTIONS)])

# The bytes of the header of an object, which a numpy array's fields follow: the address of the elements, the number of
# dimensions, and the address of these.
HEADER = object.__basicsize__
DATA, DIMENSIONS = HEADER, HEADER + 16

_FASTCALL = 0x80  # METH_FASTCALL: (self, the address of the arguments, their number) -> the result


class _Definition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def _new_record() -> Any:
    record = np.zeros((), PYTHON)
    record["none"] = id(None)
    for field, name in _FUNCTIONS.items():
        record[field] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    return record


_record = _new_record()

# The addresses of the code of functions, for `reference_of`.
_addresses: dict[Callable[..., Any], int] = {}


@functools.cache
def python_function(address: int) -> Callable[..., Any]:
    """Return the Python function whose code is at an address, and is never freed. CPython reads the definition when it frees
    the function, and so after it has cleared this module."""
    definition = keep_alive(_Definition(b"kernel", address, _FASTCALL, None))
    function: Callable[..., Any] = _new_function(ctypes.addressof(definition), _record, None)
    _addresses[function] = address
    return function


def get_or_compile(name: str, create: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function that this package kept under a name, or else what `create` returns, and keep it. `create` imports
    Numba, and calls `python_function`."""
    with suppress(LookupError, OSError, ValueError):
        if reference := find_record(name):
            return python_function(load_function(reference))
    created = create()
    with suppress(LookupError):
        keep_record(name, reference_of(_addresses[created]))
    return created
