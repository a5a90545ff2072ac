"""The tables of types and operators against onnx, numpy and the oracle of the tests."""

import numpy as np
import onnx
import oracle
import pytest

from quark_numba.element_types import ELEMENT_TYPES, find
from quark_numba.linear.dispatch import TABLE
from quark_numba.linear.versions import VERSIONS

rows = pytest.mark.parametrize("row", ELEMENT_TYPES, ids=lambda row: row.name)

# On AArch64, numpy warns about codes of float16 that are signalling NaNs.
signalling = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")


@rows
def test_number_is_tensor_protos(row):
    name = {"float32": "FLOAT", "float64": "DOUBLE"}.get(row.name, row.name.upper())
    if not hasattr(onnx.TensorProto, name):
        pytest.skip("onnx is older than the type")
    assert row.number == onnx.TensorProto.DataType.Value(name)


@rows
def test_find(row):
    for specification in (row.name, row.number, row.dtype, row.dtype.type, row.dtype.newbyteorder(">")):
        assert find(specification) is row


@pytest.mark.parametrize("specification", ["int64", "two", np.int64, 0, 7, 99, 2.0, True, None, [], object()])
def test_find_nothing(specification):
    assert find(specification) is None


def test_every_type_has_an_oracle():
    assert {row.name for row in ELEMENT_TYPES} == {*oracle.TYPES, *oracle.OTHER_DTYPES}
    assert {key.quantized.name for key in TABLE} == set(oracle.TYPES)


def test_every_operator_has_kernels():
    """The kernels of all operations have the same quantized types."""
    for operation in ("quantize", "dequantize", "quantize_dequantize"):
        table = [key for key in TABLE if key.operation == operation]
        assert {key.quantized.name for key in table} == set(oracle.TYPES)
        for version in VERSIONS:
            if version.operation == operation:
                assert {key.x for key in table} >= set(version.x)
                assert {key.y for key in table} >= set(version.y)


def test_extended_types():
    for version in VERSIONS:
        if version.domain in ("com.amd.quark", "com.vai.quantize"):
            assert {row.name for row in version.quantized} == set(oracle.EXTENDED)


@signalling
@pytest.mark.parametrize("name", oracle.TYPES)
def test_limits(name):
    row, expected = find(name), oracle.TYPES[name]
    if isinstance(expected, oracle.Integer):
        assert (row.lowest, row.highest, row.is_integer) == (expected.lowest, expected.highest, True)
    else:
        assert (row.lowest, row.highest, row.is_integer) == (-expected.highest, expected.highest, False)
        assert row.has_negative_zero == expected.has_negative_zero
        assert row.nan == expected.nan
    assert row.dtype == oracle.dtype(name)
    assert row.bits == expected.bits
    assert row.storage.itemsize == row.dtype.itemsize == (expected.bits + 7) // 8


@signalling
@pytest.mark.parametrize("name", [name for name, row in oracle.TYPES.items() if not isinstance(row, oracle.Integer)])
def test_values_from_fields(name):
    """The sign, exponent and mantissa of a code and the bias give the value in ml_dtypes, for all finite values."""
    row = find(name)
    assert 1 + row.exponent_bits + row.mantissa_bits == row.bits
    for code, value in enumerate(row.code_values.tolist()):
        mantissa = code % 2**row.mantissa_bits
        exponent = (code >> row.mantissa_bits) % 2**row.exponent_bits
        fraction = mantissa / 2**row.mantissa_bits + (exponent > 0)
        magnitude = fraction * 2.0 ** (max(exponent, 1) - row.bias)
        if np.isfinite(value):
            assert value == (-magnitude if code >> (row.bits - 1) else magnitude)
