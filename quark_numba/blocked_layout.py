"""ONNX Runtime's blocked layout for convolutions, kept through regions.

ONNX Runtime runs convolutions on tensors that lie as (N, C / b, H, W, b), in blocks of b = 8 or 16 channels (NCHWc). It
reorders them to ONNX's layout before every node that it does not know to work on blocks. A region works on blocks as well. So
this module does what ONNX Runtime's own NchwcTransformer does, with regions among the nodes. ONNX Runtime first does all its
other optimisations and writes the model. Then each node whose inputs are in blocks is replaced by one that works on blocks, if
that is known to mean the same.

In such a model a tensor has the shape (N, C rounded up to b, H, W). It is made for this processor, and for one session.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
from .region.calls import BLOCK_SIZES
from .region.key import ROUND_TRIP, Program, parse
from .rewriting.fusions import optimised_by_onnx_runtime
from .rewriting.stand_ins import stand_ins

_NCHWC = "com.microsoft.nchwc"

# What options say of ONNX Runtime's optimisations.
_DISABLED_OPTIMIZERS = "session.disable_specified_optimizers"
_ENTRIES = (
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.disable_aot_function_inlining",
    "session.disable_double_qdq_remover",
    "session.disable_quant_qdq",
    _DISABLED_OPTIMIZERS,
    "session.enable_quant_qdq_cleanup",
)

(_REGION,) = (operator for operator in OPERATORS if operator.operation == "region")

# Of an initializer on whose values shapes may depend.
_MOST_ELEMENTS = 128

# ONNX Runtime reorders numbers of channels that are a multiple of this.
_ALIGNMENT = 4
_NOT_ALIGNED = f"ONNX Runtime reorders only numbers of channels that are multiples of {_ALIGNMENT}"

# Elementwise operators that blocked tensors of one shape go through as they are, and of which 0 gives 0.
_ELEMENTWISE = {("", name) for name in ("Add", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sub", "Tanh")}
_ELEMENTWISE.add(("com.microsoft", "QuickGelu"))
# Those of which it does not.
_ELEMENTWISE_NOT_OF_ZERO = {("", name) for name in ("Clip", "HardSigmoid", "Sigmoid")}

# Attributes of Resize, and their defaults.
_NEAREST = {"mode": b"nearest", "coordinate_transformation_mode": b"half_pixel", "nearest_mode": b"round_prefer_floor"}

# Pools, which exist on blocks under the same name. AveragePool, too, but there it adds in another order.
_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "MaxPool")


class BlockedModel(NamedTuple):
    """The model as a session may run it, None if it stays as it is; how many regions are in the layout; and for the others how
    many are not, by the reason."""

    model: onnx.ModelProto | None
    kept: int
    left: Counter[str]


class _Left(Exception):  # noqa: N818
    """A node stays in ONNX's layout; the message says why."""


class _Blocked(NamedTuple):
    """A tensor in blocks: its name, its own channels, whether the channels beyond these are known to be 0, and whether none of
    its elements can be NaN."""

    name: str
    channels: int
    has_zeros: bool
    is_number: bool = False


def blocked(
    model: onnx.ModelProto,
    options: onnxruntime.SessionOptions,
    providers: Any = None,
    *,
    standard_ops: bool = False,
    **named: Any,
) -> BlockedModel:
    """The model with regions in the blocked layout, for a session with these arguments."""
    regions = sum((node.domain, node.op_type) == (_REGION.domain, _REGION.name) for node in model.graph.node)
    if not regions or not any((node.domain, node.op_type) == ("", "Conv") for node in model.graph.node):
        return BlockedModel(None, 0, Counter())
    try:
        _check_is_wanted(options, providers, named)
        writer = _Writer(_optimised(model, options, standard_ops, named), block_size())
    except _Left as error:
        return BlockedModel(None, 0, Counter({str(error): regions}))
    return BlockedModel(writer.model(model) if writer.kept else None, writer.kept, writer.left)


def _check_is_wanted(options: onnxruntime.SessionOptions, providers: Any, named: Mapping[str, Any]) -> None:
    """Raises _Left unless ONNX Runtime would lay out this session's tensors in blocks."""
    names = {each if isinstance(each, str) else each[0] for each in providers or ["CPUExecutionProvider"]}
    if names != {"CPUExecutionProvider"}:
        raise _Left("the session has other execution providers than CPUExecutionProvider")
    if options.graph_optimization_level != onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL:
        raise _Left("graph_optimization_level is not ORT_ENABLE_ALL")
    if options.optimized_model_filepath:
        raise _Left("optimized_model_filepath is set")
    disabled = {*(named.get("disabled_optimizers") or ()), *(entry(options, _DISABLED_OPTIMIZERS) or "").split(";")}
    if "NchwcTransformer" in disabled:
        raise _Left("NchwcTransformer is disabled")
    if block_size() == 1:
        raise _Left("ONNX Runtime has no blocked layout on this processor")


def _optimised(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions, standard_ops: bool, named: Mapping[str, Any]
) -> onnx.ModelProto:
    """The model as ONNX Runtime optimises it before it lays out tensors, and with the shapes that it knows."""
    own = onnxruntime.SessionOptions()  # so that no other session sees what changes here
    for name in _ENTRIES:
        value = entry(options, name)
        if value is not None:
            own.add_session_config_entry(name, value)
    register(own, backend="native", standard_ops=standard_ops)
    own.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return _written(model, own, named)


def _written(model: onnx.ModelProto, options: onnxruntime.SessionOptions, named: Mapping[str, Any]) -> onnx.ModelProto:
    """What ONNX Runtime makes of a model. Raises _Left."""
    try:
        return optimised_by_onnx_runtime(model, options, **named)
    except Exception as error:  # if the model is not valid, a session of it tells why
        reraise_of_signal_handler(error)
        raise _Left(f"ONNX Runtime did not write the optimised model: {error}") from None


class _Writer:
    """Writes the nodes of a graph again, those on blocks among them."""

    def __init__(self, model: onnx.ModelProto, block: int) -> None:
        self.source, self.block = model, block
        graph = model.graph
        self.shapes = _inferred_shapes(model)
        self.shapes |= {each.name: _dimensions(each) for each in (*graph.value_info, *graph.input) if _dimensions(each)}
        inputs = {each.name for each in graph.input}
        self.constants = {each.name: each for each in graph.initializer if each.name not in inputs}
        self.producers = {name: node for node in graph.node for name in node.output}
        self.new = "_" * (1 + max(map(len, _names(graph)), default=0))  # no name is that long
        self.count = 0
        self.tensors: dict[str, _Blocked] = {}  # by the name of the same tensor in ONNX's layout
        self.plain: set[str] = set()  # which of those are there in ONNX's layout, too
        self.constants_in_blocks: dict[tuple[str, str], str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.new_constants: list[onnx.TensorProto] = []
        self.kept, self.left = 0, Counter[str]()
        for node in graph.node:
            self._add(node)
        for output in graph.output:
            self._reorder_output(output.name)

    def model(self, source: onnx.ModelProto) -> onnx.ModelProto:
        """With the inputs, outputs and metadata of the source."""
        result, graph = self.source, self.source.graph
        used = {each.name for each in graph.output}
        nodes = []
        for node in reversed(self.nodes):  # without the Transposes that have become part of a reorder
            if (node.domain, node.op_type) != ("", "Transpose") or not used.isdisjoint(node.output):
                nodes.append(node)
                used.update(_used_names(node))
        made = {name for node in nodes for name in node.output}
        values = [each for each in graph.value_info if each.name in made]
        constants = [each for each in (*graph.initializer, *self.new_constants) if each.name in used]
        kept = onnx.GraphProto(initializer=constants, value_info=values)
        del graph.node[:], graph.value_info[:], graph.initializer[:], graph.input[:], graph.output[:]
        graph.MergeFrom(kept)
        graph.node.extend(reversed(nodes))
        graph.input.extend(source.graph.input)
        graph.output.extend(source.graph.output)
        graph.name, graph.doc_string = source.graph.name, source.graph.doc_string
        for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
            result.ClearField(name)
            if source.HasField(name):
                setattr(result, name, getattr(source, name))
        del result.metadata_props[:]
        result.metadata_props.extend(source.metadata_props)
        if _NCHWC not in {each.domain for each in result.opset_import}:
            result.opset_import.append(helper.make_opsetid(_NCHWC, 1))
        return result

    def _add(self, node: onnx.NodeProto) -> None:
        kind = ("" if node.domain == "ai.onnx" else node.domain), node.op_type
        try:
            way = _WAYS.get(kind)
            if way:
                way(self, node)
                return
        except _Left as error:
            if kind == (_REGION.domain, _REGION.name):
                self.left[str(error)] += 1
        for name in _used_names(node):
            self._reorder_output(name)
        self.nodes.append(node)

    # Tensors in the one layout and in the other.

    def _reorder_output(self, name: str) -> None:
        """Have a tensor in ONNX's layout, if it is in blocks."""
        tensor = self.tensors.get(name)
        if tensor and name not in self.plain:
            self.plain.add(name)
            self._append("ReorderOutput", [tensor.name], name, channels=tensor.channels)

    def _in_blocks(self, name: str, channels: int, *, zeros: bool = False) -> str:
        """A tensor of so many channels in blocks: as it is, or reordered; with `zeros`, one that has them beyond its channels.
        Raises _Left."""
        tensor = self.tensors.get(name)
        if tensor and (tensor.has_zeros or not zeros):
            return tensor.name
        if channels % _ALIGNMENT:
            raise _Left(_NOT_ALIGNED)
        if tensor:
            self._reorder_output(name)
        reordered = _Blocked(self._name(), channels, True)
        transpose = self.producers.get(name)
        if transpose and transpose.op_type == "Transpose" and not transpose.domain and _perm(transpose) == [0, 3, 1, 2]:
            self._append("ReorderInput", [transpose.input[0]], reordered.name, channels_last=1)
        else:
            self._append("ReorderInput", [name], reordered.name)
        if not tensor:
            self.plain.add(name)
        self.tensors[name] = reordered
        return reordered.name

    def _blocked(self, name: str) -> _Blocked:
        """A tensor that is in blocks already. Raises _Left."""
        if name not in self.tensors:
            raise _Left("its input is in ONNX's layout")
        return self.tensors[name]

    def _channels(self, name: str) -> int:
        """How many a tensor or a constant has. Raises _Left unless a tensor is known to have four dimensions, and how many."""
        if name in self.tensors:
            return self.tensors[name].channels
        if name in self.constants:
            dims = self.constants[name].dims
            if len(dims) > 4:
                raise _Left("a constant has more than four dimensions")
            return dims[-3] if len(dims) > 2 else 1
        shape = self.shapes.get(name)
        if shape is None:
            raise _Left("the shape of an input is not known")
        if len(shape) != 4:
            raise _Left("an input has not four dimensions")
        if shape[1] is None:
            raise _Left("the number of channels is not known")
        return shape[1]

    def _name(self) -> str:
        self.count += 1
        return f"{self.new}{self.count}"

    def _append(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        node = helper.make_node(operator, inputs, [output], f"{operator} of {output}", domain=_NCHWC, **attributes)
        self.nodes.append(node)

    def _replace(self, node: onnx.NodeProto, inputs: list[str], domain: str, channels: int, has_zeros: bool) -> onnx.NodeProto:
        """Append the node that does the same on blocks."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        name = self._name()
        copy.input[:], copy.output[:], copy.domain = inputs, [name], domain
        self.nodes.append(copy)
        self.tensors[node.output[0]] = _Blocked(name, channels, has_zeros or channels % self.block == 0)
        return copy

    def _constant(self, name: str, use: str, make: Callable[[NDArray[Any]], NDArray[Any]]) -> str:
        """The constant as `make` arranges it for a use; once for all that use it so."""
        key = name, use
        if key not in self.constants_in_blocks:
            array = np.ascontiguousarray(make(numpy_helper.to_array(self.constants[name])))
            self.constants_in_blocks[key] = self._name()
            self.new_constants.append(numpy_helper.from_array(array, self.constants_in_blocks[key]))
        return self.constants_in_blocks[key]

    # Nodes. Each way appends what takes the node's place, or raises _Left before it appends anything that others may see.

    def _conv(self, node: onnx.NodeProto) -> None:
        """As ONNX Runtime's NchwcTransformer does it, and for the same convolutions."""
        inputs = [each for each in node.input if each]
        if (
            len(inputs) != len(node.input)
            or not 2 <= len(inputs) <= 3
            or any(each not in self.constants for each in inputs[1:])
        ):
            raise _Left("its weights are no constants")
        weights = self.constants[inputs[1]]
        if weights.data_type != FLOAT32.number or len(weights.dims) != 4:
            raise _Left("its weights are not float32, or have not four dimensions")
        outer, inner, block = weights.dims[0], weights.dims[1], self.block
        group = next((each.i for each in node.attribute if each.name == "group"), 1)
        blocks_of_inputs = True
        if group > 1:
            is_depthwise = inner == 1 and outer == group
            if outer % _ALIGNMENT or not (is_depthwise or (inner % block == 0 and outer % (group * block) == 0)):
                raise _Left("its groups are no whole blocks")
            blocks_of_inputs = not is_depthwise
            x = self._in_blocks(inputs[0], inner * group, zeros=not is_depthwise)
            group = -(-outer // block) * block if is_depthwise else group
        elif inner < block:  # such a convolution reads ONNX's layout
            self._reorder_output(inputs[0])
            x, blocks_of_inputs = inputs[0], False
        elif inner % _ALIGNMENT:
            raise _Left(_NOT_ALIGNED)
        else:
            x = self._in_blocks(inputs[0], inner, zeros=True)
        w = self._constant(
            inputs[1], f"filter {blocks_of_inputs}", lambda array: filter_in_blocks(array, block, blocks_of_inputs)
        )
        bias = [self._constant(each, "bias", lambda array: _padded(array, 0, block)) for each in inputs[2:]]
        copy = self._replace(node, [x, w, *bias], _NCHWC, outer, False)
        copy.op_type = "Conv"  # also of a FusedConv
        if group > 1:
            kept = [each for each in copy.attribute if each.name != "group"]
            del copy.attribute[:]
            copy.attribute.extend([*kept, helper.make_attribute("group", group)])

    def _pool(self, node: onnx.NodeProto) -> None:
        x = self._blocked(node.input[0])
        if len(node.output) > 1:
            raise _Left("it gives indices")
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if attributes.get("ceil_mode", 0) or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise _Left("it has ceil_mode or auto_pad")
        if "Max" in node.op_type and not x.is_number:
            raise _Left("on blocks ONNX Runtime leaves out NaN")
        self._replace(node, [x.name], _NCHWC, x.channels, x.has_zeros)

    def _concat(self, node: onnx.NodeProto) -> None:
        tensors = [self._blocked(name) for name in node.input]
        if helper.get_node_attr_value(node, "axis") not in (1, -3) or any(each.channels % self.block for each in tensors):
            raise _Left("it does not join whole blocks of channels")
        channels = sum(each.channels for each in tensors)
        copy = self._replace(node, [each.name for each in tensors], node.domain, channels, True)
        del copy.attribute[:]
        copy.attribute.append(helper.make_attribute("axis", 1))

    def _elementwise(self, node: onnx.NodeProto) -> None:
        tensors = [None if name in self.constants else self._blocked(name) for name in node.input if name]
        found = [each for each in tensors if each]
        shapes = [self.shapes.get(name) for name in node.input if name and name not in self.constants]
        is_known = len(found) == 1 or all(shape is not None and None not in shape for shape in shapes)
        if not found or not is_known or any(shape != shapes[0] for shape in shapes):
            raise _Left("its inputs are not known to have one shape")
        sizes = [int(np.prod(self.constants[name].dims)) for name in node.input if name in self.constants]
        ranks = [len(self.constants[name].dims) for name in node.input if name in self.constants]
        if any(size != 1 for size in sizes) or any(rank > 4 for rank in ranks):
            raise _Left("it has a constant of several elements")
        names = iter(tensors)
        inputs = [name and (each.name if (each := next(names)) else name) for name in node.input]
        keeps_zeros = (node.domain, node.op_type) in _ELEMENTWISE and not sizes and all(each.has_zeros for each in found)
        self._replace(node, inputs, node.domain, found[0].channels, keeps_zeros)

    def _transpose(self, node: onnx.NodeProto) -> None:
        """To channels last, which is a way of reordering."""
        x = self._blocked(node.input[0])
        if _perm(node) != [0, 2, 3, 1]:
            raise _Left("it is no Transpose to channels last")
        self._append("ReorderOutput", [x.name], node.output[0], channels=x.channels, channels_last=1)

    def _resize(self, node: onnx.NodeProto) -> None:
        """Where each element is repeated a whole number of times along height and width."""
        x = self._blocked(node.input[0])
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        found = [attributes.get(name, default) for name, default in _NEAREST.items()]
        if found != [b"nearest", b"asymmetric", b"floor"] or "axes" in attributes or len(node.input) != 3:
            raise _Left("it does not repeat elements")
        scales = numpy_helper.to_array(self.constants[node.input[2]]) if node.input[2] in self.constants else np.zeros(0)
        if scales.shape != (4,) or not (scales[:2] == 1).all() or (scales < 1).any() or (scales % 1).any():
            raise _Left("it does not repeat elements a known, whole number of times")
        copy = self._replace(node, [x.name], _NCHWC, x.channels, x.has_zeros)
        copy.op_type = "Upsample"
        del copy.attribute[:]
        copy.attribute.append(helper.make_attribute("scales", scales.astype(np.int64).tolist()))

    def _region(self, node: onnx.NodeProto) -> None:
        attributes = {each.name: each for each in node.attribute}
        program = parse(attributes["program"].s.decode())
        if program.block_steps:
            raise _Left("it has a block format")
        if any(axis is not None and axis < 0 for axis in program.axes):
            raise _Left("it has scales along an axis")
        if "block_size" in attributes and attributes["block_size"].i:
            raise _Left("it is in the blocked layout already")
        roles = list(zip(node.input, program.inputs, program.axes, strict=True))
        if any(own.element_type is not FLOAT32 for _, own, axis in roles if axis is None):
            raise _Left("it casts an input")
        operands = dict.fromkeys(name for name, own, axis in roles if axis is None and not own.is_scalar)
        channels = {name: self._channels(name) for name in operands}
        if not any(name in self.tensors and channels[name] > 1 for name in operands):
            raise _Left("no input comes from a node on blocks")
        counts = set(channels.values()) - {1}
        if len(counts) > 1:
            raise _Left("its inputs have different numbers of channels")
        (count,) = counts
        added = (name for name in operands if name not in self.tensors and name not in self.constants)
        if count % _ALIGNMENT and any(channels[name] > 1 for name in added):
            raise _Left(_NOT_ALIGNED)
        names = {}
        for name in operands:
            if name in self.constants:
                names[name] = self._constant(name, "region", self._constant_in_blocks)
            elif channels[name] > 1:
                names[name] = self._in_blocks(name, count)
            else:
                self._reorder_output(name)  # of one channel, it broadcasts
                names[name] = name
        inputs = [names[name] if axis is None and not own.is_scalar else name for name, own, axis in roles]
        copy = self._replace(node, inputs, node.domain, count, True)
        copy.attribute.append(helper.make_attribute("block_size", self.block))
        if count % self.block:
            copy.attribute.append(helper.make_attribute("channels", count))
        y = node.output[0]
        self.tensors[y] = self.tensors[y]._replace(is_number=self._is_number(node, program))
        self.kept += 1

    def _is_number(self, node: onnx.NodeProto, program: Program) -> bool:
        """Whether a region gives no NaN: what it gives last are integers times finite scales. The code of NaN is the lowest."""
        last = program.steps[-1]
        if last.operator != ROUND_TRIP:
            return False
        _, scale, zero_point = last.operands
        assert scale is not None
        assert zero_point is not None
        name = node.input[scale]
        is_finite = name in self.constants and bool(np.isfinite(numpy_helper.to_array(self.constants[name])).all())
        return is_finite and program.inputs[zero_point].element_type.is_integer

    def _constant_in_blocks(self, array: NDArray[Any]) -> NDArray[Any]:
        """(N, C / b, H, W, b), or (N, 1, H, W, 1) of one channel."""
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        lanes = 1 if array.shape[1] == 1 else self.block
        array = _padded(array, 1, lanes)
        n, c, h, w = array.shape
        return array.reshape(n, c // lanes, lanes, h, w).transpose(0, 1, 3, 4, 2)


# By domain and op_type.
_WAYS: dict[tuple[str, str], Callable[[_Writer, onnx.NodeProto], None]] = {
    ("", "Conv"): _Writer._conv,
    ("com.microsoft", "FusedConv"): _Writer._conv,
    ("", "Concat"): _Writer._concat,
    ("", "Resize"): _Writer._resize,
    ("", "Transpose"): _Writer._transpose,
    **{("", name): _Writer._pool for name in _POOLS},
    **dict.fromkeys((*_ELEMENTWISE, *_ELEMENTWISE_NOT_OF_ZERO), _Writer._elementwise),
    (_REGION.domain, _REGION.name): _Writer._region,
}


def filter_in_blocks(weights: NDArray[Any], block: int, blocks_of_inputs: bool) -> NDArray[Any]:
    """The weights of a convolution (outer, inner, kh, kw) as those on blocks have them: (outer / b, inner / b, kh, kw, b of the
    inner channels, b of the outer ones), or (outer / b, inner, kh, kw, b) where inputs are not taken in blocks, or each channel
    is by itself. Zeros stand for the channels added."""
    weights = _padded(weights, 0, block)
    if blocks_of_inputs:
        weights = _padded(weights, 1, block)
    outer, inner, kh, kw = weights.shape
    split = weights.reshape(outer // block, block, inner, kh, kw)
    if blocks_of_inputs:
        split = split.reshape(outer // block, block, inner // block, block, kh, kw).transpose(0, 2, 4, 5, 3, 1)
    else:
        split = split.transpose(0, 2, 3, 4, 1)
    return np.ascontiguousarray(split).reshape(outer, inner, kh, kw)


def _padded(array: NDArray[Any], axis: int, multiple: int) -> NDArray[Any]:
    """With zeros behind what it has along an axis, up to a multiple."""
    widths = [(0, -array.shape[axis] % multiple if each == axis else 0) for each in range(array.ndim)]
    return np.pad(array, widths)


def _perm(node: onnx.NodeProto) -> list[int]:
    return next((list(each.ints) for each in node.attribute if each.name == "perm"), [])


def _inferred_shapes(model: onnx.ModelProto) -> dict[str, list[int | None] | None]:
    """What onnx infers behind regions, whose shapes ONNX Runtime does not know; nothing where onnx fails."""
    skeleton = onnx.ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    graph = skeleton.graph
    graph.name = "shapes"
    graph.input.extend(model.graph.input)
    for each in model.graph.initializer:
        if np.prod(each.dims) <= _MOST_ELEMENTS:
            graph.initializer.append(each)
        else:
            graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, each.dims))
    graph.node.extend(stand_ins(model.graph.node, {}, standard_ops=True))
    for node in graph.node:
        if (node.domain, node.op_type) == ("com.microsoft", "FusedConv"):
            node.domain, node.op_type = "", "Conv"
            kept = [each for each in node.attribute if not each.name.startswith("activation")]
            del node.attribute[:]
            node.attribute.extend(kept)
    try:
        inferred = shape_inference.infer_shapes(skeleton, data_prop=True).graph
    except Exception as error:
        reraise_of_signal_handler(error)
        return {}
    return {each.name: _dimensions(each) for each in inferred.value_info}


def _dimensions(value: onnx.ValueInfoProto) -> list[int | None] | None:
    """Those that are known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [each.dim_value if each.dim_value > 0 else None for each in tensor.shape.dim]


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """All names in a graph and its subgraphs."""
    yield from (each.name for each in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for subgraph in _subgraphs(node):
            yield from _names(subgraph)


def _used_names(node: onnx.NodeProto) -> Iterator[str]:
    """What a node takes; its subgraphs may take any value of the graph by its name."""
    yield from node.input
    for subgraph in _subgraphs(node):
        yield from (each.name for each in subgraph.output)
        for each in subgraph.node:
            yield from _used_names(each)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


@functools.cache
def block_size() -> int:
    """How many channels ONNX Runtime puts into a block on this processor; 1 if it has no such layout, or arranges the weights
    of a convolution in another way than `filter_in_blocks`. It lays out two convolutions, which show it. Raises _Left."""
    filters = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in ((64, 1, 2, 3), (64, 64, 2, 3))]
    nodes = [helper.make_node("Conv", [x, w], [y]) for x, w, y in (("x", "w0", "v"), ("v", "w1", "y"))]
    values = [
        helper.make_tensor_value_info(*each) for each in (("x", FLOAT32.number, [1, 1, 4, 6]), ("y", FLOAT32.number, None))
    ]
    weights = [numpy_helper.from_array(each, f"w{k}") for k, each in enumerate(filters)]
    graph = helper.make_graph(nodes, "layout", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    laid_out = _written(model, onnxruntime.SessionOptions(), {}).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in laid_out.initializer}
    found = [arrays[node.input[1]] for node in laid_out.node if (node.domain, node.op_type) == (_NCHWC, "Conv")]
    for size in BLOCK_SIZES:
        own = [filter_in_blocks(each, size, each.shape[1] > 1) for each in filters]
        if len(found) == 2 and all(np.array_equal(*each) for each in zip(own, found, strict=True)):
            return size
    return 1
