"""Where kernels, and what ONNX Runtime keeps of them, are made: under one lock, and out of the reach of signal handlers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_lock = threading.RLock()

# A fork waits for the lock: a child whose parent held it in another thread would wait for ever.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def created(create: Callable[[], T]) -> T:
    """What `create` returns, called under the lock, and never on the main thread.

    There Python runs signal handlers, in the midst of whatever it finds. They may raise, as that of Ctrl-C does, and out of the
    midst of a compilation this would leave Numba in pieces. So the main thread has another one do it and waits. An exception of
    a handler ends the waiting; what was begun gets finished, and is there for whoever asks next.
    """

    def work() -> None:
        try:
            with _lock:
                results.append(create())
        except BaseException as error:
            errors.append(error)

    results: list[T] = []
    errors: list[BaseException] = []
    main = threading.main_thread()
    if threading.get_ident() == main.ident and main.is_alive():  # it is not when the interpreter ends: no more threads then
        thread = threading.Thread(target=work, name="quark_numba")
        thread.start()
        thread.join()
    else:
        work()
    if errors:
        raise errors[0]
    return results[0]


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
