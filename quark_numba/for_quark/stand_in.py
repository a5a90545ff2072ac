"""The stand-in for Quark's module `build_custom_ops`: its functions, the PyTorch operators that it registers, the releases of
Quark that are known, and the warning of others."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from types import ModuleType
from typing import Any

from ..compiling.installed_versions import version_of
from ..dialects import quark
from ..ort import get_library_path as own_library_path
from ..ort.native import REGISTRY

# The releases of Quark whose modules were read.
KNOWN = ("0.10", "0.11", "0.12", "0.13")

# The names of Quark's modules of PyTorch operators, which Quark imports before 0.12, and with PyTorch before 2.10.
_PREFIX = "" if os.name == "nt" else "lib"
_MODULES = [f"{_PREFIX}{name}{device}" for name in ("custom_ops", "custom_ops_torch_legacy") for device in ("", "_gpu")]


def get_library_path(device: str = "CPU", lib: str = "custom_ops") -> str:
    """Return the path of this package's operators for `register_custom_ops_library`. It is the same for every device: ONNX
    Runtime runs these operators on the CPU, also in sessions of other providers."""
    return own_library_path()


def get_legacy_torch_library_path(device: str = "CPU") -> str:
    """Return the path from which Quark takes the folder of its PyTorch operators. These have been imported already, without a
    folder."""
    return own_library_path()


def compile_library() -> None:
    """Do nothing, because there is no library to compile."""


def fill(module: ModuleType) -> None:
    """Make `module` the stand-in, define the PyTorch operators, and say so in Quark's log."""
    from . import torch_operators

    operators = torch_operators.define()
    REGISTRY.limit = frozenset(quark.DOMAINS)
    for name in _MODULES:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(operators)
    for function in (get_library_path, get_legacy_torch_library_path, compile_library):
        setattr(module, function.__name__, function)
    _log().info("Custom operators are those of quark_numba.for_quark; Quark's C++ library is neither compiled nor loaded.")


def check_version() -> None:
    """Warn in Quark's log if this release is not a known one."""
    release = version_of("amd-quark")
    if ".".join(release.split(".")[:2]) not in KNOWN:
        _log().warning(
            f"quark_numba.for_quark knows Quark {', '.join(KNOWN)}; this is {release or 'not a release'}. "
            "It replaces the operators all the same, if Quark takes them from where it did."
        )


@functools.cache
def _log() -> Any:
    for name in ("quark.common.utils.log", "quark.shares.utils.log"):
        try:
            return importlib.import_module(name).ScreenLogger(__package__)
        except (ImportError, AttributeError):
            continue
    return logging.getLogger(__package__)
