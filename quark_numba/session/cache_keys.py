"""The names of the entries of a cache of models: digests of everything that a model for a session depends on; and the check of
the argument `cache`. This module imports neither onnx nor Numba."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import reprlib
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..compiling.installed_versions import version_of
from ..compiling.lock import IMPORTS
from ..compiling.sources import digest_of_package
from ..compiling.user_folder import OTHERS_WRITE, without_links
from ..errors import ModelError, reason_of
from ..models.file_states import state_of
from ..models.temporary import temporary_folder
from ..ort.cached_nodes import added_operators
from ..version import __version__

# The prefix of names, which distinguishes them from names of other programs, and the number of hexadecimal digits after it.
PREFIX, _DIGITS = "quark_numba-", 20

# The name of an entry.
NAME = re.compile(rf"{PREFIX}[0-9a-f]{{{_DIGITS}}}")

# The suffix of the files with the digests of original models.
_DIGESTS = ".digests"

# A file may change again within this many nanoseconds without its timestamps changing.
_RACY_NS = 2 * 10**9

_DISTRIBUTIONS = ("onnx", "onnx-ir", "numpy", "numba", "llvmlite", "ml_dtypes")


def name_entry(folder: Path, paths: Iterable[str | os.PathLike[str]], facts: Mapping[str, Any]) -> str:
    """Return the name of the entry for a model with these files, the model file first, and these facts. The digests of files
    are stored in the folder. A file is rehashed when its size, inode or timestamps have changed."""
    with IMPORTS:
        import llvmlite.binding
        import onnxruntime

    host = llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()
    model, *others = map(os.path.abspath, paths)
    parts = {
        "files": [_find_digest(folder, model, others), *(_find_digest(folder, path, []) for path in others)],
        "options": facts,
        "versions": [onnxruntime.__version__, onnxruntime.get_build_info(), *map(version_of, _DISTRIBUTIONS)],
        "package": digest_of_package() or __version__,
        "operators": added_operators(),
        "processor": [platform.machine(), *host],
    }
    return _make_name(json.dumps(parts, sort_keys=True))


def _make_name(text: str) -> str:
    return PREFIX + hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]


def recall_files(folder: Path, path: str | os.PathLike[str]) -> list[str] | None:
    """Return the files of a model that are recorded with its digest, the model file first. Return None if no digest is
    recorded, or if the model file has changed since."""
    model = os.path.abspath(path)
    known = _read_record(folder / (_make_name(model) + _DIGESTS))
    return [model, *known["files"]] if known.get("state") == state_of(model) else None


def _find_digest(folder: Path, path: str, others: list[str]) -> str:
    """Return the digest of a file. The names `others` of the files with the model's tensors are recorded with the digest."""
    record = folder / (_make_name(path) + _DIGESTS)
    known = _read_record(record)
    if known.get("state") == state_of(path) and known.get("files") == others:
        return str(known["sha256"])
    now, before = time.time_ns(), state_of(path)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if state_of(path) != before:
        raise ModelError(f"{path} was changed while it was read")
    if all(abs(now - changed) > _RACY_NS for changed in before[2:]):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write(folder, record, {"path": path, "state": before, "sha256": digest, "files": others})
    return digest


def write(folder: Path, path: Path, content: Mapping[str, Any]) -> None:
    """Write a file in the folder of a cache atomically, in JSON. Only this user may change the file."""
    with temporary_folder(folder) as place:
        written = Path(place, path.name)
        written.write_text(json.dumps(content))
        with suppress(OSError):  # of a file system without modes
            written.chmod(stat.S_IMODE(written.stat().st_mode) & ~OTHERS_WRITE)
        written.replace(path)


def _read_record(record: Path) -> dict[str, Any]:
    """Return the content of a digest record, or {} if the file is not a digest record. Its name follows from the path in it."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        with open(record, "rb", opener=without_links) as file:
            content = json.loads(file.read())
        if record.name == _make_name(content["path"]) + _DIGESTS and {"state", "sha256", "files"} <= {*content}:
            return dict(content)
    return {}


def list_digests(folder: Path) -> Iterator[Path]:
    """Yield the files with digests."""
    return filter(_read_record, folder.glob(f"{PREFIX}*{_DIGESTS}"))


def check_cache(cache: object) -> None:
    """Raise TypeError or ModelError for an argument `cache` that is neither a flag nor a path that can be a folder's."""
    if cache is None or isinstance(cache, bool):
        return
    if not isinstance(cache, (str, os.PathLike)) or not isinstance(name := os.fspath(cache), str):
        raise TypeError(f"cache is a {type(cache).__name__}; expected True, False or the path of a folder")
    try:
        if not name:
            raise ValueError("it is empty")
        name.encode()  # ONNX Runtime takes UTF-8 only
        os.stat(name)
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) or error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP):
            raise ModelError(f"cache is {reprlib.repr(name)}; expected the path of a folder: {reason_of(error)}") from None
