"""The PyTorch operators of Quark, ``torch.ops.quark_custom_ops``, on the kernels of block formats: their signatures, and the
arguments that are refused. Quark's fine-tuning calls them, and defines their derivatives itself.

The blocks of a tensor are cut along its last dimension, whatever its strides are; the last block of a row may be shorter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import ml_dtypes
import torch

from ..block.calls import convert
from ..block.formats import MX_ELEMENT_TYPES, bfp_format, mx_format
from ..block.granularity import Format
from ..block.key import Key
from ..element_types import FLOAT32


def bfp(tensor: torch.Tensor, bit_width: int, block_size: int, rounding_mode: int, kernel_version: int) -> torch.Tensor:
    """Return the tensor rounded to block floating point."""
    if kernel_version:
        raise ValueError(f"kernel_version is {kernel_version}; expected 0: quark_numba has no kernel of the compiler's version")
    how = {"bit_width": bit_width, "block_size": block_size, "rounding_mode": rounding_mode}
    return _rounded(tensor, _bfp_format(bfp_method="to_bfp", sub_block_size=1, sub_block_shift_bits=0, **how))


def bfp_prime(
    tensor: torch.Tensor, bit_width: int, block_size: int, sub_block_size: int, sub_block_shift_bits: int, rounding_mode: int
) -> torch.Tensor:
    """Return the tensor rounded to MicroeXponents."""
    how = {"bit_width": bit_width, "block_size": block_size, "rounding_mode": rounding_mode}
    sub_blocks = {"sub_block_size": sub_block_size, "sub_block_shift_bits": sub_block_shift_bits}
    return _rounded(tensor, _bfp_format(bfp_method="to_bfp_prime", **how, **sub_blocks))


def mx(
    tensor: torch.Tensor,
    block_size: int,
    ebits: int,
    mbits: int,
    emax: int,
    max_norm: float,
    min_norm: float,
    rounding_mode: int,
) -> torch.Tensor:
    """Return the tensor rounded to the Microscaling format whose element type has these numbers."""
    return _rounded(tensor, _mx_format((ebits, mbits, emax, max_norm, min_norm), block_size, rounding_mode))


_OPERATORS = {
    bfp: "(Tensor tensor, int bit_width, int block_size, int rounding_mode, int kernel_version) -> Tensor",
    bfp_prime: "(Tensor tensor, int bit_width, int block_size, int sub_block_size, int sub_block_shift_bits, int rounding_mode)"
    " -> Tensor",
    mx: "(Tensor tensor, int block_size, int ebits, int mbits, int emax, float max_norm, float min_norm, int rounding_mode)"
    " -> Tensor",
}


@functools.cache
def define() -> dict[str, Callable[..., torch.Tensor]]:
    """Define the operators in PyTorch, for all devices and for tensors without data, and return them by name."""
    for function, signature in _OPERATORS.items():
        name = function.__name__
        _LIBRARY.define(name + signature)
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_LIBRARY.ns}::{name}", _like, lib=_LIBRARY)
    return {function.__name__: getattr(torch.ops.quark_custom_ops, function.__name__) for function in _OPERATORS}


# The definitions end with this object.
_LIBRARY = torch.library.Library("quark_custom_ops", "FRAGMENT")


def _like(tensor: torch.Tensor, *numbers: float) -> torch.Tensor:
    return torch.empty_like(tensor)


_bfp_format = functools.cache(functools.partial(bfp_format, FLOAT32, convert_to_bfloat_before_bfp=0))


@functools.cache
def _mx_format(numbers: tuple[float, ...], block_size: int, rounding_mode: int) -> tuple[Key, Format]:
    element_dtype = _element_types().get(numbers)
    if element_dtype is None:
        known = "; ".join(f"{bits} of {name}" for bits, name in _element_types().items())
        raise ValueError(f"(ebits, mbits, emax, max_norm, min_norm) are {numbers}; expected {known}")
    return mx_format(FLOAT32, element_dtype=element_dtype, block_size=block_size, rounding_mode=rounding_mode)


@functools.cache
def _element_types() -> dict[tuple[float, ...], str]:
    """Return the names of element types, by the numbers that Quark passes for them."""
    names: dict[tuple[float, ...], str] = {}
    for name, element_type in MX_ELEMENT_TYPES.items():
        if element_type.is_integer:  # Quark counts all bits as mantissa bits
            bits: tuple[int, ...] = (0, element_type.bits, 0)
        else:
            info = ml_dtypes.finfo(element_type.dtype)
            bits = (info.nexp, info.nmant, math.floor(math.log2(element_type.highest)))
        names[*bits, float(element_type.highest), float(element_type.lowest)] = name
    return names


def _rounded(tensor: torch.Tensor, format_key: tuple[Key, Format]) -> torch.Tensor:
    """Return the tensor rounded along its last dimension, with the same strides, on the same device."""
    if tensor.dtype is not torch.float32:
        raise TypeError(f"tensor has dtype {tensor.dtype}; expected torch.float32")
    x = tensor.detach().cpu()
    result = torch.empty_like(x)
    # The kernels take C order: sort the dimensions by their strides, the largest first.
    order = sorted(range(x.dim()), key=result.stride, reverse=True)
    axis = order.index(x.dim() - 1) if order else 0
    convert(*format_key, x.permute(order).numpy(), axis, result.permute(order).numpy())
    return result.to(tensor.device)
