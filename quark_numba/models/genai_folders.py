"""Folders of ONNX Runtime GenAI, with models and a configuration that names them: its keys, the names that it may leave out,
and the errors if it cannot be used."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import MissingFileError, ModelError
from .files import errors_of_file

CONFIGURATION = "genai_config.json"

# The inputs that are not caches: GenAI's keys are also what they mean.
_MADE = ("input_ids", "attention_mask", "position_ids")

# Caches: the keys of an input and of the output that continues it, each with the name that GenAI takes if the key is missing.
_CACHES = (
    (("past_key_names", "past_key_values.%d.key"), ("present_key_names", "present.%d.key")),
    (("past_value_names", "past_key_values.%d.value"), ("present_value_names", "present.%d.value")),
    (("past_names", ""), ("present_names", "")),  # of keys and values in one tensor
)


class GenaiFolder:
    """A folder with models and the ``genai_config.json`` that names them. Raise ModelError if the configuration cannot be
    used.

    Attributes
    ----------
    path : Path
        The folder.
    models : dict of str to str
        The place in the configuration, such as "model.decoder.filename", of each model, by its path within the folder. A model
        with several places is there once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = self.path / CONFIGURATION
        with errors_of_file(self._file, "a configuration of ONNX Runtime GenAI"):
            self._content = json.loads(self._file.read_text(encoding="utf-8"))
        if not isinstance(self._content, dict):
            raise ModelError(f"{self._file}: not an object; expected a configuration of ONNX Runtime GenAI")
        model = self._object(self._content, "model")
        self._decoder = self._object(model, "decoder", "model.")
        self.models: dict[str, str] = {}
        for place, section in _objects(model, "model"):
            for key, value in section.items():
                if value != "" and (key == "filename" or (key.endswith("_filename") and str(value).endswith(".onnx"))):
                    self.models.setdefault(self._path_of(f"{place}.{key}", value), f"{place}.{key}")
        if not self.models:
            raise ModelError(f"{self._file}: it names no model; expected one, such as model.decoder.filename")

    @classmethod
    def find(cls, path: Any) -> GenaiFolder | None:
        """Return the folder at `path`, or None if that is no path of a folder with a configuration."""
        is_path = isinstance(path, (str, os.PathLike)) and bool(os.fspath(path))
        return cls(path) if is_path and os.path.exists(os.path.join(path, CONFIGURATION)) else None

    def _object(self, parent: dict[str, Any], key: str, place: str = "") -> dict[str, Any]:
        """Return an object within another one; an empty one if it is missing."""
        value = parent.get(key, {})
        if not isinstance(value, dict):
            raise ModelError(f"{self._file}: {place}{key} is {value!r}; expected an object")
        return value

    def _path_of(self, place: str, value: Any) -> str:
        """Return the path of a model within the folder."""
        path = PurePosixPath(value.replace("\\", "/") if isinstance(value, str) else "..")
        if path.is_absolute() or not path.parts or ".." in path.parts or ":" in path.parts[0]:
            raise ModelError(f"{self._file}: {place} is {value!r}; expected the path of a file in this folder")
        if not (self.path / path).is_file():
            raise MissingFileError(f"{self._file}: {place} is {value!r}; expected the path of a file that exists")
        return str(path)

    def decoder(self) -> Path:
        """Return the path of the decoder. Raise ModelError if that is a pipeline of several models, or missing."""
        name = self._decoder.get("filename")
        if self._decoder.get("pipeline") or not name:
            found = "a pipeline of models" if self._decoder.get("pipeline") else "missing"
            raise ModelError(f"{self._file}: the decoder is {found}; expected one model, as model.decoder.filename")
        return self.path / self._path_of("model.decoder.filename", name)

    def meanings(self) -> dict[str, str]:
        """Return what the inputs of the decoder are, by name: "input_ids", "attention_mask" or "position_ids", or for a cache
        the output that continues it. "%d" stands for the number of a layer."""
        inputs, outputs = self._names("inputs"), self._names("outputs")
        meanings = {inputs[key]: key for key in _MADE if key in inputs}
        for past, present in _CACHES:
            if name := inputs.get(*past):
                meanings[name] = outputs.get(*present)
        return meanings

    def logits(self) -> str:
        """Return the name of the output of logits."""
        return self._names("outputs").get("logits", "logits")

    def _names(self, key: str) -> dict[str, str]:
        names = self._object(self._decoder, key, "model.decoder.")
        for each, name in names.items():
            if not isinstance(name, str):
                raise ModelError(f"{self._file}: model.decoder.{key}.{each} is {name!r}; expected a name")
        return names

    def with_library(self, library: str, entries: Mapping[str, str]) -> str:
        """Return the text of a configuration with which all sessions register a library, and have these configuration entries.
        Raise ModelError if the configuration has places in files of tensors, which writing a model changes."""
        content = copy.deepcopy(self._content)
        model = content["model"]
        # Models without session options of their own have those of the decoder.
        options = [self._object(model.setdefault("decoder", {}), "session_options", "model.decoder.")]
        model["decoder"]["session_options"] = options[0]
        for place, section in _objects(model, "model"):
            if section.get("shared_initializers"):
                raise ModelError(
                    f"{self._file}: {place}.shared_initializers has places in files of tensors; expected none, "
                    "as writing the models changes them"
                )
            if place.endswith(".session_options"):
                options.append(section)
        for each in options:
            each.update({"custom_ops_library": library, **entries})
        return json.dumps(content, indent=4, ensure_ascii=False) + "\n"

    def other_files(self, known: Iterable[str | os.PathLike[str]]) -> list[str]:
        """Return the paths, within the folder, of all files but the configuration, those that are known, and hidden ones."""
        left_out = {os.path.realpath(each) for each in [*known, self._file]}
        files = (each for each in sorted(self.path.rglob("*")) if each.is_file() and os.path.realpath(each) not in left_out)
        paths = [each.relative_to(self.path) for each in files]
        return [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]


def decoder_at(path: Any) -> Any:
    """Return the path of the decoder if `path` leads to a folder of GenAI, else `path` as it is."""
    folder = GenaiFolder.find(path)
    return path if folder is None else folder.decoder()


def _objects(value: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield an object of a configuration and the objects within it, each with its place."""
    if isinstance(value, dict):
        yield place, value
        for key, inner in value.items():
            yield from _objects(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _objects(inner, f"{place}[{index}]")
