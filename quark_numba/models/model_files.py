"""Read models from files, write them, and pass them to sessions: up to which size in memory or in one file, when tensors go to
a file beside, and which files must not be written to."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from ..errors import ModelError, WriteError, errors_named, file_error, reraise_of_signal_handler
from . import files, protos, tensors
from .file_states import State, state_of
from .protos import load_tensors
from .temporary import recover, temporary_folder

# A model as onnx or onnx-ir hold it. With onnx-ir, initializers may be in files, or be computed when they are read.
Model = onnx.ModelProto | ir.Model

# The most bytes of a model in one file: protobuf ends at 2 GiB.
_MAX_BYTES = (1 << 31) - (1 << 24)

# The most bytes of the initializers of a model that sessions are made from in memory. Larger ones are mapped from a file.
MAX_IN_MEMORY = 1 << 26

# In files for ONNX Runtime, tensors of more than a page begin at one: ONNX Runtime maps and releases whole pages.
_PAGE = 1 << 12

# Smaller initializers stay in the file of the model: they may be shapes, which ONNX Runtime has to know.
LEAST_APART = 1 << 10


def load(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return the model at `path`, without its external data. Raise ModelError if the model cannot be read."""
    name = os.fspath(path)
    recover(name)
    with files.errors_of_file(name, "an ONNX model"):
        files.check_is_regular(name, "as models are read more than once")
        if (size := os.path.getsize(name)) >= 1 << 31:
            raise ModelError(f"{name}: {size:,} bytes; expected a file of less than 2 GiB, with tensors in files beside it")
        with open(name, "rb") as file:
            if file.read(8)[4:] == b"ORTM":  # the identifier of ONNX Runtime's flatbuffers
                raise ModelError(f"{name}: a model in ONNX Runtime's own format; expected an ONNX model")
        return onnx.load(path, load_external_data=False)


@contextmanager
def _errors_of_onnx_ir(name: str = "not a valid model") -> Iterator[None]:
    """Turn an exception of onnx-ir in the context into a ModelError of this name with its reason. onnx-ir's own says which
    function failed, at each level of a model, and its innermost cause says why: that a tensor is defined twice, for instance.
    The reason may show a whole tensor, so it is cut."""
    with errors_named(name):
        try:
            yield
        except ir.serde.SerdeError as error:
            cause: BaseException = error
            while isinstance(cause, ir.serde.SerdeError) and cause.__cause__:
                cause = cause.__cause__
            if isinstance(cause, MemoryError):
                raise cause from None
            reraise_of_signal_handler(cause)
            raise ModelError(f"{name}: {textwrap.shorten(str(cause), 300, placeholder=' …')}") from error


def serialized(model: ir.Model) -> onnx.ModelProto:
    with _errors_of_onnx_ir():
        return ir.to_proto(model)


def as_proto(model: Model) -> onnx.ModelProto:
    """Return the model with all its tensors in memory."""
    if isinstance(model, onnx.ModelProto):
        return model
    result = serialized(model)
    in_files = {file_tensor.name: file_tensor for file_tensor in _in_files(model) if file_tensor.base_dir}
    for tensor in result.graph.initializer:
        if tensor.name in in_files:
            content = io.BytesIO()
            tensors.write_to(in_files[tensor.name], content)
            tensor.raw_data = content.getvalue()
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return result


class Source:
    """A model that was read, except for large initializers of the main graph that are in files.

    Small tensors are read into `proto`, from files in `folder`, by default in the folder of `path`. If `folder` and `path` are
    missing, the model has to contain its tensors. Initializers named in `leave` are never read, because session options replace
    them. `state` is that of the file at `path` before it was read. Raise ModelError if a tensor cannot be read."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        folder: str | os.PathLike[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        leave: frozenset[str] = frozenset(),
        state: State | None = None,
    ) -> None:
        name = "the model" if path is None else os.fspath(path)
        self.proto, self.path, self._folder_argument, self._name, self._leave = proto, path, folder, name, leave
        self._state = state
        protos.check_sizes(proto, name, leave, state[0] if state else None)
        folders = [folder] if folder is not None else protos.folders_of(path) if path is not None else []
        # With their links: a link that leads elsewhere later is another model.
        self.named_files = sorted(os.path.join(folders[0], file) for file in protos.locations(proto, leave)) if folders else []
        self._folder = protos.resolve_links(proto, folders, name, leave) if folders else None
        if self._folder is None:
            protos.check_is_whole(proto, leave)
            self._states: dict[str, State] = {}
        else:
            paths = (os.path.join(self._folder, file) for file in protos.locations(proto, leave))
            self._states = {file: state_of(file) for file in paths}
            load_tensors(proto, self._folder, name, leave, large=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Source:
        recover(path)
        state = state_of(path)
        return cls(load(path), path=path, state=state)

    @classmethod
    def from_argument(cls, model: object, name: str = "model", leave: frozenset[str] = frozenset()) -> Source:
        """Return the source of an argument `name`: a model, a path, or a source. Raise TypeError for other types, and
        ModelError if it cannot be used."""
        if isinstance(model, (str, os.PathLike)):
            source = cls.open(model)
        elif isinstance(model, onnx.ModelProto):
            source = cls(model, leave=leave)
        elif isinstance(model, Source):
            source = model
        else:
            raise TypeError(f"{name} is a {type(model).__name__}; expected onnx.ModelProto or a path")
        if not source.proto.HasField("graph"):
            raise ModelError("not an ONNX model: it has no graph")
        return source

    @property
    def folder(self) -> str:
        """The folder of the tensors in files; "" if the model contains all its tensors."""
        return os.fspath(self._folder or "") if self._states else ""

    @property
    def files(self) -> list[str]:
        """The paths of the files that hold tensors of the model."""
        return sorted(self._states)

    @property
    def size(self) -> int:
        """The bytes of the tensors of the model."""
        return sum(map(protos.nbytes, self.proto.graph.initializer))

    @property
    def is_large(self) -> bool:
        """Return whether the tensors of the model are larger than those of a model in memory may be."""
        return self.size > MAX_IN_MEMORY

    @property
    def is_apart(self) -> bool:
        """Return whether the model is large and has tensors in files."""
        return bool(self._states) and self.is_large

    def lazy(self, name: str = "not a valid model") -> ir.Model:
        """Return the model as an onnx-ir model. Large initializers remain in their files. Raise ModelError, whose message
        begins with `name`, if onnx-ir cannot read the model, for instance because it defines a tensor twice."""
        with _errors_of_onnx_ir(name):
            model = ir.from_proto(self.proto)
        for tensor in _in_files(model):
            tensor.base_dir = "" if tensor.name in self._leave else os.fspath(self._folder or "")
        return model

    def whole(self) -> onnx.ModelProto:
        """Return the model after reading all tensors into it."""
        if self._folder is not None:
            load_tensors(self.proto, self._folder, self._name, self._leave)
        return self.proto

    def digest(self) -> str:
        """Return a digest of the model, and of the paths, sizes and times of the files of tensors."""
        content = self.proto.SerializeToString(deterministic=True)
        states = sorted((path, size, time) for path, (size, _, time, *_) in self._states.items())
        return hashlib.sha256(content + repr(states).encode()).hexdigest()

    def reread(self) -> Source:
        """Return the same model, read again from its path."""
        assert self.path is not None
        return Source(load(self.path), self._folder_argument, self.path, self._leave, self._state)

    def forget(self) -> None:
        """Release the memory of the model."""
        self.proto = onnx.ModelProto()

    def check(self) -> None:
        """Raise ModelError if the file of the model or of its tensors was changed since it was read."""
        of_model = {} if self.path is None or self._state is None else {os.fspath(self.path): self._state}
        for path, state in (of_model | self._states).items():
            if state_of(path) != state:
                raise ModelError(f"{path} was changed while it was read")


def _in_files(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield the initializers of the main graph that are in files."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            yield value.const_value


@contextmanager
def session_source(model: Model, folder: str | os.PathLike[str] | None = None) -> Iterator[bytes | str]:
    """Yield the model as onnxruntime.InferenceSession takes it: its bytes, or a path that exists within the context, in a
    temporary folder in `folder`. A ModelProto is written to files if it is too large for one file. A model of onnx-ir is
    written to files if its tensors take more than 64 MB, and then loses its tensors."""
    if _size(model) <= (MAX_IN_MEMORY if isinstance(model, ir.Model) else _MAX_BYTES):
        content = as_proto(model).SerializeToString()
        del model  # it need not stay in memory while the session is made from the bytes
        yield content
        return
    with temporary_folder(folder) as place:
        path = os.path.join(place, "model.onnx")
        save(model, path, apart=isinstance(model, ir.Model))
        if isinstance(model, onnx.ModelProto):  # which has lost its tensors to the file
            load_tensors(model, place)
        yield path


def in_one_file(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model. Raise ModelError if they are too many for one file."""
    if (size := _size(model)) > _MAX_BYTES:
        raise ModelError(f"the model needs {size:,} bytes; expected at most {_MAX_BYTES:,}, as it has to be in one file")
    return model.SerializeToString()


def _size(model: Model) -> int:
    """Return the number of bytes of a model. For a model of onnx-ir, only its initializers count."""
    if isinstance(model, ir.Model):
        return sum(tensor.nbytes for value in model.graph.initializers.values() if (tensor := value.const_value) is not None)
    return sum(proto.ByteSize() for proto in (*model.graph.initializer, *model.graph.node, *model.functions))


def save(model: Model, path: str | os.PathLike[str], *, apart: bool = False, check: Callable[[], object] = bool) -> None:
    """Write a model, whole or not at all, as `files.write_by` does. If it is too large for one file, or with `apart`, the
    tensors go to a file ``path.data``, and `model` loses them. `check` is called when all is read, before files are replaced.
    Raise ModelError if the model cannot be written."""
    is_special, is_large = files.is_special(path), _size(model) > _MAX_BYTES
    apart = is_large or (apart and not is_special)
    if is_large and is_special:
        raise ModelError(f"{os.fspath(path)}: not a regular file, and the model needs two")
    data = os.path.basename(os.path.realpath(path)) + ".data"

    def write_to(written: str) -> None:
        if apart and isinstance(model, ir.Model):
            write_apart(model, written)
        else:
            onnx.save(as_proto(model), written, "protobuf", save_as_external_data=apart, location=data)
        check()

    files.write_by(path, write_to)


def without_elements(model: ir.Model) -> onnx.ModelProto:
    """Return the model with only the types and shapes of initializers that are computed when they are read."""
    computed = {
        value: value.const_value
        for value in model.graph.initializers.values()
        if isinstance(value.const_value, tensors.ComputedTensor)
    }
    for value, tensor in computed.items():
        shape, name = ir.Shape(tensor.shape.numpy()), value.name or ""
        value.const_value = ir.ExternalTensor("computed", 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)
    try:
        return serialized(model)
    finally:
        for value, tensor in computed.items():
            value.const_value = tensor


def is_large(model: ir.Model) -> bool:
    """Return whether the tensors take more than 64 MB, so that sessions memory-map the model from a file."""
    return _size(model) > MAX_IN_MEMORY


def write_apart(model: ir.Model, path: str) -> onnx.ModelProto:
    """Write a model, and its initializers to ``path.data``, one at a time. Return the model without its initializers. Raise
    WriteError if the disk has not enough space."""
    lazy = [(value, tensor) for value in model.graph.initializers.values() if (tensor := _apart(value))]
    needed = sum(tensor.nbytes + _PAGE for _, tensor in lazy)
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < needed:
        raise WriteError(f"{os.path.dirname(path)}: {needed / 1e9:.2f} GB are needed, and {free / 1e9:.2f} GB are free")
    data = os.path.basename(path) + ".data"
    with _named(os.path.dirname(path)), open(f"{path}.data", "wb") as file:
        for value, tensor in lazy:
            offset = -(-file.tell() // _PAGE) * _PAGE if tensor.nbytes >= _PAGE else file.tell()
            file.seek(offset)
            tensors.write_to(tensor, file)
            value.const_value = ir.ExternalTensor(
                data, offset, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
            )
        result = serialized(model)
        Path(path).write_bytes(result.SerializeToString())
    return result


@contextmanager
def _named(folder: str) -> Iterator[None]:
    """Raise WriteError with the name of the folder if it cannot be written to, for instance because the disk is full."""
    try:
        yield
    except ModelError:
        raise
    except OSError as error:
        raise file_error(folder, error, WriteError) from error


def appended(tensor: onnx.TensorProto, folder: str, location: str) -> onnx.TensorProto:
    """Append the bytes of a tensor to a file of the folder, and return the tensor that refers to them."""
    with _named(folder), open(os.path.join(folder, location), "ab") as file:
        offset = -(-file.tell() // _PAGE) * _PAGE
        file.write(bytes(offset - file.tell()))
        file.write(tensor.raw_data)
    result = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    protos.refer(result, location, offset, len(tensor.raw_data))
    return result


def _apart(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer if it goes to the file of tensors. One that session options replace has no folder,
    and stays as it is."""
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < LEAST_APART:
        return None
    return None if isinstance(tensor, ir.ExternalTensor) and not tensor.base_dir else tensor


def check_written(
    written: Iterable[str],
    models: Iterable[str | os.PathLike[str]],
    others: Iterable[str | os.PathLike[str]],
    expected: str = "another file",
) -> None:
    """Raise ModelError if a file is to be written that is read, or to be written twice, or that cannot be a file. The files
    that are read are the models, their tensors, and `others`, which may be folders of files. `expected` ends the message of a
    file that is read."""
    paths: list[str] = []
    for path in written:
        if os.path.isdir(path):
            raise ModelError(f"{path}: {os.strerror(errno.EISDIR)}")
        if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
            raise ModelError(f"{path}: {os.strerror(errno.ENOENT)}")
        if os.path.realpath(path) in map(os.path.realpath, paths) or files.is_one_of(path, paths):
            raise ModelError(f"{path}: to be written twice; expected different files")
        paths.append(path)
    if not any(map(os.path.isfile, paths)):
        return  # so there is nothing to be lost
    read = [file for other in others for file in (Path(other).glob("*") if os.path.isdir(other) else [other])]
    for model in models:
        folder = os.path.dirname(os.path.abspath(model))
        read += [model, *(os.path.join(folder, file) for file in protos.locations(load(model)))]
    for path in paths:
        for file in read:
            if files.is_one_of(path, [file]):
                raise ModelError(f"{path}: it is {os.fspath(file)}, which is read; expected {expected}")
