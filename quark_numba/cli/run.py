"""The subcommand `run`: run a model, time it, and compare its outputs with a reference; its options, tables, and exit code
(times are taken in ``measuring``)."""

from __future__ import annotations

import argparse
import functools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..texts import cell
from . import arguments
from .printing import print_json, print_left, print_table, print_tables

if TYPE_CHECKING:
    from ..session.artifact import Artifact

PURPOSE = "run a model, time it, and compare it with a reference"


def add_options(parser: argparse.ArgumentParser) -> None:
    arguments.add_runner(parser)
    parser.add_argument("--reference", metavar="FLOAT_MODEL", help="the float model (default: nothing is compared)")
    parser.add_argument("--optimize", action="store_true", help="also time the model optimized, as `InferenceSession` runs it")
    arguments.add_cache(parser)
    parser.add_argument("--save-outputs", metavar="FILE.npz", help="write the outputs, by name")
    parser.add_argument(
        "--expected",
        metavar="FILE.npz",
        help="compare the outputs with those in the file; exit code 1 if they differ by more than T",
    )
    parser.add_argument(
        "--tolerance",
        type=functools.partial(arguments.number, least=0),
        metavar="T",
        help="the largest difference from --expected that is allowed (default: 0)",
    )


def action(options: argparse.Namespace) -> int:
    from . import measuring
    from .inventory import quantization_nodes

    arguments.check_written(options, "save_outputs")
    nodes = {path: quantization_nodes(path) for path in (options.model, options.reference) if path}
    if not options.json:
        rows = [
            [node.operator, node.element_type, str(node.count), f"{node.run_by}: {node.why}" if node.why else node.run_by]
            for node in nodes[options.model]
        ]
        columns = ["operator", "type", ">nodes", "run by"]
        print_table(f"Quantization nodes of {options.model}", columns, rows)
    report, outputs, artifact = measuring.measure(options, nodes)
    if options.save_outputs:
        measuring.write_arrays(options.save_outputs, outputs)
    if options.expected:
        report["expected"] = measuring.compare_with_file(options, outputs)
    if options.json:
        json_nodes = [asdict(node) | ({"why": node.why} if node.why else {}) for node in nodes[options.model]]
        print_json({"model": options.model, "nodes": json_nodes, **report})
    else:
        _print(options, report, artifact)
    return 0 if report.get("expected", {}).get("holds", True) else 1


def _print(options: argparse.Namespace, report: dict[str, Any], artifact: Artifact | None) -> None:
    from ..analysis import result_tables

    reference, expected = report.get("reference"), report.get("expected")
    inputs = ", ".join(f"{name} {x['dtype']} {tuple(x['shape'])}" for name, x in report["inputs"].items())
    times = [{**report, "latency_ratio": reference and reference["latency_ratio"]}]
    times += [report["optimized"]] if "optimized" in report else []
    times += [{**reference, "latency_ratio": 1.0}] if reference else []
    columns, rows = ["model", ">load, ms", ">median latency, ms"], []
    for timed in times:
        ms = f"{1e3 * timed['load_seconds']:.0f}", f"{1e3 * timed['median_seconds']:.2f}"
        rows.append([Path(timed["model"]).name, *ms, *([f"{timed['latency_ratio']:.2f}"] if reference else [])])
    providers = f"; providers: {', '.join(report['providers'])}" if options.providers else ""
    title = f"Time (threads: {report['threads']}{providers}; inputs: {inputs})"
    print_table(title, columns + ([">ratio"] if reference else []), rows)
    if artifact:
        print_left(artifact)
    if reference:
        _print_errors("Difference from the reference", reference["outputs"])
        print_tables(result_tables.not_compared(reference["not_compared"]))
    if expected:
        holds = "within" if expected["holds"] else "beyond"
        title = f"Difference from {expected['file']}: {holds} the tolerance of {expected['tolerance']:g}"
        _print_errors(title, expected["outputs"])


def _print_errors(title: str, outputs: list[dict[str, Any]]) -> None:
    rows = [[output["output"], cell(output["sqnr_db"], ".1f"), cell(output["largest_difference"], ".3g")] for output in outputs]
    print_table(title, ["output", ">SQNR, dB", ">largest difference"], rows)
