"""The commands `evaluate` and `analyze`: where the accuracy goes."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import arguments
from .printing import counted_progress, print_not_compared, print_table, tell

if TYPE_CHECKING:
    from ..analysis.analyze import Analysis
    from ..analysis.evaluate import Evaluation
    from ..analysis.measures.outputs import OutputError


def add_commands(commands: Any) -> None:
    evaluate = _add(
        commands,
        "evaluate",
        "compare a quantized model's outputs with the float model's, over data",
        "of a session (default: ONNX Runtime's)",
    )
    evaluate.set_defaults(action=_evaluate)
    evaluate.add_argument("--labels", metavar="KEY", help="of the right classes in the data, for the accuracy of both models")
    evaluate.add_argument(
        "--top-k",
        type=arguments.positive,
        default=1,
        metavar="K",
        help="how many of an output's largest count (default: 1)",
    )
    evaluate.add_argument(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="one's own: FUNCTION(outputs, reference_outputs, feed) gives a number for a batch, or several by name",
    )

    analyze = _add(
        commands,
        "analyze",
        "show where a quantized model's accuracy goes: which tensors lose how much",
        "batches side by side (default: one a processor)",
    )
    analyze.set_defaults(action=_analyze)
    analyze.add_argument("--top", type=arguments.positive, default=20, metavar="N", help="rows of a table (default: 20)")
    analyze.add_argument("--sweep", action="store_true", help="also leave each tensor in float alone, and quantize each alone")
    analyze.add_argument(
        "--by", choices=("tensor", "node", "operator"), help="sweep, and take so much at a time (default: tensor)"
    )
    analyze.add_argument(
        "--what-if",
        nargs="+",
        default=[],
        choices=_formats(),
        metavar="TYPE",
        help=f"what each tensor would be in another format, and the best trade-offs: {', '.join(_formats())}",
    )
    analyze.add_argument("--csv", metavar="FILE", help="write the table of all tensors")
    analyze.add_argument("--html", metavar="FILE", help="write all as one page, with plots; needs the extra `plots`")
    analyze.add_argument(
        "--exclude-config",
        metavar="FILE",
        help="write the nodes that take the --exclude worst tensors, as the list `exclude` of Quark's configuration (JSON)",
    )
    analyze.add_argument("--exclude", type=arguments.positive, default=5, metavar="N", help="how many tensors (default: 5)")


# Tensors that a page has histograms of.
_HISTOGRAMS = 8


def _formats() -> list[str]:
    from ..analysis.experiments.formats import FORMATS

    return list(FORMATS)


def _add(commands: Any, name: str, purpose: str, threads: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=purpose)
    parser.add_argument("model", metavar="MODEL", help="a quantized ONNX model")
    parser.add_argument(
        "--reference", metavar="FLOAT_MODEL", help="the float model (default: MODEL without its quantization nodes)"
    )
    arguments.add_data(parser, required=True)
    parser.add_argument(
        "--outputs",
        nargs="+",
        metavar="NAME",
        help="of the model's, to compare these alone (default: all; those that cannot be compared are listed, with the reason)",
    )
    arguments.add_threads(parser, threads)
    arguments.add_runs(parser)
    parser.add_argument(
        "--fail-below",
        type=arguments.number,
        metavar="DB",
        help="exit code 1 if an output's SQNR is less, or none, or one of --outputs, or all, cannot be compared",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def _evaluate(options: argparse.Namespace) -> int:
    from ..analysis.evaluate import evaluate
    from ..running.data import load_function

    with counted_progress("evaluating") as progress:
        evaluation = evaluate(
            options.model,
            options.reference,
            **arguments.data_arguments(options),
            outputs=options.outputs,
            labels=options.labels,
            top_k=options.top_k,
            metric=load_function(options.metric) if options.metric else None,
            **arguments.runs_arguments(options),
            progress=progress,
        )
    _tell_failed(evaluation.failed)
    if options.json:
        # What is the same in every run.
        found = {name: value for name, value in asdict(evaluation).items() if not name.endswith("samples_per_second")}
        print_json({"model": options.model, "reference": options.reference, **found})
    else:
        print_outputs("Outputs, against the reference's", evaluation.outputs)
        print_not_compared(evaluation.not_compared)
        rows = [
            ["samples", f"{evaluation.samples} in {evaluation.batches} batches"],
            ["samples a second", f"{evaluation.samples_per_second:.0f}"],
            ["samples a second, reference", f"{evaluation.reference_samples_per_second:.0f}"],
            *([name, f"{value:.6g}"] for name, value in evaluation.metrics.items()),
        ]
        print_table("", ["", ""], rows)
    return _fails_below(options, evaluation)


def _analyze(options: argparse.Namespace) -> int:
    from ..analysis.analyze import analyze
    from ..analysis.page import check_plots, page
    from ..rewriting import model_files

    if options.html:
        check_plots()
    with counted_progress("analysing") as progress:
        analysis = analyze(
            options.model,
            options.reference,
            **arguments.data_arguments(options),
            outputs=options.outputs,
            sweep=options.sweep or options.by is not None,
            by=options.by or "tensor",
            what_if=options.what_if,
            histograms=_HISTOGRAMS if options.html else 0,
            **arguments.runs_arguments(options),
            progress=progress,
        )
    _tell_failed(analysis.failed)
    if options.html:
        model_files.write(options.html, page(analysis, Path(options.model).name).encode())
    if options.csv:
        model_files.write(options.csv, _csv(analysis).encode())
    if options.exclude_config:
        model_files.write(
            options.exclude_config,
            json.dumps({"exclude": _excluded(analysis, options.exclude, options.model)}, indent=2).encode(),
        )
    if options.json:
        print_json({"model": options.model, "reference": options.reference, **asdict(analysis)})
    else:
        _print_analysis(analysis, options.top)
    return _fails_below(options, analysis)


def _tell_failed(failed: dict[str, str]) -> None:
    for name, message in failed.items():
        tell("yellow", "left out", message if message.startswith(name) else f"{name}: {message}")


def _csv(analysis: Analysis) -> str:
    """A row a tensor, in the order of execution."""
    content = io.StringIO()
    rows = []
    for tensor in sorted(analysis.tensors, key=lambda each: each.place):
        row = asdict(tensor)
        row |= {f"what_if_{name}": value for name, value in row.pop("what_if").items()}
        rows.append(row | {"parameters": json.dumps(json_value(row["parameters"])), "used_by": " ".join(row["used_by"])})
    writer = csv.DictWriter(content, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return content.getvalue()


def _excluded(analysis: Analysis, count: int, model: str) -> list[str]:
    """The nodes that take the worst tensors: by the sweep, where there is one, else by their own errors. Nodes without a name,
    and those of functions, cannot be excluded."""
    from ..rewriting import model_files

    tensors = {each.name: each for each in analysis.tensors}
    worst = [each.name for each in analysis.sweep if each.name in tensors] or list(tensors)
    names = {node.name for node in model_files.load(model, external_data=False).graph.node}
    return list(dict.fromkeys(node for name in worst[:count] for node in tensors[name].used_by if node in names))


def _print_analysis(analysis: Analysis, top: int) -> None:
    print_outputs("Outputs, against the reference's", analysis.outputs)
    print_not_compared(analysis.not_compared)
    if analysis.twin:
        print_outputs("The model without its quantization nodes, against the reference", analysis.twin)
    if any(each.sqnr_db < math.inf for each in analysis.optimizations):
        print_outputs("With ONNX Runtime's optimisations, against without", analysis.optimizations)
    formats = list(dict.fromkeys(name for each in analysis.tensors for name in each.what_if))
    columns = ["tensor", "kind", "type", ">own, dB", ">inherited", ">both", ">saturated", ">to zero", ">range used", "used by"]
    rows = [
        [
            each.name,
            each.kind,
            each.type,
            *(text(ratio, ".1f") for ratio in (each.own_sqnr_db, each.inherited_sqnr_db, each.sqnr_db)),
            *(text(share, ".1%") for share in (each.saturated, each.flushed_to_zero, each.range_used)),
            ", ".join(each.used_by),
            *(text(each.what_if.get(name), ".1f") for name in formats),
        ]
        for each in analysis.tensors[:top]
    ]
    shown = f"the worst {len(rows)} of {len(analysis.tensors)}" if len(rows) < len(analysis.tensors) else "all"
    title = f"Quantized tensors, {shown}, over {analysis.samples} samples: SQNR of the rounding, of what comes to it, of both"
    print_table(
        title, [*columns, *(f">{name}" for name in formats)], rows or [["none", *[""] * (len(columns) + len(formats) - 1)]]
    )
    if analysis.sweep:
        effects = [[each.name, text(each.on_sqnr_db, ".1f"), text(each.off_sqnr_db, ".1f")] for each in analysis.sweep[:top]]
        print_table(
            "Least SQNR of the outputs, the worst first", ["what", ">alone quantized, dB", ">alone in float, dB"], effects
        )
    if analysis.trade_offs:
        points = [
            [f"{each.bits / 8e3:,.1f}", text(each.sqnr_db, ".1f"), _choices(each.choices)] for each in analysis.trade_offs
        ]
        print_table(
            "Best trade-offs", [">kB of quantized tensors a sample", ">least SQNR of the outputs, dB", "changes"], points
        )
    if analysis.unmatched:
        reasons = list(analysis.unmatched.items())
        more = [["…", f"{len(reasons) - top} more"]] if len(reasons) > top else []
        print_table("Not measured, or not in full", ["what", "why"], [[*each] for each in reasons[:top]] + more)


def _choices(choices: dict[str, str]) -> str:
    counts = Counter(choices.values())
    return ", ".join(f"{count} to {name}" for name, count in counts.items())


def print_outputs(title: str, outputs: list[OutputError]) -> None:
    columns = {
        "SQNR, dB": lambda each: text(each.sqnr_db, ".1f"),
        "cosine": lambda each: text(each.cosine, ".6f"),
        "largest error": lambda each: text(each.max_abs_error, ".3g"),
        "mean error": lambda each: text(each.mean_abs_error, ".3g"),
        "same top": lambda each: text(each.same_top, ".2%"),
        "accuracy": lambda each: text(each.accuracy, ".2%"),
        "reference's": lambda each: text(each.reference_accuracy, ".2%"),
    }
    columns = {name: cell for name, cell in columns.items() if name in ("SQNR, dB", "cosine") or any(map(cell, outputs))}
    rows = [[each.name, *(cell(each) for cell in columns.values())] for each in outputs]
    print_table(
        title, ["output", *(f">{name}" for name in columns)], rows or [["none that can be compared"] + [""] * len(columns)]
    )


def text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form) if math.isfinite(value) else str(value)


def print_json(value: Any) -> None:
    print(json.dumps(json_value(value), indent=2))


def json_value(value: Any) -> Any:
    """JSON has no infinities and no NaN: they become text."""
    if isinstance(value, dict):
        return {key: json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _fails_below(options: argparse.Namespace, found: Analysis | Evaluation) -> int:
    """1 if an output that is compared, or was chosen to be, is not as good as it has to be, or none is compared."""
    limit = options.fail_below
    if limit is None:
        return 0
    faults = [f"output {each.name} has an SQNR of {each.sqnr_db:.1f} dB" for each in found.outputs if not each.sqnr_db >= limit]
    compared = [each.name for each in found.outputs]
    faults += [f"output {name} is not compared" for name in options.outputs or () if name not in compared]
    if not (faults or compared):
        faults.append("no output is compared")
    for each in faults:
        tell("red", "error", f"{each}; expected at least {limit:g} dB")
    return int(bool(faults))
