"""Direct calls against the oracle, and the arrays that calls accept."""

import array
import inspect
import tracemalloc

import numpy as np
import onnx_models
import oracle
import pytest
import samples

from quark_numba import dequantize, quantize, quantize_dequantize

every_type = pytest.mark.parametrize("name", oracle.TYPES)


@pytest.mark.parametrize("name", ["int8", "float6e2m3"])
@pytest.mark.parametrize("with_zero_point", [True, False], ids=["zero_point", "no_zero_point"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7,), 0), ((5, 33), 0), ((5, 33), 1), ((5, 33), -1), ((2, 3, 5, 7), 1), ((2, 3, 5, 7), -2), ((2, 3, 5, 7), 3)]
    + [((300, 400), 0), ((300, 400), 1), ((2, 70000), 0), ((1, 5), 0), ((5, 1), 0)],
    ids=str,
)
@pytest.mark.by_default(4)
def test_per_axis(name, shape, axis, with_zero_point):
    rng = np.random.default_rng(5)
    length = shape[axis]
    scale = rng.uniform(0.01, 2, length).astype(np.float32)
    zero_point = np.resize(np.array(samples.zero_points(name)), length) if with_zero_point else None
    x = rng.normal(0, 100, shape).astype(np.float32)
    x.flat[: len(samples.SPECIAL)] = samples.SPECIAL[: x.size]

    along = [v if v is None else oracle.along(v, axis, len(shape)) for v in (scale, zero_point)]
    y = quantize(x, scale, zero_point, axis=axis, dtype=name)
    oracle.assert_same_bits(y, oracle.quantize(x, *along, name))
    codes = np.resize(samples.codes(name), shape)
    oracle.assert_same_bits(dequantize(codes, scale, zero_point, axis=axis), oracle.dequantize(codes, *along, name))


@pytest.mark.parametrize("name", ["int8", "bfloat16"])
@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-50, -1e-300, 5e-324, 1e-45, -0.5, float("inf"), float("nan")])
def test_any_number_is_a_scale(scale, name):
    """Every scale follows IEEE 754, and one that float32 rounds to 0 is 0. It is the same as a number, in a list and in an
    array."""
    x = np.concatenate([np.array(samples.SPECIAL, np.float32), np.float32([0, -0.0, 1, -1, 300])])
    codes, zero = samples.codes(name), np.zeros((), oracle.dtype(name))
    with np.errstate(under="ignore"):
        number = np.float32(scale)
    expected = oracle.quantize(x, number, zero, name), oracle.dequantize(codes, number, zero, name)
    for given in (scale, number, np.array(number)):
        oracle.assert_same_bits(quantize(x, given, dtype=name), expected[0])
        oracle.assert_same_bits(dequantize(codes, given), expected[1])
        oracle.assert_same_bits(quantize_dequantize(x, given, dtype=name), dequantize(expected[0], given))
    oracle.assert_same_bits(quantize(np.stack([x, x]), [scale, 1], axis=0, dtype=name)[0], expected[0])


@pytest.mark.slow
def test_output_type():
    x = np.array([1.0, 300.0], np.float32)
    assert quantize(x, 1.0, dtype="u2").dtype == np.uint16
    assert quantize(x, [1.0], array.array("b", [-3])).dtype == np.int8
    assert quantize(x, 1.0).dtype == np.uint8
    assert quantize(x, 1.0, np.int16(3)).dtype == np.int16
    assert quantize(x, 1.0, 3, dtype="int16").tolist() == [4, 303]
    assert quantize(x, 1.0, 3).tolist() == [4, 255]
    assert quantize(x, 1.0, 0.5, dtype="float4e2m1").tolist() == [1.5, 6]
    assert quantize(x, 1.0, [-1], dtype="int2").tolist() == [0, 1]


def spellings(name):
    """Return the ways to name an element type in an argument."""
    dtype = oracle.dtype(name)
    return [name, onnx_models.number(name), dtype, dtype.type, dtype.newbyteorder(">")]


@every_type
@pytest.mark.by_default(1)
def test_spellings_of_the_output_of_quantize(name):
    for spelling in spellings(name):
        assert quantize(np.ones(3, np.float32), 1.0, dtype=spelling).dtype == oracle.dtype(name)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_output_of_dequantize(name):
    """The output has the type of the scale, unless output_dtype is given."""
    codes = np.array([1, -2], np.int8)
    assert dequantize(codes, np.ones((), oracle.dtype(name))).dtype == oracle.dtype(name)
    for spelling in spellings(name):
        for scale in (np.float32(1), np.ones((), oracle.dtype("float8e8m0"))):
            y = dequantize(codes, scale, output_dtype=spelling)
            assert y.dtype == oracle.dtype(name)
            assert y.tolist() == [1, -2]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.by_default(1)
def test_spellings_of_precision(name):
    x, scale = np.float32([1.0, 3.0, 1 + 2.0**-9]), np.float32(0.7)
    for spelling in spellings(name):
        y = quantize(x, scale, dtype="float16", precision=spelling)
        oracle.assert_same_bits(y, oracle.quantize(x, scale, None, "float16", precision=name))


@pytest.mark.parametrize("saturate", [True, False, 1, 0, np.True_, np.False_], ids=repr)
@pytest.mark.by_default(1)
def test_spellings_of_saturate(saturate):
    y = quantize(np.array([448, 464, 464.1, -np.inf], np.float32), 1.0, dtype="float8e4m3fn", saturate=saturate)
    np.testing.assert_array_equal(y.astype(np.float32), [448, 448, 448, -448] if saturate else [448, 448, np.nan, np.nan])


ARRAYS = {
    "contiguous": lambda x: x,
    "fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0),
    "reversed": lambda x: x[::-1, :, ::-1],
    "strided": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "list": lambda x: x.tolist(),
}


@pytest.mark.parametrize("layout", ARRAYS)
@pytest.mark.parametrize("scale_shape", [(), (1,), (1, 1), (6,)], ids=str)
def test_layouts(layout, scale_shape):
    x = ARRAYS[layout](np.random.default_rng(6).normal(0, 50, (4, 6, 10)).astype(np.float32))
    scale = np.resize(np.array([0.5, 0.25, 1, 2, 0.75, 3], np.float32), scale_shape)
    zero_point = np.resize(np.arange(-3, 3, dtype=np.int8), scale_shape)
    along = [oracle.along(v, 1, 3) if v.size > 1 else v.reshape(()) for v in (scale, zero_point)]
    values = np.asarray(x, np.float32)
    expected = oracle.quantize(values, *along, "int8")
    y = quantize(x, scale, zero_point)
    oracle.assert_same_bits(np.ascontiguousarray(y), expected)

    out = np.full((8, 6, 10), 77, np.int8)[::2]
    assert quantize(x, scale, zero_point, out=out) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(out.base[1::2], 77)

    codes = y if layout == "list" else ARRAYS[layout](expected)
    expected = oracle.dequantize(np.asarray(codes).astype(np.int8), *along, "int8")
    oracle.assert_same_bits(np.ascontiguousarray(dequantize(codes, scale, zero_point)), expected)


@pytest.mark.parametrize("layout", [layout for layout in ARRAYS if layout != "list"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("block_size", [1, 3])
def test_layouts_of_blocks(layout, axis, block_size):
    """Scales and zero points have the same layout as x."""
    arrange = ARRAYS[layout]
    rng = np.random.default_rng(13)
    x_shape, scale_shape = (4, 6, 10), [4, 6, 10]
    scale_shape[axis] = -(-x_shape[axis] // block_size)
    x = arrange(rng.normal(0, 50, x_shape).astype(np.float32))
    scale = arrange(rng.uniform(0.1, 4, scale_shape).astype(np.float32))
    zero_point = arrange(rng.integers(-8, 8, scale_shape).astype(np.int8))
    native = [np.ascontiguousarray(a, a.dtype.newbyteorder("=")) for a in (x, scale, zero_point)]
    spread = [oracle.spread(v, axis, block_size, x_shape) for v in native[1:]]
    y = quantize(x, scale, zero_point, axis=axis, block_size=block_size)
    expected = oracle.quantize(native[0], *spread, "int8")
    oracle.assert_same_bits(np.ascontiguousarray(y), expected)
    z = dequantize(arrange(expected), scale, zero_point, axis=axis, block_size=block_size)
    expected = oracle.dequantize(np.ascontiguousarray(arrange(expected)), *spread, "int8")
    oracle.assert_same_bits(np.ascontiguousarray(z), expected)

    out = np.full((8, 6, 10), 77, np.int8)[::2]
    assert quantize(x, scale, zero_point, axis=axis, block_size=block_size, out=out) is out
    np.testing.assert_array_equal(out, y)
    np.testing.assert_array_equal(out.base[1::2], 77)


@pytest.mark.parametrize("length", range(14))
@pytest.mark.parametrize("blocks", range(16))
@pytest.mark.by_default(20)
def test_inferred_block_size(length, blocks):
    """The block size is inferred if exactly one fits. Sizes beyond the length count as the length: they give a single block."""
    x, scale = np.linspace(-9, 9, 2 * length).astype(np.float32).reshape(2, length), np.full((2, blocks), 0.5, np.float32)
    scale += np.arange(blocks)
    fits = [size for size in range(1, max(2, length + 1)) if -(-length // size) == blocks]
    if len(fits) == 1:
        y = quantize(x, scale, np.zeros(scale.shape, np.int8))
        oracle.assert_same_bits(y, oracle.quantize(x, oracle.spread(scale, 1, fits[0], x.shape), None, "int8"))
        oracle.assert_same_bits(dequantize(y, scale), dequantize(y, scale, block_size=fits[0]))
    else:
        message = "block_size is 0, and several would fit" if fits else "block_size is 0; expected one"
        with pytest.raises(ValueError, match=message):
            quantize(x, scale)
    for size in fits:
        y = quantize(x, scale, dtype="int8", block_size=size)
        oracle.assert_same_bits(y, oracle.quantize(x, oracle.spread(scale, 1, size, x.shape), None, "int8"))


@pytest.mark.parametrize("block_size", [5, 6, 1000, 2**31, 2**62, 2**63 - 1, 2**64])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_beyond_the_axis(block_size, axis):
    x = np.linspace(-9, 9, 25).astype(np.float32).reshape(5, 5)
    scale = np.linspace(0.1, 1, 5).astype(np.float32)
    scale = np.expand_dims(scale, axis)
    y = quantize(x, scale, axis=axis, block_size=block_size, dtype="int8")
    oracle.assert_same_bits(y, oracle.quantize(x, scale, None, "int8"))
    z = dequantize(y, scale, axis=axis, block_size=block_size)
    oracle.assert_same_bits(z, oracle.dequantize(y, scale, None, "int8"))


@pytest.mark.parametrize(
    ("x_shape", "scale_shape", "axis", "block_size"),
    [((1,), (1,), 0, 1), ((1,), (1,), 0, 9), ((4,), (2,), 0, 2), ((5,), (2,), 0, 4), ((1, 1), (1, 1), 1, 3), ((0,), (0,), 0, 4)]
    + [((3, 0), (3, 0), 1, 2), ((0, 3), (0, 2), 1, 2), ((0, 3), (0, 3), 0, 2), ((2, 0, 3), (2, 0, 2), 2, 2)]
    + [((0, 0), (0, 0), 0, 1)],
    ids=str,
)
def test_small_blocks(x_shape, scale_shape, axis, block_size):
    x, scale = np.full(x_shape, 2.6, np.float32), np.full(scale_shape, 0.5, np.float32)
    zero_point = np.ones(scale_shape, oracle.dtype("int4"))
    y = quantize(x, scale, zero_point, axis=axis, block_size=block_size)
    oracle.assert_same_bits(y, np.full(x_shape, 6, oracle.dtype("int4")))
    z = dequantize(y, scale, zero_point, axis=axis, block_size=block_size)
    oracle.assert_same_bits(z, np.full(x_shape, 2.5, np.float32))


@pytest.mark.parametrize("scale_shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("x_shape", [(), (6,), (2, 3)], ids=str)
def test_axis_and_block_size_mean_nothing_per_tensor(x_shape, scale_shape):
    if x_shape == (6,) and scale_shape == (1,):
        scale_shape = ()  # shape (1,) could be one block
    x, scale = np.full(x_shape, 2.6, np.float32), np.full(scale_shape, 0.5, np.float32)
    y = quantize(x, scale, axis=17, block_size=5 * len(x_shape))
    oracle.assert_same_bits(y, np.full(x_shape, 5, np.uint8))
    oracle.assert_same_bits(dequantize(y, scale, axis=-17, block_size=5 * len(x_shape)), np.full(x_shape, 2.5, np.float32))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_memory_order_is_kept(axis):
    x = np.asfortranarray(np.random.default_rng(12).normal(0, 50, (3, 4, 5)).astype(np.float32))
    scale = np.linspace(0.5, 2, x.shape[axis]).astype(np.float32)
    expected = oracle.quantize(x, oracle.along(scale, axis, 3), None, "uint8")
    for out in (None, np.empty(x.shape, np.uint8, order="F"), np.empty(x.shape, np.uint8)):
        y = quantize(x, scale, axis=axis, out=out)
        np.testing.assert_array_equal(y, expected)
        assert y.flags.f_contiguous if out is None else y is out


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_of_ndarray():
    x = np.matrix([[1, 2], [3, 4]], np.float32)
    out = np.matrix(np.zeros((2, 2), np.uint8))
    assert quantize(x, 1.0, out=out) is out
    assert out.tolist() == [[1, 2], [3, 4]]


def test_python_numbers_and_what_numpy_makes_of_them():
    assert quantize(np.float64(3), np.float64(0.5), np.int64(1)).tolist() == 7
    assert quantize(range(3), 0.5).tolist() == [0, 2, 4]
    assert dequantize([1, -2], 0.5).tolist() == [0.5, -1]
    assert dequantize(range(3), 0.5, np.uint8(1)).tolist() == [-0.5, 0, 0.5]
    assert dequantize(np.int64(3), 0.5, 1).tolist() == 1


@pytest.mark.slow
def test_other_names_of_types():
    x = np.linspace(-9, 9, 64, dtype=np.float32)
    for other, name in (("fp8_e4m3", "float8e4m3fn"), ("fp4_e2m1", "float4e2m1"), ("float8_e5m2", "float8e5m2")):
        oracle.assert_same_bits(quantize(x, 1.0, dtype=other), quantize(x, 1.0, dtype=name))
        expected = quantize_dequantize(x, 1.0, dtype=name)
        oracle.assert_same_bits(quantize_dequantize(x, 1.0, dtype=other), expected)


@every_type
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (1, 1, 1)], ids=str)
@pytest.mark.by_default(4)
def test_small_shapes(name, shape):
    x = np.full(shape, 2.5, np.float32)
    y = quantize(x, np.float32(1), dtype=name)
    oracle.assert_same_bits(y, oracle.quantize(x, np.float32(1), None, name))
    z = dequantize(y, np.float32(1))
    assert z.shape == shape
    assert z.dtype == np.float32
    if len(shape) == 2:
        scale = np.ones(shape[1], np.float32)
        assert quantize(x, scale, dtype=name).shape == dequantize(y, scale).shape == shape


def test_read_only():
    x = np.ones(5, np.float32)
    scale = np.array(1, np.float32)
    zero_point = np.zeros((), np.int8)
    for values in (x, scale, zero_point):
        values.flags.writeable = False
    codes = quantize(x, scale, zero_point)
    codes.flags.writeable = False
    assert dequantize(codes, scale, zero_point).tolist() == x.tolist()


def test_out_may_overlap_the_inputs():
    memory = np.arange(9, dtype=np.float32)
    x, out = memory[1:].copy(), memory[:8].view(np.int32)
    assert quantize(memory[1:], 1.0, np.int32(0), out=out).tolist() == quantize(x, 1.0, np.int32(0)).tolist()
    scale = np.arange(1, 9, dtype=np.float32)
    expected = dequantize(np.full(8, 8, np.int32), scale.copy(), axis=0)
    assert dequantize(np.full(8, 8, np.int32), scale, axis=0, out=scale).tolist() == expected.tolist()
    zero_point = np.arange(8, dtype=np.int32)
    ones = np.ones(8, np.float32)
    expected = dequantize(np.full((2, 8), 8, np.int32), ones, zero_point.copy())
    both = np.concatenate([zero_point, np.zeros(8, np.int32)]).reshape(2, 8)
    assert dequantize(np.full((2, 8), 8, np.int32), ones, both[0], out=both.view(np.float32)).tolist() == expected.tolist()


@pytest.mark.compiled
@pytest.mark.parametrize(("order", "copies"), [("C", 0), ("F", 0), ("strided", 1)])
@pytest.mark.slow
def test_number_of_copies(order, copies):
    """Apart from the output, contiguous input costs no memory in proportion to its size, and other input costs one copy."""
    x = np.ones((1000, 1000), np.float32, order="F" if order == "F" else "C")
    if order == "strided":
        x = np.ones((1000, 2000), np.float32)[:, ::2]
    scale = np.ones(1000, np.float32)
    quantize(x, scale, dtype="int8")
    tracemalloc.start()
    y = quantize(x, scale, dtype="int8")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert abs(peak - (y.nbytes + copies * x.nbytes)) < 100_000


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize("scale_shape", [(), (64,), (64, 1024)], ids=str)
@pytest.mark.covering
@pytest.mark.slow
def test_memory(name, scale_shape):
    """A call allocates its output, and at most 1 MiB more."""
    x = np.ones((64, 1 << 16), np.float32)
    scale = np.full(scale_shape, 0.5, np.float32)
    attributes = {"axis": 1, "block_size": 64} if len(scale_shape) == 2 else {"axis": 0}
    y = quantize(x, scale, dtype=name, **attributes)
    for convert, arguments in ((quantize, {"x": x, "dtype": name}), (dequantize, {"x": y})):
        arguments |= {"scale": scale} | attributes
        convert(**arguments)
        tracemalloc.start()
        try:
            result = convert(**arguments)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert result.nbytes <= peak <= result.nbytes + (1 << 20)


def test_signatures():
    for call in (quantize, dequantize, quantize_dequantize):
        assert inspect.signature(call).return_annotation == "NDArray[Any]"
