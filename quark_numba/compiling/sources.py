"""The sources of this package's modules, and their digests, by which caches know that code has changed: which modules count,
and which are left out. Modules are in files, in an archive on sys.path, or in a frozen application, with or without their
sources. This module does without Numba."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any

_PACKAGE = __name__.partition(".")[0]

_IMPORT = re.compile(r"^ *from (\.*)([\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)

# Left out of digests: these modules run the compilation, and do not change its result.
_APART = {f"{__package__}.cache", f"{__package__}.lock"}


@functools.cache
def digest(name: str) -> str:
    """Return the digest of the code that the functions of a module depend on: of its sources or, if one of them is missing, of
    the whole package. Return "" if nothing is known, as for a module outside of this package that has no file."""
    found = sources(name)
    if found is None:
        return digest_of_package()[:12] if name.startswith(f"{_PACKAGE}.") else ""
    return hashlib.sha256("".join(found.values()).encode()).hexdigest()[:12]


def sources(name: str) -> dict[str, str] | None:
    """Return the sources of a module and of all modules of this package that it imports, directly or not, anywhere in them, by
    their names. `cache` and `lock` are left out. Return None if a source is missing."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        importer = waiting.pop()
        if importer not in found:
            source = _source_of(importer)
            if source is None:
                return None
            found[importer] = source
            waiting += _imported(importer)
    return dict(sorted(found.items()))


@functools.cache
def _source_of(name: str) -> str | None:
    """Return the source of a module, if its loader or a file has it."""
    spec = _spec_of(name)
    loader: Any = spec and spec.loader
    with suppress(ImportError, OSError):
        if hasattr(loader, "get_source"):
            return loader.get_source(name)
        if spec and spec.has_location and spec.origin and spec.origin.endswith(".py"):
            return content(spec.origin).decode(errors="replace")
    return None


@functools.cache
def _imported(name: str) -> list[str]:
    """Return the names of the modules that a module imports relatively, or from this package."""
    spec, found = _spec_of(name), []
    within = name.split(".") if spec and spec.submodule_search_locations is not None else name.split(".")[:-1]
    for dots, module, several, one in _IMPORT.findall(_source_of(name) or ""):
        if not dots and module.partition(".")[0] != _PACKAGE:
            continue
        base = ".".join([*(within[: len(within) + 1 - len(dots)] if dots else ()), *filter(None, [module])])
        names = [each.split()[0] for each in (several or one.partition("#")[0]).split(",") if each.strip()]
        found += [each for each in (base, *(f"{base}.{name}" for name in names)) if each not in _APART and _spec_of(each)]
    return found


@functools.cache
def _spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of a module, without importing it, or None if the module does not exist."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent, folders = name.rpartition(".")[0], None
    if parent:
        folders = getattr(_spec_of(parent), "submodule_search_locations", None)
        if folders is None:
            return None
    specs = (finder.find_spec(name, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in specs if spec), None)


@functools.cache
def digest_of_package() -> str:
    """Return the digest of all modules of this package, or "" if they cannot be listed."""
    places = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(Path(__file__).parents[1])
        for name in names
        if name.endswith((".py", ".pyc")) and os.path.basename(folder) != "__pycache__"
    ]
    contents = [*map(content, sorted(places))] or [_made_of(name).encode() for name in sorted(_modules(_PACKAGE))]
    return hashlib.sha256(b"".join(contents)).hexdigest() if contents else ""


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def _modules(package: str) -> Iterator[str]:
    """Yield the names of the modules in a package that does not lie in a folder."""
    import pkgutil

    folders = getattr(_spec_of(package), "submodule_search_locations", None)
    for module in pkgutil.iter_modules(folders or (), f"{package}."):
        yield module.name
        if module.ispkg:
            yield from _modules(module.name)


def _made_of(name: str) -> str:
    """Return the source of a module or, if it is missing, a text that differs for other code."""
    source = _source_of(name)
    loader: Any = getattr(_spec_of(name), "loader", None)
    return _text_of(loader.get_code(name)) if source is None else source


def _text_of(value: Any) -> str:
    """Return a text that differs for other code objects and constants. The bytes of `marshal` do not serve: they also depend on
    the strings that the process has elsewhere."""
    if isinstance(value, CodeType):
        numbers = value.co_flags, value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount
        names = value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        return f"{value.co_code!r} {value.co_exceptiontable!r} {numbers} {names} {_text_of(value.co_consts)}"
    if isinstance(value, (tuple, frozenset)):
        texts = [*map(_text_of, value)] if isinstance(value, tuple) else sorted(map(_text_of, value))
        return f"{type(value).__name__}({', '.join(texts)})"
    return f"{type(value).__name__} {value!r}"
