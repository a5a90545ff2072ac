"""Direct calls against the oracle, and what arrays may look like."""

import array
import tracemalloc

import numpy as np
import oracle
import pytest
import samples

from quark_numba import dequantize, quantize

scales = pytest.mark.parametrize("scale", samples.SCALES, ids=str)


@scales
def test_quantize_per_tensor(quantize_key, scale):
    name = quantize_key.quantized.name
    scale = np.float32(scale)
    for zero_point in samples.zero_points(name):
        x = samples.floats(name, scale, zero_point)
        oracle.assert_same_bits(quantize(x, scale, zero_point), oracle.quantize(x, scale, zero_point, name))


@scales
def test_dequantize_per_tensor(dequantize_key, scale):
    name = dequantize_key.quantized.name
    scale = np.float32(scale)
    codes = samples.codes(name)
    for zero_point in samples.zero_points(name):
        oracle.assert_same_bits(dequantize(codes, scale, zero_point), oracle.dequantize(codes, scale, zero_point, name))


@pytest.mark.parametrize("scale", [0.0, -0.0, -0.5, np.inf, np.nan, 1e-45], ids=str)
def test_odd_scales(quantize_key, scale):
    """IEEE arithmetic, whatever it gives, and then saturation."""
    name = quantize_key.quantized.name
    scale = np.float32(scale)
    for zero_point in samples.zero_points(name):
        oracle.assert_same_bits(
            quantize(samples.SPECIAL, scale, zero_point), oracle.quantize(samples.SPECIAL, scale, zero_point, name)
        )
        codes = samples.codes(name)
        oracle.assert_same_bits(dequantize(codes, scale, zero_point), oracle.dequantize(codes, scale, zero_point, name))


@pytest.mark.parametrize("with_zero_point", [True, False], ids=["zero_point", "no_zero_point"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7,), 0), ((5, 33), 0), ((5, 33), 1), ((5, 33), -1), ((2, 3, 5, 7), 1), ((2, 3, 5, 7), -2), ((2, 3, 5, 7), 3)]
    + [((300, 400), 0), ((300, 400), 1), ((2, 70000), 0), ((1, 5), 0), ((5, 1), 0)],
    ids=str,
)
def test_per_axis(quantize_key, shape, axis, with_zero_point):
    name = quantize_key.quantized.name
    rng = np.random.default_rng(5)
    length = shape[axis]
    scale = rng.uniform(0.01, 2, length).astype(np.float32)
    zero_point = np.resize(np.array(samples.zero_points(name)), length) if with_zero_point else None
    zeros = np.zeros(length, oracle.dtype(name)) if zero_point is None else zero_point
    x = rng.normal(0, 100, shape).astype(np.float32)
    x.flat[: len(samples.SPECIAL)] = samples.SPECIAL[: x.size]

    along = [oracle.along(values, axis, len(shape)) for values in (scale, zeros)]
    y = quantize(x, scale, zero_point, axis=axis, output_dtype=name)
    oracle.assert_same_bits(y, oracle.quantize(x, *along, name))
    codes = np.resize(samples.codes(name), shape)
    oracle.assert_same_bits(dequantize(codes, scale, zero_point, axis=axis), oracle.dequantize(codes, *along, name))


def test_output_type():
    x = np.array([1.0, 300.0], np.float32)
    assert quantize(x, 1.0, output_dtype="u2").dtype == np.uint16
    assert quantize(x, [1.0], array.array("b", [-3])).dtype == np.int8
    assert quantize(x, 1.0).dtype == np.uint8
    assert quantize(x, 1.0, np.int16(3)).dtype == np.int16
    assert quantize(x, 1.0, 3, output_dtype="int16").tolist() == [4, 303]
    assert quantize(x, 1.0, 3).tolist() == [4, 255]
    for output_dtype in ("bfloat16", 16, oracle.dtype("bfloat16"), oracle.TYPES["bfloat16"].dtype):
        assert quantize(x, 1.0, output_dtype=output_dtype).dtype == oracle.dtype("bfloat16")


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
    oracle.assert_same_bits(
        np.ascontiguousarray(dequantize(codes, scale, zero_point)),
        oracle.dequantize(np.asarray(codes).astype(np.int8), *along, "int8"),
    )


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_memory_order_is_kept(axis):
    x = np.asfortranarray(np.random.default_rng(12).normal(0, 50, (3, 4, 5)).astype(np.float32))
    scale = np.linspace(0.5, 2, x.shape[axis]).astype(np.float32)
    expected = oracle.quantize(x, oracle.along(scale, axis, 3), 0, "uint8")
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
    assert quantize(np.ma.array([1, 2], np.float32), 1.0).tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (1, 1, 1)], ids=str)
def test_small_shapes(quantize_key, shape):
    name = quantize_key.quantized.name
    x = np.full(shape, 2.5, np.float32)
    y = quantize(x, np.float32(1), output_dtype=name)
    oracle.assert_same_bits(y, oracle.quantize(x, np.float32(1), np.zeros((), y.dtype), name))
    z = dequantize(y, np.float32(1))
    assert z.shape == shape
    assert z.dtype == np.float32
    if len(shape) == 2:
        scale = np.ones(shape[1], np.float32)
        assert quantize(x, scale, output_dtype=name).shape == dequantize(y, scale).shape == shape


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


@pytest.mark.parametrize(("order", "copies"), [("C", 0), ("F", 0), ("strided", 1)])
def test_number_of_copies(order, copies):
    """Beyond the output, contiguous input costs no memory in proportion to its size, other input one copy."""
    x = np.ones((1000, 1000), np.float32, order="F" if order == "F" else "C")
    if order == "strided":
        x = np.ones((1000, 2000), np.float32)[:, ::2]
    scale = np.ones(1000, np.float32)
    quantize(x, scale, output_dtype="int8")
    tracemalloc.start()
    y = quantize(x, scale, output_dtype="int8")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert abs(peak - (y.nbytes + copies * x.nbytes)) < 100_000


def test_threads_do_not_change_results(quantize_key):
    """One slice, or many on several threads."""
    name = quantize_key.quantized.name
    x = np.random.default_rng(7).normal(0, 100, 200_003).astype(np.float32)
    y = quantize(x, 0.37, output_dtype=name)
    parts = [quantize(part, 0.37, output_dtype=name) for part in np.array_split(x, 50)]
    np.testing.assert_array_equal(y.view(np.uint8), np.concatenate(parts).view(np.uint8))
