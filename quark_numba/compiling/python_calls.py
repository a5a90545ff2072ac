"""Compiled functions for C that Python calls with its objects. This module does without Numba."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from .cache import find_record, keep_record, load_function, reference_of

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

# The functions by their addresses, with what they need. They live as long as the process.
_functions: dict[int, tuple[Callable[..., Any], Any]] = {}


def python_function(address: int, owner: Any = None) -> Callable[..., Any]:
    """Return the Python function that is compiled at an address. `owner` is the object that frees the code."""
    if address not in _functions:
        definition = _Definition(b"kernel", address, _FASTCALL, None)
        function: Callable[..., Any] = _new_function(ctypes.addressof(definition), _record, None)
        _functions[address] = function, (definition, owner)
    return _functions[address][0]


def get_or_compile(name: str, create: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function that this package kept under a name, or else what `create` returns, and keep it. `create` imports
    Numba, and calls `python_function`."""
    with suppress(LookupError, OSError, ValueError):
        if reference := find_record(name):
            return python_function(load_function(reference))
    created = create()
    with suppress(LookupError):
        address = next((address for address, (function, _) in _functions.items() if function is created), 0)
        keep_record(name, reference_of(address))
    return created
