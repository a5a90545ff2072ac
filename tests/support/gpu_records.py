"""The fields of the records of kernels for GPUs, but for addresses."""

import numpy as np

from quark_numba.block import device as block_device


def of_scales(loop, scales):
    """Return the fields of the linear family for a Loop and the number of scales."""
    loop = loop._replace(inner=min(loop.inner, scales)) if loop.vary else loop
    return {"scales": scales, **loop._asdict()}


def of_rows(rows, inner):
    """Return the fields of fake quantization for `rows` rows, each of `inner` elements side by side."""
    return {"scales": rows, "length": rows, "block": 1, "inner": inner, "rows": rows, "vary": False}


def of_blocks(blocks, size, per_byte):
    """Return the fields for `size` elements in Blocks, of which y has `per_byte` in a byte."""
    units = block_device.count_units(size, blocks.length, blocks.inner, blocks.block, per_byte)
    return {"units": units, "size": size, **blocks._asdict()}


def of_region(program, work, shape, inputs):
    """Return the fields of a region's kernel, whose record has the dtype `work`, from numpy's steps."""
    dimensions = sum(name.startswith("length") for name in work.names)
    shape = (1,) * (dimensions - len(shape)) + shape
    fields = {f"length{d}": length for d, length in enumerate(shape)} | {"full": 0}
    for k, (x, axis) in enumerate(zip(inputs, program.axes, strict=True)):
        if program.inputs[k].is_scalar:
            continue
        x = x.reshape(-1, *[1] * (-1 - axis)) if axis is not None else x
        steps = [step // x.itemsize for step in np.broadcast_to(x, shape).strides]
        fields |= {f"step{k}_{d}": step for d, step in enumerate(steps)}
        fields["full"] |= (x.size == np.prod(shape)) << k
    return fields
