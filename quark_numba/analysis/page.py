"""An analysis as one HTML page with sortable tables and plots. The page loads no other files."""

from __future__ import annotations

import html
import io
import math
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from .analyze import Analysis
from .experiments.histograms import Histogram
from .measures.outputs import OutputError

# The colours of two series. Readers can tell them apart in light and dark mode, and with either kind of colour blindness. In
# plots they are replaced by the page's CSS variables, so that the plots follow the reader's mode.
_OWN, _INHERITED = "#0b6fb8", "#d1590b"
_VARIABLES = {_OWN: "var(--own)", _INHERITED: "var(--inherited)", "#111111": "var(--text)", "#999999": "var(--line)"}


def page(analysis: Analysis, title: str) -> str:
    """Return the page. Raise ModelError if matplotlib is missing."""
    pyplot = check_plots()
    sections = [
        _section("Outputs", _outputs(analysis)),
        _section(
            "Through the model",
            _paragraph(
                "The signal-to-quantization-noise ratio (SQNR) of each quantized activation, in the order of execution. "
                "Inherited: the error from upstream. Own: the error of this rounding alone. A lower ratio is worse."
            )
            + _profile(pyplot, analysis),
        ),
        _section("Quantized tensors", _tensors(analysis)),
    ]
    if analysis.sweep:
        about = "The least SQNR of all outputs, with only this quantized, and with only this in float."
        rows = [(each.name, each.on_sqnr_db, each.off_sqnr_db) for each in analysis.sweep]
        columns = ("name", "only this quantized, dB", "only this in float, dB")
        sections.append(_section("Effects on the outputs", _paragraph(about) + _table(columns, rows, (str, _db, _db))))
    if analysis.trade_offs:
        sections.append(_section("Trade-offs", _trade_offs(pyplot, analysis)))
    if analysis.histograms:
        about = (
            "The worst tensors in the float model, in the first batch. The marks below a histogram are the values of the "
            "tensor’s type. Elements in shaded areas saturate."
        )
        plots = "".join(_histogram(pyplot, each) for each in analysis.histograms)
        sections.append(_section("Worst tensors", _paragraph(about) + f'<div class="plots">{plots}</div>'))
    if analysis.unmatched:
        reasons = list(analysis.unmatched.items())
        sections.append(_section("Not measured, or not in full", _table(("name", "why"), reasons, (str, str))))
    samples = f"{analysis.samples} samples in {analysis.batches} batch{'' if analysis.batches == 1 else 'es'}"
    body = f"<header><h1>{html.escape(title)}</h1><p>{samples}</p></header><main>{''.join(sections)}</main>"
    return _PAGE.format(title=html.escape(title), style=_STYLE, body=body, script=_SCRIPT)


def check_plots() -> Any:
    """Return matplotlib.pyplot. Raise ModelError if matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError as error:
        raise ModelError(f"a page needs matplotlib ({error}): pip install 'quark_numba[plots]'") from None
    return pyplot


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


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
    """Return an HTML table. Columns of numbers are sorted by the `data-v` of their cells."""
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
        rows = [(each.name, each.sqnr_db, each.cosine, each.max_abs_error, each.mean_abs_error) for each in outputs]
        columns = ("output", "SQNR, dB", "cosine", "largest error", "mean error")
        return f"<h3>{title}</h3>" + _table(columns, rows, (str, _db, lambda value: f"{value:.6f}", _small, _small))

    parts = [table("Quantized model, against the reference", analysis.outputs)]
    if analysis.twin:
        parts.append(table("Without its quantization nodes, against the reference", analysis.twin))
    if analysis.optimizations:
        parts.append(table("With ONNX Runtime’s optimisations, against the model without them", analysis.optimizations))
    if analysis.not_compared:
        parts.append("<h3>Not compared</h3>" + _table(("output", "why"), [*analysis.not_compared.items()], (str, str)))
    return "".join(parts)


def _tensors(analysis: Analysis) -> str:
    formats = list(dict.fromkeys(name for each in analysis.tensors for name in each.what_if))
    columns = (
        *("tensor", "kind", "type", "own, dB", "inherited, dB", "both, dB", "cosine", "largest error"),
        *("saturated", "to zero", "range used", "place", "made by", "used by"),
        *(f"as {name}, dB" for name in formats),
    )
    forms: list[Callable[[Any], str]] = [str, str, str, _db, _db, _db, lambda value: "" if value is None else f"{value:.6f}"]
    forms += [_small, _share, _share, _share, lambda value: str(value), str, str, *[_db] * len(formats)]
    rows = [
        (
            *(each.name, each.kind, each.type, each.own_sqnr_db, each.inherited_sqnr_db, each.sqnr_db, each.cosine),
            *(each.max_abs_error, each.saturated, each.flushed_to_zero, each.range_used, each.place, each.made_by),
            _few(each.used_by),
            *(each.what_if.get(name) for name in formats),
        )
        for each in analysis.tensors
    ]
    about = (
        "Three ratios of each tensor. Own: the error of this rounding alone. Inherited: the error from upstream, just before "
        "rounding. Both: the upstream error and its own, after rounding. Click a heading to sort."
    )
    return _paragraph(about) + _table(columns, rows, forms)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# Plots.


def _drawn(value: float | None) -> float:
    """Return the value to plot. NaN is not drawn: it stands for an unknown ratio, or one that is not finite."""
    return value if value is not None and math.isfinite(value) else math.nan


def _profile(pyplot: Any, analysis: Analysis) -> str:
    tensors = sorted((each for each in analysis.tensors if each.kind == "activation"), key=lambda each: each.place)
    if not tensors:
        return _paragraph("There are no quantized activations.")
    figure, axes = _figure(pyplot, 9.6, 3.4)
    places = np.arange(len(tensors))
    axes.plot(places, [_drawn(each.inherited_sqnr_db) for each in tensors], color=_INHERITED, linewidth=1.4, label="inherited")
    axes.plot(
        *(places, [_drawn(each.own_sqnr_db) for each in tensors]),
        color=_OWN,
        linewidth=0,
        marker="o",
        markersize=3.2,
        label="own",
    )
    axes.set_xlabel("quantized activation, in the order of execution")
    axes.set_ylabel("SQNR, dB")
    axes.set_xlim(-1, len(tensors))
    axes.legend(loc="lower left", frameon=False, ncols=2, bbox_to_anchor=(0, 1), borderaxespad=0, fontsize=9)
    return _svg(pyplot, figure, "Own and inherited signal-to-quantization-noise ratio, by place in the model", "scroll")


def _trade_offs(pyplot: Any, analysis: Analysis) -> str:
    points = analysis.trade_offs
    figure, axes = _figure(pyplot, 9.6, 3.6)
    kilobytes = [each.bits / 8e3 for each in points]
    axes.plot(kilobytes, [_drawn(each.sqnr_db) for each in points], color=_OWN, linewidth=1.4, marker="o", markersize=4)
    axes.set_xlabel("kB of quantized tensors per sample")
    axes.set_ylabel("least SQNR of the outputs, dB")
    about = (
        "The line starts with the least noise for each tensor and ends with the fewest bits. Each step takes bits from the "
        "tensor that then adds the least noise for each bit saved. The accuracy of each point is measured."
    )
    columns = ("point", "kB per sample", "SQNR, dB", "changes")
    rows = [(index, bits, each.sqnr_db, each.choices) for index, (bits, each) in enumerate(zip(kilobytes, points, strict=True))]
    table = _table(columns, rows, (str, lambda value: f"{value:,.1f}", _db, _changes))
    return _paragraph(about) + _svg(pyplot, figure, "Accuracy against bits", "scroll") + table


def _changes(choices: dict[str, str]) -> str:
    if not choices:
        return ""
    names = "".join(f"<li>{html.escape(name)} → {html.escape(to)}</li>" for name, to in choices.items())
    return f"<details><summary>{len(choices)} tensors</summary><ul>{names}</ul></details>"


def _histogram(pyplot: Any, histogram: Histogram) -> str:
    figure, axes = _figure(pyplot, 4.6, 2.7)
    edges = np.array(histogram.edges)
    axes.stairs(histogram.counts, edges, fill=True, color=_OWN)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 3 * max(histogram.counts))
    axes.set_xlim(edges[0], edges[-1])
    for start, end in (
        (edges[0], histogram.lowest if histogram.lowest is not None else -math.inf),
        (histogram.highest if histogram.highest is not None else math.inf, edges[-1]),
    ):
        if start < end:
            axes.axvspan(start, end, color=_INHERITED, alpha=0.25, linewidth=0)
    if histogram.grid is not None:
        step = max(1, len(histogram.grid) // 400)
        axes.plot(
            *(histogram.grid[::step], np.full(len(histogram.grid[::step]), -0.045)),
            transform=axes.get_xaxis_transform(),
            color=_INHERITED,
            marker="|",
            markersize=5,
            linewidth=0,
            clip_on=False,
        )
        axes.tick_params(axis="x", pad=8)
    values = "" if histogram.grid is None else f", {len(histogram.grid):,} values"
    axes.set_title(_ascii(f"{_shortened(histogram.name)}{values}"), fontsize=9, loc="left")
    axes.set_ylabel("elements")
    return _svg(pyplot, figure, f"Histogram of {histogram.name}", "")


def _shortened(name: str) -> str:
    return name if len(name) <= 34 else f"{name[:16]}…{name[-16:]}"


def _ascii(text: str) -> str:
    """Return the text with its dollar signs escaped, between which matplotlib would typeset mathematics."""
    return text.replace("$", r"\$")


def _figure(pyplot: Any, width: float, height: float) -> tuple[Any, Any]:
    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(color="#999999", labelcolor="#111111", labelsize=9)
    axes.grid(axis="y", color="#999999", alpha=0.35, linewidth=0.6)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color("#111111")
        label.set_fontsize(9)
    return figure, axes


def _svg(pyplot: Any, figure: Any, title: str, kind: str) -> str:
    """Return a plot as a figure of the page. `kind` is its CSS class; with "scroll", a wide plot scrolls on a narrow page."""
    content = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif", "text.color": "#111111"}
    with pyplot.rc_context(settings):
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


_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1a1c1f; --soft: #5b6168; --line: #9aa0a6; --rule: #e3e5e8;
  --own: #0b6fb8; --inherited: #d1590b; }
@media (prefers-color-scheme: dark) { :root { --back: #15181c; --text: #e6e8ea; --soft: #a0a6ad; --line: #7a8088;
  --rule: #2b3036; --own: #5cb3f0; --inherited: #f08d4b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: .95rem; margin: 1rem 0 .25rem; } p { margin: .25rem 0 .75rem; color: var(--soft); max-width: 46rem; }
.wide { overflow: auto; max-height: 36rem; border: 1px solid var(--rule); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: left; white-space: nowrap; overflow-wrap: normal;
  border-bottom: 1px solid var(--rule); }
tbody tr:last-child td { border-bottom: 0; }
th { position: sticky; top: 0; background: var(--back); font-weight: 600; box-shadow: inset 0 -1px var(--line); }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--own); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " ↑"; } th[aria-sort=descending] button::after { content: " ↓"; }
td:first-child, th:first-child { max-width: 17rem; overflow: hidden; text-overflow: ellipsis; }
@media (max-width: 40rem) { td:first-child, th:first-child { max-width: 8.5rem; } }
.n { text-align: right; } details summary { cursor: pointer; } ul { margin: .25rem 0; padding-left: 1.1rem; }
figure { margin: .5rem 0; } figure svg { display: block; width: 100%; height: auto; }
figure.scroll { overflow-x: auto; } figure.scroll svg { min-width: 40rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr)); gap: .5rem 1.5rem; }
svg text { fill: var(--text); }
"""

_SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.closest("th"), body = head.closest("table").tBodies[0], column = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => { const cell = row.cells[column]; return "v" in cell.dataset ? cell.dataset.v : cell.textContent; };
  const numbers = head.classList.contains("n");
  const rows = [...body.rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (numbers && (x === "" || y === "")) return (x === "") - (y === "");
    const order = numbers ? (Number(x) > Number(y)) - (Number(x) < Number(y)) : x.localeCompare(y, undefined, {numeric: true});
    return down ? -order : order;
  });
  body.append(...rows);
});
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""
