"""Properties of calls with any arguments, on arguments that hypothesis generates."""

import numpy as np
import oracle
import pytest
import samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from marks import sizes
from onnx_models import one_node, run, session

from quark_numba import dequantize, quantize
from quark_numba.catalog import OPERATORS
from quark_numba.linear.versions import types

# The first call with a type compiles its kernel.
settings.register_profile("quark_numba", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("quark_numba")

QUANTIZED = [row.name for row in types("quantize", "quantized")]
INTEGERS = [name for name in QUANTIZED if isinstance(oracle.TYPES[name], oracle.Integer)]
FULL = ["float32", "float16", "bfloat16"]

floats = st.floats(width=32) | st.sampled_from(samples.SPECIAL.tolist())
positive = st.floats(2.0**-100, 2.0**100, width=32)


@st.composite
def strided(draw, dtype, elements, **sizes):
    """Draw an array of any strides: a view of a larger one, reversed, transposed or spread out."""
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, **sizes))
    steps = [draw(st.sampled_from([1, 2, -1, -3])) for _ in shape]
    whole = tuple(size * abs(step) for size, step in zip(shape, steps, strict=True))
    array = draw(npst.arrays(np.float32, whole, elements=elements, fill=st.just(1.0)))
    with np.errstate(all="ignore"):
        array = array.astype(oracle.dtype(dtype))[tuple(slice(None, None, step) for step in steps)]
    return array.transpose(draw(st.permutations(range(array.ndim))))


@st.composite
def calls(draw, names=QUANTIZED, full=FULL):
    """Draw x, scale, zero point and type, the attributes, and the scale and zero point of each element."""
    x = draw(strided(draw(st.sampled_from(full)), floats, max_side=9))
    name = draw(st.sampled_from(names))
    granularity = draw(st.sampled_from(["tensor", "axis", "block"])) if x.ndim else "tensor"
    axis, block_size, shape = 0, 0, ()
    if granularity != "tensor":
        axis = draw(st.integers(-x.ndim, x.ndim - 1))
        shape = (x.shape[axis],)
    if granularity == "block":
        block_size = draw(st.integers(1, x.shape[axis] + 2))
        blocks = list(x.shape)
        blocks[axis] = -(-x.shape[axis] // block_size)
        shape = tuple(blocks)
    scale = draw(npst.arrays(np.float32, shape, elements=floats)).astype(oracle.dtype(draw(st.sampled_from(full[::2]))))
    choices = samples.zero_points(name)
    picks = draw(npst.arrays(np.int64, shape, elements=st.integers(0, len(choices) - 1)))
    zero_point = np.array(choices)[picks] if draw(st.booleans()) else None
    spread = [v if v is None else oracle.spread(v, axis, block_size, x.shape) for v in (scale, zero_point)]
    return x, scale, zero_point, name, {"axis": axis, "block_size": block_size}, spread


# Each type needs a kernel. By default, these are kernels that other tests need, too.
more_examples = sizes("examples", 20, slow=200, exhaustive=1000)


@more_examples
def test_quantize_is_the_oracles(examples):
    few = {"names": ["int8", "bfloat16"], "full": ["float32"]} if examples == 20 else {}

    @settings(max_examples=examples)
    @given(calls(**few))
    def check(call):
        x, scale, zero_point, name, attributes, spread = call
        before = x.copy()
        with np.errstate(all="ignore"):
            y = quantize(x, scale, zero_point, dtype=name, **attributes)
            oracle.assert_same_bits(y, oracle.quantize(x, *spread, name))
        assert x.tobytes() == before.tobytes()

    check()


@more_examples
@pytest.mark.slow
def test_dequantize_is_the_oracles(examples):
    @settings(max_examples=examples)
    @given(calls(), st.sampled_from(FULL), st.integers(0, 2**32 - 1))
    def check(call, output, seed):
        x, scale, zero_point, name, attributes, spread = call
        codes = np.random.default_rng(seed).choice(samples.codes(name), x.shape)
        with np.errstate(all="ignore"):
            y = dequantize(codes, scale, zero_point, output_dtype=output, **attributes)
            oracle.assert_same_bits(y, oracle.dequantize(codes, *spread, name, output))

    check()


@pytest.mark.parametrize("name", INTEGERS)
@settings(max_examples=20)
@given(strided("float32", st.floats(-(2.0**20), 2.0**20, width=32), max_side=9), positive, st.data())
def test_what_comes_back_is_within_half_a_step(name, x, scale, data):
    """This holds for values in range, apart from the rounding of the quotient and the product."""
    row = oracle.TYPES[name]
    zero_point = data.draw(st.sampled_from(samples.zero_points(name)))
    lowest, highest = (np.float64(scale) * (bound - int(zero_point)) for bound in (row.lowest, row.highest))
    y = dequantize(quantize(x, np.float32(scale), zero_point), np.float32(scale), zero_point)
    inside = (x >= lowest) & (x <= highest)
    steps = np.abs(y.astype(np.float64) - x) / scale
    assert np.all(steps[inside] <= 0.5 + np.abs(x[inside].astype(np.float64) / scale) * 2.0**-22)


@pytest.mark.parametrize("name", QUANTIZED)
@given(
    npst.arrays(np.float32, npst.array_shapes(max_dims=1, max_side=50), elements=st.floats(allow_nan=False, width=32)), positive
)
@pytest.mark.by_default(3)
def test_quantize_is_monotonic(name, x, scale):
    with np.errstate(all="ignore"):
        y = oracle.values(quantize(np.sort(x), np.float32(scale), dtype=name), name)
    assert np.all(y[1:] >= y[:-1])


@pytest.mark.slow
@given(calls())
def test_per_axis_is_per_tensor_slice_by_slice(call):
    x, scale, zero_point, name, attributes, _ = call
    if scale.ndim != 1 or attributes["block_size"]:
        return
    axis = attributes["axis"]
    with np.errstate(all="ignore"):
        y = np.moveaxis(quantize(x, scale, zero_point, dtype=name, **attributes), axis, 0)
        for i, piece in enumerate(np.moveaxis(x, axis, 0)):
            of_slice = None if zero_point is None else zero_point[i]
            oracle.assert_same_bits(y[i], quantize(piece, scale[i], of_slice, dtype=name))


EXTENDED = list(OPERATORS.find("com.amd.quark", "ExtendedQuantizeLinear").formats)


@pytest.mark.slow
@pytest.mark.compiled
@sizes("examples", 20, slow=200)
def test_sessions_are_direct_calls(examples):
    @settings(max_examples=examples)
    @given(calls())
    def check(call):
        x, scale, zero_point, name, attributes, _ = call
        if name not in EXTENDED or attributes["block_size"]:
            return
        x, scale = x.astype(np.float32), scale.astype(np.float32)
        zero_point = np.zeros(scale.shape, oracle.dtype(name)) if zero_point is None else zero_point
        node = session(one_node("quantize", name, attributes={"axis": attributes["axis"]}))
        y = quantize(x, scale, zero_point, **attributes)
        oracle.assert_same_bits(run(node, x=x, scale=scale, zero_point=zero_point), y)
        node = session(one_node("dequantize", name, attributes={"axis": attributes["axis"]}))
        z = dequantize(y, scale, zero_point, **attributes)
        oracle.assert_same_bits(run(node, x=y, scale=scale, zero_point=zero_point), z)

    check()
