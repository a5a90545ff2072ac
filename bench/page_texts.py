"""The sentences and tables that the other pages take from the saved results."""

import textwrap
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import models_of_onnx
from architectures import ARCHITECTURES
from beside_quark import FORMATS
from labels import (
    DROP_IN,
    EMPTY,
    FILLED,
    FLOAT,
    ONNX_RUNTIME,
    ONNX_RUNTIMES_OPERATOR,
    OPTIMIZED,
    QUARK,
    SESSION,
    SESSION_WITHOUT_CACHE,
    label_of,
)
from models_of_quantizers import NAMES
from pages import FRONT, PERFORMANCE, README, SESSIONS, digits, table
from quantities import (
    BLOCK_TYPES,
    RANGES,
    RELATIVE_LATENCY,
    TYPES,
    Range,
    classifier_group,
    joined,
    operators_per_tensor,
    range_in_quarks_types,
    range_of,
    range_of_ratios,
    range_text,
    ranges_of_models,
    ratio,
    statistic,
)
from saved_results import Results, Saved, runs_of

FRONT_COLUMNS = ("speed-up over Quark's library (more is better)", RELATIVE_LATENCY)
# An optimized model is called as fast as the float model up to this multiple of its latency.
AS_FAST = 1.1
# The files with all models, and which of their contenders are `InferenceSession`.
OUR_SESSIONS: dict[str, Callable[[str], bool]] = {
    "speed_beside_quark": lambda who: who == SESSION,
    "speed_of_synthetic_models": lambda who: who.endswith(f"/{OPTIMIZED}"),
    "speed_of_onnx_models": lambda who: who == SESSION,
}


def measured_line(*results: Results) -> Iterator[str]:
    """Yield the machines on which results were measured, and the meaning of the times."""
    machines = dict.fromkeys(each.machine for each in results)
    yield from textwrap.wrap(f"Measured on {' and on '.join(machines)}. {statistic(*results)}", 140)
    yield ""


# bench/README.md


def classifier_finding(saved: Saved) -> Iterator[str]:
    """Yield the speed-up of a drop-in session and of `InferenceSession` for the classifier, on one thread."""
    results = saved["speed_beside_quark"]
    rows = []
    for who in (DROP_IN, SESSION):
        # Quark's own float16 operator is far slower than its others.
        for kind, names in (("float16", ["fp16"]), ("all other types", FORMATS.keys() - {"fp16"})):
            groups = [results.groups[classifier_group(each)] for each in names]
            faster, slower = ([g[a] / g[b] for g in groups] for a, b in ((QUARK, who), (who, FLOAT)))
            rows.append([f"{label_of(who)}, {kind}", *(range_text(range_of(each)) for each in (faster, slower))])
    yield from table(["classifier, on one thread", *FRONT_COLUMNS], rows)
    yield from measured_line(results)


def models_finding(saved: Saved) -> Iterator[str]:
    """Yield how all models compare with their float models."""
    ratios = [*_ratios_in_our_session(saved)]
    share = sum(each <= AS_FAST for each in ratios) / len(ratios)
    middle = digits(median(ratios))
    yield f"In `InferenceSession` the median of {len(ratios)} latencies is {middle} × the float model's."
    yield f"{100 * share:.0f} % are at most {AS_FAST} ×, and the slowest is {digits(max(ratios))} ×. These are all models"
    yield "with a float model, in Quark's types and in ONNX's operators, float8 included, on one thread and on two."
    yield "All but the classifier are synthetic: networks with random weights, and the quantization nodes that Quark"
    yield "or ONNX Runtime inserts (`bench/architectures.py`)."
    others = range_of_ratios(saved["speed_of_other_quantizers"], [(name, SESSION) for name in NAMES])
    yield "The [models of other quantizers](RESULTS.md#models-of-other-quantizers), many of them tiny, are not counted:"
    yield f"they take {range_text(others)}."
    yield ""
    yield "![Latency of all models in InferenceSession](models.svg)"
    yield ""
    yield from table(
        [RELATIVE_LATENCY, *RANGES], [[label_of(model), *map(range_text, ranges)] for model, ranges in ranges_of_models(saved)]
    )
    pairs = [[(name, who) for name in models_of_onnx.NAMES if name.endswith("float8")] for who in (SESSION, ONNX_RUNTIME)]
    ours, theirs = (range_text(range_of_ratios(saved["speed_of_onnx_models"], each)) for each in pairs)
    yield f"Models in ONNX's float8 are not in the chart and the table: they take {ours} in `InferenceSession`,"
    yield f"and {theirs} in ONNX Runtime alone."
    yield ""
    yield from measured_line(*(saved[file] for file in OUR_SESSIONS))


def _ratios_in_our_session(saved: Saved) -> Iterator[float]:
    """Yield the multiple of the float model's time of each model in `InferenceSession`, on one thread and on two."""
    for file, is_ours in OUR_SESSIONS.items():
        for group, seconds in saved[file].groups.items():
            if "/threads=" in group and FLOAT in seconds:
                yield from (each / seconds[FLOAT] for who, each in seconds.items() if is_ours(who))


def operators_finding(saved: Saved) -> Iterator[str]:
    """Yield how fast operators are, and how much faster than ONNX Runtime's."""
    results = saved["operators"]
    cases = operators_per_tensor()
    pairs = [(case.size, results.get(case.group, DROP_IN), results.get(case.group, ONNX_RUNTIMES_OPERATOR)) for case in cases]
    rates = [size / ours / 1e9 for size, ours, _ in pairs if ours]
    faster = [theirs / ours for _, ours, theirs in pairs if ours and theirs]
    yield f"A drop-in session's operator converts {range_text(range_of(rates), '')} billion elements a second"
    yield f"(of a million, per tensor, on two threads). It is {range_text(range_of(faster), ' times')} as fast as"
    yield "ONNX Runtime's own operator, depending on the type;"
    yield f"for half of the operators it is at least {digits(median(faster))} times."
    yield ""
    yield from measured_line(results)


def machines_finding(saved: Saved) -> Iterator[str]:
    """Yield the machines of all runs."""
    machines = dict.fromkeys(machine for _, machine, _ in runs_of(saved))
    yield from textwrap.wrap(
        f"The results come from virtual machines that call themselves: {'; '.join(machines)}.",
        140,
        break_on_hyphens=False,
    )
    yield ""


# bench/PERFORMANCE.md


def targets_finding(saved: Saved) -> Iterator[str]:
    """Yield all targets, and the reason for each that is missed."""
    others, start_up, operators = (saved[each] for each in ("speed_of_other_operators", "start_up", "operators"))
    models, slow = ("classifier", *ARCHITECTURES), ("transformer", "byte_classifier", "voice_detector")
    ours, fast = "`InferenceSession`, 16 and 32 bits:", [each for each in models if each not in slow]
    drop_in = joined(range_in_quarks_types(saved, each, TYPES, is_drop_in=True) for each in models)
    fast_models, slow_models = (joined(range_in_quarks_types(saved, each, TYPES) for each in names) for names in (fast, slow))
    blocks = joined(range_in_quarks_types(saved, each, BLOCK_TYPES) for each in models)
    lstm = range_of(
        results[DROP_IN] / results[ONNX_RUNTIMES_OPERATOR] for group, results in others.groups.items() if "LSTM" in group
    )
    yield from _targets_table(
        RELATIVE_LATENCY,
        Target("drop-in session, 16 and 32 bits", 2.0, drop_in, " ×", "[weights rounded in each run](#drop-in-sessions)"),
        Target(f"{ours} {', '.join(map(label_of, fast))}", 1.0, fast_models, " ×"),
        Target(
            f"{ours} {', '.join(map(label_of, slow))}",
            1.0,
            slow_models,
            " ×",
            "[fusions of the float model](#small-models-and-transformers)",
        ),
        Target("`InferenceSession`, block formats", 1.15, blocks, " ×", "[transposing and rounding](#block-formats)"),
        Target("LSTM layers", 1.0, lstm, " ×", "[`tanhf` of the C library](#normalization-and-lstm-layers)"),
    )
    (empty, filled), theirs = (start_up.groups[each] for each in (EMPTY, FILLED)), start_up.groups[FILLED][FLOAT]
    bf16, mx9 = (f"{SESSION}/{model}_model" for model in ("bf16", "mx9"))
    later = range_of([filled[bf16] / theirs])
    yield from _targets_table(
        "a process that makes a session (less is better)",
        Target("a first session, bfloat16", 1.5, range_of([empty[bf16]]), " s", "[compiling](#a-first-session)"),
        Target("a first session, MX9", 2.5, range_of([empty[mx9]]), " s", "[compiling](#a-first-session)"),
        Target("a later session / the float model's", 5.0, later, " ×", "[importing](#a-later-session)"),
    )
    (float8,) = (case.group for case in operators_per_tensor() if case.label == "quantize float8e4m3fn")
    faster = range_of([operators.get(float8, ONNX_RUNTIMES_OPERATOR) / operators.get(float8, DROP_IN)])
    yield from _targets_table(
        "speed-up over ONNX Runtime's operator (more is better)",
        Target("quantize float8e4m3fn", 20.0, faster, " ×", "[a division for each element](#float8)", is_least=True),
    )
    yield from measured_line(saved["speed_beside_quark"], saved["speed_of_synthetic_models"], others, start_up, operators)


class Target(NamedTuple):
    """A number that the project wants to reach, what was measured, and why it is missed if it is. `is_least` says that more is
    better."""

    what: str
    wanted: float
    measured: Range
    unit: str
    why: str = ""
    is_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the target is met, in the digits that the table shows."""
        assert self.measured
        least, most = (float(digits(each)) for each in self.measured)
        return least >= self.wanted if self.is_least else most <= self.wanted


def _targets_table(quantity: str, *targets: Target) -> Iterator[str]:
    rows = [
        [
            each.what,
            f"{each.wanted:.3g}{each.unit}",
            range_text(each.measured, each.unit),
            "met" if each.is_met else each.why or "not known",
        ]
        for each in targets
    ]
    return table([quantity, "target", "measured", "met, or why not"], rows)


def loading_finding(saved: Saved) -> Iterator[str]:
    """Yield how long optimized models load."""
    loads = [seconds for name, seconds in saved["speed_of_synthetic_models"].groups.items() if name.endswith("/load")]
    ratios = [each[f"{name}/{OPTIMIZED}"] / each[f"{name}/{DROP_IN}"] for each in loads for name in (*TYPES, *BLOCK_TYPES)]
    yield "A drop-in session of what `optimize` returned loads in"
    yield f"{range_text(range_of(ratios))} the time of one of the original model, with a filled cache"
    yield "([in ms](RESULTS.md#models-in-quarks-types))."
    yield ""


# README.md and quark_numba/session/README.md


def front_times_finding(saved: Saved) -> Iterator[str]:
    """Yield the times of the classifier in each type, on one thread."""
    results = saved["speed_beside_quark"]
    rows = []
    for name, label in FORMATS.items():
        seconds = results.groups[classifier_group(name)]
        rows.append([label, *(digits(seconds[a] / seconds[b]) for a, b in ((SESSION, FLOAT), (QUARK, SESSION)))])
    yield from table(["`InferenceSession`, on one thread", *reversed(FRONT_COLUMNS)], rows)
    slow = digits(ratio(results, classifier_group("fp16"), QUARK) or 0)
    yield f"With Quark's own float16 operator the model takes {slow} times as long as the float model."
    yield ""
    yield from measured_line(results)


def front_start_up_finding(saved: Saved) -> Iterator[str]:
    """Yield the times of processes that make a session."""
    pairs = (SESSION, EMPTY), (SESSION, FILLED), (SESSION_WITHOUT_CACHE, FILLED)
    first, later, uncached = (_start_up_time(saved, *each) for each in pairs)
    start_up = saved["start_up"]
    theirs = digits(start_up.groups[FILLED][FLOAT])
    yield f"The first process that makes an `InferenceSession` compiles kernels: {first} for the text-line classifier of"
    yield f"[the start](#start). Later ones take {later}, or {uncached} with `cache=False`. A process with ONNX Runtime's"
    yield f"session of the float model takes {theirs} s ({start_up.machine})."
    yield ""


def cached_models_finding(saved: Saved) -> Iterator[str]:
    """Yield the time that a cached model saves."""
    yield f"A process that makes a session of the classifier takes {_start_up_time(saved, SESSION, FILLED)},"
    yield f"and {_start_up_time(saved, SESSION_WITHOUT_CACHE, FILLED)} with `cache=False` ({saved['start_up'].machine})."
    yield ""


def _start_up_time(saved: Saved, who: str, group: str) -> str:
    """Return the time of a process that makes a session of the classifier, in bfloat16 and in MX9."""
    bfloat16, mx9 = (f"{digits(saved['start_up'].groups[group][f'{who}/{model}_model'])} s" for model in ("bf16", "mx9"))
    return bfloat16 if bfloat16 == mx9 else f"{bfloat16} (bfloat16) or {mx9} (MX9)"


# A page, the marks of its part, and what writes it.
FINDINGS = (
    (README, "the classifier", classifier_finding),
    (README, "models", models_finding),
    (README, "operators", operators_finding),
    (README, "machines", machines_finding),
    (PERFORMANCE, "targets", targets_finding),
    (PERFORMANCE, "loading", loading_finding),
    (SESSIONS, "cached models", cached_models_finding),
    (FRONT, "times", front_times_finding),
    (FRONT, "start-up", front_start_up_finding),
)
