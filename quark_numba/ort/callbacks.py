"""The functions that ONNX Runtime calls while it loads a model. They are compiled, so that no signal handler can run in them.

Python runs signal handlers on the main thread, between any two instructions. A handler may raise an exception, as the handler
of Ctrl-C does. If C has called a Python function, the exception does not reach C: it sees a function that returned 0, which
means success. Therefore

- functions that describe an operator read the answer from the memory after the OrtCustomOp that they are given;
- functions that need Python let another thread run it, where no signal handlers run, and wait without Python;
- nodes of the extensions backend run Python on the thread that calls them. If Python raises, another thread runs the node
  again. If Python raises there as well, the node is at fault; if not, the first exception was a signal handler's.

Signal handlers run, or their exceptions are raised, once ONNX Runtime has returned to Python.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import c_int64, c_void_p, py_object
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..compiling import cache, jit
from ..compiling.intrinsics import array_at, call, record_at, stack
from ..compiling.object_files import ObjectFile, compile_assembly
from ..compiling.records import new_record, words
from . import python_record
from .c_api import API, ORT_FAIL, OrtCustomOp, keep_alive
from .python_record import PYTHON, fill, python_functions

# The work of the other thread: to call `function` with four words and the address of `is_done`, which the function sets to 1
# when it has finished.
_WORK = words("function", "a", "b", "c", "d", "status", "is_done", "python", "lock")
_IS_DONE = _WORK.fields["is_done"][1]

_PYTHON_AT = OrtCustomOp.python.offset


def run_work(work_address: int) -> int:
    """Run `function` on the other thread. No fork happens while the thread starts or enters Python (``lock.thread_states``)."""
    work = record_at(work_address, _WORK)
    python = record_at(work.python, PYTHON)
    call(python.PyThread_acquire_lock, (python.thread_states, 1))
    state = call(python.PyThreadState_New, (call(python.PyInterpreterState_Main, (0,)),))
    call(python.PyThread_release_lock, (python.thread_states,))
    if state:
        call(python.PyEval_RestoreThread, (state,))
        work.status = call(work.function, (work.a, work.b, work.c, work.d, work_address + _IS_DONE))
        call(python.PyThreadState_Clear, (state,))
        call(python.PyThreadState_DeleteCurrent, (0,))
    return call(python.PyThread_release_lock, (work.lock,))


@jit.function
def _run_on_another_thread(python_address: int, api: int, function: int, a: int, b: int, c: int, d: int) -> int:
    """Let another thread run a Python function, and return the function's OrtStatus. If the function does not finish, the
    status is an error, or 0 if `api` is 0. While the interpreter ends, no other thread can enter Python: then this thread runs
    the function."""
    python = record_at(python_address, PYTHON)
    work_address, work = new_record(_WORK)
    work.function, work.a, work.b, work.c, work.d, work.status, work.is_done = function, a, b, c, d, 0, 0
    is_finalizing = call(python.is_finalizing, (0,)) & 1
    has_gil = is_finalizing == 0 and call(python.PyGILState_Check, (0,)) & 1 == 1
    saved = call(python.PyEval_SaveThread, (0,)) if has_gil else 0
    lock = 0 if is_finalizing else call(python.PyThread_allocate_lock, (0,))
    if is_finalizing:
        work.status = call(function, (a, b, c, d, work_address + _IS_DONE))
    if lock:
        work.python, work.lock = python_address, lock
        call(python.PyThread_acquire_lock, (lock, 1))
        call(python.PyThread_acquire_lock, (python.thread_states, 1))
        thread = call(python.PyThread_start_new_thread, (python.run_work, work_address))
        call(python.PyThread_release_lock, (python.thread_states,))
        if thread & 0xFFFFFFFF != 0xFFFFFFFF:  # PYTHREAD_INVALID_THREAD_ID
            call(python.PyThread_acquire_lock, (lock, 1))  # wait until the other thread has released it
        call(python.PyThread_release_lock, (lock,))
        call(python.PyThread_free_lock, (lock,))
    if has_gil:
        call(python.PyEval_RestoreThread, (saved,))
    if api and work.status == 0 and work.is_done == 0:
        return call(record_at(api, API).CreateStatus, (ORT_FAIL, python.message))
    return work.status


# A plain 0 has a type of its own, for which Numba would compile the called function once more.
_NOTHING = np.int64(0)


def register(options: int, api_base: int, python_address: int) -> int:
    """Register the operators (RegisterCustomOps). The library adds the third argument: the address of a record PYTHON."""
    python = record_at(python_address, PYTHON)
    api = call(array_at(api_base, 1, np.int64)[0], (1,))  # GetApi; any version will do to create an OrtStatus
    return _run_on_another_thread(python_address, api, python.register, options, api_base, _NOTHING, _NOTHING)


def create(op: int, api: int, info: int, result: int) -> int:
    """Create the kernel of a node (OrtCustomOp::CreateKernelV2)."""
    array_at(result, 1, np.int64)[0] = 0
    python_address = array_at(op + _PYTHON_AT, 1, np.int64)[0]
    python = record_at(python_address, PYTHON)
    return _run_on_another_thread(python_address, api, python.create, op, api, info, result)


def infer(op: int, context: int) -> int:
    """Infer the types and shapes of outputs (OrtCustomOp::InferOutputShapeFn). If Python fails, they stay unknown. Python is
    told which thread this is."""
    python_address = array_at(op + _PYTHON_AT, 1, np.int64)[0]
    python = record_at(python_address, PYTHON)
    thread = call(python.PyThread_get_thread_ident, (0,))
    return _run_on_another_thread(python_address, _NOTHING, python.infer, op, context, thread, _NOTHING)


SHARED = (run_work, register, create, infer)

_WORD = ir.IntType(64)

# The plain functions of an OrtCustomOp by name: what the function returns, a number or the name of a field that follows the
# OrtCustomOp; and whether the field is an array, of which it returns one element.
_PLAIN: dict[str, tuple[int | str, bool]] = {
    "GetName": ("name", False),
    "GetExecutionProviderType": ("provider", False),
    "GetInputType": ("input_types", True),
    "GetInputTypeCount": ("input_count", False),
    "GetInputCharacteristic": ("input_characteristics", True),
    "GetInputMemoryType": (0, False),  # OrtMemTypeDefault
    "GetVariadicInputMinArity": (0, False),
    "GetVariadicInputHomogeneity": ("is_homogeneous", False),
    "GetOutputType": ("output_types", True),
    "GetOutputTypeCount": ("output_count", False),
    "GetOutputCharacteristic": ("output_characteristics", True),
    "KernelDestroy": (0, False),  # shared states are never freed; families whose nodes have states of their own replace this
}


def _plain_functions() -> dict[str, int]:
    """Return the addresses of the plain functions. LLVM compiles them without Numba, because Numba would take longer for one
    function than LLVM takes for all."""
    module = ir.Module("quark_numba_plain_functions")
    symbols = {name: f"quark_numba_{name}" for name in _PLAIN}
    for name, (what, is_array) in _PLAIN.items():
        function = ir.Function(module, ir.FunctionType(_WORD, [_WORD, _WORD]), symbols[name])
        op, index = function.args
        builder = ir.IRBuilder(function.append_basic_block())

        def word_at(address: ir.Value, offset: ir.Value, builder: ir.IRBuilder = builder) -> ir.Value:
            return builder.load(builder.inttoptr(builder.add(address, offset), _WORD.as_pointer()))

        result = word_at(op, _WORD(getattr(OrtCustomOp, what).offset)) if isinstance(what, str) else _WORD(what)
        builder.ret(word_at(result, builder.mul(index, _WORD(8))) if is_array else result)
    name = f"ort_plain_functions_{cache.digest(__name__)}"
    return cache.load_and_keep(name, ObjectFile(symbols, [], compile_assembly(str(module))))


def functions() -> dict[str, int]:
    """Return the addresses of the functions that all operators share."""
    return {function.__name__: compiled(function) for function in SHARED} | _plain_functions()


@functools.cache
def compiled(function: Callable[..., int], name: str = "") -> int:
    """Return the address of `function` as a C function. All arguments and the result are 64-bit words."""
    signature = types.int64(*[types.int64] * function.__code__.co_argcount)
    return int(keep_alive(jit.c_function(function, name or f"ort_{function.__name__}", signature)).address)


# The functions that a node of the extensions backend calls, and the exception that a signal handler has raised in one of them.
_ERROR_API = ("PyObject_Vectorcall", "PyErr_Fetch", "PyErr_Restore", "PyErr_Clear", "Py_AddPendingCall")
_ERROR = words("type", "value", "traceback")
_HOOK = words(*_ERROR_API, "python", "body", "retry", "raise_it", *_ERROR.names)

# What `retry` answers.
_ANSWER = words("result", "is_node_at_fault")


def _call_hook(hook_address: int, k_id: int, feed: int, attributes: int) -> int:
    """Return the result of the Python function `body` for three Python objects. If `body` raises, return the result of `retry`,
    which runs on another thread; without a result, return 0 with the exception of `body`, as C functions of Python do.

    If `retry` finds no fault in the node, a signal handler raised the exception. It is kept until the main thread can raise it,
    or dropped if an earlier one is kept already. If the node is at fault, `retry` has logged why, and the exception is
    dropped."""
    hook = record_at(hook_address, _HOOK)
    arguments = array_at(stack(3), 3, np.int64)
    arguments[0], arguments[1], arguments[2] = k_id, feed, attributes
    result = call(hook.PyObject_Vectorcall, (hook.body, arguments.ctypes.data, 3, 0))
    if result == 0:
        error_address, error = new_record(_ERROR)
        call(hook.PyErr_Fetch, (error_address, error_address + 8, error_address + 16))
        answer_address, answer = new_record(_ANSWER)
        answer.result, answer.is_node_at_fault = 0, 0
        _run_on_another_thread(hook.python, _NOTHING, hook.retry, k_id, feed, attributes, answer_address)
        result = answer.result
        has_result = result != 0
        was_interrupted = has_result and answer.is_node_at_fault == 0
        if was_interrupted and hook.type == 0:
            hook.type, hook.value, hook.traceback = error.type, error.value, error.traceback
        else:
            call(hook.PyErr_Restore, (error.type, error.value, error.traceback))
            if has_result:
                call(hook.PyErr_Clear, (0,))
    if hook.type:
        call(hook.Py_AddPendingCall, (hook.raise_it, hook_address))
    return result


def _raise_it(hook_address: int) -> int:
    """Raise the kept exception, and return -1; return 0 if no exception is kept. Python makes this pending call on the main
    thread."""
    hook = record_at(hook_address, _HOOK)
    kept, value, traceback = hook.type, hook.value, hook.traceback
    hook.type, hook.value, hook.traceback = 0, 0, 0
    if kept == 0:
        return 0
    call(hook.PyErr_Restore, (kept, value, traceback))
    return -1


def uninterrupted(
    body: Callable[[Any, Any, Any], Any], retry: Callable[[Any, Any, Any], tuple[Any, bool]]
) -> Callable[[Any, Any, Any], Any]:
    """Return `body` as a C function that does not pass on a signal handler's exception. If `body` raises, another thread calls
    `retry`, which must not raise: it does the same work once more, and returns the result and whether the node is at fault."""

    def run_retry(k_id: int, feed: int, attributes: int, answer: int, is_done: Any) -> None:
        result, is_fault = retry(*(ctypes.cast(address, py_object).value for address in (k_id, feed, attributes)))
        fields = (c_int64 * 2).from_address(answer)  # an _ANSWER
        fields[0], fields[1] = id(keep_alive(result)), is_fault  # the caller gets the reference
        is_done[0] = 1

    hook = keep_alive(np.zeros((), _HOOK))
    fill(hook, _ERROR_API)
    hook["python"] = python_functions(compiled(run_work))
    hook["body"] = id(keep_alive(body))
    hook["retry"] = ctypes.cast(keep_alive(python_record.PythonFunction(run_retry)), c_void_p).value
    hook["raise_it"] = compiled(_raise_it)
    function = ctypes.PYFUNCTYPE(py_object, c_int64, py_object, py_object, py_object)(compiled(_call_hook))
    return functools.partial(function, int(hook.ctypes.data))
