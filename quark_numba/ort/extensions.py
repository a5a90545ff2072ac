"""The extensions backend, which stands in for the native one: which operators and types are declared with
onnxruntime-extensions' ``onnx_op``, and the text about those that are missing.

The limits of onnxruntime-extensions 0.15, and what follows from them here:

- float16 and bfloat16 tensors end the process. These types are not declared, so ONNX Runtime refuses such a model.
- Every input is required, and all overloads must have the same number of inputs. A node without a zero point is refused.
- A declared attribute must be on every node, and may not be a list. Other attributes are not declared; their values are those
  of ``Operator.attributes_of_shapes``, or the defaults.
- Attributes are passed as text, a FLOAT with six digits. So the scales of LSTM layers differ slightly from those of the model.
- An exception ends the process. A fault of a node is logged, and its outputs are empty.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..catalog import OPERATORS
from ..compiling.lock import run_in_creation
from ..compiling.threads import on_one_thread
from ..declaration import Attribute, Operator, Overload
from ..element_types import FLOAT32, ElementType
from ..errors import missing_packages_are_named

_log = logging.getLogger(__name__)

# The kinds of attributes, and their names in PyCustomOpDef.
_KINDS = {"INT": "dt_int64", "FLOAT": "dt_float", "STRING": "dt_string"}


def carries(element_type: ElementType) -> bool:
    """Return whether onnxruntime-extensions can pass tensors of the type."""
    return (element_type.is_integer and element_type.bits >= 8) or element_type is FLOAT32


def has(operator: Operator) -> bool:
    """Return whether the operator is declared. ONNX's own operators are not, as ONNX Runtime has them; nor are variadic ones,
    and those that require an attribute that is a list."""
    needs_list = any(each.default is None and each.kind not in _KINDS for each in operator.attributes)
    return bool(operator.domain) and operator.most_inputs is not None and not needs_list


MISSING = (
    "float16 and bfloat16, nodes without a zero point, nodes of block formats that leave an attribute out, an axis that the "
    "shapes do not determine, scales of LSTM layers beyond six digits, errors from a run (they are logged, and the output is "
    "empty), and most of the speed"
)


def get_library_path() -> str:
    """Return the path of onnxruntime-extensions' library, once the operators are declared in it."""
    with missing_packages_are_named():
        import onnxruntime_extensions

    run_in_creation(_declare)
    return str(onnxruntime_extensions.get_library_path())


@functools.cache
def _declare() -> None:
    """Declare the operators, once: if the same types were declared again, all later sessions would fail."""
    import onnxruntime_extensions
    from onnxruntime_extensions import _ocos

    known: dict[int, tuple[Callable[..., tuple[NDArray[Any], ...]], Operator, Overload]] = {}
    for operator in filter(has, OPERATORS):
        attributes = [each for each in operator.attributes if each.is_always_written and each.kind in _KINDS]
        for overload in operator.overloads(carries):
            body = functools.partial(_body, operator, attributes)
            for inputs in _inputs(operator, overload):
                declared = onnxruntime_extensions.onnx_op(
                    op_type=operator.full_name,
                    inputs=inputs,
                    outputs=[element_type.number for element_type in overload.outputs],
                    attrs={each.name: getattr(onnxruntime_extensions.PyCustomOpDef, _KINDS[each.kind]) for each in attributes},
                )(body)
                known[id(declared)] = body, operator, overload

    def hook(k_id: int, feed: Any, attributes: Any) -> Any:
        """Return a node's answer. The stock hook converts every output to a list of Python numbers; this one returns arrays."""
        if k_id not in known:
            return _ocos._on_pyop_invocation(k_id, feed, attributes)
        body, _, _ = known[k_id]
        return _answer(k_id, body(*feed, **attributes))

    def retry(k_id: int, feed: Any, attributes: Any) -> tuple[Any, bool]:
        """Run a node that raised once more. Return its answer, and whether the node is at fault."""
        try:
            return hook(k_id, feed, attributes), False
        except Exception as error:
            _, operator, overload = known[k_id]
            _log.error("%s: %s; the output is left empty", operator.full_name, error)
            return _answer(k_id, tuple(np.empty(0, element_type.dtype) for element_type in overload.outputs)), True

    from ..compiling.jit import JIT_ENABLED  # which imports Numba
    from .extensions_hook import uninterrupted

    run = uninterrupted(hook, retry) if JIT_ENABLED else lambda *node: retry(*node)[0]
    onnxruntime_extensions.PyCustomOpDef.install_hooker(run)


def _inputs(operator: Operator, overload: Overload) -> Iterator[list[int]]:
    """Yield the types of an overload's inputs, by their numbers in TensorProto. Inputs that describe a format are declared as
    float32, or as integers of one type. "Any type" would also accept float16 tensors, and declaring all combinations of types
    would take thousands of overloads."""
    others = [parameter for parameter in operator.inputs if not parameter.is_homogeneous]
    integers = [each for each in filter(carries, operator.types[others[0].variable]) if each.is_integer] if others else []
    choices = [product((FLOAT32, element_type), repeat=len(others)) for element_type in integers or [FLOAT32]]
    for chosen in dict.fromkeys(itertools.chain(*choices)):
        own, types = iter(chosen), iter(overload.inputs)
        yield [next(types if parameter.is_homogeneous else own).number for parameter in operator.inputs]


def _answer(k_id: int, outputs: tuple[NDArray[Any], ...]) -> tuple[Any, ...]:
    return (k_id, *(part for y in outputs for part in (y.shape, y)))


def _body(operator: Operator, attributes: Sequence[Attribute], *inputs: NDArray[Any], **texts: str) -> tuple[NDArray[Any], ...]:
    """Return the outputs of a node, whose attributes are passed as text."""
    values = {attribute.name: attribute.value(texts[attribute.name]) for attribute in attributes}
    if operator.attributes_of_shapes and not attributes:
        values = operator.attributes_of_shapes(*(array.shape for array in inputs))
    # The other processors are busy: ONNX Runtime's threads spin while they wait for this one.
    outputs = on_one_thread(operator.call, *inputs, **operator.values(values))
    return outputs if isinstance(outputs, tuple) else (outputs,)
