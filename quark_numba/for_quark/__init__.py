"""AMD Quark's ONNX quantizer on this package's operators, without a compiler: which of Quark's modules is replaced, and when it
is too late for that. Import this before `quark.onnx`:

    import quark_numba.for_quark

Importing it loads neither Quark nor PyTorch, and changes nothing where Quark is not installed. It only makes Python take
another module when Quark imports its module `build_custom_ops`, which compiles Quark's C++ library and finds its path.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

# The module that Quark imports first, and the one that is replaced.
_QUARK = "quark.onnx"
_REPLACED = f"{_QUARK}.operators.custom_ops.build_custom_ops"


class _StandIn(MetaPathFinder, Loader):
    """Finds and loads the stand-in for Quark's module. Python asks it before it looks for files."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == _QUARK:
            from . import stand_in

            stand_in.check_version()
        return spec_from_loader(name, self, origin=__name__) if name == _REPLACED else None

    def exec_module(self, module: ModuleType) -> None:
        from . import stand_in

        stand_in.fill(module)


if _QUARK in sys.modules:
    raise ImportError(f"{_QUARK} has been imported already, with its own operators; import {__name__} before it")
sys.meta_path.insert(0, _StandIn())
