"""A small model that sessions keep, and what its sessions give."""

import os
import time

import numpy as np
import onnx
from text_graphs import text_model

import quark_numba
from quark_numba.session.model_cache import ModelCache

EXPECTED = [0, 1, 2, 3, 4, 5, 6]  # of a model with the factor 1


def write(path, factor):
    """Write a model of y = x + w with w quantized and dequantized, which was changed ten seconds ago."""
    w = (np.arange(4000) % 7 * factor).astype(np.float32)
    text = "(float[4000] x) => (float[] y) { d = Pair (w, s, z)  y = Add (x, d) }"
    content = text_model(text, w=w, s=np.float32(0.5), z=np.int8(0))
    onnx.save(content, path, save_as_external_data=True, location="weights")
    old = time.time_ns() - 10**10
    for each in (path, path.with_name("weights")):
        os.utime(each, ns=(old, old))


def result(session):
    return session.run(None, {"x": np.zeros(4000, np.float32)})[0][:7].tolist()


def kept_result(path):
    """Return the result of a session that is kept in the folder `cache` beside the model."""
    return result(quark_numba.InferenceSession(path, cache=path.parent / "cache"))


def entry_of(folder):
    (entry,) = (each for each, _, _ in ModelCache(folder).entries())
    return entry
