"""How a call on arrays is run: its arguments are checked against each other and the version, the kernel and the loop are
chosen, and the plan is kept.

The first call with a signature makes a Conversion of its arguments, which checks them; derives a Plan from it, which has the
kernel and the loop; keeps the plan (``plans``); and runs it. Later calls with the same signature run the kept plan at once: on
few elements that saves most of a call's time. For dask arrays, each chunk is a conversion."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, cast

import numpy as np
from numpy.typing import NDArray

from ..arrays.arguments import check_no_output, contiguous, convert_in_order
from ..arrays.chunks import Cut, Result, check_sizes, is_lazy, map_chunks
from ..arrays.labels import keeps_labels
from ..element_types import INT32
from .granularity import BLOCK_SIZE, NO_FAULT, ZERO_POINT_SHAPE, Loop, Names, inferred_block_size, loop_shape, per_tensor
from .key import Key
from .plans import FLAT, Plan, keep, plans
from .versions import Version

P = ParamSpec("P")

# The types in which a call may give an element type if its plan is kept: equal texts or classes mean the same type.
_NAMES = (str, type)

# Python numbers between these limits are normal numbers of float32, too.
_LEAST, _MOST = float(np.finfo(np.float32).smallest_normal), float(np.finfo(np.float32).max)


class Conversion(NamedTuple):
    """What a call does. `names` are the names of its arguments. `version` is the version of the operator for which the call has
    to be valid, or None for any version."""

    names: Names
    version: Version | None
    key: Key
    x: Any
    scale: Any
    zero_point: Any
    axis: int
    block_size: int
    out: NDArray[Any] | None = None


def planned(make_conversion: Callable[P, Conversion], name: str = "") -> Callable[P, NDArray[Any]]:
    """Return a call on arrays that checks its arguments and runs the conversion which `make_conversion` makes of them. It keeps
    the plan of the conversion: a later call with the same signature runs the plan, without checking anything again.

    The signature is what a plan depends on: `name`, by default that of `make_conversion`; the options; and the dtypes and
    shapes of the arrays. A call has no signature if x is not in C order, if an option is given in an unusual way, or if an
    argument is not a numpy array. But a scale may be a number."""
    name = name or make_conversion.__name__
    parameters = inspect.signature(make_conversion)
    defaults = {name: parameter.default for name, parameter in parameters.parameters.items()}

    @keeps_labels
    @functools.wraps(make_conversion)
    def convert_checked(*arguments: Any, signature: Any, **options: Any) -> NDArray[Any]:
        return convert(make_conversion(*arguments, **options), signature)

    @functools.wraps(make_conversion)
    def call(
        x: Any,
        scale: Any,
        zero_point: Any = None,
        *,
        axis: Any = 1,
        block_size: Any = 0,
        dtype: Any = None,
        output_dtype: Any = None,
        out: Any = None,
        **options: Any,
    ) -> Any:
        signature = None
        if (
            type(x) is np.ndarray
            and x.flags.num & FLAT == FLAT
            and (type(scale) is np.ndarray or type(scale) is np.float32 or (type(scale) is float and _LEAST <= scale <= _MOST))
            and (zero_point is None or type(zero_point) is np.ndarray)
            and type(axis) is int
            and type(block_size) is int
            and (dtype is None or type(dtype) in _NAMES)
            and (output_dtype is None or type(output_dtype) in _NAMES)
            and (not options or _are_defaults(options, defaults))
        ):
            scales = (scale.dtype, scale.shape) if type(scale) is np.ndarray else None
            zeros = zero_point if zero_point is None else (zero_point.dtype, zero_point.shape)
            signature = name, axis, block_size, dtype, output_dtype, x.dtype, x.shape, scales, zeros
            plan = plans.get(signature)
            if plan:
                return plan.run(x, scale, zero_point, out)
        options |= {name: value for name, value in (("dtype", dtype), ("output_dtype", output_dtype)) if value is not None}
        return convert_checked(x, scale, zero_point, signature=signature, axis=axis, block_size=block_size, out=out, **options)

    call.__signature__ = parameters.replace(return_annotation="NDArray[Any]")  # type: ignore[attr-defined]
    return cast(Callable[P, NDArray[Any]], call)


def _are_defaults(options: dict[str, Any], defaults: dict[str, Any]) -> bool:
    """Return whether all options have their default values, and are spelled like them. 1 is another spelling of True, and 1.0
    is wrong."""
    for name in options:  # noqa: SIM110  # a generator takes longer
        if name not in defaults or options[name] is not defaults[name]:
            return False
    return True


@np.errstate(all="ignore")  # Inf, NaN and underflows are results, whatever the settings of the caller
def convert(conversion: Conversion, signature: Any = None) -> NDArray[Any]:
    """Return the result of a conversion; for dask arrays it is lazy. Keep the plan for calls with the same signature."""
    names, version, key, x, scale, zero_point, axis, block_size, out = conversion
    if is_lazy(x, scale, zero_point):
        check_no_output(out)
        return _convert_chunks(conversion)
    if version and key.quantized is INT32 and zero_point is not None and np.any(zero_point):
        raise ValueError(f"{names.zero_point} is not zero; expected zeros for int32 in {version.name}-{version.since_version}")
    loop = loop_of(names, version, x.shape, scale, zero_point, axis, block_size)
    if x.flags.fnc:
        scale, zero_point = scale.T, None if zero_point is None else zero_point.T
        # Axis a of x is axis -1 - a of x.T, which is ~a.
        loop = loop_of(names, None, x.T.shape, scale, zero_point, ~axis, block_size)
    plan = Plan(key, loop, scale.dtype, None if zero_point is None else zero_point.dtype)
    if signature and version is None and x.dtype.isnative:
        keep(signature, plan)

    def run(x: NDArray[Any], y: NDArray[Any]) -> None:
        plan.convert(scale, zero_point, contiguous(x, key.x), y)

    return convert_in_order(run, x, key.y, out, (scale,) if zero_point is None else (scale, zero_point))


def _convert_chunks(conversion: Conversion) -> Any:
    names, version, key, x, scale, zero_point, axis, block_size, _ = conversion
    axes, block = None, 1
    zero_points = 1 if zero_point is None else zero_point.size
    is_per_tensor = scale.size == zero_points == 1 and not (block_size > 0 and scale.ndim == x.ndim)
    if not is_per_tensor:
        for name, each in (("scale", scale), ("zero_point", zero_point)):
            check_sizes(each, name, () if each is None else range(each.ndim))
        if -x.ndim <= axis < x.ndim:
            axes = (axis % x.ndim,) if scale.ndim == 1 else tuple(range(x.ndim))
            check_sizes(x, "x", axes)
    # This is for the whole array, so that it finds every fault of the shapes.
    loop = loop_of(names, version, x.shape, scale, zero_point, axis, block_size)
    if not is_per_tensor:
        block = block_size or loop.block
        block_size = block if block > 1 or scale.ndim > 1 else 0
        axis = axis % x.ndim if axes else axis
    (y,) = map_chunks(
        functools.partial(_convert_chunk, version, key, axis, block_size),
        x,
        [Result(key.y.dtype)],
        [Cut(scale, axes, block), Cut(zero_point, axes, block)],
        axis=axis if axes else 0,
        block=block,
    )
    return y


def _convert_chunk(version: Version | None, key: Key, axis: int, block_size: int, x: Any, scale: Any, zero_point: Any) -> Any:
    return convert(Conversion(Names(), version, key, x, scale, zero_point, axis, block_size))


def loop_of(
    names: Names, version: Version | None, x_shape: tuple[int, ...], scale: Any, zero_point: Any, axis: int, block_size: int
) -> Loop:
    """Return the loop for these shapes. Raise ValueError if they do not fit."""
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}; expected a positive integer, or 0")
    if version is None and block_size == 0 and scale.size == 1 and (zero_point is None or zero_point.size == 1):
        return per_tensor(math.prod(x_shape))  # a short cut to the result of the code below
    zero_point_shape = scale.shape if zero_point is None else zero_point.shape
    unclear, inferred = NO_FAULT, block_size
    if version is None and block_size == 0:
        unclear, inferred = inferred_block_size(x_shape, scale.shape, axis)
    fault, loop = loop_shape(x_shape, scale.shape, zero_point_shape, axis, inferred)
    if fault in (NO_FAULT, BLOCK_SIZE):
        fault = unclear or fault
    if version and not fault:
        # A version accepts less than `loop_shape`. Runtimes treat a one-dimensional array of one element as a scalar.
        scalar, has_axis = scale.shape in ((), (1,)), "axis" in version.attributes
        most = max(int(has_axis), len(x_shape) if block_size else 0)  # dimensions of a scale
        if not scalar and scale.ndim > most:
            expected = "a scalar, or one dimension, or a block_size" if has_axis else "a scalar"
            operator = f"{version.name}-{version.since_version}"
            raise ValueError(f"{names.scale} has shape {scale.shape}; {operator} expects {expected}")
        if zero_point_shape != scale.shape and not (scalar and zero_point_shape in ((), (1,))):
            fault = ZERO_POINT_SHAPE
    if fault:
        raise ValueError(names.message(fault, x_shape, scale.shape, zero_point_shape, axis, block_size))
    return loop
