"""The subcommand `info`: versions, the backend, threads, and the kernels and models kept on disk, which --clear-cache
removes."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiling.installed_versions import distributions_with, version_of
from ..errors import reason_of
from ..version import __version__
from . import arguments
from .printing import print_json, print_table, progress

if TYPE_CHECKING:
    from ..session.model_cache import ModelCache

_DISTRIBUTIONS = ("numpy", "numba", "ml_dtypes", "onnx", "onnxruntime", "onnxruntime-extensions")
_QUARK, _MISSING = "amd-quark", "not installed"

# The module that replaces Quark's library when it is imported.
_REPLACES = "quark_numba.for_quark"

PURPOSE = "print versions, the backend in use, threads, and what is kept on disk"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear-cache", action="store_true", help="first remove compiled kernels and models of all versions")
    parser.add_argument("--cached-models", metavar="FOLDER", help="the folder of cached models (default: that of `cache=True`)")
    arguments.add_json(parser)


def action(options: argparse.Namespace) -> int:
    from ..compiling import cache
    from ..ort import get_library_path

    models, unreadable = _cache_of_models(options.cached_models)
    if options.clear_cache:
        for path in cache.files():
            path.unlink(missing_ok=True)
        if models:
            models.clear()
    sizes = cache.sizes()
    try:
        with progress("loading the native backend"):
            get_library_path()
        backend, reason = "native", "the default where it is available"
    except RuntimeError as error:
        backend, reason = "extensions", f"the native backend is not available: {error}"
    release, device = _describe_onnxruntime()
    facts = {
        "quark_numba": __version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in _DISTRIBUTIONS},
        "onnxruntime": release,
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": backend,
        "why": reason,
        "threads of direct calls": _count_threads(),
        "threads of a session": f"the session's own{device}",
        "amd-quark": _version(_QUARK),
        **({"operators of amd-quark": _operators_of_quark()} if _version(_QUARK) != _MISSING else {}),
        "folder of kernels": _folder_of_kernels(),
        "kernels": _count_and_size(sizes),
        "folder of cached models": unreadable or str(models and models.folder),
        "cached models": _count_and_size([size for _, size, _ in models.entries()] if models else []),
    }
    if options.json:
        print_json(facts)
    else:
        print_table("", ["", ""], [[name, str(value)] for name, value in facts.items()])
    return 0


def _count_threads() -> int:
    """Return the number of threads that Numba has, or will have when it is imported."""
    from ..compiling.threads import number_of_processors
    from ..compiling.user_folder import is_plain

    if is_plain():
        given = os.environ.get("NUMBA_NUM_THREADS", "")
        return (int(given) if given.isdecimal() else 0) or number_of_processors()  # as Numba, which ignores what is no number
    import numba

    return int(numba.get_num_threads())


def _folder_of_kernels() -> str:
    """Return the folder of compiled kernels and, if they are not loaded or kept, the reason."""
    from ..compiling import cache

    folder, may_read, why_not = cache.location()
    if not why_not:
        return str(folder)
    return f"{folder or 'none'}: {'nothing can be added' if may_read else 'not used'}: {why_not}"


def _cache_of_models(given: str | None) -> tuple[ModelCache | None, str]:
    """Return the cache of models and, if it is not used, the reason."""
    from ..session.cache_keys import check_cache
    from ..session.model_cache import ModelCache, users_folder

    folder = None
    try:
        check_cache(given)
        folder = Path(given).absolute() if given else users_folder()
        if folder.exists():
            os.listdir(folder)
    except OSError as error:
        return None, f"{folder or error.filename or 'none'}: not used: {reason_of(error)}"
    return ModelCache(folder), ""


def _describe_onnxruntime() -> tuple[str, str]:
    """Return the version of ONNX Runtime, the packages that provide it if they have other names, and a note on its device."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return _MISSING, ""
    others = [name for name in distributions_with("onnxruntime") if name != "onnxruntime"]
    providers = f", from {' and '.join(others)}" if others else ""
    return onnxruntime.__version__ + providers, f"; {onnxruntime.get_device()} provider"


def _count_and_size(sizes: list[int]) -> str:
    return f"{len(sizes)}, {sum(sizes) / 1e6:.1f} MB"


def _version(distribution: str) -> str:
    return version_of(distribution) or _MISSING


def _operators_of_quark() -> str:
    """Return a phrase that says which operators Quark has in this process, or would have in another one."""
    if _REPLACES in sys.modules:
        return "those of quark_numba, in this process"
    return f"its own; after `import {_REPLACES}` those of quark_numba"
