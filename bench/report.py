"""Write the results of `pytest bench --benchmark-json=FILE` as tables and a plot into the README beside this file."""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from statistics import median

from architectures import ARCHITECTURES, BLOCK_FORMATS
from beside_quark import CONTENDERS as ALL_BESIDE_QUARK
from beside_quark import FINE_TUNED, STEPS
from beside_quark import FLOAT as FLOAT_BESIDE_QUARK
from beside_quark import NAMES as BESIDE_QUARK
from cases import BLOCK_CASES, GRANULARITIES, OTHER_CASES, PER_TENSOR, SIZES, Case, cases
from models_of_onnx import ALL_OURS, ONNX_RUNTIME
from models_of_onnx import NAMES as NAMES_OF_ONNX
from models_of_onnx import OURS as IN_OUR_SESSION
from models_of_quantizers import AS_WRITTEN, CONVOLUTIONAL, FLOAT, LAYOUTS, NAMES, OPTIMISED, VENDOR

README = Path(__file__).with_name("README.md")
PLOT = Path(__file__).with_name("throughput.png")
MARKS = "<!-- what bench/report.py writes -->", "<!-- and so far -->"
MARKS_OF_QUANTIZERS = "<!-- what bench/report.py writes of other quantizers -->", "<!-- and so far of other quantizers -->"
MARKS_OF_MODELS = "<!-- what bench/report.py writes of Quark's models -->", "<!-- and so far of Quark's models -->"
MARKS_OF_ONNX = "<!-- what bench/report.py writes of ONNX's own operators -->", "<!-- and so far of ONNX's own operators -->"
MARKS_BESIDE_QUARK = "<!-- what bench/report.py writes of Quark's library -->", "<!-- and so far of Quark's library -->"

OURS = ("native session", "extensions session", "direct call")


class Results:
    """The median seconds of each contender, over its turns."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text())
        self.machine = content["machine_info"]
        self.versions = self.machine["quark_numba"]
        self.date = content["datetime"][:10]
        seconds = defaultdict(list)
        for benchmark in content["benchmarks"]:
            info = benchmark["extra_info"]
            key = (benchmark["group"], info.get("contender") or info.get("model"))
            seconds[key] += info.get("seconds") or [benchmark["stats"]["median"]]
        self.seconds = {key: median(values) for key, values in seconds.items()}
        self.contenders = list(dict.fromkeys(who for group, who in seconds if group.startswith(("quantize", "dequantize"))))

    def get(self, group: str, who: str | None = None) -> float | None:
        return self.seconds.get((group, who))

    def ratio(self, case: Case, ours: str, theirs: str) -> float | None:
        """Return our speed as a multiple of the other contender's."""
        mine, other = self.get(case.group, ours), self.get(case.group, theirs)
        return other / mine if mine and other else None


@dataclass(frozen=True)
class Target:
    what: str
    wanted: str
    measured: Callable[[Results], Iterator[tuple[float, str]]]  # numbers, and the case of each
    is_least: bool = True
    unit: str = "×"

    @property
    def bound(self) -> float:
        return float(self.wanted.split()[0])


def _versus(ours: str, theirs: tuple[str, ...], which: Callable[[Case], bool]):
    def measured(results: Results) -> Iterator[tuple[float, str]]:
        for case in cases():
            for other in theirs if which(case) else ():
                ratio = results.ratio(case, ours, other)
                if ratio:
                    against = f", {other}" if len(theirs) > 1 else ""
                    yield ratio, f"{_label(case)}{against}"

    return measured


def _one_element(results: Results) -> Iterator[tuple[float, str]]:
    for case in cases():
        seconds = results.get(case.group, "direct call")
        if case.size == 1 and seconds:
            yield 1e6 * seconds, _label(case)


def _real_models(*names: str, models: tuple[str, ...] = ("classifier",)):
    def measured(results: Results) -> Iterator[tuple[float, str]]:
        for model, threads, name in product(models, THREADS, names):
            group = f"{model}, threads: {threads}"
            seconds, reference = results.get(group, name), results.get(group, "float")
            if seconds and reference:
                yield seconds / reference, f"{model}, {name}, threads: {threads}"

    return measured


THREADS = (1, 2)


MODELS, BLOCK_MODELS = ("bf16", "fp16", "i32", "u32"), tuple(BLOCK_FORMATS)


def _optimised(name: str) -> str:
    return f"{name}, optimised"


def _loading(results: Results) -> Iterator[tuple[float, str]]:
    for name in (*MODELS, *BLOCK_MODELS):
        seconds, before = (results.get("loading classifier", each) for each in (_optimised(name), name))
        if seconds and before:
            yield seconds / before, name


def _block_formats(results: Results) -> Iterator[tuple[float, str]]:
    for case, who in product(BLOCK_CASES, ("native session", "direct call")):
        seconds = results.get(case.group, who)
        if seconds:
            yield prod(case.shape) / seconds / 1e9, f"{case.group}, {who}"


def _other(operator: str):
    def measured(results: Results) -> Iterator[tuple[float, str]]:
        for case in OTHER_CASES:
            ours, theirs = (results.get(case.group, who) for who in ("native session", "onnxruntime"))
            if case.operator == operator and ours and theirs:
                yield ours / theirs, case.label

    return measured


def _start_up(step: str, without: str = ""):
    def measured(results: Results) -> Iterator[tuple[float, str]]:
        whole, rest = results.get(f"start-up: {step}"), results.get(f"start-up: {without}") if without else 0
        if whole is not None and rest is not None:
            yield whole - rest, step

    return measured


def _label(case: Case) -> str:
    size = next((name for name, size in SIZES.items() if size == case.size), "")
    return f"{case.operation} {case.row.name}, {size if case.granularity == PER_TENSOR else case.granularity}"


def _is_big(case: Case) -> bool:
    return case.granularity == PER_TENSOR and case.threads == 2 and case.size in (1 << 16, 1 << 20, 1 << 24)


def _is_8_bit_float(case: Case) -> bool:
    return case.row.bits == 8 and not case.row.is_integer


def _is_small(case: Case) -> bool:
    return case.granularity == PER_TENSOR and case.size in (1, 1 << 10)


TARGETS = (
    Target(
        "native session against ONNX Runtime, 64 K / 1 M / 16 M elements",
        "1.0 ×",
        _versus("native session", ("onnxruntime",), lambda c: _is_big(c) and not c.row.is_packed and not _is_8_bit_float(c)),
    ),
    Target(
        "the same, (u)int4 and (u)int2",
        "3 ×",
        _versus("native session", ("onnxruntime",), lambda c: _is_big(c) and c.row.is_packed),
    ),
    Target(
        "the same, float8", "20 ×", _versus("native session", ("onnxruntime",), lambda c: _is_big(c) and _is_8_bit_float(c))
    ),
    Target(
        "the same, dequantize from 1 M on",
        "1.5 ×",
        _versus("native session", ("onnxruntime",), lambda c: _is_big(c) and c.operation == "dequantize" and c.size >= 1 << 20),
    ),
    Target(
        "native session against ONNX Runtime, 1 and 1 K elements",
        "0.9 ×",
        _versus("native session", ("onnxruntime",), _is_small),
    ),
    Target(
        "64 K elements to (u)int8, one thread, against ONNX Runtime",
        "1.5 ×",
        _versus("native session", ("onnxruntime",), lambda c: c.threads == 1 and c.operation == "quantize"),
    ),
    Target("direct call against PyTorch, 64 K and more", "1.0 ×", _versus("direct call", ("PyTorch",), _is_big)),
    Target(
        "direct call against numpy, ml_dtypes and the ReferenceEvaluator, 64 K and more",
        "10 ×",
        _versus("direct call", ("numpy, ml_dtypes", "ReferenceEvaluator"), _is_big),
    ),
    Target(
        "16 M elements of a byte or more, native session, against a copy of as many bytes",
        "0.9 ×",
        _versus("native session", ("copy",), lambda c: _is_big(c) and c.size == 1 << 24 and c.row.bits >= 8),
    ),
    Target(
        "the same, direct call",
        "0.9 ×",
        _versus("direct call", ("copy",), lambda c: _is_big(c) and c.size == 1 << 24 and c.row.bits >= 8),
    ),
    Target(
        "per axis and blocked against per tensor, native session",
        "0.8 ×",
        _versus("native session", ("native session, per tensor",), lambda c: c.granularity != PER_TENSOR),
    ),
    Target("one element, direct call", "3 µs", _one_element, is_least=False, unit="µs"),
    Target("block formats, 16 M elements, Gelements/s", "1 G/s", _block_formats, unit="G/s"),
    Target(
        "instance normalization, against ONNX Runtime's in float32",
        "2.0 ×",
        _other("ExtendedInstanceNormalization"),
        is_least=False,
    ),
    Target("LSTM layer, against ONNX Runtime's in float32", "3.0 ×", _other("ExtendedLSTM"), is_least=False),
    *(
        Target(
            f"start-up: {step}, cache {cache}", wanted, _start_up(f"{step}, cache {cache}", without), is_least=False, unit="s"
        )
        for step, cache, wanted, without in (
            ("import", "filled", "0.15 s", ""),
            ("first call", "empty", "2 s", ""),
            ("first call, 1 M elements", "empty", "2 s", ""),
            ("first call", "filled", "0.3 s", ""),
            ("first call, 1 M elements", "filled", "0.3 s", ""),
            ("session, bf16 model", "filled", "0.5 s", "session, float model, cache filled"),
            ("InferenceSession, bf16 model", "empty", "1.5 s", ""),
            ("InferenceSession, MX9 model", "empty", "2.5 s", ""),
        )
    ),
)


TARGETS_OF_MODELS = (
    *(
        Target(f"{model}, {what}, optimised", wanted, _real_models(*map(_optimised, names), models=(model,)), is_least=False)
        for model in ("classifier", *ARCHITECTURES)
        for what, wanted, names in (("16 and 32 bits", "1.0 ×", MODELS), ("block formats", "1.15 ×", BLOCK_MODELS))
    ),
    Target("loading optimised models, against loading the original", "1.5 ×", _loading, is_least=False),
)


TARGETS_OF_QUANTIZERS = tuple(
    Target(f"models of other quantizers, {what}", wanted, _real_models(contender, models=tuple(names)), is_least=False)
    for what, wanted, contender, names in (
        ("as written", "3 ×", AS_WRITTEN, NAMES),
        ("optimised: CNNs of less than 64 channels", "1.1 ×", OPTIMISED, set(CONVOLUTIONAL) - set(LAYOUTS)),
        ("optimised: CNNs of 64 channels and more", "0.95 ×", OPTIMISED, set(CONVOLUTIONAL) & set(LAYOUTS)),
        ("optimised: ModelOpt's", "1.3 ×", OPTIMISED, [name for name in NAMES if name.startswith("ModelOpt")]),
    )
)


def _against_onnx_runtime(results: Results) -> Iterator[tuple[float, str]]:
    for name, threads in product(NAMES_OF_ONNX, THREADS):
        ours, theirs = (results.get(f"{name}, threads: {threads}", who) for who in (IN_OUR_SESSION, ONNX_RUNTIME))
        if ours and theirs:
            yield ours / theirs, f"{name}, threads: {threads}"


TARGETS_OF_ONNX = (
    *(
        Target(f"InferenceSession, {what}", wanted, _real_models(IN_OUR_SESSION, models=tuple(names)), is_least=False)
        for what, wanted, names in (
            ("the classifier", "0.9 ×", [each for each in NAMES_OF_ONNX if each.startswith("classifier")]),
            (
                "networks of convolutions",
                "1.05 ×",
                [
                    each
                    for each in NAMES_OF_ONNX
                    if each.split(",")[0].split()[-1] in ("network", "detector") and "float8" not in each
                ],
            ),
            ("float8", "1.2 ×", [each for each in NAMES_OF_ONNX if each.endswith("float8")]),
        )
    ),
    Target("InferenceSession against ONNX Runtime", "1.03 ×", _against_onnx_runtime, is_least=False),
)


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| --- |{' ---: |' * (len(header) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _targets(results: Results, targets: Iterable[Target]) -> Iterator[str]:
    rows = []
    for target in targets:
        found = sorted(target.measured(results), reverse=not target.is_least)
        if not found:
            continue
        values = [value for value, _ in found]
        missed = sum(value < target.bound if target.is_least else value > target.bound for value in values)
        bound = f"{'at least' if target.is_least else 'at most'} {target.wanted}"
        verdict = f"{len(found) - missed} of {len(found)}"
        worst, label = found[0]
        rows.append(
            [target.what, bound, f"{median(values):.2g} {target.unit}", f"{worst:.2g} {target.unit} ({label})", verdict]
        )
    yield from _table(["what", "target", "median", "worst", "met"], rows)


def _operators(results: Results, size: int) -> Iterator[str]:
    chosen = [case for case in cases() if case.granularity == PER_TENSOR and case.size == size and case.threads == 2]
    names = [name for name in results.contenders if any(results.get(case.group, name) for case in chosen)]
    rows = []
    for case in chosen:
        seconds = [results.get(case.group, name) for name in names]
        if any(seconds):
            rows.append([f"{case.operation} {case.row.name}", *(f"{size / s / 1e9:.2f}" if s else "" for s in seconds)])
    yield from _table(["", *names], rows)


def _granularities(results: Results) -> Iterator[str]:
    chosen = [case for case in cases() if case.granularity != PER_TENSOR]
    columns = list(dict.fromkeys((case.operation, case.row.name) for case in chosen))
    rows = []
    for granularity in GRANULARITIES:
        row = [granularity]
        for operation, name in columns:
            match = [c for c in chosen if (c.operation, c.row.name, c.granularity) == (operation, name, granularity)]
            seconds = results.get(match[0].group, "native session") if match else None
            row.append(f"{match[0].size / seconds / 1e9:.2f}" if seconds else "")
        rows.append(row)
    yield from _table(["", *(f"{operation} {name}" for operation, name in columns)], rows)


def _blocks(results: Results) -> Iterator[str]:
    rows = []
    for case in BLOCK_CASES:
        seconds = [results.get(case.group, who) for who in ("native session", "direct call", "copy")]
        if all(seconds):
            rows.append([case.group, *(f"{prod(case.shape) / s / 1e9:.2f}" for s in seconds if s)])
    yield from _table(["", "native session", "direct call", "copy"], rows)


def _others(results: Results) -> Iterator[str]:
    rows = []
    contenders = ("onnxruntime", "native session", "Quark's library")
    for case in OTHER_CASES:
        seconds = [results.get(case.group, who) for who in contenders]
        if any(seconds):
            rows.append([case.group, *(f"{1e3 * each:.3f}" if each else "" for each in seconds)])
    yield from _table(["", *contenders], rows)


def _models(results: Results) -> Iterator[str]:
    rows = []
    for model, name in product(("classifier", *ARCHITECTURES), ("float", *MODELS, *BLOCK_MODELS)):
        row = []
        for each in (name, _optimised(name)):
            for threads in THREADS:
                group = f"{model}, threads: {threads}"
                seconds, reference = results.get(group, each), results.get(group, "float")
                is_reference = each == "float"
                shown = f"{1e3 * seconds:.2f} ms" if seconds and is_reference else ""
                row.append(f"{seconds / reference:.2f}" if seconds and reference and not is_reference else shown)
            load = results.get(f"loading {model}", each)
            row.append(f"{1e3 * load:.0f}" if load else "")
        if any(row):
            rows.append([f"{model}, {name}", *row])
    columns = [*(f"threads: {threads}" for threads in THREADS), "load, ms"]
    yield from _table(["model", *columns, *(f"optimised, {column}" for column in columns)], rows)


def _machine(results: Results) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    yield f"{results.machine['cpu']['brand_raw']}, {results.machine['cpu']['count']} processors; {versions}; {results.date}.\n"


def _text(results: Results) -> Iterator[str]:
    yield from _machine(results)
    yield "Targets. Each number is a ratio of speeds within one run, or a time; met: in how many cases.\n"
    yield from _targets(results, TARGETS)
    yield "One operator per tensor, 1 M elements, 2 threads, in Gelements/s:\n"
    yield from _operators(results, 1 << 20)
    yield "The native session by granularity, in Gelements/s:\n"
    yield from _granularities(results)
    yield "Block formats, 16 M elements, 2 threads, in Gelements/s; the copy is of x:\n"
    yield from _blocks(results)
    yield "Instance normalization and LSTM layers, 2 threads, in ms; ONNX Runtime's are its own operators in float32:\n"
    yield from _others(results)
    yield f"![Throughput against size]({PLOT.name})"


def _text_of_models(results: Results) -> Iterator[str]:
    yield from _machine(results)
    yield from _targets(results, TARGETS_OF_MODELS)
    yield from _models(results)


def _against_float(
    results: Results, names: Iterable[str], *contenders: str
) -> Iterator[tuple[str, float, list[str], list[str]]]:
    """Yield each model that was measured: its name, the seconds of its float model on one thread, and the cells of the float
    model and of the contenders."""
    for name in names:
        groups = [f"{name}, threads: {threads}" for threads in THREADS]
        references = [results.get(group, FLOAT) for group in groups]
        if all(references):
            pairs = list(zip(groups, references, strict=True))
            ratios = [f"{results.get(group, who) / seconds:.2f}" for who in contenders for group, seconds in pairs]
            yield name, references[0], [f"{1e3 * each:.2f} ms" for each in references], ratios


def _columns(*contenders: str) -> list[str]:
    return [f"{what}, threads: {threads}" for what in contenders for threads in THREADS]


def _text_of_quantizers(results: Results) -> Iterator[str]:
    yield from _machine(results)
    yield from _targets(results, TARGETS_OF_QUANTIZERS)
    rows = []
    for name, reference, floats, ratios in _against_float(results, NAMES, AS_WRITTEN, OPTIMISED):
        vendor = results.get(f"{name}, threads: 1", VENDOR)
        rows.append([name, *floats, f"{vendor / reference:,.0f}" if vendor else "", *ratios])
    yield from _table(["model", *_columns("float model"), f"{VENDOR}, threads: 1", *_columns(AS_WRITTEN, OPTIMISED)], rows)


def _text_of_onnx(results: Results) -> Iterator[str]:
    yield from _machine(results)
    yield from _targets(results, TARGETS_OF_ONNX)
    found = _against_float(results, NAMES_OF_ONNX, ONNX_RUNTIME, IN_OUR_SESSION, ALL_OURS)
    rows = [[name, *floats, *ratios] for name, _, floats, ratios in found]
    yield from _table(["model", *_columns("float model", ONNX_RUNTIME, f"`{IN_OUR_SESSION}`", f"`{ALL_OURS}`")], rows)


def _text_beside_quark(results: Results) -> Iterator[str]:
    yield from _machine(results)
    rows = []
    for name, threads in product(BESIDE_QUARK, THREADS):
        group = f"beside Quark: {name}, threads: {threads}"
        seconds, reference = [results.get(group, each) for each in ALL_BESIDE_QUARK], results.get(group, FLOAT_BESIDE_QUARK)
        if seconds[1] and seconds[-1]:
            shown = [f"{1e3 * reference:.1f} ms" if reference else ""]
            shown += [f"{each / reference:.2f}" if reference else f"{1e3 * each:.1f} ms" for each in seconds[1:]]
            rows.append([f"{name}, threads: {threads}", *shown, f"{seconds[1] / seconds[-1]:.1f}"])
    yield from _table(["model", *ALL_BESIDE_QUARK, f"{ALL_BESIDE_QUARK[1]} ÷ {ALL_BESIDE_QUARK[-1]}"], rows)
    rows = []
    for name in FINE_TUNED:
        theirs, ours = (results.get(f"beside Quark: {name}", each) for each in ALL_BESIDE_QUARK[1:3])
        if theirs and ours:
            rows.append([f"{name}, {STEPS} steps a layer", f"{theirs:.1f} s", f"{ours:.1f} s", f"{ours / theirs:.2f}"])
    if rows:
        yield from _table(["fine-tuning", "Quark's operators", "ours", "ours ÷ Quark's"], rows)


def _plot(results: Results) -> None:
    import matplotlib.pyplot as plt

    shown = [case for case in cases() if case.granularity == PER_TENSOR and case.threads == 2 and case.size in SIZES.values()]
    panels = list(dict.fromkeys((case.operation, case.row) for case in shown))
    columns = 6
    figure, axes = plt.subplots(
        -(-len(panels) // columns), columns, figsize=(15, 17), sharex=True, sharey=True, layout="constrained"
    )
    colors = {name: f"C{i}" for i, name in enumerate(results.contenders)}
    for axis, (operation, row) in zip(axes.flat, panels, strict=False):
        axis.set_title(f"{operation} {row.name}", fontsize=10)
        for name, color in colors.items():
            found = [(c.size, results.get(c.group, name)) for c in shown if (c.operation, c.row) == (operation, row)]
            points = [(size, size / seconds / 1e9) for size, seconds in found if seconds]
            if points:
                axis.loglog(*zip(*points, strict=True), color=color, marker=".", linewidth=2 if name in OURS else 1, label=name)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    figure.suptitle("Gelements/s against elements")
    figure.savefig(PLOT, dpi=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the JSON file of a run")
    results = Results(parser.parse_args().results)
    if results.contenders:
        _write(MARKS, _text(results))
        _plot(results)
    if results.get("classifier, threads: 1", "bf16"):
        _write(MARKS_OF_MODELS, _text_of_models(results))
    if any(results.get(f"{name}, threads: 1", FLOAT) for name in NAMES):
        _write(MARKS_OF_QUANTIZERS, _text_of_quantizers(results))
    if any(group.startswith("beside Quark: ") for group, _ in results.seconds):
        _write(MARKS_BESIDE_QUARK, _text_beside_quark(results))
    if any(results.get(f"{name}, threads: 1", FLOAT) for name in NAMES_OF_ONNX):
        _write(MARKS_OF_ONNX, _text_of_onnx(results))


def _write(marks: tuple[str, str], lines: Iterable[str]) -> None:
    before, rest = README.read_text().split(marks[0])
    _, after = rest.split(marks[1])
    README.write_text("\n".join([before + marks[0] + "\n", *lines, "", marks[1]]) + after)


if __name__ == "__main__":
    main()
