"""Measure models in standard operators on an execution provider, in turns with the float model on the same provider.

`python bench/execution_providers.py [PROVIDER] [--batch N ...]` prints a table, and with --write puts it into RESULTS.md. On
the CPU's provider, drop-in sessions of the models as written take part. The models are the text-line classifier of
`tests/models`. On a GPU, the table says which card it is, and products are computed without TF32."""

import argparse
import shutil
import subprocess
from collections.abc import Callable
from datetime import date
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import onnxruntime
from measuring import MODELS, session_options
from pages import table, write_part

import quark_numba

CPU = "CPUExecutionProvider"
VARIANTS = ("bf16", "fp16", "u32", "i32", "a8w8", "bfp16", "mx9", "mxfp8")
IN_STANDARD, DROP_IN, INFERENCE_SESSION = "standard operators", "drop-in", "InferenceSession"

# So many runs of each session, in turns.
ROUNDS = 30

# What providers need to compute in float32 as it is written.
PROVIDER_OPTIONS = {
    "CUDAExecutionProvider": {"use_tf32": "0"},
    "OpenVINOExecutionProvider": {"device_type": "CPU", "precision": "FP32"},
}


def sessions(provider: str, threads: int) -> dict[str, Callable[[dict[str, np.ndarray]], object]]:
    """Return a run of each session, by the variant and the way it runs."""
    providers = [(provider, PROVIDER_OPTIONS.get(provider, {}))]
    made = {"float": onnxruntime.InferenceSession(_path("float"), session_options(threads), providers)}
    for variant in VARIANTS:
        content = quark_numba.optimize(_path(variant), operators="standard").SerializeToString()
        made[f"{variant}, {IN_STANDARD}"] = onnxruntime.InferenceSession(content, session_options(threads), providers)
        if provider == CPU:
            options = session_options(threads, "session.disable_quant_qdq")  # as `create_session` does
            quark_numba.register(options)
            made[f"{variant}, {DROP_IN}"] = onnxruntime.InferenceSession(_path(variant), options, providers)
        made[f"{variant}, {INFERENCE_SESSION}"] = quark_numba.InferenceSession(
            _path(variant), session_options(threads), providers
        )
    return {name: partial(session.run, None) for name, session in made.items()}


def _path(variant: str) -> str:
    return str(MODELS / f"textline_cls_{variant}.onnx")


def milliseconds(runs: dict[str, Callable[[dict[str, np.ndarray]], object]], batch: int) -> dict[str, float]:
    """Return the median time of a run of each session. The sessions take turns."""
    feed = {"x": np.random.default_rng(0).normal(0, 1, (batch, 3, 48, 192)).astype(np.float32)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(feed)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = perf_counter()
            run(feed)
            times[name].append(perf_counter() - start)
    return {name: 1000 * median(each) for name, each in times.items()}


def machine(provider: str) -> str:
    """Return what the runs were on: the GPU of CUDA's provider, as its driver names it."""
    if provider.startswith(("CUDA", "Tensorrt")) and shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    return provider.removesuffix("ExecutionProvider")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("provider", nargs="?", default=CPU, choices=onnxruntime.get_available_providers())
    parser.add_argument("--batch", type=int, nargs="+", default=[6])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    given = parser.parse_args()
    runs = sessions(given.provider, given.threads)
    of_batches = {batch: milliseconds(runs, batch) for batch in given.batch}
    ways = [IN_STANDARD, *[DROP_IN] * (given.provider == CPU), INFERENCE_SESSION]
    rows = []
    for batch, times in of_batches.items():
        for variant in VARIANTS:
            ratios = [times[f"{variant}, {way}"] / times["float"] for way in ways]
            rows.append([str(batch), variant, f"{times['float']:.2f} ms", *(f"{ratio:.2f}" for ratio in ratios)])
    lines = [
        f"{machine(given.provider)}, CPU threads: {given.threads}, onnxruntime {onnxruntime.__version__}, {date.today()}.",
        f"Times over the float model's on the same provider: medians of {ROUNDS} runs, in turns.",
        "",
        *table(["batch", "model", "float model", *ways], rows),
    ]
    print("\n".join(lines))
    if given.write:
        write_part(given.provider, lines, "execution_providers")


if __name__ == "__main__":
    main()
