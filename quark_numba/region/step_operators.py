"""The operators that a step of a program may have: STEP_OPERATORS, a row for each, with its operands, attributes, defaults and
functions.

All that is known of an operator is in its row; the limits of programs are in `key`. `key` checks programs by the numbers of
operands and the attributes, `arithmetic` compiles `element`, and `calls` calls `array`.

`element` is a function of float32 numbers, with the bits of ONNX Runtime's CPU provider, NaNs included. If both operands are
NaN, either one may be the result. For an operator with attributes, `element` returns this function for values of the
attributes. It calls no other function of this package, as it is compiled by itself. `element` is None for ``activations``,
which ONNX Runtime may compute otherwise, and for operators whose function depends on more: on the omitted operands of Clip, the
element types of a Cast or a round trip, or on a block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..block.operators import QUARK_OPERATORS as _BLOCK_OPERATORS
from ..element_types import FLOAT32
from ..fake_quantization.key import FORMS
from ..fake_quantization.operators import FAKE_QUANTIZE as _FAKE_QUANTIZE
from ..linear.calls import quantize_dequantize
from ..linear.versions import VERSIONS
from .activations import ACTIVATIONS, on_arrays

_f32 = np.float32
_ZERO, _ONE, _MINUS_ONE, _HALF, _SIXTH = map(_f32, (0, 1, -1, 0.5, 1 / 6))
_LEAST, _MOST = np.finfo(_f32).min, np.finfo(_f32).max

# The step that quantizes and dequantizes: (x, scale, zero point) -> y.
(ROUND_TRIP_VERSION,) = (version for version in VERSIONS if version.operation == "quantize_dequantize")
ROUND_TRIP = ROUND_TRIP_VERSION.name

# The step of fake quantization: (x, parameters of the form...) -> y. The parameters broadcast, as operands do.
FAKE_QUANTIZE = _FAKE_QUANTIZE.name

# The steps that round to block formats.
BLOCK_ROUND_TRIPS = tuple(operator.name for operator in _BLOCK_OPERATORS)

# The step that converts an input of another type to float32.
CAST = "Cast"


class StepOperator(NamedTuple):
    """A row of the table. See above for `element`."""

    fewest: int  # operands
    most: int
    array: Callable[..., Any]  # (operands, None for an omitted one, and attributes) -> an array
    element: Callable[..., Any] | None = None
    attributes: Mapping[str, Any] = {}  # with their defaults (ONNX, opset 22)
    domain: str = ""


def _clip(x: Any, lowest: Any = None, highest: Any = None) -> Any:
    return np.minimum(np.maximum(x, _LEAST if lowest is None else lowest), _MOST if highest is None else highest)


def _hard_sigmoid(alpha: float, beta: float) -> Any:
    a, b = _f32(alpha), _f32(beta)

    def hard_sigmoid(x: Any) -> Any:
        y = _f32(_f32(x * a) + b)
        y = _ONE if y > _ONE else y
        return _ZERO if y < _ZERO else y

    return hard_sigmoid


def _hard_swish(x: Any) -> Any:
    gate = _f32(_f32(x * _SIXTH) + _HALF)
    gate = _ONE if gate > _ONE else gate
    return _f32(x * (_ZERO if gate < _ZERO else gate))


def _sign(x: Any) -> Any:
    return _ONE if x > _ZERO else _MINUS_ONE if x < _ZERO else x if x != x else _ZERO


def _leaky_relu(alpha: float) -> Any:
    slope = _f32(alpha)
    return lambda x: x if x >= _ZERO else _f32(slope * x)


def _thresholded_relu(alpha: float) -> Any:
    threshold = _f32(alpha)
    return lambda x: x if x > threshold else _ZERO


STEP_OPERATORS: Mapping[str, StepOperator] = {
    "Abs": StepOperator(1, 1, np.abs, lambda x: abs(x)),
    "Add": StepOperator(2, 2, np.add, lambda a, b: _f32(a + b)),
    "Ceil": StepOperator(1, 1, np.ceil, lambda x: np.ceil(x)),
    "Clip": StepOperator(1, 3, _clip),
    "Div": StepOperator(2, 2, np.divide, lambda a, b: _f32(a / b)),
    "Floor": StepOperator(1, 1, np.floor, lambda x: np.floor(x)),
    "HardSigmoid": StepOperator(
        *(1, 1, lambda x, alpha, beta: _clip(x * _f32(alpha) + _f32(beta), _ZERO, _ONE), _hard_sigmoid),
        {"alpha": 0.2, "beta": 0.5},
    ),
    "HardSwish": StepOperator(1, 1, lambda x: x * _clip(x * _SIXTH + _HALF, _ZERO, _ONE), _hard_swish),
    "Identity": StepOperator(1, 1, np.array, lambda x: x),
    "LeakyRelu": StepOperator(1, 1, lambda x, alpha: np.where(x < 0, x * _f32(alpha), x), _leaky_relu, {"alpha": 0.01}),
    "Max": StepOperator(2, 2, np.maximum, lambda a, b: a if a >= b or a != a else b),
    "Min": StepOperator(2, 2, np.minimum, lambda a, b: a if a <= b or a != a else b),
    "Mul": StepOperator(2, 2, np.multiply, lambda a, b: _f32(a * b)),
    "Neg": StepOperator(1, 1, np.negative, lambda x: -x),
    "PRelu": StepOperator(
        2, 2, lambda x, slope: np.where(x >= 0, x, x * slope), lambda x, slope: x if x >= _ZERO else _f32(x * slope)
    ),
    "Reciprocal": StepOperator(1, 1, lambda x: _ONE / x, lambda x: _f32(_ONE / x)),
    "Relu": StepOperator(1, 1, lambda x: np.maximum(x, _ZERO), lambda x: _ZERO if x < _ZERO else x),
    "Sign": StepOperator(1, 1, np.sign, _sign),
    "Sqrt": StepOperator(1, 1, np.sqrt, lambda x: np.sqrt(x)),
    "Sub": StepOperator(2, 2, np.subtract, lambda a, b: _f32(a - b)),
    "ThresholdedRelu": StepOperator(
        1, 1, lambda x, alpha: np.where(x > _f32(alpha), x, _ZERO), _thresholded_relu, {"alpha": 1.0}
    ),
    **{name: StepOperator(1, 1, functools.partial(on_arrays, name)) for name in ACTIVATIONS},
    CAST: StepOperator(1, 1, lambda x, to: np.asarray(x, _f32), attributes={"to": FLOAT32.number}),
    ROUND_TRIP: StepOperator(
        *(3, 3, quantize_dequantize), attributes={"axis": 0, "saturate": 1}, domain=ROUND_TRIP_VERSION.domain
    ),
    FAKE_QUANTIZE: StepOperator(
        *(1, 1 + max(len(form.parameters) for form in FORMS.values()), _FAKE_QUANTIZE.call),
        attributes={"form": "", "rounding_mode": "ROUND"},
        domain=_FAKE_QUANTIZE.domain,
    ),
    **{
        operator.name: StepOperator(
            *(1, 1, operator.call),
            attributes={attribute.name: attribute.default for attribute in operator.attributes},
            domain=operator.domain,
        )
        for operator in _BLOCK_OPERATORS
    },
}
