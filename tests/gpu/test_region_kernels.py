"""Kernels of regions for GPUs, emulated, against numpy and the kernels of each step: the same bits."""

import numpy as np
import ptx
import pytest
import samples
from emulated_gpu import Buffer, are_aligned, assert_same_values, kernel_of, launch

from quark_numba.element_types import FLOAT32, packing
from quark_numba.region import device
from quark_numba.region.calls import run_region
from quark_numba.region.key import parse

pytestmark = pytest.mark.compiled

PAIR = "quark_numba.QuantizeDequantizeLinear"
PROGRAMS = {
    "one step": ("region (float x0, float x1) => (float y) { y = Add (x0, x1) }", [(2, 3, 5, 7), (3, 1, 1)]),
    "residual": (
        """region (float x0, float x1, float[1] x2, int8[1] x3, float[1] x4) => (float y) {
        v0 = Add (x0, x1)
        v1 = PAIR <axis: int = 0, saturate: int = 1> (v0, x2, x3)
        v2 = Clip (v1, x4)
        y = HardSwish (v2)
        }""",
        [(4, 64, 9), (64, 1), (), (), ()],
    ),
    "scales along an axis": (
        """region (float x0, float x1, int4 x2) => (float y) {
        v0 = Relu (x0)
        y = PAIR <axis: int = -3, saturate: int = 1> (v0, x1, x2)
        }""",
        [(2, 5, 4, 3), (5,), (5,)],
    ),
    "cast": (
        """region (bfloat16 x0, float x1, float[1] x2, bfloat16[1] x3) => (float y) {
        v0 = Cast <to: int = 1> (x0)
        v1 = Div (v0, x1)
        y = PAIR <axis: int = 0, saturate: int = 1> (v1, x2, x3)
        }""",
        [(1030,), (1030,), (), ()],
    ),
    "fake quantization": (
        """region (float x0, float x1, float[1] x2, float[1] x3) => (float y) {
        v0 = quark_numba.FakeQuantize <form: string = "codes", rounding_mode: string = "ROUND"> (x0, x1, x2, x3)
        y = Neg (v0)
        }""",
        [(6, 40), (40,), (), ()],
    ),
}


def parsed(name):
    text, shapes = PROGRAMS[name]
    return parse(text.replace("PAIR", PAIR)), shapes


def inputs_of(program, shapes, rng):
    inputs = []
    for x, shape, axis in zip(program.inputs, shapes, program.axes, strict=True):
        values = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)
        if axis is None and not x.is_scalar:
            values = np.where(rng.random(shape) < 0.1, rng.choice(samples.SPECIAL, shape), values)
        elif axis is not None:
            values = rng.integers(-3, 4, shape) if x.element_type.name.startswith("int") else np.abs(values) + 0.01
        with np.errstate(over="ignore"):
            inputs.append(np.asarray(values, np.float32).astype(x.element_type.dtype))
    return inputs


def fields_of(program, inputs, y, buffers):
    """Return the fields of the record, from numpy's steps."""
    shape = (1,) * (device.DIMENSIONS - y.ndim) + y.shape
    fields = {f"length{d}": length for d, length in enumerate(shape)} | {"full": 0}
    for k, (x, axis) in enumerate(zip(inputs, program.axes, strict=True)):
        fields[f"x{k}"] = buffers[k]
        if program.inputs[k].is_scalar:
            continue
        x = x.reshape(-1, *[1] * (-1 - axis)) if axis is not None else x
        steps = [step // x.itemsize for step in np.broadcast_to(x, shape).strides]
        fields |= {f"step{k}_{d}": step for d, step in enumerate(steps)}
        fields["full"] |= (x.size == y.size) << k
    return fields


@pytest.mark.parametrize("displaced", [0, 4])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.by_default(1)
def test_bits_are_those_of_numpy(name, displaced):
    program, shapes = parsed(name)
    inputs = inputs_of(program, shapes, np.random.default_rng(0))
    expected = run_region(*inputs, program=program.text)
    buffers = [
        Buffer(packing.pack(x) if row.element_type.is_packed else x) for x, row in zip(inputs, program.inputs, strict=True)
    ]
    made = Buffer(expected.nbytes, displaced)
    fields = fields_of(program, inputs, expected, buffers)
    launch(kernel_of(device, program), units=expected.size, y=made, is_aligned=are_aligned(made), **fields)
    assert_same_values(made, expected, FLOAT32, name)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_ptx_is_ieee_arithmetic(name):
    program, _ = parsed(name)
    text = device.kernel(program).ptx
    ptx.check_text(text, divides=name != "one step")
    assert ".local" not in text


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_ptx_is_assembled_without_local_memory(name, tmp_path):
    for architecture, _, stack, spills in ptx.assembled(device.kernel(parsed(name)[0]).ptx, tmp_path):
        assert (stack, spills) == (0, 0), architecture


def test_steps_of_blocks_are_refused():
    text = """region (float x0) => (float y) {
    y = com.amd.quark.BFPQuantizeDequantize <axis: int = -1, bfp_method: string = "to_bfp", bit_width: int = 16> (x0)
    }"""
    with pytest.raises(ValueError, match="program has steps of blocks; expected none on a GPU"):
        device.kernel(parse(text))
