"""The tables of results as text, for the command and for `print`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import counted
from ..texts import Table, cell

if TYPE_CHECKING:
    from .measures.outputs import OutputError
    from .results import Analysis, Evaluation

# The default number of rows in the tables of nodes and tensors.
TOP = 20

# The columns of the outputs' errors: fields of an OutputError, and their formats. The last ones are those of `evaluate`.
_OUTPUT_COLUMNS = {
    "SQNR, dB": ("sqnr_db", ".1f"),
    "cosine": ("cosine", ".6f"),
    "largest error": ("max_abs_error", ".3g"),
    "mean error": ("mean_abs_error", ".3g"),
    "same top": ("same_top", ".2%"),
    "accuracy": ("accuracy", ".2%"),
    "reference's": ("reference_accuracy", ".2%"),
}


def of_evaluation(evaluation: Evaluation) -> Iterator[Table]:
    yield outputs("Quantized model, against the reference", evaluation.outputs)
    yield from not_compared(evaluation.not_compared)
    yield Table("", ["", ""], figures(evaluation))
    yield from _reasons("Outputs without an accuracy", "output", evaluation.not_labelled)


def figures(evaluation: Evaluation) -> list[list[str]]:
    """Return the names and values of the figures that do not belong to one output."""
    return [
        ["samples", f"{evaluation.samples} in {counted(evaluation.batches, 'batch', 'batches')}"],
        ["samples a second", f"{evaluation.samples_per_second:.0f}"],
        ["samples a second, reference", f"{evaluation.reference_samples_per_second:.0f}"],
        *([name, f"{value:.6g}"] for name, value in evaluation.metrics.items()),
        *(
            [f"labels of {output.name} that count", f"{output.labelled} of {(output.labelled or 0) + output.ignored}"]
            for output in evaluation.outputs
            if output.ignored
        ),
    ]


def of_analysis(analysis: Analysis, top: int) -> Iterator[Table]:
    """Yield the tables, with at most `top` rows in the tables of nodes and tensors."""
    yield outputs("Quantized model, against the reference", analysis.outputs)
    yield from not_compared(analysis.not_compared)
    if analysis.twin:
        yield outputs("Without its quantization nodes, against the reference", analysis.twin)
    if any(row.sqnr_db != math.inf for row in analysis.optimizations):
        title = "With ONNX Runtime's optimizations, against the model without them, in the first batch"
        yield outputs(title, analysis.optimizations)
    yield _tensors(analysis, top)
    if analysis.sweep:
        effects = [[row.name, cell(row.on_sqnr_db, ".1f"), cell(row.off_sqnr_db, ".1f")] for row in analysis.sweep[:top]]
        columns = ["name", ">only this quantized, dB", ">only this in float, dB"]
        yield Table("Least SQNR of the outputs, the worst first", columns, effects)
    if analysis.trade_offs:
        points = []
        for point in analysis.trade_offs:
            changes = ", ".join(f"{count} to {name}" for name, count in Counter(point.choices.values()).items())
            points.append([f"{point.bits / 8e3:,.1f}", cell(point.sqnr_db, ".1f"), changes])
        columns = [">kB of quantized tensors per sample", ">least SQNR of the outputs, dB", "changes"]
        yield Table("Best trade-offs", columns, points)
    if analysis.unmatched:
        reasons = list(analysis.unmatched.items())
        more = [["…", f"{len(reasons) - top} more"]] if len(reasons) > top else []
        yield Table("Not measured, or not in full", ["name", "why"], [[*row] for row in reasons[:top]] + more)


def left_out(failed: Mapping[str, str]) -> Iterator[Table]:
    """Yield the table of the batches that were left out, if any."""
    return _reasons("Batches that are left out", "batch", failed)


def not_compared(reasons: Mapping[str, str]) -> Iterator[Table]:
    """Yield the table of the outputs that cannot be compared, with the reasons, if there are any."""
    return _reasons("Outputs that are not compared", "output", reasons)


def _reasons(title: str, what: str, reasons: Mapping[str, str]) -> Iterator[Table]:
    if reasons:
        yield Table(title, [what, "why"], [*reasons.items()])


def output_columns(rows: Sequence[OutputError]) -> dict[str, tuple[str, str]]:
    """Return the fields and formats of the columns that are not empty, by the columns' names."""
    return {
        name: (field, form)
        for name, (field, form) in _OUTPUT_COLUMNS.items()
        if any(getattr(output, field) is not None for output in rows)
    }


def outputs(title: str, rows: Sequence[OutputError]) -> Table:
    """Return the table of the outputs' errors."""
    columns = output_columns(rows)
    cells = [[output.name, *(cell(getattr(output, field), form) for field, form in columns.values())] for output in rows]
    return Table(title, ["output", *(f">{name}" for name in columns)], cells, none="no output can be compared")


def _tensors(analysis: Analysis, top: int) -> Table:
    formats = list(dict.fromkeys(name for row in analysis.tensors for name in row.what_if))
    columns = ["tensor", "kind", "type", ">own, dB", ">inherited, dB", ">both, dB"]
    columns += [">saturated", ">to zero", ">range used", "used by"]
    rows = [
        [
            row.name,
            row.kind,
            row.type,
            *(cell(ratio, ".1f") for ratio in (row.own_sqnr_db, row.inherited_sqnr_db, row.sqnr_db)),
            *(cell(share, ".1%") for share in (row.saturated, row.flushed_to_zero, row.range_used)),
            ", ".join(row.used_by),
            *(cell(row.what_if.get(name), ".1f") for name in formats),
        ]
        for row in analysis.tensors[:top]
    ]
    title = "Quantized tensors"
    if rows:
        shown = f"the worst {len(rows)} of {len(analysis.tensors)}" if len(rows) < len(analysis.tensors) else "all"
        over = counted(analysis.samples, "sample")
        title += f", {shown}, over {over}: SQNR of the own error, the inherited error, and both"
    return Table(title, [*columns, *(f">{name}" for name in formats)], rows)
