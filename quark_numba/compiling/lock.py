"""Where kernels, and what ONNX Runtime keeps of them, are made: under one lock, and out of the reach of signal handlers."""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging  # noqa: F401  # hooks of forks run in reverse order: its own, which takes a lock that compiling needs, is to run later
import os
import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_lock = threading.RLock()


def created(create: Callable[[], T]) -> T:
    """What `create` returns, called under the lock, by another thread if this is the main one.

    There Python runs signal handlers, in the midst of whatever it finds. They may raise, as that of Ctrl-C does, and out of the
    midst of a compilation this would leave Numba in pieces. So the main thread has another one do it and waits. An exception of
    a handler ends the waiting; what was begun gets finished, and is there for whoever asks next.

    A ``threading.Thread`` will not do: what starts one is Python, too, and in pieces as well when a handler raises.
    """

    def work() -> None:
        try:
            with _lock:
                results.append(create())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    results: list[T] = []
    errors: list[BaseException] = []
    done = allocate_lock()
    done.acquire()
    main = threading.main_thread()
    is_main = threading.get_ident() == main.ident and main.is_alive()  # not alive: the interpreter ends, and starts no threads
    if is_main and not _compiles_already():
        start_new_thread(work, ())
        done.acquire()
    else:
        work()
    if errors:
        raise errors[0]
    return results[0]


def _compiles_already() -> bool:
    """Whether this thread is in the midst of compiling something with Numba, for whose lock another one would wait."""
    module = sys.modules.get("numba.core.compiler_lock")
    lock = getattr(module, "global_compiler_lock", None)  # None while the module is being imported
    return lock is not None and bool(lock.is_locked())


class created_once(Generic[T]):  # noqa: N801
    """A property made by `created` when it is first asked for, and kept in the instance."""

    def __init__(self, create: Callable[[Any], T]) -> None:
        self._create = create
        self.__doc__ = create.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        name = self._create.__name__

        def create() -> T:
            if name not in instance.__dict__:
                instance.__dict__[name] = self._create(instance)
            value: T = instance.__dict__[name]
            return value

        return created(create)


@atexit.register
def _finish() -> None:
    """The end of the interpreter waits for what was begun."""
    with _lock:
        pass


# Python's list of the states of its threads has a lock. A thread that Python did not start takes it when it comes to Python,
# before it has the interpreter's lock. So os.fork does not wait for it, and the child of Python 3.11 may wait for it for ever
# (CPython's issue 112275). Nor does os.fork wait while glibc takes the stack of an earlier thread for a new one: it frees what
# belonged to that, and a child that starts a thread frees it once more. Therefore threads of ours are started, and come to
# Python, under this lock (``callbacks``), and a fork waits for it. It waits in C, where no signal handler gets in between, and
# without the interpreter's lock, which tracemalloc takes for each allocation.
_allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", ctypes.pythonapi))
_acquire = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(("PyThread_acquire_lock", ctypes.pythonapi))
_release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyThread_release_lock", ctypes.pythonapi))
thread_states: int = _allocate()

# A fork waits for the lock, too: a child whose parent held it in another thread would wait for ever.

_taken_for_fork = False


def _before_fork() -> None:
    global _taken_for_fork
    _taken_for_fork, raised = not _lock._is_owned(), None  # type: ignore[attr-defined]
    while not _lock._is_owned():  # type: ignore[attr-defined]
        try:
            _lock.acquire()
        except BaseException as error:  # of a signal handler
            raised = error
    if raised:
        raise raised  # Python tells of it, and forks all the same


def _after_fork() -> None:
    if _taken_for_fork and _lock._is_owned():  # type: ignore[attr-defined]
        _lock.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    _give_back = functools.partial(_release, thread_states)
    # Registered first, it is taken last: after the lock, for which a fork may have to wait long.
    os.register_at_fork(
        before=functools.partial(_acquire, thread_states, 1), after_in_parent=_give_back, after_in_child=_give_back
    )
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
