"""A small decoder that predicts characters. It is trained on the pages of this repository in some seconds, has a key-value
cache, and is quantized to block formats with the nodes that Quark writes: character_decoder.py [FOLDER]"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CONTEXT, HEADS, SIZE, HIDDEN = 64, 4, 32, 192

# Formats, as Quark writes them.
FORMATS = {
    "BFP16": {"bfp_method": "to_bfp", "bit_width": 16, "block_size": 8, "rounding_mode": 0},
    "MX9": {"bfp_method": "to_bfp_prime", "bit_width": 16, "block_size": 16, "rounding_mode": 2},
    "MX6": {"bfp_method": "to_bfp_prime", "bit_width": 13, "block_size": 16, "rounding_mode": 2},
    "MX4": {"bfp_method": "to_bfp_prime", "bit_width": 11, "block_size": 16, "rounding_mode": 2},
}


def tokens_of(text):
    """Return the indices of the characters. Others than CHARACTERS are left out."""
    return np.array([CHARACTERS.index(each) for each in text if each in CHARACTERS])


def text_of(tokens):
    return "".join(CHARACTERS[token] for token in tokens)


def pages():
    """Return the texts of the pages of this repository."""
    root = Path(__file__).parent.parent
    paths = [
        root / "README.md",
        *(path for each in ("bench", "quark_numba", "tests") for path in (root / each).rglob("README.md")),
    ]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def positions():
    """Return the queries (heads, places, features) and keys (places, features) of all places. Head i finds the place i tokens
    before, because a query is the key of that place."""
    frequencies = np.pi / CONTEXT * np.arange(1, SIZE // 2 + 1) * 2
    places = np.arange(-HEADS, CONTEXT)
    angles = places[:, None] * frequencies
    features = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    queries = np.stack([features[HEADS - head : HEADS - head + CONTEXT] for head in range(HEADS)])
    return queries.astype(np.float32), features[HEADS:].astype(np.float32)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def train(tokens, steps=400, batch=16, seed=0):
    """Return the weights of a decoder, by name. Only numpy is needed: the attention depends on the places alone, so the
    gradients of the other weights are a few products."""
    rng = np.random.default_rng(seed)
    queries, keys = positions()
    seen = np.tril(np.ones((CONTEXT, CONTEXT), bool))
    attention = softmax(np.where(seen, queries @ keys.T, -1e4)).astype(np.float32)
    shapes = {"values": (len(CHARACTERS), SIZE), "up": (HEADS * SIZE, HIDDEN), "head": (HIDDEN, len(CHARACTERS))}
    weights = {name: rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    one_of = np.eye(len(CHARACTERS), dtype=np.float32)
    means = {name: (np.zeros_like(each), np.zeros_like(each)) for name, each in weights.items()}
    for step in range(steps):
        starts = rng.integers(0, len(tokens) - CONTEXT - 1, batch)
        window = tokens[starts[:, None] + np.arange(CONTEXT + 1)]
        x, wanted = window[:, :-1], window[:, 1:]
        heads = (attention @ weights["values"][x][:, None]).transpose(0, 2, 1, 3).reshape(-1, HEADS * SIZE)
        hidden = np.maximum(heads @ weights["up"], 0)
        errors = softmax(hidden @ weights["head"])
        errors[np.arange(len(errors)), wanted.ravel()] -= 1
        errors /= len(errors)
        back = (errors @ weights["head"].T) * (hidden > 0)
        of_heads = (back @ weights["up"].T).reshape(batch, CONTEXT, HEADS, SIZE).transpose(0, 2, 1, 3)
        of_values = (attention.transpose(0, 2, 1) @ of_heads).sum(axis=1).reshape(-1, SIZE)
        gradients = {"values": one_of[x.ravel()].T @ of_values, "up": heads.T @ back, "head": hidden.T @ errors}
        for name, gradient in gradients.items():  # Adam
            first, second = means[name]
            first += 0.1 * (gradient - first)
            second += 0.01 * (gradient**2 - second)
            scale = np.sqrt(second / (1 - 0.99 ** (step + 1))) + 1e-8
            weights[name] -= 0.005 * first / (1 - 0.9 ** (step + 1)) / scale
    return weights


def decoder(weights):
    """Return the model in ONNX. Its inputs and outputs have the names that optimum and ONNX Runtime GenAI give them."""
    queries, keys = positions()
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        graph (int64[batch, sequence] input_ids, int64[batch, sequence] position_ids,
               float[batch, 1, past, {SIZE}] "past_key_values.0.key",
               float[batch, 1, past, {SIZE}] "past_key_values.0.value") =>
              (float[batch, sequence, {len(CHARACTERS)}] logits,
               float[batch, 1, total, {SIZE}] "present.0.key", float[batch, 1, total, {SIZE}] "present.0.value") {{
            k = Gather (keys, position_ids)  key = Unsqueeze (k, one)
            v = Gather (values, input_ids)  value = Unsqueeze (v, one)
            "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", key)
            "present.0.value" = Concat <axis = 2> ("past_key_values.0.value", value)
            q = Gather <axis = 1> (queries, position_ids)  query = Transpose <perm = [1, 0, 2, 3]> (q)
            transposed = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
            raw = MatMul (query, transposed)
            shape = Shape (raw)  total = Gather (shape, three)  places = Range (zero, total, step)
            own = Unsqueeze (position_ids, axes)  seen = LessOrEqual (places, own)
            scores = Where (seen, raw, low)  attention = Softmax <axis = -1> (scores)
            found = MatMul (attention, "present.0.value")
            back = Transpose <perm = [0, 2, 1, 3]> (found)  x = Reshape (back, flat)
            u = MatMul (x, up)  h = Relu (u)  logits = MatMul (h, head)
        }}""")
    constants = {"queries": queries, "keys": keys, **weights, "low": np.float32(-1e4)}
    constants |= {"one": np.array([1]), "axes": np.array([1, 3]), "flat": np.array([0, 0, HEADS * SIZE])}
    constants |= {"three": np.array(3), "zero": np.array(0), "step": np.array(1)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items())
    return model


def quantized(model, name):
    """Return the model with all inputs of its products, and with them its caches, in a format."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    nodes, rounded = [], {}
    for node in result.graph.node:
        # What goes to the cache is rounded once.
        chosen = node.input if node.op_type == "MatMul" else node.input[1:] if node.op_type == "Concat" else []
        for place, tensor in enumerate(node.input):
            if tensor in chosen:
                # Blocks lie along the axis that the product sums over; in the cache, along that of the features.
                axis = -2 if node.op_type == "MatMul" and place == 1 else -1
                key = f"{tensor}_{name}_{axis}"
                if key not in rounded:
                    rounded[key] = helper.make_node(
                        "BFPQuantizeDequantize",
                        [tensor],
                        [key],
                        name=key,
                        domain="com.amd.quark",
                        axis=axis,
                        sub_block_size=2,
                        sub_block_shift_bits=1,
                        **FORMATS[name],
                    )
                    nodes.append(rounded[key])
                node.input[place] = key
        nodes.append(node)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    result.opset_import.append(helper.make_opsetid("com.amd.quark", 1))
    return result


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    model = decoder(train(tokens_of("".join(pages().values()))))
    for name, each in {"float": model, **{name: quantized(model, name) for name in FORMATS}}.items():
        onnx.checker.check_model(each)
        print(f"{name}: {each.ByteSize():,} bytes")
        if folder:
            onnx.save(each, folder / f"decoder_{name.lower()}.onnx")
