"""The commands `evaluate` and `analyze`: where the accuracy goes."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import arguments
from .printing import counted_progress, print_table, tell

if TYPE_CHECKING:
    from ..analysis.evaluate import OutputError


def add_commands(commands: Any) -> None:
    evaluate = _add(commands, "evaluate", "compare a quantized model's outputs with the float model's, over data")
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


def _add(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=purpose)
    parser.add_argument("model", metavar="MODEL", help="a quantized ONNX model")
    parser.add_argument(
        "--reference", metavar="FLOAT_MODEL", help="the float model (default: MODEL without its quantization nodes)"
    )
    arguments.add_data(parser, required=True)
    arguments.add_threads(parser)
    parser.add_argument(
        "--fail-below", type=arguments.number, metavar="DB", help="exit code 1 if an output's SQNR is less, or none"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser


def _evaluate(options: argparse.Namespace) -> int:
    from ..analysis.data import load_function
    from ..analysis.evaluate import evaluate

    with counted_progress("evaluating") as progress:
        evaluation = evaluate(
            options.model,
            options.reference,
            **arguments.data_arguments(options),
            labels=options.labels,
            top_k=options.top_k,
            metric=load_function(options.metric) if options.metric else None,
            threads=options.threads,
            progress=progress,
        )
    if options.json:
        print_json({"model": options.model, "reference": options.reference, **asdict(evaluation)})
    else:
        print_outputs("Outputs, against the reference's", evaluation.outputs)
        rows = [
            ["samples", f"{evaluation.samples} in {evaluation.batches} batches"],
            ["samples a second", f"{evaluation.samples_per_second:.0f}"],
            ["samples a second, reference", f"{evaluation.reference_samples_per_second:.0f}"],
            *([name, f"{value:.6g}"] for name, value in evaluation.metrics.items()),
        ]
        print_table("", ["", ""], rows)
    return fails_below(options.fail_below, evaluation.outputs)


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


def fails_below(limit: float | None, outputs: list[OutputError]) -> int:
    failing = [each for each in outputs if limit is not None and not each.sqnr_db >= limit]
    for each in failing:
        tell("red", "error", f"output {each.name} has an SQNR of {each.sqnr_db:.1f} dB; expected at least {limit:g} dB")
    return int(bool(failing))
