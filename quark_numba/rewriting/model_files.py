"""Reading and writing of model files. A file is written whole or not at all."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from ..errors import ModelError, reraise_of_signal_handler

# The most bytes of a model in one file: protobuf ends at 2 GiB.
_MOST_BYTES = (1 << 31) - (1 << 24)


def load(path: str | os.PathLike[str], *, external_data: bool = True) -> onnx.ModelProto:
    """Return the model at `path`, with or without its external data. As in onnx, external data has to be in the folder of the
    model. Raise ModelError if the model cannot be read."""
    name = os.fspath(path)
    try:
        if _is_ort_format(name):
            raise ModelError(f"{name}: a model in ONNX Runtime's own format; expected an ONNX model")
        model = onnx.load(path, load_external_data=False)
    except ModelError:
        raise
    except Exception as error:
        reraise_of_signal_handler(error)
        reason = error.strerror or error if isinstance(error, OSError) else f"not an ONNX model: {error}"
        raise ModelError(f"{name}: {reason}") from None
    if external_data:
        load_tensors(model, os.path.dirname(os.path.abspath(name)), name)
    return model


def _is_ort_format(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"ORTM"  # the identifier of ONNX Runtime's flatbuffers


def load_tensors(
    model: onnx.ModelProto, folder: str | os.PathLike[str], name: str = "the model", leave: Container[str] = ()
) -> None:
    """Read the external data of a model from a folder, except for the initializers in `leave`. As in onnx, files elsewhere are
    refused. Raise ModelError if a tensor cannot be read."""
    for tensor in _tensors(model, leave):
        if external_data_helper.uses_external_data(tensor):
            try:
                external_data_helper.load_external_data_for_tensor(tensor, os.fspath(folder))
            except Exception as error:
                reraise_of_signal_handler(error)
                raise ModelError(f"{name}: tensor {tensor.name}: {error}") from None
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]


def check_is_whole(model: onnx.ModelProto, leave: Container[str] = ()) -> None:
    """Raise ModelError if a tensor other than the initializers in `leave` is in a file: the author of the model might name any
    file that this process can read."""
    for tensor in _tensors(model, leave):
        if external_data_helper.uses_external_data(tensor):
            location = external_data_helper.ExternalDataInfo(tensor).location
            raise ModelError(
                f"tensor {tensor.name} is in the file {location!r}, and a model without a path has no folder; expected "
                "the path of a model, or a model with all tensors in it, as onnx.load returns it"
            )


def _tensors(model: onnx.ModelProto, leave: Container[str]) -> Iterator[onnx.TensorProto]:
    """Yield all tensors of a model, including subgraphs, functions and attributes, except for the initializers in `leave`."""
    training = (graph for each in model.training_info for graph in (each.initialization, each.algorithm))
    waiting: list[Any] = [model.graph, *model.functions, *training]
    while waiting:
        graph = waiting.pop()
        if isinstance(graph, onnx.GraphProto):
            yield from (each for each in graph.initializer if graph is not model.graph or each.name not in leave)
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for attribute in itertools.chain.from_iterable((*node.attribute,) for node in graph.node):
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            waiting += [attribute.g, *attribute.graphs]


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield the path of a folder that exists within the context. Windows cannot remove files while a session reads them, so
    removal is tried again when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="quark_numba_", ignore_cleanup_errors=True)
    try:
        with folder:
            yield folder.name
    finally:
        if os.path.exists(folder.name):
            atexit.register(shutil.rmtree, folder.name, ignore_errors=True)


@contextmanager
def session_source(model: onnx.ModelProto) -> Iterator[bytes | str]:
    """Yield the model as onnxruntime.InferenceSession takes it: its bytes, or a path that exists within the context."""
    if not _is_large(model):
        content = model.SerializeToString()
        del model  # it need not stay in memory while the session is made from the bytes
        yield content
        return
    with temporary_folder() as folder:
        path = os.path.join(folder, "model.onnx")
        save(model, path)
        yield path


def _is_large(model: onnx.ModelProto) -> bool:
    """Whether a model is too large for one file."""
    return sum(each.ByteSize() for each in (*model.graph.initializer, *model.graph.node, *model.functions)) > _MOST_BYTES


def save(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model, whole or not at all. If it is too large for one file, the tensors go to a file ``path.data``, and `model`
    loses them. Links are followed. A path that is not a regular file, such as a pipe, is written to as it is. Raise ModelError
    if the model cannot be written."""
    is_large = _is_large(model)
    if is_large and _is_special(path):
        raise ModelError(f"{os.fspath(path)}: not a regular file, and the model needs two")
    data = os.path.basename(os.path.realpath(path)) + ".data"
    _write(path, lambda written: onnx.save(model, written, "protobuf", save_as_external_data=is_large, location=data))


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write content to a file, whole or not at all, as `save` does."""
    _write(path, lambda written: Path(written).write_bytes(content))


def _is_special(path: str | os.PathLike[str]) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)


def _write(path: str | os.PathLike[str], write_to: Callable[[str], object]) -> None:
    name = os.fspath(path)
    try:
        if _is_special(name):
            write_to(name)
            return
        target = os.path.realpath(name)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(target), prefix=".quark_numba_") as folder:
            write_to(os.path.join(folder, os.path.basename(target)))
            for each in sorted(os.listdir(folder), key=lambda each: each == os.path.basename(target)):  # model after data
                _put(os.path.join(folder, each), os.path.realpath(os.path.join(os.path.dirname(target), each)))
    except Exception as error:  # of the file, or of protobuf if something other than an initializer is too large
        reraise_of_signal_handler(error)
        raise ModelError(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def _put(written: str, target: str) -> None:
    """Replace the target by a written file, and keep the target's mode. If the target has several names, change the file behind
    all of them."""
    try:
        before = os.stat(target)
    except FileNotFoundError:
        fresh = f"{written}.fresh"
        open(fresh, "x").close()
        os.chmod(written, stat.S_IMODE(os.stat(fresh).st_mode))
    else:
        if before.st_nlink > 1:
            shutil.copyfile(written, target)
            return
        os.chmod(written, stat.S_IMODE(before.st_mode))
        with suppress(AttributeError, PermissionError):  # on Windows; for another user's file
            os.chown(written, before.st_uid, before.st_gid)
    os.replace(written, target)
