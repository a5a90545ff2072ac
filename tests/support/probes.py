"""Single nodes of QONNX's operators, with the results of QONNX's own executor. Imports nothing of the package."""

import json
from typing import Any, NamedTuple

import numpy as np
from paths import MODELS


class Probe(NamedTuple):
    number: int
    operator: str
    version: int
    domain: str
    attributes: dict[str, Any]
    inputs: list[np.ndarray]
    output: np.ndarray


def probes(operator=None, version=None):
    """Yield the probes, all of them or those of one operator and version."""
    with np.load(MODELS / "qonnx" / "probes_shared.npz") as arrays:
        for key in (name.removesuffix("_json") for name in arrays.files if name.endswith("_json")):
            meta = json.loads(str(arrays[f"{key}_json"]))
            if operator not in (None, meta["op_type"]) or version not in (None, meta["opset"]):
                continue
            yield Probe(
                int(key),
                meta["op_type"],
                meta["opset"],
                meta["domain"],
                meta["attributes"],
                [arrays[f"{key}_x{i}"] for i in range(meta["inputs"])],
                arrays[f"{key}_y"],
            )
