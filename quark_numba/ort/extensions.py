"""The portable way into ONNX Runtime: operators declared with onnxruntime-extensions' ``onnx_op``.

What onnxruntime-extensions 0.15 cannot do, and what follows from it here:

- float16 and bfloat16 tensors end the process: they are not declared, so that ONNX Runtime refuses them at load.
- Every input is required, and overloads must agree in their number: a node without a zero point is refused at load.
- An attribute that is declared must be on every node. Quark leaves axis out where it has no meaning: for quantize and
  dequantize it is not declared, and `_axis` finds it from the shapes. Nodes of block formats, and those that `optimize`
  writes, have all their attributes.
- An exception ends the process: a fault is logged, and the output left empty.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime_extensions
from numpy.typing import NDArray
from onnxruntime_extensions import _ocos

from .. import api, block_api, jit
from ..block_formats import BLOCK_OPERATORS, BlockOperator
from ..element_types import FLOAT32, ElementType
from ..lock import creation_lock
from ..operators import DEFAULTS, OPERATOR_VERSIONS, OperatorVersion

_log = logging.getLogger(__name__)


def carries(row: ElementType) -> bool:
    """Whether tensors of the type get through onnxruntime-extensions."""
    return (row.is_integer and row.bits >= 8) or row is FLOAT32


VERSIONS = tuple(version for version in OPERATOR_VERSIONS if version.domain)

MISSING = (
    f"{' and '.join(row.name for row in VERSIONS[0].quantized if not carries(row))}, nodes without a zero point, nodes of "
    "block formats that leave an attribute out, an axis that the shapes do not tell, errors from a run (they are logged, and "
    "the output is empty), and most of the speed"
)


def get_library_path() -> str:
    """The path of onnxruntime-extensions' library, with our operators declared in it."""
    with creation_lock:
        _declare()
    return str(onnxruntime_extensions.get_library_path())


@functools.cache
def _declare() -> None:
    """Once: a second declaration of the same types is a conflict for every session from then on."""
    bodies: dict[int, Callable[..., NDArray[Any]]] = {}
    kinds = onnxruntime_extensions.PyCustomOpDef
    for version in VERSIONS:
        for x in filter(carries, version.x):
            for y in filter(carries, version.y):
                body = functools.partial(_body, version, y)
                for quantized in filter(carries, version.via) if version.via else [y if version.operation == "quantize" else x]:
                    declared = onnxruntime_extensions.onnx_op(
                        op_type=version.full_name,
                        inputs=[x.number, FLOAT32.number, quantized.number],
                        outputs=[y.number],
                        attrs=dict.fromkeys(version.attributes, kinds.dt_int64) if version.via else {},
                    )(body)
                    bodies[id(declared)] = body
    for operator in BLOCK_OPERATORS:
        body = functools.partial(_block_body, operator)
        attributes = {n: kinds.dt_string if isinstance(v, str) else kinds.dt_int64 for n, v in operator.defaults.items()}
        declared = onnxruntime_extensions.onnx_op(
            op_type=operator.full_name, inputs=[FLOAT32.number], outputs=[FLOAT32.number], attrs=attributes
        )(body)
        bodies[id(declared)] = body

    def hook(k_id: int, feed: Any, attributes: Any) -> Any:
        """The stock hook makes a list of Python numbers of every output; arrays may go back as they are."""
        if k_id not in bodies:
            return _ocos._on_pyop_invocation(k_id, feed, attributes)
        y = bodies[k_id](*feed, **attributes)
        return k_id, y.shape, y

    onnxruntime_extensions.PyCustomOpDef.install_hooker(hook)


def _body(
    version: OperatorVersion, y: ElementType, x: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any], **attributes: str
) -> NDArray[Any]:
    convert = getattr(api, version.operation)
    values = {name: int(value) for name, value in attributes.items()}

    def run() -> NDArray[Any]:
        return convert(x, scale, zero_point, **(values or {"axis": _axis(x.shape, scale.shape)}))

    return _run(version.full_name, y, run)


def _block_body(operator: BlockOperator, x: NDArray[Any], **attributes: str) -> NDArray[Any]:
    convert = getattr(block_api, operator.function)
    values = {name: type(operator.defaults[name])(value) for name, value in attributes.items()}
    return _run(operator.full_name, FLOAT32, lambda: convert(x, **values))


def _run(name: str, y: ElementType, convert: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    try:
        with jit.one_thread():  # ONNX Runtime's threads wait for this one, spinning
            return convert()
    except Exception as error:
        _log.error("%s: %s; the output is left empty", name, error)
        return np.empty(0, y.dtype)


def _axis(x_shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> int:
    """The one axis for which these shapes are valid, if there is just one; the default where it has no meaning."""
    if scale_shape in ((), (1,)):
        return DEFAULTS["axis"]
    fitting = [axis for axis, length in enumerate(x_shape) if (length,) == scale_shape]
    if len(fitting) > 1:
        raise ValueError(f"axis is one of {fitting} for shapes {x_shape} and {scale_shape}: which, only the native way can see")
    return fitting[0] if fitting else DEFAULTS["axis"]
