"""ONNX Runtime Web in a process of Node, which runs models, or drives a browser that does. Imports nothing of the package."""

import base64
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quark_numba" / "web"
RUNNER = Path(__file__).parent / "runner.mjs"


class WebError(Exception):
    """The error of ONNX Runtime Web for a model that it does not run."""


class WebRuntime:
    """A process of Node with ONNX Runtime Web.

    Parameters
    ----------
    browser : path, optional
        The path of Chromium. Without it, models run in Node.
    """

    def __init__(self, browser=None):
        command = ["node", RUNNER, PLACE, *([browser] if browser else [])]
        self._process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def run(self, model, feeds, *, provider="wasm", level="disabled", runs=1):
        """Return the outputs of a ModelProto by name. Raise WebError."""
        return self.timed(model, feeds, provider=provider, level=level, runs=runs)[0]

    def timed(self, model, feeds, *, provider="wasm", level="disabled", runs=1):
        """Return the outputs, and the seconds of each run. Raise WebError."""
        content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else Path(model).read_bytes()
        options = {"executionProviders": [provider], "graphOptimizationLevel": level, "logSeverityLevel": 3}
        tensors = {name: _sent(np.asarray(array)) for name, array in feeds.items()}
        job = {"model": base64.b64encode(content).decode(), "feeds": tensors, "options": options, "runs": runs}
        answer = self.ask(job)
        return {name: _received(**each) for name, each in answer["outputs"].items()}, [each / 1000 for each in answer["times"]]

    def ask(self, job):
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process of Node has ended"
        answer = json.loads(line)
        if "error" in answer:
            raise WebError(answer["error"])
        return answer


def _sent(array):
    array = np.ascontiguousarray(array)
    return {"type": array.dtype.name, "dims": array.shape, "data": base64.b64encode(array.tobytes()).decode()}


def _received(type, dims, data):  # noqa: A002  # as in JavaScript
    """Return a tensor's array. Codes of 4 bits are unpacked."""
    content = base64.b64decode(data)
    if not type.endswith("int4"):
        return np.frombuffer(content, type).reshape(dims)
    codes = np.frombuffer(content, np.uint8)
    codes = np.stack([codes & 15, codes >> 4], -1).reshape(-1)[: np.prod(dims, dtype=int)].reshape(dims)
    return codes if type == "uint4" else (codes ^ 8).astype(np.int8) - 8
