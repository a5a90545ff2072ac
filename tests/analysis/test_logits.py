"""Logits as distributions: divergences, cross-entropies and perplexities equal those of numpy, over places that count."""

import json
import math

import numpy as np
import pytest
from onnx_models import model
from rewritten_models import constant, floats, pair

import quark_numba
from quark_numba import Data, Execution, ModelError
from quark_numba.analysis.measures.classes import Classes, labels_of
from quark_numba.analysis.measures.distributions import distribution, distribution_sums

pytestmark = pytest.mark.compiled

rng = np.random.default_rng(5)
Y = rng.normal(0, 3, (3, 40, 50)).astype(np.float32)
EXPECTED = (Y + rng.normal(0, 0.3, Y.shape)).astype(np.float32)
TOKENS = rng.integers(0, 50, (3, 40))
KINDS = ["mean_divergence", "median_divergence", "divergence_90", "divergence_99", "divergence_999", "max_divergence"]


def log_softmax(x):
    x = x.astype(np.longdouble)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def divergences(y, expected):
    log, reference = log_softmax(y), log_softmax(expected)
    with np.errstate(invalid="ignore"):
        terms = np.exp(reference) * (reference - log)
    return np.where(np.exp(reference) == 0, 0, terms).sum(-1).astype(float)


def measured(y, expected, labels=None, **options):
    classes = Classes(key="l", **options)
    given = None if labels is None else labels_of(labels, classes)
    return distribution("y", distribution_sums(y, expected, "y", given, classes), is_labelled=labels is not None)


def assert_divergences(found, expected):
    quantiles = [np.quantile(expected, share) for share in (0.5, 0.9, 0.99, 0.999, 1)]
    np.testing.assert_allclose([getattr(found, kind) for kind in KINDS], [expected.mean(), *quantiles], rtol=1e-9)


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_divergences(axis, dtype):
    y, expected = (np.moveaxis(each.astype(dtype), -1, axis) for each in (Y, EXPECTED))
    found = measured(y, expected, axis=axis)
    assert_divergences(found, divergences(Y.astype(dtype), EXPECTED.astype(dtype)).reshape(-1))
    assert (found.places, found.perplexity) == (120, None)


def test_of_scipy_and_torch():
    scipy, torch = (pytest.importorskip(name) for name in ("scipy.special", "torch"))
    found = measured(Y, EXPECTED, TOKENS)
    p, q = (scipy.softmax(each.astype(float), axis=-1) for each in (EXPECTED, Y))
    assert_divergences(found, scipy.rel_entr(p, q).sum(-1).reshape(-1))
    for logits, loss in ((Y, found.cross_entropy), (EXPECTED, found.reference_cross_entropy)):
        rows = torch.from_numpy(logits.reshape(-1, 50)).double()
        assert abs(torch.nn.functional.cross_entropy(rows, torch.from_numpy(TOKENS.reshape(-1))).item() - loss) < 1e-9


@pytest.mark.parametrize("next_token", [False, True])
@pytest.mark.parametrize("ignored", [None, 7, -100])
def test_perplexities(next_token, ignored):
    """Padding with an ignored label, and the last place of next tokens, count in no figure."""
    tokens = TOKENS.copy()
    if ignored is not None:
        tokens[:, 30:] = ignored
        tokens[0, :5] = ignored
    found = measured(Y, EXPECTED, tokens, ignored=ignored, next_token=next_token)
    y, expected, labels = (Y[:, :-1], EXPECTED[:, :-1], tokens[:, 1:]) if next_token else (Y, EXPECTED, tokens)
    counted = labels != (999 if ignored is None else ignored)
    log, reference = (
        np.take_along_axis(log_softmax(each), np.maximum(labels, 0)[..., None], -1)[..., 0][counted].astype(float)
        for each in (y, expected)
    )
    assert found.places == counted.sum()
    assert_divergences(found, divergences(y, expected)[counted])
    ratio = math.exp((reference - log).mean())
    error = ratio * (reference - log).std(ddof=1) / math.sqrt(len(log))
    wanted = [-log.mean(), -reference.mean(), math.exp(-log.mean()), math.exp(-reference.mean()), ratio, error]
    wanted.append((np.exp(log) - np.exp(reference)).mean())
    names = ["cross_entropy", "reference_cross_entropy", "perplexity", "reference_perplexity", "perplexity_ratio"]
    names += ["perplexity_ratio_error", "probability_change"]
    np.testing.assert_allclose([getattr(found, name) for name in names], wanted, rtol=1e-8)


def test_tokens_that_are_masked():
    """A token of -inf has the probability 0. The divergence is infinite where only the reference gives it one, and NaN where a
    place has no probabilities."""
    y, expected = Y[0].copy(), EXPECTED[0].copy()
    y[:, :10] = expected[:, :10] = -np.inf
    assert_divergences(measured(y, expected), divergences(y, expected))
    expected[:, 10] = -np.inf
    assert_divergences(measured(y, expected), divergences(y, expected))
    y[3, 11] = -np.inf
    found = measured(y, expected, np.full(40, 11))
    assert (found.max_divergence, found.mean_divergence, found.perplexity) == (math.inf,) * 3
    assert found.median_divergence < 1
    y[4] = -np.inf
    assert math.isnan(measured(y, expected).mean_divergence)


def test_no_place_counts():
    found = measured(Y, EXPECTED, np.full(TOKENS.shape, 9), ignored=9)
    assert found.places == 0
    assert math.isnan(found.mean_divergence)
    assert math.isnan(found.perplexity)


def test_memory():
    """Only a few places are copied at a time."""
    tracemalloc = pytest.importorskip("tracemalloc")
    y, expected = (np.zeros((512, 32_000), np.float32) for _ in range(2))
    labels = np.zeros(512, np.int64)
    tracemalloc.start()
    try:
        measured(y, expected, labels)
        assert tracemalloc.get_traced_memory()[1] < y.nbytes / 3
    finally:
        tracemalloc.stop()


def decoder(output="logits"):
    """Return a model whose logits are a table's rows, rounded to int8, by token."""
    nodes = ["x = Gather <axis = 0> (table, input_ids)", *pair("x", "codes", output, ["s", "z"], "")]
    values = [*floats(table=Y[0], s=0.1), constant("z", 0, np.int8)]
    return model(nodes, [("input_ids", "int64", ("batch", "sequence"))], [output], initializers=values, domains=[])


FEEDS = [{"input_ids": each[None] % 40} for each in TOKENS]


def test_evaluate():
    """The tokens of an input are the labels, and batches add up."""
    found = quark_numba.evaluate(decoder(), FEEDS, labels="input_ids", next_token=True)
    (row,) = found.distributions
    tokens = np.concatenate([each["input_ids"] for each in FEEDS])
    expected = Y[0][tokens]
    y = np.clip(np.rint(expected / np.float32(0.1)), -128, 127) * np.float32(0.1)
    whole = measured(y, expected, tokens, next_token=True)
    np.testing.assert_allclose([getattr(row, kind) for kind in KINDS], [getattr(whole, kind) for kind in KINDS], rtol=1e-9)
    assert abs(row.perplexity_ratio / whole.perplexity_ratio - 1) < 1e-12
    assert found.outputs[0].labelled == 39 * 3
    assert "±" in str(found)
    assert "Perplexity" in found._repr_html_()


def test_which_output_has_logits():
    assert quark_numba.evaluate(decoder("y"), FEEDS).distributions == []
    assert quark_numba.evaluate(decoder("y"), FEEDS, logits="y").distributions[0].places == 120
    with pytest.raises(ModelError, match="logits: no output to compare is named 'z'; they are y"):
        quark_numba.evaluate(decoder("y"), FEEDS, logits="z")
    with pytest.raises(ValueError, match="next_token is True without labels"):
        quark_numba.evaluate(decoder(), FEEDS, next_token=True)
    feeds = [{"input_ids": FEEDS[0]["input_ids"], "l": np.full((1, 40), 50)}]
    with pytest.raises(ModelError, match="labels l have 50; expected 0 to 49"):
        quark_numba.evaluate(decoder(), feeds, labels="l")


def test_a_run_that_continues(tmp_path):
    """The divergences of earlier batches are kept."""
    first = quark_numba.evaluate(decoder(), Data(lambda: FEEDS, limit=2), execution=Execution(resume=tmp_path / "kept.json"))
    content = json.loads((tmp_path / "kept.json").read_text())
    content["run"]["limit"] = None
    (tmp_path / "kept.json").write_text(json.dumps(content))
    again = quark_numba.evaluate(decoder(), Data(lambda: FEEDS), execution=Execution(resume=tmp_path / "kept.json"))
    assert (first.distributions[0].places, again.distributions[0].places) == (80, 120)
    assert again.distributions == quark_numba.evaluate(decoder(), FEEDS).distributions


def test_the_command(terminal, tmp_path):
    np.save(tmp_path / "tokens.npy", FEEDS[0]["input_ids"])
    (tmp_path / "m.onnx").write_bytes(decoder().SerializeToString())
    words = ["evaluate", tmp_path / "m.onnx", "--data", tmp_path / "tokens.npy"]
    report = terminal.report(*words, "--labels", "input_ids", "--next-token")
    assert report["distributions"][0]["places"] == 39
    assert "Kullback-Leibler" in terminal.text(*words, "--logits", "logits")
