"""What tables, sentences and charts show of the saved results: rates, times, multiples of the float model's time, and their
ranges."""

from collections.abc import Iterable, Iterator

import models_of_onnx
from architectures import ARCHITECTURES, BLOCK_FORMATS
from beside_quark import CLASSIFIER
from cases import PER_TENSOR, Case, cases
from labels import DROP_IN, FLOAT, ONNX_RUNTIME, OPTIMIZED, SESSION, group_of
from pages import digits
from saved_results import THREADS, Results, Saved

# What numbers are, in the header of the first column.
RATE, RELATIVE_LATENCY = "billion elements a second (more is better)", "latency / float model (less is better)"
TYPES, BLOCK_TYPES = ("bf16", "fp16", "i32", "u32"), tuple(BLOCK_FORMATS)

# The lowest and the highest of some numbers; None if there are none.
Range = tuple[float, float] | None

# What the ranges of a model are of.
RANGES = ["Quark's 16 and 32 bits", "Quark's block formats", "ONNX's integers, 4 to 16 bits", "the same, ONNX Runtime alone"]


def statistic(*results: Results) -> str:
    """Return a sentence that says how the times of these results were measured, and the notes on them."""
    turns = " or ".join(map(str, sorted({count for each in results for count in each.turns})))
    spreads = [each.spread for each in results]
    spread = " to ".join(dict.fromkeys(f"{100 * each:.0f} %" for each in (min(spreads), max(spreads))))
    notes = dict.fromkeys(each.note for each in results if each.note)
    return " ".join([f"Each time is the best of {turns} turns; the slowest turn typically takes {spread} longer.", *notes])


def operators_per_tensor() -> list[Case]:
    """Return the cases of tables and charts of operators."""
    return [case for case in cases() if case.granularity == PER_TENSOR and case.size == 1 << 20 and case.threads == 2]


def classifier_group(name: str) -> str:
    """Return the group of the classifier in a type, on one thread."""
    return group_of(f"{CLASSIFIER}_{name}", 1)


def in_ms(seconds: float | None) -> str:
    return digits(1e3 * seconds) if seconds else ""


def ratio(results: Results, group: str, who: str) -> float | None:
    """Return the multiple of the float model's time in a group; None if either was not measured."""
    seconds, reference = results.get(group, who), results.get(group, FLOAT)
    return seconds / reference if seconds and reference else None


def range_of(values: Iterable[float]) -> Range:
    values = [*values]
    return (min(values), max(values)) if values else None


def joined(ranges: Iterable[Range]) -> Range:
    return range_of(end for each in ranges if each for end in each)


def range_text(found: Range, unit: str = " ×") -> str:
    """Return a range, whose two ends may be the same."""
    return f"{' to '.join(dict.fromkeys(map(digits, found)))}{unit}" if found else ""


def range_of_ratios(results: Results, pairs: Iterable[tuple[str, str]]) -> Range:
    """Return the range of the multiples of the float model's time, on one thread and on two, of pairs of a model and a
    contender."""
    found = (ratio(results, group_of(model, threads), who) for model, who in pairs for threads in THREADS)
    return range_of(each for each in found if each)


def range_in_quarks_types(saved: Saved, model: str, types: Iterable[str], *, is_drop_in: bool = False) -> Range:
    """Return the range of a model in these types. The classifier is measured beside Quark's library."""
    if model == "classifier":
        who = DROP_IN if is_drop_in else SESSION
        return range_of_ratios(saved["speed_beside_quark"], [(f"{CLASSIFIER}_{each}", who) for each in types])
    way = DROP_IN if is_drop_in else OPTIMIZED
    return range_of_ratios(saved["speed_of_synthetic_models"], [(model, f"{each}/{way}") for each in types])


def ranges_of_models(saved: Saved) -> Iterator[tuple[str, list[Range]]]:
    """Yield each model and its ranges, as `RANGES` names them."""
    types = [name for name in models_of_onnx.TYPES if name != "float8"]
    of_onnx = saved["speed_of_onnx_models"]
    for model in dict.fromkeys(["classifier", *ARCHITECTURES, *models_of_onnx.MODELS]):
        ranges = [range_in_quarks_types(saved, model, each) for each in (TYPES, BLOCK_TYPES)]
        for who in (SESSION, ONNX_RUNTIME):
            ranges.append(range_of_ratios(of_onnx, [(f"{model}/{each}", who) for each in types]))
        yield model, ranges
