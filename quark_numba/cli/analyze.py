"""The subcommand `analyze`: its options, the CSV table, the number of histograms on the page, and which nodes are in the list
to exclude from quantization."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..texts import in_json, printable
from . import arguments
from .evaluate import add_comparison, decoding_of, fails_below, tell_failed
from .printing import print_json, print_tables, progress

if TYPE_CHECKING:
    from ..analysis.results import Analysis

# The number of tensors whose histograms are on the page.
_HISTOGRAMS = 8

# The number of worst tensors whose nodes are excluded.
_EXCLUDED = 5

PURPOSE = "show where a quantized model's accuracy goes, tensor by tensor"


def add_options(parser: argparse.ArgumentParser) -> None:
    from ..analysis import result_tables

    add_comparison(parser)
    arguments.add_top(parser, result_tables.TOP)
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
        choices=_Formats(),
        metavar="TYPE",
        help="also measure each tensor in these formats, and find the best trade-offs: %(choices)s",
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


class _Formats:
    """The choices of --what-if, which are imported when an argument is checked or the help is printed."""

    def __iter__(self) -> Iterator[str]:
        from ..analysis.experiments.formats import FORMATS

        return iter(FORMATS)


def action(options: argparse.Namespace) -> int:
    from ..analysis.analyze import analyze
    from ..analysis.page import check_plots, page
    from ..analysis.results import tables_of_analysis
    from ..models import files

    arguments.check_written(options, "csv", "html", "exclude_config", "resume")
    if options.html:
        check_plots()
    with progress("analysing") as update:
        analysis = analyze(
            options.model,
            arguments.data_of(options),
            options.reference,
            **arguments.given_of(options, "outputs", "what_if", "logits"),
            sweep=options.sweep or options.by is not None,
            by=options.by or "tensor",
            histograms=_HISTOGRAMS if options.html else 0,
            decoding=decoding_of(options),
            execution=arguments.execution_of(options, update),
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
        print_tables(tables_of_analysis(analysis, options.top))
    return fails_below(options, analysis)


def _csv(analysis: Analysis) -> str:
    """Return a CSV table with a row for each tensor, in the order of execution."""
    from ..analysis.measures.tensors import QuantizedTensor

    rows = []
    for tensor in sorted(analysis.tensors, key=lambda tensor: tensor.place):
        row = asdict(tensor)
        row |= {f"what_if_{name}": value for name, value in row.pop("what_if").items()}
        rows.append(row | {"parameters": json.dumps(in_json(row["parameters"])), "used_by": " ".join(row["used_by"])})
    names = [each.name for each in fields(QuantizedTensor) if each.name != "what_if"]
    names += dict.fromkeys(name for row in rows for name in row if name not in names)
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    return "".join(",".join(line) + "\n" for line in lines)


# The places in a text at which a spreadsheet may see the beginning of a formula: one of these characters follows. If semicolons
# separate cells, a cell also begins after a semicolon within double quotes, and double quotes at its beginning are skipped.
_FORMULA = re.compile('^(?=[-=+@\t\r\n\0＝＋－＠])|(?<=;)(?=[-=+@\t\r\n\0＝＋－＠"])')


def _cell(value: Any) -> str:
    """Return a cell. Names come from the authors of models, so a spreadsheet must not take a text for a formula. As OWASP's
    page on CSV injection recommends, each text is in double quotes, and a single quote precedes a text that looks like a
    formula. Characters that are not printed are escaped. Numbers stay numbers, and None is empty."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    return '"' + printable(_FORMULA.sub("'", value)).replace('"', '""') + '"'


def _excluded(analysis: Analysis, count: int, model: str) -> list[str]:
    """Return the names of the nodes that use the `count` worst tensors, ranked by the sweep if it was by tensor, otherwise by
    own error. Tensors that cost nothing, or whose error is unknown, are not among the worst. Nodes without a name and nodes in
    functions are left out, because Quark's configuration cannot name them."""
    from ..models import model_files
    from ..models.genai_folders import decoder_at

    tensors = {row.name: row for row in analysis.tensors}
    ratios: dict[str, float | None] = {row.name: row.on_sqnr_db for row in analysis.sweep if row.name in tensors}
    ratios = ratios or {row.name: row.own_sqnr_db for row in analysis.tensors}
    worst = [name for name, ratio in ratios.items() if ratio not in (None, math.inf)]
    names = {node.name for node in model_files.load(decoder_at(model)).graph.node}
    return list(dict.fromkeys(node for name in worst[:count] for node in tensors[name].used_by if node in names))
