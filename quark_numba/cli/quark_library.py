"""Which library of operators Quark has."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# What replaces Quark's library when it is imported.
_REPLACES = "quark_numba.for_quark"


def library_of_quark() -> str:
    """Return which operators Quark has in this process, or would have in another one, as a sentence without a full stop."""
    if _REPLACES in sys.modules:
        return "those of quark_numba, in this process"
    compiled = next(_compiled_libraries(), None)
    library = f"its own, {compiled}" if compiled else "its own, which it compiles when it is imported"
    return f"{library}; after `import {_REPLACES}` those of quark_numba"


def _compiled_libraries() -> Iterator[Path]:
    """Yield the files of Quark's compiled operators: those in its folder, and those where PyTorch keeps what it compiles."""
    quark = importlib.util.find_spec("quark")
    for folder in (quark and quark.submodule_search_locations) or ():
        operators = Path(folder, "onnx", "operators", "custom_ops")
        for pattern in ("_C*", "lib/*custom_ops*"):
            yield from filter(_is_library, sorted(operators.glob(pattern)))
    for name in ("quark_custom_ops_stable_abi", "custom_ops"):
        for depth in ("", "*/"):
            yield from filter(_is_library, sorted(_folder_of_pytorch().glob(f"{depth}{name}/*")))


def _is_library(path: Path) -> bool:
    return path.suffix in (".so", ".pyd", ".dll")


def _folder_of_pytorch() -> Path:
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given)
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", ""), "torch_extensions", "torch_extensions", "Cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions")
