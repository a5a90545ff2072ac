"""Functions that only compiled functions call. Numba optimizes each of them, makes machine code of it, and loads that, although
their callers contain them and are optimized as well. That would take a third of the time to compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target


class _Library(JITCodeLibrary):  # type: ignore[misc]  # which has no types
    """The library of a function, which LLVM optimizes and compiles when its machine code is needed."""

    _is_loaded = False

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalized = True  # callers can be linked with it

    def _load(self) -> None:
        self._ensure_finalized()
        if not self._is_loaded:
            self._is_loaded = True
            super()._optimize_final_module()
            super()._finalize_final_module()

    @property
    def has_dynamic_globals(self) -> bool:
        self._load()
        return bool(super().has_dynamic_globals)

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function, or 0 if the library lacks it: Numba asks each function for an entry from Python,
        which inner functions do not have."""
        self._ensure_finalized()
        if not self._is_loaded and all(each.name != name for each in self.get_defined_functions()):
            return 0
        self._load()
        return int(super().get_pointer_to_function(name))

    def serialize_using_object_code(self) -> Any:
        self._load()
        return super().serialize_using_object_code()


class _Codegen(JITCPUCodegen):  # type: ignore[misc]
    _library_class = _Library

    def set_env(self, env_name: str, env: Any) -> None:
        """Set a function's record of Python objects, if the function is loaded."""
        if self._engine.get_global_value_address(env_name):
            super().set_env(env_name, env)


@contextmanager
def compiled_into_callers() -> Iterator[None]:
    """Make machine code only of the functions that need it, while other functions are compiled within the context. This
    replaces private parts of Numba (``tests/processes/test_numba.py``)."""
    with global_compiler_lock:  # other threads that compile wait
        generator = cpu_target.target_context.codegen()
        before = generator.__class__
        generator.__class__ = _Codegen
        try:
            yield
        finally:
            generator.__class__ = before
