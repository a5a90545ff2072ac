"""What a new process waits for."""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

MODELS = Path(__file__).parent.parent / "tests" / "models"

CALL = "import numpy; from quark_numba import quantize; quantize(numpy.ones({}, 'f'), 0.5)"
SESSION = f"""
import onnxruntime
options = onnxruntime.SessionOptions()
{{}}
onnxruntime.InferenceSession({str(MODELS)!r} + "/textline_cls_{{}}.onnx", options)
"""
REGISTER = "import quark_numba; quark_numba.register(options)"

# The code of each, and what of it is not ours: the difference counts.
STEPS = {
    "import": ("import numpy, quark_numba", "import numpy"),
    "first call, cache empty": (CALL.format(1), "import numpy"),
    "first call, cache filled": (CALL.format(1), "import numpy"),
    "first call of 1 M elements, cache empty": (CALL.format(1 << 20), "import numpy"),
    "first call of 1 M elements, cache filled": (CALL.format(1 << 20), "import numpy"),
    "session of the bf16 model, cache empty": (SESSION.format(REGISTER, "bf16"), SESSION.format("", "float")),
    "session of the bf16 model, cache filled": (SESSION.format(REGISTER, "bf16"), SESSION.format("", "float")),
}


@pytest.mark.parametrize("part", ["all", "without ours"])
@pytest.mark.parametrize("step", STEPS)
def test_start_up(benchmark, tmp_path, step, part):
    benchmark.group = f"start-up: {step}"
    benchmark.extra_info |= {"step": step, "part": part}
    code = STEPS[step][part != "all"]
    caches = count()

    def process(cache: Path) -> None:
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "NUMBA_CACHE_DIR": str(cache)}, check=True)

    def empty() -> tuple[tuple[Path], dict[str, object]]:
        return (tmp_path / str(next(caches)),), {}

    if "empty" in step:
        benchmark.pedantic(process, setup=empty, rounds=3)
    else:
        process(tmp_path)
        benchmark.pedantic(process, (tmp_path,), rounds=7)
