"""Find out which tensors of a model session options replace.

A user can give a session other weights than those of the model: by ``SessionOptions.add_initializer`` for a tensor of the
model, by ``add_external_initializers`` for a tensor in a file, and by ``add_external_initializers_from_files_in_memory`` for
whole files. Such a tensor is not a constant, so `optimize` must not fold it. But the options do not list the replaced tensors.

So `find_replacements` asks ONNX Runtime, with probes. A probe is a small model without nodes. It has initializers with names
and types of the model's constants, and outputs them. ONNX Runtime makes a session of the probe with the user's options, and
replaces the initializers as it would replace the model's. Its error, or the outputs of the session, show which it replaced:

1. Which tensors in files does ``add_external_initializers`` replace (`_find_in_place_of_files`)? In the probe, tensors are in
   a file that does not exist. ONNX Runtime reads the file of a tensor that is not replaced, and fails. It also fails if a
   tensor that was added is missing in the probe, and names the tensor. So the probe starts without tensors, and gets those that
   errors name, one by one, until there is no error. (After the first error, a probe with all of them is tried.)
2. Are there files in memory (``options.has_files_in_memory``)? The probe has the tensors of step 1, and one more in a file that
   does not exist. If the error differs from the error with new options, ONNX Runtime looked for the file in memory.
3. Only if so: are the files of all other tensors in memory (`_find_from_memory`)? The probe has the tensors of step 1, and the
   others with the names of their own files. The others are empty, because nothing has to be read. No error: all are replaced.
4. Which of the remaining initializers does ``add_initializer`` replace (`find_replacements`)? In the probe they are empty. An
   output that is not empty was replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data

from ..element_types import external_data, find
from ..errors import ModelError, errors_named
from ..models.protos import subgraphs
from ..rewriting.onnx_runtime import RELEASE
from .session_options import Replacements, create_probe_session, find_error, has_files_in_memory

# A name that no tensor of a model has, and the location of a file that does not exist.
_OWN, _NO_FILE = "of quark_numba alone", "quark_numba has no such file"

# The types that ONNX Runtime can replace, besides the types of the package.
_OTHER_TYPES = {TensorProto.INT64, TensorProto.UINT64, TensorProto.BOOL}

# The types of a node Constant's tensor, where an attribute has no tensor.
_TYPES_OF_ATTRIBUTES = {
    **dict.fromkeys(("value_float", "value_floats"), TensorProto.FLOAT),
    **dict.fromkeys(("value_int", "value_ints"), TensorProto.INT64),
}


def find_replacements(model: onnx.ModelProto, options: onnxruntime.SessionOptions, providers: Any = None) -> Replacements:
    """Return what the options of a session replace in a model: by ``SessionOptions.add_initializer``,
    ``add_external_initializers`` and ``add_external_initializers_from_files_in_memory``.

    ONNX Runtime's exception is raised if an added initializer is not in the model, or has another type or shape, or if a file
    is not among those in memory. Raise ModelError if a node Constant is in a file while files are in memory."""
    in_files = _find_in_place_of_files(model, options, providers)
    added = [_put_in_file(tensor, _NO_FILE) for tensor in _walk_files(model) if tensor.name in in_files]
    from_memory = has_files_in_memory(options, make_probe_of_a_file(), make_probe_of_a_file(added), providers)
    if from_memory:
        in_files |= _find_from_memory(model, options, added, providers)
    empty = [tensor for tensor in _make_empty(model) if tensor.name not in in_files]
    if not empty:
        return Replacements(in_files, in_files, from_memory)
    names = [tensor.name for tensor in empty]
    values = create_probe_session(_write_probe([*empty, *added]), options, providers).run_with_ort_values(names, {})
    replaced = {name for name, value in zip(names, values, strict=True) if value.shape() != [0]}
    return Replacements(in_files | replaced, in_files, from_memory)


def _find_in_place_of_files(model: onnx.ModelProto, options: onnxruntime.SessionOptions, providers: Any) -> frozenset[str]:
    """Return the initializers in files that were added to the options. ONNX Runtime requires every added initializer to be in
    the model, and its error names one that is missing. If an initializer in a file was not added, ONNX Runtime reads the
    file."""
    tensors = {tensor.name: _put_in_file(tensor, _NO_FILE) for tensor in _walk_files(model)}
    if not tensors:
        return frozenset()

    def error_with(names: Iterable[str]) -> Exception | None:
        return find_error(_write_probe([tensors[name] for name in names]), options, providers)

    error = error_with(())
    if error and not error_with(tensors):
        return frozenset(tensors)
    names: set[str] = set()
    while error:
        # The message ends with the name of the missing initializer and a period. Names may have spaces: the longest is meant.
        named = (name for name in tensors.keys() - names if str(error).endswith(f" {name}."))
        missing = max(named, key=len, default=None)
        if missing is None:
            raise error
        names.add(missing)
        error = error_with(names)
    return frozenset(names)


def _find_from_memory(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions, added: Sequence[TensorProto], providers: Any
) -> frozenset[str]:
    """Return all initializers in files, which options with files in memory replace. `added` are those that were added to the
    options one by one."""
    for node in model.graph.node:
        if any(uses_external_data(attribute.t) for attribute in node.attribute):
            raise ModelError(
                f"node {node.name or node.output[0]!r} has a tensor in a file, and the session options have files in memory; "
                "expected an initializer"
            )
    names = {tensor.name for tensor in added}
    others = {}
    for tensor in _walk_files(model):
        if tensor.name not in names:
            with errors_named(f"tensor {tensor.name}", with_type=False):
                location = external_data.place_of(tensor).location
            others[location] = _put_in_file(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]), location)
    error = find_error(_write_probe([*added, *others.values()]), options, providers)
    if error:
        raise error
    return frozenset(tensor.name for tensor in _walk_files(model))


def make_probe(model: onnx.ModelProto) -> bytes:
    """Return the probe that tells whether options replace any initializer of a model. The output of a replaced initializer is
    not empty."""
    return _write_probe(_make_empty(model))


def make_probe_of_a_file(added: Sequence[TensorProto] = ()) -> bytes:
    """Return the probe for ``options.has_files_in_memory``, with the initializers that options add in the place of files."""
    return _write_probe([*added, _put_in_file(TensorProto(name="in a file", data_type=TensorProto.FLOAT, dims=[1]), _NO_FILE)])


def _make_empty(model: onnx.ModelProto) -> list[TensorProto]:
    """Return empty tensors with the names and types of all that ONNX Runtime can replace: the initializers of the graph and of
    its subgraphs, and the tensors of nodes Constant."""
    tensors = {}
    for name, data_type in _walk_constants(model.graph):
        element_type = find(data_type)
        if element_type.has_tensors(RELEASE) if element_type else data_type in _OTHER_TYPES:
            tensors[name] = TensorProto(name=name, data_type=data_type, dims=[0])
    return [*tensors.values()]


def _walk_constants(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the names and types of the initializers and the tensors of Constant nodes, also in subgraphs."""
    for tensor in _drop_unnamed(graph.initializer):
        yield tensor.name, tensor.data_type
    for node in graph.node:
        for subgraph in subgraphs(node):
            yield from _walk_constants(subgraph)
        if (node.domain, node.op_type) == ("", "Constant"):
            types = (_TYPES_OF_ATTRIBUTES.get(attribute.name, attribute.t.data_type) for attribute in node.attribute)
            yield from ((name, data_type) for name, data_type in zip(node.output, types, strict=False) if isinstance(name, str))


def _walk_files(model: onnx.ModelProto) -> Iterator[TensorProto]:
    return filter(uses_external_data, _drop_unnamed(model.graph.initializer))


def _drop_unnamed(tensors: Iterable[TensorProto]) -> Iterator[TensorProto]:
    return (tensor for tensor in tensors if isinstance(tensor.name, str))  # names that are not UTF-8 are bytes


def _put_in_file(tensor: TensorProto, location: str) -> TensorProto:
    """Return a tensor of the same name, type and shape in another file."""
    file = onnx.StringStringEntryProto(key="location", value=location)
    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL, external_data=[file]
    )


def _write_probe(tensors: Sequence[TensorProto]) -> bytes:
    """Return a model that outputs these initializers, and one more, because a model has to have an output."""
    tensors = [TensorProto(name=_OWN, data_type=TensorProto.FLOAT, dims=[0]), *tensors]
    outputs = [helper.make_tensor_value_info(tensor.name, tensor.data_type, None) for tensor in tensors]
    graph = helper.make_graph([], "initializers", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7).SerializeToString()
