"""Calls with an `opset` accept exactly the arguments that the schemas of the installed onnx allow. The package's table agrees
with these schemas."""

import itertools

import numpy as np
import onnx
import oracle
import pytest
import samples

from quark_numba import dequantize, quantize
from quark_numba.element_types import ELEMENT_TYPES
from quark_numba.linear.dispatch import TABLE
from quark_numba.linear.plans import Plan
from quark_numba.linear.versions import LATEST_OPSET, VERSIONS, version_of_opset

OPERATORS = {"quantize": "QuantizeLinear", "dequantize": "DequantizeLinear"}
CALLS = {"quantize": quantize, "dequantize": dequantize}

# An older onnx does not know the newest versions.
OPSETS = range(10, min(LATEST_OPSET, onnx.defs.onnx_opset_version()) + 1)
opsets = pytest.mark.parametrize("opset", OPSETS)
operations = pytest.mark.parametrize("operation", OPERATORS)


def schema(operation, opset):
    return onnx.defs.get_schema(OPERATORS[operation], opset, "")


def type_names(of_schema, parameter):
    """Return the element types that an input or output of a schema may have."""
    constraints = {c.type_param_str: c.allowed_type_strs for c in of_schema.type_constraints}
    strings = constraints.get(parameter.type_str, [parameter.type_str])
    names = [string.removeprefix("tensor(").removesuffix(")") for string in strings]
    return {"float32" if name == "float" else name for name in names}


@opsets
@operations
def test_table_is_the_schemas(operation, opset):
    version, expected = version_of_opset(operation, opset), schema(operation, opset)
    assert version.name == expected.name
    assert version.since_version == expected.since_version
    assert {row.name for row in version.x} == type_names(expected, expected.inputs[0])
    assert {row.name for row in version.scale} == type_names(expected, expected.inputs[1])
    assert {row.name for row in version.quantized} == type_names(expected, expected.inputs[2])
    assert {row.name for row in version.y} == type_names(expected, expected.outputs[0])
    assert version.scale_as_x == (expected.inputs[0].type_str == expected.inputs[1].type_str)
    assert set(version.attributes) == set(expected.attributes)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < LATEST_OPSET, reason="onnx is older than the newest version")
@operations
def test_table_has_every_version(operation):
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == OPERATORS[operation] and not s.domain]
    in_table = [v.since_version for v in VERSIONS if v.operation == operation and not v.domain]
    assert in_table == sorted(s.since_version for s in schemas if s.since_version <= LATEST_OPSET)


@pytest.fixture
def no_kernels(monkeypatch):
    """Calls that check arguments and select a kernel, but neither compile nor run it."""

    def convert(plan, *arguments):
        assert plan.kernel is TABLE[plan.key]

    monkeypatch.setattr(Plan, "convert", convert)


NAMES = [row.name for row in ELEMENT_TYPES]
ARRAYS = {row.name: np.zeros((), row.dtype) for row in ELEMENT_TYPES}


def accepted(call, *arguments, **attributes):
    try:
        call(*arguments, **attributes)
    except (TypeError, ValueError):
        return False
    return True


@pytest.mark.usefixtures("no_kernels")
@opsets
@pytest.mark.by_default(1)
def test_types_of_quantize(opset):
    """Calls accept exactly the combinations of types in the schema. The zero point or dtype gives the output type."""
    expected = schema("quantize", opset)
    x_names, scale_names, y_names = (type_names(expected, parameter) for parameter in expected.inputs)
    alike = expected.inputs[0].type_str == expected.inputs[1].type_str
    has_output_dtype = "output_dtype" in expected.attributes
    for x, scale, y in itertools.product(NAMES, NAMES, NAMES):
        allowed = x in x_names and scale in scale_names and y in y_names and (x == scale or not alike)
        arguments = ARRAYS[x], ARRAYS[scale]
        assert accepted(quantize, *arguments, ARRAYS[y], opset=opset) == allowed, (x, scale, y)
        assert accepted(quantize, *arguments, dtype=y, opset=opset) == (allowed and has_output_dtype), (x, scale, y)


@pytest.mark.usefixtures("no_kernels")
@opsets
@pytest.mark.by_default(1)
def test_types_of_dequantize(opset):
    """Calls accept exactly the combinations of types in the schema. The scale or output_dtype gives the output type."""
    expected = schema("dequantize", opset)
    x_names, scale_names, _ = (type_names(expected, parameter) for parameter in expected.inputs)
    (y_names,) = (type_names(expected, parameter) for parameter in expected.outputs)
    has_output_dtype = "output_dtype" in expected.attributes
    for x, scale in itertools.product(NAMES, NAMES):
        allowed = x in x_names and scale in scale_names
        arguments = ARRAYS[x], ARRAYS[scale]
        assert accepted(dequantize, *arguments, opset=opset) == (allowed and scale in y_names), (x, scale)
        for y in NAMES:
            output_dtype = allowed and has_output_dtype and y in y_names
            assert accepted(dequantize, *arguments, output_dtype=y, opset=opset) == output_dtype, (x, scale, y)
            zero_point = allowed and scale in y_names and x == y
            assert accepted(dequantize, *arguments, ARRAYS[y], opset=opset) == zero_point, (x, scale, y)


# For every attribute a value that is not the default, and the shapes of x and scale that it needs.
ATTRIBUTES = {
    "axis": (0, (2, 3), ()),
    "saturate": (False, (2, 3), ()),
    "block_size": (2, (2, 4), (2, 2)),
    "output_dtype": (None, (2, 3), ()),
    "precision": ("float16", (2, 3), ()),
}


@pytest.mark.usefixtures("no_kernels")
@opsets
@operations
@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_attributes(operation, opset, attribute):
    value, x_shape, scale_shape = ATTRIBUTES[attribute]
    call = CALLS[operation]
    if operation == "dequantize" and attribute in ("saturate", "precision"):
        pytest.skip("no version of dequantize has it")
    argument = attribute
    if attribute == "output_dtype":
        argument, value = ("dtype", "int8") if operation == "quantize" else (attribute, "float32")
    x = np.ones(x_shape, np.float32 if operation == "quantize" else np.int8)
    scale = np.ones(scale_shape, np.float32)
    if attribute in schema(operation, opset).attributes:
        call(x, scale, opset=opset, **{argument: value})
    else:
        name = f"{OPERATORS[operation]}-{schema(operation, opset).since_version}"
        with pytest.raises(ValueError, match=f"{argument} is {value!r}; {name} has no attribute {attribute}"):
            call(x, scale, opset=opset, **{argument: value})
    assert set(schema(operation, opset).attributes) <= set(ATTRIBUTES)


@pytest.mark.usefixtures("no_kernels")
@opsets
@operations
def test_attributes_left_out(operation, opset):
    """Every version accepts the values that stand for omitted attributes."""
    left_out = {"axis": 1, "block_size": 0}
    if operation == "quantize":
        quantize(np.ones(3, np.float32), np.float32(1), **left_out, dtype=None, saturate=True, precision=None, opset=opset)
    else:
        dequantize(np.ones(3, np.int8), np.float32(1), **left_out, output_dtype=None, opset=opset)


@pytest.mark.usefixtures("no_kernels")
@opsets
@operations
def test_granularities(operation, opset):
    call = CALLS[operation]
    x = np.ones((2, 4), np.float32 if operation == "quantize" else np.int8)
    call(x, np.float32(1), opset=opset)
    assert accepted(call, x, np.ones(4, np.float32), opset=opset) == (opset >= 13)
    blocks = np.ones((2, 2), np.float32)
    assert accepted(call, x, blocks, block_size=2, opset=opset) == (opset >= 21)
    # With an opset, a block size is not inferred, because the node would lack the attribute.
    assert not accepted(call, x, np.ones((2, 4), np.float32), opset=opset)
    assert accepted(call, x, np.ones((2, 4), np.float32))


@pytest.mark.usefixtures("no_kernels")
@opsets
def test_int32_has_no_zero_point(opset):
    dequantize(np.int32(3), np.float32(1), np.int32(0), opset=opset)
    with pytest.raises(ValueError, match=r"zero_point is not zero; expected zeros for int32 in DequantizeLinear-\d+"):
        dequantize(np.int32(3), np.float32(1), np.int32(1), opset=opset)
    dequantize(np.int32(3), np.float32(1), np.int32(1))


@operations
def test_results_do_not_depend_on_the_opset(operation):
    x = np.linspace(-300, 300, 1000).astype(np.float32) if operation == "quantize" else samples.codes("int8")
    expected = getattr(oracle, operation)(x, np.float32(1.7), np.int8(-7), "int8")
    for opset in OPSETS:
        oracle.assert_same_bits(CALLS[operation](x, np.float32(1.7), np.int8(-7), opset=opset), expected)
