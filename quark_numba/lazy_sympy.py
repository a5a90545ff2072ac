"""onnx-ir without sympy. onnx-ir imports sympy, which takes longer than all other imports of a session, and needs it only to
compute with the names of dimensions. This package never does that.

The modules of onnx-ir get stand-ins, which import the real modules when an attribute is first used. `sys.modules` never has a
stand-in, so no other code sees one."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

# The module of onnx-ir that imports sympy, and a module that needs sympy while it is imported.
_CORE, _SHAPES = "onnx_ir._core", "onnx_ir._symbolic_shapes"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def _import(name: str, *arguments: Any, **named: Any) -> ModuleType:
    """Import a module into ``onnx_ir._core``."""
    return _StandIn(name) if name == "sympy" else builtins.__import__(name, *arguments, **named)


class _Loader:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        package, _, name = _SHAPES.rpartition(".")
        # An import of the package's attribute finds this one. The import of the real module replaces it.
        setattr(sys.modules[package], name, _StandIn(_SHAPES))
        # Python takes `__import__` from here if the module has the name.
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:  # such as `get_source`, for tracebacks
        return getattr(self._loader, name)


class _Finder:
    """Finds ``onnx_ir._core`` as the other finders do, with another loader."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _CORE or sys.modules.get("sympy"):
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                if spec.loader:
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # importlib.abc is slow to import
                return spec
        return None


def install() -> None:
    """Let onnx-ir be imported without sympy from now on, unless sympy has been imported."""
    sys.meta_path.insert(0, _Finder())
