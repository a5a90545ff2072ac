"""Nodes of sessions select a kernel and the numbers of their state by their types and attributes. Nothing is compiled, and ONNX
Runtime is not needed."""

import numpy as np
import processes
import pytest
from required_attributes import PROGRAM, REQUIRED

from quark_numba.catalog import OPERATORS
from quark_numba.element_types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32
from quark_numba.ort.nodes import context
from quark_numba.ort.operators import node_of, table_of
from quark_numba.region.key import parse

BLOCKS = """region (float x0) => (float y) {
  v0 = com.amd.quark.MXQuantizeDequantize <axis: int = -2, element_dtype: string = "fp4_e2m1"> (x0)
  y = Relu (v0)
}"""


def overloads(operator):
    return list(operator.overloads(lambda element_type: True))


def select(operator, overload, **attributes):
    node = node_of(operator.family)
    return node, node.select(operator, overload, operator.values(REQUIRED | attributes))


def find(name, *input_types):
    """Return the newest version of an operator, and its first overload with these types."""
    operator = next(each for domain in OPERATORS.domains for each in OPERATORS.newest(domain) if each.name == name)
    return operator, next(each for each in overloads(operator) if each.inputs[: len(input_types)] == input_types)


@pytest.mark.parametrize("operator", [*OPERATORS], ids=lambda each: f"{each.full_name}-{each.since_version}")
def test_every_overload_selects_a_kernel_and_numbers_of_its_state(operator):
    own = {name for name, *_ in context.STATE}
    assert overloads(operator)
    for overload in map(operator.with_code_types, overloads(operator)):
        given = {"output_dtype": overload.outputs[0].number} if operator.takes_type else {}
        node, (key, numbers) = select(operator, overload, **given)
        table = table_of(operator.family)
        assert key in table or hasattr(table, "__missing__")
        assert not own & set(numbers)
        assert repr(select(operator, overload, **given)[1]) == repr(context.Selection(key, numbers))  # a number may be NaN
        state = np.zeros((), node.STATE)
        context.fill(state, numbers, {})
        for name, value in numbers.items():
            set_to = tuple(state[name][: len(value)]) if isinstance(value, tuple) else state[name]
            np.testing.assert_array_equal(set_to, np.asarray(value, np.asarray(set_to).dtype), name)


@pytest.mark.parametrize(
    ("name", "types", "attributes", "of_key", "numbers"),
    [
        ("ExtendedQuantizeLinear", (), {}, {"precision": FLOAT32, "saturate": True}, {"axis": 1, "block_size": 0}),
        ("QuantizeLinear", (FLOAT32, FLOAT16), {"block_size": 4}, {"precision": FLOAT16}, {"axis": 1, "block_size": 4}),
        ("QuantizeLinear", (FLOAT16, FLOAT16), {"precision": FLOAT32.number}, {"precision": FLOAT32}, {"scale_itemsize": 4}),
        ("QuantizeLinear", (INT32, INT32), {"axis": -1}, {"precision": FLOAT64}, {"axis": -1, "scale_itemsize": 8}),
        (
            "BFPQuantizeDequantize",
            (BFLOAT16,),
            {"bfp_method": "to_bfp_prime", "bit_width": 13, "axis": 2},
            {"x": BFLOAT16, "is_microexponent": True},
            {"axis": 2, "block": 8, "sub_block": 2, "max_shift": 1, "highest": 15},
        ),
        ("ExtendedInstanceNormalization", (), {"epsilon": 0.25}, {"name": "float32"}, {"epsilon": 0.25}),
        (
            "Region",
            (),
            {},
            {"name": parse(PROGRAM).name},
            {"count": 4, "streams": 3, "itemsizes": (4, 0, 4, 4), "group_size": 0},
        ),
        ("Region", (), {}, {}, {"block": 0, "lanes": 0}),
        ("Region", (), {"program": BLOCKS}, {}, {"count": 1, "block": 32, "group_size": 2, "axis": -2}),
    ],
)
def test_attributes(name, types, attributes, of_key, numbers):
    _, (key, found) = select(*find(name, *types), **attributes)
    assert {field: getattr(key, field) for field in of_key} == of_key
    assert {field: found[field] for field in numbers} == numbers


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("QuantizeLinear", {"block_size": -1}, "block_size is -1; expected a positive integer, or 0"),
        ("QuantizeLinear", {"output_dtype": 99}, "output_dtype is 99; expected 2, as y is uint8"),
        ("QuantizeLinear", {"precision": 99}, r"precision is 99; expected 0 or 1 \(float32\) .* for a scale of float32"),
        ("MXFixNeuron", {"block_size": 0}, "block_size is 0; expected a positive integer"),
        ("BFPQuantizeDequantize", {"bit_width": 9}, "bit_width is 9; expected 10 or"),
        ("ExtendedLSTM", {"hidden_size": 0}, "hidden_size is 0; expected an integer from 1 to 268435455"),
        ("VitisLSTM", {"w_scale": -1.0}, r"w_scale is -1\.0; expected a finite, positive float32"),
        ("Region", {"program": "no program"}, "program is not in ONNX's textual syntax"),
        ("Region", {"lanes": 3}, r"lanes is 3; expected 0 or one of \(2, 4"),
        ("Region", {"channels": 5}, "channels is 5 with lanes 0; expected 0, or"),
    ],
)
def test_wrong_attributes(name, attributes, message):
    with pytest.raises(ValueError, match=message):
        select(*find(name), **attributes)


def test_no_onnxruntime():
    families = sorted({operator.family for operator in OPERATORS})
    code = "\n".join(["import quark_numba", *(f"import quark_numba.ort.nodes.{family}" for family in families)])
    assert processes.loaded(code, "onnxruntime", "onnxruntime_extensions") == []
