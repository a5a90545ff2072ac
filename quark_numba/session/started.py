"""Sessions of kept models that begin without onnx, Numba and the declarations of operators.

With a kept model lie the kernels that its session had, compiled (``ort.kept_kernels``). A later process loads both. Whatever it
does not find there, it makes as all other sessions do."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import onnxruntime

from ..compiling.lock import IMPORTS, created
from ..compiling.user_folder import is_plain
from ..errors import reraise_of_signal_handler
from ..models.temporary import remove_left_behind
from ..ort import kept_kernels, native
from . import kept, kept_names, options

_log = logging.getLogger(__name__)

# The name of the file with the kernels in an entry's manifest.
_KERNELS = "kernels"

# A function without arguments that returns `entry_of` the arguments of a session.
EntryOf = Callable[[], Path | None]


def opened(entry_of_session: EntryOf, chosen: onnxruntime.SessionOptions | None, files: ExitStack) -> str | None:
    """Load the kernels of a kept model for these session options, and return the model's path, which exists until `files` are
    closed; None: there is none, or no kernels with it, or Numba is there already."""
    entry = entry_of_session() if is_plain() else None
    manifest = files.enter_context(kept.opened(entry)) if entry else None
    if entry is None or manifest is None or not _has_loaded(entry, manifest, chosen):
        return None
    remove_left_behind(entry.parent)
    return str(entry / manifest["file"])


def entry_of(
    path: Any, chosen: onnxruntime.SessionOptions | None, providers: Any, cache: Any, how: Mapping[str, Any]
) -> Path | None:
    """Return where the model of a session with these arguments is kept, if it is."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    try:
        place = kept.folder_of(cache)
        files = kept_names.files_of(place, path) if place else None
        if place is None or files is None:
            return None
        facts = options.facts(chosen or onnxruntime.SessionOptions(), providers, (), False, {**how, "is_native": True})
        return place / kept_names.key(place, files, facts)
    except Exception as error:  # the session raises it, if it stays
        reraise_of_signal_handler(error)
        return None


def _has_loaded(entry: Path, manifest: Mapping[str, Any], session_options: onnxruntime.SessionOptions | None) -> bool:
    content = kept.content_of(entry, manifest, _KERNELS)
    if content is None:
        return False
    try:
        kernels = json.loads(content)
        probes = map(base64.b64decode, kernels["probes"])
        if session_options is not None and not options.replace_nothing(session_options, *probes):
            return False
        created(lambda: kept_kernels.load(kernels))
    except Exception as error:
        reraise_of_signal_handler(error)
        _log.info("%s: kept kernels cannot be loaded: %s", entry, error)
        return False
    return True


def keep(entry_of_session: EntryOf, recorded: kept_kernels.Recorded, probes: Sequence[bytes]) -> None:
    """Keep the kernels of a session with its model, unless they cannot be kept or loaded by themselves. `probes` tell whether
    the options of later sessions replace initializers (``options.replace_nothing``)."""
    entry = entry_of_session() if _is_ordinary() else None
    if entry is None or not os.path.isdir(entry):
        return
    release = native.release_of(onnxruntime.__version__)
    with suppress(LookupError):
        content = created(lambda: kept_kernels.content_of(recorded, release))
        content["probes"] = [base64.b64encode(probe).decode() for probe in probes]
        kept.add(entry, _KERNELS, json.dumps(content).encode())


def _is_ordinary() -> bool:
    """Whether Numba compiles for this processor with its defaults, and no operator is from outside of the package."""
    with IMPORTS:
        import llvmlite.binding as ll
        from numba.core.registry import cpu_target

        from ..catalog import OPERATORS

    compiles_for = cpu_target.target_context.codegen().magic_tuple()[1:]
    here = ll.get_host_cpu_name(), ll.get_host_cpu_features().flatten()
    return is_plain(loaded=True) and not OPERATORS.added and compiles_for == here
