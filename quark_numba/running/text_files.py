"""Texts as tokens, by the tokenizer of a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, errors_named, missing_packages_are_named
from ..models.files import errors_of_file


def files_of_texts(source: Any) -> list[Path]:
    """Return the path of a text file, or those of the .txt files of a folder in the order of their names. Raise ModelError if
    there is none."""
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(f"tokenizer: the source is a {type(source).__name__}; expected the path of a text file or of a folder")
    path = Path(source)
    with errors_of_file(path, "a text file or a folder"):
        files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        for file in files:
            file.stat()
    if not files:
        raise ModelError(f"{path}: no .txt file in this folder")
    return files


def read_tokens(files: Sequence[Path], tokenizer: str | os.PathLike[str]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the name of each file, and its tokens, of shape (1, tokens), with those that the tokenizer adds to a text. Raise
    ModelError if a file is no text in UTF-8, or the tokenizer cannot be used."""
    with missing_packages_are_named():
        import tokenizers
    with errors_named(f"tokenizer {os.fspath(tokenizer)}", with_type=False):
        encoder = tokenizers.Tokenizer.from_file(os.fspath(tokenizer))
    for file in files:
        with errors_of_file(file, "a text in UTF-8"):
            text = file.read_text(encoding="utf-8")
        with errors_named(str(file), with_type=False):
            yield str(file), np.array([encoder.encode(text).ids], np.int64)
