"""The subcommand `run`: run a model, time it, and compare its outputs with a reference."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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
    report, outputs, artifact = _measure(options, nodes)
    if options.save_outputs:
        measuring.write_arrays(options.save_outputs, outputs)
    if options.expected:
        report["expected"] = _compare_with_file(options, outputs)
    if options.json:
        json_nodes = [asdict(node) | ({"why": node.why} if node.why else {}) for node in nodes[options.model]]
        print_json({"model": options.model, "nodes": json_nodes, **report})
    else:
        _print(options, report, artifact)
    return 0 if report.get("expected", {}).get("holds", True) else 1


@dataclass
class _Contender:
    """A model that is timed: its name in --json's report, its session, and its times in seconds. `artifact` is its optimized
    form, if that is what runs."""

    name: str
    session: onnxruntime.InferenceSession
    load_seconds: float
    artifact: Artifact | None
    median_seconds: float = 0.0

    def report(self) -> dict[str, Any]:
        """Return the part of --json's report about this model."""
        times = {"model": self.name, "load_seconds": self.load_seconds, "median_seconds": self.median_seconds}
        return times | (self.artifact.report() if self.artifact else {})

    def ratio_to(self, reference: _Contender) -> dict[str, float]:
        """Return the ratio of its latency to that of the reference, as --json's report has it."""
        return {"latency_ratio": self.median_seconds / reference.median_seconds}


def _measure(
    options: argparse.Namespace, nodes: Mapping[str, list[QuantizationNodes]]
) -> tuple[dict[str, Any], Arrays, Artifact | None]:
    """Run the model, its optimized form and the reference, as far as the options ask for them. `nodes` are the quantization
    nodes by the path of the model. Return --json's report without the comparison with --expected, the outputs of the model for
    the first batch, and the artifact of the optimized model, if there is one."""
    from ..running.sessions import run
    from . import measuring

    with ExitStack() as stack:
        contenders = _load(options, nodes, stack)
        stack.callback(contenders.clear)  # before the files are removed: Windows removes no file that a session reads
        batches = arguments.batches_of(options, contenders["model"].session)
        inputs = _first_batch(options, batches)
        outputs = {name: run(contender.session, inputs) for name, contender in contenders.items()}
        with progress("running") as update:
            # No variable keeps the sessions: the contenders are cleared before the files are removed.
            medians = measuring.latencies(
                {name: each.session for name, each in contenders.items()}, inputs, options.runs, update
            )
        for name, median in medians.items():
            contenders[name].median_seconds = median
        count, comparison = _compare_batches(options, contenders, outputs, batches)
        report = {
            "inputs": {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in inputs.items()},
            "batches": count,
            "threads": options.threads or "default",
            "providers": contenders["model"].session.get_providers(),
        }
        report |= _report_models(contenders, comparison)
        artifact = next(filter(None, (contender.artifact for contender in contenders.values())), None)
    return report, outputs["model"], artifact


def _first_batch(options: argparse.Namespace, batches: Iterator[Arrays]) -> Arrays:
    """Return the first batch. Raise ModelError if there are more, and an option is for one batch."""
    first = next(batches)
    if (options.save_outputs or options.expected) and next(batches, None) is not None:
        raise ModelError("--save-outputs and --expected are for one batch; the data have more")
    return first


def _compare_batches(
    options: argparse.Namespace, contenders: Mapping[str, _Contender], outputs: Mapping[str, Arrays], others: Iterator[Arrays]
) -> tuple[int, Comparison | None]:
    """Run the model on the batches after the first one, whose `outputs` are known. Return the number of all batches, and the
    comparison with the reference, if there is one."""
    from ..analysis.measures.outputs import compare
    from ..analysis.twin import float_twin
    from ..analysis.twin.random_nodes import random_outputs
    from ..running.sessions import run

    count, comparison = 1, None
    if options.reference:
        pair = float_twin.load_pair(options.model, options.reference, whole=False)
        random = random_outputs(*pair, [*outputs["model"]])
        chosen = [name for name in outputs["model"] if name not in random]
        comparison = compare(outputs["model"], outputs["reference"], chosen)
    with progress("running the other batches"):
        for batch in others:
            count += 1
            y = run(contenders["model"].session, batch)
            if comparison:
                comparison.add(compare(y, run(contenders["reference"].session, batch), chosen))
    if comparison:
        comparison.reasons |= random
    return count, comparison


def _report_models(contenders: Mapping[str, _Contender], comparison: Comparison | None) -> dict[str, Any]:
    """Return the part of --json's report about the models."""
    model, optimized, reference = contenders["model"], contenders.get("optimized"), contenders.get("reference")
    report = model.report()
    if optimized:
        report["optimized"] = optimized.report() | (optimized.ratio_to(reference) if reference else {})
    if reference and comparison:
        compared = {"outputs": _json_errors(comparison.errors), "not_compared": comparison.reasons}
        report["reference"] = reference.report() | model.ratio_to(reference) | compared
    return report


def _load(options: argparse.Namespace, nodes: Mapping[str, list[QuantizationNodes]], stack: ExitStack) -> dict[str, _Contender]:
    """Return the contenders "model", "optimized" and "reference", as far as the options ask for them. The files of optimized
    models exist until the stack is closed."""
    from . import measuring

    paths = {"model": options.model}
    if options.optimize:
        paths["optimized"] = options.model
    if options.reference:
        paths["reference"] = options.reference
    providers = options.providers
    contenders = {}
    for role, path in paths.items():
        name = f"{path}, optimized" if role == "optimized" else path
        with progress(f"loading {name}"):
            start = time.perf_counter()
            artifact = None
            if role == "optimized" or arguments.has_other_providers(options):
                artifact = stack.enter_context(measuring.artifact_of(path, cache=options.cache, providers=providers))
            session = measuring.create_session(
                path, nodes[path], threads=options.threads, artifact=artifact, providers=providers
            )
            contenders[role] = _Contender(name, session, time.perf_counter() - start, artifact)
    return contenders


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
