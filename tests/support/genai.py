"""A folder of ONNX Runtime GenAI with a small decoder."""

import json

import onnx
from decoders import HEADS, LENGTH, SIZE, VOCABULARY, WIDTH, decoder


def configuration(filename="decoder.onnx", **decoder_options):
    """Return the configuration of a decoder of `decoders.decoder`."""
    names = {
        "inputs": {
            "input_ids": "input_ids",
            "position_ids": "position_ids",
            "past_key_names": "past_%d_key",
            "past_value_names": "past_%d_value",
        },
        "outputs": {"logits": "logits", "present_key_names": "present_%d_key", "present_value_names": "present_%d_value"},
    }
    sizes = {"hidden_size": WIDTH, "head_size": SIZE, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    return {
        "model": {
            "type": "decoder",
            "bos_token_id": 0,
            "eos_token_id": VOCABULARY - 1,
            "pad_token_id": 0,
            "vocab_size": VOCABULARY,
            "context_length": LENGTH,
            "decoder": {"filename": filename, "num_hidden_layers": 1, **sizes, **names, **decoder_options},
        },
        "search": {"do_sample": False, "max_length": LENGTH, "past_present_share_buffer": False},
    }


def write_folder(folder, config=None, **models):
    """Write a folder of models, by their names without ".onnx", by default of a decoder in BFP16, with its configuration and a
    tokenizer, and return its path."""
    folder.mkdir(parents=True)
    for name, model in (models or {"decoder": decoder("bfp16")}).items():
        onnx.save(model, folder / f"{name}.onnx")
    (folder / "genai_config.json").write_text(json.dumps(config or configuration()), encoding="utf-8")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    return folder
