"""Calls on dask arrays are lazy. For any chunks they give the bits of the call on the whole array."""

import functools
import pickle
import re
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest
import samples
from block_samples import values
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from marks import sizes
from processes import loaded

import quark_numba
from quark_numba.block.formats import MX_ELEMENT_TYPES
from quark_numba.block.key import X_TYPES
from quark_numba.element_types import ELEMENT_TYPES
from quark_numba.linear.versions import types

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")
xr = pytest.importorskip("xarray")

PACKED = [row.name for row in ELEMENT_TYPES if row.bits < 8]

examples_of = functools.partial(
    settings,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
    derandomize=True,
)


class Call(NamedTuple):
    """A call of a function. `arrays` holds the arguments that may be dask arrays, x first, or a single tuple of arrays. `named`
    holds the other arguments. x has blocks of size `block` along `axis`."""

    function: Any
    arrays: list[Any]
    named: dict[str, Any]
    axis: int = 0
    block: int = 1


def refuse(*_, **__):
    raise AssertionError("something was computed")


@st.composite
def chunks(draw, shape):
    """Draw chunks of any sizes, including 0."""
    found = []
    for length in shape:
        ends = sorted(draw(st.lists(st.integers(0, length), max_size=3)))
        found.append(tuple(np.diff([0, *ends, length]).tolist()))
    return tuple(found)


@st.composite
def lazy(draw, array):
    return da.from_array(array, chunks=draw(chunks(array.shape)))


shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)


@st.composite
def linear_calls(draw, operation):
    x_names = ["float32"] if operation == "quantize_dequantize" else [row.name for row in types("quantize", "x")]
    name = draw(st.sampled_from([row.name for row in types(operation, "quantized")]))
    shape = draw(shapes)
    x = values(shape, "float32", draw(st.integers(0, 99)))
    with np.errstate(all="ignore"):
        if operation == "dequantize":
            x = np.resize(samples.codes(name), shape)
        else:
            x = x.astype(oracle.dtype(draw(st.sampled_from(x_names))))
    granularity = draw(st.sampled_from(["tensor", "axis", "block"])) if x.ndim else "tensor"
    axis, block, of_scale = 0, 1, draw(st.sampled_from([(), (1,)]))
    if granularity != "tensor":
        axis = draw(st.integers(-x.ndim, x.ndim - 1))
        of_scale = (shape[axis],)
    named = {"axis": axis}
    if granularity == "block":
        block = draw(st.integers(1, shape[axis] + 2))
        of_scale = tuple(-(-n // block) if i == axis % x.ndim else n for i, n in enumerate(shape))
        named["block_size"] = block
    scale = np.resize(np.geomspace(2.0**-9, 2.0**9, 7, dtype=np.float32), of_scale)
    zero_point = np.resize(np.array(samples.zero_points(name)), of_scale)
    if operation == "dequantize" or draw(st.booleans()):
        return Call(getattr(quark_numba, operation), [x, scale, zero_point], named, axis, block)
    return Call(getattr(quark_numba, operation), [x, scale], named | {"dtype": name}, axis, block)


@st.composite
def block_calls(draw, function):
    """Draw a call of a function of block formats. Blocks to dequantize come from the function that quantizes."""
    shape = draw(shapes)
    x = values(shape, draw(st.sampled_from([row.name for row in X_TYPES])), draw(st.integers(0, 99)))
    axis = draw(st.integers(-x.ndim, x.ndim - 1)) if x.ndim else 0
    block = draw(st.sampled_from([2, 4, 6, 32]))
    named = {"axis": axis, "block_size": block}
    kind, _, step = function.partition("_")
    if kind == "mx":
        named["element_dtype"] = draw(st.sampled_from(list(MX_ELEMENT_TYPES)))
    else:
        named["bfp_method"] = draw(st.sampled_from(["to_bfp", "to_bfp_prime"]))
        named["bit_width"] = draw(st.sampled_from([10, 16, 19]))
    arrays = [x]
    if step == "dequantize":
        codes = getattr(quark_numba, f"{kind}_quantize")(x, **named)
        arrays = list(codes) if kind == "mx" else [codes]
        named.pop("element_dtype", None)
    return Call(getattr(quark_numba, function), arrays, named, axis, block)


@st.composite
def packings(draw, function):
    name = draw(st.sampled_from(PACKED))
    bits = oracle.dtype(name) and next(row.bits for row in ELEMENT_TYPES if row.name == name)
    array = np.resize(samples.codes(name), draw(npst.array_shapes(min_dims=1, max_dims=1, min_side=0, max_side=40)))
    if function == "pack":
        return Call(quark_numba.pack, [array], {}, 0, {2: 4, 4: 2, 6: 4}[bits])
    packed = quark_numba.pack(array)
    return Call(quark_numba.unpack, [packed], {"shape": array.shape, "dtype": name}, 0, {2: 1, 4: 1, 6: 3}[bits])


@st.composite
def fake_quantize_calls(draw, function):
    """Draw a call with scales that broadcast to x: to any of its axes, or with fewer dimensions."""
    shape = draw(shapes)
    x = values(shape, "float32", draw(st.integers(0, 99)))
    of_scale = [draw(st.sampled_from([1, length])) for length in shape][draw(st.integers(0, len(shape))) :]
    scale = np.resize(np.geomspace(2.0**-9, 2.0**9, 7, dtype=np.float32), of_scale)
    named = {"rounding_mode": draw(st.sampled_from(["ROUND", "FLOOR"]))}
    if function == "minifloat_quantize_dequantize":
        named |= {"exponent_bits": 4, "mantissa_bits": 3, "exponent_bias": 7}
        return Call(getattr(quark_numba, function), [x, scale], named)
    zero_point = np.resize(np.float32([0, 3, -0.5]), draw(st.sampled_from([(), of_scale])))
    return Call(getattr(quark_numba, function), [x, scale, zero_point, np.float32(5)], named)


CALLS = {name: fake_quantize_calls(name) for name in ("fake_quantize", "minifloat_quantize_dequantize")}
CALLS |= {name: linear_calls(name) for name in ("quantize", "dequantize", "quantize_dequantize")}
for kind in ("mx", "bfp"):
    CALLS |= {name: block_calls(name) for name in (f"{kind}_quantize_dequantize", f"{kind}_quantize", f"{kind}_dequantize")}
CALLS |= {name: packings(name) for name in ("pack", "unpack")}


@pytest.fixture(scope="module")
def cluster():
    """A client of a cluster of two processes."""
    # Under Wine, psutil cannot be loaded, and the error is not a ModuleNotFoundError.
    distributed = pytest.importorskip("distributed", exc_type=ImportError)
    options = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(**options) as started, distributed.Client(started, set_as_default=False) as client:
        yield client


def rechunked(array, expression):
    """Return what an expression of a message makes of an array, such as "x.rechunk({0: 8})"."""
    flat, axis, size = re.fullmatch(r"\w+(\.reshape\(-1\))?\.rechunk\({(\d+): (\d+)}\)", expression).groups()
    return (array.reshape(-1) if flat else array).rechunk({int(axis): int(size)})


def check(call, data, get):
    """Check that the call is lazy and gives the bits, types and shapes of the call on numpy arrays. If a chunk ends within a
    block, the call is refused, and what the message says to write gives chunks that are accepted."""
    if isinstance(call.arrays[0], tuple):
        whole = call.function(call.arrays[0], **call.named)
        blocks = [data.draw(lazy(each)) for each in call.arrays[0]]
        given, x = [type(call.arrays[0])(*blocks)], blocks[0]
    else:
        whole = call.function(*call.arrays, **call.named)
        given = [data.draw(lazy(call.arrays[0]))]
        given += [data.draw(st.sampled_from([each, data.draw(lazy(each))])) for each in call.arrays[1:]]
        x = given[0]
    ends = list(accumulate(x.chunks[call.axis])) if x.ndim else []
    wrong = [number for number, end in enumerate(ends) if end % call.block and end < ends[-1]]
    with dask.config.set(scheduler=refuse):
        if wrong:
            axis = call.axis % x.ndim
            message = f"chunk {wrong[0]} of .* along axis {axis} ends .* block of {call.block};.*: write "
            with pytest.raises(ValueError, match=message) as error:
                call.function(*given, **call.named)
            changed = rechunked(x, str(error.value).partition(": write ")[2])
            given[0] = given[0]._replace(mantissas=changed) if isinstance(given[0], tuple) else changed
        made = call.function(*given, **call.named)
    event("refused" if wrong else "as it is cut")
    pairs = [(made, whole)] if isinstance(whole, np.ndarray) else list(zip(made, whole, strict=True))
    computed = get([each for each, _ in pairs])
    for (each, expected), found in zip(pairs, computed, strict=True):
        assert isinstance(each, da.Array)
        assert (each.shape, each.dtype) == (expected.shape, expected.dtype)
        assert (type(each._meta), each._meta.dtype) == (np.ndarray, expected.dtype)
        oracle.assert_same_bits(np.asarray(found), expected)


def chunk_by_chunk(arrays):
    """Return the computed arrays, and check the shape of each chunk. Everything runs on this thread."""
    for array in arrays:
        for index in np.ndindex(array.numblocks):
            chunk = array.blocks[index] if index else array  # an array without dimensions has no blocks to index
            chunk = chunk.compute(scheduler="synchronous")
            assert chunk.shape == tuple(sizes[i] for sizes, i in zip(array.chunks, index, strict=True))
    return dask.compute(*arrays, scheduler="synchronous")


def on_threads(arrays):
    return dask.compute(*arrays, scheduler="threads", num_workers=4)


@pytest.fixture(params=["chunk by chunk", "threads", pytest.param("processes", marks=pytest.mark.compiled)])
def compute(request):
    if request.param == "processes":
        client = request.getfixturevalue("cluster")
        return lambda arrays: client.gather(client.compute(arrays))
    return {"chunk by chunk": chunk_by_chunk, "threads": on_threads}[request.param]


@sizes("examples", 2, slow=10, exhaustive=100)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.covering
@pytest.mark.by_default(1, slow=15)
def test_any_chunks_give_the_bits_of_the_whole(name, examples, compute):
    @examples_of(max_examples=examples)
    @given(CALLS[name], st.data())
    def check_it(call, data):
        with np.errstate(all="ignore"):
            check(call, data, compute)

    check_it()


def test_arrays_of_several_dimensions_are_packed_in_c_order():
    codes = np.resize(samples.codes("float6e2m3"), (8, 5, 6))
    lazy = da.from_array(codes, chunks=(3, 2, 4))
    with pytest.raises(ValueError, match=r"chunk 1 of array\.reshape\(-1\) along axis 0 ends .* within a block of 4;") as error:
        quark_numba.pack(lazy)
    packed = quark_numba.pack(rechunked(lazy, str(error.value).partition(": write ")[2]))
    assert packed.compute().tobytes() == quark_numba.pack(codes).tobytes()
    back = quark_numba.unpack(packed, codes.shape, "float6e2m3")
    assert back.shape == codes.shape
    oracle.assert_same_bits(back.compute(), codes)


def test_empty_chunks_are_packed():
    codes = np.resize(samples.codes("int4"), (2, 24))
    for rows in ((0, 2), (2, 0), (1, 0, 1)):
        packed = quark_numba.pack(da.from_array(codes, chunks=(rows, (0, 24))))
        assert packed.compute().tobytes() == quark_numba.pack(codes).tobytes()
    for shape, chunks in (((0, 24), ((0, 0), 24)), ((4, 0, 8), 2), ((8, 0), (1, 1)), ((0,), 3)):
        packed = quark_numba.pack(da.from_array(np.empty(shape, codes.dtype), chunks=chunks))
        assert (packed.dtype, packed.compute().shape) == (np.uint8, (0,))


def test_only_a_single_element_in_all_passes_through():
    """1.3 is not a value of the int8 format. It comes back unchanged only if it is the only element of the whole array."""
    x = np.array([[1.3], [1.3]], np.float32)
    cut = quark_numba.mx_quantize_dequantize(da.from_array(x, chunks=1), axis=1).compute()
    assert cut.tolist() == quark_numba.mx_quantize_dequantize(x, axis=1).tolist() != x.tolist()
    alone = da.from_array(x[:1], chunks=((0, 1), (1, 0)))
    assert quark_numba.mx_quantize_dequantize(alone).compute().tolist() == x[:1].tolist()


def test_unknown_sizes():
    """Chunks of unknown size are refused only along an axis whose size the call needs."""
    x = np.arange(-12, 12, dtype=np.float32).reshape(8, 3)
    unknown = da.from_array(x, chunks=(3, 3))
    unknown = unknown[unknown[:, 0] > -7]
    expected = x[x[:, 0] > -7]
    assert np.isnan(unknown.shape[0])
    for call in (
        lambda y: quark_numba.quantize(y, 0.1),
        lambda y: quark_numba.quantize(y, [0.1, 0.2, 0.3], [1, 2, 3], axis=1),
        lambda y: quark_numba.mx_quantize_dequantize(y, axis=1),
        lambda y: quark_numba.mx_quantize(y, axis=1, block_size=2)[1],
    ):
        oracle.assert_same_bits(call(unknown).compute(), call(expected))
    unclear = "x has chunks of unknown size along axis 0; expected known sizes: write x.compute_chunk_sizes"
    for call in (
        lambda y: quark_numba.quantize(y, [0.1] * 6, axis=0),
        lambda y: quark_numba.quantize(y, np.ones((6, 1), np.float32), axis=1, block_size=3),
        lambda y: quark_numba.mx_quantize_dequantize(y, axis=0),
        lambda y: quark_numba.bfp_quantize(y, axis=0),
        lambda y: quark_numba.mx_quantize_dequantize(y[:, :1], axis=1),
    ):
        with pytest.raises(ValueError, match=unclear):
            call(unknown)
    with pytest.raises(ValueError, match="scale has chunks of unknown size along axis 0"):
        quark_numba.quantize(x, unknown[:, 0], axis=0)
    codes, _ = quark_numba.mx_quantize(expected)
    _, scales = quark_numba.mx_quantize(unknown)
    with pytest.raises(ValueError, match="scales has chunks of unknown size"):
        quark_numba.mx_dequantize(codes, scales)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: quark_numba.quantize(x, [1.0, 2.0], axis=0), ValueError, "scale has shape"),
        (lambda x: quark_numba.quantize(x, 1.0, axis="a"), TypeError, "axis is 'a'"),
        (lambda x: quark_numba.quantize(x, 1.0, out=np.empty((4, 6), np.uint8)), TypeError, "out is for numpy arrays"),
        (lambda x: quark_numba.mx_quantize_dequantize(x, out=x), TypeError, "out is for numpy arrays"),
        (lambda x: quark_numba.quantize(x.astype(np.float64), 1.0), TypeError, "x has element type float64"),
        (lambda x: quark_numba.quantize(da.ma.masked_less(x, 0), 1.0), TypeError, "dask array of numpy.ma"),
        (lambda x: quark_numba.mx_quantize(x, axis=2), ValueError, "axis is 2"),
        (
            lambda x: quark_numba.extended_instance_normalization(x, x, x),
            TypeError,
            r"x is a dask array; .* write x.compute\(\)",
        ),
        (lambda x: quark_numba.unpack(x, (4, 6), "int4"), TypeError, "packed has dtype float32"),
        (lambda x: quark_numba.quantize(x.to_delayed().ravel()[0], 1.0), TypeError, r"x is a dask.delayed.Delayed; .*compute"),
    ],
)
def test_what_is_wrong_is_refused_while_the_graph_is_built(call, error, message):
    x = da.zeros((4, 6), chunks=2, dtype=np.float32)
    with dask.config.set(scheduler=refuse), pytest.raises(error, match=message):
        call(x)


def test_lazy_zero_points_are_checked_when_they_are_there():
    x, zeros = np.arange(6, dtype=np.int32), da.zeros(6, chunks=2, dtype=np.int32)
    made = quark_numba.dequantize(x, np.ones(6, np.float32), zeros, axis=0, opset=21)
    assert made.compute().tolist() == x.tolist()
    with pytest.raises(ValueError, match="zero_point is not zero"):
        quark_numba.dequantize(x, np.ones(6, np.float32), zeros + 1, axis=0, opset=21).compute()


def test_dask_is_imported_by_nobody_else():
    code = "import numpy, quark_numba; quark_numba.quantize(numpy.ones(3, 'f'), 0.5); quark_numba.mx_quantize([1.0])"
    assert loaded(code, "dask", "distributed", "xarray") == []


def test_rows_of_the_table_are_themselves_in_another_process():
    assert all(pickle.loads(pickle.dumps(row)) is row for row in ELEMENT_TYPES)


class TestLabels:
    x = values((4, 9, 6), "float32")

    def array(self, data):
        coordinates = {"row": [3, 1, 4, 1], "place": ("column", np.arange(9)), "unit": "m"}
        return xr.DataArray(data, coordinates, ["row", "column", "depth"], "heights", {"from": "a map"})

    @pytest.mark.parametrize("chunked", [False, True])
    def test_names_coordinates_and_attributes_stay(self, chunked):
        x = self.array(da.from_array(self.x, chunks=(2, 4, 6)) if chunked else self.x)
        scale = np.linspace(0.1, 1, 9, dtype=np.float32)
        for axis in ("column", 1, -2):
            y = quark_numba.quantize(x, scale, axis=axis)
            assert isinstance(y.data, da.Array) == chunked
            xr.testing.assert_identical(y, x.copy(data=quark_numba.quantize(self.x, scale, axis=1)))
        back = quark_numba.dequantize(y, xr.DataArray(scale, dims="column"), axis="column")
        assert (back.name, back.attrs, back.dims) == ("heights", {"from": "a map"}, x.dims)
        bits = quark_numba.mx_quantize_dequantize(x=x, axis="depth")
        oracle.assert_same_bits(bits.values, quark_numba.mx_quantize_dequantize(self.x, axis=2))

    def test_fake_quantization_keeps_them_too(self):
        x = self.array(self.x)
        scale = np.linspace(0.1, 1, 9, dtype=np.float32).reshape(9, 1)
        y = quark_numba.fake_quantize(x, scale, bit_width=4)
        xr.testing.assert_identical(y, x.copy(data=quark_numba.fake_quantize(self.x, scale, bit_width=4)))
        y = quark_numba.minifloat_quantize_dequantize(x, exponent_bits=3, mantissa_bits=2, exponent_bias=3)
        assert (y.name, y.attrs, y.dims) == (x.name, x.attrs, x.dims)

    @pytest.mark.slow
    def test_blocks_have_a_dimension_of_their_own(self):
        x = self.array(self.x)
        codes, scales = quark_numba.mx_quantize(x, axis="column", block_size=4)
        assert codes.dims == x.dims
        assert (scales.dims, scales.shape) == (("row", "column_block", "depth"), (4, 3, 6))
        assert set(scales.coords) == {"row", "unit"}
        blocks = quark_numba.bfp_quantize(x, axis="depth", bfp_method="to_bfp_prime", block_size=4)
        assert [each.dims[2] for each in blocks] == ["depth", "depth_block", "depth_sub_block"]
        assert xr.Dataset(blocks._asdict()).sizes["depth_sub_block"] == 3
        values = quark_numba.bfp_dequantize(blocks, axis="depth", bfp_method="to_bfp_prime", block_size=4)
        expected = quark_numba.bfp_quantize(self.x, axis=2, bfp_method="to_bfp_prime", block_size=4)
        expected = quark_numba.bfp_dequantize(expected, axis=2, bfp_method="to_bfp_prime", block_size=4)
        xr.testing.assert_identical(values, x.copy(data=expected))
        back = quark_numba.mx_dequantize(codes, scales, axis="column", block_size=4)
        assert back.attrs == x.attrs

    @pytest.mark.parametrize("call", ["nvfp4_quantize", "mx_quantize", "bfp_quantize"])
    @pytest.mark.by_default(1)
    def test_an_omitted_axis_is_1(self, call):
        quantize = getattr(quark_numba, call)
        codes, scales, *_ = quantize(self.array(self.x), block_size=3)
        expected = quantize(self.x, block_size=3, axis=1)
        assert codes.dims == ("row", "column", "depth")
        assert scales.dims == ("row", "column_block", "depth")
        oracle.assert_same_bits(codes.values, expected[0])
        oracle.assert_same_bits(scales.values, expected[1])

    def test_wrong_dimensions(self):
        x = self.array(self.x)
        with pytest.raises(ValueError, match=r"axis is 'height'; expected .* row, column, depth"):
            quark_numba.quantize(x, 1.0, axis="height")
        scale = xr.DataArray(np.ones(4, np.float32), dims="row")
        with pytest.raises(ValueError, match="axis is 1; expected 'row'"):
            quark_numba.quantize(x, scale)
        assert isinstance(quark_numba.quantize(self.x, scale, axis=0), np.ndarray)

    def test_packed(self):
        codes = xr.DataArray(np.resize(samples.codes("int4"), (4, 3)))
        assert quark_numba.pack(codes).tobytes() == quark_numba.pack(codes.values).tobytes()


class Elsewhere:
    """An array on a device, with the attributes that its library gives it."""

    dtype, shape, device = np.dtype(np.float32), (3,), "cuda:1"

    def __dlpack_device__(self):
        return 2, 1

    def __array__(self, *_, **__):
        raise AssertionError("it was copied")


class OnlyDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **named):
        return self.array.__dlpack__(**named)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class TestOtherArrays:
    def test_of_a_device(self):
        with pytest.raises(TypeError, match=r"x is a .*Elsewhere on the device cuda:1; expected .* write x.cpu\(\)"):
            quark_numba.quantize(Elsewhere(), 1.0)
        with pytest.raises(TypeError, match=r"scale is a .*Elsewhere"):
            quark_numba.quantize([1.0], Elsewhere())

    def test_of_a_library_that_refuses(self):
        class Refusing:
            def __array__(self, *_, **__):
                raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

        with pytest.raises(TypeError, match=r"x is a .*Refusing, which numpy cannot convert to an array: .*\.get\(\)"):
            quark_numba.quantize(Refusing(), 1.0)

    def test_of_dlpack_alone(self):
        x = np.arange(5, dtype=np.float32)
        oracle.assert_same_bits(quark_numba.quantize(OnlyDLPack(x), 0.5), quark_numba.quantize(x, 0.5))

    @pytest.mark.slow
    def test_kept_in_pieces(self):
        zarr = pytest.importorskip("zarr")
        array = zarr.array(np.ones((4, 4), np.float32), chunks=(2, 2))
        with pytest.raises(TypeError, match=r"x is a zarr.*Array, which is kept in pieces; .* write x\[...\]"):
            quark_numba.quantize(array, 1.0)

    @pytest.mark.slow
    def test_torch(self):
        torch = pytest.importorskip("torch")
        x = torch.linspace(-3, 3, 12).reshape(3, 4)
        oracle.assert_same_bits(quark_numba.quantize(x.T, 0.1), quark_numba.quantize(x.numpy().T, 0.1))
        with pytest.raises(TypeError, match=r"x is a torch.Tensor, which numpy cannot convert to an array: .*detach"):
            quark_numba.quantize(x.requires_grad_(), 0.1)
        with pytest.raises(TypeError, match=r"x is a torch.Tensor on the device meta"):
            quark_numba.quantize(torch.empty(3, device="meta"), 0.1)
