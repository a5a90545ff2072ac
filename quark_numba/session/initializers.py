"""The initializers that session options replace. The options do not list them, so sessions of small models that output
initializers show which these are."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data

from ..errors import reraise_of_signal_handler
from ..ort import entry

# Of a file that is nowhere.
_NO_FILE = onnx.StringStringEntryProto(key="location", value="quark_numba has no such file")


def in_place_of_files(model: onnx.ModelProto, options: onnxruntime.SessionOptions) -> frozenset[str]:
    """The initializers of the model in files for which `options` have others (``SessionOptions.add_external_initializers``).

    ONNX Runtime wants each that it has in the model, names one that is missing, and reads the file of one that it has not.
    Raises what it raises if one is not in the model, or of another type or shape."""
    tensors = {
        each.name: TensorProto(
            name=each.name,
            data_type=each.data_type,
            dims=each.dims,
            data_location=TensorProto.EXTERNAL,
            external_data=[_NO_FILE],
        )
        for each in _named(model)
        if uses_external_data(each)
    }
    if not tensors or _cannot_be_asked(options):
        return frozenset()
    found: list[str] = []
    error = _error(tensors, found, options)
    if error and not _error(tensors, tensors, options):
        return frozenset(tensors)
    while error:
        missing = [name for name in tensors if str(error).endswith(f" {name}.") and name not in found]
        if not missing:
            raise error
        found.append(max(missing, key=len))
        error = _error(tensors, found, options)
    return frozenset(found)


def replaced(model: onnx.ModelProto, options: onnxruntime.SessionOptions, outside: frozenset[str]) -> frozenset[str]:
    """These, and the initializers in the model for which `options` have others (``SessionOptions.add_initializer``): what is no
    longer empty."""
    tensors = {each.name: each for each in _named(model)}
    inside = [name for name, each in tensors.items() if name not in outside and 0 < each.data_type <= TensorProto.BFLOAT16]
    if not inside or _cannot_be_asked(options):
        return outside
    empty = [TensorProto(name=name, data_type=tensors[name].data_type, dims=[0]) for name in inside]
    session = _session(_probe([*empty, *(tensors[name] for name in outside)]), options)
    found = session.run_with_ort_values(inside, {})
    return outside | {name for name, value in zip(inside, found, strict=True) if value.shape() != [0]}


def _named(model: onnx.ModelProto) -> Iterable[TensorProto]:
    return (each for each in model.graph.initializer if isinstance(each.name, str))  # those that are no UTF-8 come as bytes


def _cannot_be_asked(options: onnxruntime.SessionOptions) -> bool:
    """ONNX Runtime has no session of the one provider that this package is for then."""
    return bool(entry(options, "session.disable_cpu_ep_fallback") == "1")


def _error(tensors: Mapping[str, TensorProto], names: Iterable[str], options: onnxruntime.SessionOptions) -> Exception | None:
    """The error of a session of a model with these initializers; None if it loads."""
    before, probe = _profiles(options), _probe([tensors[name] for name in names])
    try:
        _session(probe, options)
    except Exception as error:
        reraise_of_signal_handler(error)
        for path in _profiles(options) - before:  # there is no session to end it
            os.remove(path)
        return error
    return None


def _profiles(options: onnxruntime.SessionOptions) -> set[str]:
    return {*glob.glob(f"{glob.escape(options.profile_file_prefix)}*")} if options.enable_profiling else set()


def _probe(tensors: Sequence[TensorProto]) -> bytes:
    """A model that puts out initializers. It has to have one."""
    tensors = [TensorProto(name="of quark_numba alone", data_type=TensorProto.FLOAT, dims=[0]), *tensors]
    outputs = [helper.make_tensor_value_info(each.name, each.data_type, None) for each in tensors]
    graph = helper.make_graph([], "initializers", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7).SerializeToString()


def _session(probe: bytes, options: onnxruntime.SessionOptions) -> Any:
    """A session of the probe, which leaves no file of profiling behind."""
    session = onnxruntime.InferenceSession(probe, options, ["CPUExecutionProvider"])
    if options.enable_profiling:
        os.remove(session.end_profiling())
    return session
