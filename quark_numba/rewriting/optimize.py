"""`optimize`: a model with fewer, cheaper quantization nodes, which give the same bits."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ..errors import ModelError, reraise_of_signal_handler
from . import constants, functions, model_files, pairs, regions, round_trips, standard_operators
from .graph import Graph

# The passes, in order. A pass goes through all nodes, and gives a reason for each node that stays as it is.
PASSES = (standard_operators, constants, round_trips, pairs, regions)


def optimize(
    model: onnx.ModelProto | str | os.PathLike[str],
    *,
    keep_codes: bool = False,
    standard_ops: bool = False,
    regions: bool = True,
) -> onnx.ModelProto:
    """Return the model with cheaper quantization nodes. The outputs of each quantization keep every bit:

    - Nodes whose inputs are all constants are folded into initializers.
    - A quantize node and a dequantize node with the same parameters are fused into one
      ``quark_numba::QuantizeDequantizeLinear``, version 1 (see `quantize_dequantize`, `register_schemas`), in float32. Equal
      dequantize nodes behind one quantize node become one.
    - Such a node and the elementwise nodes next to it are merged into one ``quark_numba::Region``, version 1, which runs in one
      pass over memory.
    - A quantize node behind a dequantize node with the same constant parameters is dropped if every code comes back, for
      integers of up to 16 bits.

    Subgraphs are rewritten alike. Local functions with nodes of the package's operators are inlined first. All else stays
    as it is. Sessions need this package's operators (`register`, `InferenceSession`), as for the original.

    Parameters
    ----------
    model : onnx.ModelProto, or the path of a model
        The model, which is not changed. Tensors in files beside it are read. A ModelProto must have all tensors in it.
    keep_codes : bool
        Leave constants quantized, with one dequantize node each: a smaller model, which does more work in a run. Block formats
        have no dequantize node and become float constants in any case.
    standard_ops : bool
        Whether this package also runs ONNX's own QuantizeLinear and DequantizeLinear in sessions (see `register`). Otherwise
        these nodes, and those of com.microsoft, stay if they quantize activations anywhere in the model, because ONNX Runtime
        fuses them with their neighbours into integer operators; and if its results may differ from the specification.
    regions : bool
        Whether to write ``quark_numba::Region``, which only sessions of the native way have.

    Returns
    -------
    onnx.ModelProto: a new one, with all tensors in it.

    Raises
    ------
    ModelError
        If the path leads to no model, or a tensor cannot be read.
    TypeError
        If `model` is neither a model nor a path.
    """
    return optimized(model, keep_codes=keep_codes, standard_ops=standard_ops, regions=regions).model


@dataclass
class Optimized:
    """A model, with an account by operator: how many nodes were rewritten and how, and how many stay and why."""

    model: onnx.ModelProto
    done: Counter[tuple[str, str]]
    left: Counter[tuple[str, str]]


def optimized(
    model: onnx.ModelProto | str | os.PathLike[str],
    *,
    keep_codes: bool = False,
    standard_ops: bool = False,
    regions: bool = True,
    replaced: frozenset[str] = frozenset(),
) -> Optimized:
    """`optimize`, with an account. The initializers named in `replaced` are no constants."""
    if isinstance(model, (str, os.PathLike)):
        model = model_files.load(model)
    elif not isinstance(model, onnx.ModelProto):
        raise TypeError(f"model is a {type(model).__name__}; expected onnx.ModelProto or a path")
    if not model.HasField("graph"):
        raise ModelError("not an ONNX model: it has no graph")
    model_files.check_is_whole(model, replaced)
    try:
        lost = _what_gets_lost(model)
        intermediate = None if lost else ir.from_proto(model)
    except Exception as error:
        reraise_of_signal_handler(error)
        intermediate, lost = None, f"what onnx-ir cannot read: {error.__cause__ or error}"
    if intermediate is None:
        same = onnx.ModelProto()
        same.CopyFrom(model)
        return Optimized(same, Counter(), Counter({("the whole model", f"it has {lost}"): 1}))
    try:
        inlined, in_functions = functions.inline(intermediate)
        graph = Graph(intermediate, keep_codes=keep_codes, standard_ops=standard_ops, regions=regions, replaced=replaced)
        for each in PASSES:
            each.rewrite(graph)
        return Optimized(ir.to_proto(intermediate), inlined + graph.done, in_functions + graph.left)
    except ModelError:
        raise
    except Exception as error:  # whatever a model that is not valid leads to
        reraise_of_signal_handler(error)
        raise ModelError(f"not a valid model: {type(error).__name__}: {error}") from error


def _what_gets_lost(model: onnx.ModelProto) -> str:
    """What the model has that onnx-ir does not keep; "" if there is nothing."""
    graphs: list[Any] = [model.graph, *model.functions]
    for graph in graphs:
        if getattr(graph, "sparse_initializer", None):
            return "sparse initializers"
        for attribute in itertools.chain.from_iterable(node.attribute for node in graph.node):
            graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    return "training_info" if model.training_info else ""
