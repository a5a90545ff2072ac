"""Measure models on an execution provider, in turns with the float model on the same provider.

`python bench/execution_providers.py [PROVIDER] [--batch N ...] [--model NAME ...]` prints a table, and with --write puts it
into RESULTS.md. The models are the text-line classifier of `tests/models`, and with `--model` those of `architectures.py`, at
the first of the batches. Drop-in sessions take part where the provider runs this package's operators,
or is the CPU's. On a GPU, the table says which card it is, inputs and outputs stay in its memory, and products are computed
without TF32."""

import argparse
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import onnx
import onnxruntime
from architectures import ARCHITECTURES, architecture, quantized
from labels import DROP_IN, FLOAT, SESSION, label_of
from measuring import MODELS, session_options
from pages import digits, table, this_machine, write_part

import quark_numba

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
CLASSIFIER = "text-line_classifier"
VARIANTS = ("bf16", "fp16", "u32", "i32", "a8w8", "bfp16", "mx9", "mxfp8")
VARIANTS_OF_ARCHITECTURES = ("bfloat16", "float16", "int16", "bfp16", "mx9", "mxfp8")
IN_STANDARD = "standard_operators"

# So many runs of each session, in turns.
ROUNDS = 30

# What providers need to compute in float32 as it is written.
PROVIDER_OPTIONS = {
    CUDA: {"use_tf32": "0"},
    "OpenVINOExecutionProvider": {"device_type": "CPU", "precision": "FP32"},
}

Session = onnxruntime.InferenceSession


def models(name: str, batch: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the float model and its quantized variants, with their names."""
    if name == CLASSIFIER:
        for variant in (FLOAT, *VARIANTS):
            yield variant, onnx.load(MODELS / f"textline_cls_{variant}.onnx")
        return
    model = onnx.ModelProto()
    model.CopyFrom(architecture(name))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    yield FLOAT, model
    for variant in VARIANTS_OF_ARCHITECTURES:
        yield variant, quantized(model, variant)


def sessions(name: str, batch: int, provider: str, threads: int) -> dict[str, Session]:
    """Return the sessions of a model by key: the variant and the way it runs."""
    providers = [(provider, PROVIDER_OPTIONS.get(provider, {}))]
    made = {}
    for variant, model in models(name, batch):
        content = model.SerializeToString()
        if variant == FLOAT:
            made[variant] = Session(content, session_options(threads), providers)
            continue
        standard = quark_numba.optimize(model, operators="standard").SerializeToString()
        made[f"{variant}/{IN_STANDARD}"] = Session(standard, session_options(threads), providers)
        if provider in (CPU, CUDA):
            options = session_options(threads, "session.disable_quant_qdq")  # as `create_session` does
            quark_numba.register(options)
            made[f"{variant}/{DROP_IN}"] = Session(content, options, providers)
        made[f"{variant}/{SESSION}"] = quark_numba.InferenceSession(content, session_options(threads), providers)
    return made


def run_of(session: Session, feed: dict[str, np.ndarray], provider: str) -> Callable[[], object]:
    """Return a run of a session, whose inputs and outputs are on the provider's device."""
    if provider != CUDA:
        return partial(session.run, None, feed)
    binding = session.io_binding()
    for name, x in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")
    return partial(session.run_with_iobinding, binding)


def milliseconds(made: dict[str, Session], provider: str, batch: int) -> dict[str, float]:
    """Return the median time of a run of each session. The sessions take turns."""
    (x,) = made[FLOAT].get_inputs()
    shape = [batch, *(size if isinstance(size, int) else {2: 48, 3: 192}[d] for d, size in enumerate(x.shape[1:], 1))]
    feed = {x.name: np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
    runs = {name: run_of(session, feed, provider) for name, session in made.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(2):
        for run in runs.values():
            run()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return {name: 1000 * median(each) for name, each in times.items()}


def device(provider: str) -> str:
    """Return what the provider runs on: the GPU of CUDA's provider and its driver's version, as the driver names them."""
    if provider.startswith(("CUDA", "Tensorrt")) and shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    return provider.removesuffix("ExecutionProvider")


def rows_of(name: str, batch: int, times: dict[str, float], ways: list[str]) -> Iterator[list[str]]:
    """Yield the rows of a model in the table. `times` are in ms, by the keys of sessions."""
    for variant in dict.fromkeys(key.partition("/")[0] for key in times if key != FLOAT):
        ratios = [times[f"{variant}/{way}"] / times[FLOAT] for way in ways]
        yield [label_of(name), str(batch), variant, f"{digits(times[FLOAT])} ms", *map(digits, ratios)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("provider", nargs="?", default=CPU, choices=onnxruntime.get_available_providers())
    parser.add_argument("--batch", type=int, nargs="+", default=[6])
    parser.add_argument("--model", nargs="+", default=[CLASSIFIER], choices=[CLASSIFIER, *ARCHITECTURES])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    given = parser.parse_args()
    ways = [IN_STANDARD, *[DROP_IN] * (given.provider in (CPU, CUDA)), SESSION]
    rows = []
    for name in given.model:
        made = sessions(name, given.batch[0], given.provider, given.threads)
        for batch in given.batch if name == CLASSIFIER else given.batch[:1]:
            rows += rows_of(name, batch, milliseconds(made, given.provider, batch), ways)
            print(*rows[-1], sep=", ", flush=True)
    lines = [
        f"{this_machine()}; {device(given.provider)}, CPU threads: {given.threads},",
        f"onnxruntime {onnxruntime.__version__}, {date.today()}.",
        f"Multiples of the float model's latency on the same provider (less is better): medians of {ROUNDS} runs, in turns.",
        "",
        *table(["model", "batch", "variant", "float model", *map(label_of, ways)], rows),
    ]
    print("\n".join(lines))
    if given.write:
        write_part(given.provider, lines, "execution_providers")


if __name__ == "__main__":
    main()
