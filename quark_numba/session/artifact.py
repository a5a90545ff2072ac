"""The model that is given to ONNX Runtime for a session, in memory or in a file, how long the file exists, and what a cache
keeps of it. This module imports neither onnx nor Numba."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, NamedTuple

from ..models.file_states import State, state_of


class Artifact(NamedTuple):
    """A model as it is given to ONNX Runtime.

    The artifact is a context manager.

    - `source`: the bytes of the model, or the path of a file that this package wrote. The file exists until the artifact is
      closed. None if there is nothing to rewrite; sessions then use the model that the caller passed.
    - `blocked_regions`: the number of regions in the blocked layout.
    - `left`: the numbers of nodes that were not rewritten, by operator and reason.
    - `why_not_kept`: the reason why the model must not be cached, or "" if it may be cached.
    - `state`: the state of a cached model's file.
    - `keep`: caches a small model, once its session exists. None if the model is not cached by default.
    - `probes`: the two probes of ``initializers``, which tell whether options replace initializers of a cached model. Empty if
      the model was built with options that replace initializers.
    - `refusal`: the reason why the model cannot run, if ONNX Runtime refuses it, or "" if no reason is known."""

    source: bytes | str | None
    files: ExitStack
    blocked_regions: int = 0
    left: Mapping[tuple[str, str], int] = MappingProxyType({})
    why_not_kept: str = ""
    state: State | None = None
    keep: Callable[[], None] | None = None
    probes: tuple[bytes, ...] = ()
    refusal: str = ""

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()

    @property
    def path(self) -> str | None:
        """The path of the file that this package wrote, or None if there is no such file."""
        return self.source if isinstance(self.source, str) else None

    @property
    def is_gone(self) -> bool:
        """Return whether the file of a cached model has been removed or replaced."""
        return self.state is not None and self.path is not None and state_of(self.path) != self.state

    def report(self) -> dict[str, Any]:
        """Return dicts and lists, as commands print them in JSON."""
        left = [{"operator": operator, "nodes": count, "why": why} for (operator, why), count in sorted(self.left.items())]
        return {"regions_in_blocked_layout": self.blocked_regions, "left": left}

    def facts(self) -> dict[str, Any]:
        """Return the data that `of_facts` needs besides the file, in JSON types."""
        return self.report() | {"probes": [base64.b64encode(probe).decode() for probe in self.probes]}

    @classmethod
    def of_facts(cls, path: str | None, facts: dict[str, Any], state: State | None) -> Artifact:
        """Return the artifact of a cached file, or of a model without changes. Raise an exception of any kind if the facts are
        malformed."""
        left = {(group["operator"], group["why"]): group["nodes"] for group in facts["left"]}
        probes = tuple(map(base64.b64decode, facts["probes"]))
        return cls(path, ExitStack(), facts["regions_in_blocked_layout"], left, state=state, probes=probes)
