"""`optimize`: rewrite a model's quantization nodes into fewer, cheaper nodes that give the same bits."""

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

# The passes run in this order. Each pass goes through all nodes of a model, and records the reason if a node stays as it is.
PASSES = (standard_operators, constants, round_trips, pairs, regions)


def optimize(
    model: onnx.ModelProto | str | os.PathLike[str],
    *,
    keep_codes: bool = False,
    standard_ops: bool = False,
    regions: bool = True,
) -> onnx.ModelProto:
    """Return the model with its quantization nodes in cheaper forms, without changing one bit of their outputs:

    - Nodes whose inputs are all constants are folded into initializers.
    - Quantize and dequantize nodes with the same parameters are fused into one ``quark_numba::QuantizeDequantizeLinear``,
      version 1 (see `quantize_dequantize`, `register_schemas`), in float32. Equal dequantize nodes behind one quantize node
      become one.
    - A ``QuantizeDequantizeLinear`` and the elementwise nodes beside it, such as additions and activations, are merged into one
      ``quark_numba::Region``, version 1, which runs them all in one pass over memory.
    - A quantize node behind a dequantize node with the same constant parameters is dropped if every code comes back. This is
      proved or tried, for integers of up to 16 bits.

    Subgraphs are treated alike. Local functions with nodes of the package's operators are inlined first. Everything else stays
    as it is. Sessions need this package's operators (`register`, `InferenceSession`), as for the original model.

    Parameters
    ----------
    model : onnx.ModelProto, or the path of a model
        The model is not changed. Tensors in files beside the model are read; a ModelProto has to contain all its tensors.
    keep_codes : bool
        Whether constants stay quantized, each with a dequantize node. The model is smaller, and does more work in a run. Block
        formats have no dequantize node, so they become float constants in any case.
    standard_ops : bool
        Whether this package also runs ONNX's own QuantizeLinear and DequantizeLinear in sessions (see `register`). If not, the
        nodes of these operators, including the nodes in com.microsoft, stay as they are in two cases: they quantize activations
        anywhere in the model, as ONNX Runtime fuses them with their neighbours into integer operators; or ONNX Runtime's
        results may differ from the specification's.
    regions : bool
        Whether to write ``quark_numba::Region``, which only the native backend of `register` provides.

    Returns
    -------
    onnx.ModelProto: a new model that contains all its tensors.

    Raises
    ------
    ModelError
        If the path does not lead to a model, or a tensor cannot be read.
    TypeError
        If `model` is neither a model nor a path.
    """
    return optimized(model, keep_codes=keep_codes, standard_ops=standard_ops, regions=regions).model


@dataclass
class Optimized:
    """An optimised model, and numbers of nodes: `done` by operator and change, `left` by operator and reason to stay."""

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
    """Optimise a model as `optimize` does, and count the nodes. Initializers named in `replaced` are not constants."""
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
    except Exception as error:  # a model that is not valid may raise anything
        reraise_of_signal_handler(error)
        raise ModelError(f"not a valid model: {type(error).__name__}: {error}") from error


def _what_gets_lost(model: onnx.ModelProto) -> str:
    """Return what onnx-ir would lose from a model; "" if it loses nothing."""
    graphs: list[Any] = [model.graph, *model.functions]
    for graph in graphs:
        if getattr(graph, "sparse_initializer", None):
            return "sparse initializers"
        for attribute in itertools.chain.from_iterable(node.attribute for node in graph.node):
            graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    return "training_info" if model.training_info else ""
