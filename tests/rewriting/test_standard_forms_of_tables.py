"""The standard forms of tables, in sessions without the package, against the oracles of the dialects' operators."""

import numpy as np
import pytest
from fake_quantization_nodes import Node, f32, random_node, values
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from oracle import assert_same_bits
from standard_models import LEVELS, in_standard_operators, plain_session

from quark_numba.catalog import OPERATORS
from quark_numba.rewriting.graph import Settings
from quark_numba.rewriting.optimize import rewrite_model
from quark_numba.tables import standard_form

pytestmark = pytest.mark.compiled

OF_DIALECTS = [each for each in OPERATORS if each.family == "tables" and not each.newer_name]
(MULTI_THRESHOLD,) = [each for each in OF_DIALECTS if each.name == "MultiThreshold"]
LUT = next(each for each in OF_DIALECTS if each.name != "MultiThreshold")


def multi_threshold(x, thresholds, **attributes):
    given = {"data_layout": "NCHW", "out_scale": 0.3, "out_bias": -1.7} | attributes
    return Node(MULTI_THRESHOLD.domain, MULTI_THRESHOLD.name, given, [x, thresholds])


def lut_quantizer(x, lut, threshold, *, bits=8, eps=0.01, axis=None):
    attributes = {
        "lut_values_bitwidth": bits,
        "eps": float(f32(eps)),
        "per_channel": int(axis is not None),
        "channel_axis": axis or 0,
    }
    return Node(LUT.domain, LUT.name, attributes | {"num_bits": 4, "signed": 1}, [x, lut, threshold])


def shapes(node):
    return [each.shape for each in node.inputs]


def assert_right(node, *, constants=True, levels=LEVELS):
    standard = in_standard_operators(node.model(constants=constants, shapes=shapes(node)))
    for level in levels:
        y = plain_session(standard, level=level).run(None, node.feeds(constants=constants))[0]
        assert_same_bits(y, node.expected())
    return standard


@pytest.mark.parametrize("operator", OF_DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 90), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.by_default(1)
def test_random_nodes(operator, seeds):
    for seed in seeds:
        assert_right(random_node(operator.domain, operator.name, seed))


@pytest.mark.parametrize("count", [1, standard_form._FEW, standard_form._FEW + 1, 63, 64, 255])
@pytest.mark.parametrize("rows", [1, 3])
def test_thresholds(count, rows):
    """Few thresholds are compared one by one, more are searched. They come in any order, some twice, with Inf and NaN."""
    rng = np.random.default_rng([count, rows])
    thresholds = rng.choice(values(rng, count), (rows, count))
    x = np.concatenate([rng.permuted(thresholds, axis=1).reshape(-1), values(rng, 500)])
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.concatenate([x, np.nextafter(x, f32(np.inf)), np.nextafter(x, f32(-np.inf))])
    x = np.resize(x, (2, 3, 25, 19))
    assert_right(multi_threshold(x, thresholds))
    assert_right(multi_threshold(x, thresholds, out_scale=-1.0, out_bias=0.0), levels=LEVELS[:1])


@pytest.mark.parametrize("rows", [1, 3])
def test_computed_thresholds(rows):
    """Thresholds that are inputs of the graph are compared along another dimension."""
    rng = np.random.default_rng(rows)
    x, thresholds = values(rng, (2, 3, 5, 7)), values(rng, (rows, 9))
    assert_right(multi_threshold(x, thresholds), constants=False)


def test_values_out_of_reach():
    """x is limited to the range of a code, so that values far beyond are never the nearest ones. NaN is the first value."""
    rng = np.random.default_rng(3)
    x = np.concatenate([values(rng, 500, 0.1), np.linspace(-3, 3, 3000, dtype=f32)]).reshape(-1, 1)
    x = np.broadcast_to(x, (len(x), 2)).copy()
    for bits, lut in ((3, [9, -30, 2, 0, -0.0, 1]), (1, [0]), (2, [-1.5, 0.5, 1.25]), (8, [-0.0, 0, -128, 127])):
        threshold = np.array([0.3, 2], f32)
        for eps in (0.01, -2.0, -0.3):  # the divisor may be negative, or 0
            assert_right(lut_quantizer(x, np.array(lut, f32), threshold, bits=bits, axis=1, eps=eps))


def test_computed_threshold_of_a_table():
    rng = np.random.default_rng(9)
    node = lut_quantizer(values(rng, (4, 5)), np.array([-3, 7, 1], f32), rng.uniform(1, 2, 5).astype(f32), axis=-1)
    x, lut, threshold = node.inputs
    source = node.model(constants=False, shapes=shapes(node))
    source.graph.initializer.append(numpy_helper.from_array(lut, "i1"))
    del source.graph.input[1]
    y = plain_session(in_standard_operators(source)).run(None, {"x": x, "i2": threshold})[0]
    assert_same_bits(y, node.expected())


def test_reference_evaluator():
    rng = np.random.default_rng(4)
    x = values(rng, (2, 3, 5, 7))
    for node in (
        multi_threshold(x, values(rng, (3, 7))),
        multi_threshold(x, values(rng, (1, 40))),
        lut_quantizer(x, np.array([-3, 1, 7], f32), np.array([0.5], f32)),
    ):
        standard = in_standard_operators(node.model(constants=True, shapes=shapes(node)))
        with np.errstate(over="ignore"):
            assert_same_bits(ReferenceEvaluator(standard).run(None, {"x": x})[0], node.expected())


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 21])
def test_opsets(opset):
    rng = np.random.default_rng(5)
    node = multi_threshold(values(rng, (2, 3, 5, 7)), rng.normal(size=(3, 4)).astype(f32))
    for constants in (True, False):
        source = node.model(constants=constants, shapes=shapes(node))
        source.opset_import[0].version = opset
        if opset < 12 and not constants:
            left = rewrite_model(source, Settings(operators="standard")).left
            assert [why for _, why in left] == ["opset 11 has no GreaterOrEqual"]
            continue
        y = plain_session(in_standard_operators(source)).run(None, node.feeds(constants=constants))[0]
        assert_same_bits(y, node.expected())


X = np.ones((2, 3), f32)


@pytest.mark.parametrize(
    ("node", "constants", "why"),
    [
        (lut_quantizer(X, np.ones(3, f32), np.ones(1, f32)), False, "its lut is not a constant"),
        (
            lut_quantizer(X, np.array([0, 1, 1 + 2**-20], f32), np.ones(1, f32)),
            True,
            "its lut has two values too close to each other",
        ),
        (
            lut_quantizer(X, np.array([0, np.inf], f32), np.ones(1, f32)),
            True,
            "its lut has a value that is not finite",
        ),
        (
            lut_quantizer(X, np.ones(3, f32), np.zeros(1, f32)),
            True,
            "not valid: threshold has an element that is not above 0; expected positive numbers",
        ),
    ],
)
def test_no_form(node, constants, why):
    result = rewrite_model(node.model(constants=constants, shapes=shapes(node)), Settings(operators="standard"))
    assert list(result.left) == [(LUT.full_name, why)]
    assert [each.op_type for each in result.model.graph.node] == [LUT.name]
