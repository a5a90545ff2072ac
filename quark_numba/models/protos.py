"""Walks through the messages of onnx: graphs in nodes, the names that nodes use, tensors, and those with elements in files. As
in onnx, files outside of the folder of the model are refused."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Collection, Container, Iterator
from typing import Any

import onnx
import onnx_ir as ir
from onnx import external_data_helper
from onnx.external_data_helper import uses_external_data

from ..errors import ModelError, errors_named, file_error

# Initializers of more bytes stay in their files until their elements are needed.
_LARGE = 1 << 16

# The bytes of larger tensors are not counted when a model is read.
_COUNTED = 1 << 26


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes(*graphs: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of graphs, each before those of its subgraphs."""
    for graph in graphs:
        for node in graph.node:
            yield node
            yield from nodes(*subgraphs(node))


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """All graphs of a model: the main one, local functions, those of a training, and the graphs in nodes of these."""
    training = (graph for info in model.training_info for graph in (info.initialization, info.algorithm))
    waiting: list[Any] = [model.graph, *model.functions, *training]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            waiting += subgraphs(node)


def used_names(node: onnx.NodeProto) -> Iterator[str]:
    """The names of the values that a node takes, and that its subgraphs take from outside of them."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        inner = {value.name for value in (*graph.input, *graph.initializer)}
        for inner_node in graph.node:
            yield from (name for name in used_names(inner_node) if name not in inner)
            inner.update(inner_node.output)
        yield from (output.name for output in graph.output if output.name not in inner)


def tensors(model: onnx.ModelProto, leave: Container[str] = ()) -> Iterator[onnx.TensorProto]:
    """All tensors of a model, those of attributes included, except for the initializers of the main graph in `leave`."""
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
    initializers of the main graph. As in onnx, files elsewhere are refused. Raise ModelError if a tensor cannot be read."""
    staying = [] if large else [item for item in model.graph.initializer if item.name not in leave and nbytes(item) > _LARGE]
    readers = [(tensor, _check_can_be_read) for tensor in staying if uses_external_data(tensor)]
    readers += [(tensor, _read) for tensor in _external(model, {*leave, *(tensor.name for tensor in staying)})]
    place, checked = os.path.realpath(folder) if readers else "", set()
    for tensor, read in readers:
        with errors_named(f"{name}: tensor {tensor.name}", with_type=False):
            location = _info(tensor).location
            try:
                if location not in checked:
                    _check_place(location, place)
                    checked.add(location)
                read(tensor, os.fspath(folder))
            except OSError as error:
                raise file_error(f"{name}: tensor {tensor.name}: {location}", error) from None


def in_memory(tensor: onnx.TensorProto, folder: str) -> onnx.TensorProto:
    """Return the tensor with its elements, which may be in a file of the folder. Raise ModelError if they cannot be read."""
    if not uses_external_data(tensor):
        return tensor
    model = onnx.ModelProto()
    model.graph.initializer.append(tensor)
    load_tensors(model, folder)
    return model.graph.initializer[0]


def _read(tensor: onnx.TensorProto, folder: str) -> None:
    has_length = _info(tensor).length is not None
    external_data_helper.load_external_data_for_tensor(tensor, folder)
    expected = nbytes(tensor)
    if expected and not has_length:
        tensor.raw_data = tensor.raw_data[:expected]
    if expected and len(tensor.raw_data) != expected:
        raise ValueError(f"it has {len(tensor.raw_data)} bytes; expected {expected}")
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def nbytes(tensor: onnx.TensorProto) -> int:
    """Return the number of bytes of the elements of a tensor; 0 if its type has no fixed size."""
    try:
        return -(-ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims) // 8)
    except (TypeError, ValueError):
        return 0


def _info(tensor: onnx.TensorProto) -> external_data_helper.ExternalDataInfo:
    """Return where the elements of a tensor in a file are. Raise ValueError if that is not valid."""
    for entry in tensor.external_data:
        if entry.key in ("offset", "length") and not re.fullmatch("[0-9]+", entry.value):
            raise ValueError(f"{entry.key} {entry.value!r}; expected a number of digits")
    try:
        return external_data_helper.ExternalDataInfo(tensor)
    except (AttributeError, TypeError) as error:  # of older versions of onnx, for other keys
        raise ValueError(error) from None


def _check_place(location: str, folder: str) -> None:
    """Raise an exception if a file is not in this folder, a real path, or has other names: older versions of onnx follow
    links."""
    named = os.path.join(folder, location)
    path = os.path.normpath(named)
    if not os.path.normcase(os.path.join(path, "")).startswith(os.path.normcase(os.path.join(folder, ""))):
        raise ValueError(f"{location!r} is outside of the folder of the model; expected a file in it")
    if os.path.normcase(os.path.realpath(named)) != os.path.normcase(path):
        raise ValueError(f"{location!r} leads through a link; expected a file without links")
    state = os.stat(path)
    if stat.S_ISDIR(state.st_mode):
        raise ValueError(f"{location!r} is a folder; expected a file")
    if state.st_nlink > 1:
        raise ValueError(f"{location!r} has {state.st_nlink} hard links; expected a file with one")


def _check_can_be_read(tensor: onnx.TensorProto, folder: str) -> None:
    """Raise an exception unless the file of a tensor is one that onnx reads, and has all bytes of the tensor."""
    info, size = _info(tensor), nbytes(tensor)
    if info.length not in (None, size):
        raise ValueError(f"it has {info.length} bytes in {info.location}; expected {size}")
    last = onnx.TensorProto(name=tensor.name)
    refer(last, info.location, (info.offset or 0) + size - 1, 1)
    _read(last, folder)
    if len(last.raw_data) != 1:
        raise ValueError(f"{info.location} ends within it")


def refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Let a tensor without elements refer to bytes of a file."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": length}.items():
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
_FIELDS, _MOST_PER_ENTRY = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"), 4


def check_sizes(model: onnx.ModelProto, name: str, leave: Container[str], most: int | None) -> None:
    """Raise ModelError if a tensor other than the initializers in `leave` has a negative dimension, other bytes than its
    elements need, or fewer numbers than can hold them. `most` is the size of the model's file; None: unknown. Asking for the
    bytes copies them, so those of larger tensors are not counted."""
    for tensor in tensors(model, leave):
        if any(dim < 0 for dim in tensor.dims):
            raise ModelError(f"{name}: tensor {tensor.name}: its shape is {(*tensor.dims,)}; expected no negative dimension")
        expected = nbytes(tensor) if tensor.HasField("raw_data") else 0
        if most is not None and expected > most:
            raise ModelError(f"{name}: tensor {tensor.name}: its shape needs {expected} bytes, and the file has {most}")
        if 0 < expected <= _COUNTED and (size := len(tensor.raw_data)) != expected:
            raise ModelError(f"{name}: tensor {tensor.name}: it has {size} bytes; expected {expected}")
        given, elements = sum(len(getattr(tensor, field)) for field in _FIELDS), math.prod(tensor.dims)
        if given and elements > _MOST_PER_ENTRY * given:
            raise ModelError(f"{name}: tensor {tensor.name}: its shape has {elements} elements, and it has {given} numbers")


def _external(model: onnx.ModelProto, leave: Container[str]) -> Iterator[onnx.TensorProto]:
    """Yield the tensors in files, except for the initializers in `leave`."""
    return filter(uses_external_data, tensors(model, leave))


def locations(model: onnx.ModelProto, leave: Container[str] = ()) -> set[str]:
    """Return the files of external data, without those of initializers in `leave` alone. Raise ModelError for an entry that is
    not valid."""
    return {_location(tensor) for tensor in _external(model, leave)}


def _location(tensor: onnx.TensorProto) -> str:
    try:
        return str(_info(tensor).location)
    except ValueError as error:
        raise ModelError(f"tensor {tensor.name}: {error}") from None
