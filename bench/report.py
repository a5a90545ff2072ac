"""Keep the results of `pytest bench --benchmark-json=FILE` in `results/`, and write the tables and charts of all kept ones.

    PYTHONPATH=tests/support python bench/report.py [FILE...]

Prints what became slower than in the results that were kept before: a contender's time, as a multiple of the reference's of the
same run."""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import beside_quark
import models_of_onnx
from architectures import ARCHITECTURES, BLOCK_FORMATS
from beside_quark import FINE_TUNED, FLOAT, ONE_LINE, QUARK, SESSION, STEPS
from cases import BLOCK_CASES, GRANULARITIES, OTHER_CASES, PER_TENSOR, SIZES, cases
from models_of_onnx import ALL_OURS, ONNX_RUNTIME
from models_of_quantizers import AS_WRITTEN, NAMES, OPTIMISED, VENDOR
from pages import README, RESULTS, table, with_part

HERE = Path(__file__).parent
KEPT = HERE / "results"
THROUGHPUT, CLASSIFIER, MODELS_CHART = HERE / "throughput.png", HERE / "beside_quark.svg", HERE / "models.svg"

OURS = ("native session", "extensions session", "direct call")
# What others are compared with, the first one that was measured.
REFERENCES = (FLOAT, "onnxruntime", ONNX_RUNTIME, QUARK, "copy", "native session, per tensor")
SLOWER = 1.15

THREADS = (1, 2)
MODELS, BLOCK_MODELS = ("bf16", "fp16", "i32", "u32"), tuple(BLOCK_FORMATS)


class Results:
    """The kept results of one of the files with benchmarks: the median seconds of each contender over its turns."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.groups: dict[str, dict[str, float]] = content["seconds"]

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(who for group in self.groups.values() for who in group))

    def get(self, group: str, who: str = "") -> float | None:
        return self.groups.get(group, {}).get(who)

    def ratios(self) -> dict[tuple[str, str], float]:
        """Return the times of all contenders as multiples of their reference's."""
        found = {}
        for group, seconds in self.groups.items():
            reference = next((seconds[each] for each in REFERENCES if each in seconds), None)
            if reference:
                found |= {(group, who): each / reference for who, each in seconds.items()}
        return found


def results_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is kept of a run: the name of each file with benchmarks, and its results."""
    content = json.loads(path.read_text())
    machine = content["machine_info"]
    seconds: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for benchmark in content["benchmarks"]:
        file, _, test = benchmark["fullname"].partition("::")
        if "briefly" not in test:
            info = benchmark["extra_info"]
            key = benchmark["group"], info.get("contender", "")
            seconds[Path(file).stem.removeprefix("test_")][key] += info.get("seconds") or [benchmark["stats"]["median"]]
    for name, found in seconds.items():
        groups: dict[str, dict[str, float]] = {}
        for (group, who), values in found.items():
            groups.setdefault(group, {})[who] = float(f"{median(values):.4g}")
        cpu = machine["cpu"]
        yield (
            name,
            {
                "date": content["datetime"][:10],
                "machine": f"{cpu['brand_raw']}, {cpu['count']} processors",
                "versions": machine["quark_numba"],
                "seconds": groups,
            },
        )


def keep(path: Path) -> None:
    """Keep the results of a run, and print what became slower."""
    for name, content in results_of(path):
        kept = KEPT / f"{name}.json"
        if kept.exists():
            before = Results(json.loads(kept.read_text())).ratios()
            for key, ratio in Results(content).ratios().items():
                if ratio > SLOWER * before.get(key, ratio):
                    print(f"slower: {', '.join(key)}: {ratio:.2f}, before {before[key]:.2f}")
        KEPT.mkdir(exist_ok=True)
        kept.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _optimised(name: str) -> str:
    return f"{name}, optimised"


def _operators(results: Results, size: int) -> Iterator[str]:
    chosen = [case for case in cases() if case.granularity == PER_TENSOR and case.size == size and case.threads == 2]
    names = [name for name in results.contenders if any(results.get(case.group, name) for case in chosen)]
    rows = []
    for case in chosen:
        seconds = [results.get(case.group, name) for name in names]
        if any(seconds):
            rows.append([f"{case.operation} {case.row.name}", *(f"{size / s / 1e9:.2f}" if s else "" for s in seconds)])
    yield from table(["", *names], rows)


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
    yield from table(["", *(f"{operation} {name}" for operation, name in columns)], rows)


def _blocks(results: Results) -> Iterator[str]:
    rows = []
    for case in BLOCK_CASES:
        seconds = [results.get(case.group, who) for who in ("native session", "direct call", "copy")]
        if all(seconds):
            rows.append([case.group, *(f"{prod(case.shape) / s / 1e9:.2f}" for s in seconds if s)])
    yield from table(["", "native session", "direct call", "copy"], rows)


def _others(results: Results) -> Iterator[str]:
    rows = []
    contenders = ("onnxruntime", "native session", "Quark's library")
    for case in OTHER_CASES:
        seconds = [results.get(case.group, who) for who in contenders]
        if any(seconds):
            rows.append([case.group, *(f"{1e3 * each:.3f}" if each else "" for each in seconds)])
    yield from table(["", *contenders], rows)


def _models(results: Results) -> Iterator[str]:
    rows = []
    for model, name in product(("classifier", *ARCHITECTURES), (FLOAT, *MODELS, *BLOCK_MODELS)):
        row = []
        for each in (name, _optimised(name)):
            for threads in THREADS:
                group = f"{model}, threads: {threads}"
                seconds, reference = results.get(group, each), results.get(group, FLOAT)
                is_reference = each == FLOAT
                shown = f"{1e3 * seconds:.2f} ms" if seconds and is_reference else ""
                row.append(f"{seconds / reference:.2f}" if seconds and reference and not is_reference else shown)
            load = results.get(f"loading {model}", each)
            row.append(f"{1e3 * load:.0f}" if load else "")
        if any(row):
            rows.append([f"{model}, {name}", *row])
    columns = [*(f"threads: {threads}" for threads in THREADS), "load, ms"]
    yield from table(["model", *columns, *(f"optimised, {column}" for column in columns)], rows)


def _machine(results: Results) -> str:
    content = results.content
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return f"{content['machine']}; {versions}; {content['date']}.\n"


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


def _quantizers(results: Results) -> Iterator[str]:
    rows = []
    for name, reference, floats, ratios in _against_float(results, NAMES, AS_WRITTEN, OPTIMISED):
        vendor = results.get(f"{name}, threads: 1", VENDOR)
        rows.append([name, *floats, f"{vendor / reference:,.0f}" if vendor else "", *ratios])
    yield from table(["model", *_columns("float model"), f"{VENDOR}, threads: 1", *_columns(AS_WRITTEN, OPTIMISED)], rows)


def _onnx(results: Results) -> Iterator[str]:
    found = _against_float(results, models_of_onnx.NAMES, ONNX_RUNTIME, models_of_onnx.OURS, ALL_OURS)
    rows = [[name, *floats, *ratios] for name, _, floats, ratios in found]
    yield from table(["model", *_columns("float model", ONNX_RUNTIME, f"`{models_of_onnx.OURS}`", f"`{ALL_OURS}`")], rows)


def _beside_quark(results: Results) -> Iterator[str]:
    rows = []
    for name, threads in product(beside_quark.NAMES, THREADS):
        group = f"beside Quark: {name}, threads: {threads}"
        seconds, reference = [results.get(group, each) for each in beside_quark.CONTENDERS], results.get(group, FLOAT)
        if seconds[1] and seconds[-1]:
            shown = [f"{1e3 * reference:.1f} ms" if reference else ""]
            shown += [f"{each / reference:.2f}" if reference else f"{1e3 * each:.1f} ms" for each in seconds[1:]]
            rows.append([f"{name}, threads: {threads}", *shown, f"{seconds[1] / seconds[-1]:.1f}"])
    yield from table(["model", *beside_quark.CONTENDERS, f"{beside_quark.CONTENDERS[1]} ÷ {beside_quark.CONTENDERS[-1]}"], rows)
    rows = []
    for name in FINE_TUNED:
        theirs, ours = (results.get(f"beside Quark: {name}", each) for each in beside_quark.CONTENDERS[1:3])
        if theirs and ours:
            rows.append([f"{name}, {STEPS} steps a layer", f"{theirs:.1f} s", f"{ours:.1f} s", f"{ours / theirs:.2f}"])
    if rows:
        yield from table(["fine-tuning", "Quark's operators", "ours", "ours ÷ Quark's"], rows)


def _plot_throughput(results: Results) -> None:
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
    figure.savefig(THROUGHPUT, dpi=60)


def _plot_classifier(results: Results) -> None:
    """Draw the latency of the classifier on one thread, with the float model's as 1."""
    import matplotlib.pyplot as plt

    names = [name for name in beside_quark.NAMES if results.get(f"beside Quark: {name}, threads: 1", FLOAT)]
    figure, axis = plt.subplots(figsize=(8, 0.55 * len(names) + 1), layout="constrained")
    for place, (who, color) in enumerate([(QUARK, "#c44e52"), (ONE_LINE, "#8da0cb"), (SESSION, "#4c9f70")]):
        ratios = []
        for name in names:
            seconds = results.groups[f"beside Quark: {name}, threads: 1"]
            ratios.append(seconds[who] / seconds[FLOAT])
        label = who if who == QUARK else f"quark_numba, {who}"
        bars = axis.barh([row + 0.27 * (place - 1) for row in range(len(names))], ratios, 0.25, color=color, label=label)
        axis.bar_label(bars, [f"{each:.3g}" for each in ratios], fontsize=8, padding=2)
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(names)), [name.rpartition("_")[2] for name in names])
    axis.invert_yaxis()
    axis.set_xlabel("latency, as a multiple of the float model's")
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter("{x:g}")
    figure.legend(fontsize=8, loc="outside upper center", ncols=3)
    figure.savefig(CLASSIFIER, metadata={"Date": None})


def _ranges(of_quark: Results, of_onnx: Results) -> Iterator[tuple[str, list[tuple[float, float] | None]]]:
    """Yield the models, and the lowest and the highest multiple of the float model's latency: in `InferenceSession`, in Quark's
    types, its block formats and ONNX's operators; and of ONNX's in ONNX Runtime alone."""
    formats = dict.fromkeys(name.partition(", ")[2] for name in models_of_onnx.NAMES if not name.endswith("float8"))
    for model in dict.fromkeys(["classifier", *ARCHITECTURES, *(name.partition(", ")[0] for name in models_of_onnx.NAMES)]):
        columns = []
        for results, names in (
            (of_quark, [(model, _optimised(each)) for each in MODELS]),
            (of_quark, [(model, _optimised(each)) for each in BLOCK_MODELS]),
            (of_onnx, [(f"{model}, {each}", models_of_onnx.OURS) for each in formats]),
            (of_onnx, [(f"{model}, {each}", ONNX_RUNTIME) for each in formats]),
        ):
            found = []
            for (group, contender), threads in product(names, THREADS):
                seconds = results.groups.get(f"{group}, threads: {threads}", {})
                if contender in seconds and FLOAT in seconds:
                    found.append(seconds[contender] / seconds[FLOAT])
            columns.append((min(found), max(found)) if found else None)
        yield model, columns


RANGES = ["Quark's 16 and 32 bits", "Quark's block formats", "ONNX's operators, 4 to 16 bits", "the same, ONNX Runtime alone"]


def _plot_models(of_quark: Results, of_onnx: Results) -> None:
    """Draw the ranges of all models."""
    import matplotlib.pyplot as plt

    rows = [*_ranges(of_quark, of_onnx)]
    figure, axis = plt.subplots(figsize=(8, 0.5 * len(rows) + 1), layout="constrained")
    for place, (label, color) in enumerate(zip(RANGES, ["#4c9f70", "#8da0cb", "#e0a030", "#c44e52"], strict=True)):
        found = [(row, columns[place]) for row, (_, columns) in enumerate(rows) if columns[place]]
        at = [row + 0.2 * (place - 1.5) for row, _ in found]
        axis.barh(at, [high - low for _, (low, high) in found], 0.17, [low for _, (low, _) in found], color=color, label=label)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [model for model, _ in rows])
    axis.invert_yaxis()
    axis.set_xlabel("latency, as a multiple of the float model's: from the lowest to the highest")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, loc="outside upper center", ncols=2)
    figure.savefig(MODELS_CHART, metadata={"Date": None})


def _summary(of_quark: Results, of_onnx: Results) -> Iterator[str]:
    rows = [
        [model, *(f"{each[0]:.2f} to {each[1]:.2f} ×" if each else "" for each in columns)]
        for model, columns in _ranges(of_quark, of_onnx)
    ]
    yield from table(["model", *RANGES], rows)


def _start_up(results: Results) -> Iterator[str]:
    rows = [
        [group.removeprefix("start-up: "), f"{each:.2g} s"]
        for group, found in results.groups.items()
        for each in found.values()
    ]
    yield from table(["step", "time"], rows)


def _kept() -> dict[str, Results]:
    return {path.stem: Results(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(KEPT.glob("*.json"))}


# The marks of a table in RESULTS.md, the file with its benchmarks, and what writes it.
PARTS = (
    ("operators", "operators", lambda results: _operators(results, 1 << 20)),
    ("granularities", "operators", _granularities),
    ("block formats", "speed_of_block_formats", _blocks),
    ("normalization and LSTM layers", "speed_of_other_operators", _others),
    ("start-up", "start_up", _start_up),
    ("Quark's models", "speed_of_real_models", _models),
    ("Quark's library", "speed_beside_quark", _beside_quark),
    ("other quantizers", "speed_of_other_quantizers", _quantizers),
    ("ONNX's own operators", "speed_of_onnx_models", _onnx),
)


def tables(text: str) -> str:
    """Return the text of RESULTS.md with the tables of the kept results."""
    kept = _kept()
    for part, name, lines in PARTS:
        if name in kept:
            text = with_part(text, part, [_machine(kept[name]), *lines(kept[name])])
    return text


def summary(text: str) -> str:
    """Return the text of README.md with the summary of the kept results."""
    kept = _kept()
    return with_part(text, "models", _summary(kept["speed_of_real_models"], kept["speed_of_onnx_models"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="the JSON files of runs")
    for path in parser.parse_args().files:
        keep(path)
    for path, write in ((RESULTS, tables), (README, summary)):
        path.write_text(write(path.read_text(encoding="utf-8")), encoding="utf-8")

    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "quark_numba"}
    kept = _kept()
    if "operators" in kept:
        _plot_throughput(kept["operators"])
    _plot_classifier(kept["speed_beside_quark"])
    _plot_models(kept["speed_of_real_models"], kept["speed_of_onnx_models"])


if __name__ == "__main__":
    main()
