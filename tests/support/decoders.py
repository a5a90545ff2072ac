"""Small decoders with key-value caches, in float and quantized, under the names of several exporters, and plain loops that run
them."""

import re

import numpy as np
import onnxruntime
from text_graphs import text_model

import quark_numba

HEADS, SIZE, VOCABULARY, LENGTH = 2, 8, 23, 64
WIDTH = HEADS * SIZE

# The round trip of a tensor to a format, as text; SOURCE and TARGET are the names of the tensors.
ROUND_TRIPS = {
    "float": "TARGET = Identity (SOURCE)",
    "bf16": "TARGET = Pair (SOURCE, one, zero_bf16)",
    "bfp16": 'TARGET = BFPQuantizeDequantize <bfp_method = "to_bfp", bit_width = 16, block_size = 4, axis = -1> (SOURCE)',
    "xint8": "TARGET = Pair (SOURCE, fine, zero_int8)",
    "a8w8": "TARGET_q = QuantizeLinear (SOURCE, step, zero_uint8)  TARGET = DequantizeLinear (TARGET_q, step, zero_uint8)",
}

_ATTENTION = """
    q4 = Reshape (q, heads)  qt = Transpose <perm = [0, 2, 1, 3]> (q4)
    k4 = Reshape (kr, heads)  kt = Transpose <perm = [0, 2, 1, 3]> (k4)
    v4 = Reshape (vr, heads)  vt = Transpose <perm = [0, 2, 1, 3]> (v4)
    KEEP
    present_0_key = Concat <axis = 2> (past_k, kt)  present_0_value = Concat <axis = 2> (past_v, vt)
    shape = Shape (present_0_key)  total = Gather (shape, two)  places = Range (start, total, stride)
    own = Unsqueeze (position_ids, axes)  seen = LessOrEqual (places, own)
    kT = Transpose <perm = [0, 1, 3, 2]> (present_0_key)  raw = MatMul (qt, kT)
    scores = Where (seen, raw, low)  weights = Softmax (scores)
    context = MatMul (weights, present_0_value)  back = Transpose <perm = [0, 2, 1, 3]> (context)  y = Reshape (back, flat)"""

_GROUPED = """
    lengths = ReduceSum <keepdims = 0> (attention_mask, one_axis)  last = Sub (lengths, stride)  last32 = Cast <to = 6> (last)
    shape = Shape (attention_mask)  total = Gather (shape, stride)  total32 = Cast <to = 6> (total)
    y, present_0_key, present_0_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2>
        (q, kr, vr, past_0_key, past_0_value, last32, total32)"""

_BRANCH = """
    past_k = If (use_cache_branch) <then_branch = k1 () => (float[b, 2, p, 8] a) { a = Identity (past_0_key) },
        else_branch = k2 () => (float[b, 2, p, 8] c) { c = Slice (past_0_key, none, none, two_axis) }>
    past_v = If (use_cache_branch) <then_branch = v1 () => (float[b, 2, p, 8] d) { d = Identity (past_0_value) },
        else_branch = v2 () => (float[b, 2, p, 8] e) { e = Slice (past_0_value, none, none, two_axis) }>"""


def decoder(kind="float", *, attention="causal", rename=None, seed=0):
    """Return a decoder of one layer whose caches and logits have the round trip of a format. `attention` is "causal" (with
    position_ids), "merged" (also with use_cache_branch) or "grouped" (GroupQueryAttention with attention_mask)."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.6, (WIDTH, WIDTH)) for name in ("wq", "wk", "wv", "wo")}
    weights |= {"wte": rng.normal(0, 1, (VOCABULARY, WIDTH)), "wpe": rng.normal(0, 0.3, (LENGTH, WIDTH))}
    weights["head"] = rng.normal(0, 1, (WIDTH, VOCABULARY))
    constants = {name: value.astype(np.float32) for name, value in weights.items()}
    constants |= {"one": np.float32(1), "fine": np.float32(2**-4), "step": np.float32(0.05), "low": np.float32(-1e4)}
    bf16 = quark_numba.quantize(np.zeros((), np.float32), 1.0, dtype="bfloat16")
    constants |= {"zero_bf16": bf16, "zero_int8": np.int8(0), "zero_uint8": np.uint8(128)}
    constants |= {"heads": np.array([0, 0, HEADS, SIZE]), "flat": np.array([0, 0, WIDTH]), "axes": np.array([1, 3])}
    constants |= {"two": np.array(2), "start": np.array(0), "stride": np.array(1), "one_axis": np.array([1])}
    constants |= {"none": np.array([0]), "two_axis": np.array([2])}
    made = "int64[batch, total] attention_mask" if attention == "grouped" else "int64[batch, sequence] position_ids"
    made += ", bool[1] use_cache_branch" if attention == "merged" else ""
    caches = ", ".join(f"float[batch, 2, SPAN, 8] TIME_0_{each}" for each in ("key", "value"))
    positions = "" if attention == "grouped" else "pos = Gather (wpe, position_ids)  x = Add (tok, pos)"
    keep = _BRANCH if attention == "merged" else "past_k = Identity (past_0_key)  past_v = Identity (past_0_value)"
    text = f"""(int64[batch, sequence] input_ids, {made}, {caches.replace("SPAN", "past").replace("TIME", "past")}) =>
        (float[batch, sequence, {VOCABULARY}] logits, {caches.replace("SPAN", "total").replace("TIME", "present")}) {{
        {"x" if not positions else "tok"} = Gather (wte, input_ids)  {positions}
        q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)
        {ROUND_TRIPS[kind].replace("SOURCE", "k").replace("TARGET", "kr")}
        {ROUND_TRIPS[kind].replace("SOURCE", "v").replace("TARGET", "vr")}
        {(_GROUPED if attention == "grouped" else _ATTENTION).replace("KEEP", keep)}
        o = MatMul (y, wo)  z = Add (x, o)
        {ROUND_TRIPS[kind].replace("SOURCE", "z").replace("TARGET", "zr")}
        logits = MatMul (zr, head) }}"""
    used = {name: value for name, value in constants.items() if re.search(rf"\b{name}\b", text)}
    model = text_model(text, opset=17, **used)
    return model if rename is None else renamed(model, rename)


OPTIMUM = {
    f"{before}_0_{each}": f"{after}.0.{each}"
    for before, after in (("past", "past_key_values"), ("present", "present"))
    for each in ("key", "value")
}


def renamed(model, names):
    """Return the model with other names of inputs and outputs."""
    for graph in (model.graph, *(each.g for node in model.graph.node for each in node.attribute if each.HasField("g"))):
        for value in (*graph.input, *graph.output):
            value.name = names.get(value.name, value.name)
        for node in graph.node:
            for each in (node.input, node.output):
                each[:] = [names.get(name, name) for name in each]
    return model


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(quark_numba.get_library_path())
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def logits_by_hand(session, tokens, window):
    """Return the logits of all tokens (texts, tokens), and a function that returns those of further tokens. The model has the
    names of `decoder`."""
    inputs = {each.name for each in session.get_inputs()}
    state = {name: np.zeros((len(tokens), HEADS, 0, SIZE), np.float32) for name in ("past_0_key", "past_0_value")}
    done = 0

    def step(part):
        nonlocal done
        end = done + part.shape[1]
        feeds = {"input_ids": part, "position_ids": np.tile(np.arange(done, end), (len(part), 1))}
        feeds |= {"attention_mask": np.ones((len(part), end), np.int64), "use_cache_branch": np.array([done > 0])}
        feeds = {name: value for name, value in feeds.items() if name in inputs}
        logits, state["past_0_key"], state["past_0_value"] = session.run(None, feeds | state)
        done = end
        return logits

    parts = [step(tokens[:, start : start + window]) for start in range(0, tokens.shape[1], window)]
    return np.concatenate(parts, axis=1), step


def written_by_hand(step, logits, count):
    """Return the most probable next tokens."""
    tokens = []
    for _ in range(count):
        tokens.append(logits[:, -1].argmax(-1)[:, None])
        logits = step(tokens[-1])
    return np.concatenate(tokens, axis=1).tolist()
