"""Operator classes for ``onnx.reference.ReferenceEvaluator``, made from the catalog of operators."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun, RuntimeTypeError

from ..catalog import OPERATORS
from ..checks import check_choices
from ..declaration import Operator
from ..element_types import find
from ..element_types.operands import find_any

try:
    # Before 1.19 onnx has its own dtypes for types that numpy lacks: uint8, int8 or uint16 with one field, named after the
    # type.
    from onnx import _custom_element_types as own_types  # type: ignore[attr-defined, unused-ignore]
except ImportError:
    own_types = None


def reference_ops(*, qdq: Literal["auto", "float"] = "auto") -> list[type[OpRun]]:
    """Return operator classes for ``ReferenceEvaluator(model, new_ops=...)``, which run the package's kernels.

    The operators are the ones that ``quark-numba types`` prints in domains other than that of ONNX. The evaluator does not pass
    the classes on to the functions of a model (``ModelProto.functions``).

    Parameters
    ----------
    qdq : "auto" or "float"
        Who runs ONNX's QuantizeLinear and DequantizeLinear. "float": this package; the classes include these two operators, and
        accept what they accept in the model's opset, 10..28. "auto": the evaluator.

    Returns
    -------
    list of subclasses of ``onnx.reference.op_run.OpRun``. When they run, a wrong element type raises
    ``onnx.reference.op_run.RuntimeTypeError``, and any other wrong input raises ValueError. The message names the input, what
    it is and what was expected. Arrays of types that numpy lacks have dtypes of ml_dtypes from onnx 1.19 on, and dtypes of the
    evaluator itself before.
    """
    check_choices(("auto", "float"), qdq=qdq)
    return [cls for cls in _classes() if cls.op_domain or qdq == "float"]


class _Operator(OpRun):
    """The base class of all operators' classes. Attributes that a node omits may come as None, or as their default."""

    newest: ClassVar[Operator]

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[NDArray[Any], ...]:
        operator = self.newest
        if not operator.domain:
            operator = OPERATORS.of_opset(operator, self.run_params["opsets"][operator.domain])
        arrays = [_from_onnx(x) for x in inputs]
        given = {name: value for name, value in attributes.items() if value is not None}
        try:
            operator.check_types([None if array is None else find_any(array.dtype) or str(array.dtype) for array in arrays])
            outputs = operator.call(*arrays, **operator.values(given))
        except TypeError as error:  # the evaluator would replace its message by one without the reason
            raise RuntimeTypeError(f"{operator.full_name}: {error}") from error
        return tuple(map(_to_onnx, outputs if isinstance(outputs, tuple) else (outputs,)))


@functools.cache
def _classes() -> tuple[type[OpRun], ...]:
    # The evaluator looks a class up by its name.
    return tuple(
        type(newest.name, (_Operator,), {"op_domain": newest.domain, "newest": newest, "__module__": __name__})
        for domain in OPERATORS.domains
        for newest in OPERATORS.newest(domain)
    )


def _from_onnx(array: Any) -> Any:
    array = None if array is None else np.asarray(array)
    if array is None or not array.dtype.names:
        return array
    name = array.dtype.names[0]
    element_type = find(name) or find(f"float8{name}")
    return array.view(f"u{array.dtype.itemsize}").view(element_type.dtype) if element_type else array


def _to_onnx(array: NDArray[Any]) -> NDArray[Any]:
    element_type = find(array.dtype)
    dtype = getattr(own_types, element_type.name, None) if element_type else None
    if element_type is None or dtype is None:
        return array
    # The evaluator's int4 is a sign-extended int8.
    array = array.astype(np.int8) if element_type.name == "int4" else array
    return array.view(f"u{array.dtype.itemsize}").view(dtype)
