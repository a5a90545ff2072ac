"""Instance normalization on arrays (`extended_instance_normalization`): the default of epsilon, the check of the arguments, and
the run of the kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays.arguments import flat, float32_arrays, real
from ..element_types import FLOAT32
from .dispatch import TABLE
from .granularity import FAULTS, instance_shape

# The default of a call, and of the operator's attribute.
EPSILON = 1e-5


def extended_instance_normalization(
    x: ArrayLike, scale: ArrayLike, bias: ArrayLike, epsilon: float = EPSILON
) -> NDArray[np.float32]:
    """Return x normalized instance by instance, with the bits of a hardware unit that computes in bfloat16. It is the operator
    ExtendedInstanceNormalization-1 of com.amd.quark.

    The result differs from a rounded InstanceNormalization of ONNX. x, scale, bias and the results of most steps are rounded to
    bfloat16. The sum and the sum of squares of an instance are accumulated in float32, element by element. The variance is the
    mean of squares less the square of the mean; rounding can make it negative. Then y is NaN, often for an instance whose
    elements are all equal. The mean is rounded to bfloat16 and subtracted after the division. If the mean of x is ten times its
    standard deviation, y is some 20 dB less accurate than in float32.

    Parameters
    ----------
    x : array_like of float32, shape [N, C, D1, ..., Dk], any strides and memory order
        The elements x[n, c] are an instance. In a two-dimensional x, every element is an instance.
    scale, bias : array_like of float32
        Of any shape. The first C elements, in C order, belong to the channels.
    epsilon : float
        Added to the variance, in float32.

    Returns
    -------
    ndarray of float32, of x's shape

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid. The message says what it is and what was expected. Nothing has been written then.
    """
    arrays = float32_arrays(x=x, scale=scale, bias=bias)
    fault, instances, channels, length = instance_shape(*(array.shape for array in arrays))
    if fault:
        shapes = {f"{name}_shape": array.shape for name, array in zip(("x", "scale", "bias"), arrays, strict=True)}
        raise ValueError(FAULTS[fault].format(**shapes))
    added, y = np.float32(real(epsilon, "epsilon")), np.empty(arrays[0].shape, np.float32)
    if instances * length:
        operands = [flat(array, FLOAT32) for array in (*arrays, y)]
        TABLE[FLOAT32].run(y.size, *operands, channels, length, added)
    return y
