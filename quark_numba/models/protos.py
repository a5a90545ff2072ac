"""Walks through the messages of onnx: graphs in nodes, the names that nodes use, tensors, and tensors with elements in files:
from which size on they stay there, which are refused, and the errors of files that are missing or cannot be read."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from onnx import helper
from onnx.external_data_helper import uses_external_data

from ..element_types import external_data
from ..errors import ModelError, errors_named, file_error

# Initializers of more bytes stay in their files until their elements are needed.
_LARGE = 1 << 16

# The bytes of larger tensors are not counted when a model is read.
_COUNTED = 1 << 26


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: value_of(attribute) for attribute in node.attribute}


def value_of(attribute: onnx.AttributeProto) -> Any:
    """Return the value of an attribute. Text that is not UTF-8 becomes other text."""
    value = helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def nodes(*graphs: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of graphs, each before the nodes of its subgraphs."""
    for graph in graphs:
        for node in graph.node:
            yield node
            yield from nodes(*subgraphs(node))


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield all graphs of a model: the main graph, local functions, the graphs of a training, and the graphs in the nodes of
    all of them."""
    training = (graph for info in model.training_info for graph in (info.initialization, info.algorithm))
    waiting: list[Any] = [model.graph, *model.functions, *training]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            waiting += subgraphs(node)


def used_names(node: onnx.NodeProto) -> Iterator[str]:
    """Return the names of the values that a node takes, and that its subgraphs take from outside."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        inner = {value.name for value in (*graph.input, *graph.initializer)}
        for inner_node in graph.node:
            yield from (name for name in used_names(inner_node) if name not in inner)
            inner.update(inner_node.output)
        yield from (output.name for output in graph.output if output.name not in inner)


def tensors(model: onnx.ModelProto, leave: Container[str] = ()) -> Iterator[onnx.TensorProto]:
    """Yield all tensors of a model, including the tensors in attributes, except for the initializers of the main graph in
    `leave`."""
    for graph in graphs(model):
        sparse = []
        if isinstance(graph, onnx.GraphProto):
            yield from (tensor for tensor in graph.initializer if graph is not model.graph or tensor.name not in leave)
            sparse += graph.sparse_initializer
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                sparse += (attribute.sparse_tensor, *attribute.sparse_tensors)
        for sparse_tensor in sparse:
            yield from (sparse_tensor.values, sparse_tensor.indices)


def load_tensors(
    model: onnx.ModelProto,
    folder: str | os.PathLike[str],
    name: str = "the model",
    leave: Collection[str] = (),
    *,
    large: bool = True,
) -> None:
    """Read the external data of a model from a folder, except for the initializers in `leave` and, without `large`, for large
    initializers of the main graph. Raise ModelError if a tensor cannot be read, or is in a file outside of the folder."""
    staying = [] if large else [item for item in model.graph.initializer if item.name not in leave and nbytes(item) > _LARGE]
    readers = [(tensor, _check_can_be_read) for tensor in staying if uses_external_data(tensor)]
    readers += [(tensor, _read) for tensor in _external(model, {*leave, *(tensor.name for tensor in staying)})]
    location, file = None, None
    with ExitStack() as files:  # of one file at a time, as each tensor may have its own
        for tensor, read in readers:
            with _errors_of(tensor, name):
                if file is None or _location(tensor) != location:
                    files.close()
                    location, file = _location(tensor), None
                    file = files.enter_context(external_data.opened_without_links(location, os.fspath(folder)))
                read(tensor, file)


@contextmanager
def _errors_of(tensor: onnx.TensorProto, name: str) -> Iterator[None]:
    """Turn the error of a tensor in a file into ModelError, whose message names the tensor and the model `name`."""
    with errors_named(f"{name}: tensor {tensor.name}", with_type=False):
        try:
            yield
        except OSError as error:
            raise file_error(f"{name}: tensor {tensor.name}: {_location(tensor)}", error) from None


def folders_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the folder of a model's path, and that of the path without links. The Hugging Face hub's cache has links to the
    model and to its files."""
    return os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path))


def resolve_links(
    model: onnx.ModelProto, folders: Sequence[str | os.PathLike[str]], name: str, leave: Collection[str] = ()
) -> str:
    """Let the tensors in files refer to them without links, and return the folder in which they do. They are named in the first
    of these folders, and may be below any of them. Initializers in `leave` stay as they are. Raise ModelError if a file is
    elsewhere."""
    folder, *others = [os.fspath(each) for each in folders]
    real = os.path.realpath(folder)
    found: dict[str, str] = {}
    external = [*_external(model, leave)]
    for tensor in external:
        with _errors_of(tensor, name):
            location = _location(tensor)
            if location not in found:
                found[location] = external_data.real_path(location, folder, *others)
    if all(os.path.normpath(os.path.join(real, location)) == path for location, path in found.items()):
        return folder
    with errors_named(name, with_type=False):  # links between the drives of Windows
        root = os.path.commonpath([real, *(os.path.realpath(each) for each in others)])
    for tensor in external:
        place = external_data.place_of(tensor)
        del tensor.external_data[:]
        refer(tensor, os.path.relpath(found[place.location], root), place.offset, place.length)
    return root


def in_memory(tensor: onnx.TensorProto, folder: str) -> onnx.TensorProto:
    """Return the tensor with its elements, which may be in a file of the folder. Raise ModelError if they cannot be read."""
    if not uses_external_data(tensor):
        return tensor
    model = onnx.ModelProto()
    model.graph.initializer.append(tensor)
    load_tensors(model, folder)
    return model.graph.initializer[0]


def _read(tensor: onnx.TensorProto, file: BinaryIO) -> None:
    size = nbytes(tensor) or (None if all(tensor.dims) else 0)  # None: its type has no size
    tensor.raw_data = external_data.read_from(file, tensor, size)
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def nbytes(tensor: onnx.TensorProto) -> int:
    """Return the number of bytes of the elements of a tensor; 0 if its type has no fixed size."""
    with suppress(TypeError, ValueError):
        return -(-ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims) // 8)
    return 0


def _check_can_be_read(tensor: onnx.TensorProto, file: BinaryIO) -> None:
    """Raise an exception unless the file of a tensor has all its bytes."""
    place, size = external_data.place_of(tensor), nbytes(tensor)
    if place.length not in (None, size):
        raise ValueError(f"it has {place.length} bytes in {place.location}; expected {size}")
    last = onnx.TensorProto(name=tensor.name)
    refer(last, place.location, (place.offset or 0) + size - 1, 1)
    external_data.read_from(file, last, 1)


def refer(tensor: onnx.TensorProto, location: str, offset: int | None, length: int | None) -> None:
    """Let a tensor without elements refer to bytes of a file."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))


def check_is_whole(model: onnx.ModelProto, leave: Container[str]) -> None:
    """Raise ModelError if a tensor other than the initializers in `leave` is in a file: the author of the model might name any
    file that this process can read."""
    for tensor in _external(model, leave):
        raise ModelError(
            f"tensor {tensor.name} is in the file {_location(tensor)!r}, and a model without a path has no folder; expected "
            "the path of a model, or a model with all tensors in it, as onnx.load returns it"
        )


# The fields of a tensor's elements other than raw_data, and the most elements of one number in them: of 2 bits in a byte.
_FIELDS, _MAX_PER_ENTRY = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"), 4


def check_sizes(model: onnx.ModelProto, name: str, leave: Container[str], most: int | None) -> None:
    """Raise ModelError if a tensor other than the initializers in `leave` has a negative dimension, other bytes than its
    elements need, or fewer numbers than can hold them. `most` is the size of the model file, or None if it is unknown. Asking
    for the bytes copies them, so those of larger tensors are not counted."""
    for tensor in tensors(model, leave):
        if any(dim < 0 for dim in tensor.dims):
            raise ModelError(f"{name}: tensor {tensor.name}: its shape is {(*tensor.dims,)}; expected no negative dimension")
        expected = nbytes(tensor) if tensor.HasField("raw_data") else 0
        if most is not None and expected > most:
            raise ModelError(f"{name}: tensor {tensor.name}: its shape needs {expected} bytes, and the file has {most}")
        if 0 < expected <= _COUNTED and (size := len(tensor.raw_data)) != expected:
            raise ModelError(f"{name}: tensor {tensor.name}: it has {size} bytes; expected {expected}")
        numbers, elements = sum(len(getattr(tensor, field)) for field in _FIELDS), math.prod(tensor.dims)
        if numbers and elements > _MAX_PER_ENTRY * numbers:
            raise ModelError(f"{name}: tensor {tensor.name}: its shape has {elements} elements, and it has {numbers} numbers")


def _external(model: onnx.ModelProto, leave: Container[str]) -> Iterator[onnx.TensorProto]:
    """Yield the tensors in files, except for the initializers in `leave`."""
    return filter(uses_external_data, tensors(model, leave))


def locations(model: onnx.ModelProto, leave: Container[str] = ()) -> set[str]:
    """Return the files of external data, without those of initializers in `leave` alone. Raise ModelError for an entry that is
    not valid."""
    return {_location(tensor) for tensor in _external(model, leave)}


def _location(tensor: onnx.TensorProto) -> str:
    try:
        return str(external_data.place_of(tensor).location)
    except ValueError as error:
        raise ModelError(f"tensor {tensor.name}: {error}") from None
