"""The initializers that session options replace. Session options do not list them, so sessions of small models that output
initializers are made to find them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data

from ..errors import reraise_of_signal_handler
from .options import cannot_be_asked, probe_session

# The location of a file that does not exist.
_NO_FILE = onnx.StringStringEntryProto(key="location", value="quark_numba has no such file")


def in_place_of_files(model: onnx.ModelProto, options: onnxruntime.SessionOptions) -> frozenset[str]:
    """Return the initializers in files that `options` replace (``SessionOptions.add_external_initializers``).

    ONNX Runtime requires every added initializer to be in the model, and its error names one that is missing. If an initializer
    in a file is not replaced, ONNX Runtime reads the file. ONNX Runtime's exception is raised if an added initializer is not in
    the model, or has another type or shape."""
    tensors = {
        tensor.name: TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            data_location=TensorProto.EXTERNAL,
            external_data=[_NO_FILE],
        )
        for tensor in _named(model)
        if uses_external_data(tensor)
    }
    if not tensors or cannot_be_asked(options):
        return frozenset()
    names: list[str] = []
    error = _error(tensors, names, options)
    if error and not _error(tensors, tensors, options):
        return frozenset(tensors)
    while error:
        missing = [name for name in tensors if str(error).endswith(f" {name}.") and name not in names]
        if not missing:
            raise error
        names.append(max(missing, key=len))
        error = _error(tensors, names, options)
    return frozenset(names)


def replaced(model: onnx.ModelProto, options: onnxruntime.SessionOptions, outside: frozenset[str]) -> frozenset[str]:
    """Return `outside`, and the initializers inside the model that `options` replace (``SessionOptions.add_initializer``). In a
    probe all of them are empty, and the replaced initializers come out not empty."""
    empty = [tensor for tensor in _empty(model) if tensor.name not in outside]
    inside = [tensor.name for tensor in empty]
    if not inside or cannot_be_asked(options):
        return outside
    session = probe_session(_probe([*empty, *(tensor for tensor in _named(model) if tensor.name in outside)]), options)
    values = session.run_with_ort_values(inside, {})
    return outside | {name for name, value in zip(inside, values, strict=True) if value.shape() != [0]}


def probe_of_all(model: onnx.ModelProto) -> bytes:
    """Return the probe that tells whether options replace any initializer of a model: the one that comes out not empty."""
    return _probe(_empty(model))


def _empty(model: onnx.ModelProto) -> list[TensorProto]:
    """Return empty tensors with the names and types of the initializers, as far as ONNX Runtime can replace them."""
    return [
        TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
        for tensor in _named(model)
        if 0 < tensor.data_type <= TensorProto.BFLOAT16
    ]


def _named(model: onnx.ModelProto) -> Iterable[TensorProto]:
    return (tensor for tensor in model.graph.initializer if isinstance(tensor.name, str))  # names that are not UTF-8 are bytes


def _error(tensors: Mapping[str, TensorProto], names: Iterable[str], options: onnxruntime.SessionOptions) -> Exception | None:
    """Return the exception of a session of a model with these initializers; None: the session works."""
    try:
        probe_session(_probe([tensors[name] for name in names]), options)
    except Exception as error:
        reraise_of_signal_handler(error)
        return error
    return None


def _probe(tensors: Sequence[TensorProto]) -> bytes:
    """Return a model that outputs initializers. One is added, because a model has to have an output."""
    tensors = [TensorProto(name="of quark_numba alone", data_type=TensorProto.FLOAT, dims=[0]), *tensors]
    outputs = [helper.make_tensor_value_info(tensor.name, tensor.data_type, None) for tensor in tensors]
    graph = helper.make_graph([], "initializers", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7).SerializeToString()
