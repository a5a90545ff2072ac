"""Nodes of the CUDA provider in sessions, with an emulated driver, against those of the CPU provider: the same bits."""

import ctypes

import numpy as np
import onnx
import onnx_models
import onnxruntime
import pytest
import samples
from block_samples import values
from emulated_driver import emulated_driver
from granularities import cell
from onnx_models import one_node, run, session
from paths import MODELS
from text_graphs import text_model

import quark_numba
from quark_numba.catalog import OPERATORS
from quark_numba.linear.versions import types
from quark_numba.ort import cuda, native, operators

pytestmark = pytest.mark.compiled


def both(model, **feeds):
    """Return y of a session with nodes for the CPU and of one with nodes for a GPU, and the launches of the second."""
    expected = run(session(model), **feeds)
    with emulated_driver() as driver:
        return expected, run(session(model), **feeds), driver.launches


def assert_same(expected, made):
    assert expected.dtype == made.dtype
    assert expected.shape == made.shape
    is_nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(made.astype(np.float32)), is_nan)
    bits = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(made.view(bits)[~is_nan], expected.view(bits)[~is_nan])


RELEASE = native.release_of(onnxruntime.__version__)
DOMAINS = {"quantize": "com.amd.quark", "dequantize": "com.amd.quark", "quantize_dequantize": "quark_numba"}
LINEAR = [
    pytest.param(operation, row.name, scale, granularity, has_zero_point)
    for operation in ("quantize", "dequantize", "quantize_dequantize")
    for row in types(operation, "quantized")
    if row.has_tensors(RELEASE)
    for scale in ("float32",)
    for granularity, has_zero_point in (("per_tensor", False), ("per_axis", True), ("blocks_along_another_axis", True))
]


def operator_of(operation, name, has_blocks):
    """Return an operator of Quark or of the package for float32 and codes of an element type, or None if there is no such
    operator."""

    def codes(overload):
        return {"quantize": overload.outputs[0], "dequantize": overload.inputs[0]}.get(operation, overload.inputs[-1])

    for operator in OPERATORS:
        if operator.domain in ("com.amd.quark", "quark_numba") and operator.operation == operation:
            names = {codes(overload).name for overload in operators.overloads(operator, RELEASE)}
            if name in names and (not has_blocks or "block_size" in {attribute.name for attribute in operator.attributes}):
                return operator
    return None


@pytest.mark.parametrize(("operation", "name", "scale", "granularity", "has_zero_point"), LINEAR)
@pytest.mark.covering("exhaustive")
@pytest.mark.slow
def test_linear_nodes(operation, name, scale, granularity, has_zero_point):
    has_zero_point = has_zero_point or operation != "dequantize"
    shape, (scales, zero_points), _, attributes = cell(granularity, scale, name, has_zero_point)
    operator = operator_of(operation, name, has_blocks=attributes["block_size"] > 0)
    if operator is None:
        pytest.skip("no operator has blocks of this type")
    attributes = {
        attribute.name: attributes[attribute.name] for attribute in operator.attributes if attribute.name in attributes
    }
    model = one_node(operation, name, zero_point=has_zero_point, attributes=attributes, domain=DOMAINS[operation])
    model.graph.node[0].op_type, model.graph.node[0].domain = operator.name, operator.domain
    model.opset_import.append(onnx.helper.make_opsetid("quark_numba", 1))
    x = np.resize(samples.codes(name), shape) if operation == "dequantize" else np.resize(np.float32(samples.SPECIAL), shape)
    feeds = {"x": x, "scale": scales} | ({"zero_point": zero_points} if has_zero_point else {})
    expected, made, launches = both(model, **feeds)
    assert len(launches) == 1
    assert_same(expected, made)


BLOCKS = {
    "bfp": 'BFPQuantizeDequantize <axis = 1, bfp_method = "to_bfp", bit_width = 16, block_size = 8, rounding_mode = 2>',
    "mx": 'BFPQuantizeDequantize <axis = 1, bfp_method = "to_bfp_prime", bit_width = 16, block_size = 16, rounding_mode = 2>',
    "mxfp8": 'MXQuantizeDequantize <axis = -1, element_dtype = "fp8_e4m3", block_size = 32, rounding_mode = 2>',
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(2, 40, 5), (3, 32), (0, 3)])
@pytest.mark.slow
def test_block_nodes(name, shape):
    model = text_model(f"(float[{', '.join(map(str, shape))}] x) => (float[] y) {{ y = {BLOCKS[name]} (x) }}")
    expected, made, launches = both(model, x=values(shape, "float32"))
    assert len(launches) == (0 not in shape)
    assert_same(expected, made)


REGION = """(float[2, 3, 4, 5] x, float[3, 1, 5] w) => (float[] y) {
    a = Add (x, w)
    p = ExtendedQuantizeLinear <axis = 1> (a, s, z)
    d = ExtendedDequantizeLinear <axis = 1> (p, s, z)
    r = Relu (d)
    y = Add (r, x)
}"""


@pytest.mark.slow
def test_regions():
    rng = np.random.default_rng(0)
    model = text_model(REGION, s=np.float32([0.1, 2, 3]), z=np.int8([1, 0, -7]))
    written = quark_numba.optimize(model, operators="cuda")
    assert [node.op_type for node in written.graph.node] == ["Region"]
    x, w = rng.normal(0, 9, (2, 3, 4, 5)), rng.normal(0, 9, (3, 1, 5))
    x.flat[:4] = np.nan, np.inf, -np.inf, 1e-40
    expected, made, launches = both(written, x=np.float32(x), w=np.float32(w))
    assert len(launches) == 1
    assert_same(expected, made)
    assert_same(run(session(model), x=np.float32(x), w=np.float32(w)), made)


@pytest.mark.parametrize(
    ("shape", "other", "axis"),
    [
        ((2, 40, 3, 5), (40, 1, 1), 1),
        ((2, 3, 4, 20), (3, 1, 20), -1),
        ((9, 4, 5), (5,), 0),
        ((2, 1, 5), (1, 5), 1),
        ((3, 2, 2, 5), (2, 1, 5), 2),
        ((5, 16), (1,), -1),
        ((20,), (1,), -1),
        ((1, 1), (1, 1), -1),
    ],
)
@pytest.mark.slow
def test_regions_of_blocks(shape, other, axis):
    text = (
        f"(float{[*shape]} x, float{[*other]} w) => (float[] y) {{ a = Add (x, w)  b = BFPQuantizeDequantize <axis = {axis}, "
        'bfp_method = "to_bfp", bit_width = 16, block_size = 8> (a)  y = Relu (b) }'
    )
    model = quark_numba.optimize(text_model(text), operators="cuda")
    x, w = values(shape, "float32"), np.resize(np.float32([0.25, -3, 1e-3, 0]), other)
    expected, made, launches = both(model, x=x, w=w)
    assert len(launches) == 1
    assert_same(expected, made)


@pytest.mark.slow
def test_a_region_with_more_loops_than_a_kernel_has():
    """A region with more loops than a kernel has gets an error from the run. The optimizer does not write such regions."""
    shape = [2, 3, 2, 3, 2]
    program = "region (float x0, float x1) => (float y) { y = Add (x0, x1) }"
    node = onnx.helper.make_node("Region", ["x", "w"], ["y"], domain="quark_numba", program=program)
    model = onnx_models.model([node], ["x", "w"], ["y"])
    x, w = np.ones(shape, np.float32), np.ones((3, 1, 3, 1), np.float32)
    with emulated_driver(), pytest.raises(Exception, match=r"y has shape \(2, 3, 2, 3, 2\), along which"):
        run(session(model), x=x, w=w)
    deep = text_model(
        REGION.replace("2, 3, 4, 5", "1, 2, 3, 4, 5").replace("axis = 1", "axis = 2"),
        s=np.float32([0.1, 2, 3]),
        z=np.int8([1, 0, -7]),
    )
    assert "Region" not in {node.op_type for node in quark_numba.optimize(deep, operators="cuda").graph.node}


@pytest.mark.parametrize("name", ["textline_cls_bf16", "textline_cls_mxfp8", "tagger_u16", "qonnx/cnn_w4a4"])
@pytest.mark.slow
def test_models(name):
    model = onnx.load(MODELS / f"{name}.onnx")
    with emulated_driver() as driver:
        made = quark_numba.InferenceSession(model, operators="cuda")
        feeds = {
            each.name: np.random.default_rng(0)
            .normal(size=[d if isinstance(d, int) else 1 for d in each.shape])
            .astype(np.float32)
            for each in made.get_inputs()
        }
        y = made.run(None, feeds)[0]
        assert driver.launches
    expected = quark_numba.InferenceSession(model, operators="custom", blocked_layout=False).run(None, feeds)[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


def test_a_launch_and_an_error_of_the_driver_that_names_the_node():
    model = one_node("quantize", "int8")
    model.graph.node[0].name = "first"
    with emulated_driver() as driver:
        made = session(model)
        assert run(made, x=np.float32([1, 260]), scale=np.float32(2), zero_point=np.int8(3)).tolist() == [3, 127]
        assert len(driver.launches) == 1
        driver.code = 719
        with pytest.raises(
            Exception,
            match=r"(?s)Name:'first'.*ExtendedQuantizeLinear: the CUDA driver could not start the kernel \(error 719\)",
        ):
            run(made, x=np.float32([1]), scale=np.float32(1), zero_point=np.int8(0))


def test_wrong_shapes_are_refused_as_on_a_cpu():
    feeds = {"x": np.zeros((2, 2), np.float32), "scale": np.ones(3, np.float32), "zero_point": np.zeros(3, np.int8)}
    with emulated_driver() as driver, pytest.raises(Exception, match=r"scale has shape \(3,\)"):
        run(session(one_node("quantize", "int8")), **feeds)
    assert not driver.launches


def test_every_family_on_gpus_has_nodes():
    for operator in OPERATORS:
        if operator.runs_on_gpus:
            assert operators.gpu_node_of(operator.family).compute
        else:
            with pytest.raises(ModuleNotFoundError):
                operators.gpu_node_of(operator.family)


class Library:
    """The driver's functions, which note their arguments."""

    def __init__(self, **codes):
        self.codes, self.calls = codes, []

    def __getattr__(self, name):
        def function(*arguments):
            self.calls.append((name, arguments))
            if name == "cuLibraryGetKernel":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_void_p))[0] = 4711
            return self.codes.get(name, 0)

        return function


class Kernel:
    entry, ptx = "entry", "text"


def test_kernels_are_loaded_for_all_cards(monkeypatch):
    library = Library()
    monkeypatch.setattr(cuda, "driver", lambda: library)
    assert cuda.loaded.__wrapped__(Kernel) == 4711
    (_, begin), (_, load), (_, get) = library.calls
    assert [name for name, _ in library.calls] == ["cuInit", "cuLibraryLoadData", "cuLibraryGetKernel"]
    assert begin == (0,)
    assert load[1:] == (b"text", None, None, 0, None, None, 0)
    assert get[2] == b"entry"
    monkeypatch.setattr(cuda, "driver", lambda: Library(cuLibraryLoadData=218))
    with pytest.raises(RuntimeError, match="the CUDA driver refuses the kernel entry with error 218"):
        cuda.loaded.__wrapped__(Kernel)


def test_a_machine_without_a_driver(monkeypatch):
    monkeypatch.setattr(cuda, "_NAME", "libnone.so.1")
    cuda.driver.cache_clear()
    try:
        assert cuda.driver() is None
        with pytest.raises(RuntimeError, match="no driver of CUDA 12"):
            cuda.launcher()
        assert quark_numba.ort.providers.operators_for(["CUDAExecutionProvider", "CPUExecutionProvider"]) == "standard"
    finally:
        cuda.driver.cache_clear()
