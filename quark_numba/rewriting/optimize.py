"""`optimize`: rewrite a model's quantization nodes into fewer, cheaper nodes that give the same bits; its arguments and
defaults, the order of the passes, and what `qdq="auto"` means."""

from __future__ import annotations

import graphlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict, Unpack, overload

import onnx
import onnx_ir as ir

from ..catalog import OPERATORS
from ..checks import QDQ, Qdq, check_choices, check_flags, check_paths
from ..compiling.memory import no_garbage_collection
from ..errors import ModelError, counted, errors_named
from ..models import files, model_files, protos
from . import (
    casts,
    channels_last,
    clips,
    constants,
    dynamic_pairs,
    fake_quantizers,
    float16_fences,
    functions,
    gathers,
    nodes_for_onnx_runtime,
    pairs,
    regions,
    repeated_round_trips,
    round_trips,
    standard_forms,
)
from . import renamed_operators as renamed_operators
from .graph import DEFAULTS, Graph, Operators, Settings
from .integers import groups as integer_groups

# The passes, in the order in which they run. Each pass visits all nodes of a model. For each unchanged node, the pass records
# the reason.
PASSES = (
    nodes_for_onnx_runtime,
    integer_groups,
    clips,
    casts,
    constants,
    gathers,
    round_trips,
    fake_quantizers,
    dynamic_pairs,
    pairs,
    renamed_operators,
    repeated_round_trips,
    regions,
    float16_fences,
)

# The passes for a model in standard operators. Casts are standard, and stay as they are.
_NOT_STANDARD = (casts, renamed_operators, regions, float16_fences)
STANDARD_PASSES = (*(rewriting for rewriting in PASSES if rewriting not in _NOT_STANDARD), standard_forms)

# The passes for a model on an NVIDIA GPU.
CUDA_PASSES = (*PASSES[:-1], standard_forms, float16_fences)


class Options(TypedDict, total=False):
    """The arguments of `optimize` that may only be given by name."""

    keep_quantized_weights: bool
    qdq: Qdq
    operators: Operators
    regions: bool
    keep_initializers_as_inputs: bool


_Path = str | os.PathLike[str]


@overload
def optimize(model: onnx.ModelProto | _Path, out: None = None, **options: Unpack[Options]) -> onnx.ModelProto: ...


@overload
def optimize(model: onnx.ModelProto | _Path, out: _Path, **options: Unpack[Options]) -> None: ...


def optimize(
    model: onnx.ModelProto | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    keep_quantized_weights: bool = False,
    qdq: Qdq = "auto",
    operators: Operators = "custom",
    regions: bool = True,
    keep_initializers_as_inputs: bool = True,
) -> onnx.ModelProto | None:
    """Return the model with its quantization nodes rewritten into fewer, cheaper nodes. These give the same bits as before.
    Only ties in integer operators may be rounded differently (see `qdq`). With `out`, write the model to a file instead.

    - Nodes whose inputs are all constants are folded into initializers.
    - Quantize and dequantize nodes with the same parameters are fused into one ``quark_numba::QuantizeDequantizeLinear``,
      version 1 (see `quantize_dequantize`, `register_schemas`), in float32. Equal dequantize nodes after one quantize node
      become one.
    - A Cast from float32 to bfloat16 or float16, together with the Casts back, becomes one ``quark_numba::FakeQuantize``,
      version 1.
    - A ``QuantizeDequantizeLinear`` and the elementwise nodes beside it, such as additions and activations, are merged into one
      ``quark_numba::Region``, version 1, which runs them all in one pass over memory.
    - A quantize node after a dequantize node with the same constant parameters is dropped if it returns every code
      unchanged. This is proved or tested, for integers of up to 16 bits. A round trip is also dropped if all its input elements
      are results of an equal round trip, or constants that it returns, because it would return its x.
    - With `operators` = "standard", all nodes are finally written in ONNX's standard operators, without regions.

    Subgraphs are rewritten in the same way. Local functions with nodes of the package's operators are inlined first. All other
    nodes are unchanged. As for the original model, sessions need this package's operators (`register`, `InferenceSession`).
    With `operators` = "standard", sessions do not need them, and any execution provider runs the model.

    Parameters
    ----------
    model : onnx.ModelProto, or the path of a model
        The model is not changed. Tensors in files beside the model are read; a ModelProto has to contain all its tensors.
    out : path, optional
        The file to write, which may be `model` itself. Tensors are written to ``out.data`` in two cases: the result is
        larger than 2 GiB, or the tensors of `model` are in files beside it and take more than 64 MB. Tensors in files do not
        increase the memory that is needed.
    keep_quantized_weights : bool
        Whether constants stay quantized, each with a dequantize node. The model is then smaller, but slower to run.
        Constants in Microscaling formats become codes and scales, with ``quark_numba::Dequantize``, version 1, if that
        gives the same bits and ONNX Runtime supports both element types. Other block formats always become float constants.
    qdq : "auto", "float" or "onnxruntime"
        How ONNX's own QuantizeLinear and DequantizeLinear, also in com.microsoft, are rewritten. "auto": all are rewritten,
        and groups of 8-bit nodes become ONNX Runtime's integer operators if these are estimated to be faster. A code of an
        integer operator may differ by one if the result is within a thousandth of a step of the middle between two codes.
        "float": all are rewritten, without integer operators. "onnxruntime", for execution providers other than the CPU
        provider: only those nodes are rewritten for which ONNX Runtime gives the results of the specification. If ONNX's own
        nodes quantize activations, only those that ONNX Runtime cannot run are rewritten.
    operators : "custom", "cuda", "standard" or "webgpu"
        The operators of the result. "custom": this package's operators, which are the fastest on the CPU. "cuda": this
        package's operators that have kernels for NVIDIA GPUs, for sessions with the CUDA provider and these operators
        (`register`). Nodes without such a kernel are written as with "standard", or left as they are. "standard": only ONNX's
        operators, of the model's own opset, for other execution providers and for programs without this package. Then
        `qdq` = "auto" means "float", and custom operators of other packages are left as they are. "webgpu": as "standard", for
        WebGPU in ONNX Runtime Web. WebGPU lacks Casts to float types, so round trips through such types are written in float32
        arithmetic. Subnormal numbers may become 0 on WebGPU, so blocks with a largest magnitude below 2**-103 are rounded as
        if it was 2**-103.
    regions : bool
        Whether to write ``quark_numba::Region`` and the other operators that only the native backend of `register` supports.
        If False, `qdq` = "auto" means "onnxruntime".
    keep_initializers_as_inputs : bool
        Whether initializers that are also graph inputs, from IR version 4 on, stay inputs. Such an initializer is the default
        value of an input that a session may feed, so no node that depends on it is folded. Some exporters list all weights as
        graph inputs, PyTorch's with its argument of this name. If False, the initializers become constants.

    Returns
    -------
    onnx.ModelProto: a new model that contains all its tensors. None with `out`.

    Raises
    ------
    ModelError
        If the path does not lead to a model, a tensor cannot be read, or the result cannot be written; or if `operators` is
        "standard" or "webgpu", and a node of this package's operators has no standard form. The message names the nodes.
    TypeError, ValueError
        If an argument has an invalid value or type.
    """
    check_paths(out=out)
    check_flags(
        keep_quantized_weights=keep_quantized_weights,
        regions=regions,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
    )
    settings = Settings(keep_quantized_weights, qdq, operators, regions, keep_initializers_as_inputs)
    result = rewrite_model(model, settings)
    result.check_operators()
    if out is None:
        return result.model
    result.save(out)
    return None


@dataclass
class RewrittenModel:
    """An optimized model, and numbers of nodes: `done` by operator and change, `left` by operator and reason to stay.

    The large tensors of `lazy_model` may still have to be read or computed. ONNX Runtime's own optimized model shows which
    nodes it fuses. `write_error` is the reason why ONNX Runtime could not write this model, "" if it could. Without this model,
    fewer nodes are rewritten."""

    source: model_files.Source
    lazy_model: model_files.Model
    done: Counter[tuple[str, str]]
    left: Counter[tuple[str, str]]
    operators: Operators = "custom"
    write_error: str = ""

    @property
    def model(self) -> onnx.ModelProto:
        """The model with all its tensors."""
        result = model_files.as_proto(self.lazy_model)
        self.source.check()
        return result

    def check_operators(self) -> None:
        """Raise ModelError if only ONNX's operators are allowed, and a node of this package's operators remains."""
        if self.operators in standard_forms.ONNX_ONLY and (nodes := not_standard_as_text(self.left)):
            raise ModelError(f"not all nodes can be written in ONNX's standard operators: {nodes}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file. `lazy_model` may lose its tensors. Raise ModelError if the model cannot be written. Also
        raise it if this would overwrite the original model or its tensors, and `path` is not the path of the original model."""
        original = self.source.path
        try:
            target = os.path.realpath(path)
        except ValueError as error:  # no file has such a name
            raise ModelError(f"{os.fspath(path)}: {error}") from None
        if original is None or os.path.realpath(original) != target:
            for file in (target, f"{target}.data"):
                for what, others in (("has tensors of", self.source.files), ("is", [original] if original else [])):
                    if files.is_one_of(file, others):
                        raise ModelError(f"{file} {what} the original model; expected another name for the optimized one")
        model_files.save(self.lazy_model, path, apart=self.source.is_apart, check=self.source.check)


@no_garbage_collection()
def rewrite_model(
    model: onnx.ModelProto | str | os.PathLike[str] | model_files.Source, settings: Settings = DEFAULTS
) -> RewrittenModel:
    """Return a model as `optimize` rewrites it, with the numbers of its nodes. ONNX's own nodes are rewritten as `choose_qdq`
    returns."""
    operators = settings.operators
    check_choices(QDQ, qdq=settings.qdq)
    check_choices(standard_forms.CHOICES, operators=operators)
    is_standard = operators in standard_forms.ONNX_ONLY
    if is_standard:  # standard forms take the place of native operators at the end
        settings = settings._replace(native_operators=True)
    source = model_files.Source.from_argument(model, leave=settings.replaced)
    try:
        intermediate = _read(source)
    except ModelError as error:
        same = onnx.ModelProto()
        same.CopyFrom(source.whole())
        return RewrittenModel(source, same, Counter(), Counter({("the whole model", f"it has {error}"): 1}), operators)
    with errors_named("not a valid model"):
        inlined, in_functions = functions.inline(intermediate)
        _check_acyclic(intermediate.graph)
        intermediate.graph.sort()  # ONNX Runtime takes nodes in any order, but the passes do not
        done = inlined + channels_last.rewrite(intermediate)
        graph = Graph(intermediate, settings)
        graph.qdq = choose_qdq(settings, lambda: nodes_for_onnx_runtime.runs_all(graph))
        passes = STANDARD_PASSES if is_standard else CUDA_PASSES if operators == "cuda" else PASSES
        for rewriting in (renamed_operators,) if nodes_for_onnx_runtime.leave_all(graph) else passes:
            rewriting.rewrite(graph)
            graph.sweep()
        if settings.has_other_providers:
            graph.write_shapes()
        left = in_functions + graph.left
        return RewrittenModel(source, intermediate, done + graph.done, left, operators, graph.write_error)


def choose_qdq(settings: Settings, runs_all: Callable[[], bool]) -> Qdq:
    """Return how ONNX's own quantization nodes in a model are rewritten, given the setting `qdq`. "onnxruntime": ONNX Runtime
    runs them. "float": they are rewritten in `operators`. "auto": groups may become integer operators, and all other nodes are
    rewritten as with "float".

    `runs_all()` returns whether ONNX Runtime runs all quantization nodes of the model without this package.
    ``quark_numba/session/README.md`` has the rules."""
    if settings.qdq != "auto":
        return settings.qdq
    is_cuda = settings.operators == "cuda"
    if settings.has_other_providers and not is_cuda:  # a provider may have integer operators
        return "onnxruntime" if runs_all() else "float"
    if settings.operators in standard_forms.ONNX_ONLY:
        return "float"
    if not settings.native_operators:  # nothing runs the nodes that renamed_operators writes
        return "onnxruntime"
    # ONNX Runtime has integer operators only on the CPU.
    return "float" if is_cuda or settings.integers == "nowhere" else "auto"


def _read(source: model_files.Source) -> ir.Model:
    """Return the model as an onnx-ir model. Raise ModelError with the name of the feature if onnx-ir would lose or cannot read
    a feature of the model."""
    if any(getattr(graph, "sparse_initializer", None) for graph in protos.graphs(source.proto)):
        raise ModelError("sparse initializers")
    if source.proto.training_info:
        raise ModelError("training_info")
    return source.lazy("what onnx-ir cannot read")


def not_standard_as_text(left: Mapping[tuple[str, str], int], operators: Operators = "standard") -> str:
    """Return a list, as text, of the remaining nodes of this package's operators, or "" if there are none. Three kinds of node
    are not listed: ONNX's own operators, nodes that could not be folded because of a graph input, and for "cuda" nodes that
    GPUs run."""
    nodes = (
        f"{counted(number, 'node', 'nodes')} {name}: {why}"
        for (name, why), number in left.items()
        if (operator := OPERATORS.find(*name.split("::")))
        and not name.startswith("ai.onnx::")
        and not (operators == "cuda" and operator.runs_on_gpus)
        and why != constants.INPUT
    )
    return "; ".join(nodes)


def begins_rewriting(node: onnx.NodeProto) -> bool:
    """Return whether a pass may begin with a node: a node of the package's operators that is not a region, a Cast to 16 bits,
    or a QONNX node with channels on the last axis."""
    operator = OPERATORS.find(node.domain, node.op_type)
    if operator:
        return operator.operation != "region"
    return casts.is_to_16_bits(node) or channels_last.is_channels_last(node.domain, node.op_type)


def has_nodes_to_rewrite(model: onnx.ModelProto) -> bool:
    """Return whether `optimize` may rewrite a node: whether a pass begins with a node of the model, of its subgraphs or of its
    functions. Return True also for a model without a graph, because `optimize` refuses it."""
    return not model.HasField("graph") or any(map(begins_rewriting, protos.nodes(model.graph, *model.functions)))


def _check_acyclic(graph: ir.Graph) -> None:
    """Raise ModelError if a node depends on its own result, directly or in its subgraphs. The passes follow values from node to
    node."""
    # For each node: the nodes that have to run before it is done, including those in its subgraphs.
    takes: dict[ir.Node, list[ir.Node]] = {}
    for node in graph.all_nodes():
        takes[node] = [*node.predecessors()]
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                takes[node] += attribute.as_graph()
            elif attribute.type == ir.AttributeType.GRAPHS:
                takes[node] += [each for subgraph in attribute.as_graphs() for each in subgraph]
    try:
        graphlib.TopologicalSorter(takes).prepare()
    except graphlib.CycleError as error:
        names = " -> ".join(node.name or str(node.outputs[0].name if node.outputs else node.op_type) for node in error.args[1])
        raise ModelError(f"not a valid model: nodes take their own results: {names}") from None
