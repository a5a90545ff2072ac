"""The standard form of instance normalization, in sessions without the package, against the oracle."""

import numpy as np
import other_operators_oracle as oracle
import pytest
from onnx.reference import ReferenceEvaluator
from oracle import assert_same_bits
from other_operators import NORMALIZATION, nodes_of, one_node, probes, random_normalization
from standard_models import LEVELS, in_standard_operators, plain_session

pytestmark = pytest.mark.compiled

f32 = np.float32


def is_exact(x):
    """Return whether the form has every bit: no square is rounded, and no NaN has bits that the kernel makes another number."""
    bits = x.view(np.uint32) & 0x7FFFFFFF
    is_number_for_kernel = np.isnan(x) & ((bits <= 0x7F808000) | (bits >= 0x7FFF8000))
    return not np.any(is_number_for_kernel | ((abs(x) < 2.0**-67) & (x != 0)))


def assert_right(attributes, arrays, *, shape="known", constants=True, opset=21, levels=LEVELS):
    x, *others = arrays
    declared = {"known": x.shape, "unknown": [None, x.shape[1], *[None] * (x.ndim - 2)]}[shape]
    shapes = {"x": declared, "y": declared, "scale": others[0].shape, "bias": others[1].shape}
    source = one_node(NORMALIZATION, attributes, arrays, constants=constants, shapes=shapes)
    source.opset_import[0].version = opset
    standard = in_standard_operators(source)
    feeds = {"x": x} | ({} if constants else dict(zip(("scale", "bias"), others, strict=True)))
    for level in levels:
        (y,) = plain_session(standard, level=level).run(None, feeds)
        assert_same_bits(y, oracle.instance_normalization(*arrays, **attributes))
    return standard, feeds


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 150), marks=pytest.mark.slow)], ids=["few", "many"])
def test_random_nodes(seeds):
    count = 0
    for seed in seeds:
        attributes, arrays = random_normalization(seed)
        if is_exact(arrays[0]):
            count += 1
            assert_right(attributes, arrays)
    assert count > len(seeds) // 3


@pytest.mark.parametrize(("shape", "constants", "opset"), [("unknown", True, 13), ("known", False, 17)])
def test_what_is_known_at_run_time(shape, constants, opset):
    """The length of an instance, and scale and bias, need not be known before the run."""
    rng = np.random.default_rng(6)
    x = rng.normal(3, 2, (2, 3, 5, 7)).astype(f32)
    arrays = [x, rng.normal(size=4).astype(f32), np.array([0, -0.0, 1], f32)]
    assert_right({}, arrays, shape=shape, constants=constants, opset=opset)


def test_reference_evaluator():
    """numpy adds the elements of an instance one after the other, too."""
    rng = np.random.default_rng(7)
    arrays = [rng.normal(10, 1, (2, 3, 40)).astype(f32), np.ones(3, f32), np.zeros(3, f32)]
    standard, feeds = assert_right({}, arrays, levels=LEVELS[:1])
    y = ReferenceEvaluator(standard).run(None, feeds)[0]
    assert_same_bits(y, oracle.instance_normalization(*arrays))


@pytest.mark.slow
def test_probes_and_nodes_of_models():
    cases = [each[:2] for each in probes(NORMALIZATION)]
    cases += [each[1:3] for name in ("style_bf16", "style_xint8") for each in nodes_of(name) if each[0] == NORMALIZATION]
    cases = [each for each in cases if is_exact(each[1][0])]
    assert len(cases) > 40
    for attributes, arrays in cases:
        assert_right(attributes, arrays, levels=LEVELS[:1])
