"""The tables of results in HTML, for the page and for notebooks. They have no script and no plots; all texts are escaped."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import counted
from ..texts import printable
from . import text_tables

if TYPE_CHECKING:
    from .measures.outputs import OutputError
    from .results import Analysis, Evaluation

# Inline styles, because notebooks lack the style sheet of the page.
_BOX = "overflow:auto;max-height:36rem"


def of_evaluation(evaluation: Evaluation) -> str:
    parts = [_outputs("Quantized model, against the reference", evaluation.outputs), _not_compared(evaluation.not_compared)]
    figures = table(("figure", "value"), text_tables.figures(evaluation), (str, str))
    labels = _reasons("Outputs without an accuracy", "output", evaluation.not_labelled)
    return section("Outputs", "".join(parts) + figures) + labels + left_out(evaluation.failed)


def of_analysis(analysis: Analysis) -> str:
    sections = (outputs(analysis), tensors(analysis), effects(analysis), trade_offs(analysis), unmatched(analysis))
    return samples(analysis) + "".join(sections) + left_out(analysis.failed)


def samples(analysis: Analysis) -> str:
    return paragraph(f"{counted(analysis.samples, 'sample')} in {counted(analysis.batches, 'batch', 'batches')}")


# Sections. A section with nothing to show is "".


def outputs(analysis: Analysis) -> str:
    parts = [_outputs("Quantized model, against the reference", analysis.outputs)]
    if analysis.twin:
        parts.append(_outputs("Without its quantization nodes, against the reference", analysis.twin))
    if analysis.optimizations:
        title = "With ONNX Runtime’s optimizations, against the model without them, in the first batch"
        parts.append(_outputs(title, analysis.optimizations))
    return section("Outputs", "".join(parts) + _not_compared(analysis.not_compared))


def tensors(analysis: Analysis) -> str:
    formats = list(dict.fromkeys(name for entry in analysis.tensors for name in entry.what_if))
    columns = (
        *("tensor", "kind", "type", "own, dB", "inherited, dB", "both, dB", "cosine", "largest error"),
        *("saturated", "to zero", "range used", "place", "made by", "used by"),
        *(f"as {name}, dB" for name in formats),
    )
    formatters: list[Callable[[Any], str]] = [str, str, str, _db, _db, _db, _cosine]
    formatters += [_small, _share, _share, _share, lambda value: str(value), str, str, *[_db] * len(formats)]
    rows = [
        (
            *(entry.name, entry.kind, entry.type, entry.own_sqnr_db, entry.inherited_sqnr_db, entry.sqnr_db, entry.cosine),
            *(entry.max_abs_error, entry.saturated, entry.flushed_to_zero, entry.range_used, entry.place, entry.made_by),
            _few(entry.used_by),
            *(entry.what_if.get(name) for name in formats),
        )
        for entry in analysis.tensors
    ]
    about = (
        "Three ratios of each tensor. Own: the error of this rounding alone. Inherited: the error before it is rounded. Both: "
        "the inherited error and its own, after rounding."
    )
    return section("Quantized tensors", table(columns, rows, formatters), about)


def effects(analysis: Analysis) -> str:
    if not analysis.sweep:
        return ""
    rows = [(effect.name, effect.on_sqnr_db, effect.off_sqnr_db) for effect in analysis.sweep]
    columns = ("name", "only this quantized, dB", "only this in float, dB")
    about = "The least SQNR of all outputs, with only this quantized, and with only this in float."
    return section("Effects on the outputs", table(columns, rows, (str, _db, _db)), about)


def trade_offs(analysis: Analysis, plot: str = "") -> str:
    if not analysis.trade_offs:
        return ""
    columns = ("point", "kB per sample", "SQNR, dB", "changes")
    rows = [(index, point.bits / 8e3, point.sqnr_db, point.choices) for index, point in enumerate(analysis.trade_offs)]
    return section(
        "Trade-offs",
        plot + table(columns, rows, (str, lambda value: f"{value:,.1f}", _db, _changes)),
        "The line starts with the least noise for each tensor and ends with the fewest bits. Each step takes bits from the "
        "tensor that then adds the least noise for each bit saved. The accuracy of each point is measured. Points that "
        "another one beats in both are left out.",
    )


def unmatched(analysis: Analysis) -> str:
    return _reasons("Not measured, or not in full", "name", analysis.unmatched)


def left_out(failed: Mapping[str, str]) -> str:
    return _reasons("Batches that are left out", "batch", failed)


# Parts of sections.


def section(title: str, content: str, about: str = "") -> str:
    return f"<section><h2>{escaped(title)}</h2>{paragraph(about) if about else ''}{content}</section>"


def paragraph(text: str) -> str:
    return f"<p>{escaped(text)}</p>"


def escaped(text: str) -> str:
    """Return a text as HTML, with escapes for characters that are not printed, some of which HTML does not allow."""
    return html.escape(printable(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], formatters: Sequence[Callable[[Any], str]]) -> str:
    """Return an HTML table, or a word if it has no rows. Columns of numbers are sorted by the `data-v` of their cells."""
    if not rows:
        return paragraph("None.")
    head = "".join(
        f'<th scope="col"{"" if formatter is str else " class=n"}>{escaped(column)}</th>'
        for column, formatter in zip(columns, formatters, strict=True)
    )
    lines = []
    for row in rows:
        cells = []
        for value, formatter in zip(row, formatters, strict=True):
            if formatter is str:
                cells.append(f"<td>{escaped(str(value))}</td>")
            else:
                key = len(value) if isinstance(value, dict) else "" if value is None else str(value)
                key = {"inf": "1e999", "-inf": "-1e999", "nan": "-1e999"}.get(str(key), key)
                cells.append(f'<td class=n data-v="{key}">{formatter(value)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide" style="{_BOX}"><table>{body}</table></div>'


def _outputs(title: str, rows: Sequence[OutputError]) -> str:
    """Return the table of the outputs' errors."""
    columns = text_tables.output_columns(rows)
    cells = [(output.name, *(getattr(output, field) for field, _ in columns.values())) for output in rows]
    formatters: list[Callable[[Any], str]] = [str, *(functools.partial(_number, form=form) for _, form in columns.values())]
    names = [name.replace("'", "’") for name in columns]
    return f"<h3>{title}</h3>" + table(("output", *names), cells, formatters)


def _not_compared(reasons: Mapping[str, str]) -> str:
    return "<h3>Not compared</h3>" + table(("output", "why"), [*reasons.items()], (str, str)) if reasons else ""


def _reasons(title: str, what: str, reasons: Mapping[str, str]) -> str:
    return section(title, table((what, "why"), [*reasons.items()], (str, str))) if reasons else ""


def _number(value: float | None, form: str) -> str:
    if value is None:
        return ""
    return format(value, form) if math.isfinite(value) else {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")


_db, _cosine, _small = (functools.partial(_number, form=form) for form in (".1f", ".6f", ".3g"))


def _share(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else "&lt;0.1%" if value < 0.001 else f"{value:.1%}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _changes(choices: dict[str, str]) -> str:
    if not choices:
        return ""
    names = "".join(f"<li>{escaped(name)} → {escaped(to)}</li>" for name, to in choices.items())
    return f"<details><summary>{counted(len(choices), 'tensor')}</summary><ul>{names}</ul></details>"
