"""The subcommand `evaluate`: compare a quantized model's outputs with the float model's; its options, and the exit code of
--fail-below. It shares its options with `analyze`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from . import arguments
from .printing import print_json, print_tables, progress, tell

if TYPE_CHECKING:
    from ..analysis.results import Analysis, Evaluation
    from ..running.decoding import Decoding

PURPOSE = "compare a quantized model's outputs with the float model's, over data"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_comparison(parser)
    parser.add_argument(
        "--labels", metavar="KEY", help="the array of right classes in the data; adds the accuracy of both models"
    )
    parser.add_argument(
        "--class-axis",
        type=int,
        default=-1,
        metavar="AXIS",
        help="the axis of the outputs along which classes lie (default: -1, the last; 1 for most segmentation models)",
    )
    parser.add_argument(
        "--ignore-label", type=int, metavar="LABEL", help="the label of places that do not count, such as 255 or -100"
    )
    parser.add_argument(
        "--next-token",
        action="store_true",
        help="--labels are tokens, such as input_ids: the label of a place is the token after it",
    )
    parser.add_argument(
        "--top-k",
        type=arguments.positive,
        default=1,
        metavar="K",
        help="count the reference's top element, or the label, as found if it is among the K largest (default: 1)",
    )
    parser.add_argument(
        "--generate", type=arguments.positive, metavar="N", help="let both models write N tokens after each text"
    )
    parser.add_argument(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="your own metric: FUNCTION(outputs, reference_outputs, feed) returns a number for a batch, or a dict of numbers",
    )


def _input_name(text: str) -> tuple[str, str]:
    name, _, meaning = text.partition("=")
    if not name or not meaning:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=MEANING")
    return name, meaning


def decoding_of(options: argparse.Namespace) -> Decoding | None:
    """Return how the options of `add_comparison` run decoders, or None."""
    from ..running.decoding import Decoding

    if options.decode is None:
        return None
    generate = getattr(options, "generate", None)
    return Decoding(options.decode, options.context, generate or 0, dict(options.input_name or ()))


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options of a subcommand that compares a quantized model with the float model over data."""
    parser.add_argument("model", metavar="MODEL", help="a quantized ONNX model, or a folder of ONNX Runtime GenAI")
    parser.add_argument(
        "--reference", metavar="FLOAT_MODEL", help="the float model (default: MODEL without its quantization nodes)"
    )
    arguments.add_data(parser, required=True)
    parser.add_argument(
        "--outputs",
        nargs="+",
        metavar="NAME",
        help="compare only these outputs of the model (default: all; those that cannot be compared are listed with the reason)",
    )
    parser.add_argument(
        "--logits", metavar="NAME", help="the output of logits, whose distributions are compared (default: logits)"
    )
    parser.add_argument(
        "--decode",
        type=arguments.positive,
        metavar="N",
        help="--data are tokens of texts: run decoders with key-value caches over them, N tokens a run",
    )
    parser.add_argument(
        "--context", type=arguments.positive, metavar="N", help="begin with empty caches after every N tokens of a text"
    )
    parser.add_argument(
        "--input-name",
        type=_input_name,
        action="append",
        metavar="NAME=MEANING",
        help="an input of decoders with another name: input_ids, attention_mask, position_ids, use_cache_branch, or for a "
        "cache the output that continues it, such as key_in.%%d=key_out.%%d",
    )
    arguments.add_runs(parser)
    parser.add_argument(
        "--fail-below",
        type=arguments.number,
        metavar="DB",
        help="exit code 1 if an output's SQNR is below DB or is NaN, if one of --outputs cannot be compared, or if none can",
    )
    arguments.add_json(parser)
    arguments.add_threads(parser)


def action(options: argparse.Namespace) -> int:
    from ..analysis.evaluate import evaluate
    from ..analysis.results import tables_of_evaluation
    from ..running.data import load_function

    arguments.check_written(options, "resume")
    with progress("evaluating") as update:
        evaluation = evaluate(
            options.model,
            arguments.data_of(options),
            options.reference,
            **arguments.given_of(options, "outputs", "labels", "class_axis", "ignore_label", "next_token", "top_k", "logits"),
            metric=load_function(options.metric) if options.metric else None,
            decoding=decoding_of(options),
            execution=arguments.execution_of(options, update),
        )
    tell_failed(evaluation.failed)
    if options.json:
        # The rates are left out: they differ from run to run, and the JSON is always the same for the same models and data.
        fields = {name: value for name, value in asdict(evaluation).items() if not name.endswith("samples_per_second")}
        print_json({"model": options.model, "reference": options.reference, **fields})
    else:
        print_tables(tables_of_evaluation(evaluation))
    return fails_below(options, evaluation)


def tell_failed(failed: dict[str, str]) -> None:
    """Print a message for each batch that was left out. The message begins with the batch's name."""
    from ..running.runs import with_name

    for name, message in failed.items():
        tell("yellow", "left out", with_name(name, message))


def fails_below(options: argparse.Namespace, result: Analysis | Evaluation) -> int:
    """Return the exit code: 1 if --fail-below finds a fault. Print a message for each fault."""
    limit = options.fail_below
    if limit is None:
        return 0
    worse = [output for output in result.outputs if not output.sqnr_db >= limit]
    faults = [f"output {each.name} has an SQNR of {each.sqnr_db:.1f} dB; expected at least {limit:g} dB" for each in worse]
    compared = [output.name for output in result.outputs]
    faults += [f"output {name} is not compared" for name in options.outputs or () if name not in compared]
    if not (faults or compared):
        faults.append("no output is compared")
    for fault in faults:
        tell("red", "error", fault)
    return int(bool(faults))
