"""Models from files, and to files, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import onnx

from ..errors import ModelError

# Of a model in one file: protobuf ends at 2 GiB.
_MOST_BYTES = (1 << 31) - (1 << 24)


def load(path: str | os.PathLike[str], *, external_data: bool = True) -> onnx.ModelProto:
    """The model at `path`, with what it has in files beside it, or without. Raises ModelError."""
    try:
        return onnx.load(path, load_external_data=external_data)
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: {error.strerror or error}") from None
    except Exception as error:
        raise ModelError(f"{os.fspath(path)}: not an ONNX model: {error}") from None


@contextmanager
def session_source(model: onnx.ModelProto) -> Iterator[bytes | str]:
    """What onnxruntime.InferenceSession takes for the model: its bytes, or a path that is there in the context."""
    if not _is_large(model):
        yield model.SerializeToString()
        return
    with tempfile.TemporaryDirectory(prefix="quark_numba_") as folder:
        path = os.path.join(folder, "model.onnx")
        save(model, path)
        yield path


def _is_large(model: onnx.ModelProto) -> bool:
    """Whether it is too large for one file."""
    return sum(each.ByteSize() for each in (*model.graph.initializer, *model.graph.node, *model.functions)) > _MOST_BYTES


def save(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write it, whole or not at all: with tensors in a file ``path.data`` if it is too large for one. `model` loses its tensors
    then. Raises ModelError."""
    target = os.path.abspath(path)
    data = os.path.basename(target) + ".data"
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(target), prefix=".quark_numba_") as folder:
            written = os.path.join(folder, os.path.basename(target))
            onnx.save(model, written, "protobuf", save_as_external_data=_is_large(model), location=data)
            for name in sorted(os.listdir(folder), key=lambda name: name != data):  # the model last
                os.replace(os.path.join(folder, name), os.path.join(os.path.dirname(target), name))
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: {error.strerror}") from None
    except Exception as error:  # of protobuf, where what is not an initializer is too large
        raise ModelError(f"{os.fspath(path)}: {error}") from None
