"""Which thread creates kernels, and the objects with kernels that ONNX Runtime keeps, which locks forks wait for, and the one
lock for all creation. Signal handlers cannot interrupt it."""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging  # noqa: F401  # first: fork hooks run in reverse order, and logging's, which takes a lock that compiling needs, has to run later
import os
import sys
import threading
import types
from collections.abc import Callable
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from typing import Any, TypeVar

T = TypeVar("T")


def _system_threads() -> types.ModuleType:
    """Return a second instance of Python's module `_thread`.

    eventlet and gevent replace the functions of the first one, and the methods of existing locks, by those of their green
    threads. A system thread that waits for the lock of a green thread never ends.
    """
    spec = BuiltinImporter.find_spec("_thread")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_threads = _system_threads()
allocate_lock, start_new_thread, RLock = _threads.allocate_lock, _threads.start_new_thread, _threads.RLock


def has_green_threads() -> bool:
    """Return whether eventlet or gevent has replaced Python's threads by its own."""
    return not isinstance(sys.modules["_thread"].start_new_thread, types.BuiltinFunctionType)


def sleep(seconds: float) -> None:
    """Let this thread sleep. The `time.sleep` of eventlet or gevent would run green threads meanwhile."""
    lock = allocate_lock()
    lock.acquire()
    lock.acquire(timeout=seconds)


_lock = RLock()


# A thread's floating-point mode, which new threads take over. C's number for rounding to nearest is 0 on all processors and
# systems of this package. `fegetround` does not help: on x86-64 it knows the x87 unit alone, and Python uses SSE.
_TO_NEAREST, _BYTES_OF_MODE = 0, 64
_library = ctypes.PyDLL("ucrtbase" if os.name == "nt" else None)
_get_mode, _set_mode, _set_rounding = (getattr(_library, name, lambda _: 0) for name in ("fegetenv", "fesetenv", "fesetround"))


def run_in_creation(action: Callable[[], T]) -> T:
    """Return the result of `action`, which is called under the lock. If this is the main thread, another thread calls it.

    Python runs signal handlers on the main thread, between any two instructions. A handler may raise, as the one for Ctrl-C
    does. In the middle of a compilation, this would leave Numba in an inconsistent state. So the main thread only waits. If a
    handler raises, the waiting ends, but the other thread finishes, and the next call finds the result.

    Whatever the caller's floating-point rounding is, `action` runs with rounding to nearest. Compiled code, which later
    processes load, has constants that Python computes.

    ``threading.Thread`` cannot be used: it is started by Python code, which a handler's exception would break in the same way.
    """

    def work() -> None:
        mode = ctypes.create_string_buffer(_BYTES_OF_MODE)
        _get_mode(mode)
        try:
            _set_rounding(_TO_NEAREST)
            with _lock:
                results.append(action())
        except BaseException as error:
            errors.append(error)
        finally:
            _set_mode(mode)
            done.release()

    results: list[T] = []
    errors: list[BaseException] = []
    done = allocate_lock()
    done.acquire()
    # The main thread is not alive: the interpreter is ending, and no thread can start.
    if _is_main_thread() and threading.main_thread().is_alive() and not _compiles_already():
        start_new_thread(work, ())
        done.acquire()
    else:
        work()
    if errors:
        raise errors[0]
    return results[0]


# Whether signal handlers run on this thread. `threading` does not know on which thread a green thread runs.
_is_main_thread = ctypes.PYFUNCTYPE(ctypes.c_int)(("_PyOS_IsMainThread", ctypes.pythonapi))


def _compiles_already() -> bool:
    """Return whether this thread is compiling with Numba. Then it holds Numba's lock, and another thread would wait for it
    forever."""
    module = sys.modules.get("numba.core.compiler_lock")
    lock = getattr(module, "global_compiler_lock", None)  # None while the module is being imported
    return lock is not None and bool(lock.is_locked())


class created_once(functools.cached_property[T]):  # noqa: N801
    """A property whose value is made by `run_in_creation` on first access, and then kept in the instance."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        get = super().__get__
        return run_in_creation(lambda: get(instance, owner))


def created_cache(create: Callable[..., T]) -> Callable[..., T]:
    """Return a function with a cache, as `functools.cache` does, whose results `run_in_creation` makes. Threads that need a
    result at the same time get the same one."""
    made = functools.cache(create)
    return functools.cache(lambda *arguments: run_in_creation(lambda: made(*arguments)))


@atexit.register
def _finish() -> None:
    """Wait until a creation that has begun is finished. The interpreter calls this when it ends."""
    with _lock:
        pass


# Threads of this package hold this lock while they start and while they enter Python (``callbacks``). A fork waits for it,
# because os.fork does not wait for two other locks, and a child would find them as they were:
#
# - Python's list of thread states has a lock. A thread that Python did not start takes it when it enters Python. The child of
#   Python 3.11 may wait for it forever (CPython issue 112275).
# - glibc gives a new thread the stack of an earlier one, and frees memory that belonged to that. In a child of a fork in
#   between, the next thread frees the same memory again.
#
# The fork waits in C, where no signal handler can run, and without the interpreter's lock, which tracemalloc takes for each
# allocation.
_allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", ctypes.pythonapi))
_acquire = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(("PyThread_acquire_lock", ctypes.pythonapi))
_release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyThread_release_lock", ctypes.pythonapi))
thread_states: int = _allocate()

# Held while modules are imported on first use. In a child, an import that another thread of the parent had begun would never
# end, because the child inherits the locks of modules as they are.
IMPORTS = RLock()


def _wait_for(lock: Any) -> None:
    """Let forks wait until no other thread holds a lock, which would stay locked in the child."""
    taken = False

    def before() -> None:
        nonlocal taken
        taken, raised = not lock._is_owned(), None
        while not lock._is_owned():
            try:
                lock.acquire()
            except BaseException as error:  # raised by a signal handler
                raised = error
        if raised:
            raise raised  # Python reports it, and forks all the same

    def after() -> None:
        if taken and lock._is_owned():
            lock.release()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


# What is registered first is acquired last: `thread_states` after `_lock`, for which a fork may have to wait long.
# `IMPORTS` comes before `_lock`, which a module may take while it is imported.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    _take, _give_back = functools.partial(_acquire, thread_states, 1), functools.partial(_release, thread_states)
    os.register_at_fork(before=_take, after_in_parent=_give_back, after_in_child=_give_back)
    _wait_for(_lock)
    _wait_for(IMPORTS)
