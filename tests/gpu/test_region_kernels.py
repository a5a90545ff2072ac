"""Kernels of regions for GPUs, emulated, against numpy and the kernels of each step: the same bits."""

import math
import re
from unittest import mock

import numpy as np
import onnx
import oracle
import ptx
import pytest
import samples
import textline
from block_samples import values
from emulated_gpu import Buffer, are_aligned, assert_same_values, kernel_of, launch
from onnx import helper
from onnx_models import model, run, session

import quark_numba
from quark_numba.element_types import FLOAT32, packing
from quark_numba.region import calls, device
from quark_numba.region.gpu_loops import BLOCK_LOOP
from quark_numba.region.granularity import GPU_LOOPS, OPERAND
from quark_numba.region.key import parse
from quark_numba.region.step_operators import STEP_OPERATORS

pytestmark = pytest.mark.compiled

PAIR = "quark_numba.QuantizeDequantizeLinear"
MX8 = 'com.amd.quark.MXQuantizeDequantize <axis: int = AXIS, element_dtype: string = "fp8_e4m3", block_size: int = BLOCK>'
BFP16 = 'com.amd.quark.BFPQuantizeDequantize <axis: int = AXIS, bfp_method: string = "to_bfp", bit_width: int = 16, '
BFP16 += "block_size: int = BLOCK, rounding_mode: int = MODE>"
MX9 = BFP16.replace("to_bfp", "to_bfp_prime")

# The text of a program; and for each case the shapes of its inputs.
PROGRAMS = {
    "a step and blocks": (
        f"region (float x0, float x1) => (float y) {{ v0 = Add (x0, x1) y = {MX8} (v0) }}",
        {"AXIS": "-2", "BLOCK": "4"},
        [(2, 22, 9), (22, 1)],
        [(3, 24, 1), (3, 24, 1)],
        [(9, 9, 1), (9, 9, 1)],
    ),
    "one step": ("region (float x0, float x1) => (float y) { y = Add (x0, x1) }", {}, [(2, 3, 5, 7), (3, 1, 1)]),
    "residual": (
        """region (float x0, float x1, float[1] x2, int8[1] x3, float[1] x4) => (float y) {
        v0 = Add (x0, x1)
        v1 = PAIR <axis: int = 0, saturate: int = 1> (v0, x2, x3)
        v2 = Clip (v1, x4)
        y = HardSwish (v2)
        }""",
        {},
        [(4, 64, 9), (64, 1), (), (), ()],
    ),
    "scales along an axis": (
        """region (float x0, float x1, int4 x2) => (float y) {
        v0 = Relu (x0)
        y = PAIR <axis: int = -3, saturate: int = 1> (v0, x1, x2)
        }""",
        {},
        [(2, 5, 4, 3), (5,), (5,)],
    ),
    "cast": (
        """region (bfloat16 x0, float x1, float[1] x2, bfloat16[1] x3) => (float y) {
        v0 = Cast <to: int = 1> (x0)
        v1 = Div (v0, x1)
        y = PAIR <axis: int = 0, saturate: int = 1> (v1, x2, x3)
        }""",
        {},
        [(1030,), (1030,), (), ()],
    ),
    "fake quantization": (
        """region (float x0, float x1, float[1] x2, float[1] x3) => (float y) {
        v0 = quark_numba.FakeQuantize <form: string = "codes", rounding_mode: string = "ROUND"> (x0, x1, x2, x3)
        y = Neg (v0)
        }""",
        {},
        [(6, 40), (40,), (), ()],
    ),
    "blocks of channels": (
        f"""region (float x0, float x1, float x2, float[1] x3) => (float y) {{
        v0 = Mul (x0, x1)
        v1 = {BFP16} (v0)
        v2 = Max (v1, x3)
        v3 = Add (v2, x2)
        y = {BFP16} (v3)
        }}""",
        {"AXIS": "-3", "BLOCK": "8", "MODE": "0"},
        [(2, 16, 5, 3), (16, 1, 1), (2, 16, 5, 3), ()],
        [(2, 19, 3, 7), (2, 19, 3, 7), (1, 1, 3, 1), ()],
        [(1, 8, 1, 1), (1, 1, 1, 1), (8, 1, 1), ()],
        [(1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), ()],
        [(0, 8, 3, 1), (8, 1, 1), (1, 1, 1, 1), ()],
    ),
    "blocks of the last axis": (
        f"""region (float x0, float x1, bfloat16 x2, float[1] x3, int8[1] x4) => (float y) {{
        v0 = PAIR <axis: int = 0, saturate: int = 1> (x0, x3, x4)
        v1 = {MX8} (v0)
        v2 = Cast <to: int = 1> (x2)
        v3 = Mul (v1, v2)
        v4 = {MX8} (v3)
        v5 = Sub (v4, x1)
        y = Add (v5, v1)
        }}""",
        {"AXIS": "-1", "BLOCK": "32"},
        [(3, 64), (64,), (3, 64), (), ()],
        [(2, 3, 5, 40), (5, 1), (1, 3, 1, 40), (), ()],
        [(33,), (33,), (33,), (), ()],
        [(2, 0), (1,), (1, 1), (), ()],
    ),
    "sub-blocks": (
        f"""region (float x0, float x1) => (float y) {{
        v0 = {MX9} (x0)
        v1 = {MX9.replace("16, block", "11, sub_block_size: int = 4, sub_block_shift_bits: int = 2, block")} (v0)
        v2 = Div (v1, x1)
        y = {BFP16} (v2)
        }}""",
        {"AXIS": "-2", "BLOCK": "16", "MODE": "2"},
        [(3, 32, 5), (3, 32, 5)],
        [(3, 41, 5), (5,)],
        [(64, 1), (64, 1)],
    ),
    "blocks without vectors": (
        f"region (float x0) => (float y) {{ v0 = {MX9.replace('MODE', '1, sub_block_size: int = 3')} (x0) y = Neg (v0) }}",
        {"AXIS": "-1", "BLOCK": "6"},
        [(3, 64)],
        [(36,)],
    ),
}


def parsed(name):
    text, replacements, *cases = PROGRAMS[name]
    for word, value in {"PAIR": PAIR, **replacements}.items():
        text = text.replace(word, value)
    return parse(text), cases


def inputs_of(program, shapes, rng):
    inputs = []
    for x, shape, role in zip(program.inputs, shapes, program.roles, strict=True):
        each = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)
        if role == OPERAND and not x.is_scalar:
            each = np.where(rng.random(shape) < 0.1, rng.choice(samples.SPECIAL, shape), each)
            if program.block_size and len(inputs) == 0:
                each = values(shape, "float32")
        elif role != OPERAND:
            each = rng.integers(-3, 4, shape) if x.element_type.name.startswith("int") else np.abs(each) + 0.01
        with np.errstate(over="ignore"):
            inputs.append(np.asarray(each, np.float32).astype(x.element_type.dtype))
    return inputs


def run_steps(program, inputs):
    """Return the result of a program, from numpy's steps, and for block formats from the oracle."""
    steps = {"BFPQuantizeDequantize": oracle.bfp, "MXQuantizeDequantize": oracle.mx}
    rows = {name: STEP_OPERATORS[name]._replace(array=call) for name, call in steps.items()}
    with mock.patch.dict(STEP_OPERATORS, rows):
        return np.ascontiguousarray(calls.run_region(*inputs, program=program.text))


def fields_of(program, inputs, y, buffers):
    """Return the fields of the record, from numpy's strides. Dimension 3 is the last one of those without blocks."""
    shape = (1,) * (GPU_LOOPS - y.ndim) + y.shape
    order, lengths, fields, strided = [*range(GPU_LOOPS)], [*shape], {"full": 0}, {}
    if program.block_size:
        order.remove(axis := GPU_LOOPS + program.block_axis)
        order.insert(BLOCK_LOOP, axis)
        fields["rows"], strided["_y"] = lengths[axis], y
        lengths[axis] = -(-lengths[axis] // program.block_size)
    for k, (x, role) in enumerate(zip(inputs, program.roles, strict=True)):
        fields[f"x{k}"] = buffers[k]
        if not program.inputs[k].is_scalar:
            strided[k] = x if role == OPERAND else x.reshape(-1, *[1] * (-1 - role))
            fields["full"] |= (x.size == y.size) << k
    for k, x in strided.items():
        strides = [stride // x.itemsize for stride in np.broadcast_to(x, shape).strides]
        fields |= {f"stride{k}_{d}": strides[each] for d, each in enumerate(order)}
    return fields | {f"length{d}": lengths[each] for d, each in enumerate(order)}


def run_node(program, inputs):
    """Return the result of the kernel for processors, in a session."""
    names = [f"x{k}" for k in range(len(inputs))]
    node = helper.make_node("Region", names, ["y"], domain="quark_numba", program=program.text)
    types = [(name, x.element_type.name, None) for name, x in zip(names, program.inputs, strict=True)]
    return run(session(model([node], types, ["y"])), **dict(zip(names, inputs, strict=True)))


def check_bits(program, cases, displaced=0, run_program=run_steps):
    """Compare the results of a kernel and of `run_program`, for each case's shapes of the inputs."""
    kernel = kernel_of(device, program)
    for shapes in cases:
        inputs = inputs_of(program, shapes, np.random.default_rng(0))
        expected = run_program(program, inputs)
        buffers = [
            Buffer(packing.pack(x) if row.element_type.is_packed else x) for x, row in zip(inputs, program.inputs, strict=True)
        ]
        made = Buffer(expected.nbytes, displaced)
        fields = fields_of(program, inputs, expected, buffers)
        units = math.prod(fields[f"length{d}"] for d in range(GPU_LOOPS))
        launch(kernel, units=units, y=made, is_aligned=are_aligned(made), **fields)
        assert_same_values(made, expected, FLOAT32, (program.text, shapes))


def check_assembled(program, folder):
    for architecture, _, stack, spills in ptx.assembled(device.kernel(program).ptx, folder):
        assert (stack, spills) == (0, 0), architecture


@pytest.mark.parametrize("displaced", [0, 4])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.by_default(1)
def test_bits_are_those_of_numpy(name, displaced):
    check_bits(*parsed(name), displaced)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_ptx_is_ieee_arithmetic(name):
    text = device.kernel(parsed(name)[0]).ptx
    ptx.check_text(text, divides=name != "one step")
    assert ".local" not in text
    for instruction in ("ld", "st"):
        has_vectors = re.search(rf"\b{instruction}\.(global\.)?v(2\.[bu]64|4\.[bfu]32)", text) is not None
        assert has_vectors == (name != "blocks without vectors"), instruction


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_ptx_is_assembled_without_local_memory(name, tmp_path):
    check_assembled(parsed(name)[0], tmp_path)


@pytest.mark.parametrize("variant", ["bfp16", "mx9", "mxfp8"])
@pytest.mark.slow
def test_programs_of_a_network(variant, tmp_path):
    nodes = quark_numba.optimize(onnx.load(textline.path_of(variant))).graph.node
    texts = {helper.get_node_attr_value(node, "program") for node in nodes if node.op_type == "Region"}
    programs = [parse(text.decode()) for text in sorted(texts)]
    assert sum(program.block_size > 0 for program in programs) >= 7
    for program in programs:
        y_shape = 2, 40, 3, 40
        shapes = [y_shape if role == OPERAND else (y_shape[role],) if role < 0 else () for role in program.roles]
        shapes = [() if x.is_scalar else shape for x, shape in zip(program.inputs, shapes, strict=True)]
        check_bits(program, [shapes], run_program=run_node)
        check_assembled(program, tmp_path)


def test_large_blocks_are_refused():
    text = """region (float x0) => (float y) {
    y = com.amd.quark.BFPQuantizeDequantize <axis: int = -1, block_size: int = 33> (x0)
    }"""
    with pytest.raises(ValueError, match="block_size is 33; expected at most 32 on a GPU"):
        device.kernel(parse(text))
