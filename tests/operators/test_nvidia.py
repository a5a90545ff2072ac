"""The operators of TensorRT, on arrays, in sessions and in onnx's evaluator, against the oracle."""

import functools

import ml_dtypes
import numpy as np
import nvidia_oracle
import onnx
import processes
import pytest
from marks import default_of
from nvidia_nodes import ORACLES, OWN, SPECIAL, expected_of, mxfp8_round_trip, nvfp4_round_trip, one_node, random_node, values
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import array_of, ort_value, session
from oracle import MX_ELEMENTS, assert_same_bits
from text_graphs import text_model

import quark_numba
from quark_numba import mx_dequantize, mx_quantize, nvfp4_dequantize, nvfp4_quantize
from quark_numba.catalog import OPERATORS
from quark_numba.element_types import find

f32 = np.float32
mxfp8_quantize = functools.partial(mx_quantize, element_dtype="fp8_e4m3", scale_rule="rceil")
BFLOAT16, FLOAT8, FLOAT4 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn


def with_shapes(made, arrays):
    """Declare the shapes of inputs and outputs."""
    for value, array in zip((*made.graph.input, *made.graph.output), arrays, strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, array.shape))
    return made


def outputs_of(made, inputs, **options):
    ran = session(made, **options)
    names = [each.name for each in made.graph.input]
    feeds = {name: ort_value(np.array(each, order="C")) for name, each in zip(names, inputs, strict=True)}
    found = ran.run_with_ort_values([each.name for each in made.graph.output], feeds)
    return [array_of(each) for each in found]


def assert_all_same(found, expected):
    for each, y in zip(found, expected, strict=True):
        assert_same_bits(each, y)


def check(name, inputs, attributes, **options):
    expected = expected_of(name, inputs, attributes)
    made = one_node(name, inputs, attributes, expected)
    if attributes.get("output_dtype", 1) != 1:  # ONNX Runtime takes a type from an attribute only where it knows a shape
        made = with_shapes(made, [*inputs, *expected])
    assert_all_same(outputs_of(made, inputs, **options), expected)
    operator = OPERATORS.find("quark_numba" if name in OWN else "trt", name)
    found = operator.call(*inputs, **operator.values(attributes))
    assert_all_same(found if isinstance(found, tuple) else (found,), expected)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "seed", [*default_of(range(20), 0, 1), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(20, 60))]
)
@pytest.mark.parametrize("name", [*ORACLES, *OWN])
@pytest.mark.slow(50)
def test_random_nodes(name, seed):
    rng = np.random.default_rng([seed, len(name)])
    for _ in range(10):
        inputs, attributes = random_node(name, rng)
        check(name, inputs, attributes)


@pytest.mark.compiled
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("name", ["TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize", *OWN])
@pytest.mark.slow
def test_large_nodes(name, threads):
    """No two threads write to the same byte, whatever the sizes of blocks and rows are."""
    rng = np.random.default_rng(0)
    cases = [
        ((300, 512), -1, 16),
        ((96, 1001), 0, 32),
        ((15 * 7, 5, 211), 0, 15),
        ((33 * 9, 333), 0, 9),
        ((201, 3 * 33), 1, 33),
    ]
    cases += [((16, 5000), 0, 16), ((2, 48, 1026), 1, 16), ((90, 2050), 0, 45)]  # in columns, among threads
    for shape, axis, block_size in [*cases, ((3, 64, 4097), 1, 64), ((1, 3000 * 27), 1, 3000)]:
        x = rng.normal(0, 10, shape).astype(f32)
        inputs = [x, f32(0.01)] if "FP4" in name else [x]
        attributes = {"axis": axis, "block_size": block_size}
        expected = expected_of(name, inputs, attributes)
        made = one_node(name, inputs, attributes, expected)
        assert_all_same(outputs_of(made, inputs, threads=threads), expected)


def test_rows_of_blocks_are_divided_among_threads():
    """The same holds along an axis other than the last: a row of blocks of packed codes is not a single piece of work, however
    long it is."""
    code = """if True:
        from quark_numba.block import units
        from quark_numba.block.formats import NVIDIA_NVFP4
        from quark_numba.block.granularity import BlockLoop
        from quark_numba.element_types import FLOAT32
        _, numbers = NVIDIA_NVFP4.format(FLOAT32, 16, has_codes=True)
        for inner in (2**20, 2**20 + 2):
            row = numbers, BlockLoop(16, inner)
            pieces, size = units.count_pieces(16 * inner, *row, 2), units.piece_size(*row, 2)
            assert pieces * size >= 16 * inner and size == units.UNIT_SIZE, (pieces, size)
    """
    ran = processes.python("-c", code, NUMBA_DISABLE_JIT="1")  # in Python, as functions of kernels
    assert ran.returncode == 0, ran.stderr


# Special values.


@pytest.mark.slow
@pytest.mark.compiled
def test_ties_and_bounds():
    """Ties of codes and of scales go to even, and both saturate."""
    x = np.zeros((6, 16), f32)
    x[0, :13] = 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, 6, -6, -0.0
    x[1] = 6 * np.linspace(1, 2, 17)[:16]  # the scale is a tie
    x[2, 0] = 6 * 448 * 1.5
    x[3, 0] = 6 * 2.0**-9 / 3
    x[4, :2] = np.inf, 1
    x[5, :2] = np.nan, 1
    check("TRT_FP4DynamicQuantize", [x, f32(1)], {})
    codes, scales = nvfp4_quantize(x)
    assert codes[0].astype(f32).tolist() == [0, 1, 1, 2, 2, 4, 4, 0, -1, -1, 6, -6, 0, 0, 0, 0]
    assert np.signbit(codes[0].astype(f32)).nonzero()[0].tolist() == [7, 8, 9, 11, 12]
    assert scales.astype(f32).reshape(-1)[[0, 2, 3, 4]].tolist() == [1, 448, 2.0**-9, 448]
    assert np.isnan(scales[5].astype(f32))
    assert set(codes[5].astype(f32)) == {6}


@pytest.mark.compiled
@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-45, 1e-38, 3e38, 2.0**-130])
@pytest.mark.slow
def test_scales_of_tensors(scale):
    """Scales of 0, Inf and NaN follow IEEE arithmetic."""
    x = np.array([[0] * 16, [1] * 16, [-np.inf] * 16, [1e-40] * 16, SPECIAL + [2.0] * 6], f32)
    for name in ("TRT_FP4DynamicQuantize", "NVFP4QuantizeDequantize"):
        check(name, [x, f32(scale)], {})


@pytest.mark.slow
@pytest.mark.compiled
def test_exponents():
    """The exponent is the least one whose scale brings the largest element to at most 448."""
    largest = f32(448 * 2.0 ** np.arange(-158, 120))
    near = [np.nextafter(largest, f32(way)) for way in (0, np.inf)]
    x = np.zeros((3 * len(largest) + 2, 32), f32)
    x[:, 3] = np.concatenate([*near, largest, f32([np.nan, 0])])
    check("TRT_MXFP8DynamicQuantize", [x], {})
    check("MXFP8QuantizeDequantize", [x], {})
    codes, scales = mxfp8_quantize(f32([448] * 32))
    assert (codes.astype(f32)[0], scales.astype(f32).tolist()) == (448, [1])
    codes, scales = mxfp8_quantize(np.nextafter(f32([448] * 32), f32(np.inf)))
    assert (codes.astype(f32)[0], scales.astype(f32).tolist()) == (224, [2])


@pytest.mark.slow
@pytest.mark.compiled
def test_every_code_and_exponent():
    codes = np.repeat(np.arange(256, dtype=np.uint8)[None], 256, 0).view(FLOAT8)
    exponents = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 8, 1)
    for output_dtype in (1, 10, 16):
        check("TRT_MXFP8DequantizeLinear", [codes, exponents], {"output_dtype": output_dtype})


# Declared types.


@pytest.mark.compiled
@pytest.mark.parametrize("has_zero_point", [True, False])
@pytest.mark.parametrize("declared", ["uint8", "float8e4m3fn"])
@pytest.mark.slow
def test_models_declare_codes_as_uint8(declared, has_zero_point):
    """Exported models say uint8 for codes of float8e4m3fn. Both give the same, and so does a dequantize node after it."""
    x = f32([[1, -2, 0.3], [400, np.nan, 1e9]])
    inputs = [x, f32(0.5), np.zeros((), FLOAT8)][: 2 + has_zero_point]
    expected = expected_of("QuantizeLinear", inputs, {})
    (found,) = outputs_of(one_node("QuantizeLinear", inputs, {}, expected, declared), inputs)
    assert found.dtype == find(declared).dtype
    assert_same_bits(found.view(FLOAT8), expected[0])
    made = text_model("""(float[] x, float s) => (float[] y) {
        q = trt.TRT_FP8QuantizeLinear (x, s)  y = trt.TRT_FP8DequantizeLinear (q, s)
    }""")
    made.graph.value_info.append(helper.make_tensor_value_info("q", find(declared).number, None))
    (y,) = outputs_of(made, inputs[:2])
    assert_same_bits(y, nvidia_oracle.dequantize(expected[0], f32(0.5)))
    del made.graph.value_info[:]
    (y,) = quark_numba.InferenceSession(made).run(None, {"x": x, "s": np.array(0.5, f32)})
    assert_same_bits(y, nvidia_oracle.dequantize(expected[0], f32(0.5)))


@pytest.mark.compiled
@pytest.mark.parametrize("declared", ["int4", "int8", "float32", "string"])
def test_codes_of_other_types_are_refused(declared):
    """A tensor of another type is refused, as it may have too little memory."""
    inputs = [np.zeros(3, f32), f32(1)]
    made = one_node("TRT_FP8QuantizeLinear", inputs, {}, [np.zeros(3, FLOAT8)], declared)
    with pytest.raises(Exception, match="y is declared as another type; expected float8e4m3fn or uint8"):
        session(made)


@pytest.mark.parametrize("name", [*ORACLES, *OWN])
@pytest.mark.by_default(1)
def test_onnxs_tools(name):
    """The schemas infer the types and shapes of all outputs, and the evaluator computes them."""
    quark_numba.register_schemas()
    inputs, attributes = random_node(name, np.random.default_rng(3))
    expected = expected_of(name, inputs, attributes)
    made = with_shapes(one_node(name, inputs, attributes, expected), [*inputs, *expected])
    onnx.checker.check_model(made, full_check=True)
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    feeds = {each.name: array for each, array in zip(made.graph.input, inputs, strict=True)}
    assert_all_same(ReferenceEvaluator(made, new_ops=quark_numba.reference_ops()).run(None, feeds), expected)
    inferred = onnx.shape_inference.infer_shapes(made).graph.output
    shapes = [[dimension.dim_value for dimension in each.type.tensor_type.shape.dim] for each in inferred]
    assert shapes == [[*y.shape] for y in expected]


# Arrays.


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [nvfp4_quantize, mxfp8_quantize])
def test_layouts(quantize):
    """Any strides, memory order and byte order give the same results."""
    x = np.random.default_rng(0).normal(0, 4, (32, 6, 64)).astype(f32)
    for axis in (0, 1, -1):
        expected = quantize(x, axis=axis)
        for view in (np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1][::-1], x.astype(">f4"), x.tolist()):
            assert_all_same(quantize(view, axis=axis), expected)


@pytest.mark.compiled
@pytest.mark.slow
def test_arrays_on_several_threads():
    x = np.random.default_rng(0).normal(0, 4, (1000, 256)).astype(f32)
    for axis in (0, 1):
        attributes = {"axis": axis, "block_size": 8}
        for name, inputs in (("NVFP4QuantizeDequantize", [x, f32(0.25)]), ("MXFP8QuantizeDequantize", [x])):
            found = OPERATORS.find("quark_numba", name).call(*inputs, **attributes)
            assert_same_bits(found, OWN[name](*inputs, **attributes))
        expected = expected_of("TRT_MXFP8DynamicQuantize", [x], attributes)
        assert [each.tobytes() for each in mxfp8_quantize(x, **attributes)] == [y.tobytes() for y in expected]


@pytest.mark.parametrize("element_dtype", MX_ELEMENTS)
@pytest.mark.parametrize("rounding_mode", [0, 1, 2])
@pytest.mark.covering
@pytest.mark.parametrize("scale_rule", ["ceil", "even", "rceil"])
@pytest.mark.slow
def test_scale_rules(element_dtype, rounding_mode, scale_rule):
    """The rules of torchao and Quark with any element type. The last blocks along an axis may be shorter."""
    for seed, (shape, axis) in enumerate([((7,), 0), ((3, 40), 1), ((40, 3), 0), ((2, 33, 5), 1), ((5, 64), -1)]):
        x = values(np.random.default_rng(seed), shape, f32)
        padding = [(0, -length % 8 if i == axis % len(shape) else 0) for i, length in enumerate(shape)]
        given = {"axis": axis, "block_size": 8, "rounding_mode": rounding_mode}
        codes, exponents = nvidia_oracle.mx(np.pad(x, padding), element_dtype, scale_rule, **given)
        found, scales = mx_quantize(x, scale_rule=scale_rule, element_dtype=element_dtype, **given)
        assert_same_bits(found, codes[tuple(map(slice, shape))])
        assert scales.tobytes() == exponents.tobytes()


@pytest.mark.parametrize("element_dtype", default_of(MX_ELEMENTS, "fp4_e2m1"))
@pytest.mark.parametrize("scale_rule", ["ceil", "even"])
@pytest.mark.slow
def test_scales_next_to_where_they_change(element_dtype, scale_rule):
    """Every exponent, with mantissas where a rule goes to the next power of two. Zeros, NaN and Inf have scales, too."""
    steps = np.uint32([0, 1, 0x400000, *(0x800000 - (1 << k) + d for k in range(13, 22) for d in (-1, 0, 1)), 0x7FFFFF])
    bits = (np.arange(256, dtype=np.uint32)[:, None] << np.uint32(23)) + steps
    x = np.pad(bits.reshape(-1, 1).view(f32), [(0, 0), (0, 3)])
    codes, exponents = nvidia_oracle.mx(x, element_dtype, scale_rule, axis=1, block_size=4)
    found, scales = mx_quantize(x, scale_rule=scale_rule, element_dtype=element_dtype, block_size=4, rounding_mode="half_even")
    assert scales.tobytes() == exponents.tobytes()
    is_number = (scales.view(np.uint8) != 255).reshape(-1)
    assert_same_bits(found[is_number], codes[is_number])


@pytest.mark.slow
def test_scale_rules_of_one_block():
    """The mantissa 1.5 of 3 and 1.75 of 3.5 in fp4_e2m1, whose values below 8 are 4 and 6."""
    for scale_rule, scales in {"floor": (0.5, 0.5), "ceil": (1, 1), "even": (0.5, 1), "rceil": (0.5, 1)}.items():
        for m, scale in zip((3, 3.5), scales, strict=True):
            found = mx_quantize(f32([m, 0.5]), element_dtype="fp4_e2m1", scale_rule=scale_rule, axis=0)[1]
            assert found.astype(f32).tolist() == [scale], scale_rule


@pytest.mark.slow
def test_blocks_of_nvfp4_that_are_shorter():
    """As in other block formats, the last block along the axis may be shorter, and one dimension is the only axis."""
    x = np.random.default_rng(0).normal(0, 4, (3, 20, 6)).astype(f32)
    for axis in (None, 1, -1):
        given = {} if axis is None else {"axis": axis}
        along = 1 if axis is None else axis
        padding = [(0, 0), (0, 12 if along == 1 else 0), (0, 10 if along == -1 else 0)]
        whole = nvidia_oracle.fp4_dynamic_quantize(np.pad(x, padding), 0.1, axis=along)
        codes, scales = nvfp4_quantize(x, 0.1, **given)
        assert_same_bits(codes, whole[0][:, :20, :6])
        assert_same_bits(scales, whole[1])
        y = nvfp4_dequantize(codes, scales, 0.1, **given)
        assert_same_bits(y, nvfp4_round_trip(np.pad(x, padding), f32(0.1), axis=along)[:, :20, :6])
    codes, scales = nvfp4_quantize(x[0, :, 0])
    assert (codes.shape, scales.shape) == ((20,), (2,))
    codes, scales = nvfp4_quantize(f32(-3))
    assert (float(codes), float(scales), codes.shape) == (-6, 0.5, ())


@pytest.mark.slow
def test_values_of_codes():
    x = np.random.default_rng(0).normal(0, 4, (6, 64)).astype(f32)
    codes, scales = nvfp4_quantize(x, 0.01)
    for output_dtype in ("float32", "float16", "bfloat16"):
        y = nvfp4_dequantize(codes, scales, 0.01, output_dtype=output_dtype)
        assert_same_bits(y, nvfp4_round_trip(x, f32(0.01), axis=-1, block_size=16).astype(find(output_dtype).dtype))
    codes, scales = mxfp8_quantize(x)
    y = mx_dequantize(codes, scales)
    assert_same_bits(y, mxfp8_round_trip(x, axis=-1, block_size=32))


@pytest.mark.slow
def test_dask():
    da = pytest.importorskip("dask.array")
    x = np.random.default_rng(0).normal(0, 4, (20, 96)).astype(f32)
    lazy = da.from_array(x, chunks=(7, 32))
    for quantize in (functools.partial(nvfp4_quantize, tensor_scale=0.01), mxfp8_quantize):
        for found, y in zip(quantize(lazy), quantize(x), strict=True):
            assert isinstance(found, da.Array)
            assert (found.dtype, found.shape) == (y.dtype, y.shape)
            assert_same_bits(found.compute(), y)
    codes, scales = nvfp4_quantize(lazy, 0.01)
    y = nvfp4_dequantize(codes, scales, 0.01)
    assert_same_bits(y.compute(), nvfp4_round_trip(x, f32(0.01), axis=-1, block_size=16))
    within = lazy.rechunk((20, 24))
    with pytest.raises(ValueError, match=r"ends at 24, within a block of 16; .*: write x\.rechunk\({1: 32}\)$"):
        nvfp4_quantize(within)
    codes, _ = nvfp4_quantize(within.rechunk({1: 32}), 0.01)
    assert_same_bits(codes.compute(), nvfp4_quantize(x, 0.01)[0])


def test_xarray():
    xr = pytest.importorskip("xarray")
    x = np.random.default_rng(0).normal(0, 4, (4, 64)).astype(f32)
    x = xr.DataArray(x, dims=("row", "column"), coords={"row": range(4)})
    codes, scales = nvfp4_quantize(x)
    assert (codes.dims, scales.dims) == (x.dims, ("row", "column_block"))
    assert codes.coords["row"].values.tolist() == scales.coords["row"].values.tolist() == [0, 1, 2, 3]
    assert_same_bits(scales.values, nvfp4_quantize(x.values)[1])


def zeros(*shape, dtype=f32):
    return np.zeros(shape, dtype)


OF_16, OF_32, OF_40 = (functools.partial(nvfp4_dequantize, zeros(length, dtype=FLOAT4)) for length in (16, 32, 40))
FOR_16, FOR_32 = zeros(1, dtype=FLOAT8), zeros(2, dtype=FLOAT8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nvfp4_quantize(zeros(3, 4), axis=2), ValueError, r"axis is 2, out of range for x of shape"),
        (lambda: mxfp8_quantize(zeros(32), block_size=0), ValueError, "block_size is 0; expected a pos"),
        (lambda: mx_quantize(zeros(32), scale_rule="ciel"), ValueError, "scale_rule is 'ciel'; expected 'floor' "),
        (lambda: nvfp4_quantize(zeros(16), f32([1, 2])), ValueError, r"tensor_scale has shape \(2,\)"),
        (lambda: nvfp4_quantize(np.zeros(16)), TypeError, "x has element type float64"),
        (lambda: nvfp4_quantize(zeros(16), block_size=0), ValueError, "block_size is 0; expected a pos"),
        (lambda: nvfp4_quantize(zeros(16), np.ones(1)), TypeError, "tensor_scale has element type"),
        (lambda: nvfp4_dequantize(zeros(16), FOR_16), TypeError, "codes has element type"),
        (lambda: OF_16(FOR_16.astype(f32)), TypeError, "scales has element type"),
        (lambda: OF_32(FOR_16), ValueError, r"scales has shape \(1,\); expected \(2,\) for codes of shape \(32,\)"),
        (lambda: OF_40(FOR_32), ValueError, r"scales has shape \(2,\); expected \(3,\) for codes of shape \(40,\)"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Errors of sessions.


FP4, MXFP8, OF_MXFP8 = "TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize", "TRT_MXFP8DequantizeLinear"
OUTPUTS = {FP4: (FLOAT4, FLOAT8), MXFP8: (FLOAT8, np.uint8)}


def check_refused(name, inputs, attributes, message, run):
    """Check that `run` of a model, and a call, are refused."""
    made = one_node(name, inputs, attributes, [zeros(0, dtype=each) for each in OUTPUTS.get(name, (f32,))])
    with pytest.raises(Exception, match=message):
        run(made)
    operator = OPERATORS.find("trt", name)
    with pytest.raises(ValueError, match=message.removeprefix(f"trt::{name}: ")):
        operator.call(*inputs, **operator.values(attributes))


A_MULTIPLE = "expected a length along axis -1 that is a multiple of block_size, 16"
SCALES_OF_TWO = [zeros(2, 3, dtype=FLOAT8), f32([1, 2])]


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "message"),
    [
        (FP4, [zeros(3, 40), f32(1)], {}, rf"x has shape \(3, 40\); {A_MULTIPLE}"),
        (FP4, [zeros(), f32(1)], {}, r"axis is -1, out of range for x of shape \(\)"),
        (FP4, [zeros(16), f32([1, 2])], {}, r"scale has shape \(2,\); expected one element"),
        (MXFP8, [zeros(32, 2)], {"axis": 2}, r"axis is 2, out of range for x of shape \(32, 2\)"),
        (OF_MXFP8, [zeros(2, 64, dtype=FLOAT8), zeros(2, 3, dtype=np.uint8)], {}, "block_size is 32; expected"),
        ("TRT_FP8DequantizeLinear", SCALES_OF_TWO, {"axis": 1}, r"x_scale has shape \(2,\); expected"),
    ],
)
@pytest.mark.by_default(1)
def test_errors_of_runs(name, inputs, attributes, message):
    check_refused(name, inputs, attributes, f"trt::{name}: {message}", lambda made: outputs_of(made, inputs))


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        (FP4, {"scale_type": 1}, r"scale_type is 1; expected 17 \(float8e4m3fn\)"),
        (MXFP8, {"output_dtype": 19}, r"output_dtype is 19; expected 17 \(float8e4m3fn\)"),
        (FP4, {"block_size": 0}, "block_size is 0; expected a positive integer"),
        (MXFP8, {"block_size": -4}, "block_size is -4; expected a positive integer"),
    ],
)
def test_wrong_attributes(name, attributes, message):
    check_refused(name, [zeros(32), f32(1)][: 2 if name == FP4 else 1], attributes, message, session)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["TRT_FP4QDQ", "TRT_INT4QuantizeLinear", "TRT_INT4DequantizeLinear"])
def test_steps_of_the_exporter_are_refused(name, tmp_path):
    """Nobody runs the operators that only the exporter's own steps need: a session names them, and so does the inventory."""
    from quark_numba.cli.inventory import quantization_nodes

    made = text_model(f"(float[] x) => (float[] y) {{ y = trt.{name} (x) }}")
    with pytest.raises(Exception, match=f"trt:{name}"):
        session(made)
    with pytest.raises(quark_numba.ModelError, match=f"trt::{name}, which cannot run: it is a step of ModelOpt's exporter"):
        quark_numba.InferenceSession(made)
    onnx.save(made, tmp_path / "m.onnx")
    (counted,) = quantization_nodes(tmp_path / "m.onnx")
    assert (counted.operator, counted.run_by) == (f"trt::{name}", "nobody")
