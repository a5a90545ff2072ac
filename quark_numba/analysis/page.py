"""An analysis as one HTML page with sortable tables and plots: its sections, captions, plots and their colours (styles and
script are in page.html). The page loads no other files."""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from ..errors import ModelError, counted
from . import html_tables, result_tables
from .experiments.histograms import Histogram
from .experiments.what_if import TradeOff
from .results import Analysis, tables_of_outputs

# The colours of two series. Readers can tell them apart in light and dark mode, and with either kind of colour blindness. In
# plots they are replaced by the page's CSS variables, so that the plots follow the reader's mode.
_OWN, _INHERITED = "#0b6fb8", "#d1590b"
_TEXT, _LINE = "#111111", "#999999"
_VARIABLES = {_OWN: "var(--own)", _INHERITED: "var(--inherited)", _TEXT: "var(--text)", _LINE: "var(--line)"}

_PLOTS = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _TEXT),
    **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _LINE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "quark_numba",
}


def page(analysis: Analysis, title: str) -> str:
    """Return the page. Raise ModelError if matplotlib is missing."""
    with check_plots().rc_context(_PLOTS):
        sections = "".join(_sections(analysis))
    title = html_tables.escaped(title)
    data = f"{counted(analysis.samples, 'sample')} in {counted(analysis.batches, 'batch', 'batches')}"
    body = f"<header><h1>{title}</h1>{html_tables.paragraph(data)}</header><main>{sections}</main>"
    template = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=title, body=body)


def _sections(analysis: Analysis) -> Iterator[str]:
    yield html_tables.as_html(tables_of_outputs(analysis))
    yield html_tables.section(
        "Through the model",
        _profile(analysis),
        "The signal-to-quantization-noise ratio (SQNR) of each quantized activation, in the order of execution. "
        "Inherited: the error before it is rounded, from the tensors before it. Own: the error of this rounding alone. "
        "A lower ratio is worse; the infinite ratio of an exact tensor is not drawn.",
    )
    if analysis.divergences:
        yield html_tables.section(
            "Through the texts",
            _divergences(analysis.divergences),
            "The mean Kullback-Leibler divergence from the reference’s distribution, in nats, at each place of the texts. "
            "A place is the number of tokens before it. A divergence of 0 is not drawn.",
        )
    yield html_tables.as_html(
        [result_tables.tensors(analysis.tensors, analysis.samples), *result_tables.effects(analysis.sweep)]
    )
    if analysis.trade_offs:
        yield html_tables.as_html(result_tables.trade_offs(analysis.trade_offs))
        yield _trade_offs(analysis.trade_offs)
    if analysis.histograms:
        plots = "".join(_histogram(histogram) for histogram in analysis.histograms)
        yield html_tables.section(
            "Worst tensors",
            f'<div class="plots">{plots}</div>',
            "The worst tensors in the float model, in the first run. The marks below a histogram are the values of the "
            "tensor’s type. Elements in shaded areas saturate.",
        )
    yield html_tables.as_html([*result_tables.unmatched(analysis.unmatched), *result_tables.left_out(analysis.failed)])


def check_plots() -> Any:
    """Return matplotlib. Raise ModelError if it is missing."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ModelError(f"a page needs matplotlib ({error}): pip install 'quark_numba[plots]'") from None
    return matplotlib


# Plots.


def _plot(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of this size in inches, and its axes."""
    figure = check_plots().figure.Figure(figsize=(width, height))
    return figure, figure.subplots()


def _drawn(value: float | None) -> float:
    """Return the value to plot. NaN is not drawn: it stands for an unknown ratio, or one that is not finite."""
    return value if value is not None and math.isfinite(value) else math.nan


def _profile(analysis: Analysis) -> str:
    tensors = sorted((item for item in analysis.tensors if item.kind == "activation"), key=lambda item: item.place)
    if not tensors:
        return html_tables.paragraph("There are no quantized activations.")
    figure, axes = _plot(9.6, 3.4)
    places = np.arange(len(tensors))
    axes.plot(places, [_drawn(item.inherited_sqnr_db) for item in tensors], color=_INHERITED, linewidth=1.4, label="inherited")
    own = [_drawn(item.own_sqnr_db) for item in tensors]
    axes.plot(places, own, color=_OWN, linewidth=0, marker="o", markersize=3.2, label="own")
    axes.set(xlabel="quantized activation, in the order of execution", ylabel="SQNR, dB", xlim=(-1, len(tensors)))
    axes.legend(loc="lower left", ncols=2, bbox_to_anchor=(0, 1), borderaxespad=0)
    return _svg(figure, "Own and inherited signal-to-quantization-noise ratio, by place in the model", "scroll")


def _divergences(divergences: Sequence[float]) -> str:
    figure, axes = _plot(9.6, 3.0)
    drawn = [_drawn(value or None) for value in divergences]
    axes.plot(range(len(drawn)), drawn, color=_OWN, linewidth=1.2, marker="o", markersize=2.5)
    if any(value > 0 for value in drawn):  # otherwise a logarithmic axis has no range
        axes.set_yscale("log")
    axes.set(xlabel="place in the text", ylabel="divergence, nats", xlim=(-1, len(drawn)))
    return _svg(figure, "Divergence by place in the text", "scroll")


def _trade_offs(points: Sequence[TradeOff]) -> str:
    figure, axes = _plot(9.6, 3.6)
    kilobytes, ratios = [point.bits / 8e3 for point in points], [_drawn(point.sqnr_db) for point in points]
    axes.plot(kilobytes, ratios, color=_OWN, linewidth=1.4, marker="o", markersize=4)
    axes.set(xlabel="kB of quantized tensors per sample", ylabel="least SQNR of the outputs, dB")
    return _svg(figure, "Accuracy against bits", "scroll")


def _histogram(histogram: Histogram) -> str:
    figure, axes = _plot(4.6, 2.7)
    edges = np.array(histogram.edges)
    axes.stairs(histogram.counts, edges, fill=True, color=_OWN)
    axes.set_yscale("symlog", linthresh=1)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 3 * max(1, *histogram.counts)), ylabel="elements")
    for start, end in ((edges[0], histogram.lowest), (histogram.highest, edges[-1])):
        if start is not None and end is not None and start < end:
            axes.axvspan(start, end, color=_INHERITED, alpha=0.25, linewidth=0)
    if histogram.grid is not None:
        marks = histogram.grid[:: max(1, len(histogram.grid) // 400)]
        style = {"color": _INHERITED, "marker": "|", "markersize": 5, "linewidth": 0, "clip_on": False}
        axes.plot(marks, np.full(len(marks), -0.045), transform=axes.get_xaxis_transform(), **style)
        axes.tick_params(axis="x", pad=8)
    values = "" if histogram.grid is None else f", {counted(len(histogram.grid), 'value')}"
    values += f", {histogram.not_finite:,} not finite" if histogram.not_finite else ""
    return _svg(figure, f"Histogram of {histogram.name}", "", f"{histogram.name}{values}")


def _svg(figure: Any, title: str, kind: str, caption: str = "") -> str:
    """Return a plot as a figure of the page. `kind` is its CSS class; with "scroll", a wide plot scrolls on a narrow page.
    Names are in the caption and not in the plot: matplotlib would typeset parts of them, and warn of glyphs that it lacks."""
    content = io.StringIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    text = content.getvalue()
    text = text[text.index("<svg") :]
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    # All plots share one page, so the ids of each plot get their own prefix.
    prefix = f"p{zlib.crc32(title.encode()):x}"
    text = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\1{prefix}", text)
    text = text.replace("<svg", f'<svg role="img" aria-label="{html_tables.escaped(title)}"', 1)
    above = f"<figcaption>{html_tables.escaped(caption)}</figcaption>" if caption else ""
    return f'<figure class="{kind}">{above}{text}</figure>'
