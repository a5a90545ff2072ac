"""The hook through which onnxruntime-extensions runs nodes, compiled so that no signal handler's exception ends a run.

It runs Python on the thread that calls it, where a signal handler may raise an exception (see ``callbacks``). If Python raises,
another thread runs the node again. If Python raises there as well, the node is at fault; if not, the first exception was a
signal handler's, which is raised once ONNX Runtime has returned to Python."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import c_int64, c_void_p, py_object
from typing import Any

import numpy as np

from ..compiling.intrinsics import array_at, call, record_at, stack
from ..compiling.lifetimes import keep_alive
from ..compiling.records import new_record, words
from .callbacks import NOTHING, compiled, run_on_another_thread, run_work
from .python_record import PythonFunction, fill, python_functions

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
        run_on_another_thread(hook.python, NOTHING, hook.retry, k_id, feed, attributes, answer_address)
        result = answer.result
        if result and answer.is_node_at_fault == 0 and hook.type == 0:
            hook.type, hook.value, hook.traceback = error.type, error.value, error.traceback
        else:
            call(hook.PyErr_Restore, (error.type, error.value, error.traceback))
            if result:
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
    hook["retry"] = ctypes.cast(keep_alive(PythonFunction(run_retry)), c_void_p).value
    hook["raise_it"] = compiled(_raise_it)
    function = ctypes.PYFUNCTYPE(py_object, c_int64, py_object, py_object, py_object)(compiled(_call_hook))
    return functools.partial(function, int(hook.ctypes.data))
