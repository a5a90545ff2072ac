"""Measure the memory that data in files take in `evaluate` and `analyze`, and write the tables into RESULTS.md.

The model quantizes its input once. Each measurement is a process of its own: the largest resident memory of a run over a file,
less that of one thread over an array in memory, for each thread, in batches. Needs Linux."""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from pages import digits, table, this_machine, write_part

ROWS, COLUMNS, BATCHES, TURNS = 2048, 1024, 24, 1
MEGABYTES = ROWS * COLUMNS * 4 / 2**20

FORMS = {"x.npy": ".npy", "x.npz": ".npz", "compressed.npz": ".npz, compressed"}
FUNCTIONS = {"evaluate": (1,), "analyze": (1, 2, 8)}


def write(folder: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", COLUMNS]) for name in "xy")
    initializers = [numpy_helper.from_array(np.float32(0.01), "s"), numpy_helper.from_array(np.int8(0), "z")]
    graph = helper.make_graph(nodes, "graph", [x], [y], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    array = np.random.default_rng(0).standard_normal((BATCHES * ROWS, COLUMNS), np.float32)
    np.save(folder / "x.npy", array)
    np.savez(folder / "x.npz", x=array)
    np.savez_compressed(folder / "compressed.npz", x=np.rint(array))
    np.save(folder / "small.npy", array[:64])


def _peak() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def measure(folder: Path, function: str, threads: int, file: str) -> float:
    """Return how much the memory of this process rises, in MB. Without a file, the data are one array in memory."""
    import quark_numba

    call, execution = getattr(quark_numba, function), quark_numba.Execution(threads=threads)
    call(folder / "m.onnx", folder / "small.npy", execution=execution)
    array = np.load(folder / "x.npy", mmap_mode="r")[:ROWS].copy()
    data = quark_numba.Data(folder / file, batch=ROWS) if file else [array] * BATCHES
    Path("/proc/self/clear_refs").write_text("5")  # the largest resident memory is counted from now on
    before = _peak()
    call(folder / "m.onnx", data, execution=execution)
    return (_peak() - before) / 2**10


def measure_in_processes(folder: Path, function: str, threads: int, file: str = "") -> float:
    """Return the median of the results of `measure`, each in a new process."""
    words = [sys.executable, __file__, "--measure", str(folder), function, str(threads), file]
    return median(json.loads(subprocess.run(words, capture_output=True, check=True).stdout) for _ in range(TURNS))


def lines(folder: Path) -> Iterator[str]:
    header = [f"`{name}`, threads: {threads}" for name, counts in FUNCTIONS.items() for threads in counts]
    columns = [(name, threads) for name, counts in FUNCTIONS.items() for threads in counts]
    # Whether threads reach their most memory at the same time is chance, so that they count as often as there are.
    own = {
        (name, threads): threads * alone
        for name in FUNCTIONS
        for alone in [measure_in_processes(folder, name, 1)]
        for threads in (1, 2, 8)
    }
    rows = []
    for file, form in FORMS.items():
        added = [(measure_in_processes(folder, *column, file) - own[column]) / MEGABYTES for column in columns]
        rows.append([form, *map(digits, added)])
    yield f"{this_machine()}; {date.today()}: {BATCHES} batches of {MEGABYTES:.0f} MB.\n"
    yield from table(["MB (less is better)", *header], [["an array in memory", *(digits(own[column]) for column in columns)]])
    yield from table(["what a file adds, in batches", *header], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, function, threads, file = options.measure
        print(json.dumps(measure(Path(folder), function, int(threads), file)))
        return
    with tempfile.TemporaryDirectory(prefix="quark_numba_bench_") as folder:
        write(Path(folder))
        found = [*lines(Path(folder))]
    print("\n".join(found))
    if options.write:
        write_part("data in files", found, "memory_of_data")


if __name__ == "__main__":
    main()
