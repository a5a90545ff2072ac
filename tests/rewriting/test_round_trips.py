"""The pass `round_trips`: quantize nodes that give back the codes that were dequantized are dropped."""

import numpy as np
import oracle
import pytest
from onnx_models import model
from rewritten_models import Q, assert_same_values, floats, pair, scale_and_zero_point

from quark_numba.rewriting import round_trips
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.rewriting.round_trips import ROUND_TRIP

pytestmark = pytest.mark.compiled


def back_and_forth(name, initializers, parameters=("scale", "zero_point"), inputs=(), domain="com.amd.quark", opset=21):
    """Return a model that dequantizes codes, and quantizes and dequantizes the result again, with `parameters`."""
    nodes = [pair(domain=domain)[1], *pair("y", "codes2", "z", parameters, domain)]
    values = [("codes", name, None), *inputs], ["z"]
    return model(nodes, *values, initializers=initializers, domains=[domain], opset=opset)


def drops(result):
    return sum(count for (_, what), count in result.done.items() if what == ROUND_TRIP)


@pytest.mark.parametrize("name", [*oracle.EXTENDED, "int4", "uint2"])
def test_round_trips_are_dropped_where_all_codes_come_back(name):
    """All codes of integer types of up to 16 bits come back. Float types turn -0 into 0."""
    domain = "com.amd.quark" if name in oracle.EXTENDED else ""
    row, dtype = oracle.TYPES[name], oracle.dtype(name)
    zero_point = 3 if isinstance(row, oracle.Integer) and row.bits > 2 else 0
    before = back_and_forth(name, scale_and_zero_point(name, 0.25, zero_point), domain=domain, opset=25)
    result = rewrite_model(before, Settings(qdq="onnxruntime" if domain else "float"))
    assert drops(result) == 2 * (isinstance(row, oracle.Integer) and row.bits < 32)
    if drops(result):
        assert len(result.model.graph.node) == 1
        codes = np.arange(2**row.bits).astype(f"u{dtype.itemsize}").view(dtype)
        scale, zero = np.float32(0.25), np.array(zero_point, dtype)
        oracle.assert_same_bits(oracle.quantize(oracle.dequantize(codes, scale, zero, name), scale, zero, name), codes)


def test_a_round_trip_with_other_parameters_is_none():
    initializers = [*scale_and_zero_point(), *floats(scale2=0.5)]
    before = back_and_forth("int8", initializers, ("scale2", "zero_point"))
    result = rewrite_model(before)
    assert not drops(result)
    assert_same_values(before, result.model, {"codes": np.arange(-128, 128).astype(np.int8)})


def test_a_round_trip_with_parameters_that_are_no_constants_stays():
    scale, zero_point = scale_and_zero_point()
    assert not drops(rewrite_model(back_and_forth("int8", [zero_point], inputs=[("scale", "float32", [])])))
    assert not drops(rewrite_model(back_and_forth("int8", [scale], inputs=[("zero_point", "int8", [])])))


def test_a_scale_that_loses_codes_keeps_its_round_trip():
    """A scale of 0 turns all codes into 0, and a scale of 2e38 turns most codes into infinity."""
    for scale in (0.0, 2e38):
        before = back_and_forth("int8", scale_and_zero_point("int8", scale))
        assert not rewrite_model(before).done[f"com.amd.quark::{Q}", ROUND_TRIP]


@pytest.mark.parametrize("name", ["uint16", "int16", "uint8", "int8"])
def test_scales_that_need_no_trial(name, monkeypatch):
    """Scales of a magnitude from 2^-126 to 2^110 give all codes back without a trial. For other scales, codes are tried."""
    row, dtype = oracle.TYPES[name], oracle.dtype(name)
    codes = np.arange(2**row.bits).astype(f"u{dtype.itemsize}").view(dtype)
    rng, tried = np.random.default_rng(3), []
    monkeypatch.setattr(round_trips, "_keeps_all", lambda *_: tried.append(True))
    scales = [2.0**-126, 2.0**110, -(2.0**-126), *rng.uniform(0.5, 1, 20) * 2.0 ** rng.integers(-125, 110, 20)]
    for scale in np.array(scales, np.float32):
        zero_point = rng.choice(codes)
        before = back_and_forth(name, scale_and_zero_point(name, scale, zero_point))
        assert rewrite_model(before).done[f"com.amd.quark::{Q}", ROUND_TRIP]
        back = oracle.quantize(oracle.dequantize(codes, scale, zero_point, name), scale, zero_point, name)
        oracle.assert_same_bits(back, codes)
    assert not tried
    rewrite_model(back_and_forth(name, scale_and_zero_point(name, 1e-38)))
    assert tried
