"""The functions that ONNX Runtime calls while it loads a model. They are compiled, so that no signal handler can run in them.

Python runs signal handlers on the main thread, between any two instructions. A handler may raise an exception, as the handler
of Ctrl-C does. If C has called a Python function, the exception does not reach C: for C, the function returned 0, which means
success. Therefore no function of this module runs Python on the calling thread:

- A function that describes an operator reads the answer from the memory after its OrtCustomOp.
- A function that needs Python lets another thread run Python, and waits for that thread without holding the GIL. Signal
  handlers never run on the other thread.

Signal handlers run once ONNX Runtime has returned to Python. The exception to the rule is `run_on_another_thread` while the
interpreter ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..compiling import cache, jit
from ..compiling.intrinsics import array_at, call, record_at
from ..compiling.lifetimes import keep_alive
from ..compiling.object_files import ObjectFile, compile_assembly
from ..compiling.records import new_record, words
from .c_api import API, ORT_FAIL, OrtCustomOp
from .python_record import PYTHON

# The work of the other thread. The thread calls `function` with the words a to d and the address of `is_done`. The function
# sets `is_done` to 1 when it has finished. Then the thread releases `lock`.
_WORK = words("function", "a", "b", "c", "d", "status", "is_done", "python", "lock")
_IS_DONE = _WORK.fields["is_done"][1]

_PYTHON_AT = OrtCustomOp.python.offset


def run_work(work_address: int) -> int:
    """Do the work of the other thread. No fork happens while the thread starts or enters Python (``lock.thread_states``)."""
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


@jit.inline
def _start_and_wait(python: Any, work_address: int) -> None:
    """Start the other thread, and wait until its work is done. Do nothing if no thread can start."""
    lock = call(python.PyThread_allocate_lock, (0,))
    if lock:
        record_at(work_address, _WORK).lock = lock
        call(python.PyThread_acquire_lock, (lock, 1))
        call(python.PyThread_acquire_lock, (python.thread_states, 1))
        thread = call(python.PyThread_start_new_thread, (python.run_work, work_address))
        call(python.PyThread_release_lock, (python.thread_states,))
        if thread & 0xFFFFFFFF != 0xFFFFFFFF:  # PYTHREAD_INVALID_THREAD_ID
            call(python.PyThread_acquire_lock, (lock, 1))  # wait until the other thread has released it
        call(python.PyThread_release_lock, (lock,))
        call(python.PyThread_free_lock, (lock,))


@jit.function
def run_on_another_thread(python_address: int, api: int, function: int, a: int, b: int, c: int, d: int) -> int:
    """Let another thread run a Python function, and return the function's OrtStatus. If the function does not finish, the
    status is an error, or 0 if `api` is 0. While the interpreter ends, no other thread can enter Python: then this thread runs
    the function."""
    python = record_at(python_address, PYTHON)
    work_address, work = new_record(_WORK)
    work.function, work.a, work.b, work.c, work.d, work.status, work.is_done = function, a, b, c, d, 0, 0
    work.python = python_address
    if call(python.is_finalizing, (0,)) & 1:
        work.status = call(function, (a, b, c, d, work_address + _IS_DONE))
    elif call(python.PyGILState_Check, (0,)) & 1:
        saved = call(python.PyEval_SaveThread, (0,))
        _start_and_wait(python, work_address)
        call(python.PyEval_RestoreThread, (saved,))
    else:
        _start_and_wait(python, work_address)
    if api and work.status == 0 and work.is_done == 0:
        return call(record_at(api, API).CreateStatus, (ORT_FAIL, python.message))
    return work.status


# A plain 0 has a type of its own, for which Numba would compile the called function once more.
NOTHING = np.int64(0)


def register(options: int, api_base: int, python_address: int) -> int:
    """Register the operators (RegisterCustomOps). The library adds the third argument: the address of a record PYTHON."""
    python = record_at(python_address, PYTHON)
    api = call(array_at(api_base, 1, np.int64)[0], (1,))  # GetApi; any version will do to create an OrtStatus
    return run_on_another_thread(python_address, api, python.register, options, api_base, NOTHING, NOTHING)


def create(op: int, api: int, info: int, result: int) -> int:
    """Create the kernel of a node (OrtCustomOp::CreateKernelV2)."""
    array_at(result, 1, np.int64)[0] = 0
    python_address = array_at(op + _PYTHON_AT, 1, np.int64)[0]
    python = record_at(python_address, PYTHON)
    return run_on_another_thread(python_address, api, python.create, op, api, info, result)


def infer(op: int, context: int) -> int:
    """Infer the types and shapes of outputs (OrtCustomOp::InferOutputShapeFn). If Python fails, types and shapes stay
    unknown. The Python function gets the identifier of the calling thread."""
    python_address = array_at(op + _PYTHON_AT, 1, np.int64)[0]
    python = record_at(python_address, PYTHON)
    thread = call(python.PyThread_get_thread_ident, (0,))
    return run_on_another_thread(python_address, NOTHING, python.infer, op, context, thread, NOTHING)


SHARED = (run_work, register, create, infer)

_WORD = ir.IntType(64)

# The plain functions of an OrtCustomOp, by their result: a field after the OrtCustomOp (_FIELDS), an element of an array whose
# address is in such a field (_ELEMENTS), or 0 (_ZEROS). KernelDestroy does nothing, because shared states are never freed. A
# family with one state for each node replaces KernelDestroy.
_FIELDS = {
    "GetName": "name",
    "GetExecutionProviderType": "provider",
    "GetInputTypeCount": "input_count",
    "GetOutputTypeCount": "output_count",
    "GetVariadicInputHomogeneity": "is_homogeneous",
}
_ELEMENTS = {
    "GetInputType": "input_types",
    "GetInputCharacteristic": "input_characteristics",
    "GetOutputType": "output_types",
    "GetOutputCharacteristic": "output_characteristics",
}
_ZEROS = ("GetInputMemoryType", "GetVariadicInputMinArity", "KernelDestroy")


def _plain_functions() -> dict[str, int]:
    """Return the addresses of the plain functions. LLVM compiles them without Numba, because Numba would take longer for one
    function than LLVM takes for all."""
    module = ir.Module("quark_numba_plain_functions")
    symbols = {name: f"quark_numba_{name}" for name in (*_FIELDS, *_ELEMENTS, *_ZEROS)}
    for name, symbol in symbols.items():
        function = ir.Function(module, ir.FunctionType(_WORD, [_WORD, _WORD]), symbol)
        op, index = function.args
        builder = ir.IRBuilder(function.append_basic_block())
        result = _WORD(0)
        if field := (_FIELDS | _ELEMENTS).get(name):
            result = _load_word(builder, op, _WORD(getattr(OrtCustomOp, field).offset))
        if name in _ELEMENTS:
            result = _load_word(builder, result, builder.mul(index, _WORD(8)))
        builder.ret(result)
    name = f"ort_plain_functions_{cache.digest(__name__)}"
    return cache.load_and_keep(name, ObjectFile(symbols, [], compile_assembly(str(module))))


def _load_word(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value) -> ir.Value:
    return builder.load(builder.inttoptr(builder.add(address, offset), _WORD.as_pointer()))


def functions() -> dict[str, int]:
    """Return the addresses of the functions that all operators share."""
    return {function.__name__: compiled(function) for function in SHARED} | _plain_functions()


@functools.cache
def compiled(function: Callable[..., int], name: str = "") -> int:
    """Return the address of `function` as a C function. All arguments and the result are 64-bit words."""
    signature = types.int64(*[types.int64] * function.__code__.co_argcount)
    return int(keep_alive(jit.c_function(function, name or f"ort_{function.__name__}", signature)).address)
