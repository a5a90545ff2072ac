"""Sessions of kept models that begin without onnx, Numba and the declarations of operators.

A kept model comes with the compiled kernels of its session (``ort.kept_kernels``). A later process loads both. What is missing
is made as in all other sessions."""

from __future__ import annotations

import base64
import json
import logging
from contextlib import suppress
from pathlib import Path

import onnxruntime

from ..compiling.lock import IMPORTS, run_in_creation
from ..compiling.user_folder import is_plain
from ..errors import reraise_of_signal_handler
from ..ort import kept_kernels, native
from . import options
from .artifact import Artifact
from .model_cache import ModelCache
from .request import SessionRequest

_log = logging.getLogger(__name__)

# The name of an entry's file with the kernels.
_KERNELS = "kernels"


def open_with_kernels(request: SessionRequest) -> Artifact | None:
    """Load the kernels that are kept for a request, and return the kept model. Return None if no model is kept, or no kernels
    with it, if Numba is imported already, or if the options replace initializers."""
    if not request.cache or not is_plain() or not (place := _find(request)):
        return None
    cache, entry = place
    artifact = cache.open_or_discard(entry)
    content = cache.read_added(entry, _KERNELS) if artifact else None
    return artifact if content and _load(content, request) else None


def _find(request: SessionRequest) -> tuple[ModelCache, Path] | None:
    """Return the cache of a request, and the entry where its model was kept."""
    try:
        cache = ModelCache.choose(request.cache)
        entry = cache.find(request) if cache else None
    except Exception as error:  # if it persists, the session raises it
        reraise_of_signal_handler(error)
        return None
    return (cache, entry) if cache and entry else None


def _load(content: bytes, request: SessionRequest) -> bool:
    """Load kept kernels, and return whether they could be loaded."""
    try:
        kernels = json.loads(content)
        probes = map(base64.b64decode, kernels["probes"])
        if request.replaced is None and not options.options_replace_nothing(request.options, *probes):
            return False
        run_in_creation(lambda: kept_kernels.load(kernels))
    except Exception as error:
        reraise_of_signal_handler(error)
        _log.info("kept kernels of %s cannot be loaded: %s", request.path, error)
        return False
    return True


def add_kernels(request: SessionRequest, artifact: Artifact, recorded: kept_kernels.Recorded) -> None:
    """Keep the kernels of a session with its model, unless they cannot be kept or loaded by themselves."""
    place = _find(request) if _is_ordinary() else None
    if place is None or place[0].read_added(place[1], _KERNELS) is not None:
        return
    cache, entry = place
    with suppress(LookupError):
        content = run_in_creation(lambda: kept_kernels.content_of(recorded, native.release_of(onnxruntime.__version__)))
        content["probes"] = [base64.b64encode(probe).decode() for probe in artifact.probes]
        cache.add(entry, _KERNELS, json.dumps(content).encode())


def _is_ordinary() -> bool:
    """Whether Numba compiles for this processor with its defaults, and no operator is from outside of the package."""
    with IMPORTS:
        import llvmlite.binding as ll
        from numba.core.registry import cpu_target

        from ..catalog import OPERATORS

    compiles_for = cpu_target.target_context.codegen().magic_tuple()[1:]
    here = ll.get_host_cpu_name(), ll.get_host_cpu_features().flatten()
    return is_plain(loaded=True) and not OPERATORS.added and compiles_for == here
