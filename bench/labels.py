"""The keys of saved results, and what pages call them. Keys stay as they are, so that results can be compared with saved ones.
What pages call them may change here."""

import re

# Contenders with a whole model. README.md says what a drop-in session, an `InferenceSession` and the float model are.
FLOAT, DROP_IN, SESSION, SESSION_WITHOUT_CACHE = "float", "drop_in", "session", "session_without_cache"
QUARK, ONNX_RUNTIME = "quark", "onnxruntime_alone"

# How models of Quark's types run: with drop-in sessions, or optimized.
OPTIMIZED = "optimized"

# Contenders with one operator.
ONNX_RUNTIMES_OPERATOR, DIRECT_CALL, COPY = "onnxruntime", "direct_call", "copy"

# Processes that start with an empty or a filled cache of kernels, and what the keys of their processor time end with.
EMPTY, FILLED, PROCESSOR_TIME = "empty", "filled", "/processor_time"

# What pages call a part of a key, if not by its own words.
LABELS = {
    DROP_IN: "drop-in session",
    SESSION: "InferenceSession",
    QUARK: "Quark's library",
    ONNX_RUNTIME: "ONNX Runtime",
    "session_in_float": 'qdq="float"',
    SESSION_WITHOUT_CACHE: "InferenceSession with cache=False",
    "quantizers_runtime": "quantizer's runtime",
    "reference_evaluator": "ReferenceEvaluator",
    "numpy": "numpy, ml_dtypes",
    "pytorch": "PyTorch",
    "import": "import quark_numba",
    "quark_numba_info": "quark-numba info",
    "a_million_elements": "1 M elements",
    "mx9_model": "MX9 model",
    "qonnx": "QONNX",
    "mct": "MCT",
    "modelopt": "ModelOpt",
    "cnn": "CNN",
    "mlp": "MLP",
    "nvfp4": "NVFP4",
}


def group_of(name: str, threads: int) -> str:
    """Return the key of what is measured of a model on a number of threads."""
    return f"{name}/threads={threads}"


def label_of(key: str) -> str:
    """Return what pages call a key: its parts, which slashes separate, by their labels or in their own words."""
    return ", ".join(LABELS.get(part) or _in_words(part) for part in key.split("/"))


def _in_words(part: str) -> str:
    return re.sub(r"(?<=\d)x(?=\d)", "×", part).replace("_", " ").replace("=", ": ")
