"""The oracles of the QONNX, MCT and NVIDIA operators against the outputs of these vendors' runtimes. No test runs a kernel."""

from fractions import Fraction

import mct_oracle
import ml_dtypes
import numpy as np
import nvidia_oracle
import onnx
import oracle
import other_quantizers
import pytest
import qonnx_oracle
from onnx import defs, numpy_helper
from oracle import assert_same_bits
from other_quantizers import HAS_SAME_SUMS, expectation, expected_outputs, models_of, outputs_of, quantization_nodes
from paths import MODELS
from probes import probes

f32 = np.float32

# The probes with a bit width of 4.2, which QONNX's executor computes. The specification of the package refuses it.
FRACTIONAL_BIT_WIDTH = {5, 33}


def models(*folders):
    """Return the models as parameters, except those in ONNX's own operators. The oracles compute no node of those, and the
    evaluator takes the mean of the batch in BatchNormalization before opset 14."""
    return [pytest.param(path, id=path.stem) for path in models_of(*folders) if not path.stem.endswith("_qcdq")]


def f32s(*numbers):
    return np.array(numbers, f32)


@pytest.mark.parametrize(
    ("operator", "version"),
    [("Quant", 1), ("IntQuant", 1), ("BipolarQuant", 1), ("Trunc", 1), ("Trunc", 2), ("FloatQuant", 1), ("MultiThreshold", 1)],
)
def test_probes(operator, version):
    """Each result has the bits that QONNX's executor gave, the sign of zero included, for all 50 nodes."""
    count = 0
    for probe in probes(operator, version):
        count += 1
        arguments = probe.domain, operator, version, probe.attributes, probe.inputs
        if probe.number in FRACTIONAL_BIT_WIDTH:
            with pytest.raises(ValueError, match=r"bit_width is 4\.19.*; expected a whole number"):
                other_quantizers.call(*arguments)
        else:
            (y,) = other_quantizers.call(*arguments)
            assert_same_bits(y, probe.output)
    assert count == 50


def test_probes_of_openvino():
    """Each result has the bits that the reference of OpenVINO gave, for all 24 nodes: ties, crossed limits, Inf."""
    probes = np.load(MODELS / "openvino" / "fake_quantize_probes.npz")
    for i in range(24):
        inputs = [probes[f"{i}_x{k}"] for k in range(5)]
        (y,) = other_quantizers.call("org.openvinotoolkit", "FakeQuantize", 1, {"levels": int(probes[f"{i}_levels"])}, inputs)
        assert_same_bits(y, probes[f"{i}_y"])


@pytest.mark.parametrize("path", models("mct"))
def test_models_of_mct(path):
    """With six digits of attributes the outputs are those of MCT's runtime. With all digits they stay within a step."""
    feeds, expected = expectation(path)
    if path.stem == "mct_probe":  # single nodes, two of each operator
        for y, y_of_vendor in zip(expected_outputs(path, feeds, digits=6), expected, strict=True):
            assert_same_bits(y, y_of_vendor)
        found = sorted(node.operator for node in other_quantizers.expected_nodes(path))
        assert found == sorted(2 * list(other_quantizers.MCT_OPERATORS))
        assert max(map(largest_difference, expected_outputs(path, feeds), expected)) < 0.002
    else:
        assert_close(expected_outputs(path, feeds, digits=6), expected, 1e-7)
        assert_close(expected_outputs(path, feeds), expected, 1e-6)


@pytest.mark.parametrize("path", models("qonnx", "nvidia"))
def test_models_of_brevitas_and_modelopt(path):
    if defs.onnx_opset_version() < other_quantizers.version_of(onnx.NodeProto(), onnx.load(path).opset_import):
        pytest.skip("onnx has no float4 yet")
    assert_close(expected_outputs(path), expectation(path)[1], 1e-6)


def assert_close(outputs, expected, tolerance):
    """Assert that no difference is above a tolerance. Where sums are added in another order, a rounding may be flipped."""
    for y, y_of_vendor in zip(outputs, expected, strict=True):
        assert y.dtype == y_of_vendor.dtype
        assert y.shape == y_of_vendor.shape
        assert largest_difference(y, y_of_vendor) <= (tolerance if HAS_SAME_SUMS else 0.1 * np.abs(y_of_vendor).max())


def largest_difference(y, expected):
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    return np.nanmax(np.abs(y - expected))


@pytest.mark.parametrize("path", models("qonnx", "mct"))
def test_recorded_nodes(path):
    """A run records each quantization node, and the node alone gives the same outputs."""
    model = onnx.load(path)
    protos = {node.output[0]: node for node in quantization_nodes(model)}
    outputs, nodes = other_quantizers.run(model, expectation(path)[0])
    assert len(outputs) == len(model.graph.output)
    assert [node.name for node in nodes] == list(protos)
    for node in nodes:
        for y, recorded in zip(outputs_of(protos[node.name], node.inputs, model.opset_import), node.outputs, strict=True):
            assert_same_bits(y, recorded)


# QONNX, where the specification decides, or where no probe is.


def test_rounding_modes():
    x = f32s(-2.5, -1.5, -1.2, -0.5, -0.3, -0.0, 0.3, 0.5, 1.2, 1.5, 2.5)
    expected = {
        "ROUND": (-2, -2, -1, -0.0, -0.0, -0.0, 0, 0, 1, 2, 2),
        "CEIL": (-2, -1, -1, -0.0, -0.0, -0.0, 1, 1, 2, 2, 3),
        "FLOOR": (-3, -2, -2, -1, -1, -0.0, 0, 0, 1, 1, 2),
        "UP": (-3, -2, -2, -1, -1, 0, 1, 1, 2, 2, 3),
        "DOWN": (-2, -1, -1, -0.0, -0.0, -0.0, 0, 0, 1, 1, 2),
        "HALF_UP": (-3, -2, -1, -1, -0.0, 0, 0, 1, 1, 2, 3),
        "HALF_DOWN": (-2, -1, -1, -0.0, 0, -0.0, -0.0, 0, 1, 1, 2),
    }
    expected |= {"HALF_EVEN": expected["ROUND"], "ROUND_TO_ZERO": expected["DOWN"]}
    for mode, y in expected.items():
        for spelling in (mode, mode.lower()):
            assert_same_bits(qonnx_oracle.rounded(x, spelling), f32s(*y))
    for mode in ("DPU", "STOCHASTIC_ROUND", "LEARNED_ROUND"):
        with pytest.raises(ValueError, match=mode):
            qonnx_oracle.rounded(x, mode)


def test_sums_of_half_modes_are_float32():
    assert_same_bits(qonnx_oracle.rounded(f32s(0.49999997, 2**23 + 1), "HALF_UP"), f32s(1, 2**23 + 2))


def test_quant_by_the_standard_operators():
    """With a zero point of 0 the values are those of QuantizeLinear and DequantizeLinear."""
    x, scale = np.random.default_rng(0).normal(0, 3, 10_000).astype(f32), f32(0.07)
    for name, signed in (("int8", 1), ("uint8", 0)):
        codes = oracle.quantize(x, scale, None, name)
        y = qonnx_oracle.quant(x, scale, 0, 8, signed=signed)
        np.testing.assert_array_equal(y, oracle.dequantize(codes, scale, None, name))
        assert np.signbit(y[y == 0]).any() == bool(signed)


def test_quant_of_special_values():
    x = f32s(np.nan, np.inf, -np.inf, -0.0, -0.2, 3e38)
    assert_same_bits(qonnx_oracle.quant(x, 0.5, 0, 4), f32s(np.nan, 3.5, -4, 0, -0.0, 3.5))
    assert_same_bits(qonnx_oracle.quant(x, 0.5, 0, 4, signed=0), f32s(np.nan, 7.5, 0, 0, 0, 7.5))
    assert_same_bits(qonnx_oracle.quant(x, 0.5, 0, 1), f32s(-0.5, 0.5, -0.5, 0.5, -0.5, 0.5))
    assert_same_bits(qonnx_oracle.quant(x, 1, 0, 32)[[1, 2]], f32s(2.0**31, -(2.0**31)))
    assert_same_bits(qonnx_oracle.quant(x, 1, 0, 32, signed=0)[[1, 2]], f32s(2.0**32, 0))
    assert_same_bits(qonnx_oracle.quant(f32s(0, 1), 0, 0, 4), f32s(np.nan, 0))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((np.ones(3), 1, 4.5), "bit_width is 4.5"),
        ((np.ones(3), 1, 0), "bit_width is 0"),
        ((np.ones(3), 1, [4, 5, 6]), "bit_width has 3 elements"),
        ((np.ones((1, 3)), np.ones((2, 1)), 4), "the operands make the result"),
    ],
)
def test_quant_refuses(operands, message):
    x, scale, bits = operands
    with pytest.raises(ValueError, match=message):
        qonnx_oracle.quant(x, scale, 0, bits)


def test_powers_of_trunc():
    """The divisor is the nearest power of two also where out_scale / scale is next to a half power."""
    for power in range(-3, 12):
        half = f32(2.0 ** (power + 0.5))
        for out_scale in (np.nextafter(half, f32(0)), half, np.nextafter(half, f32(np.inf))):
            above = Fraction(float(out_scale)) ** 2 > 2 * Fraction(4) ** power
            t = 2.0 ** (power + above)
            y = qonnx_oracle.trunc_2(f32s(100), 1, 0, 16, out_scale, 16, rounding_mode="ROUND")
            assert_same_bits(y, np.rint(f32s(100) / f32(t)) * out_scale)


def test_exponents_of_float_quant():
    """Numbers just below a power of two have the exponent of their bits."""
    below = np.nextafter(2.0 ** np.arange(-5, 8, dtype=f32), f32(0))
    y = qonnx_oracle.float_quant(below, 1, 4, 3, 7, 448, rounding_mode="FLOOR")
    assert_same_bits(y, (2.0 ** np.arange(-6, 7) * 1.875).astype(f32))


def test_float_quant_by_casts():
    """Results are those of casts of ml_dtypes, except for Inf, which gives NaN."""
    x = np.random.default_rng(1).integers(0, 2**32, 50_000, np.uint32).view(f32)
    x = np.concatenate([x, np.arange(-500, 500, 1 / 64, dtype=f32), f32s(-0.0, 2**-10, 3 * 2**-10, 464, 57344, 61440)])
    formats = [(ml_dtypes.float8_e4m3fn, 4, 3, 7, 448), (ml_dtypes.float8_e5m2, 5, 2, 15, 57344)]
    for dtype, exponent_bits, mantissa_bits, bias, highest in formats:
        y = qonnx_oracle.float_quant(x, 1, exponent_bits, mantissa_bits, bias, highest)
        with np.errstate(invalid="ignore"):
            expected = np.where(np.isinf(x), f32(np.nan), np.clip(x, -highest, highest).astype(dtype).astype(f32))
        assert_same_bits(y, expected)


def test_float_quant_beyond_its_range():
    x, e4m3 = f32s(448, 470, -470, np.inf, np.nan), (1, 4, 3, 7, 448)
    nan = np.nan
    assert_same_bits(qonnx_oracle.float_quant(x, *e4m3), f32s(448, 448, -448, nan, nan))
    assert_same_bits(qonnx_oracle.float_quant(x, *e4m3, saturation=0, has_inf=1), f32s(448, np.inf, -np.inf, nan, nan))
    assert_same_bits(qonnx_oracle.float_quant(x, *e4m3, saturation=0, has_nan=1), f32s(448, nan, nan, nan, nan))
    with pytest.raises(ValueError, match="neither Inf nor NaN"):
        qonnx_oracle.float_quant(x, *e4m3, saturation=0)


# MCT.


def test_digits():
    """A power of two from 2**-8 to 2**19 is the same with six digits, and other numbers are not."""
    assert all(mct_oracle.attribute(2.0**power, 6) == 2.0**power for power in range(-8, 20))
    assert mct_oracle.attribute(f32(0.00012345678), 6) == 0.000123457
    assert mct_oracle.attribute(f32(0.1), None) == float(f32(0.1))


def test_activations_by_the_standard_operators():
    x = np.random.default_rng(0).normal(0, 2, 10_000).astype(f32)
    for name, signed in (("int8", 1), ("uint8", 0)):
        scale = f32(1.7) / f32(128 if signed else 256)
        y = mct_oracle.activation_symmetric(x, threshold=f32(1.7), signed=signed, num_bits=8)
        codes = oracle.quantize(x, scale, None, name)
        np.testing.assert_array_equal(y, oracle.dequantize(codes, scale, None, name))


def test_special_values_of_mct():
    x, inf = f32s(np.nan, np.inf, -np.inf, -0.0, -0.001), np.inf
    assert_same_bits(mct_oracle.activation_symmetric(x, threshold=1, signed=1, num_bits=3), f32s(np.nan, 0.75, -1, -0.0, -0.0))
    assert_same_bits(mct_oracle.activation_symmetric(x, threshold=1, signed=0, num_bits=2), f32s(np.nan, 0.75, 0, -0.0, 0))
    assert_same_bits(mct_oracle.activation_uniform(x, min_range=1, max_range=3, num_bits=2), f32s(np.nan, 3, 0, 0, 0))
    channel = {"per_channel": 0, "channel_axis": 0}
    assert_same_bits(mct_oracle.weights_uniform(x, [-0.001], [3], num_bits=2, **channel), f32s(np.nan, 3.001, 0, -0.0, 0))
    y = mct_oracle.weights_lut_symmetric(f32s(np.nan, inf, -inf, 0.5), [3, -4, 1], [1], lut_values_bitwidth=3, **channel)
    assert_same_bits(y, f32s(0.75, 0.75, -1, 0.75))


def test_channels():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(f32)
    for axis, count in ((0, 2), (1, 3), (-1, 4)):
        thresholds = np.arange(1, count + 1) / 3
        y = mct_oracle.weights_symmetric(x, thresholds, num_bits=4, per_channel=1, channel_axis=axis)
        one = {"num_bits": 4, "per_channel": 0, "channel_axis": 0}
        slices = [mct_oracle.weights_symmetric(np.take(x, i, axis), thresholds[i], **one) for i in range(count)]
        assert_same_bits(y, np.stack(slices, axis))
        with pytest.raises(ValueError, match=f"1 elements; expected {count}"):
            mct_oracle.weights_symmetric(x, [1], num_bits=4, per_channel=1, channel_axis=axis)


# NVIDIA.


@pytest.mark.parametrize(
    ("name", "dtype", "highest"), [("float8e4m3fn", ml_dtypes.float8_e4m3fn, 448), ("float4e2m1", ml_dtypes.float4_e2m1fn, 6)]
)
def test_codes_are_those_of_casts(name, dtype, highest):
    """Ties and saturation are those of ml_dtypes' casts of clipped numbers."""
    x = np.random.default_rng(0).integers(0, 2**32, 50_000, np.uint32).view(f32)
    x = np.concatenate([x, np.arange(-500, 500, 1 / 64, dtype=f32), np.ldexp(np.arange(-64, 64, dtype=f32), -12)])
    x = np.append(x[~np.isnan(x)], f32(-0.0))
    assert_same_bits(nvidia_oracle.cast(x, name), np.clip(x, -highest, highest).astype(dtype))


def test_fp4_codes_and_scales():
    x = np.zeros((2, 3, 32), f32)
    x[0, 0, :16] = 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -6, -0.25, -0.75, 0.25, 0.3, *[0] * 4  # ties, where the scale is 1
    x[0, 0, 16:] = 1e30  # the scale saturates, and so do the codes
    x[0, 1, :16] = 1e-30  # the scale is at its lowest
    x[0, 1, 16:] = 6 * 1.0625  # a tie of scales
    codes, scales = nvidia_oracle.fp4_dynamic_quantize(x, 1.0)
    assert codes.dtype == ml_dtypes.float4_e2m1fn
    assert codes.shape == x.shape
    assert_same_bits(scales[0, :2], np.array([[1, 448], [2**-9, 1]], ml_dtypes.float8_e4m3fn))
    assert_same_bits(scales[0, 2], np.array([1, 1], ml_dtypes.float8_e4m3fn))
    expected = np.array([1, 1, 2, 2, 4, 4, 6, -6, -0.0, -1, 0, 0.5, *[0] * 4], ml_dtypes.float4_e2m1fn)
    assert_same_bits(codes[0, 0, :16], expected)
    assert set(codes[0, 0, 16:].astype(f32)) == set(codes[0, 1, 16:].astype(f32)) == {6}
    assert set(codes[0, 1, :16].astype(f32)) == {0}


def test_fp4_weights_of_the_model():
    """The codes and scales of weights come out again when their values are quantized."""
    model = onnx.load(MODELS / "nvidia" / "nvfp4_m.onnx")
    held = {each.name: each for each in model.graph.initializer}
    names = [name for name in held if name.endswith("_f4")]
    assert len(names) == 6
    if defs.onnx_opset_version() < 23:
        pytest.skip("onnx has no float4 yet")
    for name in names:
        stem = name.removesuffix("_f4")
        stored = [held[each] for each in (name, f"{stem}_f8_scale", f"{stem}_f8_scale_f32_scale")]
        codes, scales, scale = map(numpy_helper.to_array, stored)
        blocks = nvidia_oracle.dequantize_linear(scales, scale.reshape(()))
        x = nvidia_oracle.dequantize_linear(codes, blocks, axis=-1, block_size=16)
        found, found_scales = nvidia_oracle.fp4_dynamic_quantize(x, scale)
        full = np.abs(codes.astype(f32)).reshape(*scales.shape, 16).max(-1) == 6
        assert full.mean() > 0.9
        np.testing.assert_array_equal(found_scales.view(np.uint8)[full], scales.view(np.uint8)[full])
        full = np.repeat(full, 16, -1)
        np.testing.assert_array_equal(found.view(np.uint8)[full], codes.view(np.uint8)[full])


def test_mxfp8_codes_and_exponents():
    x = np.zeros((5, 32), f32)
    x[:, 0] = 448, np.nextafter(f32(448), f32(np.inf)), 0, 449, 2.0**-130
    x[:, 1] = 2.0**-6
    x[2] = 0
    x[4, 1] = 0
    codes, exponents = nvidia_oracle.mxfp8_dynamic_quantize(x)
    # The quotient just above 1 rounds to the float32 above 1, so the exponent goes up.
    assert exponents.tolist() == [[127], [128], [0], [128], [0]]
    assert codes.dtype == ml_dtypes.float8_e4m3fn
    assert codes[:, 0].astype(f32).tolist() == [448, 224, 0, 224, 0.125]
    assert_same_bits(nvidia_oracle.mxfp8_dequantize(codes, exponents)[0], x[0])


def test_mxfp8_comes_back():
    """A value comes back within half a step of three bits, in each type, along each axis."""
    x = np.random.default_rng(0).normal(0, 10, (4, 6, 8)).astype(f32)
    for axis in (0, 1, 2, -1, -2):
        codes, exponents = nvidia_oracle.mxfp8_dynamic_quantize(x, axis=axis, block_size=2)
        assert exponents.shape == tuple(n // 2 if i == axis % 3 else n for i, n in enumerate(x.shape))
        for output_dtype, dtype in ((1, f32), (10, np.float16), (16, ml_dtypes.bfloat16)):
            y = nvidia_oracle.mxfp8_dequantize(codes, exponents, axis=axis, block_size=2, output_dtype=output_dtype)
            assert y.dtype == dtype
            np.testing.assert_allclose(y.astype(f32), x, rtol=2**-4, atol=0.01)


def test_axes_of_fp4():
    x = np.random.default_rng(0).normal(0, 10, (4, 6, 8)).astype(f32)
    for axis in (0, 1, -1):
        codes, scales = nvidia_oracle.fp4_dynamic_quantize(x, 0.01, axis=axis, block_size=2)
        moved, moved_scales = nvidia_oracle.fp4_dynamic_quantize(np.moveaxis(x, axis, -1), 0.01, block_size=2)
        assert_same_bits(np.moveaxis(codes, axis, -1), moved)
        assert_same_bits(np.moveaxis(scales, axis, -1), moved_scales)


def test_blocks_must_be_whole():
    x = np.zeros((3, 40), f32)
    with pytest.raises(ValueError, match="has length 40; expected a multiple of block_size 16"):
        nvidia_oracle.fp4_dynamic_quantize(x, 1)
    with pytest.raises(ValueError, match="has length 40; expected a multiple of block_size 32"):
        nvidia_oracle.mxfp8_dynamic_quantize(x)
    with pytest.raises(ValueError, match="has length 3; expected a multiple of block_size 2"):
        nvidia_oracle.mxfp8_dequantize(x.astype(ml_dtypes.float8_e4m3fn), np.zeros((1, 40), np.uint8), axis=0, block_size=2)
