"""ONNX Runtime GenAI runs folders that `build_library` wrote, and writes the tokens of this package's sessions."""

import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from decoders import OPTIMUM, VOCABULARY, decoder, logits_by_hand, renamed, written_by_hand
from genai import configuration, write_folder
from libraries import linked

import quark_numba

pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai only; make_environment.sh makes an environment")

pytestmark = linked

# Writes tokens after those of a prompt, in a process without this package. Arguments: the folder, the number of tokens, and the
# prompt.
WRITE = """
import sys
import onnxruntime_genai

folder, count, *prompt = sys.argv[1:]
model = onnxruntime_genai.Model(folder)
params = onnxruntime_genai.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=len(prompt) + int(count), min_length=len(prompt) + int(count))
generator = onnxruntime_genai.Generator(model, params)
generator.append_tokens([int(token) for token in prompt])
while not generator.is_done():
    generator.generate_next_token()
print(*generator.get_sequence(0))
assert not {"numba", "llvmlite", "quark_numba"} & set(sys.modules)
"""

COUNT = 20
PROMPT = [3, 5, 7, 1]


def written(folder):
    """Return the tokens that GenAI writes, in a working directory without models."""
    command = [sys.executable, "-I", "-c", WRITE, str(folder), str(COUNT), *map(str, PROMPT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return [int(token) for token in done.stdout.split()][len(PROMPT) :]


def expected_of(model):
    """Return the tokens of InferenceSession. The token of the end is never written."""
    session = quark_numba.InferenceSession(model)
    logits, step = logits_by_hand(session, np.array([PROMPT]), len(PROMPT))

    def without_end(logits):
        logits[..., VOCABULARY - 1] = -np.inf
        return logits

    return written_by_hand(lambda tokens: without_end(step(tokens)), without_end(logits), COUNT)[0]


def moved(folder):
    """Return another path of the folder: the configuration has no path that was right only where the folder was written."""
    target = folder.with_name("elsewhere")
    shutil.move(folder, target)
    return target


@pytest.mark.parametrize("is_optimized", [True, False], ids=["optimized", "as written"])
@pytest.mark.parametrize("kind", ["bf16", "bfp16", "xint8"])
def test_the_same_tokens(kind, is_optimized, tmp_path):
    model = decoder(kind)
    folder = write_folder(tmp_path / "in", decoder=model)
    quark_numba.build_library(folder, tmp_path / "out", optimize=is_optimized)
    assert written(moved(tmp_path / "out")) == expected_of(model)


def test_grouped_queries(tmp_path):
    """A decoder with GroupQueryAttention and an attention mask, under optimum's names, which need no keys."""
    model = renamed(decoder("bfp16", attention="grouped"), OPTIMUM)
    config = configuration(inputs={"attention_mask": "attention_mask"}, outputs={})
    folder = write_folder(tmp_path / "in", config, decoder=model)
    quark_numba.build_library(folder, tmp_path / "out")
    data = quark_numba.Data(np.array([PROMPT]))
    decoding = quark_numba.Decoding(len(PROMPT), generate=COUNT)
    evaluated = quark_numba.evaluate(folder, data, decoding=decoding).generations[0].tokens
    assert VOCABULARY - 1 not in evaluated  # GenAI would not write the token of the end
    assert written(moved(tmp_path / "out")) == evaluated


def test_a_pipeline(tmp_path):
    """Two models, of which one has session options of its own: a model that embeds tokens, and the rest of the decoder."""
    model = decoder("bfp16")
    names = [[value.name for value in values] for values in (model.graph.input, model.graph.output)]
    inputs, outputs = (
        (["input_ids", "position_ids"], [name for name in names[0] if name != "input_ids"] + ["x"]),
        (["x"], names[1]),
    )
    extractor = onnx.utils.Extractor(onnx.shape_inference.infer_shapes(model))
    parts = [extractor.extract_model(*each) for each in zip(inputs, outputs, strict=True)]
    stages = {
        name: {"filename": f"{name}.onnx", "inputs": before, "outputs": after}
        for name, before, after in zip(("embedding", "rest"), inputs, outputs, strict=True)
    }
    stages["rest"]["session_options"] = {"intra_op_num_threads": 1}
    config = configuration("", pipeline=[stages])
    config["model"]["type"] = "decoder-pipeline"
    folder = write_folder(tmp_path / "in", config, **dict(zip(stages, parts, strict=True)))
    quark_numba.build_library(folder, tmp_path / "out")
    assert written(moved(tmp_path / "out")) == expected_of(model)
