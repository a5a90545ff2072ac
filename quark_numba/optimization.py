"""`optimize`: a model with its quantization nodes in fewer, cheaper forms, which give the same bits."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from . import api, block_api, model_files, operators
from .block_formats import BLOCK_OPERATORS, BlockOperator
from .element_types import FLOAT32, UINT8, ElementType, find
from .errors import ModelError
from .operators import DEFAULTS, OPERATOR_VERSIONS, OperatorVersion
from .tensors import to_tensor_proto

# What may be done with a node.
CONSTANT = "computed: a constant"
CODES = "quantized: constant codes"
ROUND_TRIP = "dropped: gives back what was dequantized"
SHARED = "dropped: another node gives the same"
FUSED = "fused: there and back in one step"

_STANDARD_DOMAINS = ("", "com.microsoft")

_OPERATORS: dict[tuple[str, str], OperatorVersion | BlockOperator] = {
    (each.domain, each.name): each for each in (*OPERATOR_VERSIONS, *BLOCK_OPERATORS)
}
_OPERATORS |= {("com.microsoft", name): each for (domain, name), each in _OPERATORS.items() if not domain}
(_FUSED,) = (version for version in OPERATOR_VERSIONS if version.via)

# As many codes are tried at most for the proof that quantizing undoes dequantizing.
_MOST_CODES = 1 << 24


def optimize(
    model: onnx.ModelProto | str | os.PathLike[str], *, keep_codes: bool = False, standard_ops: bool = False
) -> onnx.ModelProto:
    """The model with its quantization nodes in cheaper forms, without changing one bit of what they put out:

    - Nodes of which all inputs are constants are computed: what they put out becomes an initializer.
    - Quantize and dequantize nodes with the same parameters become one ``quark_numba::QuantizeDequantizeLinear``, version 1
      (see `quantize_dequantize`, `register_schemas`), in float32; equal dequantize nodes behind one quantize node become one.
    - A quantize node behind a dequantize node of the same, constant parameters is dropped where every code comes back, which is
      tried, for integers of up to 16 bits.

    Subgraphs and local functions are treated alike. Everything else stays as it is. Sessions need this package's operators
    (`register`, `InferenceSession`), as for the original.

    Parameters
    ----------
    model : onnx.ModelProto, or the path of a model
        Is not changed. Tensors in files beside the model are read.
    keep_codes : bool
        Leave constants quantized, each with a dequantize node: a small model, which does more work in a run. Block formats
        have no such node, and become float constants all the same.
    standard_ops : bool
        Whether sessions run ONNX's own QuantizeLinear and DequantizeLinear by this package, too (see `register`). Where they
        do not, these and those of com.microsoft stay if they quantize activations anywhere in the model, as ONNX Runtime
        fuses them with their neighbours into integer operators; and if its results may differ from the specification's.

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
    return optimized(model, keep_codes=keep_codes, standard_ops=standard_ops).model


@dataclass
class Optimized:
    """A model; of which operator how many nodes were treated how; and how many were left, and why."""

    model: onnx.ModelProto
    done: Counter[tuple[str, str]]
    left: Counter[tuple[str, str]]


def optimized(
    model: onnx.ModelProto | str | os.PathLike[str], *, keep_codes: bool = False, standard_ops: bool = False
) -> Optimized:
    """`optimize`, with an account of it."""
    if isinstance(model, (str, os.PathLike)):
        model = model_files.load(model)
    elif not isinstance(model, onnx.ModelProto):
        raise TypeError(f"model is a {type(model).__name__}; expected onnx.ModelProto or a path")
    if not model.HasField("graph"):
        raise ModelError("not an ONNX model: it has no graph")
    try:
        lost = _what_gets_lost(model)
        graphs = None if lost else ir.from_proto(model)
    except Exception as error:
        graphs, lost = None, f"what onnx-ir cannot read: {error.__cause__ or error}"
    if graphs is None:
        same = onnx.ModelProto()
        same.CopyFrom(model)
        return Optimized(same, Counter(), Counter({("the whole model", f"it has {lost}"): 1}))
    optimizer = _Optimizer(graphs, keep_codes, standard_ops)
    optimizer.run()
    return Optimized(ir.to_proto(graphs), optimizer.done, optimizer.left)


def _what_gets_lost(model: onnx.ModelProto) -> str:
    """What onnx-ir does not keep."""
    graphs: list[Any] = [model.graph, *model.functions]
    for graph in graphs:
        if getattr(graph, "sparse_initializer", None):
            return "sparse initializers"
        for attribute in itertools.chain.from_iterable(node.attribute for node in graph.node):
            graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    return "training_info" if model.training_info else ""


class _Left(Exception):  # noqa: N818
    """A node is left as it is; the message says why."""


@dataclass(eq=False)
class _Quantization:
    """A quantization node, with values for all its attributes."""

    node: ir.Node
    operator: OperatorVersion | BlockOperator
    owner: ir.Model | ir.Function
    place: int  # among all of them
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return _full_name(self.node)

    @property
    def operation(self) -> str:
        return self.operator.operation if isinstance(self.operator, OperatorVersion) else "block"

    @property
    def is_standard(self) -> bool:
        return self.node.domain in _STANDARD_DOMAINS

    def input(self, index: int) -> ir.Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    @property
    def x(self) -> ir.Value:
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def y(self) -> ir.Value:
        return self.node.outputs[0]


class _Optimizer:
    def __init__(self, model: ir.Model, keep_codes: bool, standard_ops: bool) -> None:
        self.model, self.keep_codes, self.standard_ops = model, keep_codes, standard_ops
        self.done: Counter[tuple[str, str]] = Counter()
        self.left: Counter[tuple[str, str]] = Counter()
        self.quantizations: dict[ir.Node, _Quantization] = {}
        self.reasons: dict[ir.Node, str] = {}
        self.arrays: dict[ir.Value, NDArray[Any]] = {}  # of constants, and of what follows from them
        self.zero_points: dict[tuple[Any, ...], ir.Value] = {}

    def run(self) -> None:
        owners: list[ir.Model | ir.Function] = [self.model, *self.model.functions.values()]
        for owner in owners:
            for node in ir.traversal.RecursiveGraphIterator(owner.graph):
                self._find(node, owner)
        self._leave_standard()
        for step in (self._compute, self._drop, self._fuse):
            for each in list(self.quantizations.values()):
                if each.node.graph and each.node not in self.reasons:
                    try:
                        step(each)
                    except _Left as error:
                        self.reasons[each.node] = str(error)
        for each in self.quantizations.values():
            if each.node.graph:
                self.left[each.full_name, self._reason(each)] += 1

    def _find(self, node: ir.Node, owner: ir.Model | ir.Function) -> None:
        operator = _OPERATORS.get((node.domain, node.op_type))
        if operator is None or node.op_identifier() in self.model.functions:
            if operators.QUANTIZATION.search(node.op_type):
                self.left[_full_name(node), "not an operator of this package"] += 1
            return
        required, most = (1, 1) if isinstance(operator, BlockOperator) else (3 if operator.via else 2, 3)
        if not required <= len(node.inputs) <= most or None in node.inputs[:required] or len(node.outputs) != 1:
            reason = f"not valid: it has {len(node.inputs)} inputs, {len(node.outputs)} outputs, or lacks one"
            self.left[_full_name(node), reason] += 1
            return
        each = self.quantizations[node] = _Quantization(node, operator, owner, len(self.quantizations))
        defaults = operator.defaults if isinstance(operator, BlockOperator) else DEFAULTS
        each.attributes |= defaults
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                self.reasons[node] = "its attributes are those of a function's call"
            elif name in defaults and not isinstance(attribute.value, type(defaults[name])):
                self.reasons[node] = f"its attribute {name} is a {attribute.type.name}"
            elif name in defaults:
                each.attributes[name] = attribute.value

    def _leave_standard(self) -> None:
        """ONNX's own operators that are ONNX Runtime's to run."""
        standard = [each for each in self.quantizations.values() if each.is_standard]
        if self.standard_ops:
            standard = [each for each in standard if each.node.domain]
        is_integer_model = any(each.operation == "dequantize" and self._is_onnx_runtimes(each.x) for each in standard)
        for each in standard:
            quantized, scale = self._quantized_type(each), self._type(each.input(1))
            wraps = quantized is not None and quantized.bits == 32 and not self._is_zero(each.input(2))
            if is_integer_model:
                self.reasons[each.node] = "ONNX Runtime may fuse it with its neighbours into an integer operator"
            elif wraps or quantized is None or not quantized.is_integer or quantized.bits < 4 or scale is not FLOAT32:
                self.reasons[each.node] = "ONNX Runtime's result may differ from the specification's"

    def _is_onnx_runtimes(self, codes: ir.Value) -> bool:
        """Whether codes come neither from a constant nor from a quantize node of this package."""
        quantize = self._quantization(codes.producer())
        if quantize is None or quantize.operation != "quantize":
            return self._array(codes) is None
        return quantize.is_standard and self._array(quantize.x) is None

    def _reason(self, each: _Quantization) -> str:
        if each.node in self.reasons:
            return self.reasons[each.node]
        if each.operation in ("block", "quantize_dequantize"):
            return "one step already, of what is no constant"
        before = self._quantization(each.x.producer())
        return self._reason(before) if before else "nothing beside it quantizes what it dequantizes"

    # Nodes of which all inputs are constants.

    def _compute(self, each: _Quantization) -> None:
        inputs = [None if value is None else self._array(value) for value in each.node.inputs]
        if any(array is None for value, array in zip(each.node.inputs, inputs, strict=True) if value is not None):
            return
        self.arrays[each.y] = self._call(each, inputs)
        if each.operation == "quantize":
            return
        if self.keep_codes and each.operation == "dequantize":
            quantize = each.x.producer()
            if quantize in self.quantizations:
                self._make_constant(each.x, CODES)
            raise _Left("its codes are kept")
        self._make_constant(each.y, CONSTANT)

    def _array(self, value: ir.Value) -> NDArray[Any] | None:
        """Of a constant. An initializer that is an input, too, is only the default of one, as from IR version 4 on."""
        if value not in self.arrays:
            is_input = value.is_graph_input() and self.model.ir_version >= 4
            tensor = None if is_input else ir.convenience.get_const_tensor(value)
            if tensor is None or find(tensor.dtype.value) is None:
                return None
            try:
                self.arrays[value] = tensor.numpy()
            except Exception as error:  # a file that is not there, bytes that do not fit the shape
                raise ModelError(f"tensor {value.name}: {error}") from None
        return self.arrays[value]

    @staticmethod
    def _call(each: _Quantization, inputs: list[NDArray[Any] | None], **changed: int) -> NDArray[Any]:
        attributes = each.attributes | changed
        try:
            if isinstance(each.operator, BlockOperator):
                return getattr(block_api, each.operator.function)(*inputs, **attributes)
            scale = inputs[1]
            if scale is not None and scale.size > 1 and scale.ndim > 1 and not attributes["block_size"]:
                raise ValueError(f"the scale has shape {scale.shape}; expected a block_size")
            known = {name: attributes[name] for name in each.operator.attributes}
            types = {name: known[name] or None for name in ("output_dtype", "precision") if name in known}
            return getattr(api, each.operator.operation)(*inputs, **(known | types))
        except (TypeError, ValueError) as error:
            raise _Left(f"not valid: {error}") from None

    def _make_constant(self, value: ir.Value, what: str) -> None:
        """An initializer in the place of the node that puts it out."""
        node = value.producer()
        assert node
        if value.is_graph_output():
            raise _Left("it puts out an output of its graph")
        constant = self._constant(self.arrays[value], value.name, node)
        _copy_metadata(value, constant)
        value.replace_all_uses_with(constant)
        self._remove(self.quantizations[node], what)

    def _constant(self, array: NDArray[Any], name: str | None, before: ir.Node) -> ir.Value:
        """An initializer of the node's graph; a Constant node in front of it where there are none."""
        tensor = ir.serde.deserialize_tensor(to_tensor_proto(array, name or ""))
        graph = before.graph
        assert graph
        if self.model.ir_version < 4 or any(graph is function.graph for function in self.model.functions.values()):
            node = ir.node("Constant", [], {"value": tensor}, outputs=[ir.Value(name=name)])
            graph.insert_before(before, node)
            (value,) = node.outputs
        else:
            value = ir.Value(name=name, const_value=tensor)
            graph.register_initializer(value)
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        self.arrays[value] = array
        return value

    def _remove(self, each: _Quantization, what: str) -> None:
        self.done[each.full_name, what] += 1
        self._remove_node(each.node, what)

    def _remove_node(self, node: ir.Node, what: str) -> None:
        """And what only it used, of constants and of quantization nodes."""
        inputs = {value for value in node.inputs if value is not None}
        graph = node.graph
        assert graph
        graph.remove(node, safe=True)
        for value in inputs:
            if value.uses() or value.is_graph_output() or value.is_graph_input():
                continue
            producer = value.producer()
            if value.is_initializer() and value.graph and value.name:
                del value.graph.initializers[value.name]
            elif producer and producer.graph and producer in self.quantizations:
                self._remove(self.quantizations[producer], what)
            elif producer and producer.graph and producer.op_identifier() == ("", "Constant", ""):
                self._remove_node(producer, what)

    # Quantize nodes behind dequantize nodes, and before them.

    def _drop(self, each: _Quantization) -> None:
        """A quantize node that gives back the codes that were dequantized."""
        before = self._quantization(each.x.producer())
        if each.operation != "quantize" or before is None or before.operation != "dequantize" or each.y.is_graph_output():
            return
        row, scale, zero_point = self._quantized_type(each), self._array_of(each, 1), self._array_of(each, 2)
        if row is None or row is not self._quantized_type(before) or scale is None or not self._same_parameters(each, before):
            return
        if each.input(2) is not None and zero_point is None:
            return
        # Float types give 0 for -0.
        if each.attributes["block_size"] or not row.is_integer or row.bits > 16 or scale.size << row.bits > _MOST_CODES:
            return
        codes = np.arange(2**row.bits).astype(f"u{row.dtype.itemsize}").view(row.dtype)
        x, scale = np.tile(codes, (scale.size, 1)), scale.reshape(-1)
        zeros = None if zero_point is None else zero_point.reshape(-1)
        floats = self._call(before, [x, scale, zeros], axis=0)
        back = self._call(each, [floats, scale, zeros], axis=0)
        if back.dtype != row.dtype or back.tobytes() != x.tobytes():
            return
        each.y.replace_all_uses_with(before.x)
        self._remove(each, ROUND_TRIP)

    def _fuse(self, each: _Quantization) -> None:
        """A quantize node with the dequantize nodes behind it."""
        if each.operation != "quantize":
            return
        if each.y.is_graph_output():
            raise _Left("its codes are an output of its graph")
        if not each.y.uses():
            raise _Left("nothing uses it")
        followers = [self._follower(each, user, index) for user, index in each.y.uses()]
        first, *others = sorted(followers, key=lambda follower: follower.place)
        for other in others:
            if not self._is_equal(first, other) or other.y.is_graph_output():
                raise _Left("several dequantize nodes, not equal, or outputs of their graph, are behind it")
        self._check_fusion(each, first)
        zero_point = each.input(2) or first.input(2)
        if zero_point is not None and zero_point in each.owner.graph.inputs and each.owner is not self.model:
            raise _Left("its zero point is an input of a function, which a call may leave out")
        scale, zero_point = each.input(1), zero_point or self._zero_point(each)
        for other in others:
            other.y.replace_all_uses_with(first.y)
            self._remove(other, SHARED)
        attributes = {name: each.attributes[name] for name in _FUSED.attributes}
        inputs, name, graph = [each.x, scale, zero_point], first.node.name, each.node.graph
        node = ir.node(_FUSED.name, inputs, attributes, domain=_FUSED.domain, outputs=[ir.Value()], name=name)
        assert graph
        ir.convenience.replace_nodes_and_values(graph, first.node, [first.node], [node], [first.y], list(node.outputs))
        _copy_metadata(first.y, node.outputs[0])
        _copy_metadata(first.node, node)
        self.done[first.full_name, FUSED] += 1
        self._remove(each, FUSED)
        for owner in (each.owner, self.model):
            owner.opset_imports.setdefault(_FUSED.domain, _FUSED.since_version)

    def _follower(self, each: _Quantization, user: ir.Node, index: int) -> _Quantization:
        follower = self._quantization(user)
        if follower is None or follower.operation != "dequantize" or index or user.graph is not each.node.graph:
            raise _Left("its codes are used elsewhere")
        if user in self.reasons:
            raise _Left(f"what dequantizes it is left: {self.reasons[user]}")
        return follower

    def _check_fusion(self, quantize: _Quantization, dequantize: _Quantization) -> None:
        row = self._quantized_type(quantize)
        if not self._same_parameters(quantize, dequantize):
            raise _Left("what is behind it dequantizes with other parameters")
        if row is not None and row not in _FUSED.via:
            raise _Left(f"{_FUSED.full_name} has no {row.name}")
        if self._type(quantize.input(1)) not in (None, FLOAT32):
            raise _Left("its scale is not float32")
        types = (0, FLOAT32.number)
        if quantize.attributes["precision"] not in types or dequantize.attributes["output_dtype"] not in types:
            raise _Left("it computes in another type than float32")
        if quantize.is_standard and not self._type(quantize.x) is self._type(quantize.input(1)) is FLOAT32:
            raise _Left("its x and its scale are not both known to be float32")

    def _quantization(self, node: ir.Node | None) -> _Quantization | None:
        return self.quantizations.get(node) if node else None

    def _type(self, value: ir.Value | None) -> ElementType | None:
        if value is None:
            return None
        array = self._array(value)
        return find(array.dtype) if array is not None else find(value.dtype.value) if value.dtype else None

    def _quantized_type(self, each: _Quantization) -> ElementType | None:
        if each.input(2) is not None:
            return self._type(each.input(2))
        if each.operation == "quantize":
            return find(each.attributes["output_dtype"]) or UINT8
        before = self._quantization(each.x.producer())
        return self._type(each.x) or (self._quantized_type(before) if before else None)

    def _array_of(self, each: _Quantization, index: int) -> NDArray[Any] | None:
        value = each.input(index)
        return None if value is None else self._array(value)

    def _same_parameters(self, one: _Quantization, other: _Quantization) -> bool:
        """Whether scale, zero point and granularity are the same; those that are no constants have to be the same value."""
        scale = self._array_of(one, 1)
        same_axis = one.attributes["axis"] == other.attributes["axis"] or (scale is not None and scale.size == 1)
        if not same_axis or one.attributes["block_size"] != other.attributes["block_size"]:
            return False
        if not self._same(one.input(1), other.input(1)):
            return False
        zero_points = [each.input(2) for each in (one, other)]
        if None not in zero_points or zero_points[0] is zero_points[1]:
            return self._same(*zero_points)
        return self._quantized_type(one) is self._quantized_type(other) and all(map(self._is_zero, zero_points))

    def _is_zero(self, zero_point: ir.Value | None) -> bool:
        array = None if zero_point is None else self._array(zero_point)
        return zero_point is None or (array is not None and not any(array.tobytes()))

    def _same(self, one: ir.Value | None, other: ir.Value | None) -> bool:
        if one is other or one is None or other is None:
            return one is other
        arrays = self._array(one), self._array(other)
        if arrays[0] is None or arrays[1] is None:
            return False
        return all(getattr(arrays[0], name) == getattr(arrays[1], name) for name in ("shape", "dtype")) and (
            arrays[0].tobytes() == arrays[1].tobytes()
        )

    def _is_equal(self, one: _Quantization, other: _Quantization) -> bool:
        return (
            one.node.op_identifier() == other.node.op_identifier()
            and one.attributes["output_dtype"] == other.attributes["output_dtype"]
            and self._same_parameters(one, other)
        )

    def _zero_point(self, each: _Quantization) -> ir.Value:
        """Zeros for a node that has no zero point."""
        scale, row, graph = each.input(1), self._quantized_type(each), each.node.graph
        assert scale is not None
        assert row
        array = self._array(scale)
        if array is None and (scale.shape is None or not scale.shape.is_static()):
            raise _Left("it has no zero point, and the shape of its scale is not known")
        shape = array.shape if array is not None else scale.shape.numpy() if scale.shape else ()
        key = graph, row, shape
        if key not in self.zero_points:
            assert graph
            zeros = np.zeros(shape, row.dtype)
            self.zero_points[key] = self._constant(zeros, self._unused_name(f"zero_point_{row.name}"), next(iter(graph)))
        return self.zero_points[key]

    def _unused_name(self, name: str) -> str:
        graphs = [self.model.graph, *(function.graph for function in self.model.functions.values())]
        names = {value.name for value in self.zero_points.values()}
        for graph in graphs:
            for node in ir.traversal.RecursiveGraphIterator(graph, enter_graph=lambda inner: names.update(_declared(inner))):
                names.update(value.name for value in (*node.inputs, *node.outputs) if value)
        return next(f"{name}_{i}" for i in itertools.count() if f"{name}_{i}" not in names)


def _full_name(node: ir.Node) -> str:
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"


def _declared(graph: Any) -> Iterator[str | None]:
    for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
        yield value.name


def _copy_metadata(old: Any, new: Any) -> None:
    """Of a node or a value."""
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
