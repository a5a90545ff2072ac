"""The one lock under which kernels, and what ONNX Runtime keeps of them, are made."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Reentrant, for a signal handler may ask for what its own thread is making.
creation_lock = threading.RLock()

# A fork waits for the lock: a child whose parent held it in another thread would wait for ever.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=creation_lock.acquire, after_in_parent=creation_lock.release, after_in_child=creation_lock.release
    )


class created_once(Generic[T]):  # noqa: N801
    """A property computed when it is first asked for, under the creation lock, and kept in the instance: unlike with
    functools.cached_property no two threads compute it, and no lock is left held in a forked child."""

    def __init__(self, create: Callable[[Any], T]) -> None:
        self._create = create
        self.__doc__ = create.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        name = self._create.__name__
        with creation_lock:
            if name not in instance.__dict__:
                instance.__dict__[name] = self._create(instance)
            value: T = instance.__dict__[name]
        return value
