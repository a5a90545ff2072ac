"""The user's folder for what the package keeps, and files in it. This module does without Numba."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).parents[1].name


def own_folder() -> Path:
    """Return the user's folder, which may not exist yet: in the one that NUMBA_CACHE_DIR names, or else in the user's cache."""
    place = os.environ.get("NUMBA_CACHE_DIR", "") if is_plain() else _of_numba()
    if place:
        return Path(place, _PACKAGE).absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or os.path.expanduser(r"~\AppData\Local"), _PACKAGE, "Cache")
    caches = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(caches), _PACKAGE)


def write(path: Path, content: bytes) -> None:
    """Write a file, which other processes see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_bytes(content)
        written.replace(path)
    finally:
        with suppress(OSError):
            written.unlink(missing_ok=True)


def is_plain(*, loaded: bool = False) -> bool:
    """Whether Numba has its defaults, but for the folder of its cache, and is not loaded, unless it may be `loaded`."""
    return (
        (loaded or "numba" not in sys.modules)
        and not os.path.exists(".numba_config.yaml")
        and all(name == "NUMBA_CACHE_DIR" for name in os.environ if name.startswith("NUMBA_"))
    )


def _of_numba() -> str:
    import numba

    return str(numba.config.CACHE_DIR)
