"""Latency of Quark's models with Quark's own library, which is compiled first, in one process and in turns with the float model
and with this package; and the time that Quark's fine-tuning takes with its operators and with ours."""

import os
import subprocess
import sys
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from beside_quark import CLASSIFIER, CONTENDERS, FINE_TUNED, NAMES, STEPS
from cases import TURNS
from labels import DROP_IN, FLOAT, QUARK, SESSION, group_of
from measuring import MODELS, Run, classifier_inputs, measure, session_options

import quark_numba

HAS_QUARK = find_spec("quark") is not None and find_spec("torch") is not None


@lru_cache
def _quarks_library() -> str:
    """Compile Quark's library in another process, as Quark would change the log of this one. Return its path."""
    import torch  # noqa: F401  # whose libraries Quark's needs

    code = "import quark.onnx; print(quark.onnx.get_library_path())"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # ninja's
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"Quark's library cannot be compiled: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.splitlines()[-1]


def _run(name: str, contender: str, threads: int) -> Run:
    options = session_options(threads, "session.disable_quant_qdq")  # for int32
    is_classifier = name.startswith(CLASSIFIER)
    if (contender == FLOAT and not is_classifier) or (contender == QUARK and not HAS_QUARK):
        return None
    path = MODELS / f"{CLASSIFIER}_float.onnx" if contender == FLOAT else MODELS / f"{name}.onnx"
    if contender == QUARK:
        options.register_custom_ops_library(_quarks_library())
    elif contender == DROP_IN:
        options.register_custom_ops_library(quark_numba.get_library_path())
    create = quark_numba.InferenceSession if contender == SESSION else onnxruntime.InferenceSession
    session = create(str(path), options)
    if is_classifier:
        return partial(session.run, None, classifier_inputs())
    with np.load(MODELS / f"{name}_expected.npz") as arrays:
        return partial(session.run, None, {"x": arrays["x"][0]})


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("turn", range(2 * TURNS))
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.benchmark(max_time=0.2, min_rounds=3, warmup=True, warmup_iterations=1)
def test_model(benchmark, name, threads, turn, contender):
    measure(benchmark, group_of(name, threads), contender, partial(_run, name, contender, threads))


@pytest.mark.quick
@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.benchmark(max_time=0.02, min_rounds=2)
def test_model_briefly(benchmark, name, contender):
    measure(benchmark, group_of(name, 2), contender, partial(_run, name, contender, 2))


@pytest.mark.skipif(not HAS_QUARK, reason="amd-quark and torch are not installed")
@pytest.mark.parametrize("configuration", FINE_TUNED)
@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("contender", [QUARK, DROP_IN])
def test_fine_tuning(benchmark, tmp_path, configuration, turn, contender):
    """Each is a process, as both define operators of the same names; the time is that of Quark's call."""
    _quarks_library()
    words = ["-m", "quark_numba.for_quark"] if contender == DROP_IN else []
    command = [sys.executable, *words, str(Path(__file__).with_name("fine_tune.py")), configuration, str(STEPS)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    benchmark.group = configuration
    benchmark.extra_info |= {"contender": contender}
    done = benchmark.pedantic(
        lambda: subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True), rounds=1
    )
    benchmark.extra_info["seconds"] = [float(done.stdout.splitlines()[-1])]
