"""`pack` and `unpack` against the packing of bits in numpy, and against ONNX's own tensors."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import quark_numba
from quark_numba import pack, unpack
from quark_numba.element_types import ELEMENT_TYPES

PACKED = [pytest.param(row, id=row.name) for row in ELEMENT_TYPES if row.bits < 8]

# The types that this version of onnx knows.
ONNX_NUMBERS = TensorProto.DataType.values()


def codes(row, shape):
    return np.random.default_rng(5).integers(0, 2**row.bits, shape, np.uint8)


def packed_bits(elements, row):
    """Return the bits of all elements one after the other, from the lowest bit of the first byte on."""
    bits = np.unpackbits(np.ascontiguousarray(elements).reshape(-1, 1), axis=1, count=row.bits, bitorder="little")
    return np.packbits(bits, bitorder="little")


@pytest.mark.parametrize("row", PACKED)
@pytest.mark.parametrize("shape", [(), *[(n,) for n in range(10)], (3, 5), (2, 0, 3), (7, 1, 9), (100_003,)], ids=str)
def test_there_and_back(row, shape):
    array = codes(row, shape)
    packed = pack(array.view(row.dtype))
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, packed_bits(array, row))
    back = unpack(packed, shape, row.dtype)
    assert (back.dtype, back.shape) == (row.dtype, shape)
    np.testing.assert_array_equal(back.view(np.uint8), array)


@pytest.mark.parametrize("row", PACKED)
def test_any_memory_order(row):
    array = codes(row, (5, 7, 3))
    for view in (np.asfortranarray(array), array[::-1, ::2], array.T, np.broadcast_to(array[:, :1], (5, 7, 3))):
        expected = packed_bits(view, row)
        np.testing.assert_array_equal(pack(view.view(row.dtype)), expected)
        strided = np.repeat(expected, 2)[::2]
        strided.flags.writeable = False
        np.testing.assert_array_equal(unpack(strided, view.shape, row.dtype).view(np.uint8), view)


@pytest.mark.parametrize("row", PACKED)
def test_higher_bits_do_not_count(row):
    array = codes(row, (9,))
    sign_extended = array | np.uint8(0xFF << row.bits & 0xFF)
    packed = pack(sign_extended.view(row.dtype))
    np.testing.assert_array_equal(packed, packed_bits(array, row))
    packed[-1] |= 0xC0  # bits of the last byte that the 9 elements do not use
    np.testing.assert_array_equal(unpack(packed, 9, row.dtype).view(np.uint8), array)


@pytest.mark.parametrize("row", PACKED)
def test_values_are_as_ml_dtypes_stores_them(row):
    values = np.array([row.lowest, row.highest, 1]).astype(row.dtype)
    back = unpack(pack(values), 3, row.name)
    np.testing.assert_array_equal(back.view(np.uint8), values.view(np.uint8))


@pytest.mark.parametrize("specification", ["int4", 22, "tensor"], ids=str)
def test_dtypes_by_name_and_number(specification):
    packed = np.array([0xF1], np.uint8)
    if specification == "tensor":
        with pytest.raises(TypeError, match="dtype has element type tensor; expected uint4 or int4 or"):
            unpack(packed, (2,), specification)
    else:
        assert unpack(packed, [2], specification).astype(int).tolist() == [1, -1]


@pytest.mark.parametrize(
    "number", [row.number for row in ELEMENT_TYPES if row.bits < 8 and row.number in ONNX_NUMBERS], ids=str
)
def test_as_onnx_packs(number):
    tensor = helper.make_tensor("t", number, [7], [0, 1, 1, 0, 1, 0, 1])
    array = quark_numba.from_tensor_proto(tensor)
    if array.dtype == numpy_helper.to_array(tensor).dtype:  # onnx 1.19 and later use ml_dtypes
        assert numpy_helper.from_array(array).raw_data == pack(array).tobytes()
    assert array.astype(int).tolist() == [0, 1, 1, 0, 1, 0, 1]


def zeros(shape, dtype=np.uint8):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (TypeError, "array has element type int8; expected uint4 or int4 or", lambda: pack(zeros(3, np.int8))),
        (TypeError, "array has element type float64", lambda: pack([1.0])),
        (TypeError, "dtype has element type float32", lambda: unpack(zeros(3), 3, np.float32)),
        (TypeError, "packed has dtype int8; expected uint8", lambda: unpack(zeros(2, np.int8), 3, "int4")),
        (TypeError, "packed is a bytes; expected", lambda: unpack(b"ab", 3, "int4")),
        (ValueError, r"packed has shape \(1, 2\)", lambda: unpack(zeros((1, 2)), 3, "int4")),
        (ValueError, r"3 bytes; expected 2 for int4 of shape \(3,\)", lambda: unpack(zeros(3), 3, "int4")),
        (ValueError, r"shape is \(-1, 4\)", lambda: unpack(zeros(2), (-1, 4), "int4")),
        (TypeError, "shape is 1.5; expected integers", lambda: unpack(zeros(2), 1.5, "int4")),
    ],
)
def test_wrong_input(error, match, call):
    with pytest.raises(error, match=match):
        call()


def test_masks_are_not_lost():
    masked = np.ma.masked_array(np.array([0x21, 0x43], np.uint8), [0, 1])
    int4 = np.ma.masked_array(np.zeros(2, ml_dtypes.int4), [0, 1])
    for name, call in (
        ("packed", lambda: quark_numba.unpack(masked, 4, "int4")),
        ("array", lambda: quark_numba.pack(int4)),
        ("array", lambda: quark_numba.to_tensor_proto(int4)),
        ("array", lambda: quark_numba.to_tensor_proto(masked)),
    ):
        with pytest.raises(TypeError, match=f"{name} is a masked array, .*: write {name}.filled"):
            call()


def test_masks_in_dask_arrays_are_not_lost():
    da = pytest.importorskip("dask.array")
    for name, call, dtype in (
        ("packed", lambda lazy: quark_numba.unpack(lazy, 4, "int4"), np.uint8),
        ("array", quark_numba.pack, ml_dtypes.int4),
    ):
        lazy = da.ma.masked_array(da.zeros(2, dtype=dtype), [0, 1])
        with pytest.raises(TypeError, match=f"{name} is a dask array of numpy.ma.MaskedArray"):
            call(lazy)
