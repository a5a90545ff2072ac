"""The subcommand `analyze`: where a quantized model's accuracy goes."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import counted
from . import arguments
from .evaluate import add_comparison, fails_below, print_outputs, tell_failed
from .printing import cell, counted_progress, json_value, print_json, print_not_compared, print_table

if TYPE_CHECKING:
    from ..analysis.analyze import Analysis

# The number of tensors whose histograms are on the page.
_HISTOGRAMS = 8

# The number of worst tensors whose nodes are excluded.
_EXCLUDED = 5


def add_parser(commands: Any) -> None:
    from ..analysis.experiments.formats import FORMATS

    parser = add_comparison(commands, "analyze", "show where a quantized model's accuracy goes, tensor by tensor")
    parser.set_defaults(action=_analyze)
    arguments.add_threads(parser)
    arguments.add_top(parser, 20)
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="for each tensor, also measure the outputs with only this tensor in float, and with only this tensor quantized",
    )
    parser.add_argument(
        "--by",
        choices=("tensor", "node", "operator"),
        help="sweep by tensor, or by all tensors of a node or an operator (default: tensor)",
    )
    parser.add_argument(
        "--what-if",
        nargs="+",
        default=[],
        choices=list(FORMATS),
        metavar="TYPE",
        help=f"also measure each tensor in these formats, and find the best trade-offs: {', '.join(FORMATS)}",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the table of all tensors")
    parser.add_argument("--html", metavar="FILE", help="write all results as one page with plots; needs the extra `plots`")
    parser.add_argument(
        "--exclude-config",
        metavar="FILE",
        help="write the nodes that use the worst tensors, as the list `exclude` of Quark's configuration (JSON)",
    )
    parser.add_argument(
        "--exclude",
        type=arguments.positive,
        metavar="N",
        help=f"the number of worst tensors for --exclude-config (default: {_EXCLUDED})",
    )


def _analyze(options: argparse.Namespace) -> int:
    from ..analysis.analyze import analyze
    from ..analysis.page import check_plots, page
    from ..models import files

    arguments.check_written(options, "csv", "html", "exclude_config", "resume")
    if options.html:
        check_plots()
    with counted_progress("analysing") as progress:
        analysis = analyze(
            options.model,
            arguments.data_of(options),
            options.reference,
            outputs=options.outputs,
            sweep=options.sweep or options.by is not None,
            by=options.by or "tensor",
            what_if=options.what_if,
            histograms=_HISTOGRAMS if options.html else 0,
            execution=arguments.execution_of(options, progress),
        )
    tell_failed(analysis.failed)
    if options.html:
        files.write(options.html, page(analysis, Path(options.model).name).encode())
    if options.csv:
        files.write(options.csv, _csv(analysis).encode())
    if options.exclude_config:
        excluded = _excluded(analysis, options.exclude or _EXCLUDED, options.model)
        files.write(options.exclude_config, json.dumps({"exclude": excluded}, indent=2).encode())
    if options.json:
        print_json({"model": options.model, "reference": options.reference, **asdict(analysis)})
    else:
        _print_analysis(analysis, options.top)
    return fails_below(options, analysis)


def _csv(analysis: Analysis) -> str:
    """Return a CSV table with a row for each tensor, in the order of execution."""
    from ..analysis.measures.tensors import QuantizedTensor

    content = io.StringIO()
    rows = []
    for tensor in sorted(analysis.tensors, key=lambda tensor: tensor.place):
        row = asdict(tensor)
        row |= {f"what_if_{name}": value for name, value in row.pop("what_if").items()}
        rows.append(row | {"parameters": json.dumps(json_value(row["parameters"])), "used_by": " ".join(row["used_by"])})
    names = [each.name for each in fields(QuantizedTensor) if each.name != "what_if"]
    names += dict.fromkeys(name for row in rows for name in row if name not in names)
    writer = csv.DictWriter(content, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return content.getvalue()


def _excluded(analysis: Analysis, count: int, model: str) -> list[str]:
    """Return the names of the nodes that use the `count` worst tensors: by the sweep if it was by tensor, otherwise by own
    error. Tensors that cost nothing, or whose error is unknown, are not among the worst. Nodes without a name and nodes in
    functions are left out, because Quark's configuration cannot name them."""
    from ..models import model_files

    tensors = {row.name: row for row in analysis.tensors}
    ratios: dict[str, float | None] = {row.name: row.on_sqnr_db for row in analysis.sweep if row.name in tensors}
    ratios = ratios or {row.name: row.own_sqnr_db for row in analysis.tensors}
    worst = [name for name, ratio in ratios.items() if ratio not in (None, math.inf)]
    names = {node.name for node in model_files.load(model, external_data=False).graph.node}
    return list(dict.fromkeys(node for name in worst[:count] for node in tensors[name].used_by if node in names))


def _print_analysis(analysis: Analysis, top: int) -> None:
    print_outputs("Quantized model, against the reference", analysis.outputs)
    print_not_compared(analysis.not_compared)
    if analysis.twin:
        print_outputs("Without its quantization nodes, against the reference", analysis.twin)
    if any(row.sqnr_db != math.inf for row in analysis.optimizations):
        title = "With ONNX Runtime's optimisations, against the model without them, in the first batch"
        print_outputs(title, analysis.optimizations)
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
    print_table(title, [*columns, *(f">{name}" for name in formats)], rows)
    if analysis.sweep:
        effects = [[row.name, cell(row.on_sqnr_db, ".1f"), cell(row.off_sqnr_db, ".1f")] for row in analysis.sweep[:top]]
        columns = ["name", ">only this quantized, dB", ">only this in float, dB"]
        print_table("Least SQNR of the outputs, the worst first", columns, effects)
    if analysis.trade_offs:
        points = []
        for point in analysis.trade_offs:
            changes = ", ".join(f"{count} to {name}" for name, count in Counter(point.choices.values()).items())
            points.append([f"{point.bits / 8e3:,.1f}", cell(point.sqnr_db, ".1f"), changes])
        columns = [">kB of quantized tensors per sample", ">least SQNR of the outputs, dB", "changes"]
        print_table("Best trade-offs", columns, points)
    if analysis.unmatched:
        reasons = list(analysis.unmatched.items())
        more = [["…", f"{len(reasons) - top} more"]] if len(reasons) > top else []
        print_table("Not measured, or not in full", ["name", "why"], [[*row] for row in reasons[:top]] + more)
