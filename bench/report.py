"""Keep the results of `pytest bench --benchmark-json=FILE` in `results/`, and write the tables and charts of all kept ones.

    PYTHONPATH=tests/support python bench/report.py [FILE...]

Prints what became slower than in the results that were kept before: a contender's time, as a multiple of the reference's of the
same run. Results are not kept if the machine was busy, or if contenders of the kept ones are missing: then the exit status
is 1."""

import argparse
import json
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from pathlib import Path
from statistics import median, median_low
from typing import Any

import beside_quark
import models_of_onnx
from architectures import ARCHITECTURES, BLOCK_FORMATS
from beside_quark import CLASSIFIER, FINE_TUNED, FLOAT, FORMATS, QUARK, STEPS
from cases import BLOCK_CASES, GRANULARITIES, OTHER_CASES, PER_TENSOR, Case, cases
from measuring import DROP_IN, SESSION
from models_of_onnx import ALL_OURS, ONNX_RUNTIME
from models_of_quantizers import NAMES, VENDOR
from pages import FRONT, PERFORMANCE, README, RESULTS, SESSIONS, digits, table, with_part

HERE = Path(__file__).parent
KEPT = HERE / "results"

COPY = "copy"
# What others are compared with, the first one that was measured.
REFERENCES = (FLOAT, "onnxruntime", ONNX_RUNTIME, QUARK, COPY, f"{DROP_IN}, per tensor")
SLOWER = 1.15
# On an idle machine, a float model that takes longer than this on one thread is hardly ever slower on two.
SECONDS_FOR_TWO_THREADS, SLOWER_ON_TWO_THREADS = 1e-3, 1.1
# What the numbers of tables are, in the header of the first column.
RATE, MODEL = "billion elements a second (more is better)", "latency / float model (less is better)"
KEEPING = f"{SESSION} with cache=True"
FILLED, EMPTY, PROCESSOR_TIME = "start-up, cache filled", "start-up, cache empty", ", processor time"
FRONT_COLUMNS = ("speed-up over Quark's library (more is better)", MODEL)
# An optimized model is called as fast as the float model up to this multiple of its latency.
AS_FAST = 1.1
# A row is marked if the float model took so much longer or shorter than in the other rows of the same model, or if the ratio on
# two threads is so much larger than on one.
OTHER_FLOAT_TIME, LARGER_RATIO = 0.2, 1.5
FLOAT_MARK, RATIO_MARK = " †", " ‡"

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
            of_file = seconds[Path(file).stem.removeprefix("test_")]
            of_file[key] += info.get("seconds") or [benchmark["stats"]["median"]]
            if processor_seconds := info.get("processor seconds"):
                of_file[f"{key[0]}{PROCESSOR_TIME}", key[1]].append(processor_seconds)
    for name, found in seconds.items():
        groups: dict[str, dict[str, float]] = {}
        for (group, who), values in found.items():
            groups.setdefault(group, {})[who] = float(f"{min(values):.4g}")
        cpu, counts = machine["cpu"], sorted({len(values) for values in found.values()})
        spread = median(max(values) / min(values) for values in found.values()) - 1
        yield (
            name,
            {
                "date": content["datetime"][:10],
                "machine": f"{cpu['brand_raw']}, {cpu['count']} processors",
                "versions": machine["quark_numba"],
                # a turn counts as the median of its runs
                "statistic": f"the best of {_or(counts)} turns; the slowest took {spread:.0%} longer (median)",
                "seconds": groups,
            },
        )


def _or(counts: list[int]) -> str:
    return " or ".join(map(str, counts))


def slower_on_two_threads(results: Results) -> Iterator[str]:
    """Yield the float models that took clearly longer on two threads than on one, which shows that the machine was busy."""
    for group in results.groups:
        model, mark, _ = group.partition(", threads: 1")
        one, two = (results.get(f"{model}, threads: {threads}", FLOAT) for threads in THREADS)
        if mark and one and two and one > SECONDS_FOR_TWO_THREADS and two > SLOWER_ON_TWO_THREADS * one:
            yield f"{model}: {digits(1e3 * one)} ms on one thread, {digits(1e3 * two)} ms on two"


def faults(results: Results, before: Results | None) -> Iterator[str]:
    """Yield why results are not kept: a busy machine, or contenders of the results before that are not here."""
    yield from (f"the float model of {each}" for each in slower_on_two_threads(results))
    yield from (f"no {each}" for each in (before.contenders if before else ()) if each not in results.contenders)


def keep(path: Path) -> bool:
    """Keep the results of a run, and print what became slower. Return whether all were kept."""
    is_complete = True
    for name, content in results_of(path):
        kept = KEPT / f"{name}.json"
        results, before = Results(content), Results(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else None
        if found := [*faults(results, before)]:
            print(f"{name} is not kept:", *found, sep="\n  ")
            is_complete = False
            continue
        ratios = before.ratios() if before else {}
        for key, ratio in results.ratios().items():
            if ratio > SLOWER * ratios.get(key, ratio):
                print(f"slower: {', '.join(key)}: {ratio:.2f}, before {ratios[key]:.2f}")
        KEPT.mkdir(exist_ok=True)
        kept.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return is_complete


def _optimized(name: str) -> str:
    return f"{name}, optimized"


def _per_tensor() -> list[Case]:
    return [case for case in cases() if case.granularity == PER_TENSOR and case.size == 1 << 20 and case.threads == 2]


def _operators(results: Results) -> Iterator[str]:
    chosen = _per_tensor()
    names = [name for name in results.contenders if any(results.get(case.group, name) for case in chosen)]
    rows = []
    for case in chosen:
        seconds = [results.get(case.group, name) for name in names]
        if any(seconds):
            rows.append([f"{case.operation} {case.row.name}", *(digits(case.size / s / 1e9) if s else "" for s in seconds)])
    yield from table([RATE, *names], rows)


def _granularities(results: Results) -> Iterator[str]:
    chosen = [case for case in cases() if case.granularity != PER_TENSOR]
    columns = list(dict.fromkeys((case.operation, case.row.name) for case in chosen))
    rows = []
    for granularity in GRANULARITIES:
        row = [granularity]
        for operation, name in columns:
            match = [c for c in chosen if (c.operation, c.row.name, c.granularity) == (operation, name, granularity)]
            seconds = results.get(match[0].group, DROP_IN) if match else None
            row.append(digits(match[0].size / seconds / 1e9) if seconds else "")
        rows.append(row)
    yield from table([RATE, *(f"{operation} {name}" for operation, name in columns)], rows)


def _blocks(results: Results) -> Iterator[str]:
    rows = []
    for case in BLOCK_CASES:
        seconds = [results.get(case.group, who) for who in (DROP_IN, "direct call", COPY)]
        if all(seconds):
            rows.append([case.group, *(digits(prod(case.shape) / s / 1e9) for s in seconds if s)])
    yield from table([RATE, DROP_IN, "direct call", COPY], rows)


def _others(results: Results) -> Iterator[str]:
    rows = []
    contenders = ("onnxruntime", DROP_IN, QUARK)
    for case in OTHER_CASES:
        seconds = [results.get(case.group, who) for who in contenders]
        if any(seconds):
            rows.append([case.group, *(digits(1e3 * each) if each else "" for each in seconds)])
    yield from table(["ms (less is better)", *contenders], rows)


def _models(results: Results) -> Iterator[str]:
    floats, rows = [], []
    for model in ARCHITECTURES:
        references = [results.get(f"{model}, threads: {threads}", FLOAT) for threads in THREADS]
        load = f"loading {model}"
        if all(references):
            floats.append([model, *map(_in_ms, references), _in_ms(results.get(load, FLOAT))])
        for name in (*MODELS, *BLOCK_MODELS):
            row = []
            for each in (name, _optimized(name)):
                row += [_ratio_text(results, f"{model}, threads: {threads}", each) for threads in THREADS]
                row.append(_in_ms(results.get(load, each)))
            if any(row):
                rows.append([f"{model}, {name}", *row])
    yield from table(["float model, ms (less is better)", *(f"threads: {each}" for each in THREADS), "load"], floats)
    loads = "load, ms", "load of the optimized model, ms"
    yield from table([MODEL, *_columns(DROP_IN), loads[0], *_columns(SESSION), loads[1]], rows)


def _in_ms(seconds: float | None) -> str:
    return digits(1e3 * seconds) if seconds else ""


def _ratio_text(results: Results, group: str, who: str) -> str:
    ratio = _ratio(results, group, who)
    return digits(ratio) if ratio else ""


def _machine(results: Results) -> str:
    """Return the line above a table: which run it is of, and what its numbers are."""
    content = results.content
    return f"Run of [{content['date']}](#runs): {content['statistic']}. {content.get('note', '')}".rstrip() + "\n"


def _runs(kept: Kept) -> Iterator[str]:
    """Yield the machine and the versions of each run."""
    runs = dict.fromkeys(
        (each.content["date"], each.content["machine"], ", ".join(map(" ".join, each.content["versions"].items())))
        for each in kept.values()
    )
    for date, machine, versions in sorted(runs):
        yield textwrap.fill(f"- **{date}:** {machine}; {versions}", 140, subsequent_indent="  ", break_on_hyphens=False)
    yield ""


def _against_float(
    results: Results, names: Iterable[str], *contenders: str
) -> Iterator[tuple[str, float, list[str], list[str]]]:
    """Yield each model that was measured: its name, the seconds of its float model on one thread, and the cells of the float
    model and of the contenders."""
    usual = _usual_float_times(results, names)
    for name in names:
        groups = [f"{name}, threads: {threads}" for threads in THREADS]
        references = [results.get(group, FLOAT) for group in groups]
        if all(references):
            pairs = list(zip(groups, references, strict=True))
            usuals = (usual[_model_of(name), threads] for threads in THREADS)
            floats = [f"{_in_ms(each)}{_float_mark(each, other)}" for each, other in zip(references, usuals, strict=True)]
            ratios = []
            for who in contenders:
                one, two = (results.get(group, who) / seconds for group, seconds in pairs)
                is_larger = two > LARGER_RATIO * one and who != ONNX_RUNTIME  # which runs some operators on one thread
                ratios += [digits(one), f"{digits(two)}{RATIO_MARK if is_larger else ''}"]
            yield name, references[0], floats, ratios


def _model_of(name: str) -> str:
    """Return the float model that the rows of some names share. Beside Quark's library it is the classifier."""
    parts = name.split(", ")
    return ", ".join(parts[:2]) if name in NAMES else parts[0] if len(parts) > 1 else CLASSIFIER


def _usual_float_times(results: Results, names: Iterable[str], prefix: str = "") -> dict[tuple[str, int], float]:
    """Return the median of the seconds of each float model over its rows, on one thread and on two."""
    seconds = defaultdict(list)
    for name, threads in product(names, THREADS):
        if found := results.get(f"{prefix}{name}, threads: {threads}", FLOAT):
            seconds[_model_of(name), threads].append(found)
    return {model: median_low(each) for model, each in seconds.items()}


def _float_mark(seconds: float, usual: float) -> str:
    return FLOAT_MARK if abs(seconds / usual - 1) > OTHER_FLOAT_TIME else ""


def _with_notes(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a table, and what the marks in it mean."""
    text = list(lines)
    yield from text
    if any(FLOAT_MARK in line for line in text):
        yield f"†: This time differs by more than {OTHER_FLOAT_TIME:.0%} from the median of the same float model's rows."
        yield "The machine was in another state, so the ratios of the row are less certain."
        yield ""
    if any(RATIO_MARK in line for line in text):
        yield f"‡: This ratio is more than {LARGER_RATIO} times the ratio on one thread."
        yield "The machine may have changed its state between turns."
        yield ""


def _columns(*contenders: str) -> list[str]:
    return [f"{what}, threads: {threads}" for what in contenders for threads in THREADS]


def _quantizers(results: Results) -> Iterator[str]:
    rows = []
    for name, reference, floats, ratios in _against_float(results, NAMES, DROP_IN, SESSION):
        vendor = results.get(f"{name}, threads: 1", VENDOR)
        rows.append([name, *floats, digits(vendor / reference) if vendor else "", *ratios])
    header = [MODEL, *_columns("float model, ms"), f"{VENDOR}, threads: 1", *_columns(DROP_IN, SESSION)]
    yield from _with_notes(table(header, rows))


def _onnx(results: Results) -> Iterator[str]:
    found = _against_float(results, models_of_onnx.NAMES, ONNX_RUNTIME, models_of_onnx.OURS, ALL_OURS)
    rows = [[name, *floats, *ratios] for name, _, floats, ratios in found]
    header = [MODEL, *_columns("float model, ms", ONNX_RUNTIME, f"`{models_of_onnx.OURS}`", f"`{ALL_OURS}`")]
    yield from _with_notes(table(header, rows))


def _beside_quark(results: Results) -> Iterator[str]:
    ratios, times = [], []
    prefix = "beside Quark: "
    usual = _usual_float_times(results, beside_quark.NAMES, prefix)
    for name, threads in product(beside_quark.NAMES, THREADS):
        group = f"{prefix}{name}, threads: {threads}"
        seconds, reference = [results.get(group, each) for each in beside_quark.CONTENDERS[1:]], results.get(group, FLOAT)
        if seconds[0] and seconds[-1]:
            label, faster = f"{name}, threads: {threads}", digits(seconds[0] / seconds[-1])
            if reference:
                shown = f"{_in_ms(reference)}{_float_mark(reference, usual[_model_of(name), threads])}"
                ratios.append([label, shown, *(digits(each / reference) for each in seconds), faster])
            else:
                times.append([label, *map(_in_ms, seconds), faster])
    quark, *_, ours = contenders = beside_quark.CONTENDERS[1:]
    yield from _with_notes(table([MODEL, "float model, ms", *contenders, f"speed-up of {ours} over {quark}"], ratios))
    yield from table(["ms (less is better)", *contenders, "speed-up (more is better)"], times)
    rows = []
    for name in FINE_TUNED:
        old, new = (results.get(f"{prefix}{name}", each) for each in contenders[:2])
        if old and new:
            rows.append([f"{name}, {STEPS} steps a layer", f"{digits(old)} s", f"{digits(new)} s", digits(new / old)])
    if rows:
        yield from table(["fine-tuning (less is better)", "Quark's operators", "ours", "ours ÷ Quark's"], rows)


GREEN, BLUE, RED, YELLOW, GREY = "#2e8b57", "#5b7bb8", "#c44e52", "#e0a030", "#999999"


def _dots(axis, rows: list[str], label: str) -> None:
    """Prepare an axis for dots in rows."""
    for row in range(len(rows)):
        axis.axhline(row, color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.set_xlabel(label)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _plot_operators(kept: Kept):
    """Draw the throughput of some operators."""
    import matplotlib.pyplot as plt

    results = kept["operators"]
    shown = [case for case in _per_tensor() if case.row.name in ("uint8", "int4", "float8e4m3fn")]
    figure, axis = plt.subplots(figsize=(8, 0.4 * len(shown) + 1), layout="constrained")
    axis.set_xscale("log")
    for who, color in ((COPY, GREY), (DROP_IN, GREEN), ("PyTorch", YELLOW), ("onnxruntime", BLUE), ("numpy, ml_dtypes", RED)):
        seconds = [results.get(case.group, who) for case in shown]
        rates = [case.size / each / 1e9 if each else None for case, each in zip(shown, seconds, strict=True)]
        axis.plot(rates, range(len(shown)), "o", color=color, label=f"quark_numba, {who}" if who == DROP_IN else who)
    _dots(axis, [f"{case.operation} {case.row.name}" for case in shown], f"{RATE}, logarithmic")
    axis.xaxis.set_major_formatter("{x:g}")
    figure.legend(fontsize=8, loc="outside upper center", ncols=5)
    return figure


def _plot_classifier(kept: Kept):
    """Draw the latency of the classifier on one thread, with the float model's as 1."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 0.4 * len(FORMATS) + 1), layout="constrained")
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=0.8)
    for who, color in ((SESSION, GREEN), (DROP_IN, BLUE), (QUARK, RED)):
        ratios = [_ratio(kept["speed_beside_quark"], _classifier(each), who) for each in FORMATS]
        axis.plot(ratios, range(len(ratios)), "o", color=color, label=who if who == QUARK else f"quark_numba, {who}")
        for row, ratio in enumerate(ratios):
            if ratio:
                axis.annotate(digits(ratio), (ratio, row), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    _dots(axis, [*FORMATS.values()], f"{MODEL}, on one thread, logarithmic")
    axis.xaxis.set_major_formatter("{x:g}")
    figure.legend(fontsize=8, loc="outside upper center", ncols=3)
    return figure


Range = tuple[float, float] | None


def _classifier(name: str, threads: int = 1) -> str:
    """Return the group of the classifier in a type."""
    return f"beside Quark: {CLASSIFIER}_{name}, threads: {threads}"


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


def _in_quarks_types(kept: Kept, model: str, types: Iterable[str], *, is_drop_in: bool = False) -> Range:
    """Return the range of a model in these types. The classifier is measured beside Quark's library."""
    if model == "classifier":
        who = DROP_IN if is_drop_in else SESSION
        return _range(kept["speed_beside_quark"], [(f"beside Quark: {CLASSIFIER}_{each}", who) for each in types])
    return _range(kept["speed_of_real_models"], [(model, each if is_drop_in else _optimized(each)) for each in types])


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


RANGES = ["Quark's 16 and 32 bits", "Quark's block formats", "ONNX's integers, 4 to 16 bits", "the same, ONNX Runtime alone"]


def _plot_models(kept: Kept):
    """Draw the ranges of all models, each as two dots and a line between them."""
    import matplotlib.pyplot as plt

    rows = [*_ranges(kept)]
    figure, axis = plt.subplots(figsize=(8, 0.5 * len(rows) + 1), layout="constrained")
    axis.axvline(1, color="black", linewidth=0.8)
    for place, (label, color) in enumerate(zip(RANGES, [GREEN, BLUE, YELLOW, RED], strict=True)):
        for row, (_, ranges) in enumerate(rows):
            if ranges[place]:
                at = row + 0.18 * (place - 1.5)
                axis.plot(ranges[place], (at, at), "o-", color=color, markersize=4, linewidth=1)
        axis.plot([], [], "o-", color=color, markersize=4, linewidth=1, label=label)
    _dots(axis, [model for model, _ in rows], f"{MODEL}, lowest and highest")
    figure.legend(fontsize=8, loc="outside upper center", ncols=2)
    return figure


def _text(found: Range, unit: str = " ×") -> str:
    """Return a range, whose two ends may be the same."""
    return f"{' to '.join(dict.fromkeys(map(digits, found)))}{unit}" if found else ""


def _joined(ranges: Iterable[Range]) -> Range:
    ends = [end for each in ranges if each for end in each]
    return (min(ends), max(ends)) if ends else None


def _optimized_ratios(kept: Kept) -> Iterator[float]:
    """Yield the multiple of the float model's time of each model in `InferenceSession`, on one thread and on two."""
    whose = {
        "speed_beside_quark": lambda who: who == SESSION,
        "speed_of_real_models": lambda who: who.endswith(_optimized("")),
        "speed_of_onnx_models": lambda who: who == models_of_onnx.OURS,
    }
    for file, is_ours in whose.items():
        for group, seconds in kept[file].groups.items():
            yield from (
                each / seconds[FLOAT]
                for who, each in seconds.items()
                if is_ours(who) and FLOAT in seconds and "threads" in group
            )


def _summary(kept: Kept) -> Iterator[str]:
    ratios = [*_optimized_ratios(kept)]
    share = sum(each <= AS_FAST for each in ratios) / len(ratios)
    yield f"In `InferenceSession`, {share:.0%} of {len(ratios)} latencies are at most {AS_FAST} × the float model's"
    yield f"(the median is {digits(median(ratios))} ×), and all are at most {digits(max(ratios))} ×."
    yield "These are all models in Quark's types and in ONNX's operators, float8 included, on one thread and on two."
    others = _range(kept["speed_of_other_quantizers"], [(name, SESSION) for name in NAMES])
    yield "The [models of other quantizers](RESULTS.md#models-of-other-quantizers), many of them tiny, are not counted:"
    yield f"they take {_text(others)}."
    yield ""
    yield "![Latency of all models in InferenceSession](models.svg)"
    yield ""
    yield from table([MODEL, *RANGES], [[model, *map(_text, ranges)] for model, ranges in _ranges(kept)])
    float8 = [name for name in models_of_onnx.NAMES if name.endswith("float8")]
    ours, theirs = (
        _range(kept["speed_of_onnx_models"], [(name, who) for name in float8]) for who in (models_of_onnx.OURS, ONNX_RUNTIME)
    )
    yield f"Models in ONNX's float8 are not in the chart and the table: they take {_text(ours)} in `InferenceSession`,"
    yield f"and {_text(theirs)} in ONNX Runtime alone."
    yield ""


def _loading(kept: Kept) -> Iterator[str]:
    """Yield how long optimized models load."""
    groups = {name: each for name, each in kept["speed_of_real_models"].groups.items() if name.startswith("loading")}
    ratios = [each[_optimized(who)] / each[who] for each in groups.values() for who in each if _optimized(who) in each]
    yield "A drop-in session of what `optimize` returned loads in"
    yield f"{_text((min(ratios), max(ratios)))} the time of one of the original model, with a filled cache"
    yield "([in ms](RESULTS.md#models-in-quarks-types))."
    yield ""


def _targets(kept: Kept) -> Iterator[str]:
    models = ("classifier", *ARCHITECTURES)
    slow = ("transformer", "byte classifier", "voice detector")
    start_up, others, operators = (kept[each] for each in ("start_up", "speed_of_other_operators", "operators"))
    lstm = [results[DROP_IN] / results["onnxruntime"] for group, results in others.groups.items() if "LSTM" in group]
    (float8,) = (c.group for c in _per_tensor() if (c.operation, c.row.name) == ("quantize", "float8e4m3fn"))
    drop_in = _joined(_in_quarks_types(kept, each, MODELS, is_drop_in=True) for each in models)
    blocks = _joined(_in_quarks_types(kept, each, BLOCK_MODELS) for each in models)
    others_of_ours = _joined(_in_quarks_types(kept, each, MODELS) for each in slow)
    rows = [
        ["drop-in session, 16 and 32 bits", "2.0 ×", _text(drop_in), "[weights rounded in each run](#drop-in-sessions)"],
        ["`InferenceSession`, block formats", "1.15 ×", _text(blocks), "[transposing and rounding](#block-formats)"],
        [
            f"`InferenceSession`, 16 and 32 bits: {', '.join(slow)}",
            "1.0 ×",
            _text(others_of_ours),
            "[fusions of the float model](#small-models-and-transformers)",
        ],
        ["LSTM layers", "1.0 ×", _text((min(lstm), max(lstm))), "[`tanhf` of the C library](#normalization-and-lstm-layers)"],
    ]
    header = ["target", "measured", "why"]
    yield from table([MODEL, *header], rows)
    bf16, mx9 = (f"{SESSION}, {model} model" for model in ("bf16", "MX9"))
    later = start_up.groups[FILLED][bf16] / start_up.groups[FILLED][FLOAT]
    first, second = (f"{digits(start_up.groups[EMPTY][who])} s" for who in (bf16, mx9))
    rows = [
        ["a first session, bfloat16", "1.5 s", first, "[compiling](#a-first-session)"],
        ["a first session, MX9", "2.5 s", second, "[compiling](#a-first-session)"],
        ["a later session / ONNX Runtime's of the float model", "5 ×", f"{digits(later)} ×", "[importing](#a-later-session)"],
    ]
    yield from table(["a process that makes a session (less is better)", *header], rows)
    faster = operators.get(float8, "onnxruntime") / operators.get(float8, DROP_IN)
    row = ["quantize float8e4m3fn", "20 ×", f"{faster:.1f} ×", "[a division for each element](#float8)"]
    yield from table(["speed-up over ONNX Runtime's operator (more is better)", *header], [row])


def _beside(kept: Kept) -> Iterator[str]:
    """Yield what a drop-in session and `InferenceSession` gain for the classifier, on one thread."""
    results = kept["speed_beside_quark"]
    groups = [results.groups[_classifier(each)] for each in FORMATS]
    rows = []
    for who in (DROP_IN, SESSION):
        faster, slower = ([g[a] / g[b] for g in groups] for a, b in ((QUARK, who), (who, FLOAT)))
        rows.append([who, *(_text((min(each), max(each))) for each in (faster, slower))])
    yield from table(["classifier, on one thread", *FRONT_COLUMNS], rows)
    yield from _note(results)


def _note(results: Results) -> Iterator[str]:
    """Yield what the numbers of a file are."""
    yield f"Each time is {results.content['statistic']}. {results.content.get('note', '')}".rstrip()
    yield ""


def _of_operators(kept: Kept) -> Iterator[str]:
    results = kept["operators"]
    pairs = [(case.size, results.get(case.group, DROP_IN), results.get(case.group, "onnxruntime")) for case in _per_tensor()]
    rates = [size / ours / 1e9 for size, ours, _ in pairs if ours]
    faster = [theirs / ours for _, ours, theirs in pairs if ours and theirs]
    yield f"A drop-in session's operator converts {_text((min(rates), max(rates)), '')} billion elements a second"
    yield f"(of a million, per tensor, on two threads). It is {_text((min(faster), max(faster)), ' times')} as fast as"
    yield f"ONNX Runtime's own operator, depending on the type; half of the types gain at least {digits(median(faster))} times."
    yield ""
    yield from _note(results)


def _front(kept: Kept) -> Iterator[str]:
    """Yield the findings of the front page: the classifier in each type, on one thread."""
    results = kept["speed_beside_quark"]
    rows = []
    for name, label in FORMATS.items():
        seconds = results.groups[_classifier(name)]
        pairs = (QUARK, SESSION), (SESSION, FLOAT), (QUARK, FLOAT)
        rows.append([label, *(digits(seconds[a] / seconds[b]) for a, b in pairs)])
    yield from table(["`InferenceSession`, on one thread", *FRONT_COLUMNS, f"{QUARK} / float model"], rows)
    slow = digits(_ratio(results, _classifier("fp16"), QUARK) or 0)
    yield f"Quark's own float16 operator is slow: with it the model takes {slow} times as long as the float model."
    yield from _note(results)


def _start(kept: Kept, who: str, group: str) -> str:
    """Return the time of a process that makes a session of the classifier, in bfloat16 and in MX9."""
    bfloat16, mx9 = (f"{digits(kept['start_up'].groups[group][f'{who}, {model} model'])} s" for model in ("bf16", "MX9"))
    return bfloat16 if bfloat16 == mx9 else f"{bfloat16} (bfloat16) or {mx9} (MX9)"


def _front_start_up(kept: Kept) -> Iterator[str]:
    """Yield the times of processes that make a session, as an item of a list."""
    first, later, kept_model = (_start(kept, *each) for each in ((SESSION, EMPTY), (SESSION, FILLED), (KEEPING, FILLED)))
    theirs = kept["start_up"].groups[FILLED][FLOAT]
    yield f"- The first process that makes an `InferenceSession` of the classifier takes {first}, most of which is compiling."
    yield f"  Later ones take {later}, or {kept_model} with `cache=True`."
    yield f"  A process with ONNX Runtime's session of the float model takes {digits(theirs)} s."
    yield ""


def _kept_models(kept: Kept) -> Iterator[str]:
    """Yield what a kept model saves."""
    yield f"A process that makes a session of the classifier takes {_start(kept, KEEPING, FILLED)},"
    yield f"and {_start(kept, SESSION, FILLED)} without `cache`."
    yield ""


def _start_up(results: Results) -> Iterator[str]:
    theirs = results.groups[FILLED][FLOAT]
    groups = EMPTY, f"{EMPTY}{PROCESSOR_TIME}", FILLED
    rows = []
    for who, later in results.groups[FILLED].items():
        rows.append([who, *(f"{digits(results.groups[group][who])} s" for group in groups), f"{digits(later / theirs)} ×"])
    header = ["process (less is better)", "cache empty", "its processor time", "cache filled", f"cache filled / {FLOAT} model"]
    yield from table(header, rows)


def _kept() -> Kept:
    return {path.stem: Results(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(KEPT.glob("*.json"))}


# The marks of a table in RESULTS.md, the file with its benchmarks, and what writes it.
TABLES = (
    ("operators", "operators", _operators),
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
PARTS = (
    (RESULTS, "runs", _runs),
    (README, "the classifier", _beside),
    (README, "models", _summary),
    (README, "operators", _of_operators),
    (PERFORMANCE, "targets", _targets),
    (PERFORMANCE, "loading", _loading),
    (SESSIONS, "kept models", _kept_models),
    (FRONT, "times", _front),
    (FRONT, "start-up", _front_start_up),
)
CHARTS = {"beside_quark.svg": _plot_classifier, "models.svg": _plot_models, "operators.svg": _plot_operators}
PAGES = (RESULTS, README, PERFORMANCE, FRONT, SESSIONS)


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


def draw(folder: Path) -> None:
    """Draw the charts of the kept results."""
    import matplotlib.pyplot as plt

    kept = _kept()
    with plt.rc_context({"svg.hashsalt": "quark_numba"}):
        for name, drawn in CHARTS.items():
            drawn(kept).savefig(folder / name, metadata={"Date": None})
    plt.close("all")


def main() -> bool:
    """Return whether results were left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="the JSON files of runs")
    are_kept = [keep(path) for path in parser.parse_args().files]
    for path in PAGES:
        path.write_text(written(path), encoding="utf-8")
    draw(HERE)
    return not all(are_kept)


if __name__ == "__main__":
    sys.exit(main())
