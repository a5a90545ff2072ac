"""Operator classes for ``onnx.reference.ReferenceEvaluator``, made from the table of operators."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun, RuntimeTypeError

from .. import api, block_api
from ..block_formats import BLOCK_OPERATORS, X_TYPES, BlockOperator
from ..element_types import checked, find
from ..operators import DEFAULTS, INPUT_NAMES, OPERATOR_VERSIONS, OperatorVersion

try:
    # Before 1.19 onnx has dtypes of its own for what numpy lacks: those of uint8, int8 or uint16 with a field whose name is
    # that of the type.
    from onnx import _custom_element_types as own_types  # type: ignore[attr-defined, unused-ignore]
except ImportError:
    own_types = None


def reference_ops(*, standard_ops: bool = False) -> list[type[OpRun]]:
    """Operator classes for ``ReferenceEvaluator(model, new_ops=...)``, which run the package's kernels.

    ExtendedQuantizeLinear, ExtendedDequantizeLinear, BFPQuantizeDequantize and MXQuantizeDequantize of com.amd.quark, and
    VitisQuantizeLinear, VitisDequantizeLinear, BFPFixNeuron and MXFixNeuron of com.vai.quantize, and QuantizeDequantizeLinear
    of quark_numba. The evaluator does not hand them on to the functions of a model (``ModelProto.functions``).

    Parameters
    ----------
    standard_ops : bool
        Also ONNX's QuantizeLinear and DequantizeLinear, instead of the evaluator's own. They accept what these operators do in
        the model's opset, 10..28.

    Returns
    -------
    list of subclasses of ``onnx.reference.op_run.OpRun``. When they run, a wrong element type raises
    ``onnx.reference.op_run.RuntimeTypeError`` and another wrong input ValueError, naming the input, what it is and what was
    expected. Arrays of types that numpy lacks are ml_dtypes' as from onnx 1.19 on, and before that of the dtypes that the
    evaluator itself uses.
    """
    return [cls for cls in _classes() if cls.op_domain or standard_ops]


class _Linear(OpRun):
    """Any of the operators; the attributes that a node leaves out may come as None, or as their default."""

    versions: ClassVar[tuple[OperatorVersion, ...]]

    def _run(self, x: Any, scale: Any, zero_point: Any = None, **attributes: Any) -> tuple[NDArray[Any]]:
        version = self.versions[0]
        inputs = [_from_onnx(each) for each in (x, scale, zero_point)]
        given = {name: value for name, value in attributes.items() if value is not None and value != DEFAULTS.get(name)}
        try:
            if version.domain:
                _check(version, *inputs)
            else:
                given["opset"] = self.run_params["opsets"][version.domain]
            return (_to_onnx(getattr(api, version.operation)(*inputs, **given)),)
        except TypeError as error:  # for which the evaluator has a message of its own, without the reason
            raise RuntimeTypeError(f"{version.full_name}: {error}") from error


class _Block(OpRun):
    """Any of the operators of block formats; the same holds for its attributes."""

    operator: ClassVar[BlockOperator]

    def _run(self, x: Any, **attributes: Any) -> tuple[NDArray[Any]]:
        array = _from_onnx(x)
        given = {name: value for name, value in attributes.items() if value is not None}
        try:
            checked(array.dtype, "x", X_TYPES)
            return (_to_onnx(getattr(block_api, self.operator.function)(array, **given)),)
        except TypeError as error:
            raise RuntimeTypeError(f"{self.operator.full_name}: {error}") from error


@functools.cache
def _classes() -> tuple[type[OpRun], ...]:
    versions: dict[tuple[str, str], list[OperatorVersion]] = {}
    for version in OPERATOR_VERSIONS:
        versions.setdefault((version.domain, version.name), []).append(version)
    # The evaluator looks a class up by its name.
    linear = (
        type(name, (_Linear,), {"op_domain": domain, "versions": tuple(rows), "__module__": __name__})
        for (domain, name), rows in versions.items()
    )
    blocks = (
        type(each.name, (_Block,), {"op_domain": each.domain, "operator": each, "__module__": __name__})
        for each in BLOCK_OPERATORS
    )
    return (*linear, *blocks)


def _check(version: OperatorVersion, x: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any] | None) -> None:
    """Of what `quantize` and `dequantize` take, Quark's operators take less."""
    operands = ((x, version.x), (scale, version.scale), (zero_point, version.quantized))
    for name, (array, allowed) in zip(INPUT_NAMES[version.operation], operands, strict=True):
        if array is not None:
            checked(array.dtype, name, allowed)
    if scale.ndim > 1 and scale.size != 1 and "block_size" not in version.attributes:
        raise ValueError(f"{INPUT_NAMES[version.operation][1]} has shape {scale.shape}; expected a scalar or one dimension")


def _from_onnx(array: Any) -> Any:
    array = None if array is None else np.asarray(array)
    if array is None or not array.dtype.names:
        return array
    name = array.dtype.names[0]
    row = find(name) or find(f"float8{name}")
    return array.view(f"u{array.dtype.itemsize}").view(row.dtype) if row else array


def _to_onnx(array: NDArray[Any]) -> NDArray[Any]:
    row = find(array.dtype)
    dtype = getattr(own_types, row.name, None) if row else None
    if row is None or dtype is None:
        return array
    # An int4 is a sign-extended int8 there.
    array = array.astype(np.int8) if row.name == "int4" else array
    return array.view(f"u{array.dtype.itemsize}").view(dtype)
