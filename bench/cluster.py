"""Measure `evaluate` in one, two and four worker processes, and write the tables into RESULTS.md."""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
from pages import digits, table, this_machine, write_part

import quark_numba
from quark_numba import Execution

MODELS = Path(__file__).parents[1] / "tests" / "models"
BATCHES, TURNS = 240, 2
# The first batches, during which processes start and sessions are created. The rates are those of the others.
STARTING = BATCHES // 6
MACHINES = (1, 10, 100)


def run(folder: Path, workers: int | None) -> dict[str, float]:
    """Return seconds, and the samples in a batch.

    `start` is the time until the first sixth of the batches is done. For each later batch, `batch` is the time, and `own` the
    processor time of this process, which runs the scheduler and adds up the sums. `runtime` is the time of ONNX Runtime's runs,
    for each of all batches.
    """
    marks: list[tuple[float, float]] = []

    def tick(done: int, total: int | None) -> None:
        if done in (STARTING, BATCHES):
            marks.append((time.perf_counter(), time.process_time()))

    start = time.perf_counter()
    found = quark_numba.evaluate(
        MODELS / "textline_cls_bf16.onnx",
        folder,
        MODELS / "textline_cls_float.onnx",
        execution=Execution(threads=1, workers=workers, progress=tick),
    )
    (first, first_cpu), (last, last_cpu) = marks
    count = BATCHES - STARTING
    in_runtime = found.samples / found.samples_per_second + found.samples / found.reference_samples_per_second
    return {
        "start": first - start,
        "batch": (last - first) / count,
        "runtime": in_runtime / BATCHES,
        "own": (last_cpu - first_cpu) / count,
        "samples": found.samples / BATCHES,
    }


def measure() -> dict[int | None, dict[str, float]]:
    """Return the medians of what `run` returns, by the number of workers; None for this process alone."""
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        x = arrays["x"]
    folder = Path(tempfile.mkdtemp())
    try:
        for index in range(BATCHES):
            np.save(folder / f"{index:03}.npy", x)
        runs = [{workers: run(folder, workers) for workers in (None, 1, 2, 4)} for _ in range(TURNS)]
    finally:
        shutil.rmtree(folder)
    return {workers: {key: median(turn[workers][key] for turn in runs) for key in runs[0][workers]} for workers in runs[0]}


def tables(times: dict[int | None, dict[str, float]]) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield f"{this_machine()}; {date.today()}: medians of {TURNS} turns.\n"
    header = ["processes", "samples a second", "ONNX Runtime, ms a batch", "overhead of a worker, ms a batch"]
    header += ["first process, ms a batch", "time of the first sixth, s"]
    rows = []
    for workers, each in times.items():
        outside = each["batch"] * (workers or 1) - each["runtime"]
        name = "this one alone" if workers is None else f"{workers} worker{'s' * (workers > 1)}"
        cells = [digits(each["samples"] / each["batch"]), digits(1e3 * each["runtime"])]
        cells.append(digits(1e3 * outside) if workers in (None, 1) else "")
        rows.append([name, *cells, digits(1e3 * each["own"]), digits(each["start"])])
    yield from table(header, rows)
    two = times[2]
    most = two["samples"] / two["own"]
    rows = []
    for machines in MACHINES:
        rate = machines * two["samples"] / two["batch"]
        rows.append([f"{machines}", digits(min(rate, most))])
    yield from table(["machines like this, two workers each", "samples a second (calculated)"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    options = parser.parse_args()
    lines = [*tables(measure())]
    print("\n".join(lines))
    if options.write:
        write_part("worker processes", lines, "cluster")
