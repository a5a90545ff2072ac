"""The text-line classifiers that Quark wrote, and their inputs."""

import numpy as np
from paths import MODELS


def path_of(variant):
    return str(MODELS / f"textline_cls_{variant}.onnx")


BF16, FLOAT, EXPECTED = path_of("bf16"), path_of("float"), str(MODELS / "textline_cls_expected.npz")
with np.load(EXPECTED) as arrays:
    X = arrays["x"]
