"""The nodes that ONNX Runtime fuses into its own operators, found by letting ONNX Runtime optimize the model."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from ..errors import MissingFileError, WriteError, reason_of, reraise_of_signal_handler
from ..models.model_files import LEAST_APART, MAX_IN_MEMORY, session_source
from ..models.temporary import temporary_folder
from ..region.step_operators import STEP_OPERATORS
from .graph import Graph
from .stand_ins import skeleton

# The operators into whose weights ONNX Runtime folds a constant Mul or Add that follows them.
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "BatchNormalization")

FUSED = "ONNX Runtime fuses it into one of its own operators"
UNKNOWN = "ONNX Runtime may fuse it; whether it does is not known"


def fused_values(graph: Graph) -> dict[str, str]:
    """Return the outputs of elementwise nodes in the main graph that regions leave to ONNX Runtime: their names, with the
    reason. ONNX Runtime computes these outputs in an operator that is not elementwise. Examples are a Relu in a convolution, a
    Mul folded into its weights, and the parts of Gelu and LayerNormalization.

    ONNX Runtime optimizes the model, without its large tensors and with stand-ins for the package's nodes, and writes the
    result. A value that is missing in the result is part of the nodes that replaced its users. If ONNX Runtime refuses the
    model, it may fuse any elementwise node, so all their outputs are returned.
    """
    initializers = graph.model.graph.initializers
    with_weights = (node for node in graph.model.graph if node.op_type in _WITH_WEIGHTS)
    weights = {value.name or "" for node in with_weights for value in node.inputs[1:] if value} & initializers.keys()
    sizes = [tensor.nbytes for name in weights if (tensor := initializers[name].const_value) is not None]
    file = "zeros" if sum(sizes) > MAX_IN_MEMORY else None
    before = skeleton(graph.model, graph.tensor, frozenset(weights), hide_shapes=True, file=file)
    # ONNX Runtime removes an Identity without fusing it into anything.
    nodes = (node for node in before.graph.node if _is_elementwise(node) and node.op_type != "Identity")
    elementwise = [name for node in nodes for name in node.output]
    try:
        after = _fused(before, file, max(sizes, default=0))
    except Exception as error:
        reraise_of_signal_handler(error)
        graph.write_error = str(error) if isinstance(error, WriteError) else ""
        return dict.fromkeys(elementwise, f"{UNKNOWN}: {str(error).splitlines()[0]}")
    verdicts = {name: _is_elementwise(node) for node in after.graph.node for name in node.output}
    # Nodes come after their inputs. In reverse order, the result for a node's users is known before the node.
    users: dict[str, list[bool]] = defaultdict(list)
    for node in reversed(before.graph.node):
        for name in node.output:
            verdicts.setdefault(name, all(users[name]))
        for name in node.input:
            users[name].append(verdicts.get(node.output[0], True))
    return {name: FUSED for name in elementwise if not verdicts[name]}


def _fused(model: onnx.ModelProto, file: str | None, size: int) -> onnx.ModelProto:
    """Return a model after all of ONNX Runtime's fusions. Its tensors may refer to `size` zeros in a file. ONNX Runtime's
    exceptions are passed on."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if file is None:
        return optimize_by_onnx_runtime(model, options)
    with temporary_folder() as folder:
        with open(os.path.join(folder, file), "wb") as content:
            content.truncate(size)  # which takes no room
        path = os.path.join(folder, "model.onnx")
        Path(path).write_bytes(model.SerializeToString())
        return optimize_by_onnx_runtime(path, options)


def optimize_by_onnx_runtime(
    model: onnx.ModelProto | str, options: onnxruntime.SessionOptions, **named: Any
) -> onnx.ModelProto:
    """Return the model that a session with these arguments would run, as ONNX Runtime writes it. If the model is a path, large
    tensors are written to a file beside it. The options are changed. Raise WriteError if there is no folder or not enough room
    for the file; the session's own exceptions are raised as well."""
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if isinstance(model, str):
        folder = os.path.dirname(model)
        options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimized.onnx.data")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", f"{LEAST_APART}")
        with _written(options, folder):
            onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"], **named)
            return onnx.load(options.optimized_model_filepath, load_external_data=False)
    with _written(options), temporary_folder() as folder, _written(options):
        options.optimized_model_filepath = os.path.join(folder, "model.onnx")
        with session_source(model) as source:
            onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"], **named)
        return onnx.load(options.optimized_model_filepath)


@contextmanager
def _written(options: onnxruntime.SessionOptions, folder: str | None = None) -> Iterator[None]:
    """Raise WriteError if a file cannot be written within the context. The message names the folder, which is the folder for
    temporary files by default. ONNX Runtime may not report this. It creates the file last, so a missing file means that an
    earlier step failed."""
    try:
        yield
    except (WriteError, MissingFileError):
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not os.path.exists(options.optimized_model_filepath):
            raise
        raise WriteError(f"a temporary file cannot be written: {folder or tempfile.tempdir}: {reason_of(error)}") from error


def _is_elementwise(node: onnx.NodeProto) -> bool:
    """Return whether a node may be a step of a region."""
    return node.domain in ("", "ai.onnx") and node.op_type in STEP_OPERATORS
