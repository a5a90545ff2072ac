"""The tables of RESULTS.md."""

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from statistics import median_low

import beside_quark
import models_of_onnx
from architectures import ARCHITECTURES
from beside_quark import CLASSIFIER, FINE_TUNED, STEPS
from cases import BLOCK_CASES, GRANULARITIES, OTHER_CASES, PER_TENSOR, cases
from labels import (
    COPY,
    DIRECT_CALL,
    DROP_IN,
    EMPTY,
    FILLED,
    FLOAT,
    ONNX_RUNTIME,
    ONNX_RUNTIMES_OPERATOR,
    OPTIMIZED,
    PROCESSOR_TIME,
    QUARK,
    SESSION,
    group_of,
    label_of,
)
from models_of_onnx import ALL_OURS
from models_of_quantizers import NAMES, VENDOR
from pages import digits, table
from quantities import (
    BLOCK_TYPES,
    RATE,
    RELATIVE_LATENCY,
    TYPES,
    in_ms,
    operators_per_tensor,
    ratio,
    statistic,
)
from saved_results import THREADS, Results, Saved, runs_of

# A row is marked if the float model took so much longer or shorter than in the other rows of the same model, or if the ratio on
# two threads is so much larger than on one.
OTHER_FLOAT_TIME, LARGER_RATIO = 0.2, 1.5
FLOAT_MARK, RATIO_MARK = " †", " ‡"

# What separates the numbers of a cell that has one for each of THREADS.
ON_THREADS = ", "


def runs_list(saved: Saved) -> Iterator[str]:
    """Yield the day, the machine and the versions of each run."""
    for number, (date, machine, versions) in enumerate(runs_of(saved), 1):
        text = f"{number}. {date}, {machine}: {versions}"
        yield textwrap.fill(text, 140, subsequent_indent="   ", break_on_hyphens=False)
    yield ""


def run_line(results: Results, saved: Saved) -> str:
    """Return the line above a table: which run it is of, on which machine, and what its times are."""
    number = runs_of(saved).index(results.run) + 1
    return f"[Run {number}](#runs), {results.date}, {results.machine}. {statistic(results)}\n"


def operators_table(results: Results) -> Iterator[str]:
    chosen = operators_per_tensor()
    names = [name for name in results.contenders if any(results.get(case.group, name) for case in chosen)]
    rows = []
    for case in chosen:
        seconds = [results.get(case.group, name) for name in names]
        if any(seconds):
            rows.append([case.label, *(digits(case.size / s / 1e9) if s else "" for s in seconds)])
    yield from table([RATE, *map(label_of, names)], rows)


def granularities_table(results: Results) -> Iterator[str]:
    chosen = [case for case in cases() if case.granularity != PER_TENSOR]
    labels = list(dict.fromkeys(case.label for case in chosen))
    rows = []
    for granularity in GRANULARITIES:
        row = [label_of(granularity)]
        for label in labels:
            match = [case for case in chosen if (case.label, case.granularity) == (label, granularity)]
            seconds = results.get(match[0].group, DROP_IN) if match else None
            row.append(digits(match[0].size / seconds / 1e9) if seconds else "")
        rows.append(row)
    yield from table([RATE, *labels], rows)


def block_formats_table(results: Results) -> Iterator[str]:
    rows = []
    contenders = (DROP_IN, DIRECT_CALL, COPY)
    for case in BLOCK_CASES:
        seconds = [results.get(case.group, who) for who in contenders]
        if all(seconds):
            rows.append([label_of(case.group), *(digits(prod(case.shape) / s / 1e9) for s in seconds if s)])
    yield from table([RATE, *map(label_of, contenders)], rows)


def normalization_and_lstm_table(results: Results) -> Iterator[str]:
    rows = []
    contenders = (ONNX_RUNTIMES_OPERATOR, DROP_IN, QUARK)
    for case in OTHER_CASES:
        seconds = [results.get(case.group, who) for who in contenders]
        if any(seconds):
            rows.append([label_of(case.group), *map(in_ms, seconds)])
    yield from table(["ms (less is better)", *map(label_of, contenders)], rows)


def start_up_table(results: Results) -> Iterator[str]:
    theirs = results.groups[FILLED][FLOAT]
    groups = EMPTY, f"{EMPTY}{PROCESSOR_TIME}", FILLED
    rows = []
    for who, later in results.groups[FILLED].items():
        times = [f"{digits(results.groups[group][who])} s" for group in groups]
        label = "session of the float model" if who == FLOAT else label_of(who)
        rows.append([label, *times, f"{digits(later / theirs)} ×"])
    header = [
        "process (less is better)",
        "cache empty",
        "processor time, cache empty",
        "cache filled",
        f"cache filled / {FLOAT} model",
    ]
    yield from table(header, rows)


def quarks_models_tables(results: Results) -> Iterator[str]:
    floats, rows = [], []
    for model in ARCHITECTURES:
        references = [results.get(group_of(model, threads), FLOAT) for threads in THREADS]
        load = f"{model}/load"
        if all(references):
            floats.append([label_of(model), ON_THREADS.join(map(in_ms, references)), in_ms(results.get(load, FLOAT))])
        for name in (*TYPES, *BLOCK_TYPES):
            row = []
            for who in (f"{name}/{DROP_IN}", f"{name}/{OPTIMIZED}"):
                ratios = [ratio(results, group_of(model, threads), who) for threads in THREADS]
                row += [ON_THREADS.join(digits(each) for each in ratios if each), in_ms(results.get(load, who))]
            if any(row):
                rows.append([label_of(f"{model}/{name}"), *row])
    yield from table(["float model, ms (less is better)", "latency", "load"], floats)
    drop_in, ours = label_of(DROP_IN), label_of(SESSION)
    yield from table([RELATIVE_LATENCY, drop_in, "load, ms", ours, "load of the optimized model, ms"], rows)


def beside_quark_tables(results: Results) -> Iterator[str]:
    ratios, times = [], []
    usual = _usual_float_times(results, beside_quark.NAMES)
    for name in beside_quark.NAMES:
        groups = [group_of(name, threads) for threads in THREADS]
        seconds = [[results.get(group, each) for group in groups] for each in beside_quark.CONTENDERS[1:]]
        references = [results.get(group, FLOAT) for group in groups]
        if not all(seconds[0] + seconds[-1]):
            continue
        faster = ON_THREADS.join(digits(old / new) for old, new in zip(seconds[0], seconds[-1], strict=True))
        if all(references):
            marks = [
                _float_mark(each, usual[_model_of(name), threads]) for each, threads in zip(references, THREADS, strict=True)
            ]
            floats = ON_THREADS.join(f"{in_ms(each)}{mark}" for each, mark in zip(references, marks, strict=True))
            cells = [ON_THREADS.join(digits(a / b) for a, b in zip(each, references, strict=True)) for each in seconds]
            ratios.append([name, floats, *cells, faster])
        else:
            times.append([name, *(ON_THREADS.join(map(in_ms, each)) for each in seconds), faster])
    quark, *_, ours = contenders = [*map(label_of, beside_quark.CONTENDERS[1:])]
    yield from _with_notes(
        table([RELATIVE_LATENCY, "float model, ms", *contenders, f"speed-up of {ours} over {quark}"], ratios)
    )
    yield from table(["ms (less is better)", *contenders, "speed-up (more is better)"], times)
    rows = []
    for name in FINE_TUNED:
        old, new = (results.get(name, each) for each in (QUARK, DROP_IN))
        if old and new:
            rows.append([f"{name}, {STEPS} steps a layer", f"{digits(old)} s", f"{digits(new)} s", digits(new / old)])
    if rows:
        yield from table(
            ["fine-tuning on one thread (less is better)", "Quark's operators", "quark_numba", "quark_numba / Quark's"], rows
        )


def other_quantizers_table(results: Results) -> Iterator[str]:
    rows = []
    for name, reference, floats, ratios in _against_float(results, NAMES, DROP_IN, SESSION):
        vendor = results.get(group_of(name, 1), VENDOR)
        rows.append([label_of(name), floats, digits(vendor / reference) if vendor else "", *ratios])
    header = [
        RELATIVE_LATENCY,
        "float model, ms",
        label_of(group_of(VENDOR, 1)),
        *map(label_of, (DROP_IN, SESSION)),
    ]
    yield from _with_notes(table(header, rows))


def onnx_models_table(results: Results) -> Iterator[str]:
    found = _against_float(results, models_of_onnx.NAMES, ONNX_RUNTIME, SESSION, ALL_OURS)
    rows = [[label_of(name), floats, *ratios] for name, _, floats, ratios in found]
    ours = (f"`{label_of(who)}`" for who in (SESSION, ALL_OURS))
    header = [RELATIVE_LATENCY, "float model, ms", label_of(ONNX_RUNTIME), *ours]
    yield from _with_notes(table(header, rows))


# The marks of a table, the file with its benchmarks, and what writes it.
TABLES = (
    ("operators", "operators", operators_table),
    ("granularities", "operators", granularities_table),
    ("block formats", "speed_of_block_formats", block_formats_table),
    ("normalization and LSTM layers", "speed_of_other_operators", normalization_and_lstm_table),
    ("start-up", "start_up", start_up_table),
    ("Quark's models", "speed_of_synthetic_models", quarks_models_tables),
    ("Quark's library", "speed_beside_quark", beside_quark_tables),
    ("other quantizers", "speed_of_other_quantizers", other_quantizers_table),
    ("ONNX's own operators", "speed_of_onnx_models", onnx_models_table),
)


def _against_float(results: Results, names: Iterable[str], *contenders: str) -> Iterator[tuple[str, float, str, list[str]]]:
    """Yield each model that was measured: its name, the seconds of its float model on one thread, and the cells of the float
    model and of the contenders. A cell has a number for each of THREADS."""
    usual = _usual_float_times(results, names)
    for name in names:
        groups = [group_of(name, threads) for threads in THREADS]
        references = [results.get(group, FLOAT) for group in groups]
        if all(references):
            pairs = list(zip(groups, references, strict=True))
            usuals = (usual[_model_of(name), threads] for threads in THREADS)
            floats = [f"{in_ms(each)}{_float_mark(each, other)}" for each, other in zip(references, usuals, strict=True)]
            ratios = []
            for who in contenders:
                one, two = (results.get(group, who) / seconds for group, seconds in pairs)
                is_larger = two > LARGER_RATIO * one and who != ONNX_RUNTIME  # which runs some operators on one thread
                ratios.append(ON_THREADS.join([digits(one), f"{digits(two)}{RATIO_MARK if is_larger else ''}"]))
            yield name, references[0], ON_THREADS.join(floats), ratios


def _model_of(name: str) -> str:
    """Return the float model that the rows of some names share. Beside Quark's library it is the classifier."""
    parts = name.split("/")
    return "/".join(parts[:2]) if name in NAMES else parts[0] if len(parts) > 1 else CLASSIFIER


def _usual_float_times(results: Results, names: Iterable[str]) -> dict[tuple[str, int], float]:
    """Return the median of the seconds of each float model over its rows, on one thread and on two."""
    seconds = defaultdict(list)
    for name, threads in product(names, THREADS):
        if found := results.get(group_of(name, threads), FLOAT):
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
