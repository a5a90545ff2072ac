"""The subcommand `info`: versions, the backend, threads, and what is kept on the disk."""

from __future__ import annotations

import argparse
import platform
from typing import Any

from ..errors import ModelError, reason_of
from ..version import __version__
from . import arguments
from .printing import print_json, print_table
from .quark_library import library_of_quark

_DISTRIBUTIONS = ("numpy", "numba", "ml_dtypes", "onnx", "onnxruntime", "onnxruntime-extensions")
_QUARK, _MISSING = "amd-quark", "not installed"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("info", help="print versions, the backend in use, threads, and what is kept on the disk")
    parser.set_defaults(action=_info)
    parser.add_argument("--clear-cache", action="store_true", help="first remove compiled kernels and models of all versions")
    parser.add_argument("--cache", metavar="FOLDER", help="the folder of kept models (default: that of `cache=True`)")
    arguments.add_json(parser)


def _info(options: argparse.Namespace) -> int:
    import numba

    from ..compiling import cache
    from ..ort import get_library_path
    from ..session import kept

    models = kept.folder_of(options.cache or True)
    if options.clear_cache:
        for path in cache.files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ModelError(f"{path}: {reason_of(error)}") from None
        kept.clear(models)
    sizes = cache.sizes()
    try:
        get_library_path()
        backend, reason = "native", "the default where it is available"
    except RuntimeError as error:
        backend, reason = "extensions", f"the native backend is not available: {error}"
    release, device = _onnxruntime()
    facts = {
        "quark_numba": __version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in _DISTRIBUTIONS},
        "onnxruntime": release,
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": backend,
        "why": reason,
        "threads of direct calls": numba.get_num_threads(),
        "threads of a session": f"the session's own{device}",
        "amd-quark": _version(_QUARK),
        "operators of amd-quark": library_of_quark() if _version(_QUARK) != _MISSING else "",
        "cache": str(cache.folder() or "none: no folder is writable"),
        "kernels in the cache": _count_and_size(sizes),
        "folder of models": str(models),
        "models in the cache": _count_and_size([size for _, size, _ in kept.entries(models)]),
    }
    if options.json:
        print_json(facts)
    else:
        print_table("", ["", ""], [[name, str(value)] for name, value in facts.items()])
    return 0


def _onnxruntime() -> tuple[str, str]:
    """The version of ONNX Runtime, with the packages that provide it if they have other names; and a note on its device."""
    from importlib.metadata import packages_distributions

    try:
        import onnxruntime
    except ModuleNotFoundError:
        return _MISSING, ""
    others = sorted({*packages_distributions().get("onnxruntime", ())} - {"onnxruntime"})
    providers = f", from {' and '.join(others)}" if others else ""
    return onnxruntime.__version__ + providers, f"; {onnxruntime.get_device()} provider"


def _count_and_size(sizes: list[int]) -> str:
    return f"{len(sizes)}, {sum(sizes) / 1e6:.1f} MB"


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return _MISSING
