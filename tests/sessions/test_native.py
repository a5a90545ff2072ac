"""Sessions of the native backend against the oracle."""

import ctypes
import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import product

import numpy as np
import onnxruntime
import oracle
import pytest
import samples
from marks import needs_extensions
from onnx_models import OPERATORS, model, one_node, run, session, session_options
from paths import SUPPORT
from rewritten_models import floats
from text_graphs import text_model

import quark_numba
from quark_numba.ort import c_api, custom_op, native

pytestmark = pytest.mark.compiled

domains = pytest.mark.parametrize("domain", ["com.amd.quark", "com.vai.quantize"])


@domains
@pytest.mark.by_default(1)
def test_per_tensor(quantize_key, domain):
    name = quantize_key.quantized.name
    quantize, dequantize = (session(one_node(operation, name, domain=domain)) for operation in ("quantize", "dequantize"))
    codes = samples.codes(name)
    for scale, zero_point in product(np.array(samples.SCALES, np.float32), samples.zero_points(name)):
        x = samples.floats(name, scale, zero_point)
        y = run(quantize, x=x, scale=scale, zero_point=zero_point)
        oracle.assert_same_bits(y, oracle.quantize(x, scale, zero_point, name))
        z = run(dequantize, x=codes, scale=scale, zero_point=zero_point)
        oracle.assert_same_bits(z, oracle.dequantize(codes, scale, zero_point, name))


@pytest.mark.parametrize("zero_point", ["several", "all zero", "zero but for one", None])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7,), 0), ((5, 33), 0), ((5, 33), None), ((2, 3, 5, 7), -2), ((300, 400), 0), ((300, 400), 1), ((2, 70000), 0)],
    ids=str,
)
@pytest.mark.by_default(2)
def test_per_axis(quantize_key, shape, axis, zero_point):
    name = quantize_key.quantized.name
    attributes = {} if axis is None else {"axis": axis}
    axis = 1 if axis is None else axis
    rng = np.random.default_rng(8)
    scale = rng.uniform(0.01, 2, shape[axis]).astype(np.float32)
    zeros = np.zeros(shape[axis], oracle.dtype(name))
    if zero_point == "several":
        zeros = np.resize(np.array(samples.zero_points(name)), shape[axis])
    elif zero_point == "zero but for one":
        zeros[-1] = samples.zero_points(name)[-1]
    feeds = {"scale": scale, "zero_point": zeros} if zero_point else {"scale": scale}
    along = [oracle.along(values, axis, len(shape)) for values in (scale, zeros)]

    x = rng.normal(0, 100, shape).astype(np.float32)
    if zero_point or name == "uint8":
        node = session(one_node("quantize", name, zero_point=bool(zero_point), attributes=attributes))
        oracle.assert_same_bits(run(node, x=x, **feeds), oracle.quantize(x, *along, name))
    codes = np.resize(samples.codes(name), shape)
    node = session(one_node("dequantize", name, zero_point=bool(zero_point), attributes=attributes))
    oracle.assert_same_bits(run(node, x=codes, **feeds), oracle.dequantize(codes, *along, name))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1)], ids=str)
@pytest.mark.by_default(1)
def test_small_shapes(quantize_key, shape):
    name = quantize_key.quantized.name
    x = np.full(shape, 2.5, np.float32)
    zero_point = np.zeros((), oracle.dtype(name))
    y = run(session(one_node("quantize", name)), x=x, scale=np.float32(1), zero_point=zero_point)
    oracle.assert_same_bits(y, oracle.quantize(x, np.float32(1), zero_point, name))
    z = run(session(one_node("dequantize", name)), x=y, scale=np.float32(1), zero_point=zero_point)
    oracle.assert_same_bits(z, oracle.dequantize(y, np.float32(1), zero_point, name))


def test_one_element_shapes_mix():
    """Quark writes a scale of shape (1,) next to a zero point of shape ()."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for scale_shape in ((), (1,), (1, 1)):
        scale = np.full(scale_shape, 0.5, np.float32)
        y = run(session(one_node("quantize", "int8")), x=x, scale=scale, zero_point=np.int8(1))
        oracle.assert_same_bits(y, oracle.quantize(x, np.float32(0.5), np.int8(1), "int8"))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [16383, 16384, 16385, 65536, 65537, 1_000_003, 1 << 22, 5_000_003])
@pytest.mark.by_default(3)
def test_any_number_of_threads(threads, size):
    x = np.random.default_rng(9).normal(0, 100, size).astype(np.float32)
    node = session(one_node("quantize", "int16"), threads=threads, spins=True)
    y = run(node, x=x, scale=np.float32(0.3), zero_point=np.int16(5))
    oracle.assert_same_bits(y, oracle.quantize(x, np.float32(0.3), np.int16(5), "int16"))


@pytest.mark.parametrize("name", ["uint8", "bfloat16"])
@pytest.mark.by_default(1)
def test_past_the_cache(name):
    """Results larger than 16 MiB, which no cache holds, are right."""
    x = np.random.default_rng(10).normal(0, 20, (1 << 24) + 77).astype(np.float32)
    parameters = {"scale": np.float32(0.3), "zero_point": np.ones((), oracle.dtype(name))}
    y = run(session(one_node("quantize", name)), x=x, **parameters)
    z = run(session(one_node("dequantize", name)), x=y, **parameters)
    for start in range(0, x.size, 1 << 20):
        piece = slice(start, start + (1 << 20))
        oracle.assert_same_bits(y[piece], oracle.quantize(x[piece], *parameters.values(), name))
        oracle.assert_same_bits(z[piece], oracle.dequantize(y[piece], *parameters.values(), name))


@pytest.mark.slow
def test_types_are_inferred_through_a_chain():
    """The model has no value_info. The type of a quantized tensor is that of the zero point, or uint8 without one."""
    zeros = {f"zero_{name}": np.ones((), oracle.dtype(name)) for name in oracle.EXTENDED}
    nodes = "\n".join(
        f"q{k} = ExtendedQuantizeLinear (d{k - 1}, scale{zero})  d{k} = ExtendedDequantizeLinear (q{k}, scale{zero})"
        for k, zero in enumerate([*(f", {name}" for name in zeros), ""], 1)
    )
    text = f"(float[] d0) => (float[] d{len(zeros) + 1}) {{ {nodes} }}"
    x = np.array([0.0, 1.5, 2.0, 60.0], np.float32)
    (y,) = session(text_model(text, scale=np.float32(0.5), **zeros)).run(None, {"d0": x})
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize(
    ("operation", "name", "types"),
    [
        ("quantize", "int8", {"x": "float16"}),
        ("quantize", "int8", {"x": "int8"}),
        ("quantize", "int8", {"scale": "float16"}),
        ("quantize", "int64", {}),
        ("quantize", "float32", {}),
        ("dequantize", "int64", {}),
        ("dequantize", "int8", {"zero_point": "uint8"}),
        ("dequantize", "int8", {"scale": "bfloat16"}),
    ],
)
def test_types_are_checked_at_load(operation, name, types):
    with pytest.raises(Exception, match=rf"Extended{operation.capitalize()}Linear"):
        session(one_node(operation, name, types=types))


def test_a_missing_scale_is_refused_at_load():
    node = one_node("quantize", "uint8")
    del node.graph.node[0].input[1:]
    with pytest.raises(Exception, match=r"ExtendedQuantizeLinear.*input size 1 not in range"):
        session(node)


def test_axis_of_another_type_is_refused_at_load():
    with pytest.raises(Exception, match=r"attribute axis.*expected INT"):
        session(one_node("quantize", "uint8", attributes={"axis": "one"}))


@pytest.mark.parametrize(
    ("axis", "x", "scale", "zero_point", "message"),
    [
        (1, (2, 3), (1, 2, 3), (1, 2, 3), r"y_scale has shape \(1, 2, 3\); expected a scalar"),
        (1, (2, 3), (3,), (), r"y_zero_point has shape \(\); expected the shape of y_scale, \(3,\)"),
        (1, (2, 3), (3,), (1, 3), r"y_zero_point has shape \(1, 3\); expected the shape of y_scale, \(3,\)"),
        (1, (2, 3), (), (3,), r"y_zero_point has shape \(3,\); expected the shape of y_scale, \(\)"),
        (2, (2, 3), (3,), (3,), r"axis is 2, out of range for x of shape \(2, 3\); y_scale has shape \(3,\)"),
        (-3, (2, 3), (3,), (3,), r"axis is -3, out of range"),
        (-(2**63), (2, 3), (3,), (3,), r"axis is -9223372036854775808, out of range"),
        (2**63 - 1, (), (3,), (3,), r"axis is 9223372036854775807, out of range for x of shape \(\)"),
        (1, (2, 3), (2,), (2,), r"y_scale has shape \(2,\); expected as many elements as x of shape \(2, 3\) has along axis 1"),
        (1, (2, 3), (0,), (0,), r"y_scale has shape \(0,\); expected as many elements"),
        (1, (12, 345) + (1,) * 20, (7,), (7,), r"y_scale has shape \(7,\); .* x of shape \(12, 345(, 1){20}\) has"),
    ],
)
@domains
@pytest.mark.by_default(8)
def test_shapes_are_checked_in_the_run(domain, axis, x, scale, zero_point, message):
    node = session(one_node("quantize", "int8", domain=domain, attributes={"axis": axis}))
    feeds = {"x": np.ones(x, np.float32), "scale": np.ones(scale, np.float32), "zero_point": np.zeros(zero_point, np.int8)}
    operator = f"{domain}::{OPERATORS[domain, 'quantize']}"
    for _ in range(2):  # the session goes on
        with pytest.raises(Exception, match=rf"INVALID_ARGUMENT.*{operator}: {message}"):
            run(node, **feeds)
    with pytest.raises(ValueError, match=message.replace("y_", "")):  # the direct call says the same, by its own names
        quark_numba.quantize(feeds["x"], feeds["scale"], feeds["zero_point"], axis=axis)


@domains
def test_blocks_are_refused(domain):
    """Unlike direct calls, these operators have no block_size, and do not infer one."""
    blocks = {"scale": np.ones((2, 3), np.float32), "zero_point": np.zeros((2, 3), np.int8)}
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*y_scale has shape \(2, 3\); expected a scalar"):
        run(session(one_node("quantize", "int8", domain=domain)), x=np.ones((2, 3), np.float32), **blocks)


def test_ranks_beyond_numpys_are_refused():
    text = """(float[1] x) => (int8[1] y) <float scale = {0.5}, int8 zero_point = {0}, int64[1] one = {1}> {
        r = Reshape (x, shape)  q = ExtendedQuantizeLinear (r, scale, zero_point)  y = Reshape (q, one)
    }"""
    for rank in (64, 65, 100_000):
        ranks = session(text_model(text, shape=np.ones(rank, np.int64)))
        if rank == 64:
            assert run(ranks, x=np.ones(1, np.float32)).tolist() == [2]
        else:
            with pytest.raises(Exception, match="ExtendedQuantizeLinear: a tensor has more than 64 dimensions"):
                run(ranks, x=np.ones(1, np.float32))


def test_one_line():
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(quark_numba.get_library_path())
    onnxruntime.InferenceSession(one_node("quantize", "bfloat16").SerializeToString(), options)


@pytest.mark.parametrize("backend", ["native", pytest.param("extensions", marks=needs_extensions)])
def test_registering_again_changes_nothing(backend):
    options = onnxruntime.SessionOptions()
    for again in (backend, backend, None):
        assert quark_numba.register(options, backend=again) == backend
    options.register_custom_ops_library(quark_numba.get_library_path())
    other = {"native": "extensions", "extensions": "native"}[backend]
    with pytest.raises(ValueError, match=f"backend is '{other}', but session_options are registered with '{backend}'"):
        quark_numba.register(options, backend=other)
    onnxruntime.InferenceSession(one_node("quantize", "int8").SerializeToString(), options)


def test_no_compiler_and_no_torch():
    """Sessions need neither a compiler nor torch, which a user's machine may lack: PATH is empty, torch cannot be imported, and
    only this package's code runs."""
    code = f"""
import sys
sys.modules["torch"] = None
sys.path.insert(0, {str(SUPPORT)!r})
import numpy as np, oracle
from onnx_models import model, one_node, run, session

x = np.linspace(-9, 9, 100).astype(np.float32)
y = run(session(one_node("quantize", "int8")), x=x, scale=np.float32(1), zero_point=np.int8(0))
oracle.assert_same_bits(y, oracle.quantize(x, np.float32(1), np.int8(0), "int8"))
"""
    kept = {name: os.environ[name] for name in ("HOME", "NUMBA_CACHE_DIR") if name in os.environ}
    subprocess.run([sys.executable, "-c", code], env={"PATH": "", "HOME": "/"} | kept, check=True)


def test_an_old_onnx_runtime():
    """GetApi returns null for a version that it does not know."""
    messages = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(code, message):
        messages.append(message.decode())
        return 1

    release = ctypes.create_string_buffer(b"1.19.2")
    version_string = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(release))
    table = (ctypes.c_void_p * (max(c_api.OrtApi) + 1))()
    table[c_api.OrtApi.CreateStatus] = ctypes.cast(create_status, ctypes.c_void_p)
    base = c_api.OrtApiBase(
        c_api.GetApi(lambda version: ctypes.addressof(table) if version == 1 else None),
        ctypes.cast(version_string, c_api.GetVersionString),
    )
    assert native.REGISTRY._register(0, ctypes.addressof(base), 0, 0, None) == 1
    assert messages == ["quark_numba needs ONNX Runtime 1.20 or later; this is 1.19.2"]


def test_sessions_that_never_run_create_no_kernels(monkeypatch):
    """ONNX Runtime does not run a node to fold it, though all its inputs are constants."""

    def create_kernel(self, info):
        raise ValueError("a kernel is created")

    monkeypatch.setattr(custom_op.CustomOp, "create_kernel", create_kernel)
    nodes = ["a = com.amd.quark.BFPQuantizeDequantize <axis = 1> (c)", "y = Add (a, x)"]
    shaped = ("x", "float32", [2, 8]), ("y", "float32", [2, 8])
    source = model(nodes, shaped[:1], shaped[1:], initializers=floats(c=np.ones((2, 8)))).SerializeToString()
    for never_runs in (True, False):
        options = session_options()
        if never_runs:
            options.add_session_config_entry(native.NEVER_RUNS, "1")
        quark_numba.register(options)
        with nullcontext() if never_runs else pytest.raises(Exception, match="a kernel is created"):
            onnxruntime.InferenceSession(source, options)
