"""Sums in a file, from which an interrupted run continues: how often the file is written, and which runs it is refused for."""

from __future__ import annotations

import dataclasses
import json
import time
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModelError, reason_of
from ..models import files
from ..texts import in_json
from ..version import __version__
from .data import Batch

# The time from one write of the file to the next.
_SECONDS = 2.0


@dataclass
class Total:
    """The sums of the first `done` batches except for those that failed; the messages of failed batches by their names; and
    `first`, the first batch that did not fail, which is not saved."""

    sums: Any = None
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    first: Batch | None = None


class Saved:
    """A JSON file with the description of a run and, for each kind of sums, the sums so far. It is written whole or not at all.
    Floats are read back exactly, to the last bit. Raise ModelError if the file is from a run other than `run` describes, or
    not such a file."""

    def __init__(self, path: Any, run: dict[str, Any]) -> None:
        self.path = path
        self._written = 0.0
        run = json.loads(json.dumps({"quark_numba": __version__, **run}, default=str))
        self._content = {"run": run}
        files.check_is_regular(path, "which is read and written")
        try:
            with open(path, encoding="utf-8") as file, self._damage():
                content = json.load(file)
                different = [key for key in run if content["run"].get(key) != run[key]]
        except FileNotFoundError:
            return
        except OSError as error:
            raise ModelError(f"{path}: {reason_of(error)}") from None
        if different:
            raise ModelError(f"{self.path}: from another run, with other {', '.join(different)}")
        self._content = content

    def find(self, kind: type[Any]) -> Total:
        """Return the total so far of the sums of this kind. Raise ModelError if the file cannot be understood."""
        part = self._content.get(kind.__name__)
        if part is None:
            return Total()
        with self._damage():
            sums = None if part["sums"] is None else _decoded(kind, part["sums"])
            return Total(sums, int(part["done"]), {str(name): str(message) for name, message in part["failed"].items()})

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Raise ModelError if the content is not that of such a file."""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ModelError(f"{self.path}: not a file that keeps a run") from None

    def add(self, kind: type[Any], total: Total) -> None:
        """Record a copy of the total for the next write of the file, and write the file if it is time. It is a copy, as Ctrl-C
        may interrupt the caller while it adds to the sums."""
        self._content[kind.__name__] = {"sums": in_json(total.sums), "done": total.done, "failed": {**total.failed}}
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        files.write(self.path, json.dumps(self._content, allow_nan=False).encode())
        self._written = time.monotonic()


def _decoded(kind: Any, value: Any) -> Any:
    """Return the instance of `kind` that `in_json` turned into JSON's types."""
    if dataclasses.is_dataclass(kind):
        types = typing.get_type_hints(kind)
        return kind(**{name: _decoded(types[name], element) for name, element in value.items()})  # type: ignore[operator]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else value
        return {_decoded(inner[0], key): _decoded(inner[1], element) for key, element in pairs}
    if origin is list:
        return [_decoded(inner[0], element) for element in value]
    if origin is tuple:
        return tuple(_decoded(part, element) for part, element in zip(inner, value, strict=True))
    return kind(value)
