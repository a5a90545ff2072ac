"""Quantized models in ONNX's standard operators in ONNX Runtime Web, which has no custom operators: in Node, and in a browser,
with WebAssembly and with WebGPU.

`make_environment.sh` makes the environment. A software adapter provides WebGPU, so that no GPU is needed."""

import functools
import itertools
import re
import shutil
import subprocess
import sys

import numpy as np
import oracle
import pytest
import samples
from marks import default_of
from onnx import helper
from onnx_models import model, session
from other_quantizers import expectation
from paths import MODELS, ROOT
from rewritten_models import constant, with_outputs
from web_runtime import PLACE, WebRuntime

from quark_numba import ModelError, optimize
from quark_numba.element_types import find
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.slow,
    pytest.mark.skipif(not (PLACE / "made_of").exists(), reason=f"no environment: tests/web/make_environment.sh {PLACE}"),
]


# Of outputs, relative to the largest. Measured: 1e-6, and 5e-4 for float16.
TOLERANCE = 1e-2


@pytest.fixture(scope="session")
def node():
    with WebRuntime() as runtime:
        yield runtime


@pytest.fixture(scope="session")
def browser():
    with WebRuntime(CHROMIUM) as runtime:
        yield runtime


@pytest.fixture(scope="session", params=["node-wasm", "browser-wasm", "browser-webgpu"])
def web(request):
    """Return a function that runs a model, with the name of its provider."""
    place, provider = request.param.split("-")
    run = functools.partial(request.getfixturevalue(place).run, provider=provider)
    run.provider = provider
    return run


# Sessions of the package, in which each node is computed by itself.
in_package = functools.partial(session, qdq="float", level="DISABLE_ALL")

# The example.


@pytest.fixture(scope="session")
def address():
    """The address of the page of `examples/web`, which a server has on this machine."""
    command = [sys.executable, ROOT / "examples" / "web" / "serve.py", "--port", "0", "--packages", PLACE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        yield server.stdout.readline().strip()
        server.terminate()


@pytest.mark.parametrize(("query", "images"), [("?model=bf16", 6), ("?model=bf16&provider=webgpu&images=1", 1)])
def test_example(query, images, address, browser):
    assert address.startswith("http://127.0.0.1:")
    text = browser.ask({"url": address + query, "selector": "#done"})["text"]
    rows = [line.split() for line in text.splitlines() if re.match(r"\d\s", line)]
    assert [row[0] for row in rows] == [*map(str, range(images))]
    outputs, expected = (np.array([row[k : k + 2] for row in rows], float) for k in (1, 3))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=TOLERANCE)
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        np.testing.assert_allclose(expected, arrays["bf16"][:images], rtol=0, atol=1e-6)
    assert "Largest difference: " in text


def test_example_that_fails(address, browser):
    """The page shows the error of a model that fails."""
    text = browser.ask({"url": f"{address}?model=nothing", "selector": "#done"})["text"]
    assert "Failed: " in text


# Nodes.

OPERATORS = {"quantize": "Quantize", "dequantize": "Dequantize", "round trip": "QuantizeDequantizeLinear"}

# The shape of the scale for x of 4 dimensions, and the axis, by the first scale.
GRANULARITIES = {0.1: ((), 1), 1.0: ((5,), 1), 2.0**-7: ((7,), -1)}

SHAPE = 1, 5, 300, 7

# The types of which ONNX Runtime Web has tensors for JavaScript, and what codes of other types are cast to in a model.
TENSORS = {"uint8", "int8", "uint16", "int16", "uint32", "int32", "float16"}

# The types of codes for which a build of ONNX Runtime Web has no kernel. In the browser, the software adapter lacks float16.
# ONNX itself has no Cast of 6 bits in this opset.
FLOATS = {name for name, row in oracle.TYPES.items() if isinstance(row, oracle.Float)}
LACKING = {
    "wasm": {"float4e2m1", "float6e2m3", "float6e3m2"},
    "webgpu": {"uint16", "int16", "uint4", "int4", "uint2", "int2", *FLOATS},
}


def cases():
    for operation, name in itertools.product(OPERATORS, oracle.TYPES):
        if name in TENSORS or operation != "dequantize":
            yield pytest.param(operation, name, id=f"{operation}-{name}")


@pytest.mark.parametrize(("operation", "name"), [*cases()])
def test_nodes(operation, name, web):
    """Each type, on inputs that are hard for it: NaN, Inf, -0, subnormal numbers, ties."""
    lacks = name in LACKING[web.provider]
    if lacks and operation != "round trip":
        pytest.skip(f"ONNX Runtime Web has no Cast of {name} for {web.provider}")
    zero_points = samples.zero_points(name)
    for i, (size, (scale_shape, axis)) in enumerate(GRANULARITIES.items()):
        scale, zero_point = np.full(scale_shape, size, np.float32), np.resize(np.roll(zero_points, -i), scale_shape)
        scale.reshape(-1)[1:] *= 3
        x = inputs(operation, name, size, zero_point.reshape(-1)[0])
        source = node_model(operation, name, scale, zero_point, axis, x.shape)
        y = web(optimize(source, operators="webgpu" if web.provider == "webgpu" else "standard"), {"x": x})["y"]
        spread = [oracle.spread(each, axis, 0, x.shape) for each in (scale, zero_point)]
        expected = expected_of(operation, name, x, *spread)
        if web.provider == "webgpu" and name in FLOATS:
            y, expected = without_subnormal(x, spread[0], y, expected)
        if web.provider == "webgpu" and (operation, name) == ("dequantize", "uint32"):
            # Its conversion of uint32 to float32 need not round to the nearest number.
            np.testing.assert_allclose(y, expected, rtol=2.0**-22, atol=0)
            continue
        oracle.assert_same_bits(y, expected.astype(y.dtype))


def inputs(operation, name, scale, zero_point):
    """Return hard inputs in 4 dimensions."""
    random = np.random.default_rng(6)
    if operation == "dequantize":
        return random.choice(samples.codes(name), SHAPE)
    x = random.choice(samples.floats(name, scale, zero_point), SHAPE)
    x[..., : samples.SPECIAL.size, :] = samples.SPECIAL[:, None]
    return x


def node_model(operation, name, scale, zero_point, axis, shape):
    """Return a model of one node, and after it a Cast of codes to a type that has tensors in JavaScript."""
    is_code = operation == "quantize" and name not in TENSORS
    wide = "int32" if isinstance(oracle.TYPES[name], oracle.Integer) else "float32"
    x_type, y_type = ("float32" if operation != "dequantize" else name), ("float32" if operation != "quantize" else name)
    names = ["x", "scale", "zero_point"], ["codes" if is_code else "y"]
    nodes = [helper.make_node(OPERATORS[operation], *names, domain="quark_numba", axis=axis)]
    if is_code:
        nodes.append(helper.make_node("Cast", ["codes"], ["y"], to=find(wide).number))
        y_type = wide
    initializers = [constant("scale", scale), constant("zero_point", zero_point)]
    return model(nodes, [("x", x_type, shape)], [("y", y_type, shape)], initializers=initializers, opset=25)


def expected_of(operation, name, x, scale, zero_point):
    with np.errstate(all="ignore"):
        codes = x if operation == "dequantize" else oracle.quantize(x, scale, zero_point, name)
        return codes if operation == "quantize" else oracle.dequantize(codes, scale, zero_point, name)


def without_subnormal(x, scale, y, expected):
    """Return both results where no subnormal number occurs. WebGPU may replace these by 0."""
    with np.errstate(all="ignore"):
        numbers = x, x / scale, expected / scale, expected
    least = np.finfo(np.float32).tiny
    is_subnormal = functools.reduce(np.logical_or, [(np.abs(each) < least) & (each != 0) for each in numbers])
    assert not np.any((np.abs(y) > np.maximum(np.abs(expected), least))[is_subnormal])
    return y[~is_subnormal], expected[~is_subnormal]


BLOCKS = [
    ("BFPQuantizeDequantize", {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8}),
    ("BFPQuantizeDequantize", {"bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 16, "sub_block_size": 2}),
    ("MXQuantizeDequantize", {"element_dtype": "fp8_e4m3", "block_size": 32}),
    ("MXQuantizeDequantize", {"element_dtype": "fp4_e2m1", "block_size": 32}),
    ("MXQuantizeDequantize", {"element_dtype": "int8", "block_size": 32}),
]


@pytest.mark.parametrize(("operator", "attributes"), BLOCKS)
def test_block_formats(operator, attributes, web):
    """Numbers of any size, zeros, special values among them, and blocks of zeros alone."""
    random = np.random.default_rng(8)
    x = np.ldexp(random.normal(0, 5, (4, 64, 6, 7)), random.integers(-20, 20, (4, 64, 6, 7))).astype(np.float32)
    x[0], x[2, :, 0] = np.round(x[0]), 0
    x[1, ::7] = np.resize(samples.SPECIAL, x[1, ::7].shape)
    node = helper.make_node(operator, ["x"], ["y"], domain="com.amd.quark", axis=1, rounding_mode=2, **attributes)
    source = model([node], [("x", "float32", x.shape)], ["y"], opset=17)
    y = web(optimize(source, operators="webgpu" if web.provider == "webgpu" else "standard"), {"x": x})["y"]
    (expected,) = in_package(source).run(None, {"x": x})
    if web.provider == "webgpu":
        y, expected = without_subnormal(x, np.float32(1), y, expected)
    oracle.assert_same_bits(y, expected)


# Whole models.


def inputs_of(path):
    """Return the inputs of a test model by name, a batch of one if it takes one."""
    if path.parent != MODELS:
        return expectation(path)[0]
    name = "textline_cls" if path.stem.startswith("textline_cls") else path.stem
    with np.load(MODELS / f"{name}_expected.npz") as arrays:
        return {"x": arrays["x"][:1] if name == "textline_cls" else arrays["x"][0]}


PATHS = {path.stem: path for path in sorted(MODELS.rglob("*.onnx"))}

# One of each kind.
BY_DEFAULT = (
    *(f"textline_cls_{variant}" for variant in ("a8w8", "bf16", "bfp16", "fp16", "mxfp8", "u32")),
    *(
        "block_w4a8",
        "cnn_1d",
        "cnn_w8a8",
        "float_e4m3",
        "fp8_m",
        "mct_lut",
        "mct_probe",
        "modes",
        "nvfp4_m",
        "ort_cnn_a16w8_ms",
    ),
    *("style_bf16", "tagger_u16", "trunc"),
)


@pytest.mark.parametrize("name", default_of(PATHS, *BY_DEFAULT))
def test_models(name, node):
    assert_same_nodes(PATHS[name], node.run)


@pytest.mark.parametrize("variant", ["bf16", "u32"])
def test_models_on_webgpu(variant, browser):
    """Models run on WebGPU, which lacks Casts to bfloat16, float64 and int16."""
    run = functools.partial(browser.run, provider="webgpu")
    assert_same_nodes(MODELS / f"textline_cls_{variant}.onnx", run, operators="webgpu")


def assert_same_nodes(path, run, operators="standard"):
    """Assert that each quantization node gives what it gives in a session of the package with the same input, apart from the
    signs of zeros, which may be left where nothing sees them. Convolutions add up in another order, so that outputs differ
    where a rounding flips."""
    try:
        standard = optimize(path, operators=operators, keep_initializers_as_inputs=False)
    except ModelError as error:
        pytest.skip(str(error))
    fused = rewrite_model(path, Settings(qdq="float", native_operators=False, keep_initializers_as_inputs=False)).model
    nodes = quantization_nodes(fused, {name for each in standard.graph.node for name in each.output})
    names = [each.name for each in (*nodes.graph.input, *nodes.graph.output)]
    assert bool(names) is (path.stem != "textline_cls_float")
    feeds = inputs_of(path)
    values = run(with_outputs(standard, names), feeds)
    if names:
        inputs = {each.name: values.get(each.name, feeds.get(each.name)) for each in nodes.graph.input}
        for each, expected in zip(nodes.graph.output, in_package(nodes).run(None, inputs), strict=True):
            np.testing.assert_array_equal(values[each.name], expected)
    for each, expected in zip(standard.graph.output, in_package(fused).run(None, feeds), strict=True):
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
        np.testing.assert_allclose(values[each.name], expected, rtol=0, atol=TOLERANCE * largest)


def quantization_nodes(fused, names):
    """Return the quantization nodes of a model apart, whose outputs have these names: values that other nodes make are inputs
    of the graph."""
    standard = {"", "com.microsoft"}
    nodes = [each for each in fused.graph.node if each.domain not in standard and {*each.output} <= names]
    made = {name for each in nodes for name in each.output}
    initializers = {each.name: each for each in fused.graph.initializer}
    taken = dict.fromkeys(name for each in nodes for name in each.input if name)
    return model(
        nodes,
        [name for name in taken if name not in made and name not in initializers],
        sorted(made),
        initializers=[initializers[name] for name in taken if name in initializers],
        opset=next(each.version for each in fused.opset_import if not each.domain),
    )
