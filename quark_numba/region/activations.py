"""The activation functions that ONNX Runtime approximates (Erf, Sigmoid, Tanh): rational functions and polynomials with fused
multiply-adds, and their constants.

The constants and the order of the operations are those of MLAS, ONNX Runtime's library of kernels (logistic.cpp, tanh.cpp and
erf.cpp; MIT license). On x86-64 with FMA, ONNX Runtime 1.32 gives the same bits for every float32. Other releases and
processors may compute otherwise, so ``rewriting.activation_probe`` asks the installed ONNX Runtime. The functions of this
module have the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_f32, _f64 = np.float32, np.float64

ACTIVATIONS = ("Erf", "Sigmoid", "Tanh")

# The magnitudes from which on the functions are constant, or from which Erf is computed otherwise.
LIMITS = {"Erf": (0.921875, 3.925), "Sigmoid": (18.0,), "Tanh": (9.0,)}


def _constants(*values: float) -> tuple[Any, ...]:
    return tuple(map(_f32, values))


_S9, _S7, _S5, _S3, _S1 = _constants(
    4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01
)
_S10, _S8, _S6, _S4, _S2, _S0 = _constants(
    *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
    *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
)
_T13, _T11, _T9, _T7, _T5, _T3, _T1 = _constants(
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
_T6, _T4, _T2, _T0 = _constants(1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)

# Erf of small magnitudes; the logarithm of 1 - Erf; 2 ** x of a fraction, and what cuts x into a whole number and a fraction.
_P0, _P1, _P2, _P3, _P4, _P5 = _constants(
    -5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1, 1.28379151e-1
)
_B0, _B1, _B2, _B3, _B4, _B5, _B6 = _constants(
    *(1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2, 1.06777847e-1, 6.34846687e-1, 1.28717512e-1)
)
_E0, _E1, _E2, _E3, _E4, _E5, _E6 = _constants(
    1.38319808e-3, 8.37550033e-3, 4.16689515e-2, 1.66664466e-1, 4.99999851e-1, 1.0, 1.0
)
_LEAST_LOG, _PER_LOG_2, _TO_WHOLE = _constants(-88.3762626647949, 1.44269504088896341, 1.2582912e7)
_LOG_2_HIGH, _LOG_2_LOW = _constants(-6.93145752e-1, -1.42860677e-6)
_ERF_SMALL, _ERF_MOST = _constants(*LIMITS["Erf"])
_SIGMOID_MOST, _TANH_MOST, _ZERO, _HALF, _ONE = _constants(*LIMITS["Sigmoid"], *LIMITS["Tanh"], 0, 0.5, 1)
_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


def formulas(inline: Callable[..., Any], fma: Any, choose: Any) -> dict[str, Any]:
    """Return the function of each of ACTIVATIONS, for one float32 or for arrays.

    Parameters
    ----------
    inline : function that prepares each function, such as ``compiling.jit.inline``
    fma : (a, b, c) -> a * b + c, rounded once
    choose : (condition, a, b) -> a where the condition holds, else b
    """
    sigmoid_least, tanh_least = -_SIGMOID_MOST, -_TANH_MOST

    @inline
    def clamp(x: Any, least: Any, most: Any) -> Any:
        above = choose(x > least, x, least)
        return choose(above < most, above, most)

    @inline
    def sigmoid(x: Any) -> Any:
        v = clamp(x, sigmoid_least, _SIGMOID_MOST)
        s = v * v
        p = fma(fma(fma(fma(s, _S9, _S7), s, _S5), s, _S3), s, _S1) * v
        q = fma(fma(fma(fma(fma(s, _S10, _S8), s, _S6), s, _S4), s, _S2), s, _S0)
        y = p / q + _HALF
        return choose(x == x, choose(y > _ZERO, y, _ZERO), x)

    @inline
    def tanh(x: Any) -> Any:
        v = clamp(x, tanh_least, _TANH_MOST)
        s = v * v
        p = fma(fma(fma(fma(fma(fma(s, _T13, _T11), s, _T9), s, _T7), s, _T5), s, _T3), s, _T1) * v
        q = fma(fma(fma(s, _T6, _T4), s, _T2), s, _T0)
        return choose(x == x, p / q, x)

    @inline
    def erf(x: Any) -> Any:
        a = choose(abs(x) < _ERF_MOST, abs(x), _ERF_MOST)
        s = a * a
        small = fma(fma(fma(fma(fma(fma(s, _P0, _P1), s, _P2), s, _P3), s, _P4), s, _P5), a, a)
        g = fma(fma(fma(fma(fma(fma(a, _B0, _B1), a, _B2), a, _B3), a, _B4), a, _B5), a, _B6)
        log = -fma(g, a, a)
        log = choose(log > _LEAST_LOG, log, _LEAST_LOG)
        whole = fma(log, _PER_LOG_2, _TO_WHOLE) - _TO_WHOLE
        rest = fma(whole, _LOG_2_LOW, fma(whole, _LOG_2_HIGH, log))
        power = fma(fma(fma(fma(fma(fma(rest, _E0, _E1), rest, _E2), rest, _E3), rest, _E4), rest, _E5), rest, _E6)
        scale = np.int32((np.int32(whole) + _BIAS) << _MANTISSA_BITS).view(_f32)  # 2 ** whole
        large = _ONE - power * scale
        return choose(x == x, np.copysign(choose(a > _ERF_SMALL, large, small), x), x)

    return {"Erf": erf, "Sigmoid": sigmoid, "Tanh": tanh}


def fma_in_float64(choose: Any) -> Callable[[Any, Any, Any], Any]:
    """Return the function (a, b, c) -> a * b + c of float32, rounded once, for processors without such an instruction.

    The product is exact in float64. The sum is rounded to odd: if the error of the rounded sum, which is exact by Knuth's
    two-sum, is not 0, and the last bit is 0, the sum moves by one place in the direction of the error. A float64 has 29 bits
    more than a float32, so rounding an odd sum to float32 rounds as the exact sum would be. An Inf or NaN has an error of NaN,
    and stays."""
    one = np.int64(1)

    def fma(a: Any, b: Any, c: Any) -> Any:
        product, addend = _f64(a) * _f64(b), _f64(c)
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)
        bits = _f64(total).view(np.int64)
        moved = bits + choose((error > 0) == (total > 0), one, -one)
        return _f32(np.int64(choose((abs(error) > 0) & (bits & one == 0), moved, bits)).view(_f64))

    return fma


def on_arrays(operator: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the result of one of ACTIVATIONS for an array of float32, computed by numpy."""
    with np.errstate(all="ignore"):
        function = formulas(lambda function: function, fma_in_float64(np.where), np.where)[operator]
        return np.asarray(function(np.asarray(x, _f32)), _f32)
