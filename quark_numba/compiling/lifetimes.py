"""The lifetimes of memory and code that C uses by their addresses.

The rule: **what belongs to Python, and whose address C keeps, is passed to ``keep_alive``, and is never freed.** A variable of
a module is not an owner. When the interpreter ends, it clears the modules one after the other, in no order to rely on. Only
then it frees what is left, such as sessions, whose nodes are destroyed by functions at such addresses. `atexit` functions,
daemon threads and forked children use these functions, too; `os._exit` clears nothing.

What is kept, who uses it, and where it is made:

- The code of loaded object files, for kernels and nodes: ``object_files`` keeps LLVM's engine, which owns the code.
- The code of functions that Numba compiled in this process: who takes the `address` of a CFunc keeps the CFunc.
- The PyMethodDef of a function on arrays: CPython reads it when it frees the function (``python_calls``).
- OrtCustomOp structures, with their texts and arrays of types: ONNX Runtime never forgets a domain (``ort.custom_op``).
- The states of nodes, which similar nodes share, and the messages of faults (``ort.custom_op``, ``ort.cached_nodes``).
- Python functions that C calls, and the record of their addresses: compiled functions call them on any thread
  (``ort.python_record``).
- The function that runs a node of the extensions backend, and its record (``ort.extensions_hook``).

Others count references to what they use, or copy it, so this is not kept:

- The record of addresses in Python's C API is the `__self__` of each function on arrays (``python_calls``).
- The interpreter holds the functions that run at forks. C allocated the lock that they take (``lock.thread_states``).
- The system keeps the library of `get_library_path` (``ort.shared_library.load``): ctypes never unloads a library.
- The driver copies the PTX of kernels for GPUs (``ort.cuda``). An OrtValue holds its array. ONNX Runtime itself maps the files
  of cached models. PyTorch holds the functions of ``for_quark`` until its `Library` object ends.
- C allocates the weights of a node that ``prepare`` returns; KernelDestroy frees them (``ort.nodes``)."""

from __future__ import annotations

import ctypes
from typing import TypeVar

T = TypeVar("T")


def keep_alive(value: T) -> T:
    """Return `value`. It is never freed from now on, not even when the interpreter ends, and neither is what it refers to."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    return value
