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
from typing import Any

import beside_quark
import models_of_onnx
from architectures import ARCHITECTURES, BLOCK_FORMATS
from beside_quark import CLASSIFIER, FINE_TUNED, FLOAT, ONE_LINE, QUARK, SESSION, STEPS
from cases import BLOCK_CASES, GRANULARITIES, OTHER_CASES, PER_TENSOR, SIZES, cases
from models_of_onnx import ALL_OURS, ONNX_RUNTIME
from models_of_quantizers import AS_WRITTEN, NAMES, OPTIMIZED, VENDOR
from pages import FRONT, PERFORMANCE, README, RESULTS, digits, table, with_part

HERE = Path(__file__).parent
KEPT = HERE / "results"
THROUGHPUT, CLASSIFIER_CHART, MODELS_CHART = HERE / "throughput.png", HERE / "beside_quark.svg", HERE / "models.svg"

OURS = ("native session", "extensions session", "direct call")
# What others are compared with, the first one that was measured.
REFERENCES = (FLOAT, "onnxruntime", ONNX_RUNTIME, QUARK, "copy", "native session, per tensor")
SLOWER = 1.15
# What a kept number is of a contender's turns, each of which is the median of its runs.
BEST = "the best of several turns"

THREADS = (1, 2)
MODELS, BLOCK_MODELS = ("bf16", "fp16", "i32", "u32"), tuple(BLOCK_FORMATS)


class Results:
    """The kept results of one of the files with benchmarks: the seconds of each contender."""

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


Kept = dict[str, Results]


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
            groups.setdefault(group, {})[who] = float(f"{min(values):.4g}")
        cpu = machine["cpu"]
        yield (
            name,
            {
                "date": content["datetime"][:10],
                "machine": f"{cpu['brand_raw']}, {cpu['count']} processors",
                "versions": machine["quark_numba"],
                "statistic": BEST,
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


def _optimized(name: str) -> str:
    return f"{name}, optimized"


def _operators(results: Results, size: int) -> Iterator[str]:
    chosen = [case for case in cases() if case.granularity == PER_TENSOR and case.size == size and case.threads == 2]
    names = [name for name in results.contenders if any(results.get(case.group, name) for case in chosen)]
    rows = []
    for case in chosen:
        seconds = [results.get(case.group, name) for name in names]
        if any(seconds):
            rows.append([f"{case.operation} {case.row.name}", *(digits(size / s / 1e9) if s else "" for s in seconds)])
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
            row.append(digits(match[0].size / seconds / 1e9) if seconds else "")
        rows.append(row)
    yield from table(["", *(f"{operation} {name}" for operation, name in columns)], rows)


def _blocks(results: Results) -> Iterator[str]:
    rows = []
    for case in BLOCK_CASES:
        seconds = [results.get(case.group, who) for who in ("native session", "direct call", "copy")]
        if all(seconds):
            rows.append([case.group, *(digits(prod(case.shape) / s / 1e9) for s in seconds if s)])
    yield from table(["", "native session", "direct call", "copy"], rows)


def _others(results: Results) -> Iterator[str]:
    rows = []
    contenders = ("onnxruntime", "native session", "Quark's library")
    for case in OTHER_CASES:
        seconds = [results.get(case.group, who) for who in contenders]
        if any(seconds):
            rows.append([case.group, *(digits(1e3 * each) if each else "" for each in seconds)])
    yield from table(["", *contenders], rows)


def _models(results: Results) -> Iterator[str]:
    rows = []
    for model, name in product(ARCHITECTURES, (FLOAT, *MODELS, *BLOCK_MODELS)):
        row = []
        for each in (name, _optimized(name)):
            for threads in THREADS:
                group = f"{model}, threads: {threads}"
                seconds, reference = results.get(group, each), results.get(group, FLOAT)
                is_reference = each == FLOAT
                shown = f"{digits(1e3 * seconds)} ms" if seconds and is_reference else ""
                row.append(digits(seconds / reference) if seconds and reference and not is_reference else shown)
            load = results.get(f"loading {model}", each)
            row.append(digits(1e3 * load) if load else "")
        if any(row):
            rows.append([f"{model}, {name}", *row])
    columns = [*(f"threads: {threads}" for threads in THREADS), "load, ms"]
    yield from table(["model", *columns, *(f"optimized, {column}" for column in columns)], rows)


def _machine(results: Results) -> str:
    content = results.content
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    statistic = content.get("statistic", "medians of the turns")
    return f"{content['machine']}; {versions}; {content['date']}; {statistic}. {content.get('note', '')}".rstrip() + "\n"


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
            ratios = [digits(results.get(group, who) / seconds) for who in contenders for group, seconds in pairs]
            yield name, references[0], [f"{digits(1e3 * each)} ms" for each in references], ratios


def _columns(*contenders: str) -> list[str]:
    return [f"{what}, threads: {threads}" for what in contenders for threads in THREADS]


def _quantizers(results: Results) -> Iterator[str]:
    rows = []
    for name, reference, floats, ratios in _against_float(results, NAMES, AS_WRITTEN, OPTIMIZED):
        vendor = results.get(f"{name}, threads: 1", VENDOR)
        rows.append([name, *floats, digits(vendor / reference) if vendor else "", *ratios])
    yield from table(["model", *_columns("float model"), f"{VENDOR}, threads: 1", *_columns(AS_WRITTEN, OPTIMIZED)], rows)


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
            shown = [f"{digits(1e3 * reference)} ms" if reference else ""]
            shown += [digits(each / reference) if reference else f"{digits(1e3 * each)} ms" for each in seconds[1:]]
            rows.append([f"{name}, threads: {threads}", *shown, digits(seconds[1] / seconds[-1])])
    yield from table(["model", *beside_quark.CONTENDERS, f"{beside_quark.CONTENDERS[1]} ÷ {beside_quark.CONTENDERS[-1]}"], rows)
    rows = []
    for name in FINE_TUNED:
        theirs, ours = (results.get(f"beside Quark: {name}", each) for each in beside_quark.CONTENDERS[1:3])
        if theirs and ours:
            rows.append([f"{name}, {STEPS} steps a layer", f"{digits(theirs)} s", f"{digits(ours)} s", digits(ours / theirs)])
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


def _dots(axis, rows: list[str], label: str) -> None:
    """Prepare an axis for dots in rows, with the float model's latency as 1."""
    axis.axvline(1, color="black", linewidth=0.8)
    for row in range(len(rows)):
        axis.axhline(row, color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.set_xlabel(label)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _plot_classifier(results: Results) -> None:
    """Draw the latency of the classifier, with the float model's as 1."""
    import matplotlib.pyplot as plt

    names = [name for name in beside_quark.NAMES if name.startswith(CLASSIFIER)]
    figure, axis = plt.subplots(figsize=(8, 0.4 * len(names) + 1), layout="constrained")
    axis.set_xscale("log")
    for who, color in ((SESSION, "#2e8b57"), (ONE_LINE, "#5b7bb8"), (QUARK, "#c44e52")):
        for threads, face in zip(THREADS, (color, "white"), strict=True):
            ratios = [_ratio(results, f"beside Quark: {name}, threads: {threads}", who) for name in names]
            label = f"{who if who == QUARK else f'quark_numba, {who}'}, threads: {threads}"
            style = {"markerfacecolor": face, "markeredgecolor": color, "markersize": 7}
            axis.plot(ratios, range(len(names)), "o", label=label, **style)
            if threads == 1:
                for row, ratio in enumerate(ratios):
                    axis.annotate(digits(ratio), (ratio, row), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    _dots(axis, [name.rpartition("_")[2] for name in names], "latency, as a multiple of the float model's (logarithmic)")
    axis.xaxis.set_major_formatter("{x:g}")
    figure.legend(fontsize=8, loc="outside upper center", ncols=3)
    figure.savefig(CLASSIFIER_CHART, metadata={"Date": None})


Range = tuple[float, float] | None


def _ratio(results: Results, group: str, who: str) -> float | None:
    """Return the multiple of the float model's time in a group; None if one of both was not measured."""
    seconds, reference = results.get(group, who), results.get(group, FLOAT)
    return seconds / reference if seconds and reference else None


def _range(results: Results, pairs: Iterable[tuple[str, str]]) -> Range:
    """Return the lowest and the highest multiple of the float model's time, on one thread and on two, of pairs of a group and a
    contender; None if nothing was measured."""
    found = [_ratio(results, f"{group}, threads: {threads}", who) for group, who in pairs for threads in THREADS]
    measured = [each for each in found if each]
    return (min(measured), max(measured)) if measured else None


def _in_quarks_types(kept: Kept, model: str, types: Iterable[str], *, as_written: bool = False) -> Range:
    """Return the range of a model in these types. The classifier is measured beside Quark's library."""
    if model == "classifier":
        who = ONE_LINE if as_written else SESSION
        return _range(kept["speed_beside_quark"], [(f"beside Quark: {CLASSIFIER}_{each}", who) for each in types])
    return _range(kept["speed_of_real_models"], [(model, each if as_written else _optimized(each)) for each in types])


def _ranges(kept: Kept) -> Iterator[tuple[str, list[Range]]]:
    """Yield each model and its ranges: in `InferenceSession` with Quark's types, its block formats and ONNX's operators, and in
    ONNX Runtime alone with ONNX's operators."""
    formats = dict.fromkeys(name.partition(", ")[2] for name in models_of_onnx.NAMES if not name.endswith("float8"))
    of_onnx = kept["speed_of_onnx_models"]
    for model in dict.fromkeys(["classifier", *ARCHITECTURES, *(name.partition(", ")[0] for name in models_of_onnx.NAMES)]):
        ranges = [_in_quarks_types(kept, model, each) for each in (MODELS, BLOCK_MODELS)]
        ranges += [
            _range(of_onnx, [(f"{model}, {each}", who) for each in formats]) for who in (models_of_onnx.OURS, ONNX_RUNTIME)
        ]
        yield model, ranges


RANGES = ["Quark's 16 and 32 bits", "Quark's block formats", "ONNX's operators, 4 to 16 bits", "the same, ONNX Runtime alone"]


def _plot_models(kept: Kept) -> None:
    """Draw the ranges of all models, each as two dots and a line between them."""
    import matplotlib.pyplot as plt

    rows = [*_ranges(kept)]
    figure, axis = plt.subplots(figsize=(8, 0.5 * len(rows) + 1), layout="constrained")
    for place, (label, color) in enumerate(zip(RANGES, ["#2e8b57", "#5b7bb8", "#e0a030", "#c44e52"], strict=True)):
        for row, (_, ranges) in enumerate(rows):
            if ranges[place]:
                at = row + 0.18 * (place - 1.5)
                axis.plot(ranges[place], (at, at), "o-", color=color, markersize=4, linewidth=1)
        axis.plot([], [], "o-", color=color, markersize=4, linewidth=1, label=label)
    _dots(axis, [model for model, _ in rows], "latency, as a multiple of the float model's: the lowest and the highest")
    figure.legend(fontsize=8, loc="outside upper center", ncols=2)
    figure.savefig(MODELS_CHART, metadata={"Date": None})


def _text(found: Range, unit: str = " ×") -> str:
    """Return a range, whose two ends may be the same."""
    return f"{' to '.join(dict.fromkeys(map(digits, found)))}{unit}" if found else ""


def _summary(kept: Kept) -> Iterator[str]:
    yield from table(["model", *RANGES], [[model, *map(_text, ranges)] for model, ranges in _ranges(kept)])


def _joined(ranges: Iterable[Range]) -> Range:
    ends = [end for each in ranges if each for end in each]
    return min(ends), max(ends)


def _targets(kept: Kept) -> Iterator[str]:
    models = ("classifier", *ARCHITECTURES)
    slow = ("transformer", "byte classifier", "voice detector")
    written = _joined(_in_quarks_types(kept, model, MODELS, as_written=True) for model in models)
    blocks = _joined(_in_quarks_types(kept, model, BLOCK_MODELS) for model in models)
    others = _joined(_in_quarks_types(kept, model, MODELS) for model in slow)
    first, first_mx9, call = (
        kept["start_up"].get(f"start-up: {step}") or 0
        for step in (
            "InferenceSession, bf16 model, cache empty",
            "InferenceSession, MX9 model, cache empty",
            "first call, cache filled",
        )
    )
    rows = [
        ["models as written, 16 and 32 bits, against the float model", "2 ×", _text(written)],
        ["optimized models in block formats", "1.15 ×", _text(blocks)],
        ["optimized transformer, byte classifier and voice detector, 16 and 32 bits", "1.0 ×", _text(others)],
        ["a first session", "1.5 s (bfloat16), 2.5 s (MX9)", f"{digits(first)} and {digits(first_mx9)} s"],
        ["a first call with a filled cache", "0.23 s", f"{digits(call)} s"],
    ]
    yield from table(["", "wanted", "measured"], rows)


def _front(kept: Kept) -> Iterator[str]:
    """Yield the sentences of the front page: the ranges of the classifier, on one thread and on two."""
    results = kept["speed_beside_quark"]
    groups = [f"beside Quark: {CLASSIFIER}_{each}, threads: {threads}" for each in beside_quark.FORMATS for threads in THREADS]
    quark = [results.groups[group][QUARK] / results.groups[group][SESSION] for group in groups]
    ours = _joined(_in_quarks_types(kept, "classifier", types) for types in (MODELS, BLOCK_MODELS))
    beside = _text((min(quark), max(quark)), " times")
    yield f"Depending on type and threads (1 or 2), Quark's library takes {beside} as long as `InferenceSession`,"
    yield f"and `InferenceSession` takes {_text(ours, ' times')} as long as the float model."
    if note := results.content.get("note"):
        yield note
    yield ""


def _start_up(results: Results) -> Iterator[str]:
    rows = [
        [group.removeprefix("start-up: "), f"{digits(each)} s"]
        for group, found in results.groups.items()
        for each in found.values()
    ]
    yield from table(["step", "time"], rows)


def _kept() -> Kept:
    return {path.stem: Results(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(KEPT.glob("*.json"))}


# The marks of a table in RESULTS.md, the file with its benchmarks, and what writes it.
TABLES = (
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
# The parts of the other pages, which have numbers of several files.
PARTS = ((README, "models", _summary), (PERFORMANCE, "targets", _targets), (FRONT, "times", _front))
PAGES = (RESULTS, README, PERFORMANCE, FRONT)


def written(path: Path) -> str:
    """Return the text of a page with the numbers of the kept results."""
    kept = _kept()
    text = path.read_text(encoding="utf-8")
    for page, part, lines in PARTS:
        if page == path:
            text = with_part(text, part, lines(kept))
    for part, name, lines_of in TABLES:
        if path == RESULTS and name in kept:
            text = with_part(text, part, [_machine(kept[name]), *lines_of(kept[name])])
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="the JSON files of runs")
    for path in parser.parse_args().files:
        keep(path)
    for path in PAGES:
        path.write_text(written(path), encoding="utf-8")

    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "quark_numba"}
    kept = _kept()
    if "operators" in kept:
        _plot_throughput(kept["operators"])
    _plot_classifier(kept["speed_beside_quark"])
    _plot_models(kept)


if __name__ == "__main__":
    main()
