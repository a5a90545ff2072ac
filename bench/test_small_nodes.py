"""What a node costs on few elements, beside ONNX Runtime's own nodes: chains of equal nodes, on one thread.

A run of a chain has costs that do not depend on its nodes, too. So the time of a node is the difference between a long and a
short chain, divided by the difference of their lengths. At the end the times are printed as a table, in nanoseconds a node. Its
rows and columns differ in:

- Identity and Abs, in ONNX Runtime: its executor, and the allocation of y;
- a region with one input, and with four: getting an input, its shape and its data;
- blocks along the last axis and along another one: loading and storing a tile;
- 8 and 512 elements: the kernel;
- 16,384 and 16,416 elements: ``ParallelFor``, which a region of the second size uses (``context.is_small``)."""

import itertools
import math
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from cases import TURNS
from contenders import bound_session
from measuring import measure
from onnx import helper
from onnx_models import model
from rewritten_models import constant, floats

import quark_numba

SHORT, LONG = 20, 120
SHAPES = [(1, 1, size) for size in (8, 512, 16_384, 16_416)]

_BFP16 = {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8, "rounding_mode": 2}
_STEP = 'y = com.amd.quark.BFPQuantizeDequantize <axis: int = {}, bfp_method: string = "to_bfp", bit_width: int = 16, '
_STEP += "block_size: int = 8, rounding_mode: int = 2> (x0)"
_SUM = "v0 = Add (x0, x1) v1 = Add (v0, x2) y = Add (v1, x3)"


def region(steps, inputs=1):
    """Return the domain, the operator, the inputs besides x, and the attributes of a region. The inputs have one element."""
    scalars = "".join(f", float[1] x{k}" for k in range(1, inputs))
    return (
        "quark_numba",
        "Region",
        ["one"] * (inputs - 1),
        {"program": f"region (float x0{scalars}) => (float y) {{ {steps} }}"},
    )


def region_of_blocks(axis):
    return region(_STEP.format(axis))


def blocks(axis):
    return "com.amd.quark", "BFPQuantizeDequantize", [], _BFP16 | {"axis": axis}


NODES = {
    "Identity": ("", "Identity", [], {}),
    "Abs": ("", "Abs", [], {}),
    "region": region("y = Abs (x0)"),
    "region of 4 inputs": region(_SUM, 4),
    "region of blocks, last axis": region_of_blocks(-1),
    "region of blocks, other axis": region_of_blocks(-2),
    "block, last axis": blocks(-1),
    "block, other axis": blocks(-2),
    "linear": ("quark_numba", "QuantizeDequantizeLinear", ["one", "zero"], {}),
    "table": ("qonnx.custom_op.general", "MultiThreshold", ["thresholds"], {}),
}
CONSTANTS = [*floats(one=0.5, thresholds=[[-1, 0, 1]]), constant("zero", 0, np.int8)]


@pytest.fixture(scope="module")
def table(request):
    """The times of chains, by what a node is, the number of elements and the length. They are printed at the end."""
    times = defaultdict(list)
    yield times
    sizes = [math.prod(shape) for shape in SHAPES]
    lines = ["ns a node, elements: ".ljust(32) + "".join(f"{size:>10,}" for size in sizes)]
    for name in NODES:
        short, long = ([min(times[name, size, length], default=math.nan) for size in sizes] for length in (SHORT, LONG))
        nanoseconds = [1e9 * (more - less) / (LONG - SHORT) for less, more in zip(short, long, strict=True)]
        lines.append(name.ljust(32) + "".join(f"{each:>10.0f}" for each in nanoseconds))
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n", *lines, sep="\n")


def chain(name, shape, length):
    domain, operator, inputs, attributes = NODES[name]
    values = ["x", *(f"v{k}" for k in range(1, length)), "y"]
    nodes = [helper.make_node(operator, [x, *inputs], [y], domain=domain, **attributes) for x, y in itertools.pairwise(values)]
    made = model(nodes, [("x", "float32", shape)], [("y", "float32", shape)], initializers=CONSTANTS)
    x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)

    def register(options):
        options.add_session_config_entry("optimization.disable_specified_optimizers", "EliminateIdentity")
        quark_numba.register(options)

    return bound_session(made, {"x": x}, 1, register)


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("shape", SHAPES, ids=math.prod)
@pytest.mark.benchmark(max_time=0.03, min_rounds=20, warmup=True, warmup_iterations=5)
def test_small_nodes(benchmark, table, shape, turn, name, length):
    size = math.prod(shape)
    measure(benchmark, f"{size}_elements", f"{name}/nodes={length}", partial(chain, name, shape, length))
    table[name, size, length].append(benchmark.stats.stats.min)
