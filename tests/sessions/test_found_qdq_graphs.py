"""Graphs of ONNX's own quantization operators for which sessions once ended the process, were refused, or gave other numbers
than plain ONNX Runtime without optimizations. The rules of the comparison are in `qdq_sessions`."""

import numpy as np
import pytest
import qdq_sessions
from generated_qdq_graphs import Case
from onnx import parser
from text_graphs import text_model

pytestmark = pytest.mark.compiled
MODES = [each for each in qdq_sessions.MODES if each not in ("cache", "run_async", "IO binding", "threads of Python")]


@pytest.fixture(scope="module")
def worker():
    with qdq_sessions.Worker() as made:
        yield made


def codes(shape, dtype, seed=0):
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def fractions(shape, step):
    return codes(shape, np.int8).astype(np.float32) * np.float32(step)


# The texts of models, by the names of cases.
TEXTS = {
    "a dequantized value that branches capture": """
        <ir_version: 10, opset_import: ["" : 21]> g (bool c, int8[2,7,1] x) => (float[] o)
        <float s={0.03125}, int8 z={0}, float[1] t={0.015625}, int8[1] tz={0}>
        { d = DequantizeLinear (x, s, z)  q = QuantizeLinear (d, t, tz)  e = DequantizeLinear (q, t)
        o = If (c) <else_branch: graph = el () => (float[] p) <float us={0.125}, uint16 uz={32768}, uint16[7,1,1]
        u={32773,32772,32761,32768,32769,32765,32762}, float[1] r={0.0625}>
        { ud = DequantizeLinear (u, us, uz)  v = Conv <group: int = 7, pads: ints = [1,1], strides: ints = [2]> (e, ud)
        mx = Max (e, e)  k = QuantizeLinear (mx, r, tz)  p = DequantizeLinear (k, r, tz) },
        then_branch: graph = th () => (float[] p2) <float[1] f={4}, float[1] f2={0.125}, int8[1] fz={127}>
        { g1 = Div (e, f)  g2 = QuantizeLinear (g1, f2, fz)  p2 = DequantizeLinear (g2, f2, fz) }> }
    """,
    "kept weights behind a float input": """
        <ir_version: 7, opset_import: ["" : 13]> g (float[2,16,5,4] x) => (float[] o) <float ws={0.0625}, int8 wz={-1},
        int8[4,1] w={-1,-1,6,-1}, float[1] t={0.125}, int8[1] tz={0}>
        { wd = DequantizeLinear (w, ws, wz)  v = MatMul (x, wd)  q = QuantizeLinear (v, t, tz)  o = DequantizeLinear (q, t,
        tz) }
    """,
    "kept weights with a scale for each column": """
        <ir_version: 9, opset_import: ["" : 20]> g (float[N,4] x) => (float[] o) <float s={0.125}, int8 z={0}, float[2]
        ws={0.0625,0.125}, int8[2] wz={0,0}, int8[4,2] w={-5,0,7,2,3,-7,1,6}, float t={0.125}>
        { q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s)  wd = DequantizeLinear <axis: int = 1> (w, ws, wz)  o =
        MatMul (d, wd) }
    """,
    "Reshape between 8 and 4 bits": """
        <ir_version: 10, opset_import: ["" : 21]> g (int8[3,1] x) => (float[] o) <float s={0.0625}, int8 z={0}, int64[2]
        n={3,1}, float t={1}, int4 tz={0}>
        { d = DequantizeLinear (x, s, z)  r = Reshape (d, n)  q = QuantizeLinear (r, t, tz)  o = DequantizeLinear (q, t) }
    """,
    "Unsqueeze before a scale for each index": """
        <ir_version: 10, opset_import: ["" : 21]> g (int8[2,3] x) => (float[] o) <float s={1}, int8 z={0}, int64[1] n={0},
        float[1] t={0.5}, int8[1] tz={0}>
        { d = DequantizeLinear (x, s, z)  r = Unsqueeze (d, n)  q = QuantizeLinear <axis: int = -3> (r, t, tz)  o =
        DequantizeLinear <axis: int = -3> (q, t, tz) }
    """,
    "float weights that nobody quantized": """
        <ir_version: 10, opset_import: ["" : 21]> g (uint8[N,8,4] x) => (float[] o)
        <float s={0.0625}, uint8 z={128}, float t={0.25}, uint8 tz={128}, float[2,8,1]
        w={-0.25,-0.625,0.375,-0.125,-0.125,-0.375,0.125,0.625,-0.75,-0.25,0.125,0.625,0.125,0.25,-0.875,0.375}>
        { d = DequantizeLinear (x, s, z)  v = Conv <strides: ints = [2]> (d, w)  q = QuantizeLinear (v, t, tz)  o =
        DequantizeLinear (q, t, tz) }
    """,
    "weights as inputs with defaults, without zero points": """
        <ir_version: 8, opset_import: ["" : 17]> g (uint8[N,1,9] x, float s, float ws, int8[2,1,2] w) => (uint8[] o)
        <float s={0.0625}, uint8 z={128}, float ws={0.125}, int8[2,1,2] w={0,0,0,5}, float bs={0.0625}, int32[2] b={16,-17},
        float t={0.03125}>
        { d = DequantizeLinear (x, s, z)  wd = DequantizeLinear (w, ws)  bd = DequantizeLinear (b, bs)
        v = Conv (d, wd, bd)  o = QuantizeLinear (v, t) }
    """,
}
FEEDS = {
    "a dequantized value that branches capture": {"c": np.array(True), "x": np.arange(14).astype(np.int8).reshape(2, 7, 1)},
    "kept weights behind a float input": {"x": fractions((2, 16, 5, 4), 1 / 32)},
    "kept weights with a scale for each column": {"x": fractions((64, 4), 1 / 8)},
    "Reshape between 8 and 4 bits": {"x": np.array([[-30], [5], [90]], np.int8)},
    "Unsqueeze before a scale for each index": {"x": np.array([[-30, 5, 90], [1, 2, 3]], np.int8)},
    "float weights that nobody quantized": {"x": codes((64, 8, 4), np.uint8)},
    "weights as inputs with defaults, without zero points": {"x": codes((64, 1, 9), np.uint8)},
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.slow
def test_found(name, worker):
    assert_right(worker, parser.parse_model(TEXTS[name]), FEEDS[name])


def assert_right(worker, model, feeds):
    status, found = worker.check(0, MODES, case=Case(0, True, model, [feeds], []))
    assert status == "checked", found
    assert not found, "\n".join(["", *map(": ".join, found)])


@pytest.mark.parametrize("operator", ["DequantizeLinear", "ExtendedDequantizeLinear"])
@pytest.mark.slow
def test_weights_of_16_bits_between_activations_of_8_bits(operator, worker):
    """Behind a wide convolution, which is left on integers."""
    random = np.random.default_rng(0)
    wide = random.integers(-3, 4, (128, 64, 3, 3)).astype(np.int8)
    narrow = random.integers(-1000, 1001, (4, 128, 1, 1)) * (random.random((4, 128, 1, 1)) < 0.2)
    constants = {"s": np.float32(2**-4), "one": np.float32(1), "half": np.float32(0.5), "fine": np.float32(2**-10)}
    constants |= {
        "z": np.uint8(128),
        "zero": np.int8(0),
        "zero16": np.int16(0),
        "wide": wide,
        "narrow": narrow.astype(np.int16),
    }

    def pair(x, y, scale):
        return f"{y}_codes = QuantizeLinear ({x}, {scale}, z)  {y} = DequantizeLinear ({y}_codes, {scale}, z)"

    text = f"""(float[1, 64, 16, 16] x) => (float[] y) {{
        {pair("x", "a", "s")}  w1 = DequantizeLinear (wide, s, zero)  b = Conv (a, w1)  {pair("b", "c", "one")}
        w2 = {operator} (narrow, fine, zero16)  d = Conv (c, w2)  {pair("d", "y", "half")}
    }}"""
    assert_right(worker, text_model(text, **constants), {"x": fractions((1, 64, 16, 16), 1 / 16)})
