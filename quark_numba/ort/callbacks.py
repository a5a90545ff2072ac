"""What ONNX Runtime calls while it loads a model, compiled, so that no signal handler gets in between.

Python runs signal handlers on the main thread, between any two instructions, and they may raise, as that of Ctrl-C does. No
exception gets out of a Python function that C calls: C sees one that returned 0, which means that all went well. Therefore

- functions that tell of an operator read it from memory, behind the OrtCustomOp that they are asked of;
- functions that need Python have it run by another thread, where there are no signal handlers, and wait without Python;
- nodes by way of onnxruntime-extensions run Python where they are called, and run it again if an exception gets out.

Either way the handlers, or what they raised, come when ONNX Runtime has returned to Python.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_int64, c_void_p, py_object
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ..compiling import jit
from ..compiling.intrinsics import array_at, call, record_at, stack
from .c_api import ORT_FAIL, REQUIRED, OrtApi, OrtCustomOp, keep

# Of Python's C API.
_PYTHON_API = (
    "PyGILState_Check",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyThread_allocate_lock",
    "PyThread_acquire_lock",
    "PyThread_release_lock",
    "PyThread_free_lock",
    "PyThread_start_new_thread",
)

# What functions that need Python call. Addresses, int64 here and below, stay out of compiled code, which is kept on disk.
PYTHON = np.dtype([(name, np.int64) for name in (*_PYTHON_API, "run_work", "message", "register", "create", "infer")])

# What the other thread is to do: to call `function` with four words and the address of `is_done`, which it is to set.
_WORK = np.dtype([(name, np.int64) for name in ("function", "a", "b", "c", "d", "status", "is_done", "release_lock", "lock")])
_WORK_WORDS = _WORK.itemsize // 8
_IS_DONE = _WORK.fields["is_done"][1]  # type: ignore[index]

_PYTHON_AT = OrtCustomOp.python.offset
_CREATE_STATUS = int(OrtApi.CreateStatus)

# A Python function of the record PYTHON: (four words, is_done) -> an OrtStatus.
_PythonFunction = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_int64))


def run_work(work_address: int) -> int:
    """What the other thread does."""
    work = record_at(work_address, _WORK)
    work.status = call(work.function, (work.a, work.b, work.c, work.d, work_address + _IS_DONE))
    return call(work.release_lock, (work.lock,))


@jit.function
def _run_elsewhere(python: Any, api: int, function: int, a: int, b: int, c: int, d: int) -> int:
    """The OrtStatus of a Python function that another thread runs. If it does not get to its end, an error; 0 if `api` is."""
    work_address = stack(_WORK_WORDS)
    work = record_at(work_address, _WORK)
    work.function, work.a, work.b, work.c, work.d, work.status, work.is_done = function, a, b, c, d, 0, 0
    has_gil = call(python.PyGILState_Check, (0,)) & 1
    saved = call(python.PyEval_SaveThread, (0,)) if has_gil else 0
    lock = call(python.PyThread_allocate_lock, (0,))
    if lock:
        work.release_lock, work.lock = python.PyThread_release_lock, lock
        call(python.PyThread_acquire_lock, (lock, 1))
        thread = call(python.PyThread_start_new_thread, (python.run_work, work_address))
        if thread & 0xFFFFFFFF != 0xFFFFFFFF:  # PYTHREAD_INVALID_THREAD_ID
            call(python.PyThread_acquire_lock, (lock, 1))  # once that thread has released it
        call(python.PyThread_release_lock, (lock,))
        call(python.PyThread_free_lock, (lock,))
    if has_gil:
        call(python.PyEval_RestoreThread, (saved,))
    if api and work.status == 0 and work.is_done == 0:
        return call(array_at(api, _CREATE_STATUS + 1, np.int64)[_CREATE_STATUS], (ORT_FAIL, python.message))
    return work.status


def register(options: int, api_base: int, python_address: int) -> int:
    """RegisterCustomOps, which the library calls with the address of a PYTHON besides."""
    python = record_at(python_address, PYTHON)
    api = call(array_at(api_base, 1, np.int64)[0], (1,))  # GetApi; each version can make an OrtStatus
    return _run_elsewhere(python, api, python.register, options, api_base, 0, 0)


def create(op: int, api: int, info: int, result: int) -> int:
    """OrtCustomOp::CreateKernelV2."""
    array_at(result, 1, np.int64)[0] = 0
    python = record_at(array_at(op + _PYTHON_AT, 1, np.int64)[0], PYTHON)
    return _run_elsewhere(python, api, python.create, op, api, info, result)


def infer(op: int, context: int) -> int:
    """OrtCustomOp::InferOutputShapeFn. What it cannot infer stays unknown."""
    python = record_at(array_at(op + _PYTHON_AT, 1, np.int64)[0], PYTHON)
    return _run_elsewhere(python, 0, python.infer, op, context, 0, 0)


_WORD = ir.IntType(64)

# What each gives: a number, or the name of what lies behind the OrtCustomOp; and whether that is an array to be indexed.
_PLAIN: dict[str, tuple[int | str, bool]] = {
    "GetName": ("name", False),
    "GetExecutionProviderType": (0, False),  # the CPU's
    "GetInputType": ("input_types", True),
    "GetInputTypeCount": ("input_count", False),
    "GetInputCharacteristic": ("input_characteristics", True),
    "GetInputMemoryType": (0, False),  # OrtMemTypeDefault
    "GetVariadicInputMinArity": (1, False),
    "GetVariadicInputHomogeneity": (1, False),
    "GetOutputType": ("output_types", True),
    "GetOutputTypeCount": ("output_count", False),
    "GetOutputCharacteristic": (REQUIRED, False),
    "KernelDestroy": (0, False),  # states are shared and stay
}


@functools.cache
def plain_functions() -> dict[str, int]:
    """The addresses of the functions of an OrtCustomOp that are constant or read what lies behind it. They are many, and so
    small that Numba would take longer for each than LLVM takes for all."""
    module = ir.Module("quark_numba_plain_functions")
    for name, (what, is_array) in _PLAIN.items():
        function = ir.Function(module, ir.FunctionType(_WORD, [_WORD, _WORD]), f"quark_numba_{name}")
        op, index = function.args
        builder = ir.IRBuilder(function.append_basic_block())

        def word_at(address: ir.Value, offset: ir.Value, builder: ir.IRBuilder = builder) -> ir.Value:
            return builder.load(builder.inttoptr(builder.add(address, offset), _WORD.as_pointer()))

        result = word_at(op, _WORD(getattr(OrtCustomOp, what).offset)) if isinstance(what, str) else _WORD(what)
        builder.ret(word_at(result, builder.mul(index, _WORD(8))) if is_array else result)
    with global_compiler_lock:
        library = keep(cpu_target.target_context.codegen().create_library(module.name))
        library.add_ir_module(module)
        library.finalize()
        return {name: library.get_pointer_to_function(f"quark_numba_{name}") for name in _PLAIN}


@functools.cache
def compiled(template: Callable[..., int], name: str = "") -> int:
    """The address of the C function: all that it takes, and what it returns, are words."""
    signature = types.int64(*[types.int64] * template.__code__.co_argcount)
    return int(keep(jit.c_function(template, name or f"ort_{template.__name__}", signature)).address)


def python_functions(**functions: Callable[[int, int, int, int, Any], int | None]) -> int:
    """The address of a PYTHON record with these functions."""
    record = keep(np.zeros((), PYTHON))
    _fill(record, _PYTHON_API)
    record["run_work"] = compiled(run_work)
    record["message"] = ctypes.addressof(
        keep(ctypes.create_string_buffer(b"quark_numba: Python did not finish what it was to do"))
    )
    for name, function in functions.items():
        record[name] = ctypes.cast(keep(_PythonFunction(function)), c_void_p).value
    return int(record.ctypes.data)


def _fill(record: Any, names: Sequence[str]) -> None:
    for name in names:
        record[name] = ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value


# What nodes by way of onnxruntime-extensions call, and the exception that the Ctrl-C of a run raised in one of them.
_ERROR_API = ("PyObject_Vectorcall", "PyErr_Fetch", "PyErr_Restore", "PyErr_Clear", "Py_AddPendingCall")
_HOOK = np.dtype([(name, np.int64) for name in (*_ERROR_API, "raise_again", "body", "type", "value", "traceback")])
_TYPE, _VALUE, _TRACEBACK = (_HOOK.fields[name][1] for name in ("type", "value", "traceback"))  # type: ignore[index]
_ATTEMPTS = 8


def _call_again(hook_address: int, k_id: int, feed: int, attributes: int) -> int:
    """What the Python function `body` returns of three Python objects. An exception, of which the first is kept, means that it
    is called again; Python raises the one that is kept on the main thread, when that is back in Python."""
    hook = record_at(hook_address, _HOOK)
    arguments = array_at(stack(3), 3, np.int64)
    arguments[0], arguments[1], arguments[2] = k_id, feed, attributes
    result = np.int64(0)
    for attempt in range(_ATTEMPTS):
        result = call(hook.PyObject_Vectorcall, (hook.body, arguments.ctypes.data, 3, 0))
        if result:
            if hook.type:
                call(hook.Py_AddPendingCall, (hook.raise_again, hook_address))
            break
        if attempt == _ATTEMPTS - 1:
            break
        if hook.type == 0:
            call(hook.PyErr_Fetch, (hook_address + _TYPE, hook_address + _VALUE, hook_address + _TRACEBACK))
        else:
            call(hook.PyErr_Clear, (0,))
    return result  # type: ignore[return-value]


def _raise_again(hook_address: int) -> int:
    """A pending call of Python's: 0, or -1 with an exception."""
    hook = record_at(hook_address, _HOOK)
    kept, value, traceback = hook.type, hook.value, hook.traceback
    hook.type, hook.value, hook.traceback = 0, 0, 0
    if kept == 0:
        return 0
    call(hook.PyErr_Restore, (kept, value, traceback))
    return -1


def uninterrupted(body: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """`body`, which may be called twice, as a C function that no signal handler's exception gets out of."""
    hook = keep(np.zeros((), _HOOK))
    _fill(hook, _ERROR_API)
    hook["raise_again"] = compiled(_raise_again)
    hook["body"] = id(keep(body))
    function = ctypes.PYFUNCTYPE(py_object, c_int64, py_object, py_object, py_object)(compiled(_call_again))
    return functools.partial(function, int(hook.ctypes.data))
