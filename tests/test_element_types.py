"""The table against onnx, numpy and the tests' own oracle."""

import numpy as np
import onnx
import oracle
import pytest

from quark_numba.dispatch import TABLE
from quark_numba.element_types import ELEMENT_TYPES, find

rows = pytest.mark.parametrize("row", ELEMENT_TYPES, ids=lambda row: row.name)


@rows
def test_number_is_tensor_protos(row):
    name = {"float32": "FLOAT"}.get(row.name, row.name.upper())
    assert row.number == onnx.TensorProto.DataType.Value(name)


@rows
def test_find(row):
    for specification in (row.name, row.number, row.dtype, row.dtype.type, row.dtype.newbyteorder(">")):
        assert find(specification) is row


@pytest.mark.parametrize("specification", ["float64", "two", np.float64, 0, 11, 2.0, True, None, [], object()])
def test_find_nothing(specification):
    assert find(specification) is None


def test_every_quantized_type_has_an_oracle():
    assert {key.quantized.name for key in TABLE} == set(oracle.TYPES)


def test_both_directions():
    for key in TABLE:
        assert key.quantized.name == (key.y if key.operation == "quantize" else key.x).name
    assert len(TABLE) == 2 * len(oracle.TYPES)


@pytest.mark.parametrize("name", oracle.TYPES)
def test_limits(name):
    row, expected = find(name), oracle.TYPES[name]
    if isinstance(expected, oracle.Integer):
        assert (row.lowest, row.highest, row.is_integer) == (expected.lowest, expected.highest, True)
    else:
        assert (row.lowest, row.highest, row.is_integer) == (-expected.highest, expected.highest, False)
    assert row.bits == 8 * row.storage.itemsize == 8 * row.dtype.itemsize
