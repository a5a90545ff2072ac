"""Compiled functions on disk: kept by Numba, under names that change with the sources that they are made of."""

from __future__ import annotations

import functools
import gc
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import numba


def cached(decorate: Callable[..., Any], function: FunctionType) -> Any:
    """Compile a function, and keep it on disk, unless neither the package's folder nor the user's can be written.
    `decorate` takes Numba's `cache` and returns a decorator."""
    compile_cached = functools.partial(decorate(cache=True), function)
    compile_only = functools.partial(decorate(cache=False), function)
    with _no_garbage_collection():
        try:
            return compile_cached()
        except Exception as error:
            if "cannot cache" in str(error):
                return compile_only()
            # A file in the cache may be cut short, or something else: any exception may come of reading it. An error of
            # another kind comes again.
            try:
                folder = Path(numba.njit(cache=True)(function).stats.cache_path)
                for path in folder.glob(f"*{function.__qualname__}-*"):
                    path.unlink()
            except OSError:
                return compile_only()
            return compile_cached()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Compiling makes very many objects that stay: going through them again and again takes an eighth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def digest(file: Path) -> str:
    """Of the sources that the functions of a file are made of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources(file))).hexdigest()[:12]


_IMPORT = re.compile(r"^ *from (\.+)([\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def sources(file: Path) -> list[Path]:
    """The files of this package that a file imports, directly or not, and itself; but for this module, which keeps what is
    compiled and has no part in it. It looks at relative imports, wherever they stand."""
    found, waiting = {file}, [file]
    while waiting:
        importer = waiting.pop()
        for dots, module, several, one in _IMPORT.findall(importer.read_text()):
            base = importer.parents[len(dots) - 1].joinpath(*module.split("."))
            names = [name.split()[0] for name in (several or one.partition("#")[0]).split(",") if name.strip()]
            for path in (base, *(base / name for name in names)):
                for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                    if candidate.is_file() and candidate not in found and candidate != Path(__file__):
                        found.add(candidate)
                        waiting.append(candidate)
    return sorted(found)
