"""The charts of the pages."""

from pathlib import Path

from beside_quark import FORMATS
from labels import COPY, DROP_IN, ONNX_RUNTIMES_OPERATOR, QUARK, SESSION, label_of
from pages import digits
from quantities import (
    RANGES,
    RATE,
    RELATIVE_LATENCY,
    classifier_group,
    operators_per_tensor,
    ranges_of_models,
    ratio,
)
from saved_results import Saved

GREEN, BLUE, RED, YELLOW, GREY = "#2e8b57", "#5b7bb8", "#c44e52", "#e0a030", "#999999"


def operators_chart(saved: Saved):
    """Return a chart of the throughput of some operators."""
    import matplotlib.pyplot as plt

    results = saved["operators"]
    shown = [case for case in operators_per_tensor() if case.element_type.name in ("uint8", "int4", "float8e4m3fn")]
    figure, axis = plt.subplots(figsize=(8, 0.4 * len(shown) + 1), layout="constrained")
    axis.set_xscale("log")
    colors = {COPY: GREY, DROP_IN: GREEN, "pytorch": YELLOW, ONNX_RUNTIMES_OPERATOR: BLUE, "numpy": RED}
    for who, color in colors.items():
        seconds = [results.get(case.group, who) for case in shown]
        rates = [case.size / each / 1e9 if each else None for case, each in zip(shown, seconds, strict=True)]
        axis.plot(rates, range(len(shown)), "o", color=color, label=_label_of(who))
    _label_rows(axis, [case.label for case in shown], f"{RATE}, logarithmic")
    axis.xaxis.set_major_formatter("{x:g}")
    figure.legend(fontsize=8, loc="outside upper center", ncols=5)
    return figure


def classifier_chart(saved: Saved):
    """Return a chart of the latency of the classifier on one thread, with the float model's as 1."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 0.4 * len(FORMATS) + 1), layout="constrained")
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=0.8)
    for who, color in ((SESSION, GREEN), (DROP_IN, BLUE), (QUARK, RED)):
        ratios = [ratio(saved["speed_beside_quark"], classifier_group(each), who) for each in FORMATS]
        axis.plot(ratios, range(len(ratios)), "o", color=color, label=_label_of(who))
        for row, each in enumerate(ratios):
            if each:
                axis.annotate(digits(each), (each, row), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    _label_rows(axis, [*FORMATS.values()], f"{RELATIVE_LATENCY}, on one thread, logarithmic")
    axis.xaxis.set_major_formatter("{x:g}")
    figure.legend(fontsize=8, loc="outside upper center", ncols=3)
    return figure


def models_chart(saved: Saved):
    """Return a chart of the ranges of all models, each as two dots and a line between them."""
    import matplotlib.pyplot as plt

    rows = [*ranges_of_models(saved)]
    figure, axis = plt.subplots(figsize=(8, 0.5 * len(rows) + 1), layout="constrained")
    axis.axvline(1, color="black", linewidth=0.8)
    for place, (label, color) in enumerate(zip(RANGES, [GREEN, BLUE, YELLOW, RED], strict=True)):
        for row, (_, ranges) in enumerate(rows):
            if ranges[place]:
                at = row + 0.18 * (place - 1.5)
                axis.plot(ranges[place], (at, at), "o-", color=color, markersize=4, linewidth=1)
        axis.plot([], [], "o-", color=color, markersize=4, linewidth=1, label=label)
    _label_rows(axis, [label_of(model) for model, _ in rows], f"{RELATIVE_LATENCY}, lowest and highest")
    figure.legend(fontsize=8, loc="outside upper center", ncols=2)
    return figure


CHARTS = {"beside_quark.svg": classifier_chart, "models.svg": models_chart, "operators.svg": operators_chart}


def draw(folder: Path, saved: Saved) -> None:
    """Draw all charts."""
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "quark_numba"}):
        for name, chart in CHARTS.items():
            chart(saved).savefig(folder / name, metadata={"Date": None})
    plt.close("all")


def _label_of(who: str) -> str:
    return f"quark_numba, {label_of(who)}" if who in (DROP_IN, SESSION) else label_of(who)


def _label_rows(axis, rows: list[str], label: str) -> None:
    """Prepare an axis for dots in rows."""
    for row in range(len(rows)):
        axis.axhline(row, color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.set_xlabel(label)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
