"""Decoders with caches in `analyze`: figures equal those of loops written by hand, and of single runs over whole texts."""

import math
from dataclasses import replace

import decoders
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import scipy.special
from decoders import decoder, logits_by_hand, session_of
from genai import write_folder
from onnx import helper
from text_graphs import text_model

import quark_numba
from quark_numba import Analysis, Data, Decoding, Execution, ModelError
from quark_numba.analysis.page import page

pytestmark = pytest.mark.compiled

TOKENS = np.random.default_rng(9).integers(0, decoders.VOCABULARY, (2, 13))
TENSORS = {"k": "kr", "v": "vr", "z": "zr"}


def tensors_by_hand(model, window):
    """Return the quantized tensors before and after rounding, of all runs over the texts."""
    tapped = type(model)()
    tapped.CopyFrom(model)
    names = [*TENSORS, *TENSORS.values()]
    tapped.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(quark_numba.get_library_path())
    session = onnxruntime.InferenceSession(tapped.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = {name: [] for name in names}
    state = {f"past_0_{each}": np.zeros((2, decoders.HEADS, 0, decoders.SIZE), np.float32) for each in ("key", "value")}
    for start in range(0, TOKENS.shape[1], window):
        tokens = TOKENS[:, start : start + window]
        places = np.tile(np.arange(start, start + tokens.shape[1]), (2, 1))
        _, key, value, *arrays = session.run(None, {"input_ids": tokens, "position_ids": places} | state)
        state = dict(zip(state, (key, value), strict=True))
        for name, array in zip(names, arrays, strict=True):
            found[name].append(array.ravel())
    return {name: np.concatenate(arrays).astype(np.float64) for name, arrays in found.items()}


def decibels(expected, found):
    return 10 * math.log10(np.sum(expected**2) / np.sum((found - expected) ** 2))


@pytest.mark.parametrize("window", [1, 5])
def test_tensors_by_hand(window):
    """The inherited error of a step includes that of the caches."""
    values, floats = (tensors_by_hand(model, window) for model in (decoder("bf16"), decoder()))
    found = quark_numba.analyze(decoder("bf16"), Data(TOKENS), decoding=Decoding(window))
    rows = {row.name: row for row in found.tensors}
    assert found.samples == 2
    for name, rounded in TENSORS.items():
        x = floats[name]
        assert rows[name].own_sqnr_db == pytest.approx(decibels(x, x.astype(ml_dtypes.bfloat16).astype(np.float64)), abs=0.01)
        assert rows[name].sqnr_db == pytest.approx(decibels(x, values[rounded]), abs=0.01)
    z = floats["z"]
    assert rows["z"].inherited_sqnr_db == pytest.approx(decibels(z, values["z"]), abs=0.01)
    assert [rows[name].inherited_sqnr_db for name in ("k", "v")] == [math.inf, math.inf]


@pytest.mark.by_default(1)
@pytest.mark.parametrize("reference", [None, decoder()], ids=["the twin", "a reference"])
def test_divergences_by_hand(reference):
    """A place is a number of tokens since the caches were empty. The second part of a text is shorter here."""
    sums, counts = np.zeros(8), np.zeros(8)
    for start in (0, 8):
        part = TOKENS[:, start : start + 8]
        logits, others = (logits_by_hand(session_of(each), part, 3)[0] for each in (decoder("bfp16"), decoder()))
        p, q = (scipy.special.softmax(each.astype(np.float64), axis=-1) for each in (others, logits))
        sums[: part.shape[1]] += scipy.special.rel_entr(p, q).sum(axis=-1).sum(axis=0)
        counts[: part.shape[1]] += 2
    found = quark_numba.analyze(decoder("bfp16"), Data(TOKENS), reference, decoding=Decoding(3, context=8))
    assert found.divergences == pytest.approx((sums / counts).tolist(), rel=1e-4)
    assert "by place in the texts" in str(found)


def test_one_run_over_a_text():
    """With a window as long as the text, all results are those of a run with empty caches."""
    caches = {f"past_0_{each}": np.zeros((2, decoders.HEADS, 0, decoders.SIZE), np.float32) for each in ("key", "value")}
    feed = {"input_ids": TOKENS, "position_ids": np.tile(np.arange(13), (2, 1)), **caches}
    options = {"sweep": True, "what_if": ["mx9", "bfp16"], "histograms": 2, "outputs": ["logits"]}
    expected = quark_numba.analyze(decoder("bf16"), [feed], **options)
    found = quark_numba.analyze(decoder("bf16"), Data(TOKENS), decoding=Decoding(13), **options)
    assert len(found.divergences) == 13
    assert len(found.trade_offs) > 1
    # The samples of a run with free rows are its rows, too.
    assert found == replace(expected, batches=found.batches)


@pytest.mark.parametrize("attention", ["merged", "grouped"])
def test_other_decoders(attention):
    """Where tensors are measured, the model computes what `evaluate` computes."""
    models = [decoders.renamed(decoder(kind, attention=attention), decoders.OPTIMUM) for kind in ("bf16", "float")]
    data = Data(TOKENS[:1])  # GroupQueryAttention takes several tokens behind a cache of one text alone
    found, expected = (
        each(models[0], data, models[1], decoding=Decoding(4)) for each in (quark_numba.analyze, quark_numba.evaluate)
    )
    assert {row.name for row in found.tensors} == {"k", "v", "z"}
    assert found.outputs[0].sqnr_db == pytest.approx(expected.outputs[0].sqnr_db, abs=0.01)
    # The last place has no label, so `evaluate` leaves it out.
    mean = sum(found.divergences[:-1]) / 12
    assert mean == pytest.approx(expected.distributions[0].mean_divergence, rel=1e-3)


def test_trade_offs_have_their_own_caches():
    """If each tensor can only have its own type, the only point is the quantized model."""
    found = quark_numba.analyze(decoder("bf16"), Data(TOKENS), decoding=Decoding(2), what_if=["bfloat16"])
    assert [point.sqnr_db for point in found.trade_offs] == [found.outputs[0].sqnr_db]


def test_resumed_runs(tmp_path):
    """The sums of places are kept. A file is refused for another decoding."""
    data, kept = Data(TOKENS, batch=1), tmp_path / "kept.json"
    expected = quark_numba.analyze(decoder("bf16"), data, decoding=Decoding(4))
    for _ in range(2):
        found = quark_numba.analyze(decoder("bf16"), data, decoding=Decoding(4), execution=Execution(resume=kept))
        assert found == expected
    with pytest.raises(ModelError, match="from another run, with other decoding"):
        quark_numba.analyze(decoder("bf16"), data, decoding=Decoding(5), execution=Execution(resume=kept))


@pytest.mark.slow
def test_other_processes():
    options = {"decoding": Decoding(4), "sweep": True, "what_if": ["mx9"]}
    expected = quark_numba.analyze(decoder("bf16"), Data(TOKENS, batch=1), decoder(), **options)
    found = quark_numba.analyze(
        decoder("bf16"), Data(TOKENS, batch=1), decoder(), **options, execution=Execution(workers=2, threads=1)
    )
    assert found == expected


def test_the_command(terminal, tmp_path):
    np.save(tmp_path / "tokens.npy", TOKENS)
    folder = write_folder(tmp_path / "in", decoder=decoder("bf16"))
    words = ["analyze", folder, "--data", tmp_path / "tokens.npy", "--decode", "4", "--context", "9"]
    report = terminal.report(*words, "--html", tmp_path / "page.html", "--exclude-config", tmp_path / "exclude.json")
    assert len(report["divergences"]) == 9
    assert "Divergence by place in the text" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "no output to compare is named 'none'" in terminal.error(*words, "--logits", "none")


@pytest.mark.parametrize("divergences", [[0.0, 0.0], [math.inf, math.nan], [0.0, 1e-3, math.inf]])
def test_extremes_on_the_page(divergences):
    """What is not drawn gives no warning of the plot's axes."""
    analysis = Analysis([], [], {}, samples=1, batches=1, divergences=divergences)
    assert "Divergence by place in the text" in page(analysis, "a decoder")
    assert f"{divergences[0]:.3g}" in str(analysis)


def test_wrong_use():
    def error(model, reference=None, **options):
        with pytest.raises(ModelError) as caught:
            quark_numba.analyze(model, Data(TOKENS), reference, decoding=Decoding(4), **options)
        return str(caught.value)

    model = decoder("bf16")
    assert "outputs: the model has no output named 'present_0_key'; it has logits" in error(model, outputs=["present_0_key"])
    assert "logits: no output to compare is named 'answers'; they are logits" in error(model, logits="answers")
    assert "the model: input past_lengths cannot be made" in error(decoder("bf16", rename={"position_ids": "past_lengths"}))
    without = text_model(
        "(int64[b, s] input_ids) => (float[b, s, 5] logits) { logits = Gather (t, input_ids) }", t=np.eye(5, dtype=np.float32)
    )
    assert "the reference: no cache" in error(model, without)
    with pytest.raises(ValueError, match=r"decoding\.generate is 3; expected 0"):
        quark_numba.analyze(model, Data(TOKENS), decoding=Decoding(4, generate=3))
