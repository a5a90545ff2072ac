"""ONNX Runtime's blocked layout, kept through regions.

ONNX Runtime lays out what convolutions take and give as (N, C / b, H, W, b), in blocks of b = 8 or 16 channels (NCHWc), and
lays it out anew before each node that it does not know to go with that. A region goes with it, as it runs the same program for
each element. So each region is replaced by a node that keeps the layout, a `Sum` of one input; ONNX Runtime optimises that
model and writes it; and the regions are put back. The result is made for this processor, and for one session.

In such a model a tensor has the shape (N, C rounded up to b, H, W), and zeros, or other finite numbers, in the channels added.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from .catalog import OPERATORS
from .element_types import FLOAT32
from .errors import reraise_of_signal_handler
from .ort import entry, register
from .region.calls import run_region
from .region.key import parse
from .rewriting.model_files import temporary_folder

_NCHWC = "com.microsoft.nchwc"

# What options say of ONNX Runtime's optimisations.
_ENTRIES = (
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.disable_aot_function_inlining",
    "session.disable_double_qdq_remover",
    "session.disable_quant_qdq",
    "session.disable_specified_optimizers",
    "session.enable_quant_qdq_cleanup",
)

(_REGION,) = (operator for operator in OPERATORS if operator.operation == "region")


class _NotKept(Exception):  # noqa: N818
    """The model is one that this module leaves to ONNX Runtime."""


class _Place(NamedTuple):
    """A region that may take blocked tensors: `main`, which has y's shape, stands for it in the placeholder; what else it takes
    that has channels is in `others`."""

    node: onnx.NodeProto
    main: str
    others: tuple[str, ...]
    channels: int


def blocked(
    model: onnx.ModelProto,
    options: onnxruntime.SessionOptions,
    providers: Any = None,
    *,
    standard_ops: bool = False,
    **named: Any,
) -> onnx.ModelProto | None:
    """The model as a session with these arguments may run it, in the blocked layout. None where it is not kept, or nothing is
    gained."""
    if not (_is_wanted(options, providers) and _may_gain(model.graph)):
        return None
    own = onnxruntime.SessionOptions()  # no others see that some of these are changed
    for name in _ENTRIES:
        value = entry(options, name)
        if value is not None:
            own.add_session_config_entry(name, value)
    register(own, backend="native", standard_ops=standard_ops)
    try:
        return _Layout(model, own, named).model()
    except _NotKept:
        return None


@contextlib.contextmanager
def _unless_not_valid() -> Iterator[None]:
    """A model that is not valid is left alone: a session of it tells why."""
    try:
        yield
    except Exception as error:
        reraise_of_signal_handler(error)
        raise _NotKept from None


def _is_wanted(options: onnxruntime.SessionOptions, providers: Any) -> bool:
    """Whether ONNX Runtime would lay out this session's tensors in blocks, and nobody wants to see the model that it makes."""
    names = {each if isinstance(each, str) else each[0] for each in providers or ["CPUExecutionProvider"]}
    return (
        names == {"CPUExecutionProvider"}
        and options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        and not options.optimized_model_filepath
    )


def _may_gain(graph: onnx.GraphProto) -> bool:
    """Whether there is a convolution, for which ONNX Runtime has the layout, and a region, at which it would leave it."""
    operators = {(node.domain, node.op_type) for node in graph.node}
    return ("", "Conv") in operators and (_REGION.domain, _REGION.name) in operators


class _Layout:
    """Of one model."""

    def __init__(self, model: onnx.ModelProto, options: onnxruntime.SessionOptions, named: Mapping[str, Any]) -> None:
        graph = model.graph
        self.source, self.options, self.named = model, options, named
        self.constants = {each.name: each for each in graph.initializer}
        self.constants = {name: self.constants[name] for name in set(self.constants) - {each.name for each in graph.input}}
        names = [*self.constants, *(name for node in graph.node for name in (*node.input, *node.output, node.name))]
        self.new = "_" * (1 + max(map(len, names), default=0))  # no name is that long
        self.count = 0
        self.places = self._places()

    def model(self) -> onnx.ModelProto:
        if not self.places:
            raise _NotKept
        self.block = _block_size()
        self.laid_out = self._laid_out()
        nodes = self.laid_out.graph.node
        if not any(node.domain == _NCHWC for node in nodes):
            raise _NotKept
        self.made = {name: node for node in nodes for name in node.output}
        self.blocks: set[str] = set()  # names of blocked tensors
        self.padding: dict[str, float] = {}  # what is in the channels added, if all of it is the same
        self.nodes: list[onnx.NodeProto] = []
        waiting = list(nodes)
        while waiting:  # a region may take what comes after its placeholder
            missing = {name for node in waiting for name in node.output}
            left = []
            for node in waiting:
                others = self.places[node.name].others if node.name in self.places else ()
                if missing.isdisjoint((*node.input, *others)):
                    missing.difference_update(node.output)
                    self._add(node)
                else:
                    left.append(node)
            if len(left) == len(waiting):
                raise _NotKept
            waiting = left
        return self._finished()

    def _name(self) -> str:
        self.count += 1
        return f"{self.new}{self.count}"

    # To what ONNX Runtime makes of the model with placeholders.

    def _places(self) -> dict[str, _Place]:
        """By the name of the placeholder, the regions that may go with the layout."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.source)
        candidates = []
        for place, node in enumerate(copy.graph.node):
            if (node.domain, node.op_type) != (_REGION.domain, _REGION.name):
                continue
            streams = self._streams(node)
            if streams:
                candidates.append((self.source.graph.node[place], streams))
                sum_of = helper.make_node("Sum", streams, node.output)  # of the shape that the region's y has
                node.CopyFrom(sum_of)
        with _unless_not_valid():
            inferred = shape_inference.infer_shapes(copy).graph
        values = (*inferred.value_info, *inferred.input, *inferred.output)
        self.shapes = {each.name: _dimensions(each) for each in values}
        self.shapes |= {name: list(tensor.dims) for name, tensor in self.constants.items()}
        places = (self._place(*each) for each in candidates)
        return {self._name(): place for place in places if place}

    def _streams(self, node: onnx.NodeProto) -> list[str]:
        """The inputs of a region that have y's shape, or broadcast to it; none if it has what takes another way of going
        through them: blocks, or scales along an axis; or one of another type, which ONNX Runtime does not have in blocks."""
        with _unless_not_valid():
            program = parse(helper.get_node_attr_value(node, "program").decode())
        inputs = list(zip(node.input, program.inputs, program.axes, strict=False))
        is_other = program.block_steps or any(axis is not None and not own.is_scalar for _, own, axis in inputs)
        if is_other or any(axis is None and own.element_type is not FLOAT32 for _, own, axis in inputs):
            return []
        return [name for name, own, _ in inputs if not own.is_scalar]

    def _place(self, node: onnx.NodeProto, streams: list[str]) -> _Place | None:
        y = self.shapes.get(node.output[0])
        if y is None or len(y) != 4 or not isinstance(y[1], int):
            return None
        main, others = None, []  # the first that has all of y's dimensions, as far as they are known
        for name in dict.fromkeys(streams):
            shape = self.shapes.get(name)
            if shape is None or len(shape) > 4:
                return None
            is_variable = name not in self.constants
            if is_variable and (len(shape) != 4 or shape[1] != y[1]):
                return None
            if main is None and is_variable and shape == y:
                main = name
            else:
                others.append(name)
        return _Place(node, main, tuple(others), y[1]) if main else None

    def _laid_out(self) -> onnx.ModelProto:
        """The model with placeholders, as ONNX Runtime optimises it."""
        probe = onnx.ModelProto()
        probe.CopyFrom(self.source)
        names = {place.node.output[0]: name for name, place in self.places.items()}
        outputs = {each.name for each in (*probe.graph.input, *probe.graph.output)} | set(self.constants)
        for node in probe.graph.node:
            if node.output and node.output[0] in names and node.op_type == _REGION.name:
                place = self.places[names[node.output[0]]]
                node.CopyFrom(helper.make_node("Sum", [place.main], node.output, name=names[node.output[0]]))
                for other in place.others:
                    if other not in outputs:  # so that it is there when it is asked for, in either layout
                        outputs.add(other)
                        probe.graph.output.append(helper.make_tensor_value_info(other, onnx.TensorProto.FLOAT, None))
        with temporary_folder() as folder:
            path = self.options.optimized_model_filepath = os.path.join(folder, "model.onnx")
            self.options.log_severity_level = 4  # it warns that such a model is for this processor alone
            with _unless_not_valid():
                onnxruntime.InferenceSession(probe.SerializeToString(), self.options, ["CPUExecutionProvider"], **self.named)
            return onnx.load(path)

    # From there to the model with regions.

    def _add(self, node: onnx.NodeProto) -> None:
        """Append a node of the laid out model, or what takes its place."""
        kinds = (node.domain, node.op_type)
        is_blocked = not self.blocks.isdisjoint(node.input)
        if node.name in self.places:
            place = self.places.pop(node.name)
            if is_blocked:
                self._add_blocked(place, node)
            else:
                region = onnx.NodeProto()
                region.CopyFrom(place.node)
                region.input[:] = [node.input[0] if name == place.main else name for name in region.input]
                region.output[:] = node.output
                self.nodes.append(region)
            return
        self.nodes.append(node)
        if kinds == ("", "GlobalAveragePool") and self._source(node.input[0]) is not None:
            self._block_pool(node)
        elif kinds == (_NCHWC, "ReorderOutput"):
            pass
        elif node.domain == _NCHWC or is_blocked:
            self.blocks.update(node.output)
            padding = None
            if node.op_type in ("Conv", "ReorderInput"):
                # What is added to a convolution, and then done to it, may be anything.
                plain = len(node.input) < 4 and not any(each.name == "activation" for each in node.attribute)
                padding = 0.0 if plain else None
            elif node.domain == _NCHWC and self.padding.get(node.input[0]) == 0:
                padding = 0.0  # pools and the like
            if padding is not None:
                self.padding |= dict.fromkeys(node.output, padding)

    def _source(self, name: str) -> str | None:
        """The blocked tensor of which this is the same in ONNX's layout."""
        node = self.made.get(name)
        return node.input[0] if node is not None and (node.domain, node.op_type) == (_NCHWC, "ReorderOutput") else None

    def _block_pool(self, node: onnx.NodeProto) -> None:
        """ONNX Runtime leaves a pool in ONNX's layout if its channels are no multiple of a block. But as each channel is by
        itself, those that were added do no harm."""
        reorder = onnx.NodeProto()
        reorder.CopyFrom(self.made[node.input[0]])
        source, target = reorder.input[0], self._name()
        reorder.input[:], reorder.output[:], reorder.name = [target], [node.output[0]], f"{reorder.name}{self._name()}"
        node.domain, node.input[0], node.output[0] = _NCHWC, source, target
        self.nodes.append(reorder)

    def _add_blocked(self, place: _Place, node: onnx.NodeProto) -> None:
        region = onnx.NodeProto()
        region.CopyFrom(place.node)
        tensors = {place.main: node.input[0]}
        is_view = False  # whether blocks have a dimension of their own
        for other in place.others:
            if other in self.constants:
                is_view = True
            else:
                tensors[other] = self._blocked(other, place.channels)
                shape = self.shapes[other]
                is_view |= shape is None or None in shape or shape != self.shapes[place.main]
        padding = self._padding_of(place, tensors)
        if is_view:
            blocks = -(-place.channels // self.block)
            to, back = [0, blocks, 0, 0, self.block], [0, blocks * self.block, 0, 0]
            tensors = {name: self._reshaped(region.name, tensor, to) for name, tensor in tensors.items()}
            for other in set(place.others) & set(self.constants):
                tensors[other] = self._blocked_constant(other, place.channels)
        region.input[:] = [tensors.get(name, name) for name in region.input]
        self.nodes.append(region)
        if is_view:
            region.output[:] = [self._name()]
            self._reshaped(region.name, region.output[0], back, node.output[0])
        else:
            region.output[:] = node.output
        self.blocks.add(node.output[0])
        self.padding[node.output[0]] = padding

    def _blocked(self, name: str, channels: int) -> str:
        """A tensor in blocks: as a convolution or the like gave it, or made of it."""
        source = self._source(name)
        if source is not None:
            return source
        if channels % 4:
            raise _NotKept  # ONNX Runtime has no way from there to blocks
        reordered = self._name()
        self.nodes.append(helper.make_node("ReorderInput", [name], [reordered], domain=_NCHWC, name=f"{name}{reordered}"))
        self.padding[reordered] = 0.0
        return reordered

    def _reshaped(self, region: str, tensor: str, shape: list[int], to: str | None = None) -> str:
        """The same memory. 0 stands for the length that the dimension has."""
        target, constant = to or self._name(), self._constant(np.array(shape, np.int64))
        self.nodes.append(helper.make_node("Reshape", [tensor, constant], [target], name=f"{region}{self._name()}"))
        return target

    def _blocked_constant(self, name: str, channels: int) -> str:
        """In blocks with a dimension of their own. The channels added have the last one's values."""
        array = self._array(name)
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        if array.shape[1] == 1:
            return self._constant(array[..., np.newaxis])
        array = np.pad(array, ((0, 0), (0, -channels % self.block), (0, 0), (0, 0)), "edge")
        n, padded, h, w = array.shape
        return self._constant(array.reshape(n, padded // self.block, self.block, h, w).transpose(0, 1, 3, 4, 2))

    def _padding_of(self, place: _Place, tensors: Mapping[str, str]) -> float:
        """What the region gives for the channels added."""
        if place.channels % self.block == 0:
            return 0.0  # there are none
        arrays = []
        for name in place.node.input:
            if name in tensors:
                if tensors[name] not in self.padding:
                    raise _NotKept
                arrays.append(np.full(1, self.padding[tensors[name]], np.float32))
            elif name not in self.constants:
                raise _NotKept
            else:
                array = self._array(name)
                has_channels = array.ndim > 2 and array.shape[-3] == place.channels
                arrays.append((array[..., -1:, :, :] if has_channels else array).reshape(-1))
        y = run_region(*arrays, program=helper.get_node_attr_value(place.node, "program").decode())
        if not np.isfinite(y).all() or (y != y.flat[0]).any():
            raise _NotKept
        return float(y.flat[0])

    def _array(self, name: str) -> NDArray[Any]:
        return numpy_helper.to_array(self.constants[name])

    def _constant(self, array: NDArray[Any]) -> str:
        name = self._name()
        self.laid_out.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _finished(self) -> onnx.ModelProto:
        if self.places:
            raise _NotKept  # a placeholder is gone
        graph, source = self.laid_out.graph, self.source.graph
        for mine, own in ((graph.input, source.input), (graph.output, source.output)):
            del mine[:]
            mine.extend(own)
        present = {each.name for each in graph.initializer}
        nodes, used = self.nodes, {each.name for each in source.output}
        while True:
            used_now = used | {name for node in nodes for name in node.input}
            kept = [node for node in nodes if node.op_type != "ReorderOutput" or not used_now.isdisjoint(node.output)]
            if len(kept) == len(nodes):
                break
            nodes = kept
        graph.initializer.extend(each for name, each in self.constants.items() if name in used_now - present)
        del graph.node[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.name, graph.doc_string = source.name, source.doc_string
        result = onnx.ModelProto()
        result.CopyFrom(self.source)
        result.graph.CopyFrom(graph)
        imports = {each.domain: each.version for each in (*self.laid_out.opset_import, *self.source.opset_import)}
        del result.opset_import[:], result.functions[:]
        result.opset_import.extend(helper.make_opsetid(*each) for each in imports.items())
        return result


def _dimensions(value: onnx.ValueInfoProto) -> list[int | None] | None:
    """The length of each, or None; a name does not tell enough, as some exporters have one for all."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [each.dim_value if each.dim_value > 0 else None for each in tensor.shape.dim]


@functools.cache
def _block_size() -> int:
    """How many channels ONNX Runtime puts into a block on this processor."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 1, 1])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=_NCHWC)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(_NCHWC, 1)]
    model = helper.make_model(helper.make_graph([node], "probe", [x], [y]), opset_imports=imports, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones((1, 4, 1, 1), np.float32)})
    return int(math.prod(result.shape))
