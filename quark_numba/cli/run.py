"""The subcommand `run`: run a model, time it, and compare its outputs with a reference."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from ..texts import cell
from . import arguments
from .printing import print_json, print_left, print_table, print_tables, progress

if TYPE_CHECKING:
    import onnxruntime

    from ..analysis.measures.outputs import Comparison
    from ..analysis.measures.sums import ErrorSums
    from ..running.sessions import Arrays
    from ..session.artifact import Artifact
    from .inventory import QuantizationNodes


def add_parser(commands: Any) -> None:
    parser = arguments.add_runner(commands, "run", "run a model, time it, and compare it with a reference")
    parser.set_defaults(action=_run)
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


def _run(options: argparse.Namespace) -> int:
    from . import measuring
    from .inventory import quantization_nodes

    arguments.check_written(options, "save_outputs")
    models = [(path, quantization_nodes(path)) for path in (options.model, options.reference) if path]
    nodes = models[0][1]
    if not options.json:
        rows = [
            [node.operator, node.element_type, str(node.count), f"{node.run_by}: {node.why}" if node.why else node.run_by]
            for node in nodes
        ]
        columns = ["operator", "type", ">nodes", "run by"]
        print_table(f"Quantization nodes of {options.model}", columns, rows)
    report, outputs, optimized = _measure(options, models)
    if options.save_outputs:
        measuring.write_arrays(options.save_outputs, outputs)
    if options.expected:
        report["expected"] = _compare_with_file(options, outputs)
    if options.json:
        json_nodes = [asdict(node) | ({"why": node.why} if node.why else {}) for node in nodes]
        print_json({"model": options.model, "nodes": json_nodes, **report})
    else:
        _print(options, report, optimized)
    return 0 if report.get("expected", {}).get("holds", True) else 1


def _measure(
    options: argparse.Namespace, models: list[tuple[str, list[QuantizationNodes]]]
) -> tuple[dict[str, Any], Arrays, Artifact | None]:
    """Run the models, given as paths and quantization nodes. Return --json's report without the comparison with --expected, the
    outputs of the first model for the first batch, and that model in its optimized form, if the options ask for it."""
    from ..running.sessions import run
    from . import measuring

    with ExitStack() as stack:
        sessions, loads, optimized = _load(options, models, stack)
        stack.callback(sessions.clear)  # before the files are removed: Windows removes no file that a session reads
        batches = arguments.batches_of(options, sessions[0])
        inputs = _first_batch(options, batches)
        outputs = [run(session, inputs) for session in sessions]
        with progress("running") as update:
            medians = measuring.latencies(sessions, inputs, options.runs, update)
        count, comparison = _compare_batches(options, sessions, outputs, batches)
        report = {
            "inputs": {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in inputs.items()},
            "batches": count,
            "threads": options.threads or "default",
            "providers": sessions[0].get_providers(),
        }
    times = [load | {"median_seconds": median} for load, median in zip(loads, medians, strict=True)]
    return report | _report_times(options, times, optimized, comparison), outputs[0], optimized


def _first_batch(options: argparse.Namespace, batches: Iterator[Arrays]) -> Arrays:
    """Return the first batch. Raise ModelError if there are more, and an option is for one batch."""
    first = next(batches)
    if (options.save_outputs or options.expected) and next(batches, None) is not None:
        raise ModelError("--save-outputs and --expected are for one batch; the data have more")
    return first


def _compare_batches(
    options: argparse.Namespace,
    sessions: list[onnxruntime.InferenceSession],
    outputs: Sequence[Arrays],
    others: Iterator[Arrays],
) -> tuple[int, Comparison | None]:
    """Run the model on the batches after the first one, whose `outputs` by all sessions are known. Return the number of all
    batches, and the comparison with the reference, which is the last session, if there is one."""
    from ..analysis.measures.outputs import compare
    from ..analysis.twin import float_twin
    from ..analysis.twin.random_nodes import random_outputs
    from ..running.sessions import run

    random: dict[str, str] = {}
    if options.reference:
        random = random_outputs(*float_twin.load_pair(options.model, options.reference, whole=False), [*outputs[0]])
    chosen = [name for name in outputs[0] if name not in random]
    comparison = compare(outputs[0], outputs[-1], chosen) if options.reference else None
    count = 1
    with progress("running the other batches"):
        for batch in others:
            count += 1
            y = run(sessions[0], batch)
            if comparison:
                comparison.add(compare(y, run(sessions[-1], batch), chosen))
    if comparison:
        comparison.reasons |= random
    return count, comparison


def _report_times(
    options: argparse.Namespace, times: list[dict[str, Any]], optimized: Artifact | None, comparison: Comparison | None
) -> dict[str, Any]:
    """Return the part of --json's report about the models, from its parts about their sessions and the comparison with the
    reference."""
    latencies = [timed["median_seconds"] for timed in times]
    ratios = [{"latency_ratio": latency / latencies[-1]} if options.reference else {} for latency in latencies]
    report = {name: times[0][name] for name in ("load_seconds", "median_seconds")}
    if optimized and arguments.has_other_providers(options):
        report |= optimized.report()
    elif optimized:
        report["optimized"] = times[1] | optimized.report() | ratios[1]
    if comparison:
        compared = {"outputs": _json_errors(comparison.errors), "not_compared": comparison.reasons}
        report["reference"] = times[-1] | ratios[0] | compared
    return report


def _load(
    options: argparse.Namespace, models: list[tuple[str, list[QuantizationNodes]]], stack: ExitStack
) -> tuple[list[onnxruntime.InferenceSession], list[dict[str, Any]], Artifact | None]:
    """Return sessions of the models, including the optimized form of the first one if the options ask for that, the part of
    --json's report about each, and that optimized model. Its files exist until the stack is closed."""
    from . import measuring

    has_others = arguments.has_other_providers(options)
    contenders = [(*model, has_others) for model in models]
    if options.optimize:
        contenders.insert(1, (*models[0], True))
    sessions, loads, artifacts = [], [], []
    for path, nodes, is_optimized in contenders:
        with progress(f"loading {path}{' optimized' * is_optimized}"):
            start = time.perf_counter()
            how: dict[str, Any] = {"threads": options.threads, "providers": options.providers}
            optimized = None
            if is_optimized:
                optimized = stack.enter_context(measuring.optimized(path, cache=options.cache, providers=options.providers))
                artifacts.append(optimized)
            sessions.append(measuring.create_session(path, nodes, optimized=optimized, **how))
            name = path + ", optimized" * (is_optimized and not has_others)
            loads.append({"model": name, "load_seconds": time.perf_counter() - start})
    return sessions, loads, artifacts[0] if artifacts else None


def _json_errors(errors: Mapping[str, ErrorSums]) -> list[dict[str, Any]]:
    return [{"output": name, "sqnr_db": sums.sqnr_db, "largest_difference": sums.largest} for name, sums in errors.items()]


def _compare_with_file(options: argparse.Namespace, outputs: Arrays) -> dict[str, Any]:
    """Return the part of --json's report about the difference from the file of --expected. Raise ModelError if an output cannot
    be compared."""
    from ..analysis.measures.outputs import compare
    from ..running.files import read_arrays

    compared = compare(outputs, read_arrays(options.expected, list(outputs)))
    for name, reason in compared.reasons.items():
        raise ModelError(f"output {name} {reason}")
    limit = options.tolerance or 0.0
    holds = all(sums.largest <= limit for sums in compared.errors.values())
    errors = _json_errors(compared.errors)
    return {"file": options.expected, "tolerance": limit, "outputs": errors, "holds": holds}


def _print(options: argparse.Namespace, report: dict[str, Any], optimized: Artifact | None) -> None:
    from ..analysis import result_tables

    reference, expected = report.get("reference"), report.get("expected")
    inputs = ", ".join(f"{name} {x['dtype']} {tuple(x['shape'])}" for name, x in report["inputs"].items())
    times = [{"model": options.model, **report, "latency_ratio": reference and reference["latency_ratio"]}]
    times += [report["optimized"]] if "optimized" in report else []
    times += [{**reference, "latency_ratio": 1.0}] if reference else []
    columns, rows = ["model", ">load, ms", ">median latency, ms"], []
    for timed in times:
        ms = f"{1e3 * timed['load_seconds']:.0f}", f"{1e3 * timed['median_seconds']:.2f}"
        rows.append([Path(timed["model"]).name, *ms, *([f"{timed['latency_ratio']:.2f}"] if reference else [])])
    providers = f"; providers: {', '.join(report['providers'])}" if options.providers else ""
    title = f"Time (threads: {report['threads']}{providers}; inputs: {inputs})"
    print_table(title, columns + ([">ratio"] if reference else []), rows)
    if optimized:
        print_left(optimized)
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
