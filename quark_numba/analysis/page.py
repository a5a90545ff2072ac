"""An analysis as one HTML page with sortable tables and plots. The page loads no other files."""

from __future__ import annotations

import html
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from ..errors import ModelError, counted
from .analyze import Analysis
from .experiments.histograms import Histogram
from .measures.outputs import OutputError

# The colours of two series. Readers can tell them apart in light and dark mode, and with either kind of colour blindness. In
# plots they are replaced by the page's CSS variables, so that the plots follow the reader's mode.
_OWN, _INHERITED = "#0b6fb8", "#d1590b"
_TEXT, _LINE = "#111111", "#999999"
_VARIABLES = {_OWN: "var(--own)", _INHERITED: "var(--inherited)", _TEXT: "var(--text)", _LINE: "var(--line)"}

_PLOTS = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), _TEXT),
    **dict.fromkeys(("axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _LINE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "quark_numba",
}


def page(analysis: Analysis, title: str) -> str:
    """Return the page. Raise ModelError if matplotlib is missing."""
    pyplot = check_plots()
    with pyplot.rc_context(_PLOTS):
        sections = "".join(_sections(pyplot, analysis))
    samples = f"{counted(analysis.samples, 'sample')} in {counted(analysis.batches, 'batch', 'batches')}"
    body = f"<header><h1>{html.escape(title)}</h1><p>{samples}</p></header><main>{sections}</main>"
    template = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=html.escape(title), body=body)


def _sections(pyplot: Any, analysis: Analysis) -> Iterator[str]:
    yield _section("Outputs", _outputs(analysis))
    yield _section(
        "Through the model",
        _profile(pyplot, analysis),
        "The signal-to-quantization-noise ratio (SQNR) of each quantized activation, in the order of execution. "
        "Inherited: the error before it is rounded, from the tensors before it. Own: the error of this rounding alone. "
        "A lower ratio is worse; the infinite ratio of an exact tensor is not drawn.",
    )
    yield _section(
        "Quantized tensors",
        _tensors(analysis),
        "Three ratios of each tensor. Own: the error of this rounding alone. Inherited: the error before it is rounded. Both: "
        "the inherited error and its own, after rounding. Click a heading to sort.",
    )
    if analysis.sweep:
        rows = [(effect.name, effect.on_sqnr_db, effect.off_sqnr_db) for effect in analysis.sweep]
        columns = ("name", "only this quantized, dB", "only this in float, dB")
        about = "The least SQNR of all outputs, with only this quantized, and with only this in float."
        yield _section("Effects on the outputs", _table(columns, rows, (str, _db, _db)), about)
    if analysis.trade_offs:
        yield _section(
            "Trade-offs",
            _trade_offs(pyplot, analysis),
            "The line starts with the least noise for each tensor and ends with the fewest bits. Each step takes bits from the "
            "tensor that then adds the least noise for each bit saved. The accuracy of each point is measured. Points that "
            "another one beats in both are left out.",
        )
    if analysis.histograms:
        plots = "".join(_histogram(pyplot, histogram) for histogram in analysis.histograms)
        yield _section(
            "Worst tensors",
            f'<div class="plots">{plots}</div>',
            "The worst tensors in the float model, in the first batch. The marks below a histogram are the values of the "
            "tensor’s type. Elements in shaded areas saturate.",
        )
    if analysis.unmatched:
        yield _section("Not measured, or not in full", _table(("name", "why"), [*analysis.unmatched.items()], (str, str)))


def check_plots() -> Any:
    """Return matplotlib.pyplot. Raise ModelError if matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError as error:
        raise ModelError(f"a page needs matplotlib ({error}): pip install 'quark_numba[plots]'") from None
    return pyplot


def _section(title: str, content: str, about: str = "") -> str:
    return f"<section><h2>{html.escape(title)}</h2>{_paragraph(about) if about else ''}{content}</section>"


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


# Tables.


def _db(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if math.isfinite(value) else {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")


def _share(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.1%}" if value >= 0.001 else "&lt;0.1%"


def _small(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], forms: Sequence[Callable[[Any], str]]) -> str:
    """Return an HTML table, or a word if it has no rows. Columns of numbers are sorted by the `data-v` of their cells."""
    if not rows:
        return _paragraph("None.")
    head = "".join(
        f'<th scope="col"{"" if form is str else " class=n"}><button>{html.escape(column)}</button></th>'
        for column, form in zip(columns, forms, strict=True)
    )
    lines = []
    for row in rows:
        cells = []
        for value, form in zip(row, forms, strict=True):
            if form is str:
                cells.append(f"<td>{html.escape(str(value))}</td>")
            else:
                key = len(value) if isinstance(value, dict) else "" if value is None else str(value)
                key = {"inf": "1e999", "-inf": "-1e999", "nan": "-1e999"}.get(str(key), key)
                cells.append(f'<td class=n data-v="{key}">{form(value)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _outputs(analysis: Analysis) -> str:
    def table(title: str, outputs: Sequence[OutputError]) -> str:
        rows = [(output.name, output.sqnr_db, output.cosine, output.max_abs_error, output.mean_abs_error) for output in outputs]
        columns = ("output", "SQNR, dB", "cosine", "largest error", "mean error")
        return f"<h3>{title}</h3>" + _table(columns, rows, (str, _db, lambda value: f"{value:.6f}", _small, _small))

    parts = [table("Quantized model, against the reference", analysis.outputs)]
    if analysis.twin:
        parts.append(table("Without its quantization nodes, against the reference", analysis.twin))
    if analysis.optimizations:
        title = "With ONNX Runtime’s optimisations, against the model without them, in the first batch"
        parts.append(table(title, analysis.optimizations))
    if analysis.not_compared:
        parts.append("<h3>Not compared</h3>" + _table(("output", "why"), [*analysis.not_compared.items()], (str, str)))
    return "".join(parts)


def _tensors(analysis: Analysis) -> str:
    formats = list(dict.fromkeys(name for entry in analysis.tensors for name in entry.what_if))
    columns = (
        *("tensor", "kind", "type", "own, dB", "inherited, dB", "both, dB", "cosine", "largest error"),
        *("saturated", "to zero", "range used", "place", "made by", "used by"),
        *(f"as {name}, dB" for name in formats),
    )
    forms: list[Callable[[Any], str]] = [str, str, str, _db, _db, _db, lambda value: "" if value is None else f"{value:.6f}"]
    forms += [_small, _share, _share, _share, lambda value: str(value), str, str, *[_db] * len(formats)]
    rows = [
        (
            *(entry.name, entry.kind, entry.type, entry.own_sqnr_db, entry.inherited_sqnr_db, entry.sqnr_db, entry.cosine),
            *(entry.max_abs_error, entry.saturated, entry.flushed_to_zero, entry.range_used, entry.place, entry.made_by),
            _few(entry.used_by),
            *(entry.what_if.get(name) for name in formats),
        )
        for entry in analysis.tensors
    ]
    return _table(columns, rows, forms)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# Plots.


def _drawn(value: float | None) -> float:
    """Return the value to plot. NaN is not drawn: it stands for an unknown ratio, or one that is not finite."""
    return value if value is not None and math.isfinite(value) else math.nan


def _profile(pyplot: Any, analysis: Analysis) -> str:
    tensors = sorted((item for item in analysis.tensors if item.kind == "activation"), key=lambda item: item.place)
    if not tensors:
        return _paragraph("There are no quantized activations.")
    figure, axes = pyplot.subplots(figsize=(9.6, 3.4))
    places = np.arange(len(tensors))
    axes.plot(places, [_drawn(item.inherited_sqnr_db) for item in tensors], color=_INHERITED, linewidth=1.4, label="inherited")
    own = [_drawn(item.own_sqnr_db) for item in tensors]
    axes.plot(places, own, color=_OWN, linewidth=0, marker="o", markersize=3.2, label="own")
    axes.set_xlabel("quantized activation, in the order of execution")
    axes.set_ylabel("SQNR, dB")
    axes.set_xlim(-1, len(tensors))
    axes.legend(loc="lower left", ncols=2, bbox_to_anchor=(0, 1), borderaxespad=0)
    return _svg(pyplot, figure, "Own and inherited signal-to-quantization-noise ratio, by place in the model", "scroll")


def _trade_offs(pyplot: Any, analysis: Analysis) -> str:
    points = analysis.trade_offs
    figure, axes = pyplot.subplots(figsize=(9.6, 3.6))
    kilobytes = [mix.bits / 8e3 for mix in points]
    axes.plot(kilobytes, [_drawn(mix.sqnr_db) for mix in points], color=_OWN, linewidth=1.4, marker="o", markersize=4)
    axes.set_xlabel("kB of quantized tensors per sample")
    axes.set_ylabel("least SQNR of the outputs, dB")
    columns = ("point", "kB per sample", "SQNR, dB", "changes")
    rows = [(index, bits, mix.sqnr_db, mix.choices) for index, (bits, mix) in enumerate(zip(kilobytes, points, strict=True))]
    table = _table(columns, rows, (str, lambda value: f"{value:,.1f}", _db, _changes))
    return _svg(pyplot, figure, "Accuracy against bits", "scroll") + table


def _changes(choices: dict[str, str]) -> str:
    if not choices:
        return ""
    names = "".join(f"<li>{html.escape(name)} → {html.escape(to)}</li>" for name, to in choices.items())
    return f"<details><summary>{counted(len(choices), 'tensor')}</summary><ul>{names}</ul></details>"


def _histogram(pyplot: Any, histogram: Histogram) -> str:
    figure, axes = pyplot.subplots(figsize=(4.6, 2.7))
    edges = np.array(histogram.edges)
    axes.stairs(histogram.counts, edges, fill=True, color=_OWN)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 3 * max(1, *histogram.counts))
    axes.set_xlim(edges[0], edges[-1])
    for start, end in ((edges[0], histogram.lowest), (histogram.highest, edges[-1])):
        if start is not None and end is not None and start < end:
            axes.axvspan(start, end, color=_INHERITED, alpha=0.25, linewidth=0)
    if histogram.grid is not None:
        marks = histogram.grid[:: max(1, len(histogram.grid) // 400)]
        how = {"color": _INHERITED, "marker": "|", "markersize": 5, "linewidth": 0, "clip_on": False}
        axes.plot(marks, np.full(len(marks), -0.045), transform=axes.get_xaxis_transform(), **how)
        axes.tick_params(axis="x", pad=8)
    values = "" if histogram.grid is None else f", {counted(len(histogram.grid), 'value')}"
    values += f", {histogram.not_finite:,} not finite" if histogram.not_finite else ""
    name = histogram.name if len(histogram.name) <= 34 else f"{histogram.name[:16]}…{histogram.name[-16:]}"
    # Between dollar signs matplotlib would typeset mathematics.
    axes.set_title(f"{name}{values}".replace("$", r"\$"), fontsize=9, loc="left")
    axes.set_ylabel("elements")
    return _svg(pyplot, figure, f"Histogram of {histogram.name}", "")


def _svg(pyplot: Any, figure: Any, title: str, kind: str) -> str:
    """Return a plot as a figure of the page. `kind` is its CSS class; with "scroll", a wide plot scrolls on a narrow page."""
    content = io.StringIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    text = content.getvalue()
    text = text[text.index("<svg") :]
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    # All plots share one page, so the ids of each plot get their own prefix.
    prefix = f"p{zlib.crc32(title.encode()):x}"
    text = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\1{prefix}", text)
    text = text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
    return f'<figure class="{kind}">{text}</figure>'
