"""Decoders with caches over texts: figures and tokens equal those of loops written by hand."""

import math
from dataclasses import replace

import decoders
import numpy as np
import onnx
import pytest
from decoders import decoder, logits_by_hand, session_of, written_by_hand
from genai import configuration, write_folder
from text_graphs import text_model

import quark_numba
from quark_numba import Data, Decoding, ModelError
from quark_numba.analysis.measures.classes import Classes, labels_of
from quark_numba.analysis.measures.distributions import distribution, distribution_sums

pytestmark = pytest.mark.compiled

TOKENS = np.random.default_rng(8).integers(0, decoders.VOCABULARY, (2, 21))


def by_hand(model, reference, tokens, window, count=0, **options):
    """Return the distribution and the tokens that loops give."""
    results = [logits_by_hand(session_of(each), tokens, window) for each in (model, reference)]
    classes = Classes(key="l", next_token=True, **options)
    sums = distribution_sums(*(logits for logits, _ in results), "logits", labels_of(tokens, classes), classes)
    written = [written_by_hand(step, logits, count) for logits, step in results] if count else None
    return distribution("logits", sums, is_labelled=True), written


def assert_same(found, expected):
    for name, value in vars(expected).items():
        other = getattr(found, name)
        assert other == value or math.isclose(other, value, rel_tol=1e-9, abs_tol=1e-15), name


@pytest.mark.parametrize("window", [1, 4, 21, 100])
@pytest.mark.parametrize("kind", ["bf16", "bfp16", "xint8", "a8w8"])
def test_a_loop_by_hand(kind, window):
    model, reference = decoder(kind), decoder()
    expected, written = by_hand(model, reference, TOKENS, window, 12)
    found = quark_numba.evaluate(model, Data(TOKENS), reference, decoding=Decoding(window, generate=12))
    assert_same(found.distributions[0], expected)
    assert [each.tokens for each in found.generations] == written[0]
    assert [each.reference_tokens for each in found.generations] == written[1]
    for each in found.generations:
        assert each.tokens[: each.same] == each.reference_tokens[: each.same]
        assert each.same == 12 or each.tokens[each.same] != each.reference_tokens[each.same]
    assert (found.samples, [each.name for each in found.outputs]) == (2, ["logits"])
    assert "before the first difference" in str(found)


@pytest.mark.parametrize("attention", ["merged", "grouped"])
def test_other_decoders(attention):
    """use_cache_branch, attention masks and optimum's names of caches."""
    model, reference = decoder("bf16", attention=attention), decoder(attention=attention)
    # GroupQueryAttention takes several tokens behind a cache of one text alone.
    tokens, window = (TOKENS[:1], 5) if attention == "grouped" else (TOKENS, 5)
    expected, _ = by_hand(model, reference, tokens, window)
    names = decoders.OPTIMUM
    models = [decoders.renamed(each, names) for each in (model, reference)]
    found = quark_numba.evaluate(models[0], Data(tokens), models[1], decoding=Decoding(window))
    assert_same(found.distributions[0], expected)


def test_other_names():
    names = {"input_ids": "ids", "position_ids": "where"}
    names |= {
        f"{time}_0_{each}": f"{each[0]}{end}.0"
        for time, end in (("past", "in"), ("present", "out"))
        for each in ("key", "value")
    }
    model = decoder("bf16", rename=names)
    meanings = {"ids": "input_ids", "where": "position_ids", "kin.%d": "kout.%d", "vin.%d": "vout.%d"}
    found = quark_numba.evaluate(model, Data({"ids": TOKENS}), decoding=Decoding(8, names=meanings))
    expected = quark_numba.evaluate(decoder("bf16"), Data(TOKENS), decoding=Decoding(8))
    assert found.distributions == expected.distributions
    with pytest.raises(ModelError, match=r"the model: input ids cannot be made for decoding; expected input_ids, .*vout\.0"):
        quark_numba.evaluate(model, Data({"ids": TOKENS}), decoding=Decoding(8))


def test_context_and_padding():
    """A text begins anew after `context` tokens. Padding counts nowhere, and one text is an array of one dimension."""
    model, reference = decoder("bf16"), decoder()
    parts = [by_hand(model, reference, TOKENS[:1, start : start + 7], 3)[0] for start in (0, 7, 14)]
    found = quark_numba.evaluate(model, Data(TOKENS[0]), reference, decoding=Decoding(3, context=7), labels=None)
    assert found.distributions[0].places == 20
    assert abs(found.distributions[0].max_divergence - max(each.max_divergence for each in parts)) < 0.1
    alone = [quark_numba.evaluate(model, Data(part), reference, decoding=Decoding(3)) for part in np.split(TOKENS[0], 3)]
    assert {each.distributions[0].places for each in alone} == {6}
    padded = np.where(np.arange(21) < 15, TOKENS, 0)
    padded[:, :15] = np.maximum(padded[:, :15], 1)
    found = quark_numba.evaluate(model, Data(padded), reference, decoding=Decoding(4), ignore_label=0)
    expected = quark_numba.evaluate(model, Data(padded[:, :15]), reference, decoding=Decoding(4))
    assert found.distributions[0].places == 28
    assert_same(found.distributions[0], expected.distributions[0])


def test_wrong_use():
    def error(model, tokens=TOKENS, **options):
        with pytest.raises(ModelError) as caught:
            quark_numba.evaluate(model, Data(tokens), model, decoding=Decoding(4), **options)
        return str(caught.value)

    model = decoder("bf16")
    assert error(decoder("bf16", rename={"logits": "answers"})).startswith("logits: no output is named 'logits'")
    assert "input_ids are float64; expected integers" in error(model, TOKENS + 0.5)
    assert "expected (texts, tokens)" in error(model, TOKENS[None])
    assert "does not run" in error(model, TOKENS + 100)
    assert "labels l have 23; expected 0 to 22" in error(model, {"input_ids": TOKENS, "l": TOKENS * 0 + 23}, labels="l")
    assert "labels l (2, 20); expected the same shape" in error(model, {"input_ids": TOKENS, "l": TOKENS[:, 1:]}, labels="l")
    extra = decoder("bf16", rename={"position_ids": "past_lengths"})
    assert "input past_lengths cannot be made" in error(extra)
    static = decoder("bf16")
    for axis in (0, 2):
        static.graph.input[2].type.tensor_type.shape.dim[axis].dim_value = 4
    assert "input past_0_key is tensor(float) of shape [4, 2, 4, 8]; expected a cache" in error(static)
    wide = """(int64[b, s] input_ids, float[b, p, 2] past_0) => (float[b, s, 5] logits, float[b, q, r] present_0) {
        logits = Gather (t, input_ids)  present_0 = Concat <axis = 2> (past_0, past_0) }"""
    text = error(text_model(wide, t=np.eye(30, dtype=np.float32)[:, :5]))
    assert "output present_0 is float32 of shape (2, 0, 4); input past_0, which it continues, takes float32 of shape" in text
    without = text_model("(int64[b, s] input_ids) => (double[b, s, 5] logits) { logits = Gather (t, input_ids) }", t=np.eye(5))
    assert "no cache (past…) to decode with; its inputs are input_ids" in error(without)
    with pytest.raises(ModelError, match="random data have no tokens 'input_ids'"):
        quark_numba.evaluate(model, quark_numba.RandomData(), decoding=Decoding(4))
    with pytest.raises(ValueError, match=r"metric is .* with decoding"):
        quark_numba.evaluate(model, Data(TOKENS), decoding=Decoding(4), metric=print)


def test_the_command(terminal, tmp_path):
    np.save(tmp_path / "tokens.npy", TOKENS.astype(np.int32))
    (tmp_path / "m.onnx").write_bytes(decoder("bf16").SerializeToString())
    words = ["evaluate", tmp_path / "m.onnx", "--data", tmp_path / "tokens.npy"]
    report = terminal.report(*words, "--decode", "4", "--context", "9", "--generate", "3", "--batch", "1")
    assert report["distributions"][0]["places"] == 40
    assert [each["same"] <= 3 for each in report["generations"]] == [True, True]


def test_texts(terminal, tmp_path):
    """A tokenizer turns text files into tokens, for decoding and for single runs."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["?", "one", "two", "three", "four", "five"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "texts").mkdir()
    for name, text in (("a.txt", "one two three four"), ("b.txt", "five six five"), ("notes.md", "one")):
        (tmp_path / "texts" / name).write_text(text)
    data = Data(tmp_path / "texts", tokenizer=tmp_path / "tokenizer.json")
    found = quark_numba.evaluate(decoder("bf16"), data, decoding=Decoding(2))
    tokens = [np.array([1, 2, 3, 4]), np.array([5, 0, 5])]
    expected = quark_numba.evaluate(decoder("bf16"), tokens, decoding=Decoding(2))
    assert found.distributions == expected.distributions
    single = text_model(
        "(int32[b, s] ids) => (float[b, s, 9] logits) { logits = Gather (t, ids) }", t=np.eye(9, dtype=np.float32)
    )
    found = quark_numba.evaluate(single, data, single, labels="ids", next_token=True)
    assert found.distributions[0].places == 5
    (tmp_path / "m.onnx").write_bytes(decoder("bf16").SerializeToString())
    words = ["evaluate", tmp_path / "m.onnx", "--data", tmp_path / "texts" / "a.txt", "--decode", "3", "--tokenizer"]
    assert terminal.report(*words, tmp_path / "tokenizer.json")["samples"] == 1
    assert "tokenizer " in terminal.error(*words, tmp_path / "texts" / "a.txt")
    assert "none.json: No such file" in terminal.error(*words, tmp_path / "none.json")
    (tmp_path / "texts" / "a.txt").write_bytes(b"\xff")
    assert "a.txt: not a text in UTF-8" in terminal.error(*words, tmp_path / "tokenizer.json")


def test_folders_of_genai(tmp_path, terminal):
    """The configuration of ONNX Runtime GenAI names the decoder, its inputs, its caches and its logits."""
    names = {"input_ids": "ids", "position_ids": "where", "logits": "answers"}
    names |= {f"{time}_0_{each}": f"{each}_{time}.0" for time in ("past", "present") for each in ("key", "value")}
    config = configuration()
    inputs, outputs = config["model"]["decoder"]["inputs"], config["model"]["decoder"]["outputs"]
    inputs |= {"input_ids": "ids", "position_ids": "where"}
    outputs["logits"] = "answers"
    for time, keys in (("past", inputs), ("present", outputs)):
        keys |= {f"{time}_{each}_names": f"{each}_{time}.%d" for each in ("key", "value")}
    folder = write_folder(tmp_path / "in", config, decoder=decoder("bf16", rename=names))
    expected = quark_numba.evaluate(decoder("bf16"), Data(TOKENS), decoder(), decoding=Decoding(8, generate=4))
    # The reference may be a folder with other names, a file with those of the folder, or the model without its quantization.
    for reference in (write_folder(tmp_path / "float", decoder=decoder()), folder / "float.onnx", None):
        onnx.save(decoder(rename=names), folder / "float.onnx")
        found = quark_numba.evaluate(folder, Data(TOKENS), reference, decoding=Decoding(8, generate=4))
        assert_same(found.distributions[0], replace(expected.distributions[0], name="answers"))
        assert [each.tokens for each in found.generations] == [each.tokens for each in expected.generations]
    np.savez(tmp_path / "tokens.npz", ids=TOKENS)
    report = terminal.report("evaluate", folder, "--data", tmp_path / "tokens.npz", "--decode", "8")
    assert report["distributions"][0]["mean_divergence"] == pytest.approx(expected.distributions[0].mean_divergence, rel=1e-9)
    assert report["model"] == str(folder)


def test_wrong_folders_of_genai(tmp_path):
    def error(config):
        folder = write_folder(tmp_path / str(len([*tmp_path.iterdir()])), config, decoder=decoder("bf16"))
        with pytest.raises(ModelError) as caught:
            quark_numba.evaluate(folder, Data(TOKENS), decoding=Decoding(4))
        return str(caught.value)

    pipeline = [{"only": {"filename": "decoder.onnx"}}]
    assert "the decoder is a pipeline of models; expected one model" in error(configuration("", pipeline=pipeline))
    assert "model.decoder.inputs.input_ids is 5; expected a name" in error(configuration(inputs={"input_ids": 5}))
    # Keys that are missing have GenAI's names.
    assert "input past_0_key cannot be made" in error(configuration(outputs={}))
    config = configuration()
    config["model"]["decoder"]["outputs"]["logits"] = "answers"
    assert "logits: no output is named 'answers'" in error(config)
