"""Tensor protos of every element type, against onnx's own where onnx knows the type."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quark_numba
from quark_numba.element_types import ELEMENT_TYPES, FLOAT32, FLOAT64

ROWS = [pytest.param(row, id=row.name) for row in ELEMENT_TYPES]
SHAPES = [(), (0,), (1,), (5,), (2, 0, 3), (3, 7)]

# From 1.19 on, onnx uses ml_dtypes for the types that numpy lacks.
MAKES_ML_DTYPES = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16) != np.float32


def known(row):
    return row.number in TensorProto.DataType.values() and (MAKES_ML_DTYPES or row.dtype.isbuiltin == 1)


def array_of(row, shape):
    """Return an array of random codes."""
    size = int(np.prod(shape, dtype=np.int64))
    random = np.random.default_rng(6).integers(0, 2 ** min(row.bits, 63), size, np.int64)
    return random.astype(f"u{row.dtype.itemsize}").view(row.dtype).reshape(shape)


def assert_same(actual, expected):
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(row, shape):
    array = array_of(row, shape)
    tensor = quark_numba.to_tensor_proto(array, "some name")
    assert (tensor.name, tensor.data_type, tuple(tensor.dims)) == ("some name", row.number, shape)
    back = quark_numba.from_tensor_proto(TensorProto.FromString(tensor.SerializeToString()))
    assert_same(back, array)
    assert back.flags.writeable
    if known(row):
        assert tensor == numpy_helper.from_array(array, "some name")
        assert_same(numpy_helper.to_array(tensor), array)


@pytest.mark.parametrize("row", ROWS)
def test_memory_and_byte_order(row):
    array = array_of(row, (4, 6, 3))
    for view in (np.asfortranarray(array), array[::-1, ::2], array.T, array[1, 2, 1]):
        assert_same(quark_numba.from_tensor_proto(quark_numba.to_tensor_proto(view)), np.array(view, order="C"))
    if row.dtype.isbuiltin == 1:
        swapped = array.astype(row.dtype.newbyteorder(">"))
        assert quark_numba.to_tensor_proto(swapped) == quark_numba.to_tensor_proto(array)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_in_the_field_for_the_type(row, shape):
    """The fields, such as int32_data, are those that TensorProto in onnx.proto documents for each type."""
    array = array_of(row, shape)
    tensor = TensorProto(data_type=row.number, dims=shape)
    flat = array.reshape(-1)
    if row.bits in (2, 4):
        tensor.int32_data.extend(quark_numba.pack(array).tolist())
    elif row is FLOAT32:
        tensor.float_data.extend(flat.tolist())
    elif row is FLOAT64:
        tensor.double_data.extend(flat.tolist())
    elif row.name == "uint32":
        tensor.uint64_data.extend(flat.tolist())
    else:
        tensor.int32_data.extend(flat.tolist() if row.is_integer else flat.view(f"u{row.dtype.itemsize}").tolist())
    if row in (FLOAT32, FLOAT64):  # NaN goes through Python's float, which keeps no payload
        np.testing.assert_array_equal(quark_numba.from_tensor_proto(tensor), array)
    else:
        assert_same(quark_numba.from_tensor_proto(tensor), array)
    if known(row):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), array)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name) for row in ELEMENT_TYPES if row.number in TensorProto.DataType.values()]
)
def test_what_make_tensor_makes(row):
    values = [1, 2, 1] if row.highest > 1 and row.bits > 2 else [1, 0, 1]
    if row.bits in (2, 4) and not MAKES_ML_DTYPES:
        values = values[:2]  # onnx.helper before 1.19 expects whole bytes
    tensor = helper.make_tensor("t", row.number, [len(values)], values)
    array = quark_numba.from_tensor_proto(tensor)
    assert array.dtype == row.dtype
    assert array.astype(np.float64).tolist() == values


def test_external_data(tmp_path):
    array = array_of(ELEMENT_TYPES[9], (300,))
    tensor = quark_numba.to_tensor_proto(array, "weights")
    graph = helper.make_graph([], "graph", [], [], [tensor])
    onnx.save_model(helper.make_model(graph), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    (read,) = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    before = read.SerializeToString()
    assert not read.raw_data
    assert_same(quark_numba.from_tensor_proto(read, str(tmp_path)), array)
    assert read.SerializeToString() == before


@pytest.mark.parametrize(
    "array", [np.arange(3), np.array([True, False]), np.array([1 + 2j])], ids=lambda array: str(array.dtype)
)
def test_other_types_go_through_onnx(array):
    tensor = quark_numba.to_tensor_proto(array)
    assert tensor == numpy_helper.from_array(array)
    assert_same(quark_numba.from_tensor_proto(tensor), array)


def test_wrong_input():
    with pytest.raises(TypeError, match="tensor is a ndarray; expected"):
        quark_numba.from_tensor_proto(np.zeros(3))
    masked = np.ma.masked_array([1.0, 2.0], [0, 1])
    for array in (masked, type("Variable", (), {"__array__": lambda *_, **__: masked})()):
        with pytest.raises(TypeError, match="array is a masked array"):
            quark_numba.to_tensor_proto(array)
    segment = TensorProto.Segment(begin=0, end=1)
    for message, fields in (
        (r"'t' has 12 bytes; expected 16 for dims \(4,\)", {"data_type": 1, "dims": [4], "raw_data": bytes(12)}),
        (r"'t' has 3 bytes; expected 2 for dims \(4,\)", {"data_type": 22, "dims": [4], "raw_data": b"abc"}),
        (r"'t' has 1 elements; expected 2 for dims \(2,\)", {"data_type": 2, "dims": [2], "int32_data": [3]}),
        (r"'t' has dims \(-2, -2\); expected no negative dimension", {"data_type": 2, "dims": [-2, -2], "raw_data": b"1234"}),
        ("'t' has elements that uint8 lacks", {"data_type": 2, "dims": [1], "int32_data": [300]}),
        ("'t' has elements that uint32 lacks", {"data_type": 12, "dims": [1], "uint64_data": [2**64 - 1]}),
        ("'t' is a segment", {"data_type": 2, "dims": [1], "raw_data": b"1", "segment": segment}),
        ("'' has 3 bytes; expected 2", {"name": "", "data_type": 22, "dims": [4], "raw_data": b"abc"}),
    ):
        with pytest.raises(ValueError, match=f"tensor {message}"):
            quark_numba.from_tensor_proto(TensorProto(**({"name": "t"} | fields)))
