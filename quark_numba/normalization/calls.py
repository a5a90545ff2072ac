"""Instance normalization on arrays: check the arguments, run a kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays.arguments import flat, float32_arrays, real
from ..compiling.threads import run_on_threads
from ..element_types import FLOAT32
from .dispatch import TABLE
from .granularity import FAULTS, instance_shape

# Below this many elements one thread is done before a second has woken up.
_PARALLEL_SIZE = 1 << 16


def instance_normalization(x: ArrayLike, scale: ArrayLike, bias: ArrayLike, epsilon: float = 1e-5) -> NDArray[np.float32]:
    """Instance normalization as a unit that computes in bfloat16 does it: ExtendedInstanceNormalization-1 of com.amd.quark.

    It is not InstanceNormalization of ONNX, rounded. x, scale, bias, and what most steps give, are rounded to bfloat16. An
    instance's sum and sum of squares are taken in float32, one element after the other. The variance is the mean of squares
    less the square of the mean, and may come out below 0: then y is NaN, as it often is where all elements are the same. The
    mean is rounded to bfloat16 and taken away after the division, so that x with a mean of ten times its standard deviation
    loses some 20 dB, beside float32.

    Parameters
    ----------
    x : array_like of float32, shape [N, C, D1, ..., Dk], any strides and memory order
        The elements of each n and c are an instance. Of two dimensions: one element each.
    scale, bias : array_like of float32
        The first C elements are those of the channels, in C order, whatever the shape.
    epsilon : float
        What is added to the variance, in float32.

    Returns
    -------
    ndarray of float32, of x's shape

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it is and what was expected. Nothing has been written then.
    """
    arrays = float32_arrays(x=x, scale=scale, bias=bias)
    fault, instances, channels, length = instance_shape(*(each.shape for each in arrays))
    if fault:
        shapes = {f"{name}_shape": each.shape for name, each in zip(("x", "scale", "bias"), arrays, strict=True)}
        raise ValueError(FAULTS[fault].format(**shapes))
    added, y = np.float32(real(epsilon, "epsilon")), np.empty(arrays[0].shape, np.float32)
    if instances * length:
        kernel, operands = TABLE[FLOAT32], [*(flat(each, FLOAT32) for each in arrays), y.reshape(-1), channels, length, added]
        if y.size < _PARALLEL_SIZE or not run_on_threads(lambda slices: kernel.parallel(*operands, slices)):
            kernel.serial(*operands)
    return y
