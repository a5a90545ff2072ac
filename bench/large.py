"""Measure memory and time of models of gigabytes, beside plain ONNX Runtime on the float model.

The models are decoders as people quantize them: float32 weights in a file beside the model, a dynamic batch and sequence, and
Quark's nodes behind each weight and activation. Each measurement is a process of its own."""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper
from pages import digits, table, this_machine, write_part

WEIGHTS = "weights.data"

TOKENS = np.arange(8, dtype=np.int64).reshape(1, 8)


@dataclass(frozen=True)
class Size:
    """The dimensions of a decoder. Its weights take about `gigabytes`."""

    gigabytes: float
    width: int
    layers: int
    vocabulary: int

    @property
    def inner(self) -> int:
        return self.width * 11 // 4


SIZES = (Size(0.27, 1024, 3, 14_000), Size(1, 2048, 4, 11_000), Size(3, 2048, 14, 11_000), Size(8, 4096, 9, 16_000))

FLOAT, *FORMATS = ("float", "bf16", "int8", "mxfp4")


class Decoder:
    """A decoder: attention and a gated MatMul, each after a normalization. Its weights are written to a file as they are
    added."""

    def __init__(self, size: Size, file: Any) -> None:
        self.size, self.file = size, file
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.floats = []  # names of float weights and activations, in order
        self.drawn: dict[tuple[int, ...], Any] = {}
        self.model = self._model()

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        self.floats.append(name)
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        """Write a weight. Weights of one shape have the same elements in another order, so that gigabytes are quickly drawn."""
        if shape not in self.drawn:
            random = np.random.default_rng(len(self.drawn))
            self.drawn[shape] = random.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
        name = f"w{len(self.initializers)}"
        content = np.roll(self.drawn[shape], 17 * len(self.initializers)).tobytes()
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": WEIGHTS, "offset": self.file.tell(), "length": len(content)}.items():
            tensor.external_data.add(key=key, value=str(value))
        self.file.write(content)
        self.initializers.append(tensor)
        self.floats.append(name)
        return name

    def _norm(self, x: str) -> str:
        ones = np.ones(self.size.width, np.float32)
        return self.add("LayerNormalization", x, self.constant(ones), self.constant(0 * ones), axis=-1)

    def _model(self) -> onnx.ModelProto:
        add, width, inner = self.add, self.size.width, self.size.inner
        heads, joined = self.constant(np.int64([0, 0, width // 128, 128])), self.constant(np.int64([0, 0, -1]))
        root = self.constant(np.float32(128**-0.5))
        x = add("Gather", self.weight(self.size.vocabulary, width), "tokens")
        for _ in range(self.size.layers):
            normal = self._norm(x)
            q, k, v = (
                add("Transpose", add("Reshape", add("MatMul", normal, self.weight(width, width)), heads), perm=perm)
                for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
            )
            scores = add("Softmax", add("Mul", add("MatMul", q, k), root), axis=-1)
            attended = add("Reshape", add("Transpose", add("MatMul", scores, v), perm=[0, 2, 1, 3]), joined)
            x = add("Add", x, add("MatMul", attended, self.weight(width, width)))
            normal = self._norm(x)
            gate = add("MatMul", normal, self.weight(width, inner))
            gated = add("Mul", gate, add("Sigmoid", gate))
            up = add("Mul", gated, add("MatMul", normal, self.weight(width, inner)))
            x = add("Add", x, add("MatMul", up, self.weight(inner, width)))
        y = add("MatMul", self._norm(x), self.weight(width, self.size.vocabulary))
        tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"])
        logits = helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", "sequence", self.size.vocabulary])
        graph = helper.make_graph(self.nodes, "decoder", [tokens], [logits], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantized(decoder: Decoder, name: str) -> onnx.ModelProto:
    """Return the decoder with Quark's nodes for a format after each weight and activation."""
    result = onnx.ModelProto()
    result.CopyFrom(decoder.model)
    weights = {each.name: each.dims for each in result.graph.initializer}
    (output,) = (each.name for each in result.graph.output)
    new: list[onnx.NodeProto] = []
    behind = {each: f"{each}_rounded" for each in decoder.floats if each != output}

    def insert(value: str) -> None:
        if name == "mxfp4":
            axis = -2 if value in weights else -1
            new.append(_node("MXQuantizeDequantize", [value], behind[value], element_dtype="fp4_e2m1", axis=axis))
            return
        kind, zero, dtype = ("bf16", TensorProto.BFLOAT16, 2) if name == "bf16" else ("int8", TensorProto.INT8, 1)
        scale = 1.0 if kind == "bf16" else (5 * weights[value][0] ** -0.5 if value in weights else 8.0) / 128
        parameters = [f"{value}_scale", f"{value}_zero_point"]
        result.graph.initializer.append(helper.make_tensor(parameters[0], TensorProto.FLOAT, [], [scale]))
        result.graph.initializer.append(helper.make_tensor(parameters[1], zero, [], bytes(dtype), raw=True))
        new.append(_node("ExtendedQuantizeLinear", [value, *parameters], f"{value}_codes"))
        new.append(_node("ExtendedDequantizeLinear", [f"{value}_codes", *parameters], behind[value]))

    for value in weights:
        if value in behind:
            insert(value)
    for node in decoder.model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [behind.get(each, each) for each in node.input]
        new.append(copy)
        if node.output[0] in behind:
            insert(node.output[0])
    del result.graph.node[:]
    result.graph.node.extend(new)
    result.opset_import.append(helper.make_opsetid("com.amd.quark", 1))
    return result


def _node(operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], output, domain="com.amd.quark", **attributes)


def write(size: Size, folder: Path) -> None:
    """Write the model in all formats. They share the file of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / WEIGHTS, "wb") as file:
        decoder = Decoder(size, file)
    for name in (FLOAT, *FORMATS):
        model = decoder.model if name == FLOAT else quantized(decoder, name)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())


# The measurements, each in a process of its own.


def _memory(name: str) -> float:
    """Return VmRSS, or VmHWM, the most so far, of this process, in MB."""
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(name)).split()[1]) / 1024


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return options


def _float(path: Path, threads: int) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, _options(threads), providers=["CPUExecutionProvider"])


def _registered(path: Path, threads: int) -> Any:
    import onnxruntime

    import quark_numba

    options = _options(threads)
    quark_numba.register(options)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _own(path: Path, threads: int, **named: Any) -> Any:
    import quark_numba

    return quark_numba.InferenceSession(path, _options(threads), providers=["CPUExecutionProvider"], **named)


def _optimize(path: Path, threads: int) -> None:
    import quark_numba

    quark_numba.optimize(path, path.with_suffix(".optimized.onnx"))


def _kept(path: Path, threads: int) -> Any:
    return _own(path, threads, cache=path.parent / "cache")


def _codes(path: Path, threads: int) -> Any:
    return _own(path, threads, keep_quantized_weights=True)


def _analyze(path: Path, threads: int) -> None:
    import quark_numba

    quark_numba.analyze(path, [{"tokens": TOKENS}], execution=quark_numba.Execution(threads=threads))


def _evaluate(path: Path, threads: int) -> None:
    import quark_numba

    quark_numba.evaluate(path, [{"tokens": TOKENS}], execution=quark_numba.Execution(threads=threads))


class Case(NamedTuple):
    """What is measured: its label in tables, the function that is called with a path and a number of threads and may return a
    session, and the end of the path, after the format's name."""

    label: str
    function: Callable[[Path, int], Any]
    suffix: str = ".onnx"


CASES = {
    FLOAT: Case("float model, plain ONNX Runtime", _float),
    "registered": Case("drop-in session", _registered),
    "own": Case("`InferenceSession`", _own),
    "kept": Case("`InferenceSession`, cached model", _kept),
    "codes": Case("`InferenceSession`, `keep_quantized_weights`", _codes),
    "optimize": Case("`optimize(path, out)`", _optimize),
    "output": Case("a drop-in session of its output", _registered, ".optimized.onnx"),
    "analyze": Case("`analyze`, one batch", _analyze),
    "evaluate": Case("`evaluate`, one batch", _evaluate),
}


def measure(case: str, path: Path, threads: int) -> dict[str, Any]:
    """Measure a case in this process. Return memory in MB, times in seconds, and a digest of the outputs."""
    import onnxruntime  # noqa: F401

    if case != FLOAT:
        import quark_numba

        quark_numba.get_library_path()
    if CASES[case].function not in (_float, _registered):
        import quark_numba.session.inference_session
    found: dict[str, Any] = {"before": _memory("VmRSS")}
    wall, cpu = time.perf_counter(), time.process_time()
    session = CASES[case].function(path, threads)
    found |= {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    found |= {"peak": _memory("VmHWM"), "loaded": _memory("VmRSS")}
    if session:
        digests = []
        times = []
        for _ in range(4):
            start = time.perf_counter()
            (y,) = session.run(None, {"tokens": TOKENS})
            times.append(time.perf_counter() - start)
            digests.append(hashlib.sha256(y.tobytes()).hexdigest()[:16])
        assert len(set(digests)) == 1
        found |= {"runs_peak": _memory("VmHWM"), "ran": _memory("VmRSS"), "run": min(times), "digest": digests[0]}
    return found


def measure_in_process(case: str, path: Path, threads: int) -> dict[str, Any]:
    """Return what `measure` returns in a new process, or its error."""
    command = [sys.executable, __file__, "--measure", case, str(path), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def measure_cases(size: Size, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the medians of each case, or its error. The float model is always the first one: others are compared with it."""
    for name in (FLOAT, *options.formats):
        for case in CASES:
            if (case == FLOAT) != (name == FLOAT) or case not in (FLOAT, *options.cases):
                continue
            path = folder / f"{name}{CASES[case].suffix}"
            if case == "kept":
                measure_in_process(case, path, options.threads)  # which fills the cache
            rounds = [measure_in_process(case, path, options.threads) for _ in range(options.rounds)]
            found = next((each for each in rounds if "error" in each), None) or {
                key: value if isinstance(value, str) else median(each[key] for each in rounds)
                for key, value in rounds[0].items()
            }
            yield {"size": size.gigabytes, "format": name, "case": case} | found
        shutil.rmtree(folder / "cache", ignore_errors=True)
        for each in folder.glob("*.optimized.*"):
            each.unlink()


# The columns of the tables: what is measured, and the factor of its unit.
COLUMNS = {
    "peak": ("peak of loading, MB", 1),
    "loaded": ("loaded, MB", 1),
    "runs_peak": ("peak with runs, MB", 1),
    "cpu": ("loading, processor s", 1),
    "run": ("a run, ms", 1e3),
}


def _text(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the tables, one for each size."""
    names = ("numba", "onnxruntime", "onnx", "onnx-ir")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    yield f"{this_machine()}; {versions}; {date.today()}."
    yield "In brackets: multiples of the float model in plain ONNX Runtime (less is better).\n"
    for size in dict.fromkeys(each["size"] for each in found):
        reference, *others = [each for each in found if each["size"] == size]
        rows = [[CASES[FLOAT].label, *_cells(reference, {})]]
        for row in others:
            label = f"{row['format']}: {CASES[row['case']].label}"
            rows.append([label, *_cells(row, {} if row["case"] == "optimize" else reference)])
        yield from table([f"{size:g} GB", *(column for column, _ in COLUMNS.values())], rows)


def _cells(row: dict[str, Any], reference: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of a row: what was measured, and in brackets its multiple of the reference's if that has it."""
    for key, (_, factor) in COLUMNS.items():
        if key not in row:
            yield row.get("error", "")
        else:
            ratio = f" ({digits(row[key] / reference[key])})" if key in reference else ""
            yield f"{digits(factor * row[key])}{ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [size.gigabytes for size in SIZES]
    parser.add_argument("--sizes", type=float, nargs="+", default=[1], choices=sizes, help="in GB; default: 1")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, help="besides the float model")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="besides that of the float model")
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure, for medians")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the models stay; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], Path(options.measure[1]), options.threads)))
        return
    found = []
    with tempfile.TemporaryDirectory(prefix="quark_numba_bench_") as temporary:
        for size in SIZES:
            if size.gigabytes not in options.sizes:
                continue
            folder = Path(options.folder or temporary) / f"{size.gigabytes:g}"
            if not (folder / "float.onnx").exists():
                write(size, folder)
            for each in measure_cases(size, folder, options):
                print(json.dumps(each), flush=True)
                found.append(each)
            if options.folder is None:
                shutil.rmtree(folder)
    if options.write:
        write_part("large models", _text(found), "large")


if __name__ == "__main__":
    main()
